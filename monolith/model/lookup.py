"""What the arguments of `MonolithModel` mean: names of features, groups, combiners, shapes."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding.features import combiners
from monolith.embedding.features.slots import FeatureColumn, FeatureSlice
from monolith.proto import example_pb2

# What a feature may be called by: its name, its slot, or its column.
FeatureKey = str | int | FeatureColumn

OUT_TYPES = {
    None: example_pb2.NONE,
    "concat": example_pb2.CONCAT,
    "stack": example_pb2.STACK,
    "add_n": example_pb2.ADDN,
    "addn": example_pb2.ADDN,
}


def find_in_feature_list(feature_list: Any, key: str | int) -> tuple[str, int] | None:
    """Returns name and slot of a feature that `feature_list` knows, else None."""
    if feature_list is None:
        return None
    if hasattr(feature_list, "get_feature_name_and_slot"):
        name, slot = feature_list.get_feature_name_and_slot(key)
        return (name, slot) if slot is not None else None
    if not isinstance(feature_list, Mapping):
        raise errors.ConfigError(
            f"The param feature_list must be a dict from names to slots, got {feature_list!r}."
        )
    if isinstance(key, str):
        return (key, feature_list[key]) if key in feature_list else None
    names = [name for name, slot in feature_list.items() if slot == key]
    return (names[0], key) if names else None


def make_combiner(
    name: str, combiner: str | combiners.Combiner | None, max_seq_length: int
) -> combiners.Combiner:
    """Returns the combiner that was asked for.

    Raises:
        ConfigError: There is no such combiner, or it contradicts `max_seq_length`.
    """
    if isinstance(combiner, combiners.Combiner):
        if max_seq_length and combiner.max_seq_length != max_seq_length:
            raise errors.ConfigError(
                f"Feature '{name}' has max_seq_length {max_seq_length} and the combiner "
                f"{combiner}; give one of them."
            )
        return combiner
    if combiner is None:
        combiner = "first_n" if max_seq_length > 0 else "reduce_sum"
    if combiner == "first_n":
        if max_seq_length <= 0:
            raise errors.ConfigError(
                f"Feature '{name}' has the combiner 'first_n', so it needs a max_seq_length above "
                f"0, got {max_seq_length}."
            )
        return FeatureColumn.first_n(max_seq_length)
    if combiner not in ("reduce_sum", "reduce_mean"):
        raise errors.ConfigError(
            f"Feature '{name}' has an unknown combiner {combiner!r}; use 'reduce_sum', "
            "'reduce_mean', 'first_n', or a combiner of monolith.embedding.features.combiners."
        )
    if max_seq_length:
        raise errors.ConfigError(
            f"Feature '{name}' has the combiner '{combiner}', which takes all ids, and "
            f"max_seq_length {max_seq_length}; leave one of them out."
        )
    if combiner == "reduce_mean":
        return FeatureColumn.reduce_mean()
    return FeatureColumn.reduce_sum()


def parse_features(features: Any, slice_dim: int | None) -> list[list[tuple[FeatureKey, int]]]:
    """Returns groups of features with their dims; most groups have one feature."""
    if isinstance(features, Mapping):
        features = list(features.items())
    if not isinstance(features, list | tuple) or not features:
        raise ValueError(
            "ValueError for features: expected a list of features, of pairs (feature, dim) or of "
            f"groups, or a dict from features to dims; got {features!r}."
        )
    return [_parse_group(element, slice_dim) for element in features]


def _parse_group(element: Any, slice_dim: int | None) -> list[tuple[FeatureKey, int]]:
    if isinstance(element, tuple) and len(element) == 2:
        return [(_check_key(element[0]), _check_dim(element[0], element[1]))]
    keys = element if isinstance(element, list) else [element]
    if not keys:
        raise ValueError("ValueError for features: a group is empty.")
    return [(_check_key(key), _check_dim(key, slice_dim)) for key in keys]


def _check_key(key: Any) -> FeatureKey:
    if isinstance(key, bool) or not isinstance(key, str | int | FeatureColumn):
        raise ValueError(
            f"ValueError for features: a feature is called by its name, its slot or its column, "
            f"got {key!r}."
        )
    return key


def _check_dim(key: Any, dim: Any) -> int:
    if isinstance(dim, bool) or not isinstance(dim, int) or dim <= 0:
        raise ValueError(
            f"ValueError for features: the slice of feature {key!r} needs a dim, a positive int; "
            f"set slice_dim, or give pairs (feature, dim). Got {dim!r}."
        )
    return dim


def has_groups(features: Any) -> bool:
    """Whether `features` of a lookup has groups, each of which becomes one tensor."""
    return not isinstance(features, Mapping) and any(isinstance(f, list) for f in features)


def hash_features(features: Any) -> str:
    """Returns a text that is the same for the same features, in this run and in others."""
    keys = features.items() if isinstance(features, Mapping) else features
    text = ",".join(sorted(_describe_key(key) for key in keys))
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _describe_key(key: Any) -> str:
    # The text of a column would differ from one run to the next.
    if isinstance(key, list | tuple):
        return str(tuple(_describe_key(part) for part in key))
    return key.feature_name if isinstance(key, FeatureColumn) else str(key)


def get_shapes(
    slices: Sequence[tuple[FeatureColumn, FeatureSlice]], out_type: str | None
) -> list[list[int]]:
    """Returns the shapes of what a lookup gives, with -1 for the batch."""
    shapes = []
    for column, feature_slice in slices:
        length = column.combiner.max_seq_length
        dim = feature_slice.end - feature_slice.start
        shapes.append([-1, length, dim] if length else [-1, dim])
    if out_type is None:
        return shapes
    first = shapes[0]
    if out_type == "concat":
        return [[-1, sum(shape[1] for shape in shapes), *first[2:]]]
    return [[-1, len(shapes), *first[1:]]] if out_type == "stack" else [first]


def join(tensors: Sequence[tf.Tensor], out_type: str) -> tf.Tensor:
    """Makes one tensor of several.

    Raises:
        ConfigError: There is no such way, or the shapes do not allow it.
    """
    shapes = [tensor.shape.as_list() for tensor in tensors]
    if out_type in ("add_n", "addn", "stack") and len({str(shape[1:]) for shape in shapes}) > 1:
        raise errors.ConfigError(
            f"'{out_type}' needs slices of one shape, got {shapes}; give all of them the same dim, "
            "or use 'concat'."
        )
    if out_type == "concat":
        return tf.concat(tensors, axis=1)
    if out_type == "stack":
        return tf.stack(tensors, axis=1)
    if out_type in ("add_n", "addn"):
        return tf.add_n(tensors)
    raise errors.ConfigError(f"group_out_type must be 'add_n' or 'concat', got {out_type!r}.")
