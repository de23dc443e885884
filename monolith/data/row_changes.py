"""Changes of rows that call Python for each one; a row is a serialized message.

They cost some tenths of a millisecond a row. What is asked of many rows is an op of
`monolith.data.row_filters`.

Example:
    >>> source = tf.train.Example()
    >>> source.features.feature["user"].int64_list.value.append(7)
    >>> row = tf_example_to_example(source.SerializeToString(), {"user": 1}, [], "click")
    >>> example = example_pb2.Example.FromString(row.numpy())
    >>> [fid - (1 << 48) for fid in example.named_feature[0].feature.fid_v2_list.value]
    [7]
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.data import conversions, fids, seekable, string_ids
from monolith.proto import example_pb2


def tf_example_to_example(
    serialized: tf.Tensor,
    sparse_features: Mapping[str, int],
    dense_features: Sequence[str],
    label: str,
    instance_weight: str | None = None,
) -> tf.Tensor:
    """Makes an Example of a `tf.train.Example`.

    Args:
        serialized: A serialized `tf.train.Example`.
        sparse_features: Features of ids, each with a slot, 1 to 32767. Integers become fids with
            their low 48 bits, texts with those of their hash (`ml.data.hash_string`).
        dense_features: Features that stay as they are.
        label: The feature that has the labels.
        instance_weight: The one that has the weight; None says that it is 1.

    Returns:
        A serialized Example. Features that are not there are empty.

    Raises:
        errors.ConfigError: A slot is none, or a name is there twice.
    """
    names = [*sparse_features, *dense_features, label]
    names += [] if instance_weight is None else [instance_weight]
    if len(set(names)) != len(names):
        raise errors.ConfigError(f"Names of features must differ, got {names}.")
    for name, slot in sparse_features.items():
        if not 1 <= slot < fids.NUM_SLOTS_V2:
            raise errors.ConfigError(f"The slot of {name!r} must be 1 to 32767, got {slot}.")

    def convert(record: bytes) -> bytes:
        found = conversions.parse(tf.train.Example, record).features.feature
        example = example_pb2.Example(instance_weight=1)
        for name, slot in sparse_features.items():
            ids = [_make_fid(slot, value, name) for value in _get_values(found, name)]
            named = example.named_feature.add(name=name, id=len(example.named_feature))
            named.feature.fid_v2_list.value.extend(ids)
        for name in dense_features:
            named = example.named_feature.add(name=name, id=len(example.named_feature))
            kind = found[name].WhichOneof("kind") if name in found else None
            getattr(named.feature, kind or "float_list").value.extend(_get_values(found, name))
        example.label.extend(_get_numbers(found, label))
        if instance_weight is not None:
            example.instance_weight = next(iter(_get_numbers(found, instance_weight)), 1.0)
        return bytes(example.SerializeToString())

    settings = (sorted(sparse_features.items()), list(dense_features), label, instance_weight)
    return _call(convert, serialized, tf.string, ("tf_example_to_example", settings))


def _get_values(found: Any, name: str) -> list[Any]:
    kind = found[name].WhichOneof("kind") if name in found else None
    return [] if kind is None else list(getattr(found[name], kind).value)


def _get_numbers(found: Any, name: str) -> list[float]:
    values = _get_values(found, name)
    if any(isinstance(value, bytes) for value in values):
        raise errors.DataError(f"Feature {name!r} must be numbers, but is {values[:3]}.")
    return [float(value) for value in values]


def _make_fid(slot: int, value: Any, name: str) -> int:
    if isinstance(value, float):
        raise errors.DataError(f"Feature {name!r} has a slot, but holds {value}, which is no id.")
    return int(
        fids.make_v2(slot, string_ids.hash_string(value) if isinstance(value, bytes) else value)
    )


def _call(
    function: Callable[[bytes], Any], record: tf.Tensor, dtype: tf.DType, settings: Any
) -> tf.Tensor:
    # Beside the function stands what it does, so that a position in the input can be saved.
    digest = hashlib.sha256(repr(settings).encode()).hexdigest()

    @tf.autograph.experimental.do_not_convert
    def call(content: Any, _: Any) -> Any:
        try:
            # Eagerly, it is an array without dimensions.
            return function(content if isinstance(content, bytes) else content.item())
        except errors.DataError as e:
            # Without the trace, which TensorFlow would print in front of it.
            raise errors.DataError(str(e)) from None

    description = tf.constant(seekable.MARK + b"row " + digest.encode())
    found = tf.numpy_function(
        call, [tf.convert_to_tensor(record), description], dtype, stateful=False
    )
    found.set_shape([])
    return found
