"""A table among the variables of a Keras model.

Keras' optimizers overwrite a variable that says `overwrite_with_gradient` with its gradient, and do
nothing else with it: no learning rate, no slots, no clipping. The gradient of a table is a
`tf.IndexedSlices`, and to be overwritten with it means here: take a step of the table's own
optimizer. So a table is trained by `fit` and by any loop that applies gradients with an optimizer
of Keras, at the moment when all other variables are.

Example:
    >>> rows = Rows(Table("scores", 1, optimizers.SGD(1.0), initializer="zeros"))
    >>> optimizer = keras.optimizers.Adam(0.1)
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(rows.look_up(tf.constant([7, 7, 8], tf.int64)))
    >>> gradients = tape.gradient(loss, rows.trainable_variables)
    >>> _ = optimizer.apply_gradients(zip(gradients, rows.trainable_variables))
    >>> rows.table([7, 8]).numpy().tolist()
    [[-2.0], [-1.0]]
"""

import sys
import types
import weakref
from typing import Any

import keras  # type: ignore[import-untyped]
import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers, table_in_keras
from monolith.embedding.table import Table, make_error_of_custom_gradient
from monolith.keras import packing

_FRAMES = 5  # So deep is the question inside of an optimizer of Keras.

__all__ = ["Rows", "Snapshot", "TableVariable", "optimizers"]


class Snapshot:
    """All rows of a table at some moment, in memory: what `get_weights` gives for it."""

    def __init__(self, table: Table) -> None:
        self._name = table.name
        self._files = packing.pack(table)

    def restore(self, table: Table) -> None:
        """Replaces all rows of `table`."""
        packing.unpack(self._files, table)

    def __repr__(self) -> str:
        return f"<rows of table '{self._name}'>"


class TableVariable(keras.Variable):
    """Stands for a table wherever Keras expects a variable; its own value is a scalar 0.

    Args:
        table: The table.
    """

    def __init__(self, table: Table) -> None:
        name = table.name.replace("/", "_")
        super().__init__("zeros", shape=(), dtype="float32", autocast=False, name=name)
        self.table = table

    @property
    def handle(self) -> tf.Tensor:
        """What tapes take the gradient of."""
        return self.table.handle

    @property
    def overwrite_with_gradient(self) -> bool:
        """True: optimizers of Keras leave a table alone, but for `assign` with its gradient.

        Raises:
            ConfigError: The optimizer that asks does something with gradients that it cannot do
                with, or undo for, those of a table.
        """
        # An optimizer asks for itself, or for one around it that scales the loss.
        frame: types.FrameType | None = sys._getframe(1)
        for _ in range(_FRAMES):
            if frame is not None:
                _check_optimizer(frame.f_locals.get("self"), self.table)
                frame = frame.f_back
        return True

    def assign(self, value: Any) -> Any:
        """Takes a step with a gradient, or restores a snapshot.

        Raises:
            ConfigError: It is something else.
        """
        if isinstance(value, tf.IndexedSlices):
            self.table.apply_gradients(value)
            return value
        if isinstance(value, np.ndarray) and isinstance(value.item(), Snapshot):
            value.item().restore(self.table)
            return value
        raise errors.ConfigError(
            f"Table '{self.table.name}' cannot be assigned like a variable, and only optimizers of "
            "Keras can update it with a gradient; `table.assign(ids, rows)` writes rows."
        )

    def numpy(self) -> np.ndarray:
        """Returns all rows as one opaque value, which `assign` takes back."""
        return np.array(Snapshot(self.table), dtype=object)

    def ref(self) -> Any:
        """Is asked by `tf.custom_gradient` of a variable that is read inside.

        Raises:
            ConfigError: Always: such a function passes on gradients of variables only.
        """
        raise make_error_of_custom_gradient(self.table.name)

    def __array__(self, dtype: Any = None) -> np.ndarray:
        """Is asked by whoever writes arrays, such as Keras' old `.h5` files.

        Raises:
            ConfigError: Always: a scalar would be saved in place of the rows.
        """
        raise errors.ConfigError(
            f"The rows of table '{self.table.name}' are not one array, which is all that an .h5 "
            "file of a model holds; save it as a .keras file: model.save('model.keras')."
        )


@keras.saving.register_keras_serializable(package="monolith")
class Rows(keras.layers.Layer):
    """Owns a table for one or several layers, saves and loads its rows.

    Args:
        table: The table, or its settings as `Table.get_config` gives them.
        **kwargs: As those of any layer.
    """

    def __init__(self, table: Table | dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table if isinstance(table, Table) else Table.from_config(table)
        self.variable = TableVariable(self.table)
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.supports_jit = False
        self.built = True

    @classmethod
    def of(cls, table: Table) -> "Rows":
        """Returns the one layer that owns `table`: tapes must find one variable for it, not two."""
        rows = getattr(table, "_keras_rows", None)
        if rows is None:
            rows = cls(table, name=f"{table.name.replace('/', '_')}_rows")
            table._keras_rows = rows
        return rows

    def check_training(self) -> None:
        """Refuses a lookup in a step of training whose gradient would not reach the table.

        Raises:
            ConfigError: That is so.
        """
        step = table_in_keras.find_train_step() if self.trainable else None
        if step is None:
            return
        # Eagerly a loop is one of Python, which tapes see through.
        if not tf.executing_eagerly():
            table_in_keras.refuse_loops(self.table.name)
        model = step.f_locals["self"]
        if any(weight is self.variable for weight in model.weights):
            return  # Also who has frozen a part of the model knows of it.
        remedy = (
            "make the layer that looks it up an attribute of the model or of one of its layers, "
            "and call it outside of a keras.layers.Lambda; or set its `trainable` to False if the "
            "rows stay as they are."
        )
        if table_in_keras.is_of_keras(step):
            raise errors.ConfigError(
                f"Table '{self.table.name}' would not be trained by fit() of '{model.name}', which "
                f"does not own it; {remedy}"
            )
        table_in_keras.expect_update(self.table, step, f"apply its gradient; or {remedy}")

    def look_up(self, flat_ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of an int64 vector, `[n, dim]`."""
        return self.table.look_up(flat_ids, self.variable)

    def look_up_bags(self, flat_ids: tf.Tensor, row_splits: tf.Tensor, combiner: str) -> tf.Tensor:
        """Returns combined rows of bags of ids, `[bags, dim]`."""
        return self.table.look_up_bags(flat_ids, row_splits, combiner, self.variable)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "table": self.table.get_config()}

    def save_own_variables(self, store: Any) -> None:
        """Writes rows, optimizer state, and counts of ids that have no row yet."""
        for key, piece in packing.pack(self.table).items():
            store[key] = piece

    def load_own_variables(self, store: Any) -> None:
        """Replaces all of it by what was saved."""
        packing.unpack(store, self.table)


def _check_optimizer(optimizer: Any, table: Table) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        return
    name = type(optimizer).__name__
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or optimizer.loss_scale_factor:
        raise errors.ConfigError(
            f"{name} scales the loss, and the gradients of table '{table.name}' with it, but only "
            "unscales those of plain variables; use the policy 'mixed_bfloat16' in place of "
            "'mixed_float16', and no `loss_scale_factor`."
        )
    if optimizer.use_ema:
        raise errors.ConfigError(
            f"{name} with `use_ema` cannot average the rows of table '{table.name}'; leave it out."
        )
    if optimizer.gradient_accumulation_steps:
        raise errors.ConfigError(
            f"{name} with `gradient_accumulation_steps` cannot sum up gradients of table "
            f"'{table.name}', whose ids differ from batch to batch; leave it out, and take a "
            "larger batch."
        )
