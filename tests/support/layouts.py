"""Fused layouts for tests: configs, and what they mean, written with NumPy."""

import numpy as np
import tensorflow as tf

from monolith.proto import example_pb2

OUT_TYPES = {
    "concat": example_pb2.CONCAT,
    "stack": example_pb2.STACK,
    "addn": example_pb2.ADDN,
    "none": example_pb2.NONE,
}
POOLING = {"sum": example_pb2.SUM, "mean": example_pb2.MEAN, "firstn": example_pb2.FIRSTN}

# By name: table, pooling, width of the row, length of a sequence.
Features = dict[str, tuple[str, str, int, int]]
# By name: out type, slices as (feature, start, end).
Layouts = dict[str, tuple[str, list[tuple[str, int, int]]]]


def make_configs(features: Features, layouts: Layouts) -> example_pb2.FeatureConfigs:
    configs = example_pb2.FeatureConfigs()
    for name, (table, pooling, dim, length) in features.items():
        config = configs.feature_configs[name]
        config.table = table
        config.pooling_type = POOLING[pooling]
        config.slice_dims.append(dim)
        config.max_sequence_length = length
    for name, (out_type, slices) in layouts.items():
        out = configs.out_configs[name]
        out.out_type = OUT_TYPES[out_type]
        for feature, start, end in slices:
            out.slice_configs.add(feature_name=feature, start=start, end=end)
        for shape in _shapes(features, out_type, slices):
            out.shape.add(dims=[-1, *shape])
    return configs


def _shapes(features, out_type, slices) -> list[list[int]]:
    shapes = []
    for feature, start, end in slices:
        _, pooling, _, length = features[feature]
        shapes.append([length, end - start] if pooling == "firstn" else [end - start])
    if out_type == "none":
        return shapes
    if out_type == "concat":
        return [[sum(shape[0] for shape in shapes), *shapes[0][1:]]]
    return [[len(shapes), *shapes[0]]] if out_type == "stack" else [shapes[0]]


def model(
    features: Features, layouts: Layouts, ids: dict[str, list[list[int]]], row_of
) -> list[np.ndarray]:
    """The layouts of a batch; `row_of(table, id)` gives the row of an id."""

    def combine(feature: str, example: list[int]) -> np.ndarray:
        table, pooling, dim, length = features[feature]
        rows = [np.asarray(row_of(table, i), np.float64) for i in example]
        if pooling == "firstn":
            padding = [np.zeros(dim)] * max(0, length - len(rows))
            return np.stack([*rows[:length], *padding])
        total = np.sum(rows, axis=0) if rows else np.zeros(dim)
        return total / len(rows) if pooling == "mean" and rows else total

    batch = {
        feature: np.stack([combine(feature, example) for example in examples])
        for feature, examples in ids.items()
    }
    tensors = []
    for name in sorted(layouts):
        out_type, slices = layouts[name]
        parts = [batch[feature][..., start:end] for feature, start, end in slices]
        if out_type == "none":
            tensors += parts
        elif out_type == "concat":
            tensors.append(np.concatenate(parts, axis=1))
        elif out_type == "stack":
            tensors.append(np.stack(parts, axis=1))
        else:
            tensors.append(np.sum(parts, axis=0))
    return tensors


def to_ragged(ids: dict[str, list[list[int]]]) -> dict[str, tf.RaggedTensor]:
    return {
        name: tf.ragged.constant(examples, ragged_rank=1, dtype=tf.int64)
        for name, examples in ids.items()
    }
