"""How a model gets its embeddings in training, and how their gradients get back to the tables.

One lookup brings the rows of all features, and one update takes the gradients of all of them. The
factories here stand between: the model asks them for slices of combined embeddings and hands them
the gradients of whole rows.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from monolith.embedding.features.factory import FeatureFactoryFromEmbeddings
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.graph import devices, gradients
from monolith.tensor import prefetch

_POSTPUSH_QUEUE = "postpush_queue"
_REQ_TIME = "req_time"


def get_req_time(features: Any) -> tf.Tensor | None:
    """Returns when the batch was made, in seconds since 1970; None if the features do not say."""
    if not isinstance(features, Mapping) or _REQ_TIME not in features:
        return None
    return features[_REQ_TIME][0]


def _lookup_embedding_ids(
    hash_table: BaseMultiTypeHashTable, name_to_ids: Mapping[str, tf.RaggedTensor]
) -> dict[str, tf.Tensor]:
    """Returns the rows of all ids of each feature, float32 `[num_ids, dim]`."""
    return hash_table.lookup({name: ids.flat_values for name, ids in name_to_ids.items()})


class _CpuFeatureFactory(FeatureFactoryFromEmbeddings):
    """Embeddings from tables in this process or on parameter servers.

    Args:
        hash_table: Takes the updates.
        embedding_ids: The ids of each feature, ragged int64 `[batch, ids]`.
        embeddings: Their rows, float32 `[num_ids, dim]`.
        embedding_slices: Slices of the combined rows, as `create_embedding_slices` makes them.
        req_time: When the batch was made, in seconds since 1970; None if nobody knows.
        async_function_mgr: Moves the update to the next step, if `async_push`.
        async_push: Whether gradients are pushed one step late.
        update_options: Further arguments for `apply_gradients` of the table.
    """

    def __init__(
        self,
        hash_table: BaseMultiTypeHashTable,
        embedding_ids: Mapping[str, tf.RaggedTensor],
        embeddings: Mapping[str, tf.Tensor],
        embedding_slices: Mapping[str, tf.Tensor],
        req_time: tf.Tensor | None,
        async_function_mgr: prefetch.AsyncFunctionMgr,
        async_push: bool = False,
        update_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(embeddings, embedding_slices)
        self._hash_table = hash_table
        self._embedding_ids = dict(embedding_ids)
        self._embeddings = dict(embeddings)
        self._req_time = req_time
        self._async_function_mgr = async_function_mgr
        self._async_push = async_push
        self._update_options = dict(update_options or {})

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Tensor]],
        req_time: tf.Tensor | None = None,
        scale: Any = 1,
    ) -> tf.Operation:
        """Updates the rows of the batch.

        Args:
            grads_and_vars: Gradients of the tensors that `get_all_embeddings_concat` returned.
            req_time: In place of the one of the batch.
            scale: Has no effect; gradients are not scaled on their way to a server.
        """
        del scale
        name_to_grad = _propagate_back(grads_and_vars, self._embeddings)
        if not name_to_grad:
            return tf.no_op()
        updates = {
            name: (self._embedding_ids[name].flat_values, grad)
            for name, grad in name_to_grad.items()
        }
        return self._async_function_mgr.add_async_function(
            self._push,
            (updates, _read_global_step(), self._req_time if req_time is None else req_time),
            is_async=self._async_push,
            queue_name=_POSTPUSH_QUEUE,
        )

    def _push(
        self,
        updates: Mapping[str, tuple[tf.Tensor, tf.Tensor]],
        global_step: tf.Tensor,
        req_time: tf.Tensor | None,
    ) -> tf.Operation:
        updated = self._hash_table.apply_gradients(
            updates, global_step, req_time=req_time, **self._update_options
        )
        return updated.as_op()


class _FusedCpuFeatureFactory(FeatureFactoryFromEmbeddings):
    """Embeddings from tables whose rows the workers exchange among themselves.

    Such a table knows the ids of the batch already, from the lookup, and takes gradients alone.

    Args:
        hash_table: Takes the updates.
        name_to_embeddings: The rows of each feature, float32 `[num_ids, dim]`.
        name_to_embedding_slices: Slices of the combined rows.
        req_time: When the batch was made, in seconds since 1970; None if nobody knows.
        auxiliary_bundle: What the table's lookup wants to see again in the update.
        use_native_multi_hash_table: Whether all tables are one resource; otherwise slots with
            equal configs were merged, and the gradients have to be.
    """

    def __init__(
        self,
        hash_table: Any,
        name_to_embeddings: Mapping[str, tf.Tensor],
        name_to_embedding_slices: Mapping[str, tf.Tensor],
        req_time: tf.Tensor | None,
        auxiliary_bundle: dict[str, tf.Tensor],
        use_native_multi_hash_table: bool,
    ) -> None:
        super().__init__(name_to_embeddings, name_to_embedding_slices)
        self._hash_table = hash_table
        self._embeddings = dict(name_to_embeddings)
        self._req_time = req_time
        self._auxiliary_bundle = auxiliary_bundle
        self._use_native_multi_hash_table = use_native_multi_hash_table

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, tf.Tensor]],
        req_time: tf.Tensor | None = None,
        scale: Any = 1,
    ) -> tf.Operation:
        """Updates the rows of the batch, gradients multiplied by `scale`."""
        with devices.maybe_device_if_allowed("/device:GPU:0"):
            name_to_grad = _propagate_back(grads_and_vars, self._embeddings)
        # Every slot takes part, since all workers exchange blocks of the same layout.
        slot_to_grad = {
            name: name_to_grad.get(name, tf.zeros_like(rows))
            for name, rows in self._embeddings.items()
        }
        options = {} if self._use_native_multi_hash_table else {"skip_merge_id": True}
        updated = self._hash_table.apply_gradients(
            slot_to_grad,
            self._auxiliary_bundle,
            _read_global_step(),
            req_time=self._req_time if req_time is None else req_time,
            scale=scale,
            **options,
        )
        return updated.as_op()


def _propagate_back(
    grads_and_vars: Iterable[tuple[Any, tf.Tensor]], name_to_embeddings: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns the gradient of each feature's rows; without features that nothing depends on."""
    x_to_name = {rows.ref(): name for name, rows in name_to_embeddings.items()}
    grads_and_vars = [
        (tf.convert_to_tensor(grad), var) for grad, var in grads_and_vars if grad is not None
    ]
    if all(var.ref() in x_to_name for _, var in grads_and_vars):
        # The usual case: whole rows, each once, need no ops to get back to themselves.
        found = [(x_to_name[var.ref()], grad) for grad, var in grads_and_vars]
        if len(dict(found)) == len(found):
            return dict(found)
    names = list(name_to_embeddings)
    grads = gradients.propagate_back_gradients(grads_and_vars, name_to_embeddings.values())
    return {name: grad for name, grad in zip(names, grads, strict=True) if grad is not None}


def _read_global_step() -> tf.Tensor:
    return tf.compat.v1.train.get_or_create_global_step().read_value()
