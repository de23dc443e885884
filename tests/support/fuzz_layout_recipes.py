"""Calls of the ops of fused layouts; see `fuzz_recipes`."""

import random
from typing import Any

from support.fuzz_recipes import recipe, some_ids, splits_of
from support.fuzz_values import Array, Value, floats, ints, scalar, strings

from monolith.proto import example_pb2, proto_parser_pb2

_LAYOUTS = "MonolithEmbeddingToLayout"


def _some_configs(rng: random.Random, num_features: int, dim: int) -> bytes:
    """Features "a", "b", ... of one table, and two layouts."""
    configs = example_pb2.FeatureConfigs()
    names = "abcdef"[:num_features]
    for name in names:
        config = configs.feature_configs[name]
        config.table = "t"
        config.slice_dims.append(dim)
        config.pooling_type = rng.choice([example_pb2.SUM, example_pb2.MEAN])
    out = configs.out_configs["concat"]
    for name in names:
        out.slice_configs.add(feature_name=name, start=0, end=dim)
    out.shape.add(dims=[-1, dim * num_features])
    out = configs.out_configs["sum"]
    out.out_type = example_pb2.ADDN
    out.slice_configs.add(feature_name="a", start=0, end=1)
    out.shape.add(dims=[-1, 1])
    return configs.SerializeToString(deterministic=True)


def _layout(
    rng: random.Random, version: int
) -> tuple[dict[str, Value], dict[str, Any], list[Array]]:
    """Inputs and attributes of a version, and gradients of what it makes."""
    num_features, dim, batch, num_rows = (rng.randrange(1, 4) for _ in range(4))
    by_row = version < 3
    counts = [rng.randrange(3) for _ in range(num_features * batch)]
    rows = [rng.randrange(num_rows) for _ in range(sum(counts))]
    fids = rows if by_row else [row * dim for row in rows]
    inputs: dict[str, Value] = {"embeddings_list": [floats(rng, num_rows, dim)]}
    if version == 2:
        # All rows belong to the first feature, whose number is 0, as every offset says.
        splits = [0] + [num_rows] * num_features
        inputs["fid_list_row_split"] = [ints(splits)]
    if version == 4:
        inputs["fid_list_emb_row_lenth"] = ints([num_rows * dim], "int32")
    inputs |= {
        "fid_offset": ints(fids, "uint64"),
        "feature_offset": ints(splits_of(counts)[:-1], "int32"),
        "nfl_offset": ints([f * batch for f in range(num_features)], "uint32"),
        "batch_size": scalar(batch, "int32"),
    }
    attrs: dict[str, Any] = {
        "variant_type": rng.choice(["example", "example_batch", "instance"]),
        "feature_cfgs": _some_configs(rng, num_features, dim),
    }
    if version > 1:
        attrs |= {"ps_num": 1, "parallel_flag": rng.randrange(2)}
    if version == 5:
        sizes = [num_features, num_features * batch, len(fids), num_rows * dim]
        names = ("nfl_size", "feature_size", "fid_size", "emb_size")
        inputs |= {name: ints([size], "int32") for name, size in zip(names, sizes, strict=True)}
    return inputs, attrs, [floats(rng, batch, dim * num_features), floats(rng, batch, 1)]


def _register(version: int) -> None:
    suffix = "" if version == 1 else f"V{version}"

    @recipe(_LAYOUTS + suffix)
    def _forward(rng):
        inputs, attrs, _ = _layout(rng, version)
        return inputs, {**attrs, "num_out": 2}

    @recipe(f"{_LAYOUTS}Grad{suffix}")
    def _backward(rng):
        # The fifth gradient takes what the third takes.
        inputs, attrs, grads = _layout(rng, 3 if version == 5 else version)
        return {**inputs, "tensors_grad": grads}, attrs


for _version in range(1, 6):
    _register(_version)


def _shard_attrs(rng: random.Random, num_features: int) -> dict[str, Any]:
    servers = rng.randrange(1, 4)
    return {
        "num_lists": servers,
        "ps_num": servers,
        "feature_cfgs": _some_configs(rng, num_features, rng.randrange(1, 4)),
        "unique": rng.random() < 0.5,
        "sub_tables": rng.choice([[], ["x"] * num_features]),
    }


@recipe("MonolithShardRaggedFids")
def _shard_ragged(rng):
    num_features, batch = rng.randrange(1, 4), rng.randrange(4)
    splits = [splits_of([rng.randrange(3) for _ in range(batch)]) for _ in range(num_features)]
    fids = [ints(some_ids(rng, of_feature[-1])) for of_feature in splits]
    inputs = {"fids": fids, "row_splits": [ints(of_feature) for of_feature in splits]}
    return inputs, _shard_attrs(rng, num_features)


@recipe("MonolithShardSerializedFids")
def _shard_serialized(rng):
    kind = rng.choice(["example", "example_batch", "instance"])
    attrs = {"input_type": kind, **_shard_attrs(rng, 2)}
    fids = [rng.randrange(2**63) for _ in range(rng.randrange(3))]
    if kind == "instance":
        instance = proto_parser_pb2.Instance(fid=fids)
        return {"serialized": strings(instance.SerializeToString())}, attrs
    if kind == "example":
        example = example_pb2.Example()
        example.named_feature.add(name="a").feature.fid_v1_list.value.extend(fids)
        return {"serialized": strings(*[example.SerializeToString()] * rng.randrange(3))}, attrs
    batch = example_pb2.ExampleBatch(batch_size=2)
    named = batch.named_feature_list.add(name="b", type=example_pb2.SHARED)
    named.feature.add().fid_v2_list.value.extend(fids)
    return {"serialized": strings(batch.SerializeToString())}, attrs
