"""`ml.keras.Embedding`: in a Keras model, a row for every id, made when it is first trained.

There is no vocabulary to give and no hashing into buckets: ids are any 64-bit integers, or strings.
The rows are trained by `fit` with the optimizer of the layer, saved with the model, and exported
with it.

Example:
    >>> model = keras.Sequential([
    ...     keras.Input((None,), dtype="int64"),
    ...     Embedding(8, optimizer=optimizers.Adagrad(0.1), combiner="mean"),
    ...     keras.layers.Dense(1),
    ... ])
    >>> model.compile(optimizer="adam", loss="mse")
    >>> ids, labels = np.array([[7, 8], [9, -1]]), np.array([0.0, 1.0])
    >>> _ = model.fit(ids, labels, verbose=0)
    >>> sorted(model.layers[0].table.ids().tolist())
    [-1, 7, 8, 9]
"""

from collections.abc import Mapping
from typing import Any

import keras  # type: ignore[import-untyped]
import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from monolith import errors
from monolith.data import string_ids
from monolith.embedding import optimizers, table_ids, table_in_keras
from monolith.embedding.table import Table
from monolith.keras.combining import COMBINERS, join, to_bags, to_single_ids
from monolith.keras.rows import Rows

__all__ = ["Embedding", "np", "optimizers"]

# Settings of keras.layers.Embedding, which those who come from there will write.
_OF_KERAS = (
    "input_dim",
    "output_dim",
    "embeddings_initializer",
    "embeddings_regularizer",
    "embeddings_constraint",
)
_WHOLE_FLOATS = {tf.float16: 2**11, tf.bfloat16: 2**8, tf.float32: 2**24, tf.float64: 2**53}


@keras.saving.register_keras_serializable(package="monolith")
class Embedding(keras.layers.Layer):
    """Looks up rows of ids, and combines those of one example.

    The input is a tensor of ids of any shape, dense, ragged or sparse; a list of such tensors,
    whose ids are of one kind; or a dict of them, where each feature has rows of its own: user 7
    and item 7 have nothing in common. However many there are, they are looked up by one op.

    Args:
        dim: Width of the rows.
        optimizer: How rows are updated, such as `ml.Adagrad(0.1)`; None is `ml.Adagrad(0.05)`.
            The optimizer of `compile` does nothing with them, nor do its clipping and weight decay.
        combiner: What becomes of several ids of one example, along the last dimension: their "sum",
            "mean", or "sqrtn", the sum by the root of their number; None keeps each row.
        initializer: What a new row starts with: "uniform" draws from -0.05 to 0.05, "zeros",
            "ones", a number, or one of `monolith.embedding.entry`. An id without a row reads as
            zeros.
        admit_after: How often an id is seen in steps before the one that gives it a row, at most
            15. Of equal ids in a batch each counts, and none makes the row.
        expire_after_days: Days without an update after which a row is dropped; None keeps it.
        compressor: How rows are stored in an exported model: "fp32", "fp16", "fixed_r8", "one_bit".
        storage: How their values are kept in memory while they train: "float32", "float16" or
            "int8".
        mask_zero: Whether id 0 is padding: it has no row, counts for nothing in a combiner, and
            without one a mask is passed on to the layers that follow.
        share: Features of a dict that use the rows of another one: `{"history": "item"}`.
        table: An `ml.Table`, or another `Embedding`, whose rows are used; the settings of rows are
            given there then.
        **kwargs: `name`, `dtype`, `trainable` and whatever else layers take.

    Raises:
        ConfigError: A setting is out of its range.
    """

    def __init__(
        self,
        dim: int | None = None,
        optimizer: Any = None,
        combiner: str | None = None,
        *,
        initializer: Any = "uniform",
        admit_after: int = 0,
        expire_after_days: int | None = None,
        compressor: Any = "fp32",
        storage: str = "float32",
        mask_zero: bool = False,
        share: Mapping[str, str] | None = None,
        table: "Table | Embedding | Rows | None" = None,
        **kwargs: Any,
    ) -> None:
        _refuse_settings_of_keras(kwargs)
        # Ids are not cast to the type that the layer computes in.
        super().__init__(autocast=False, **kwargs)
        if combiner is not None and combiner not in COMBINERS:
            raise errors.ConfigError(
                f"`combiner` of Embedding must be None or one of {COMBINERS}, got {combiner!r}."
            )
        if self._row_dtype == "float16":
            raise errors.ConfigError(
                f"Embedding '{self.name}' cannot compute in float16, whose small gradients need a "
                "scaled loss; use the policy 'mixed_bfloat16', or dtype='float32'."
            )
        self.combiner = combiner
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.supports_jit = False
        self.share = dict(share or {})
        settings = {
            "optimizer": optimizer,
            "initializer": initializer,
            "admit_after": admit_after,
            "expire_after_days": expire_after_days,
            "compressor": compressor,
            "storage": storage,
        }
        self.rows = self._find_rows(dim, settings, table)
        self.rows.users.add(self)
        if not self.trainable:
            self.rows.trainable = False
        self._has_seen_ragged = False
        self.built = True

    @property
    def table(self) -> Table:
        """The table that holds the rows."""
        return self.rows.table

    @property
    def dim(self) -> int:
        """Width of the rows."""
        return self.table.dim

    @property
    def compute_dtype(self) -> str:
        """The type of ids: a `Sequential` model without an `Input` makes its inputs of it.

        As float32, which it would be, ids above 2^24 would be rounded, and several become one.
        """
        return "int64"

    @property
    def variable_dtype(self) -> str:
        """The same: nothing of the layer is cast from one to the other."""
        return self.compute_dtype

    @property
    def _row_dtype(self) -> str:
        return self.dtype_policy.compute_dtype

    def row_ids(self, feature: str, ids: Any) -> Any:
        """Returns the ids under which rows of a feature of a dict lie in `table`.

        Args:
            feature: The name of the feature.
            ids: Its ids.
        """
        salt = _salt(self.share.get(feature, feature))
        return tf.bitwise.bitwise_xor(table_ids.to_ids(ids), salt)

    def call(self, inputs: Any) -> Any:
        self._check_place()
        if not isinstance(inputs, Mapping | list | tuple):
            return self._look_up([inputs], [0])[0]
        if not inputs:
            raise errors.ConfigError(f"Embedding '{self.name}' was called without any feature.")
        if not isinstance(inputs, Mapping):
            return self._look_up(list(inputs), [0] * len(inputs))
        names = list(inputs)
        salts = [_salt(self.share.get(name, name)) for name in names]
        found = self._look_up([inputs[name] for name in names], salts)
        return dict(zip(names, found, strict=True))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        if not self.mask_zero or self.combiner is not None:
            return None
        return keras.tree.map_structure(
            lambda ids: keras.ops.not_equal(ids, 0) if _is_dense(ids) else None, inputs
        )

    def compute_output_spec(self, inputs: Any) -> Any:
        flat = keras.tree.flatten(inputs)
        self._has_seen_ragged |= any(getattr(each, "ragged", False) for each in flat)
        return keras.tree.map_structure(self._make_spec, inputs)

    def get_config(self) -> dict[str, Any]:
        # The object itself: Keras finds out by its identity which layers share their rows.
        return {
            **super().get_config(),
            "combiner": self.combiner,
            "mask_zero": self.mask_zero,
            "share": self.share,
            "table": self.rows,
            "shares_table": len(self.rows.users) > 1,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Embedding":
        config = dict(config)
        rows, is_shared = config.pop("table"), config.pop("shares_table")
        if isinstance(rows, dict) and "shared_object_id" in rows:
            is_shared = False  # Keras gives all of them the same one.
        if is_shared:
            raise errors.ConfigError(
                f"Embedding '{config.get('name')}' shares its table with other layers, which "
                "clone_model and from_config, one layer at a time, cannot know; use one layer in "
                "all places, or save the model and load it."
            )
        if isinstance(rows, Rows):  # A clone has rows of its own.
            rows = Rows.from_config(rows.get_config())
        else:
            rows = keras.saving.deserialize_keras_object(rows)
        return cls(table=rows, **config)

    def _find_rows(self, dim: int | None, settings: dict[str, Any], table: Any) -> Rows:
        if table is None:
            if dim is None:
                raise errors.ConfigError("Embedding needs `dim`, the width of its rows.")
            if isinstance(settings["optimizer"], int):
                raise errors.ConfigError(
                    f"Embedding has no vocabulary to give: Embedding({settings['optimizer']}) in "
                    f"place of Embedding({dim}, {settings['optimizer']})."
                )
            return Rows.of(Table(self.name, dim, **settings))
        defaults = {
            "initializer": "uniform",
            "admit_after": 0,
            "compressor": "fp32",
            "storage": "float32",
        }
        given = [name for name, value in settings.items() if value != defaults.get(name)]
        if given:
            raise errors.ConfigError(
                f"Embedding '{self.name}' uses the rows of {table!r}, so `{given[0]}` is set there."
            )
        if isinstance(table, Table):
            table = Rows.of(table)
        elif isinstance(table, Embedding):
            table = table.rows
        if not isinstance(table, Rows):
            raise errors.ConfigError(
                f"`table` of Embedding must be an ml.Table or another Embedding, got {table!r}."
            )
        if dim not in (None, table.table.dim):
            raise errors.ConfigError(
                f"Embedding '{self.name}' has dim {dim}, but the rows of table "
                f"'{table.table.name}' have dim {table.table.dim}; leave `dim` out."
            )
        return table

    def _look_up(self, inputs: list[Any], salts: list[int]) -> list[Any]:
        """Returns the rows of each input, combined; `salts` tell which kind of ids it has."""
        if self.trainable:
            self.rows.check_training()
        self._check_export(inputs)
        ids = [self._to_ids(given) for given in inputs]
        if self.combiner is None or all(_is_dense(each) and each.shape.rank == 1 for each in ids):
            # A single row is its own sum and mean.
            joined = join([to_single_ids(self._flatten(each)) for each in ids], salts)
            parts = _split(self.rows.look_up(joined.flat_ids), joined.counts)
            found = [self._restore(part, each) for part, each in zip(parts, ids, strict=True)]
        else:
            bags = [to_bags(each) for each in ids]
            joined = join(bags, salts)
            rows = self.rows.look_up_bags(joined.flat_ids, joined.row_splits, self.combiner)
            parts = _split(rows, joined.counts)
            found = [each.arrange(part) for each, part in zip(bags, parts, strict=True)]
        dtype = self._row_dtype
        return found if dtype == "float32" else [tf.cast(each, dtype) for each in found]

    def _to_ids(self, given: Any) -> Any:
        """Returns ids as int64: dense, ragged, or sparse if they will be combined."""
        if isinstance(given, tf.SparseTensor):
            if self.combiner is None:
                return table_ids.to_ids(given)
            given.shape.assert_has_rank(2)
            return given.with_values(table_ids.to_ids(given.values))
        ids = table_ids.to_ids(_to_whole(given))
        if self.combiner is not None and self._has_padding(ids) and ids.shape.rank > 1:
            return tf.ragged.boolean_mask(ids, tf.not_equal(ids, 0))
        return ids

    def _flatten(self, ids: Any) -> tf.Tensor:
        if self._has_padding(ids):
            return tf.boolean_mask(ids, tf.not_equal(ids, 0))
        return table_ids.to_flat(ids)[0]

    def _restore(self, rows: tf.Tensor, ids: Any) -> Any:
        if not self._has_padding(ids):
            return table_ids.restore(rows, ids)
        shape = tf.concat([tf.shape(ids, tf.int64), [self.dim]], 0)
        restored = tf.scatter_nd(tf.where(tf.not_equal(ids, 0)), rows, shape)
        restored.set_shape(ids.shape.concatenate([self.dim]))
        return restored

    def _has_padding(self, ids: Any) -> bool:
        return self.mask_zero and _is_dense(ids) and ids.shape.rank > 0

    def _make_spec(self, ids: Any) -> keras.KerasTensor:
        shape, dim = tuple(ids.shape), self.dim
        is_ragged = bool(getattr(ids, "ragged", False) or getattr(ids, "sparse", False))
        if self.combiner is None:
            return keras.KerasTensor((*shape, dim), dtype=self._row_dtype, ragged=is_ragged)
        combined = shape[:-1] if len(shape) > 1 else shape
        is_ragged = is_ragged and len(combined) > 1
        return keras.KerasTensor((*combined, dim), dtype=self._row_dtype, ragged=is_ragged)

    def _check_export(self, inputs: list[Any]) -> None:
        is_ragged = any(isinstance(each, tf.RaggedTensor) for each in inputs)
        self._has_seen_ragged |= is_ragged
        is_padded = self._has_seen_ragged and not is_ragged and not self.mask_zero
        if is_padded and table_in_keras.is_exporting():
            raise errors.ConfigError(
                f"Embedding '{self.name}' is given ragged ids, of which export() makes dense ones, "
                "whose padding would count as an id; hand keras.export.ExportArchive a function "
                "with a tf.RaggedTensorSpec, or train with ids that are padded by 0, and "
                "mask_zero=True."
            )

    def _check_place(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(graph):
            raise errors.ConfigError(
                f"Embedding '{self.name}' cannot be compiled by XLA: leave `jit_compile=True` out "
                "of compile(), and Keras does without it."
            )
        if tf.distribute.has_strategy() and tf.distribute.get_strategy().num_replicas_in_sync > 1:
            raise errors.ConfigError(
                f"Embedding '{self.name}' cannot be used by several replicas of a tf.distribute "
                "strategy; ml.Estimator trains on several machines."
            )


def _refuse_settings_of_keras(settings: Mapping[str, Any]) -> None:
    given = next((name for name in _OF_KERAS if name in settings), None)
    if given is not None:
        raise errors.ConfigError(
            f"ml.keras.Embedding has no `{given}`, as keras.layers.Embedding has: it needs no "
            "vocabulary; `dim` is the width of its rows, `initializer` what a new one starts with, "
            "and `weight_decay` of its optimizer keeps them small, as in "
            "Embedding(dim=8, optimizer=ml.Adagrad(0.1, weight_decay=1e-4))."
        )


def _to_whole(given: Any) -> Any:
    """Returns floats as int64 if they are whole numbers, which Keras' own pipelines may make."""
    floats = given.flat_values if isinstance(given, tf.RaggedTensor) else given
    if not tf.is_tensor(floats) or floats.dtype not in _WHOLE_FLOATS:
        return given
    whole = tf.cast(floats, tf.int64)
    limit = _WHOLE_FLOATS[floats.dtype]
    is_exact = tf.reduce_all((tf.cast(whole, floats.dtype) == floats) & (tf.abs(whole) <= limit))
    problem = (
        f"Embedding was given {floats.dtype.name} that are no whole numbers of at most {limit}; "
        "give ids as integers or strings."
    )
    check = tf.debugging.Assert(is_exact, [problem])
    with tf.control_dependencies([check] if check is not None else []):
        whole = tf.identity(whole)
    return given.with_flat_values(whole) if isinstance(given, tf.RaggedTensor) else whole


def _split(rows: tf.Tensor, counts: tf.Tensor) -> list[tf.Tensor]:
    num = counts.shape[0]
    return [rows] if num == 1 else tf.split(rows, counts, num=num)


def _salt(feature: str) -> int:
    """Returns what the ids of a feature are mixed with, so that features do not meet in one table.

    64 bits that depend on nothing but the name: ids of a feature stay apart from each other for
    sure, and from those of another feature unless `id ^ other_id` is just the mix of both salts.
    """
    return int(np.uint64(string_ids.fingerprint64(feature)).astype(np.int64))


def _is_dense(ids: Any) -> bool:
    if isinstance(ids, keras.KerasTensor):
        return not (ids.sparse or ids.ragged)
    return not isinstance(ids, tf.RaggedTensor | tf.SparseTensor)
