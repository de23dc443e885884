"""Nested structures of tensors, taken apart into a flat list and put together again.

A queue, a remote call or a graph function moves a list of tensors; a model works with dicts of
tuples of dense and ragged tensors, with a few constants in between. `NestedTensors` is the bridge.

Example:
    >>> import tensorflow as tf
    >>> batch = {"ids": tf.ragged.constant([[1], [2, 3]]), "scale": tf.constant(2.0), "name": "a"}
    >>> nested = NestedTensors(batch)
    >>> [tensor.shape.as_list() for tensor in nested.get_tensors()]
    [[], [3], [3]]
    >>> doubled = nested.get_nested_result([tensor * 2 for tensor in nested.get_tensors()])
    >>> doubled["scale"].numpy().item(), doubled["name"]
    (4.0, 'a')
"""

import copy
import enum
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class _Kind(enum.IntEnum):
    """In which list of `NestedTensors` a leaf is kept."""

    TENSOR = 0
    RAGGED = 1
    OTHER = 2


class NestedTensors:
    """Flattens a nested structure, and rebuilds it from other tensors.

    The structure may hold lists, tuples, dicts, dense tensors, ragged tensors with one ragged
    dimension, and the constants `None`, bool, int, str and `tf.Variable`, which stay as they are.
    It is copied; what was given stays as it was.
    """

    def __init__(self, nested: Any) -> None:
        """Takes `nested` apart.

        Args:
            nested: The structure; neither it nor what it holds is changed.

        Raises:
            ValueError: It holds something else, or a tensor with two ragged dimensions.
        """
        self._id_mapping: dict[int, tuple[_Kind, int]] = {}
        self._ragged_tensors: list[tf.RaggedTensor] = []
        self._tensors: list[tf.Tensor] = []
        self._other_objs: list[Any] = []
        # From here on every leaf is the id of the object that was there.
        self._nested = _iterate(_copy_containers(nested), self._add_tensor)

    def get_tensors(self) -> list[tf.Tensor]:
        """Returns the dense tensors, then values and row splits of each ragged one."""
        return self._tensors + self._ragged_to_flatten(self._ragged_tensors)

    def get_nested_result(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Returns the structure with `tensors`, in the order of `get_tensors`, in their places.

        Raises:
            AssertionError: There are more or fewer of them than `get_tensors` returns.
        """
        tensors = list(tensors)
        dense_count = len(self._tensors)
        flatten_ragged_tensors = tensors[dense_count:]
        expected = dense_count + 2 * len(self._ragged_tensors)
        if len(tensors) != expected:
            raise AssertionError(
                f"The structure was taken apart into {expected} tensors, got {len(tensors)} to put "
                f"it together again; give one for each tensor of `get_tensors()`."
            )
        leaves = {
            _Kind.TENSOR: tensors[:dense_count],
            _Kind.RAGGED: self._flatten_to_ragged(flatten_ragged_tensors),
            _Kind.OTHER: self._other_objs,
        }

        def find_leaf(obj_id: int) -> Any:
            kind, index = self._id_mapping[obj_id]
            return leaves[kind][index]

        return _iterate(_copy_containers(self._nested), find_leaf)

    def _add_tensor(self, tensor: Any) -> int:
        """Keeps a leaf, once if it is there twice, and returns its id."""
        obj_id = id(tensor)
        if obj_id not in self._id_mapping:
            kind, kept = self._find_list(tensor)
            # The list also keeps the object alive, so that no other one can get its id.
            self._id_mapping[obj_id] = (kind, len(kept))
            kept.append(tensor)
        return obj_id

    def _find_list(self, tensor: Any) -> tuple[_Kind, list[Any]]:
        if isinstance(tensor, tf.Tensor):
            return _Kind.TENSOR, self._tensors
        if isinstance(tensor, tf.RaggedTensor):
            if tensor.ragged_rank != 1:
                raise ValueError("Nested tensor doesn't support nested RaggedTensor.")
            return _Kind.RAGGED, self._ragged_tensors
        if tensor is None or isinstance(tensor, (bool, int, str, tf.Variable)):
            return _Kind.OTHER, self._other_objs
        raise ValueError(f"Tensor is not supported. {tensor}")

    def _convert_ragged_to_tensors(self, ragged: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        return ragged.values, ragged.row_splits

    def _convert_tensors_to_ragged(
        self, values: tf.Tensor, row_splits: tf.Tensor
    ) -> tf.RaggedTensor:
        # They come from a ragged tensor, checked when it was made.
        return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)

    def _ragged_to_flatten(self, ragged_tensors: Sequence[tf.RaggedTensor]) -> list[tf.Tensor]:
        return [t for ragged in ragged_tensors for t in self._convert_ragged_to_tensors(ragged)]

    def _flatten_to_ragged(self, tensors: Sequence[tf.Tensor]) -> list[tf.RaggedTensor]:
        return [
            self._convert_tensors_to_ragged(values, row_splits)
            for values, row_splits in zip(tensors[0::2], tensors[1::2], strict=True)
        ]


def _iterate(nested: Any, action: Callable[[Any], Any]) -> Any:
    """Replaces each leaf of `nested` but `None` by `action(leaf)`; a dict is changed in place."""
    if nested is None:
        return None
    if isinstance(nested, (list, tuple)):
        return _make_like(nested, [_iterate(item, action) for item in nested])
    if isinstance(nested, dict):
        for key, value in nested.items():
            nested[key] = _iterate(value, action)
        return nested
    return action(nested)


def _copy_containers(nested: Any) -> Any:
    """Copies lists, tuples and dicts, down to leaves that both structures share."""
    if isinstance(nested, (list, tuple)):
        return _make_like(nested, [_copy_containers(item) for item in nested])
    if isinstance(nested, dict):
        # A copy instead of a new dict keeps the class: an OrderedDict, a defaultdict.
        copied = copy.copy(nested)
        for key, value in nested.items():
            copied[key] = _copy_containers(value)
        return copied
    return nested


def _make_like(sequence: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    if isinstance(sequence, list):
        return items
    make_named_tuple = getattr(sequence, "_make", None)
    return make_named_tuple(items) if make_named_tuple else tuple(items)
