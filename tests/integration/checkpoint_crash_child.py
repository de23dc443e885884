"""Trains a small model and saves it all the time, in children of a process that imported already.

`serve` is the main loop of that process: it reads jobs from stdin, one JSON object per line, and
forks for each. Importing TensorFlow takes seconds and a fork none; nothing here may start a session
before the fork, as sessions have threads. What a child does, and how it ends, is told on stdout.

The model has a dense variable, a table, a multi table and an admission filter. All of them hold the
same two numbers at any time, the step and a tag that is never used twice, so that what is restored
can be compared with itself and with what was saved.
"""

import json
import os
import signal
import sys

import numpy as np
import tensorflow as tf

from monolith.checkpoint import failpoints
from monolith.checkpoint import saver as saving
from monolith.checkpoint.restore_hook import CheckpointRestorerHook
from monolith.embedding import entry, filters
from monolith.embedding.tables import multi as multi_hash_tables
from monolith.embedding.tables import multi_snapshots as multi
from monolith.embedding.tables import single as hash_tables
from monolith.embedding.tables import single_snapshots as single
from monolith.proto import embedding_hash_table_pb2

v1 = tf.compat.v1

DIM = 4
IDS = np.arange(1, 201)


def make_ids(tag: int) -> np.ndarray:
    """Returns the ids that the filter sees with a tag."""
    # Filters take ids that follow each other for the same.
    return np.random.default_rng(tag).integers(1 << 62, size=4)


class Model:
    """The graph, the hooks that save and restore it, and what it must hold."""

    def __init__(self, model_dir: str, **saver_settings) -> None:
        basename = os.path.join(model_dir, "model.ckpt")
        self.step = v1.train.get_or_create_global_step()
        self._new_step = v1.placeholder(tf.int64, [])
        self._tag = v1.placeholder(tf.int64, [])
        self._ids = v1.placeholder(tf.int64, [None])
        self._dense = v1.get_variable("dense", initializer=tf.zeros([64], tf.int64))
        self._table = hash_tables.test_hash_table(DIM, name_suffix="single")
        self._multi = multi_hash_tables.MultiHashTable.from_configs(
            {"multi": _make_config()}, name_suffix="multi"
        )
        thresholds = embedding_hash_table_pb2.SlotOccurrenceThresholdConfig(
            default_occurrence_threshold=1
        )
        self._filter = filters.create_hash_filter(3000, 5, thresholds.SerializeToString())

        content = tf.stack([self._new_step, self._tag])
        rows = tf.cast(tf.tile(tf.reshape(content, [1, 2]), [len(IDS), DIM // 2]), tf.float32)
        ids = tf.constant(IDS, tf.int64)
        ones = tf.ones([tf.size(self._ids), 1])
        passed = filters.intercept_gradient(self._filter, self._ids, ones)
        self._seen = tf.reshape(tf.gradients(passed, ones)[0], [-1]) > 0
        self._assign = tf.group(
            v1.assign(self.step, self._new_step),
            v1.assign(self._dense, tf.tile(content, [32])),
            self._table.assign(ids, rows).as_op(),
            self._multi.assign({"multi": (ids, rows)}).as_op(),
            self._seen,
        )
        self._rows = self._table.lookup(ids)
        self._multi_rows = self._multi.lookup({"multi": ids})["multi"]
        self._size = self._table.size()

        self.saver = saving.PartialRecoverySaver(
            sharded=True, max_to_keep=2, model_dir=model_dir, **saver_settings
        )
        v1.add_to_collection(v1.GraphKeys.SAVERS, self.saver)
        self.saver_hook = saving.NoFirstSaveCheckpointSaverHook(
            model_dir,
            save_steps=1 << 30,
            saver=self.saver,
            ignore_save_errors=True,
            listeners=[
                single.HashTableCheckpointSaverListener(basename),
                multi.MultiHashTableCheckpointSaverListener(basename),
                filters.HashFilterCheckpointSaverListener(basename, [self._filter], True),
            ],
        )
        self.restorers = [
            single.HashTableCheckpointRestorerListener(basename),
            multi.MultiHashTableCheckpointRestorerListener(basename),
            filters.HashFilterCheckpointRestorerListener(basename, [self._filter], True),
        ]
        self.hooks = [CheckpointRestorerHook(self.restorers), self.saver_hook]

    def open_session(self, model_dir: str) -> v1.train.MonitoredSession:
        # The ops that look for variables without a value take longer to make than the model does.
        nothing = tf.constant([], tf.string)
        return v1.train.MonitoredTrainingSession(
            checkpoint_dir=model_dir,
            scaffold=v1.train.Scaffold(
                ready_op=nothing, ready_for_local_init_op=nothing, local_init_op=tf.no_op()
            ),
            hooks=self.hooks,
            save_checkpoint_secs=None,
            save_summaries_steps=None,
            log_step_count_steps=None,
        )

    def train(self, session: v1.Session, step: int, tag: int) -> None:
        feeds = {self._new_step: step, self._tag: tag, self._ids: make_ids(tag)}
        session.run(self._assign, feeds)

    def read(self, session: v1.Session) -> tuple[int, int]:
        """Returns the step and the tag; raises if two parts of the model do not agree."""
        step, dense, rows, multi_rows, size = session.run(
            [self.step, self._dense, self._rows, self._multi_rows, self._size]
        )
        tag = int(dense[1])
        expected = np.tile([step, tag], (len(IDS), DIM // 2))
        np.testing.assert_array_equal(dense, np.tile([step, tag], 32), "dense")
        np.testing.assert_array_equal(rows, expected if tag else 0 * expected, "table")
        np.testing.assert_array_equal(multi_rows, expected if tag else 0 * expected, "multi table")
        assert size == (len(IDS) if tag else 0)
        # An id passes the filter from its second time on. Those of the next tag were not seen, but
        # a filter may take one for another.
        for next_tag, was_seen in ((tag, bool(tag)), (tag + 1, False)):
            seen = session.run(self._seen, {self._ids: make_ids(next_tag)})
            assert seen.all() == was_seen, f"filter: tag {tag}, of tag {next_tag} it lets {seen}"
        return int(step), tag


def _make_config() -> entry.HashTableConfigInstance:
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    config.cuckoo.SetInParent()
    segment = config.entry_config.segments.add()
    segment.dim_size = DIM
    segment.opt_config.sgd.SetInParent()
    segment.init_config.zeros.SetInParent()
    segment.comp_config.fp32.SetInParent()
    return entry.HashTableConfigInstance(config, [1.0])


def serve() -> None:
    """Forks a child for each line of stdin, one after the other."""
    _say(event="ready")
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _run(**job)
                code = 0
            except BaseException as e:
                _say(event="failed", error=repr(e))
                raise
            finally:
                sys.stderr.flush()
                os._exit(code)
        _say(event="started", pid=pid)
        _, status = os.waitpid(pid, 0)
        _say(event="ended", signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)


def _run(
    model_dir: str, first_tag: int, num_saves: int, point: str | None = None, hits: int = 1
) -> None:
    """Restores, tells what, then trains and saves; every third time without a new step.

    Args:
        model_dir: The model directory.
        first_tag: The first tag to use.
        num_saves: How often to save.
        point: Where in the protocol of a save to kill this process.
        hits: At which time that the point is reached.
    """
    left = hits

    def kill(reached: str) -> None:
        nonlocal left
        left -= reached == point
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.on_reach = kill if point else None
    with tf.Graph().as_default():
        model = Model(model_dir)
        with model.open_session(model_dir) as monitored:
            session = monitored._tf_sess()
            step, tag = model.read(session)
            _say(event="restored", step=step, tag=tag)
            for i in range(num_saves):
                step, tag = step + (i % 3 != 2), first_tag + i
                model.train(session, step, tag)
                _say(event="saving", step=step, tag=tag)
                model.saver_hook.trigger_save(session)
                _say(event="saved", step=step, tag=tag)
            model.saver_hook.timer.update_last_triggered_step(step)


def _say(**event) -> None:
    # In one piece: the process that forks and its child write to the same pipe.
    os.write(1, (json.dumps(event) + "\n").encode())


if __name__ == "__main__":
    serve()
