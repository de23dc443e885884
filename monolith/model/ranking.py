"""The way to write a ranking model: features with embeddings, a network, heads.

A model declares each feature that has embeddings with `create_embedding_feature_column`, looks up
slices of their rows with `lookup_embedding_slice`, and returns an `EstimatorSpec`.

Example:
    >>> class Ranking(MonolithModel):
    ...     def input_fn(self, mode):
    ...         ids = tf.ragged.constant([[1], [2]], dtype=tf.int64)
    ...         return tf.data.Dataset.from_tensors({"user": ids, "label": [1.0, 0.0]})
    ...     def model_fn(self, features, mode):
    ...         self.create_embedding_feature_column("user")
    ...         logits = self.lookup_embedding_slice(["user"], "bias", 1, out_type="concat")
    ...         loss, pred = get_sigmoid_loss_and_pred("ctr", logits, features["label"], 2)
    ...         optimizer = tf.compat.v1.train.AdagradOptimizer(0.05)
    ...         return EstimatorSpec(features["label"], pred, "ctr", loss, optimizer)
    >>> Ranking().clip_norm
    1000.0
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.core.export_marker import monolith_export
from monolith.core.hyperparams import InstantiableParams
from monolith.embedding import entry
from monolith.embedding.features import combiners
from monolith.embedding.features.combiners import require_ragged_ids
from monolith.embedding.features.slots import (
    DEFAULT_EXPIRE_TIME,
    FeatureColumn,
    FeatureSlice,
    FeatureSlot,
    FeatureSlotConfig,
)
from monolith.model import lookup as model_lookup
from monolith.model.base import DeviceCtxType, MonolithBaseModel, MonolithDeviceCtx
from monolith.model.heads import EstimatorSpec
from monolith.model.losses import get_sigmoid_loss_and_pred, get_softmax_loss_and_pred
from monolith.proto import example_pb2

__all__ = [
    "DeviceCtxType",
    "EstimatorSpec",
    "MonolithBaseModel",
    "MonolithDeviceCtx",
    "MonolithModel",
    "get_sigmoid_loss_and_pred",
    "get_softmax_loss_and_pred",
]

_SLOT_IN_NAME = re.compile(r"(?:fc_)?slot_(\d+)")
_SIGNATURE_BITS = 48  # An id holds the number of its slot above these.


@monolith_export
class MonolithModel(MonolithBaseModel):
    """A model with embeddings, see the module.

    Args:
        params: The settings; by default those of `params()`.
    """

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the settings with their defaults; subclasses define more."""
        p = super().params()
        p.define(
            "feature_list",
            None,
            "Slot of each feature by name, a dict; or what has get_feature_name_and_slot(item).",
        )
        return p

    def __init__(self, params: InstantiableParams | None = None) -> None:
        super().__init__(type(self).params() if params is None else params)

    def clean(self) -> None:
        super().clean()
        self._column_settings: dict[str, tuple[Any, ...]] = {}
        self._expire_time: dict[str, int] = {}
        self._used_slots: set[int] = set()

    @property
    def layout_dict(self) -> dict[str, example_pb2.OutConfig]:
        """The layouts that lookups have registered, by name."""
        return self._layout_dict

    def create_embedding_feature_column(
        self,
        feature_name: str | int,
        occurrence_threshold: int | None = None,
        expire_time: int = DEFAULT_EXPIRE_TIME,
        max_seq_length: int = 0,
        shared_name: str | int | None = None,
        combiner: str | combiners.Combiner | None = None,
    ) -> FeatureColumn:
        """Declares a feature with embeddings; a second call returns the same column.

        Thresholds and expiry work on the slot that an id carries in its bits 48 to 62, so they are
        refused for features without a slot: name the feature `slot_<number>`, give its slot in the
        param `feature_list`, or move ids to a slot with `share_slot`.

        Args:
            feature_name: Key of the ids in a batch, or the number of their slot.
            occurrence_threshold: How often an id is seen before it gets a row; None takes the
                param `default_occurrence_threshold`.
            expire_time: Days without an update after which a row is forgotten.
            max_seq_length: If positive, the first so many ids of an example are kept apart.
            shared_name: Feature or slot whose embeddings this one uses as well; it need not have a
                column of its own.
            combiner: What to make of several ids of one example: 'reduce_sum', 'reduce_mean',
                'first_n' (of `max_seq_length`), or a combiner.
                None is 'first_n' if there is a `max_seq_length`, else 'reduce_sum'.

        Raises:
            ConfigError: The settings contradict each other, or those of an earlier call.
        """
        name, slot = self._get_name_and_slot(feature_name)
        settings = (occurrence_threshold, expire_time, max_seq_length, shared_name, str(combiner))
        if name in self.fc_dict:
            if self._column_settings[name] != settings:
                raise errors.ConfigError(
                    f"Feature '{name}' was declared before with other settings; declare it once, "
                    "and give the ids to the model under two names to use them in two ways."
                )
            return self.fc_dict[name]
        made = model_lookup.make_combiner(name, combiner, max_seq_length)
        if shared_name is None:
            feature_slot = self._create_slot(name, slot, occurrence_threshold, expire_time)
        else:
            feature_slot = self._get_shared_slot(
                name, shared_name, occurrence_threshold, expire_time
            )
        self.fc_dict[name] = FeatureColumn(feature_slot, name, made)
        self._column_settings[name] = settings
        return self.fc_dict[name]

    def lookup_embedding_slice(
        self,
        features: Sequence[Any] | Mapping[model_lookup.FeatureKey, int],
        slice_name: str,
        slice_dim: int | None = None,
        initializer: entry.Initializer | None = None,
        optimizer: entry.Optimizer | None = None,
        compressor: entry.Compressor | None = None,
        learning_rate_fn: Any = None,
        group_out_type: str = "add_n",
        out_type: str | None = None,
    ) -> Any:
        """Looks up a slice of the rows of features.

        The first lookup of a slice adds it to the rows of the slot; others of the same name, for
        features of the same slot, return the same numbers.

        Args:
            features: Features (names, slots or columns) that all have `slice_dim`; pairs
                `(feature, dim)`, or a dict of them; or groups, lists of features, each of which
                becomes one tensor.
            slice_name: Of the slice.
            slice_dim: Its width, where `features` does not say it.
            initializer: Of the slice; None takes the slot's.
            optimizer: Of the slice; None takes the slot's, Adagrad.
            compressor: Of the slice when served; None takes the slot's.
            learning_rate_fn: Of the slice; None takes the optimizer's learning rate.
            group_out_type: What becomes of a group: 'add_n', or 'concat' along axis 1.
            out_type: None gives a list of tensors; 'concat' and 'stack' (both along axis 1) and
                'add_n' (also 'addn') make one of them.

        Returns:
            Tensors `[batch, dim]`, or `[batch, max_seq_length, dim]` for sequences; one or a list.

        Raises:
            ValueError: `features` is of another form, or groups are used with fused layouts.
            ConfigError: A feature is not declared, or a slice has another dim already.
        """
        if out_type not in model_lookup.OUT_TYPES:
            raise errors.ConfigError(
                f"out_type must be None, 'concat', 'stack' or 'add_n', got {out_type!r}."
            )
        groups = [
            [(self._get_column(key), dim) for key, dim in group]
            for group in model_lookup.parse_features(features, slice_dim)
        ]
        settings = (initializer, optimizer, compressor, learning_rate_fn)
        looked_up = [
            [(column, self._get_slice(column, slice_name, dim, settings)) for column, dim in group]
            for group in groups
        ]
        is_grouped = model_lookup.has_groups(features)
        if self.is_fused_layout() and is_grouped:
            raise ValueError("group pool is not support when fused_layout")
        if not is_grouped:
            flat = [pair for group in looked_up for pair in group]
            shapes = model_lookup.get_shapes(flat, out_type)
            name = f"{slice_name}_{model_lookup.hash_features(features)}"
            name = self.add_layout(name, flat, out_type, shapes)
            if self.is_fused_layout():
                return self.ctx.layout_factory.get_layout(name)
        tensors = [
            model_lookup.join([column.embedding_lookup(s) for column, s in group], group_out_type)
            if is_grouped
            else group[0][0].embedding_lookup(group[0][1])
            for group in looked_up
        ]
        return tensors if out_type is None else model_lookup.join(tensors, out_type)

    def add_layout(
        self,
        name: str,
        slice_list: Sequence[tuple[FeatureColumn, FeatureSlice]],
        out_type: str | None,
        shape_list: Sequence[Sequence[int]],
    ) -> str:
        """Registers how slices are to be laid out when one op makes all tensors of the network.

        Args:
            name: Of the layout.
            slice_list: Columns and slices of their slots, in order.
            out_type: As in `lookup_embedding_slice`.
            shape_list: Shapes of the tensors; the first dimension, the batch, becomes -1.

        Returns:
            The name, with a number if another layout has it: two lookups of the same features in
            different order, or with different `out_type`, have a layout each.
        """
        config = example_pb2.OutConfig(out_type=model_lookup.OUT_TYPES[out_type])
        for column, feature_slice in slice_list:
            config.slice_configs.add(
                feature_name=column.feature_name, start=feature_slice.start, end=feature_slice.end
            )
        for shape in shape_list:
            config.shape.add(dims=[-1, *shape[1:]])
        known = self._layout_dict
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(1)))
        free = next(n for n in names if n not in known or known[n] == config)
        known[free] = config
        return free

    def share_slot(
        self,
        features: Mapping[str, Any] | None = None,
        share_meta: Mapping[str, tuple[bool, int]] | None = None,
        variant_type: str = "example",
        suffix: str = "share",
    ) -> dict[str, Any]:
        """Moves the ids of features to other slots; for `input_fn`, in `Dataset.map`.

        Args:
            features: A batch, with ragged ids.
            share_meta: For each feature whether to replace its ids, instead of adding them as
                `<feature>_<suffix>`, and the slot.
            variant_type: How a batch is encoded; only parsed ones, 'example', can be used.
            suffix: See `share_meta`.

        Returns:
            The batch with the moved ids; a feature that is not replaced has a name of its own.

        Raises:
            ConfigError: The batch is not parsed, or does not have a feature.
        """
        if features is None or variant_type != "example":
            raise errors.ConfigError(
                "share_slot needs a parsed batch, a dict of features; call it in Dataset.map after "
                "parsing."
            )
        shared = dict(features)
        for name, (inplace, slot) in (share_meta or {}).items():
            require_ragged_ids(name, features.get(name))
            new_name = name if inplace else f"{name}_{suffix}"
            signature = tf.bitwise.bitwise_and(features[name].values, (1 << _SIGNATURE_BITS) - 1)
            moved = tf.bitwise.bitwise_or(signature, slot << _SIGNATURE_BITS)
            shared[new_name] = features[name].with_values(moved)
            self._share_slot_mapping[new_name] = slot
        return shared

    def _get_name_and_slot(self, key: model_lookup.FeatureKey) -> tuple[str, int | None]:
        """Returns the name of a feature and its slot; None: it has none."""
        if isinstance(key, FeatureColumn):
            key = key.feature_name
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise errors.ConfigError(
                f"A feature is called by its name, its slot or its column, got {key!r}."
            )
        listed = model_lookup.find_in_feature_list(self.p.feature_list, key)
        if listed is not None:
            return listed
        if isinstance(key, int):
            return f"fc_slot_{key}", key
        if key in self._share_slot_mapping:
            return key, self._share_slot_mapping[key]
        match = _SLOT_IN_NAME.fullmatch(key)
        return key, int(match[1]) if match else None

    def _create_slot(
        self, name: str, slot: int | None, occurrence_threshold: int | None, expire_time: int
    ) -> FeatureSlot:
        threshold = occurrence_threshold
        if threshold is None:
            threshold = self.p.default_occurrence_threshold or 0
        if slot is None and (threshold or expire_time != DEFAULT_EXPIRE_TIME):
            raise errors.ConfigError(
                f"Feature '{name}' has occurrence_threshold {threshold} and expire_time "
                f"{expire_time}, which work on the slot that an id carries, but it has no slot: "
                f"call the feature 'slot_<number>', give its slot as feature_list={{'{name}': "
                "<number>}, or move its ids to a slot with share_slot."
            )
        if self.p.train.use_gpu_emb_table:
            raise errors.ConfigError(
                "`train.use_gpu_emb_table` asks for tables on a GPU, which this package does not "
                "have; set it to False."
            )
        if slot is None:
            # Any number that no other feature has: a slot of the same number that comes later
            # brings settings of its own, and this one has none.
            slot = next(n for n in itertools.count(1) if n not in self._used_slots)
        config = FeatureSlotConfig(
            name=name,
            has_bias=False,
            slot_id=slot,
            occurrence_threshold=threshold,
            expire_time=expire_time,
        )
        self.fs_dict[name] = self.ctx.create_feature_slot(config)
        self._occurrence_threshold[name] = threshold
        self._expire_time[name] = expire_time
        self._used_slots.add(slot)
        return self.fs_dict[name]

    def _get_shared_slot(
        self,
        name: str,
        shared_name: str | int,
        occurrence_threshold: int | None,
        expire_time: int,
    ) -> FeatureSlot:
        owner, slot = self._get_name_and_slot(shared_name)
        if owner in self.fc_dict:
            owner = self.fc_dict[owner].feature_slot.name
        if owner not in self.fs_dict:
            try:
                return self._create_slot(owner, slot, occurrence_threshold, expire_time)
            except NameError as e:
                raise errors.ConfigError(
                    f"{name} shared embedding with {owner}, so {owner} should create first! {e}"
                ) from e
        threshold, expire = self._occurrence_threshold[owner], self._expire_time[owner]
        if occurrence_threshold not in (None, threshold) or expire_time not in (
            DEFAULT_EXPIRE_TIME,
            expire,
        ):
            raise errors.ConfigError(
                f"Feature '{name}' shares the slot '{owner}', which has occurrence_threshold "
                f"{threshold} and expire_time {expire}; leave them out here, they belong to the "
                "slot."
            )
        return self.fs_dict[owner]

    def _get_column(self, key: model_lookup.FeatureKey) -> FeatureColumn:
        name, _ = self._get_name_and_slot(key)
        if name not in self.fc_dict:
            declared = ", ".join(f"'{known}'" for known in sorted(self.fc_dict)) or "none"
            raise errors.ConfigError(
                f"Feature '{name}' is looked up but not declared; call "
                f"create_embedding_feature_column('{name}') before. Declared are: {declared}."
            )
        return self.fc_dict[name]

    def _get_slice(
        self,
        column: FeatureColumn,
        slice_name: str,
        dim: int,
        settings: tuple[Any, ...],
    ) -> FeatureSlice:
        slot = column.feature_slot
        slices = self.slice_dict.setdefault(slot.name, {})
        if slice_name not in slices:
            slices[slice_name] = slot.add_feature_slice(dim, *settings)
        known = slices[slice_name]
        known_dim = known.end - known.start
        if known_dim != dim:
            raise errors.ConfigError(
                f"Slice '{slice_name}' of slot '{slot.name}' has dim {known_dim}, but "
                f"feature '{column.feature_name}' is looked up with dim {dim}; use another "
                "slice_name, or the same dim."
            )
        return known
