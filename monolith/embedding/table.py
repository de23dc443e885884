"""`ml.Table`: a collisionless embedding table as a Python object that trains like a variable.

Every id owns a row, which appears when it is first trained and leaves with `expire_after_days`. An
id without a row reads as zeros. It works eagerly, in `tf.function`s, and in the graphs of
TensorFlow 1, where it is the table of the session: writes return ops to run, and `save`, `restore`
and `len` use the default session.

Each object has rows of its own, and its memory is freed when nobody has the object any more. The
name is for messages, files and the sessions of graphs; two tables of one name are two tables.

Example:
    >>> scores = Table("scores", dim=1, optimizer=optimizers.SGD(1.0), initializer="zeros")
    >>> with tf.GradientTape() as tape:
    ...     rows = scores([[7, 8], [7, 9]])  # Any shape: [2, 2, 1].
    ...     loss = tf.reduce_sum((rows - 1.0) ** 2)
    >>> scores.apply_gradients(tape.gradient(loss, scores))
    >>> len(scores), scores([7, 8, 1]).numpy().tolist()  # Id 7 came twice.
    (3, [[4.0], [2.0], [0.0]])
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager import tape as tapes
from tensorflow.python.framework import ops as framework_ops
from tensorflow.python.ops import handle_data_util, resource_variable_ops
from tensorflow.python.trackable import base as trackable

from monolith import errors
from monolith.embedding import optimizers, table_files, table_ids, table_memory
from monolith.embedding.table_config import TableConfig
from monolith.embedding.table_homes import GraphHome, ProcessHome, use_as_global_step
from monolith.embedding.table_ids import Ids
from monolith.embedding.table_in_keras import check_call
from monolith.embedding.table_memory import TableMemory
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2

_MOST_AT_A_TIME = 100_000  # Rows that are in Python's hands at once.

_look_up: Callable[..., tf.Tensor] = ops.monolith_hash_table_lookup
_EagerTensor = framework_ops.EagerTensor


class Table(trackable.Trackable):
    """A table of rows by 64-bit ids.

    Args:
        name: What messages and files call the table.
        dim: Width of the rows.
        optimizer: How rows are updated, such as `ml.Adagrad(0.1)`; None is `ml.Adagrad(0.05)`.
        initializer: What a new row starts with: "uniform", as in `keras.layers.Embedding` from
            -0.05 to 0.05, "zeros", "ones", a number, or one of `monolith.embedding.entry`. It
            counts from the first update on; before that, an id has no row and reads as zeros.
        admit_after: How often an id is seen by calls of `apply_gradients` before the one that gives
            it a row, at most 15. Of equal ids in a call each counts, and none makes the row.
        expire_after_days: Days without an update after which a row is dropped; None keeps it.
        compressor: How rows are stored in an exported model: "fp32", "fp16", "fixed_r8",
            "one_bit", or one of `monolith.embedding.entry`.
        storage: How the values of rows are kept in memory while they train: "float32", "float16",
            or "int8", a byte for each and one for their common exponent. Lookups give float32,
            the optimizer's state stays as it is, and updates are rounded at random, right on
            average.

    Attributes:
        trainable: Whether tapes watch lookups; it may be set to False to keep the rows as they are.
        num_updates: How often `apply_gradients` was called; in a function, while it was traced.

    Raises:
        ConfigError: A setting is out of its range, or the graph has a table of this name.
    """

    # With these three and `handle`, `tf.GradientTape` and `tf.gradients` take a table for a
    # variable: `tape.gradient(loss, table)`.
    trainable = True
    dtype = tf.float32
    _should_act_as_resource_variable = True

    def __init__(
        self,
        name: str,
        dim: int,
        optimizer: Any = None,
        *,
        initializer: Any = "uniform",
        admit_after: int = 0,
        expire_after_days: int | None = None,
        compressor: Any = "fp32",
        storage: str = "float32",
    ) -> None:
        self._config = TableConfig(
            name,
            dim,
            optimizers.Adagrad(0.05) if optimizer is None else optimizer,
            initializer,
            admit_after,
            expire_after_days,
            compressor,
            storage,
        )
        # A table that is made while a function is traced outlives the trace.
        with tf.init_scope():
            in_process = tf.executing_eagerly()
            self._home: ProcessHome | GraphHome = (
                ProcessHome(self._config) if in_process else GraphHome(self._config)
            )
        self._graph = None if in_process else tf.compat.v1.get_default_graph()
        self.handle = self._home.handle
        # What the branch of a tf.cond that looks nothing up has for a gradient: that of no rows.
        no_rows = handle_data_util.create_handle_data(tf.TensorShape([0, dim]), tf.float32)
        handle_data_util.set_handle_data(self.handle, no_rows)
        self.num_updates = 0

    @property
    def name(self) -> str:
        return self._config.name

    @property
    def dim(self) -> int:
        """Width of the rows."""
        return self._config.dim

    @property
    def config(self) -> TableConfig:
        """The settings."""
        return self._config

    def __repr__(self) -> str:
        return f"Table('{self.name}', dim={self.dim})"

    def __bool__(self) -> bool:
        return True  # Also without rows.

    def __call__(self, ids: Ids) -> Any:
        """Returns the rows of ids, float32, in the shape of the ids and `dim`.

        Args:
            ids: Integers of any shape and type, or strings, which are hashed as
                `ml.data.hash_strings` does it. Ragged ids give ragged rows, and so does a sparse
                matrix of ids.
        """
        is_plain = isinstance(ids, _EagerTensor) and ids.dtype is tf.int64
        if is_plain and self._graph is None and context.executing_eagerly():
            # By far the most common call from Python.
            check_call(self)
            tapes.variable_accessed(self)
            rows = _look_up(self.handle, ids, self._config.dim)
            return rows if ids.shape.rank == 1 else table_ids.restore(rows, ids)
        self.check_place()
        check_call(self)
        flat, ids = table_ids.to_flat(ids)
        return table_ids.restore(self.look_up(flat, self), ids)

    def look_up(self, flat_ids: tf.Tensor, variable: Any) -> tf.Tensor:
        """Returns the rows of an int64 vector, `[n, dim]`.

        Args:
            flat_ids: The ids.
            variable: The object with this table's `handle` that tapes will be asked for.
        """
        resource_variable_ops.variable_accessed(variable)
        return _look_up(self.handle, flat_ids, self._config.dim)

    def look_up_bags(
        self, flat_ids: tf.Tensor, row_splits: tf.Tensor, combiner: str, variable: Any
    ) -> tf.Tensor:
        """Returns combined rows of bags of ids, `[bags, dim]`.

        Args:
            flat_ids: The ids, an int64 vector.
            row_splits: Where each bag begins, and where the last one ends; int64 [bags + 1].
            combiner: "sum", "mean" or "sqrtn".
            variable: As in `look_up`.
        """
        resource_variable_ops.variable_accessed(variable)
        return ops.monolith_hash_table_lookup_bags(
            self.handle, flat_ids, row_splits, dim_size=self._config.dim, combiner=combiner
        )

    def apply_gradients(self, gradient: tf.IndexedSlices) -> Any:
        """Takes a step of the optimizer with each row that the gradient has; equal ids are summed.

        Args:
            gradient: What `tape.gradient(loss, table)`, or `tf.gradients` in a graph, gives.

        Returns:
            Nothing; in a graph the op to run.

        Raises:
            ConfigError: It is None, since the loss does not depend on rows of this table, or
                something else.
        """
        self.check_place()
        self._check_gradient(gradient)
        self.num_updates += 1
        step = self._home.step
        with use_as_global_step(step):
            rate = self._home.read_learning_rate()
            step_number = 0 if step is None else tf.cast(step, tf.int64)
            bags = _find_bags(gradient)
            if bags is not None:
                updated = ops.monolith_hash_table_optimize_bags(
                    self.handle,
                    *bags.inputs,
                    rate,
                    _now(),
                    step_number,
                    combiner=bags.get_attr("combiner"),
                )
            else:
                updated = ops.monolith_hash_table_optimize(
                    self.handle,
                    tf.cast(gradient.indices, tf.int64),
                    tf.cast(gradient.values, tf.float32),
                    rate,
                    _now(),
                    step_number,
                    enable_dedup=True,
                )
        if isinstance(step, tf.Variable) and self._graph is None:
            step.assign_add(1)
        return self._op_to_run(updated)

    def assign(self, ids: Ids, rows: Any) -> Any:
        """Overwrites rows; ids without a row get one, whatever `admit_after` says.

        Args:
            ids: As in a lookup, but not sparse. Of equal ids the last one wins.
            rows: Float32 in the shape of the ids and `dim`.

        Returns:
            Nothing; in a graph the op to run.
        """
        self.check_place()
        flat, ids = table_ids.to_flat(ids)
        rows = rows.flat_values if isinstance(rows, tf.RaggedTensor) else rows
        rows = tf.convert_to_tensor(rows, tf.float32)
        handle, now = self.handle, _now()
        # The filter counts writes, too: so often and it lets every id pass.
        for _ in range(self._config.admit_after + 1):
            handle = ops.monolith_hash_table_assign(handle, flat, rows, now)
        return self._op_to_run(handle)

    def size(self) -> tf.Tensor:
        """Returns the number of rows as a tensor, an int64 scalar."""
        self.check_place()
        return ops.monolith_hash_table_size(self.handle)

    def __len__(self) -> int:
        return int(self._home.count())

    def ids(self) -> np.ndarray:
        """Returns the ids of all rows, int64, in no order; not in a graph."""
        home = self._get_process_home("ids")
        entries: list[bytes] = []
        offset, found = tf.constant(0, tf.int64), _MOST_AT_A_TIME
        ids: list[np.ndarray] = []
        while found == _MOST_AT_A_TIME:
            offset, portion = ops.monolith_hash_table_save_as_tensor(
                home.handle, 0, 1, _MOST_AT_A_TIME, offset
            )
            entries = portion.numpy().tolist()
            found = len(entries)
            read = embedding_hash_table_pb2.EntryDump.FromString
            ids.append(np.fromiter((read(entry).id for entry in entries), np.int64, found))
        return np.concatenate(ids)

    def memory(self) -> TableMemory:
        """Returns how much memory the rows and their index take; it can be printed."""
        return table_memory.of_stats(self._home.read_stats())

    def evict(self, now: float | None = None) -> int:
        """Drops the rows that have not been updated for `expire_after_days`, and returns how many.

        This happens by itself about once a day.

        Args:
            now: Seconds since 1970; None is the clock's time.
        """
        home = self._get_process_home("evict")
        if self._config.expire_after_days is None:
            raise errors.ConfigError(
                f"Rows of table '{self.name}' do not expire; make it with `expire_after_days`."
            )
        now = time.time() if now is None else now
        _, evicted = ops.monolith_hash_table_evict(home.handle, int(now))
        return int(evicted)

    def save(self, path: str) -> None:
        """Writes all rows that have not expired, with their optimizer state, and the settings.

        Also the counts of ids that have no row yet. Whoever is interrupted leaves in `path` what
        was there before. Others may use the table meanwhile.

        Args:
            path: A directory for this table alone; it is made.

        Raises:
            DataError: It cannot be written.
        """
        settings = {"table": self._config.to_dict(), "updates": self._home.count_updates()}
        table_files.write(str(path), settings, self._home.get_writers())

    def restore(self, path: str) -> None:
        """Replaces all rows by those of a save, which may come from a table of another name.

        Counts of ids that have no row yet are taken over if both tables have them.

        Raises:
            DataError: The files are missing, damaged, or those of a table of another dim or
                optimizer; the table stays as it was.
        """
        content = table_files.read(str(path))
        saved = content.settings.get("table", {})
        if saved.get("dim") != self.dim:
            raise errors.DataError(
                f"'{path}' holds a table of dim {saved.get('dim')}, but table '{self.name}' has "
                f"dim {self.dim}."
            )
        try:
            self._home.restore(content.basenames, content.settings.get("updates", 0))
        except tf.errors.OpError as e:
            raise errors.DataError(
                f"Table '{self.name}' was not restored from '{path}': {e.message}"
            ) from e

    @classmethod
    def load(cls, path: str, name: str | None = None, optimizer: Any = None) -> "Table":
        """Makes the table that was saved in `path`.

        Args:
            path: What `save` was given.
            name: None is the name it had.
            optimizer: None is the one it had; another kind of optimizer is refused, since the
                rows hold the state of the old one.

        Raises:
            DataError: The files are missing or damaged.
            ConfigError: A learning rate was a function, and `optimizer` is not given.
        """
        settings = dict(table_files.read(str(path)).settings.get("table", {}))
        if name is not None:
            settings["name"] = name
        if optimizer is not None:
            settings["optimizer"] = optimizer
        table = cls.from_config(settings)
        table.restore(path)
        return table

    def get_config(self) -> dict[str, Any]:
        """Returns the settings as JSON can hold them."""
        return self._config.to_dict()

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Table":
        """Makes a table without rows from settings that `get_config` gave."""
        try:
            checked = TableConfig.from_dict(config)
        except (KeyError, TypeError) as e:
            raise errors.DataError(f"These are not the settings of a table: {config} ({e}).") from e
        return cls(
            checked.name,
            checked.dim,
            checked.optimizer,
            initializer=checked.initializer,
            admit_after=checked.admit_after,
            expire_after_days=checked.expire_after_days,
            compressor=checked.compressor,
            storage=checked.storage,
        )

    def check_place(self) -> None:
        """Refuses to be used elsewhere than where the table lives.

        Raises:
            ConfigError: It was made eagerly and is used in a graph, or the other way round.
        """
        if context.executing_eagerly():
            if self._graph is None:
                return
        else:
            graph = tf.compat.v1.get_default_graph()
            # A function may have any graph around it; TensorFlow itself checks what it captures.
            if graph is self._graph or graph.building_function:
                return
        made = "eagerly" if self._graph is None else "in another graph"
        raise errors.ConfigError(
            f"Table '{self.name}' was made {made}, and its rows are not here; make the table where "
            "it is used."
        )

    def ref(self) -> Any:
        """Is asked by `tf.custom_gradient` of a variable that is read inside.

        Raises:
            ConfigError: Always: such a function passes on gradients of variables only.
        """
        raise make_error_of_custom_gradient(self.name)

    @property
    def _unique_id(self) -> str:
        """Is asked by optimizers of Keras, which update variables."""
        raise errors.ConfigError(
            f"Table '{self.name}' has an optimizer of its own, and those of Keras cannot update "
            "it: call table.apply_gradients(tape.gradient(loss, table))."
        )

    def __reduce__(self) -> Any:
        raise TypeError(f"Table '{self.name}' cannot be copied or pickled; use save and load.")

    def _check_gradient(self, gradient: Any) -> None:
        if gradient is None:
            raise errors.ConfigError(
                f"There is no gradient for table '{self.name}': the loss does not depend on rows "
                "that were looked up while the tape was recording. Call the table inside of "
                "`with tf.GradientTape() as tape:`, and compute the loss from what it returns."
            )
        if not isinstance(gradient, tf.IndexedSlices):
            raise errors.ConfigError(
                f"apply_gradients of table '{self.name}' takes what tape.gradient(loss, table) "
                f"gives, a tf.IndexedSlices, got {type(gradient).__name__}."
            )

    def _op_to_run(self, handle: tf.Tensor) -> Any:
        # Eagerly it is done, and a function runs whatever it has traced.
        is_graph = not tf.executing_eagerly()
        if is_graph and not tf.compat.v1.get_default_graph().building_function:
            return handle.op
        return None

    def _get_process_home(self, method: str) -> ProcessHome:
        if not isinstance(self._home, ProcessHome) or not tf.executing_eagerly():
            raise errors.ConfigError(
                f"`{method}` of table '{self.name}' works eagerly, not in a graph."
            )
        return self._home

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        """Tells `tf.train.Checkpoint` and `tf.saved_model.save` of the rows."""
        children = super()._trackable_children(save_type, **kwargs)
        return {**children, **self._home.get_trackables(save_type, self)}

    def _write_object_proto(self, proto: Any, options: Any) -> None:
        """Is asked of what looks like a variable: in a SavedModel a table is a plain object."""
        del options
        proto.user_object.identifier = self._object_identifier
        proto.user_object.version.producer = 1
        proto.user_object.version.min_consumer = 1


def make_error_of_custom_gradient(table: str) -> errors.ConfigError:
    """Returns what is raised when a table is looked up inside of a `tf.custom_gradient`."""
    return errors.ConfigError(
        f"Table '{table}' cannot be looked up inside of keras.remat, tf.recompute_grad, or another "
        "function with a tf.custom_gradient: look the rows up before, and give them to it."
    )


def _now() -> Any:
    """Returns the seconds since 1970; in a graph those of the moment when it runs."""
    return int(time.time()) if tf.executing_eagerly() else tf.cast(tf.timestamp(), tf.int64)


def _find_bags(gradient: tf.IndexedSlices) -> tf.Operation | None:
    """Returns the op that gives each id the gradient of its bag, if that is all there is to it.

    The table takes the gradients of the bags themselves then: a row for each id, of which long
    histories have many, is never made.
    """
    if tf.executing_eagerly():
        return None
    spread, flat_ids = gradient.values.op, gradient.indices.op
    is_spread = spread.type == "MonolithHashTableLookupBagsGradient"
    # Somebody may have put other ids to the same rows.
    if not is_spread or flat_ids.type != "Reshape" or flat_ids.inputs[0] is not spread.inputs[0]:
        return None
    return spread if spread.graph is tf.compat.v1.get_default_graph() else None
