"""Tables that ranks share, as a model with features meets them.

Which rank has the row of an id is known before the model is built, so the input pipeline already
makes ids distinct and puts them into the order in which they travel: `RankedInput` does that to
each batch, and takes it apart again for the model. `RankedTable` looks the batch up; features of
one slot share a table.
"""

import copy
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from monolith.data.parse_steps import RaggedEncodingHelper
from monolith.embedding.sharding import ranks
from monolith.embedding.sharding.ranks import DistributedMultiTypeHashTableMpi
from monolith.embedding.tables.inputs import TensorLike
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.training.tables import collect
from monolith.training.tables.push import get_req_time

# The one key of an ordered batch.
_KEY = "1"
_IDS = "ids_of_features"
_OTHERS = "other_features"


class RankedInput:
    """Makes batches ready for tables that ranks share.

    Args:
        feature_to_table: The table of each feature.
        table_to_dim: The width of each table's rows.
        num_ranks: How many ranks there are.
    """

    def __init__(
        self, feature_to_table: Mapping[str, str], table_to_dim: Mapping[str, int], num_ranks: int
    ) -> None:
        self._features_of_table = group_by_table(feature_to_table)
        self._feature_to_table = dict(feature_to_table)
        self._dims = [table_to_dim[table] for table in self._features_of_table]
        self._num_ranks = num_ranks

    def reorder(self, features: Any) -> dict[str, Any]:
        """Returns a batch in which ids are ordered by rank; for `Dataset.map`.

        It is `{"1": (other features, (ids of features, what is looked up))}`.
        """
        collect.check_features(features, self._feature_to_table)
        ids = {name: features[name] for name in self._feature_to_table}
        others = {name: value for name, value in features.items() if name not in ids}
        pack = ranks.reorder(
            [
                tf.concat([ids[name].flat_values for name in names], 0)
                for names in self._features_of_table.values()
            ],
            self._num_ranks,
            self._dims,
            get_req_time(others),
        )
        expanded = {
            name: {part: tensor for part, tensor in parts.items() if tensor is not None}
            for name, parts in RaggedEncodingHelper.expand(ids).items()
        }
        return {_KEY: (others, (expanded, tuple(t for t in pack if t is not None)))}

    @staticmethod
    def split(features: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[tf.Tensor, ...]]:
        """Returns what belongs to an ordered batch, and what is to be looked up."""
        others, (ids, pack) = features[_KEY]
        return {_OTHERS: others, _IDS: ids}, pack

    @staticmethod
    def get_features(
        bundle: Mapping[str, Any],
    ) -> tuple[dict[str, tf.RaggedTensor], dict[str, Any]]:
        """Returns the ids of the batch that a bundle belongs to, and its other features."""
        return RaggedEncodingHelper.contract(bundle[_IDS]), bundle[_OTHERS]


class RankedTable(BaseMultiTypeHashTable):
    """The tables of all features, of which each rank has a part.

    Args:
        table: Knows the tables by their own names.
        feature_to_table: The name of each feature's table.
    """

    def __init__(
        self, table: DistributedMultiTypeHashTableMpi, feature_to_table: Mapping[str, str]
    ) -> None:
        self._table = table
        self._features_of_table = group_by_table(feature_to_table)

    def lookup(  # type: ignore[override]  # The pack is what ids are here.
        self, bundle: dict[str, Any], pack: tuple[tf.Tensor, ...]
    ) -> tuple[dict[str, tf.Tensor], dict[str, Any]]:
        """Returns the rows of each feature, and the bundle, of the batch that is trained on now.

        Args:
            bundle: What belongs to the batch, see `RankedInput.split`. Where there are queues, the
                one that is returned is that of an older batch.
            pack: What is looked up.
        """
        rows_of_table, bundle = self._table.lookup(
            dict.fromkeys(self._features_of_table), bundle, pack
        )
        rows: dict[str, tf.Tensor] = {}
        for table, names in self._features_of_table.items():
            sizes = [tf.size(bundle[_IDS][name]["values"]) for name in names]
            parts = tf.split(rows_of_table[table], sizes) if len(names) > 1 else None
            rows.update(zip(names, parts or [rows_of_table[table]], strict=True))
        return rows, bundle

    def apply_gradients(  # type: ignore[override]  # The ids are those of the lookup.
        self, slot_to_grad: Mapping[str, TensorLike], *args: Any, **kwargs: Any
    ) -> "RankedTable":
        """Updates the rows of a lookup; the arguments are those of the inner table."""
        grads = {
            table: tf.concat([slot_to_grad[name] for name in names], 0)
            for table, names in self._features_of_table.items()
        }
        copied = copy.copy(self)
        copied._table = self._table.apply_gradients(grads, *args, **kwargs)
        return copied

    @property
    def push_hooks(self) -> list[Any]:
        """The hooks of gradients that are pushed late, once `apply_gradients` was called."""
        return self._table.push_hooks

    def assign(self, slot_to_id_and_value: Any) -> Any:
        return self._table.assign(slot_to_id_and_value)

    def assign_add(self, slot_to_id_and_value: Any) -> Any:
        return self._table.assign_add(slot_to_id_and_value)

    def reinitialize(self, slot: str, ids: TensorLike) -> tuple[Any, tf.Tensor]:
        return self._table.reinitialize(slot, ids)

    def as_op(self, name: str | None = None) -> Any:
        return self._table.as_op(name)

    def get_table_dim_sizes(self) -> Any:
        return self._table.get_table_dim_sizes()


def group_by_table(feature_to_table: Mapping[str, str]) -> dict[str, list[str]]:
    """Returns the features of each table, all in sorted order.

    Example:
        >>> group_by_table({"user": "u", "friend": "u", "item": "i"})
        {'i': ['item'], 'u': ['friend', 'user']}
    """
    grouped: dict[str, list[str]] = {}
    for feature in sorted(feature_to_table):
        grouped.setdefault(feature_to_table[feature], []).append(feature)
    return dict(sorted(grouped.items()))
