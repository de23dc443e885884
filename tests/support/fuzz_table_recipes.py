"""How to make calls that the ops of tables, filters and touched keys accept."""

import random
from typing import Any

from support import fuzz_resources as resources
from support import packed_rows
from support.fuzz_recipes import recipe, some, some_ids, splits_of
from support.fuzz_values import Array, Handle, Path, Paths, Value, floats, ints, scalar, strings


def some_time(rng: random.Random) -> Array:
    return scalar(rng.choice([0, 15, 10**9, 2**62]))


# Filters and touched keys.


@recipe("MonolithHashFilter")
def _filter(rng):
    attrs = {"capacity": rng.choice([0, 300, 10000]), "split_num": rng.choice([0, 3, 7])}
    return {}, {**attrs, "config": resources.threshold_config(), "shared_name": "filter"}


@recipe("MonolithProbabilisticFilter")
def _probabilistic(rng):
    attrs = {"equal_probability": rng.random() < 0.5, "config": resources.threshold_config()}
    return {}, {**attrs, "shared_name": "probabilistic"}


@recipe("MonolithDummyHashFilter", "MonolithDummySyncClient", "ReadMonolithMultiHashTable")
def _named(rng):
    return {}, {"shared_name": rng.choice(["", "name"])}


@recipe("MonolithHashFilterSave")
def _filter_save(rng):
    return {"handle": Handle(rng.choice(resources.FILTERS)), "basename": Path("new")}, {}


@recipe("MonolithHashFilterRestore")
def _filter_restore(rng):
    return {"handle": Handle(rng.choice(resources.FILTERS)), "basename": Path("filter")}, {}


@recipe("MonolithHashFilterInterceptGradient")
def _intercept(rng):
    n = some(rng)
    handle = Handle(rng.choice(resources.FILTERS))
    return {
        "filter_handle": handle,
        "ids": ints(some_ids(rng, n)),
        "embeddings": floats(rng, n, 2),
    }, {}


@recipe("MonolithHashFilterInterceptGradientGradient")
def _intercept_gradient(rng):
    inputs, attrs = _intercept(rng)
    inputs["grad"] = inputs.pop("embeddings")
    return inputs, attrs


@recipe("MonolithTouchedKeySet")
def _key_set(rng):
    attrs = {"capacity": rng.choice([0, 5, 100]), "concurrency_level": rng.choice([1, 4])}
    return {}, {**attrs, "shared_name": f"keys_{attrs['capacity']}_{attrs['concurrency_level']}"}


@recipe("MonolithTouchedKeySetInsert")
def _key_set_insert(rng):
    return {"handle": Handle("key_set"), "ids": ints(some_ids(rng, some(rng)))}, {}


@recipe("MonolithTouchedKeySetSteal")
def _key_set_steal(rng):
    return {"handle": Handle("key_set")}, {}


@recipe("MonolithParameterSyncClient")
def _parameter_sync_client(rng):
    return {}, {"shared_name": rng.choice(["", "sync"]), "capacity": rng.choice([2, 100])}


@recipe("MonolithParameterSyncGather")
def _sync_gather(rng):
    return {"handle": Handle("parameter_sync_client"), "targets": _some_targets(rng)}, {}


@recipe("MonolithParameterSyncTake")
def _sync_take(rng):
    inputs = {
        "handle": Handle("parameter_sync_client"),
        "targets": _some_targets(rng),
        "assign_signature": scalar(b"hashtable_assign", "string"),
    }
    attrs = {"max_bytes": rng.choice([1, 40, 1 << 20]), "max_requests": rng.choice([1, 3])}
    return inputs, {**attrs, "packed": rng.random() < 0.5, "lists": rng.random() < 0.5}


@recipe("MonolithParameterSyncCompare")
def _sync_compare(rng):
    return {
        "handle": Handle("parameter_sync_client"),
        "target": strings(rng.choice([b"a", b"b", b""])),
        "ids": ints(some_ids(rng, some(rng))),
        "next_place": scalar(rng.choice([-1, 0, 7])),
        "is_known": scalar(rng.random() < 0.5, "bool"),
    }, {}


@recipe("MonolithParameterSyncSettle")
def _sync_settle(rng):
    targets = _some_targets(rng)
    flags = {
        name: Array("bool", targets.shape, tuple(rng.random() < 0.5 for _ in targets.values))
        for name in ("has_arrived", "start_over")
    }
    return {"handle": Handle("parameter_sync_client"), "targets": targets, **flags}, {}


def _some_targets(rng):
    return strings(*(rng.choice([b"a", b"b", b""]) for _ in range(rng.randrange(4))))


# Tables.


@recipe("MonolithHashTable")
def _table(rng):
    config = resources.table_config((rng.randrange(1, 4), rng.randrange(1, 4)))
    config.initial_capacity = rng.choice([1, 100])
    if rng.random() < 0.5:
        config.occurrence_threshold = rng.choice([0, 1, 15, 16, 2**32 - 1])
    inputs = {
        "filter_handle": Handle(rng.choice(resources.FILTERS)),
        "sync_client_handle": Handle("sync_client"),
    }
    attrs = {"shared_name": "", "counted_as": rng.choice(["", "other", "nul\0"])}
    return inputs, {"config": config.SerializeToString(), **attrs}


@recipe("CreateMonolithMultiHashTable")
def _set(rng):
    config = resources.set_config(resources.SET_DIMS[: rng.randrange(3)]).SerializeToString()
    inputs = {
        "filter_handle": Handle(rng.choice(resources.FILTERS)),
        "sync_client_handle": Handle("sync_client"),
    }
    return {"config": scalar(config, "string"), **inputs}, {"shared_name": ""}


@recipe("IsHashTableInitialized")
def _initialized(rng):
    return {"handle": Handle(rng.choice([*resources.TABLES, "unknown"]))}, {}


def _one_table(rng: random.Random) -> Handle:
    return Handle(rng.choice(["table", "tracked_table"]))


@recipe("MonolithHashTableLookup")
def _lookup(rng):
    inputs = {"table_handle": _one_table(rng), "ids": ints(some_ids(rng, some(rng)))}
    return inputs, {"dim_size": resources.TABLE_DIM, "use_multi_threads": rng.random() < 0.5}


def _bags(rng: random.Random) -> tuple[int, int, Value]:
    """Returns numbers of ids and of bags, and the splits."""
    lengths = [rng.randrange(4) for _ in range(some(rng))]
    splits = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return splits[-1], len(lengths), ints(splits)


COMBINERS = ["sum", "mean", "sqrtn"]


@recipe("MonolithHashTableLookupBags")
def _lookup_bags(rng):
    n, _, splits = _bags(rng)
    inputs = {"table_handle": _one_table(rng), "ids": ints(some_ids(rng, n)), "row_splits": splits}
    return inputs, {"dim_size": resources.TABLE_DIM, "combiner": rng.choice(COMBINERS)}


@recipe("MonolithHashTableLookupBagsGradient")
def _lookup_bags_gradient(rng):
    n, bags, splits = _bags(rng)
    gradient = floats(rng, bags, rng.randrange(4))
    inputs = {"ids": ints(some_ids(rng, n)), "row_splits": splits, "gradient": gradient}
    return inputs, {"combiner": rng.choice(COMBINERS)}


@recipe("MonolithHashTableOptimizeBags")
def _optimize_bags(rng):
    n, bags, splits = _bags(rng)
    inputs = {
        "table_handle": _one_table(rng),
        "ids": ints(some_ids(rng, n)),
        "row_splits": splits,
        "gradient": floats(rng, bags, resources.TABLE_DIM),
        "learning_rate_tensor": floats(rng, len(resources.TABLE_SEGMENTS)),
        "req_time": some_time(rng),
        "global_step": scalar(3),
    }
    return inputs, {"combiner": rng.choice(COMBINERS)}


@recipe("MonolithHashTableLookupEntry")
def _lookup_entry(rng):
    return {"table_handle": _one_table(rng), "ids": ints(some_ids(rng, some(rng)))}, {}


@recipe("MonolithHashTableLookupGradient")
def _lookup_gradient(rng):
    n, batch, rank = some(rng), rng.randrange(1, 4), rng.randrange(1, 4)
    rows = [rng.randrange(batch) for _ in range(n * rank)]
    indices = ints(rows[:n]) if rng.random() < 0.5 else ints(rows, shape=(n, rank))
    grads = floats(rng, batch, rng.randrange(4))
    return {"id_indices": indices, "id_values": ints(some_ids(rng, n)), "input_grads": grads}, {}


def _one_table_rows(rng: random.Random) -> dict[str, Value]:
    n = some(rng)
    rows = floats(rng, n, resources.TABLE_DIM)
    return {
        "table_handle": _one_table(rng),
        "id_values": ints(some_ids(rng, n)),
        "id_updates": rows,
    }


@recipe("MonolithHashTableAssign", "MonolithHashTableAssignAdd")
def _assign(rng):
    return {**_one_table_rows(rng), "req_time": some_time(rng)}, {}


@recipe("MonolithHashTableOptimize")
def _optimize(rng):
    rates = floats(rng, len(resources.TABLE_SEGMENTS))
    inputs = {"learning_rate_tensor": rates, "req_time": some_time(rng), "global_step": scalar(3)}
    attrs = {"use_multi_threads": rng.random() < 0.5, "enable_dedup": rng.random() < 0.5}
    return {**_one_table_rows(rng), **inputs}, attrs


@recipe("MonolithHashTableSize")
def _size(rng):
    return {"table_handle": _one_table(rng)}, {}


@recipe("MonolithHashTableEvict")
def _evict(rng):
    return {"table_handle": _one_table(rng), "max_update_time": some_time(rng)}, {}


@recipe("MonolithHashTableSave")
def _save(rng):
    attrs = {"nshards": rng.choice([-1, 1, 3]), "random_sleep_ms": rng.choice([0, 0, 2])}
    return {"handle": _one_table(rng), "basename": Path("new")}, attrs


@recipe("MonolithHashTableRestore")
def _restore(rng):
    return {"handle": _one_table(rng), "basename": Path("table")}, {}


@recipe("MonolithHashTableSaveAsTensor")
def _save_as_tensor(rng):
    shards = rng.randrange(1, 4)
    inputs = {
        "shard_idx": scalar(rng.randrange(shards), "int32"),
        "num_shards": scalar(shards, "int32"),
        "limit": scalar(rng.choice([0, 1, 100])),
        "offset": scalar(rng.choice([0, 1, 5])),
    }
    return {"table_handle": _one_table(rng), **inputs}, {}


@recipe("MonolithExtractSlotFromEntry")
def _extract_slot(rng):
    # EntryDump: id = 1, eight bytes.
    entries = [b"\x09" + bytes(rng.randrange(256) for _ in range(8)) for _ in range(some(rng))]
    return {"entry": strings(*entries)}, {"fid_v2": rng.random() < 0.5}


def _some_set(rng: random.Random) -> tuple[Handle, list[int]]:
    kind = rng.choice(["set", "set", "tracked_set", "empty_set"])
    return Handle(kind), [] if kind == "empty_set" else list(resources.SET_DIMS)


def _set_ids(rng: random.Random) -> tuple[dict[str, Value], list[int], list[int]]:
    handle, dims = _some_set(rng)
    sizes = [some(rng) for _ in dims]
    ids = ints(some_ids(rng, sum(sizes)))
    return {"mtable": handle, "id": ids, "id_split": ints(splits_of(sizes))}, sizes, dims


@recipe("MonolithMultiHashTableLookup", "MonolithMultiHashTableLookupEntry")
def _set_lookup(rng):
    return _set_ids(rng)[0], {}


def _set_rows(rng: random.Random) -> dict[str, Value]:
    inputs, sizes, dims = _set_ids(rng)
    width = sum(n * dim for n, dim in zip(sizes, dims, strict=True))
    return {**inputs, "value": floats(rng, width)}


@recipe("MonolithMultiHashTableAssign", "MonolithMultiHashTableAssignAdd")
def _set_assign(rng):
    return {**_set_rows(rng), "update_time": some_time(rng)}, {}


@recipe("MonolithTableUnpackRows")
def _unpack_rows(rng):
    handle, dims = _some_set(rng)
    sizes = [some(rng) for _ in dims]
    # All rows are floats, and the forms of the tables are those of their dims.
    num_bytes = sum(4 * n * dim for n, dim in zip(sizes, dims, strict=True))
    packed = [rng.randrange(256) for _ in range(num_bytes)]
    return {
        "handle": handle,
        "id_split": ints(splits_of(sizes)),
        "packed": ints(packed, dtype="uint8"),
        "form": ints([packed_rows.make_form(packed_rows.FP32, dim) for dim in dims]),
    }, {}


@recipe("MonolithTableListIds")
def _list_ids(rng):
    kind = rng.choice([kind for kind in resources.TABLES if kind != "empty_set"])
    return {
        "handle": Handle(kind),
        "table": scalar(rng.randrange(2) if "set" in kind else 0),
        "place": scalar(rng.choice([0, 1, 2**62])),
        "max_ids": scalar(rng.choice([1, 5, 2**18])),
    }, {}


@recipe("MonolithMultiHashTableErase")
def _set_erase(rng):
    inputs = _set_rows(rng)
    return {name: inputs[name] for name in ("mtable", "id", "id_split")}, {}


@recipe("MonolithMultiHashTableOptimize")
def _set_optimize(rng):
    inputs = _set_rows(rng)
    rates = floats(rng, len(inputs["id_split"].values) - 1)
    numbers = {"update_time": some_time(rng), "global_step": scalar(3)}
    return {**inputs, "learning_rate": rates, **numbers}, {"enable_dedup": rng.random() < 0.5}


@recipe("MonolithMultiHashTableReinitialize")
def _reinitialize(rng):
    name = scalar(rng.choice([b"a", b"b", b"other"]), "string")
    return {"mtable": Handle("set"), "table_name": name, "id": ints(some_ids(rng, some(rng)))}, {}


@recipe("MonolithMultiHashTableEvict")
def _evict_all(rng):
    return {"mtable": _some_set(rng)[0], "max_update_time": some_time(rng)}, {}


@recipe("MonolithMultiHashTableSize")
def _set_size(rng):
    return {"mtable": _some_set(rng)[0]}, {}


@recipe("MonolithMultiHashTableStats")
def _set_stats(rng):
    return {"mtable": Handle(rng.choice(resources.TABLES))}, {}


@recipe("MonolithMultiHashTableSave")
def _set_save(rng):
    return {"mtable": _some_set(rng)[0], "basename": Path("new")}, {
        "nshards": rng.choice([-1, 1, 3])
    }


@recipe("MonolithMultiHashTableRestore")
def _set_restore(rng):
    return {"mtable": _some_set(rng)[0], "basename": Path("set")}, {}


@recipe("MonolithMultiHashTableFeatureStat")
def _stat(rng):
    return {"basename": Path(rng.choice(["set", "table", "touched"]))}, {}


def _fused(rng: random.Random, dims: list[int]) -> tuple[dict[str, Value], int, list[int], int]:
    """Ids, the number of shards, the size of each block, and the floats of all rows."""
    shards = rng.randrange(1, 4)
    sizes = [some(rng) for _ in range(shards * len(dims))]
    width = sum(n * dims[i % len(dims)] for i, n in enumerate(sizes))
    inputs = {"ids": ints(some_ids(rng, sum(sizes))), "fused_slot_size": ints(sizes, "int32")}
    return inputs, shards, sizes, width


def _fused_lookup(rng: random.Random, dims: list[int]) -> tuple[dict[str, Value], dict[str, Any]]:
    inputs, shards, _, _ = _fused(rng, dims)
    return {**inputs, "req_time": some_time(rng)}, {"num_of_shards": shards}


def _fused_optimize(
    rng: random.Random, dims: list[int], rates: int
) -> tuple[dict[str, Value], dict[str, Any]]:
    inputs, shards, sizes, width = _fused(rng, dims)
    widths = [n * dims[i % len(dims)] for i, n in enumerate(sizes)]
    rest = {
        "ids": inputs["ids"],
        "indices": inputs["ids"],
        "fused_slot_size": inputs["fused_slot_size"],
        "id_grads": floats(rng, width),
        "id_offsets": ints(splits_of(sizes), "int32"),
        "grad_offsets": ints(splits_of(widths), "int32"),
        "learning_rate_tensors": floats(rng, rates),
        "req_time": some_time(rng),
        "global_step": scalar(3),
    }
    attrs = {"num_of_shards": shards, "enable_grad_accumulation": rng.random() < 0.5}
    return rest, attrs


def _some_tables(rng: random.Random) -> list[Handle]:
    return [Handle("table", place) for place in range(rng.randrange(1, 3))]


@recipe("MonolithHashTableFusedLookup")
def _tables_fused_lookup(rng):
    handles = _some_tables(rng)
    inputs, attrs = _fused_lookup(rng, [resources.TABLE_DIM] * len(handles))
    return {"table_handles": handles, **inputs}, attrs


@recipe("MonolithMultiHashTableFusedLookup")
def _set_fused_lookup(rng):
    handle, dims = _some_set(rng)
    inputs, attrs = _fused_lookup(rng, dims)
    return {"mtable": handle, **inputs}, attrs


@recipe("MonolithHashTableFusedOptimize")
def _tables_fused_optimize(rng):
    handles = _some_tables(rng)
    n = len(handles)
    rates = n * len(resources.TABLE_SEGMENTS)
    inputs, attrs = _fused_optimize(rng, [resources.TABLE_DIM] * n, rates)
    return {"table_handles": handles, **inputs}, attrs


@recipe("MonolithMultiHashTableFusedOptimize")
def _set_fused_optimize(rng):
    handle, dims = _some_set(rng)
    inputs, attrs = _fused_optimize(rng, dims, len(dims))
    return {"mtable": handle, **inputs}, attrs


@recipe("MonolithTableTrackTouched")
def _track(rng):
    return {"table": Handle(rng.choice(resources.TABLES))}, {"capacity": rng.choice([1, 100])}


@recipe("MonolithTableGatherTouched", "MonolithTableForgetTouched")
def _touched(rng):
    return {"table": Handle(rng.choice(["tracked_table", "tracked_set"]))}, {}


@recipe("MonolithTableSaveTouched")
def _save_touched(rng):
    handle = Handle(rng.choice(["tracked_table", "tracked_set"]))
    return {"table": handle, "basename": Path("new")}, {"compression": rng.choice(["", "SNAPPY"])}


@recipe("MonolithTableRestoreLayers")
def _restore_layers(rng):
    names = (Path("table"), Path("touched"))[: rng.randrange(1, 3)]
    attrs = {"keep_other_rows": rng.random() < 0.5, "server": 0, "num_servers": rng.randrange(1, 3)}
    return {
        "table": _one_table(rng),
        "basenames": Paths(names),
        "layers": ints(list(range(len(names)))),
    }, attrs


@recipe("MonolithTableRestoreChanged")
def _restore_changed(rng):
    inputs, attrs = _restore_layers(rng)
    return {**inputs, "start_anew": strings(), "keep_values": strings()}, attrs
