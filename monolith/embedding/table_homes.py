"""Where the rows of an `ml.Table` live: in the process, or in the sessions of a graph.

`ProcessHome` owns the native table of a table that was made eagerly, and frees it. `GraphHome`
makes one of `monolith.embedding.tables`, which the session owns and checkpoints of the graph hold.
Both answer the same questions, so that `Table` need not ask where it is.

Example:
    >>> from monolith.embedding import optimizers
    >>> home = ProcessHome(TableConfig("scores", 1, optimizers.SGD(0.5)))
    >>> int(home.count()), home.read_learning_rate().numpy().tolist()
    (0, [0.5])
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.table_config import TableConfig
from monolith.embedding.table_exports import RowsInCheckpoints
from monolith.embedding.table_resource import TableResource, make_filter
from monolith.embedding.tables import single
from monolith.embedding.tables.stats import TableStats, read_stats
from monolith.graph import devices
from monolith.native import ops

# What writes the files of a part, given the path that they begin with.
Writer = Callable[[str], Any]

ROWS = "rows"
COUNTS = "counts"  # Of ids that have no row yet.


class ProcessHome:
    """A native table that lives as long as this object.

    Attributes:
        handle: The handle of the table.
        step: Counts updates, for schedules and whatever else needs it; None if nothing does.
    """

    def __init__(self, config: TableConfig) -> None:
        self._resource = TableResource(config)
        self._config = config
        self._in_checkpoints: RowsInCheckpoints | None = None
        self.handle = self._resource.resource_handle
        self.step: tf.Variable | None = None
        if config.needs_steps:
            with tf.device(devices.cpu_here()):
                self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")
        rate = config.learning_rate
        self._rate = rate if callable(rate) else tf.constant([rate], tf.float32)

    def read_learning_rate(self) -> tf.Tensor:
        """Returns today's rate, float32 [1]."""
        if not callable(self._rate):
            return self._rate
        return tf.reshape(tf.cast(self._rate(), tf.float32), [1])

    def count(self) -> Any:
        """Returns the number of rows."""
        return ops.monolith_hash_table_size(self.handle)

    def read_stats(self) -> TableStats:
        """Returns the numbers of the table, each a vector of one element."""
        return read_stats(self.handle)

    def count_updates(self) -> int:
        """Returns how many updates there were, 0 if nobody needs to know."""
        return 0 if self.step is None else int(self.step.numpy())

    def get_writers(self) -> dict[str, Writer]:
        """Returns what writes each part of the table to files."""
        writers: dict[str, Writer] = {ROWS: self._resource.save}
        if self._config.admit_after:
            hash_filter = self._resource.hash_filter
            writers[COUNTS] = lambda basename: ops.monolith_hash_filter_save(hash_filter, basename)
        return writers

    def restore(self, basenames: Mapping[str, str], num_updates: int) -> None:
        """Replaces all rows, and the counts if there are any; all or nothing."""
        counts = basenames.get(COUNTS) if self._config.admit_after else None
        if counts is not None:
            # Into a filter that nobody uses, first: it shows whether the files are whole.
            trial = make_filter(self._config, f"trial_{uuid.uuid4().hex}")
            try:
                ops.monolith_hash_filter_restore(trial, counts)
            finally:
                tf.raw_ops.DestroyResourceOp(resource=trial)
        ops.monolith_hash_table_restore(self.handle, basenames[ROWS])
        if counts is not None:
            ops.monolith_hash_filter_restore(self._resource.hash_filter, counts)
        if self.step is not None:
            self.step.assign(num_updates)

    def get_trackables(self, save_type: str, table: Any) -> dict[str, Any]:
        """Returns what a checkpoint or a SavedModel of TensorFlow holds of the table."""
        if save_type == "savedmodel":
            return {"resource": self._resource}
        if self._in_checkpoints is None:
            self._in_checkpoints = RowsInCheckpoints(table)
        return {"rows": self._in_checkpoints}


class GraphHome:
    """A table in the default graph, which lives in its sessions.

    Attributes:
        handle: The handle of the table, a tensor of the graph.
    """

    def __init__(self, config: TableConfig) -> None:
        self._config = config
        self._filter = make_filter(config, f"_{config.name}") if config.admit_after else None
        instance = entry.HashTableConfigInstance(config.make_proto(), [config.learning_rate])
        try:
            self._table = single.hash_table_from_config(
                instance, self._filter, name_suffix=config.name
            )
        except ValueError as e:
            raise errors.ConfigError(
                f"The graph has a table named '{config.name}' already; use that, or another name."
            ) from e
        self.handle = self._table.table
        # Made now: a graph may be finalized when they are needed.
        self._basename = tf.compat.v1.placeholder(tf.string, [])
        self._size = self._table.size()
        self._stats = read_stats(self._table.table)
        self._calls = {ROWS: (self._table.save(self._basename).as_op(), self._restore_rows())}
        if self._filter is not None:
            self._calls[COUNTS] = (
                ops.monolith_hash_filter_save(self._filter, self._basename).op,
                ops.monolith_hash_filter_restore(self._filter, self._basename).op,
            )

    @property
    def step(self) -> Any:
        """The global step of the graph, None if it has none."""
        return tf.compat.v1.train.get_global_step()

    def read_learning_rate(self) -> tf.Tensor:
        """Returns the rate of the step, float32 [1]."""
        return self._table.learning_rate_tensor

    def count(self) -> Any:
        """Returns the number of rows in the default session."""
        return self._get_session("len").run(self._size)

    def read_stats(self) -> TableStats:
        """Returns the numbers of the table in the default session."""
        return self._get_session("memory").run(self._stats)

    def count_updates(self) -> int:
        """Returns 0: the global step counts."""
        return 0

    def get_writers(self) -> dict[str, Writer]:
        """Returns what writes each part of the table to files."""
        session = self._get_session("save")
        return {part: self._make_writer(session, save) for part, (save, _) in self._calls.items()}

    def restore(self, basenames: Mapping[str, str], num_updates: int) -> None:
        """Replaces all rows, and the counts if there are any."""
        del num_updates
        session = self._get_session("restore")
        for part, (_, restore) in self._calls.items():
            if part in basenames:
                session.run(restore, {self._basename: basenames[part]})

    def get_trackables(self, save_type: str, table: Any) -> dict[str, Any]:
        """Returns nothing: checkpoints of the graph have listeners for its tables."""
        del save_type, table
        return {}

    def _restore_rows(self) -> tf.Operation:
        return self._table.restore(self._basename).as_op()

    def _make_writer(self, session: tf.compat.v1.Session, save: tf.Operation) -> Writer:
        return lambda basename: session.run(save, {self._basename: basename})

    def _get_session(self, method: str) -> tf.compat.v1.Session:
        session = tf.compat.v1.get_default_session()
        if session is None:
            raise errors.ConfigError(
                f"Table '{self._config.name}' lives in sessions of its graph, so `{method}` needs "
                "a default one: call it inside of `with session.as_default():`."
            )
        return session


@contextlib.contextmanager
def use_as_global_step(step: Any) -> Iterator[None]:
    """Lets schedules, which ask for the global step, count with `step`, unless it is None.

    Example:
        >>> with use_as_global_step(tf.Variable(7, dtype=tf.int64)):
        ...     int(tf.compat.v1.train.get_global_step())
        7
    """
    if step is None:
        yield
        return
    steps = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.GLOBAL_STEP)
    others = list(steps)
    steps[:] = [step]
    try:
        yield
    finally:
        steps[:] = others
