"""Factories of slots: where the embeddings that a column looks up come from.

`FeatureFactoryFromEmbeddings` hands out tensors that were looked up before the model was built,
and `EmbeddingLayoutFactory` layouts that one op has made of all of them. A trainer subclasses the
former, or calls the latter's `apply_gradients`, to send gradients back to the tables.

Example:
    >>> slices = {"user:0_1": tf.constant([[3.0]]), "user:1_2": tf.constant([[4.0]])}
    >>> factory = FeatureFactoryFromEmbeddings({"user": tf.constant([[3.0, 4.0]])}, slices)
    >>> slot = factory.create_feature_slot(FeatureSlotConfig(name="user", has_bias=True))
    >>> column = feature_slots.FeatureColumn(slot, "user")
    >>> column.embedding_lookup(slot.add_feature_slice(1)).numpy().tolist()
    [[4.0]]
"""

import abc
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding.features import slots as feature_slots
from monolith.embedding.features.slots import FeatureEmbTable, FeatureSlot, FeatureSlotConfig

# Gradient and the tensor of `FeatureColumn.get_all_embeddings_concat`, in pairs.
GradsAndVars = Iterable[tuple[Any, Any]]


class FeatureFactory(abc.ABC):
    """Makes slots.

    Attributes:
        slot_to_occurrence_threshold: How often an id of a slot must be seen to get a row.
        slot_to_expire_time: Days after which an id of a slot is forgotten.
    """

    def __init__(self) -> None:
        self.slot_to_occurrence_threshold: dict[int, int] = {}
        self.slot_to_expire_time: dict[int, int] = {}

    @abc.abstractmethod
    def create_feature_slot(self, config: FeatureSlotConfig) -> FeatureSlot:
        """Returns a new slot."""

    def apply_gradients(
        self, grads_and_vars: GradsAndVars, req_time: tf.Tensor | None = None, scale: Any = 1
    ) -> tf.Operation:
        """Sends the gradients of embeddings to their tables.

        Args:
            grads_and_vars: Gradients of tensors of `FeatureColumn.get_all_embeddings_concat`.
            req_time: When the examples were made, seconds since 1970; for expiry.
            scale: What the gradients are multiplied by.
        """
        raise NotImplementedError("apply_gradients is not supported in this factory.")


class EmbeddingFeatureEmbTable(FeatureEmbTable):
    """Embeddings that exist already.

    Args:
        name_to_embeddings: For each feature the rows of its ids, `[num_ids, dim]`.
        name_to_embedding_slices: What `create_embedding_slices` makes of them.
    """

    def __init__(
        self,
        name_to_embeddings: Mapping[str, tf.Tensor],
        name_to_embedding_slices: Mapping[str, tf.Tensor],
    ) -> None:
        self._name_to_embeddings = name_to_embeddings
        self._name_to_embedding_slices = name_to_embedding_slices

    def embedding_lookup(self, feature_name: str, start: int | None, end: int | None) -> tf.Tensor:
        if feature_name not in self._name_to_embeddings:
            raise errors.ConfigError(
                f"Feature '{feature_name}' was not declared when the features of the model were "
                f"collected; declared are {_quote(self._name_to_embeddings)}. Create its column in "
                "every mode in which the model is built."
            )
        if start is None or end is None:
            return self._name_to_embeddings[feature_name]
        key = feature_slots.slice_key(feature_name, start, end)
        if key not in self._name_to_embedding_slices:
            known = [k for k in self._name_to_embedding_slices if k.startswith(f"{feature_name}:")]
            raise errors.ConfigError(
                f"Feature '{feature_name}' has no slice [{start}, {end}); its slices are "
                f"{_quote(known)}. Add the same slices in the same order in every mode."
            )
        return self._name_to_embedding_slices[key]


class FeatureFactoryFromEmbeddings(FeatureFactory):
    """Makes slots over embeddings that exist already; the arguments are those of the table."""

    def __init__(
        self,
        name_to_embeddings: Mapping[str, tf.Tensor],
        name_to_embedding_slices: Mapping[str, tf.Tensor],
    ) -> None:
        super().__init__()
        self._table = EmbeddingFeatureEmbTable(name_to_embeddings, name_to_embedding_slices)

    def create_feature_slot(self, config: FeatureSlotConfig) -> FeatureSlot:
        return FeatureSlot(self._table, config)


class _FakeFeatureEmbTable(FeatureEmbTable):
    """Stands behind slots of a model that takes its embeddings from layouts."""

    def embedding_lookup(self, feature_name: str, start: int | None, end: int | None) -> None:
        return None


class EmbeddingLayoutFactory(FeatureFactory):
    """Hands out layouts: tensors for the dense network that one op has made of all embeddings.

    Args:
        hash_table: Takes the gradients of layouts.
        layout_embeddings: Each layout, a tensor or several.
        auxiliary_bundle: What the lookup kept for the gradients; its `req_time`, if there is one,
            is that of the examples.
        async_function_mgr: Moves the push of gradients to the next step.
        async_push: Whether it does.
    """

    def __init__(
        self,
        hash_table: Any,
        layout_embeddings: Mapping[str, Any],
        auxiliary_bundle: Mapping[str, Any] | None = None,
        async_function_mgr: Any = None,
        async_push: bool = False,
    ) -> None:
        super().__init__()
        self._hash_table = hash_table
        self._layout_embeddings = dict(layout_embeddings)
        self._auxiliary_bundle = auxiliary_bundle
        self._async_function_mgr = async_function_mgr
        self._async_push = async_push

    def create_feature_slot(self, config: FeatureSlotConfig) -> FeatureSlot:
        """Returns a slot whose lookups give None; embeddings come from the layouts."""
        return FeatureSlot(_FakeFeatureEmbTable(), config)

    def get_layout(self, layout: str) -> Any:
        """Returns a layout, a tensor or several.

        Raises:
            AssertionError: There is none of this name.
        """
        if layout not in self._layout_embeddings:
            raise AssertionError(
                f"There is no layout '{layout}'; there are {_quote(self._layout_embeddings)}."
            )
        return self._layout_embeddings[layout]

    def flattened_layout(self) -> list[tf.Tensor]:
        """Returns all tensors of all layouts, in the order of the layouts' names."""
        return tf.nest.flatten(self._layout_embeddings)

    def apply_gradients(
        self,
        grads_and_vars: GradsAndVars,
        req_time: tf.Tensor | None = None,
        grad_scale: Any = None,
    ) -> Any:
        """Sends the gradients of the tensors of `flattened_layout` to the tables.

        A `req_time` of None is that of the auxiliary bundle.
        """
        if req_time is None and self._auxiliary_bundle is not None:
            req_time = self._auxiliary_bundle.get("req_time")
        return self._hash_table.apply_gradients(
            list(grads_and_vars),
            tf.compat.v1.train.get_or_create_global_step(),
            req_time=req_time,
            auxiliary_bundle=self._auxiliary_bundle,
            async_function_mgr=self._async_function_mgr,
            async_push=self._async_push,
            grad_scale=grad_scale,
        )


def _quote(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "none"
