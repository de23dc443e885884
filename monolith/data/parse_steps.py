"""Small steps between a parsed batch and the model, inside of an input pipeline.

`advanced_parse` applies what was queued with `add_extra_parse_step`, once each; usually that is
nothing. `RaggedEncodingHelper` takes ragged tensors apart and puts them together again, so that
what the pipeline has computed of them, such as the number of rows, need not be computed by the
model once more.

Example:
    >>> add_extra_parse_step(lambda features: {**features, "one": tf.constant(1)})
    >>> sorted(advanced_parse({"user": tf.constant([7])}))
    ['one', 'user']
    >>> sorted(advanced_parse({"user": tf.constant([7])}))  # It was applied once.
    ['user']
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.ragged import row_partition

_NEEDED = {"values", "row_splits"}
_COMPUTED = {"nrows", "value_rowids"}

_extra_steps: list[Callable[[Any], Any]] = []


def add_extra_parse_step(parse_fn: Callable[[Any], Any]) -> None:
    """Has the next `advanced_parse` apply a function to the features."""
    _extra_steps.append(parse_fn)


def advanced_parse(features: Any) -> Any:
    """Returns the features as the functions that were added make them, the first one first."""
    while _extra_steps:
        features = _extra_steps.pop(0)(features)
    return features


class RaggedEncodingHelper:
    """Ragged tensors as dicts of plain ones, which keep what was computed of them.

    Example:
        >>> ragged = tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
        >>> expanded = RaggedEncodingHelper.expand({"user": ragged, "age": tf.constant([30])})
        >>> int(expanded["user"]["nrows"]), sorted(expanded)
        (2, ['age', 'user'])
        >>> RaggedEncodingHelper.contract(expanded)["user"].to_list()
        [[1, 2], [3]]
    """

    @staticmethod
    def expand(
        name_to_ragged_ids: Mapping[str, Any],
        with_precomputed_nrows: bool = True,
        with_precomputed_value_rowids: bool = False,
    ) -> dict[str, Any]:
        """Returns each ragged tensor as a dict; anything else as it is.

        Args:
            name_to_ragged_ids: Tensors by name, of which some are ragged, of one ragged dimension.
            with_precomputed_nrows: Whether `nrows` is computed now.
            with_precomputed_value_rowids: Whether `value_rowids` are computed now.
        """
        return {
            name: {
                "values": value.values,
                "row_splits": value.row_splits,
                "nrows": value.nrows() if with_precomputed_nrows else None,
                "value_rowids": value.value_rowids() if with_precomputed_value_rowids else None,
            }
            if isinstance(value, tf.RaggedTensor)
            else value
            for name, value in name_to_ragged_ids.items()
        }

    @staticmethod
    def contract(name_to_ragged_ids: Mapping[str, Any]) -> dict[str, Any]:
        """Undoes `expand`; nothing is validated, and what was computed is not computed again.

        Parts that are None may as well be left out, since datasets cannot hold them.
        """
        return {
            name: _contract(value) if _is_expanded(value) else value
            for name, value in name_to_ragged_ids.items()
        }


def _is_expanded(value: Any) -> bool:
    return isinstance(value, Mapping) and _NEEDED <= set(value) <= _NEEDED | _COMPUTED


def _contract(parts: Mapping[str, Any]) -> tf.RaggedTensor:
    partition = row_partition.RowPartition(
        row_splits=parts["row_splits"],
        nrows=parts.get("nrows"),
        value_rowids=parts.get("value_rowids"),
        internal=row_partition._row_partition_factory_key,
    )
    return tf.RaggedTensor(values=parts["values"], row_partition=partition, internal=True)
