"""For each op, how to make a call that it accepts.

A recipe takes a random generator and returns inputs and attributes. The fuzzer makes some calls as
they are, so that kernels run to their end, and spoils the others.
"""

import itertools
import random
from collections.abc import Callable
from typing import Any

from support import fuzz_resources as resources
from support.fuzz_values import Array, Handle, Path, Value, floats, ints, scalar, strings

Recipe = Callable[[random.Random], tuple[dict[str, Value], dict[str, Any]]]
RECIPES: dict[str, Recipe] = {}


def recipe(*names: str) -> Callable[[Recipe], Recipe]:
    def register(function: Recipe) -> Recipe:
        for name in names:
            RECIPES[name] = function
        return function

    return register


def some(rng: random.Random) -> int:
    """A number of things: often few, rarely enough for several threads."""
    return rng.choice([0, 1, 2, 3, 5, 8] * 8 + [300])


def some_ids(rng: random.Random, n: int) -> list[int]:
    return [rng.choice([*resources.IDS, rng.randrange(-9, 9)]) for _ in range(n)]


def splits_of(sizes: list[int]) -> list[int]:
    result = [0]
    for size in sizes:
        result.append(result[-1] + size)
    return result


# Reductions and distribution.


@recipe("MonolithReduceSum", "MonolithReduceMean", "MonolithReduceSquareNorm")
def _reduce(rng):
    n, batch, dim = some(rng), rng.randrange(1, 6), rng.randrange(4)
    indices = ints([rng.randrange(batch) for _ in range(n)])
    values = floats(rng, n, dim)
    return {"id_indices": indices, "id_values": values, "id_dense_shape": ints([batch])}, {}


@recipe("MonolithReduceSumGradient", "MonolithReduceMeanGradient")
def _reduce_gradient(rng):
    n, batch, dim = some(rng), rng.randrange(1, 6), rng.randrange(4)
    indices = ints([rng.randrange(batch) for _ in range(n)])
    return {"id_indices": indices, "grads": floats(rng, batch, dim)}, {}


@recipe("MonolithReduceSquareNormGradient")
def _reduce_norm_gradient(rng):
    n, batch, dim = some(rng), rng.randrange(1, 6), rng.randrange(4)
    indices = ints([rng.randrange(batch) for _ in range(n)])
    values, grads = floats(rng, n, dim), floats(rng, batch, dim)
    return {"id_indices": indices, "id_values": values, "grads": grads}, {}


def _some_dims(rng: random.Random) -> list[int]:
    return [rng.randrange(1, 4) for _ in range(rng.randrange(1, 4))]


@recipe("MonolithFusedReduceSumAndSplit")
def _reduce_and_split(rng):
    dims, n, batch = _some_dims(rng), some(rng), rng.randrange(1, 6)
    indices = ints([rng.randrange(batch) for _ in range(n)])
    values = floats(rng, n, sum(dims))
    inputs = {"id_indices": indices, "id_values": values, "id_dense_shape": ints([batch])}
    return inputs, {"M": len(dims), "split_dims": dims}


@recipe("MonolithFusedReduceSumAndSplitGradient")
def _reduce_and_split_gradient(rng):
    dims, n, batch = _some_dims(rng), some(rng), rng.randrange(1, 6)
    indices = ints([rng.randrange(batch) for _ in range(n)])
    grads = [floats(rng, batch, dim) for dim in dims]
    return {"id_indices": indices, "grads": grads}, {"split_dims": dims}


@recipe("MonolithReorderByIndices")
def _reorder(rng):
    n, shards = some(rng), rng.randrange(1, 6)
    dtype = rng.choice(["int32", "int64"])
    ids = ints([rng.randrange(9) for _ in range(n)], dtype)
    shard_ids = ints([value % shards for value in ids.values], "int32")
    return {"input": ids, "shard_ids": shard_ids}, {"num_of_shards": shards}


@recipe("FusedReorderByIndices")
def _fused_reorder(rng):
    dims = _some_dims(rng)
    inputs = [ints(some_ids(rng, some(rng))) for _ in dims]
    attrs = {"num_of_shards": rng.randrange(1, 8), "slot_embedding_dims": dims}
    return {"input": inputs}, {**attrs, "rank0_empty": rng.random() < 0.5}


@recipe("MonolithSplitByIndices")
def _split(rng):
    n, splits, dtype = some(rng), rng.randrange(1, 4), rng.choice(["float32", "int64"])
    indices = ints([rng.randrange(splits) for _ in range(n)])
    if dtype == "int64":
        rows = ints(some_ids(rng, n))
    else:
        rows = floats(rng, n, *[rng.randrange(3) for _ in range(rng.randrange(3))])
    return {"indices": indices, "input": rows}, {"num_splits": splits}


@recipe("MonolithSplitByIndicesGradient")
def _split_gradient(rng):
    n, splits, dim = some(rng), rng.randrange(1, 4), rng.randrange(3)
    indices = [rng.randrange(splits) for _ in range(n)]
    grads = [floats(rng, indices.count(split), dim) for split in range(splits)]
    return {"indices": ints(indices), "input": floats(rng, n, dim), "grads": grads}, {}


@recipe("MonolithRaggedSplitByIndices")
def _ragged_split(rng):
    splits, sizes = rng.randrange(1, 4), [some(rng) for _ in range(rng.randrange(4))]
    n = sum(sizes)
    inputs = {
        "indices": ints([rng.randrange(splits) for _ in range(n)]),
        "num": ints(some_ids(rng, n)),
        "num_split": ints(splits_of(sizes)),
    }
    return inputs, {"num_splits": splits}


@recipe("MonolithNormalizeMergedSplit")
def _normalize(rng):
    parts = [splits_of([rng.randrange(3) for _ in range(rng.randrange(4))]) for _ in range(3)]
    sizes = ints([len(part) for part in parts], "int32")
    return {
        "row_split": ints([split for part in parts for split in part]),
        "row_split_size": sizes,
    }, {}


@recipe("MonolithFusedValueRowids")
def _rowids(rng):
    return {"splits": ints(splits_of([some(rng) for _ in range(rng.randrange(5))]))}, {}


@recipe("MonolithJoinIds")
def _join_ids(rng):
    n = rng.randrange(1, 4)
    sizes = [[some(rng) for _ in range(rng.randrange(4))] for _ in range(n)]
    ids = [ints(some_ids(rng, sum(each))) for each in sizes]
    splits = [ints(splits_of(each) if rng.random() < 0.5 else []) for each in sizes]
    return {"ids": ids, "splits": splits}, {"salts": some_ids(rng, n)}


@recipe("MonolithUniqueKeyWithValueAndOffset")
def _unique(rng):
    dims = [rng.randrange(1, 4) for _ in range(rng.randrange(4))]
    sizes = [some(rng) for _ in dims]
    inputs = {"key": ints(some_ids(rng, sum(sizes))), "key_split": ints(splits_of(sizes))}
    return inputs, {"dims": dims, "generate_buffer": rng.random() < 0.5}


# Field 1 of an Example, its features, and field 1 of an Instance, its fids, are both bytes; so is
# field 1 of an ExampleBatch, its columns. Each of these is read by one of the formats at least.
_RECORDS = [
    b"",
    b"\x0a\x0f\x0a\x01a\x12\x0a\x12\x08" + bytes(range(8)),  # A feature 'a', cut short.
    b"\x0a\x11\x0a\x01a\x12\x0c\x12\x0a\x0a\x08" + bytes(range(8)),  # One with a fid.
    b"\x0a\x11\x0a\x01a\x12\x0c\x12\x0a\x0a\x08" + bytes(range(8)) + b"\x18\x01",
    b"\x0a\x08" + bytes(7) + b"\x04",  # A fid of slot 16.
    b"\x0a\x0b\x0a\x01d\x12\x06\x1a\x04\x0d\x00\x00\x80",
]


@recipe("MonolithParseExamples")
def _parse(rng):
    record_format = rng.choice(["instance", "example", "example_batch"])
    num_sparse, num_line_id = rng.randrange(3), rng.randrange(2)
    dense = [("label", "float32"), ("d", "int64"), ("s", "string")][: rng.randrange(4)]
    dense += [("uid", "int64")] * num_line_id
    records = [rng.choice(_RECORDS) for _ in range(some(rng))]
    return {"serialized": strings(*records)}, {
        "num_sparse": num_sparse,
        "format": record_format,
        "sparse_names": ["a", "b"][:num_sparse],
        "sparse_slots": [rng.choice([-1, 16]), -1][:num_sparse],
        "dense_names": [name for name, _ in dense],
        "dense_widths": [rng.randrange(1, 3) for _ in dense],
        "dense_types": [dtype for _, dtype in dense],
        "num_line_id": num_line_id,
        "convert_v1": rng.random() < 0.5,
        "skip_damaged": rng.random() < 0.8,
    }


@recipe("MonolithParseUnasked")
def _parse_unasked(rng):
    return {}, {}


def _rows(rng):
    record_format = rng.choice(["instance", "example"])
    records = [rng.choice(_RECORDS) for _ in range(some(rng))]
    return {"rows": strings(*records)}, {"format": record_format}


@recipe("MonolithRowHasFids")
def _has_fids(rng):
    inputs, attributes = _rows(rng)
    lists = ("filter_fids", "any_fids", "select_fids", "has_actions", "select_slots")
    attributes |= {name: [rng.choice([0, 1, -1, 1 << 54])][: rng.randrange(2)] for name in lists}
    return inputs, {**attributes, "req_time_min": rng.choice([0, 1, -1])}


@recipe("MonolithRowHasValue")
def _has_value(rng):
    inputs, attributes = _rows(rng)
    field, kind = rng.choice(
        [
            ("uid", "uint64"),
            ("actions", "int64"),
            ("sample_rate", "float"),
            ("cid", "string"),
        ]
    )
    comparison = rng.choice(["eq", "neq", "in", "not-in", "any", "all", "diff"])
    operands = {"float": {"floats": [1.0]}, "string": {"strings": ["a"]}}
    return inputs, {
        **attributes,
        "field_name": field,
        "kind": kind,
        "comparison": comparison,
        "keep_empty": rng.random() < 0.5,
        "is_feature": rng.random() < 0.2 and attributes["format"] == "example",
        **operands.get(kind, {"integers": [1]}),
    }


@recipe("MonolithRowHasLabel")
def _has_label(rng):
    inputs, attributes = _rows(rng)
    thresholds = [0.5] * rng.randrange(3)
    return inputs, {**attributes, "thresholds": thresholds, "filter_equal": rng.random() < 0.5}


@recipe("MonolithRowSample")
def _sample_rows(rng):
    inputs, attributes = _rows(rng)
    return inputs, {
        **attributes,
        "drop_rate": rng.choice([0.0, 0.5, 1.0]),
        "label_index": rng.randrange(2),
        "threshold": 0.5,
        "action_priority": [1, 2],
        "rate_actions": [1],
        "rates": [0.5],
    }


@recipe("MonolithRowAddAction")
def _add_action(rng):
    inputs, attributes = _rows(rng)
    shape = inputs["rows"].shape
    where = Array("bool", shape, tuple(rng.random() < 0.5 for _ in range(shape[0])))
    return {**inputs, "where": where}, {**attributes, "action": rng.choice([0, 1, -1])}


@recipe("MonolithRowAddLabels")
def _add_labels(rng):
    inputs, attributes = _rows(rng)
    return inputs, {
        **attributes,
        "positive_actions": [1, 2, 3],
        "num_positive": [2, 1],
        "negative_actions": [4],
        "num_negative": [0, 1],
        "rates": [0.5, 1.0],
        "negative_value": 0.0,
        "sample_rate": 0.5,
    }


@recipe("MonolithRowScatterLabel")
def _scatter_label(rng):
    inputs, attributes = _rows(rng)
    return inputs, {**attributes, "channels": [0, 7], "indices": [1, rng.choice([0, 1, 5])]}


# The ids [1, 2, 1] of a table of dim 2 and [3] of one of dim 3: distinct 1, 2 and 3.
_OFFSETS = {"value_offset_map": ints([0, 4, 2, 6]), "value_offset_map_split": ints([0, 2, 3, 4])}


@recipe("MonolithFillWithOffsetMap")
def _fill(rng):
    inputs = {"pos": ints([0, 1, 2]), "pos_split": ints([0, 2, 3]), "value": floats(rng, 7)}
    return {**inputs, **_OFFSETS, "value_buffer": Handle("shared")}, {"dims": [2, 3]}


@recipe("MonolithFillWithOffsetMapGradient")
def _fill_gradient(rng):
    inputs = {"pos": ints([0, 1, 2]), "pos_split": ints([0, 2, 3]), "grad": floats(rng, 9)}
    return {**inputs, **_OFFSETS}, {"dims": [2, 3]}


@recipe("MonolithFinalizeSharedTensor")
def _finalize(rng):
    handles = [Handle("shared")] * rng.randrange(1, 3)
    return {"handle": handles}, {"shape": rng.choice([[9], [None]]), "dtype": "float32"}


@recipe("MonolithMapIdToEmbedding")
def _map_ids(rng):
    dim, parts = rng.randrange(4), [[1, 2], [3], [4, 5, 6]][: rng.randrange(1, 4)]
    known = [one for part in parts for one in part]
    inputs = {
        "ids": [ints(part) for part in parts],
        "embeddings": [floats(rng, len(part), dim) for part in parts],
        "input": ints([rng.choice(known) for _ in range(some(rng))]),
    }
    return inputs, {"use_multi_threads": rng.random() < 0.5}


@recipe("MonolithMapIdToEmbeddingGradient")
def _map_ids_gradient(rng):
    n, dim = some(rng), rng.randrange(4)
    ids = [ints([1, 2]), ints([3])]
    wanted = ints([rng.choice([1, 2, 3]) for _ in range(n)])
    return {"ids": ids, "input": wanted, "grads": floats(rng, n, dim)}, {}


@recipe("MonolithGatherEmbeddingsByInput")
def _gather(rng):
    n, dim = some(rng), rng.randrange(4)
    wanted = ints([rng.choice([1, 2, 3]) for _ in range(n)])
    inputs = {"ids": ints([1, 2, 3]), "embeddings": floats(rng, 3, dim), "input": wanted}
    return inputs, {"use_multi_threads": rng.random() < 0.5}


@recipe("MonolithGatherEmbeddingsByInputGradient")
def _gather_gradient(rng):
    n, dim = some(rng), rng.randrange(4)
    mapping = ints([rng.randrange(3) for _ in range(n)], "int32")
    return {"ids": ints([1, 2, 3]), "grads": floats(rng, n, dim), "index_mapping": mapping}, {}


def _some_offsets(rng: random.Random, dims: list[int], size: int) -> list[Array]:
    return [
        ints([rng.randrange(size - dim + 1) for _ in range(some(rng))], "int32") for dim in dims
    ]


@recipe("MonolithFusedGatherEmbeddingsByInput")
def _fused_gather(rng):
    dims = _some_dims(rng)
    inputs = {
        "fused_embeddings": floats(rng, 12),
        "embedding_offsets": _some_offsets(rng, dims, 12),
    }
    return inputs, {"embedding_dims": dims}


@recipe("MonolithFusedGatherEmbeddingsByInputGradient")
def _fused_gather_gradient(rng):
    dims = _some_dims(rng)
    offsets = _some_offsets(rng, dims, 12)
    grads = [floats(rng, len(o.values), dim) for o, dim in zip(offsets, dims, strict=True)]
    inputs = {
        "fused_embeddings_size": scalar(12, "int32"),
        "grads": grads,
        "embedding_offsets": offsets,
        "scale": scalar(0.5, "float32"),
    }
    return inputs, {"embedding_dims": dims}


# Dense ops.


@recipe("MonolithMlp")
def _mlp(rng):
    widths = [rng.choice([1, 2, 3, 17]) for _ in range(rng.randrange(2, 4))]
    pairs = list(itertools.pairwise(widths))
    inputs = {
        "inputs": floats(rng, some(rng), widths[0]),
        "kernels": [floats(rng, dim, units) for dim, units in pairs],
        "biases": [floats(rng, rng.choice([units, units, 0])) for _, units in pairs],
    }
    return inputs, {"relu": [rng.random() < 0.5 for _ in pairs]}


@recipe("MonolithMlpGradient")
def _mlp_gradient(rng):
    inputs, attrs = _mlp(rng)
    batch = inputs["inputs"].shape[0]
    inputs["outputs"] = [floats(rng, batch, kernel.shape[1]) for kernel in inputs["kernels"]]
    inputs["grad"] = floats(rng, batch, inputs["kernels"][-1].shape[1])
    return inputs, attrs


def _some_segments(rng: random.Random, dtype: str) -> tuple[Array, Array, list[int], int]:
    sizes, units = _some_dims(rng), rng.randrange(1, 4)
    dim, batch = sum(sizes), some(rng)
    rows, weight = floats(rng, batch, dim, dtype=dtype), floats(rng, dim, units, dtype=dtype)
    return rows, weight, sizes, units


@recipe("MonolithFeatureInsight")
def _insight(rng):
    rows, weight, sizes, _ = _some_segments(rng, rng.choice(["float32", "float64"]))
    attrs = {"segment_sizes": sizes, "aggregate": rng.random() < 0.5}
    return {"input_embedding": rows, "weight": weight}, attrs


@recipe("MonolithFeatureInsightGradient")
def _insight_gradient(rng):
    dtype = rng.choice(["float32", "float64"])
    rows, weight, sizes, units = _some_segments(rng, dtype)
    grad = floats(rng, rows.shape[0], len(sizes) * units, dtype=dtype)
    inputs = {"grad": grad, "input_embedding": rows, "weight": weight}
    return inputs, {"segment_sizes": sizes}


@recipe("MonolithSigmoidCrossEntropy")
def _entropy(rng):
    dtype, shape = rng.choice(["float16", "bfloat16", "float32", "float64"]), (some(rng), 2)
    one, two = floats(rng, *shape, dtype=dtype), floats(rng, *shape, dtype=dtype)
    return {"logits": one, "labels": two}, {}


@recipe("MonolithSigmoidCrossEntropyGradient")
def _entropy_gradient(rng):
    inputs, attrs = _entropy(rng)
    logits = inputs["logits"]
    return {**inputs, "grad": floats(rng, *logits.shape, dtype=logits.dtype)}, attrs


@recipe("MonolithGlobalNorm")
def _norm(rng):
    dtype = rng.choice(["float32", "float64"])
    tensors = [floats(rng, some(rng), 3, dtype=dtype) for _ in range(rng.randrange(1, 4))]
    return {"grad_list": tensors}, {}


@recipe("MonolithClipByGlobalNorm")
def _clip(rng):
    inputs, attrs = _norm(rng)
    dtype = inputs["grad_list"][0].dtype
    limits = {"global_norm": scalar(2.0, dtype), "clip_norm": scalar(rng.choice([0.5, 3.0]), dtype)}
    return {**inputs, **limits}, attrs


def _apply(rng: random.Random, variables: list[str], settings: list[str]) -> dict[str, Value]:
    dtype, kind = rng.choice([("float32", "variable"), ("float64", "double_variable")])
    inputs: dict[str, Value] = {
        name: Handle(kind, rng.choice([place, place, 0])) for place, name in enumerate(variables)
    }
    inputs |= {name: scalar(0.1, dtype) for name in settings}
    return inputs | {"grad": floats(rng, *resources.VARIABLE_SHAPE, dtype=dtype)}


@recipe("MonolithResourceApplyAdamom")
def _adamom(rng):
    settings = ["learning_rate", "ada_decay", "mom_decay", "epsilon", "weight_decay"]
    return _apply(rng, ["var", "m", "v", "c"], settings), {}


@recipe("MonolithResourceApplyRmsprop")
def _rmsprop(rng):
    settings = ["learning_rate", "beta1", "beta2", "epsilon", "weight_decay"]
    return _apply(rng, ["var", "m", "v"], settings), {"use_v2": rng.random() < 0.5}


@recipe("MonolithStaticReshapeN")
def _reshape(rng):
    inputs = [floats(rng, 2, 3), ints([1, 2]), strings(b"a", b"b")][: rng.randrange(4)]
    shapes = [[3, 2], [None, 1], [2]][: len(inputs)]
    return {"inputs": inputs}, {"shapes": shapes, "enable_parallelism": rng.random() < 0.5}


@recipe("MonolithTensorsTimestamp")
def _timestamp(rng):
    return {"tensors": [floats(rng, 2, 3), strings(b"a"), Handle("table")][: rng.randrange(4)]}, {}


@recipe("MonolithTimerEmit")
def _timer(rng):
    return {"value": scalar(1.5, "float32")}, {"key": "key", "tags": "a=b"}


@recipe("MonolithMachineInfo")
def _machine(rng):
    return {}, {"mem_limit": rng.choice([0, 2**40]), "shared_name": rng.choice(["", "machine"])}


@recipe("MonolithMachineHealthCheck")
def _health(rng):
    return {"handle": Handle("machine")}, {}


# Files.


@recipe("MonolithWritableFile")
def _open(rng):
    return {}, {"filename": Path("new"), "unique_name": "one"}


@recipe("MonolithWritableFileAppend")
def _append(rng):
    return {"handle": Handle("file"), "content": scalar(b"text", "string")}, {}


@recipe("MonolithWritableFileAppendEntryDump")
def _append_dump(rng):
    n = some(rng)
    inputs = {"item_id": ints(some_ids(rng, n)), "bias": floats(rng, n)}
    return {"handle": Handle("file"), **inputs, "embedding": floats(rng, n, 3)}, {}


@recipe("MonolithWritableFileClose")
def _close(rng):
    return {"handle": Handle(rng.choice(["file", "closed_file"]))}, {}


# Calls of other servers, of which there are none.


@recipe("TfServingRemotePredict")
def _remote_predict(rng):
    inputs = [ints([1, 2]), floats(rng, 2, 3), strings(b"a")][: rng.randrange(1, 4)]
    types = ["float32", "int64", "string"][: rng.randrange(1, 4)]
    return {
        "input_tensor_aliases": strings(*(b"in" for _ in inputs)),
        "input_tensors": inputs,
        "output_tensor_aliases": strings(*(b"out" for _ in types)),
    }, {"output_types": types, "fail_op_on_rpc_error": rng.random() < 0.1}
