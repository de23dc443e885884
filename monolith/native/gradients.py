"""Gradients of the compiled ops; imported by `monolith.native.ops` and by nobody else."""

import tensorflow as tf

from monolith.native import ops

tf.no_gradient("MonolithFusedValueRowids")

# A write is no function of what it writes, and rows of several tables are differentiated by the
# tensor that holds them; only the lookup in one table passes gradients on to its handle.
for _op in (
    "CreateMonolithMultiHashTable",
    "IsHashTableInitialized",
    "MonolithDummySyncClient",
    "MonolithExtractSlotFromEntry",
    "MonolithHashTable",
    "MonolithHashTableAssign",
    "MonolithHashTableAssignAdd",
    "MonolithHashTableEvict",
    "MonolithHashTableFusedLookup",
    "MonolithHashTableFusedOptimize",
    "MonolithHashTableLookupBagsGradient",
    "MonolithHashTableLookupEntry",
    "MonolithHashTableOptimize",
    "MonolithHashTableOptimizeBags",
    "MonolithHashTableRestore",
    "MonolithHashTableSave",
    "MonolithHashTableSaveAsTensor",
    "MonolithHashTableSize",
    "MonolithJoinIds",
    "MonolithMultiHashTableAssign",
    "MonolithMultiHashTableAssignAdd",
    "MonolithMultiHashTableErase",
    "MonolithParameterSyncClient",
    "MonolithParameterSyncCompare",
    "MonolithParameterSyncGather",
    "MonolithParameterSyncSettle",
    "MonolithParameterSyncTake",
    "MonolithMultiHashTableFeatureStat",
    "MonolithMultiHashTableFusedLookup",
    "MonolithMultiHashTableFusedOptimize",
    "MonolithMultiHashTableLookup",
    "MonolithMultiHashTableLookupEntry",
    "MonolithMultiHashTableOptimize",
    "MonolithMultiHashTableReinitialize",
    "MonolithMultiHashTableRestore",
    "MonolithMultiHashTableSave",
    "MonolithMultiHashTableSize",
    "MonolithMultiHashTableStats",
    "MonolithParseExamples",
    "MonolithParseUnasked",
    "MonolithRowAddAction",
    "MonolithRowAddLabels",
    "MonolithRowHasFids",
    "MonolithRowHasLabel",
    "MonolithRowHasValue",
    "MonolithRowSample",
    "MonolithRowScatterLabel",
    "MonolithTableGatherTouched",
    "MonolithTableListIds",
    "MonolithTableUnpackRows",
    "ReadMonolithMultiHashTable",
    "TfServingRemotePredict",
):
    tf.no_gradient(_op)


@tf.RegisterGradient("MonolithHashTableLookup")
def _hash_table_lookup_gradient(
    op: tf.Operation, rows_gradient: tf.Tensor
) -> tuple[tf.IndexedSlices, None]:
    """The gradient by the handle is what `HashTable.apply_gradients` takes: ids and their rows."""
    ids = tf.reshape(op.inputs[1], [-1])
    return tf.IndexedSlices(rows_gradient, ids, _get_dense_shape(op)), None


@tf.RegisterGradient("MonolithHashTableLookupBags")
def _hash_table_lookup_bags_gradient(
    op: tf.Operation, bags_gradient: tf.Tensor
) -> tuple[tf.IndexedSlices, None, None]:
    """As that of the lookup: every id of a bag has the bag's gradient, by its part in it."""
    _, ids, row_splits = op.inputs
    by_rows = ops.monolith_hash_table_lookup_bags_gradient(
        ids, row_splits, bags_gradient, combiner=op.get_attr("combiner")
    )
    return tf.IndexedSlices(by_rows, tf.reshape(ids, [-1]), _get_dense_shape(op)), None, None


def _get_dense_shape(op: tf.Operation) -> tf.Tensor | None:
    """Returns the shape of an empty table, so that no gradient and one look alike to `tf.cond`.

    The branch that looks nothing up gives zeros in the shape that the handle of a table has.
    """
    return None if tf.executing_eagerly() else tf.constant([0, op.get_attr("dim_size")], tf.int32)


@tf.RegisterGradient("MonolithTensorsTimestamp")
def _tensors_timestamp_gradient(
    op: tf.Operation, *output_gradients: tf.Tensor | None
) -> list[tf.Tensor | None]:
    """Passes the gradients on; the last one belongs to the time."""
    return list(output_gradients[:-1])


@tf.RegisterGradient("MonolithStaticReshapeN")
def _static_reshape_n_gradient(
    op: tf.Operation, *output_gradients: tf.Tensor | None
) -> list[tf.Tensor | None]:
    """Reshapes each gradient back to its input; the last one belongs to `sizes`, an integer."""
    return [
        None if gradient is None else tf.reshape(gradient, tf.shape(tensor))
        for tensor, gradient in zip(op.inputs, output_gradients[:-1], strict=True)
    ]


@tf.RegisterGradient("MonolithFeatureInsight")
def _feature_insight_gradient(
    op: tf.Operation, output_gradient: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    input_embedding, weight = op.inputs
    segment_sizes = op.get_attr("segment_sizes")
    if op.get_attr("aggregate"):
        # The output is the sum of squares of each segment's product: d(y^2) = 2 * y * dy.
        products = ops.monolith_feature_insight(input_embedding, weight, segment_sizes)
        per_segment = [-1, len(segment_sizes), tf.shape(weight)[1]]
        output_gradient = tf.reshape(
            2.0 * tf.reshape(products, per_segment) * output_gradient[:, :, tf.newaxis],
            tf.shape(products),
        )
    return ops.monolith_feature_insight_gradient(
        output_gradient, input_embedding, weight, segment_sizes
    )


@tf.RegisterGradient("MonolithGlobalNorm")
def _global_norm_gradient(op: tf.Operation, norm_gradient: tf.Tensor) -> list[tf.Tensor]:
    """d|x| = x / |x|, taken as 0 where the norm is 0."""
    scale = tf.math.divide_no_nan(norm_gradient, op.outputs[0])
    return [tensor * scale for tensor in op.inputs]


@tf.RegisterGradient("MonolithClipByGlobalNorm")
def _clip_by_global_norm_gradient(
    op: tf.Operation, *output_gradients: tf.Tensor
) -> list[tf.Tensor]:
    """The output is x * limit / norm where norm > limit, else x."""
    *tensors, norm, limit = op.inputs
    scaled = ops.monolith_clip_by_global_norm(output_gradients, norm, limit)
    dot = tf.add_n([tf.reduce_sum(g * t) for g, t in zip(output_gradients, tensors, strict=True)])
    dot = tf.where(norm > limit, dot, tf.zeros_like(dot))
    by_norm = tf.math.divide_no_nan(dot, norm)
    return [*scaled, -by_norm * tf.math.divide_no_nan(limit, norm), by_norm]


@tf.RegisterGradient("MonolithHashFilterInterceptGradient")
def _hash_filter_intercept_gradient(
    op: tf.Operation, output_gradient: tf.Tensor
) -> tuple[None, None, tf.Tensor]:
    """Zeroes the rows of ids that the filter holds back."""
    filter_handle, ids, _ = op.inputs
    filtered = ops.monolith_hash_filter_intercept_gradient_gradient(
        filter_handle, ids, output_gradient
    )
    return None, None, filtered


@tf.RegisterGradient("MonolithMlp")
def _mlp_gradient(op: tf.Operation, *output_gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """By inputs, kernels and biases; an empty bias has none. Only the last outputs are used."""
    n = op.get_attr("N")
    inputs, kernels, biases = op.inputs[0], op.inputs[1 : 1 + n], op.inputs[1 + n :]
    by_inputs, by_kernels, by_biases = ops.monolith_mlp_gradient(
        inputs, kernels, biases, op.outputs, output_gradients[-1], relu=op.get_attr("relu")
    )
    by_biases = [
        None if bias.shape.num_elements() == 0 else gradient
        for bias, gradient in zip(biases, by_biases, strict=True)
    ]
    return [by_inputs, *by_kernels, *by_biases]


@tf.RegisterGradient("MonolithMlpGradient")
def _mlp_second_gradient(op: tf.Operation, *gradients: tf.Tensor) -> list[tf.Tensor | None]:
    """For losses with gradients in them: those of the same formulas in TensorFlow's ops."""
    n = op.get_attr("N")
    inputs, kernels, biases = op.inputs[0], op.inputs[1 : 1 + n], op.inputs[1 + n : 1 + 2 * n]
    outputs, gradient = op.inputs[1 + 2 * n : -1], op.inputs[-1]
    sources = [inputs, *kernels, *biases, gradient]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        firsts = _plain_mlp_gradient(
            inputs, kernels, biases, outputs, gradient, op.get_attr("relu")
        )
    *by_layers, by_gradient = tape.gradient(
        firsts, sources, gradients, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return [*by_layers, *[None] * n, by_gradient]


def _plain_mlp_gradient(
    inputs: tf.Tensor,
    kernels: list[tf.Tensor],
    biases: list[tf.Tensor],
    outputs: list[tf.Tensor],
    gradient: tf.Tensor,
    relu: list[bool],
) -> list[tf.Tensor]:
    """What MonolithMlpGradient gives; `outputs` only say where ReLU is flat, it bends nowhere."""
    layers = list(zip(kernels, biases, outputs, relu, strict=True))
    rows, masks = [inputs], []
    for kernel, bias, output, has_relu in layers:
        sums = tf.matmul(rows[-1], kernel)
        if bias.shape.num_elements() != 0:
            sums += bias
        masks.append(tf.cast(output > 0, output.dtype) if has_relu else tf.ones_like(output))
        rows.append(sums * masks[-1])
    by_kernels: list[tf.Tensor] = []
    by_biases: list[tf.Tensor] = []
    for i, (kernel, bias, _, _) in reversed(list(enumerate(layers))):
        gradient = gradient * masks[i]
        by_kernels.insert(0, tf.matmul(rows[i], gradient, transpose_a=True))
        has_bias = bias.shape.num_elements() != 0
        by_biases.insert(0, tf.reduce_sum(gradient, axis=0) if has_bias else tf.zeros_like(bias))
        gradient = tf.matmul(gradient, kernel, transpose_b=True)
    return [gradient, *by_kernels, *by_biases]


@tf.RegisterGradient("MonolithSigmoidCrossEntropy")
def _sigmoid_cross_entropy_gradient(
    op: tf.Operation, by_losses: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    logits, labels = op.inputs
    by_logits = ops.monolith_sigmoid_cross_entropy_gradient(logits, labels, by_losses)
    return by_logits, -by_losses * logits


@tf.RegisterGradient("MonolithSigmoidCrossEntropyGradient")
def _sigmoid_cross_entropy_second_gradient(
    op: tf.Operation, gradient: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The output is `by_losses * (sigmoid(logits) - labels)`."""
    logits, labels, by_losses = op.inputs
    product = gradient * by_losses
    curvature = tf.sigmoid(logits) * tf.sigmoid(-logits)
    slope = ops.monolith_sigmoid_cross_entropy_gradient(logits, labels, gradient)
    return product * curvature, -product, slope
