"""Deltas between full checkpoints: what they hold, and what a restore makes of them.

Covers monolith/checkpoint/deltas.py.
"""

import os
import pathlib
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf
from support import warm

from monolith import errors
from monolith.checkpoint import delta_chain
from monolith.checkpoint import saver as saving
from monolith.checkpoint.restore_hook import CheckpointRestorerHook
from monolith.embedding import entry
from monolith.embedding.tables import incremental
from monolith.embedding.tables import multi as multi_hash_tables
from monolith.embedding.tables import single as hash_tables
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2 as table_proto

pytestmark = pytest.mark.usefixtures("graph_mode")

ALL_IDS = np.arange(-5, 100)
DAY = 24 * 60 * 60


def make_config(expire_days):
    config = table_proto.EmbeddingHashTableConfig()
    config.cuckoo.SetInParent()
    config.slot_expire_time_config.default_expire_time = expire_days
    config.entry_config.segments.append(
        entry.CombineAsSegment(
            2, entry.ZerosInitializer(), entry.AdagradOptimizer(), entry.Fp32Compressor()
        )
    )
    return entry.HashTableConfigInstance(config, [0.1])


class Run:
    """A training in one session, with a table of each kind and a variable, all in one graph.

    It saves a full checkpoint when told to, and deltas every `delta_steps` steps.
    """

    def __init__(self, model_dir, delta_steps=1, expire_days=36500, full_steps=10**6, **settings):
        self.model_dir = str(model_dir)
        basename = os.path.join(self.model_dir, "model.ckpt")
        self.ids = tf.compat.v1.placeholder(tf.int64, [None])
        self.now = tf.compat.v1.placeholder_with_default(tf.constant(100 * DAY, tf.int64), [])
        step = tf.compat.v1.train.get_or_create_global_step()
        kernel = tf.compat.v1.get_variable("kernel", initializer=[1.0, 2.0], use_resource=True)
        config = make_config(expire_days)
        single = hash_tables.hash_table_from_config(config, name_suffix="single")
        multi = multi_hash_tables.MultiHashTable.from_configs({"user": config, "item": config})
        grads = tf.sin(tf.cast(self.ids, tf.float32)[:, None] + [0.0, 1.0])
        updated = single.apply_gradients(self.ids, grads, step, req_time=self.now)
        multi_updated = multi.apply_gradients(
            {"user": (self.ids, grads), "item": (self.ids + 1, grads)}, step, req_time=self.now
        )
        with tf.control_dependencies([updated.as_op(), multi_updated.as_op()]):
            grow = kernel.assign(kernel * 1.1)
        with tf.control_dependencies([grow]):
            self.train_op = tf.compat.v1.assign_add(step, 1)
        self.evict_op = single.evict(self.now)[1]
        self.single, self.multi = single, multi
        self.state = {
            "single": single.lookup_entry(ALL_IDS),
            "sizes": (single.size(), multi.sizes()),
            "multi": multi.lookup_entry({"user": ALL_IDS, "item": ALL_IDS}),
            "variables": (step, kernel),
        }
        self.saver = saving.PartialRecoverySaver(
            sharded=True,
            fall_back_to_older_checkpoint=settings.pop("fall_back_to_older_checkpoint", False),
        )
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, self.saver)
        self.saver_hook = saving.NoFirstSaveCheckpointSaverHook(
            self.model_dir,
            save_steps=full_steps,
            no_first_save=settings.pop("no_first_save", True),
            saver=self.saver,
            listeners=[
                hash_tables.HashTableCheckpointSaverListener(basename),
                multi_hash_tables.MultiHashTableCheckpointSaverListener(basename),
            ],
        )
        hooks = [
            CheckpointRestorerHook(
                [
                    hash_tables.HashTableCheckpointRestorerListener(basename),
                    multi_hash_tables.MultiHashTableCheckpointRestorerListener(basename),
                ]
            ),
            self.saver_hook,
        ]
        self.delta_hook = None
        if delta_steps is not None:
            self.delta_hook = incremental.IncrementalCheckpointSaverHook(
                self.saver_hook, save_steps=delta_steps, **settings
            )
            hooks.append(self.delta_hook)
        self.session = tf.compat.v1.train.MonitoredTrainingSession(
            checkpoint_dir=self.model_dir, hooks=hooks, save_checkpoint_secs=None
        )

    def train(self, ids, now=100 * DAY):
        self.session.run(self.train_op, {self.ids: list(ids), self.now: now})

    def read(self):
        """Returns all rows with optimizer state and times, and all variables."""
        state = self.session._tf_sess().run(self.state)
        return tf.nest.map_structure(lambda value: np.asarray(value).tolist(), state)

    def kill(self):
        """Ends the run without a last save."""
        self.session._tf_sess().close()


@pytest.fixture
def start(tmp_path):
    """Starts a run in a graph of its own; `start()` may be called again after `kill`."""

    def start(**settings):
        with tf.Graph().as_default():
            return Run(tmp_path, **settings)

    return start


def get_steps(tmp_path):
    """Returns the step of the newest full checkpoint, and those of its deltas."""
    base = tf.train.latest_checkpoint(str(tmp_path))
    return int(base.rpartition("-")[2]), [delta.step for delta in delta_chain.read(base)]


class TestRestore:
    def test_full_and_deltas_are_the_live_model(self, start, tmp_path):
        run = start()
        run.train(range(50))  # The first save of a session is full.
        run.train([3, 4, -5, 70])
        run.train([4, 71])
        live = run.read()
        run.kill()
        assert get_steps(tmp_path) == (1, [2, 3])

        restored = start(delta_steps=None)
        assert restored.read() == live
        restored.train([4, 99])  # And it goes on as the live one would have.
        run = start()
        run.train([4, 99])
        assert run.read() == restored.read()

    def test_delta_holds_only_touched_rows(self, start, tmp_path):
        run = start()
        run.train(range(50))
        run.train([3, 4, 3])
        run.train([7])
        # One table of each of three names: 2 ids each, then 1 id each.
        base = tf.train.latest_checkpoint(str(tmp_path))
        assert [delta.num_rows for delta in delta_chain.read(base)] == [6, 3]
        records = tf.compat.v1.io.tf_record_iterator(
            f"{base}.delta-2.assets/MonolithHashTable_single-00000-of-00001"
        )
        dumps = [table_proto.EntryDump.FromString(record) for record in records]
        assert [dump.id for dump in dumps] == [3, 4]

    def test_every_kind_of_write_is_in_the_delta(self, start, tmp_path):
        run = start()
        run.train(range(10))
        ids = np.array([1, 20])
        with run.session.graph.as_default():
            run.session.graph._unsafe_unfinalize()
            rows = np.ones([2, 2], np.float32)
            writes = [
                run.single.assign(ids, rows).as_op(),
                run.single.assign_add(ids + 2, rows).as_op(),
                run.multi.assign({"user": (ids + 4, rows)}).as_op(),
                run.multi.assign_add({"item": (ids + 5, rows)}).as_op(),
                run.multi.reinitialize("user", ids + 6)[0].as_op(),
            ]
        run.session._tf_sess().run(writes)
        run.train([])
        live = run.read()
        run.kill()
        assert get_steps(tmp_path) == (1, [2])
        assert start(delta_steps=None).read() == live

    def test_damaged_delta_is_named(self, start, tmp_path):
        run = start()
        run.train(range(10))
        run.train(range(5))
        run.kill()
        base = tf.train.latest_checkpoint(str(tmp_path))
        files = sorted(p for p in tmp_path.rglob("*") if p.is_file() and ".delta" in str(p))
        assert len(files) == 10
        for file in files:
            content = file.read_bytes()
            damaged = bytearray(content)
            damaged[len(damaged) // 2] ^= 0x10
            file.write_bytes(damaged)
            with pytest.raises(tf.errors.DataLossError) as error:
                start(delta_steps=None)
            assert str(file) in error.value.message, file
            file.write_bytes(content)
        (tmp_path / f"{os.path.basename(base)}.delta-2.index").unlink()
        with pytest.raises(tf.errors.DataLossError, match=r"delta-2\.index is missing"):
            start(delta_steps=None)

    def test_user_may_fall_back_to_what_is_not_damaged(self, start, tmp_path, caplog):
        run = start()
        run.train(range(10))
        run.train(range(5))
        live = run.read()
        run.train(range(7))
        run.kill()
        file = next(tmp_path.glob("*.delta-3.assets/MonolithHashTable_single-*"))
        content = bytearray(file.read_bytes())
        content[-10] ^= 1
        file.write_bytes(content)
        with caplog.at_level("WARNING"):
            run = start(delta_steps=None, fall_back_to_older_checkpoint=True)
        assert run.read() == live
        assert str(file) in caplog.text

    def test_unlisted_delta_is_ignored_and_removed(self, start, tmp_path):
        run = start()
        run.train(range(10))
        run.train(range(5))
        live = run.read()
        run.kill()
        base = pathlib.Path(tf.train.latest_checkpoint(str(tmp_path)))
        (tmp_path / f"{base.name}.delta-3.index").write_bytes(b"half")
        (tmp_path / f"{base.name}.delta-3_temp").mkdir()
        (tmp_path / f"{base.name}.delta-3.assets").mkdir()
        (tmp_path / f"{base.name}.delta-3.assets" / "x").write_bytes(b"half")
        assert start(delta_steps=None).read() == live
        assert start().read() == live
        assert not list(tmp_path.glob("*.delta-3*"))
        assert get_steps(tmp_path) == (1, [2])


class TestRemovedRows:
    def test_evicted_row_does_not_come_back(self, start, tmp_path):
        run = start(expire_days=10)
        run.train(range(20), now=100 * DAY)
        run.train(range(10, 20), now=105 * DAY)
        assert run.session._tf_sess().run(run.evict_op, {run.now: 112 * DAY}) == 10
        run.train([2, 12], now=112 * DAY)  # Of the evicted rows, 2 is made anew.
        live = run.read()
        run.kill()
        assert live["sizes"][0] == 11
        assert get_steps(tmp_path) == (1, [2, 3])
        restored = start(delta_steps=None, expire_days=10).read()
        assert restored["single"] == live["single"]
        assert restored["sizes"][0] == 11

    def test_expired_row_is_left_out(self, start):
        run = start(expire_days=10)
        run.train(range(20), now=100 * DAY)
        run.train([1], now=50 * DAY)  # Told late: it has expired, as a full save would say, too.
        run.kill()
        restored = start(delta_steps=None, expire_days=10).read()
        present = [i for i, dump in zip(ALL_IDS, restored["single"], strict=True) if dump]
        assert present == [i for i in range(20) if i != 1]


class TestWhatIsSaved:
    def test_overflow_saves_all(self, start, tmp_path, caplog):
        run = start(max_touched_ids=5)
        run.train(range(50))
        run.train(range(5))
        assert get_steps(tmp_path) == (1, [2])
        with caplog.at_level("WARNING"):
            run.train(range(6))
        assert "since the last save more than 5 rows of a table have changed" in caplog.text
        assert get_steps(tmp_path) == (3, [])
        run.train([1])
        assert get_steps(tmp_path) == (3, [4])
        live = run.read()
        run.kill()
        assert start(delta_steps=None).read() == live

    def test_full_save_removes_older_deltas(self, start, tmp_path):
        run = start(full_steps=3)
        for i in range(5):
            run.train(range(i, i + 10))
        live = run.read()
        run.kill()
        base, deltas = get_steps(tmp_path)
        assert deltas
        assert {p.name.partition(".delta")[0] for p in tmp_path.glob("*.delta*")} == {
            f"model.ckpt-{base}"
        }
        assert start(delta_steps=None).read() == live

    def test_first_save_of_a_session_is_full(self, start, tmp_path):
        run = start()
        run.train([1])
        run.train([2])
        run.kill()
        assert get_steps(tmp_path) == (1, [2])
        run = start()
        run.train([3])
        assert get_steps(tmp_path) == (3, [])
        run.train([4])
        assert get_steps(tmp_path) == (3, [4])

    def test_full_save_at_the_start_of_a_session_is_enough(self, start, tmp_path):
        run = start(no_first_save=False)
        assert get_steps(tmp_path) == (0, [])
        run.train([1])
        assert get_steps(tmp_path) == (0, [1])

    def test_save_on_demand_from_another_thread(self, start, tmp_path):
        run = start()
        run.train([1])
        run.train([2])
        thread = threading.Thread(target=run.saver_hook.trigger_save, args=[run.session])
        thread.start()
        thread.join()
        assert get_steps(tmp_path) == (2, [])
        run.train([3])
        assert get_steps(tmp_path) == (2, [3])

    def test_failed_delta_is_in_the_next_one(self, start, tmp_path, caplog):
        run = start()
        run.train(range(10))
        (tmp_path / "model.ckpt-1.delta-2.assets").write_text("no directory")
        run.train([1, 2])
        assert "the delta of step 2 is not saved" in caplog.text
        assert get_steps(tmp_path) == (1, [])
        assert not list(tmp_path.glob("*.delta-2*"))
        run.train([3])
        assert get_steps(tmp_path) == (1, [3])
        live = run.read()
        run.kill()
        assert start(delta_steps=None).read() == live

    def test_deleting_the_full_checkpoint_deletes_its_deltas(self, start, tmp_path):
        run = start()
        run.train([1])
        run.train([2])
        run.kill()
        saving.remove_checkpoint(str(tmp_path / "model.ckpt-1"))
        assert not list(tmp_path.glob("model.ckpt-1*"))


class TestOffByDefault:
    def test_no_touched_set_exists(self, start, tmp_path):
        run = start(delta_steps=None)
        run.train(range(10))
        session = run.session._tf_sess()
        with run.session.graph.as_default():
            run.session.graph._unsafe_unfinalize()
            for handle in (run.single.table, run.multi.handle):
                gather = ops.monolith_table_gather_touched(handle)
                with pytest.raises(tf.errors.FailedPreconditionError, match="does not remember"):
                    session.run(gather)
                forget = ops.monolith_table_forget_touched(handle)
                with pytest.raises(tf.errors.FailedPreconditionError, match="does not remember"):
                    session.run(forget)
        run.session.close()
        assert not list(tmp_path.glob("*.delta*"))

    def test_settings_are_checked(self, tmp_path):
        hook = saving.NoFirstSaveCheckpointSaverHook(str(tmp_path), save_steps=1)
        make = incremental.IncrementalCheckpointSaverHook
        with pytest.raises(errors.ConfigError, match="`save_steps` of deltas must be positive"):
            make(hook, save_steps=0)
        with pytest.raises(errors.ConfigError, match="`max_touched_ids` must be positive"):
            make(hook, save_steps=1, max_touched_ids=0)
        with pytest.raises(ValueError, match="Either every_secs or every_steps"):
            make(hook)


_KILLED_RUN = """
import os, signal, sys
sys.path.insert(0, os.path.dirname({test!r}))
import tensorflow as tf
import incremental_test
from monolith.checkpoint import failpoints
tf.compat.v1.disable_eager_execution()
run = incremental_test.Run({model_dir!r})
run.train(range(10))
run.train([1, 2])
def die(point):
    lists = [name for name in os.listdir({model_dir!r}) if ".deltas.tmp" in name]
    if point == failpoints.TEMPORARY_WRITTEN and lists:
        os.kill(os.getpid(), signal.SIGKILL)
failpoints.on_reach = die
run.train([2, 3])
"""


def test_killed_process_leaves_the_delta_before(tmp_path):
    """Killed when the third delta is on disk, and the list that names it not yet renamed."""
    code = _KILLED_RUN.format(test=__file__, model_dir=str(tmp_path / "model"))
    process = warm.run(["-c", code])
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert get_steps(tmp_path / "model") == (1, [2])
    with tf.Graph().as_default():
        restored = Run(tmp_path / "model").read()
    with tf.Graph().as_default():
        expected = Run(tmp_path / "other")
    expected.train(range(10))
    expected.train([1, 2])
    assert restored == expected.read()
    assert not list((tmp_path / "model").glob("*.delta-3*"))
