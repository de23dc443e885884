"""Tables beside checkpoints: saved before the variables, restored when a session is made."""

import shutil

import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from monolith.checkpoint import manifest, restore_hook
from monolith.embedding import filters
from monolith.embedding.tables import single, single_snapshots
from monolith.proto import embedding_hash_table_pb2

DAY = 86400
NEWEST = 10**7

SaverListener = single.HashTableCheckpointSaverListener
RestorerListener = single.HashTableCheckpointRestorerListener

pytestmark = pytest.mark.usefixtures("graph_mode")


@pytest.fixture
def basename(tmp_path) -> str:
    return str(tmp_path / "model.ckpt")


def make_step():
    step = tf.compat.v1.train.get_or_create_global_step()
    return tf.compat.v1.assign_add(step, 1)


def save_hook(basename: str, *listeners) -> tf.compat.v1.train.CheckpointSaverHook:
    return tf.compat.v1.train.CheckpointSaverHook(
        basename.rpartition("/")[0], save_steps=1, listeners=listeners
    )


def restorer(*listeners) -> restore_hook.CheckpointRestorerHook:
    return restore_hook.CheckpointRestorerHook(listeners)


def train_session(*hooks) -> tf.compat.v1.train.MonitoredSession:
    return tf.compat.v1.train.MonitoredSession(hooks=hooks)


def write_checkpoint(session, basename: str, step: int) -> None:
    """Writes variables, so that the file `checkpoint` names this step."""
    tf.compat.v1.train.Saver().save(session, basename, global_step=step)


class TestHooks:
    def test_save_then_restore(self, basename):
        step = make_step()
        table = single.test_hash_table(1)
        add = table.assign_add([0], [[1.0]]).as_op()
        other = table.assign_add([0, 5], [[-1.0], [5.0]]).as_op()
        rows = table.lookup([0, 5])
        hooks = [save_hook(basename, SaverListener(basename)), restorer(RestorerListener(basename))]
        with train_session(*hooks) as session:
            session.run(add)
            session.run(step)

        with tf.compat.v1.Session() as session:
            session.run(other)
            assert session.run(rows).tolist() == [[-1], [5]]
            hooks[1].after_create_session(session, None)
            # The row that came after the save is gone: a restore replaces all rows.
            assert session.run(rows).tolist() == [[1], [0]]

    def test_files(self, basename, tmp_path):
        step = make_step()
        tables = [
            single.test_hash_table(1, name_suffix="plain"),
            single.test_hash_table(1, name_suffix="scope/a:b"),
        ]
        add = [table.assign_add([0], [[1.0]]).as_op() for table in tables]
        with train_session(save_hook(basename, SaverListener(basename))) as session:
            session.run(add)
            session.run(step)
        names = {path.name for path in (tmp_path / "model.ckpt-1.assets").iterdir()}
        assert {name for name in names if ".meta-" not in name} == {
            "MonolithHashTable_plain-00000-of-00001",
            "MonolithHashTable_scope%2Fa%3Ab-00000-of-00001",
            "hash_table_shards.json",
        }

        restore = RestorerListener(basename)
        rows = [table.lookup([0]) for table in tables]
        with tf.compat.v1.Session() as session:
            restore.before_restore(session)
            assert [row.tolist() for row in session.run(rows)] == [[[1]], [[1]]]

    def test_tables_are_written_before_the_checkpoint_is_visible(self, basename, tmp_path):
        seen = []

        class Look(tf.compat.v1.train.CheckpointSaverListener):
            def before_save(self, session, global_step_value):
                seen.append(
                    (
                        (tmp_path / f"model.ckpt-{global_step_value}.assets").is_dir(),
                        tf.train.latest_checkpoint(str(tmp_path)),
                    )
                )

        step = make_step()
        single.test_hash_table(1)
        with train_session(save_hook(basename, SaverListener(basename), Look())) as session:
            session.run(step)
        assert seen[0] == (True, None)

    @pytest.mark.parametrize("method", ["assign_add", "apply_gradients"])
    def test_expired_rows_do_not_come_back(self, basename, method):
        step = make_step()
        table = single.test_hash_table(1, expire_time=1)
        times = [NEWEST - DAY - 1, NEWEST - DAY + 1, NEWEST]
        writes = []
        for i, time in enumerate(times):
            value = [[float(i + 1)]]
            arguments = (value, 0) if method == "apply_gradients" else (value,)
            writes.append(getattr(table, method)([i], *arguments, req_time=time).as_op())
        rows = table.lookup([0, 1, 2])
        hooks = [save_hook(basename, SaverListener(basename)), restorer(RestorerListener(basename))]
        with train_session(*hooks) as session:
            session.run(writes)
            session.run(step)
        sign = -1 if method == "apply_gradients" else 1
        with tf.compat.v1.Session() as session:
            hooks[1].after_create_session(session, None)
            assert session.run(rows).tolist() == [[0], [2 * sign], [3 * sign]]

    def test_table_and_filter(self, basename):
        step = make_step()
        thresholds = embedding_hash_table_pb2.SlotOccurrenceThresholdConfig(
            default_occurrence_threshold=2
        ).SerializeToString()
        hash_filters = filters.create_hash_filters(0, True, thresholds, filter_capacity=300)
        from monolith.testing import generate_test_hash_table_config

        table = single.hash_table_from_config(
            generate_test_hash_table_config(1), hash_filter=hash_filters[0], name_suffix="t"
        )
        add = table.assign_add([0], [[1.0]])
        rows = add.lookup([0])
        hooks = [
            save_hook(
                basename,
                SaverListener(basename),
                filters.HashFilterCheckpointSaverListener(basename, hash_filters, True),
            ),
            restorer(
                RestorerListener(basename),
                filters.HashFilterCheckpointRestorerListener(basename, hash_filters, True),
            ),
        ]
        with train_session(*hooks) as session:
            assert session.run(rows).tolist() == [[0]]
            assert session.run(rows).tolist() == [[0]]
            session.run(step)
            # After the save; the restore takes it back.
            assert session.run(rows).tolist() == [[1]]
        # The last step's save at the end of the session is the same step, hence not repeated.
        with tf.compat.v1.Session() as session:
            hooks[1].after_create_session(session, None)
            assert session.run(table.lookup([0])).tolist() == [[0]]
            assert session.run(rows).tolist() == [[1]]

    def test_restorer_saver_listener(self, basename):
        step = make_step()
        table = single.test_hash_table(1)
        first = table.assign([0], [[1.0]]).as_op()
        second = table.assign([0], [[2.0]]).as_op()
        rows = table.lookup([0])

        class Assign(tf.compat.v1.train.CheckpointSaverListener):
            def after_save(self, session, global_step_value):
                session.run(second)

        listeners = [
            SaverListener(basename),
            Assign(),
            single.HashTableRestorerSaverListener(basename),
        ]
        with train_session(save_hook(basename, *listeners)) as session:
            session.run(first)
            session.run(step)
            assert session.run(rows).tolist() == [[1]]

    def test_restorer_saver_listener_removes_expired_rows(self, basename):
        table = single.test_hash_table(1, expire_time=1)
        writes = [
            table.assign([0], [[1.0]], req_time=NEWEST - 2 * DAY).as_op(),
            table.assign([1], [[2.0]], req_time=NEWEST).as_op(),
        ]
        size = table.size()
        saver = SaverListener(basename)
        roll_over = single.HashTableRestorerSaverListener(basename)
        with tf.compat.v1.Session() as session:
            session.run(writes)
            assert session.run(size) == 2
            saver.before_save(session, 7)
            roll_over.after_save(session, 7)
            assert session.run(size) == 1


class TestRestorer:
    @pytest.fixture
    def saved(self, basename):
        """A checkpoint of step 1 in which id 0 has the row [1]."""
        with tf.Graph().as_default():
            tf.compat.v1.train.get_or_create_global_step()
            table = single.test_hash_table(1, name_suffix="t")
            write = table.assign([0], [[1.0]]).as_op()
            listener = SaverListener(basename)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(write)
                listener.before_save(session, 1)
                write_checkpoint(session, basename, 1)

    def restore_value(self, table, basename) -> list:
        listener = RestorerListener(basename)
        rows = table.lookup([0])
        with tf.compat.v1.Session() as session:
            listener.before_restore(session)
            return session.run(rows).tolist()

    def test_no_checkpoint(self, basename):
        table = single.test_hash_table(1)
        assert self.restore_value(table, basename) == [[0]]

    @pytest.mark.usefixtures("saved")
    def test_latest_checkpoint(self, basename):
        table = single.test_hash_table(1, name_suffix="t")
        assert self.restore_value(table, basename) == [[1]]

    @pytest.mark.usefixtures("saved")
    def test_tables_without_variables(self, basename, tmp_path):
        for path in [*tmp_path.glob("model.ckpt-1.[!a]*"), tmp_path / "checkpoint"]:
            path.unlink()
        table = single.test_hash_table(1, name_suffix="t")
        assert self.restore_value(table, basename) == [[1]]

    @pytest.mark.usefixtures("saved")
    def test_several_asset_directories_without_checkpoint(self, basename, tmp_path):
        (tmp_path / "checkpoint").unlink()
        shutil.copytree(tmp_path / "model.ckpt-1.assets", tmp_path / "model.ckpt-2.assets")
        table = single.test_hash_table(1, name_suffix="t")
        assert self.restore_value(table, basename) == [[0]]

    @pytest.mark.usefixtures("saved")
    def test_table_that_the_checkpoint_lacks(self, basename, tmp_path):
        table = single.test_hash_table(1, name_suffix="another")
        with pytest.raises(ValueError, match="Unable to find table checkpoint in") as info:
            self.restore_value(table, basename)
        assert str(info.value) == (
            f"Unable to find table checkpoint in '{tmp_path}/model.ckpt-1.assets/' for table: "
            "MonolithHashTable_another. Maybe the model structure has been changed."
        )

    @pytest.mark.usefixtures("saved")
    def test_name_that_only_starts_a_saved_name(self, basename):
        table = single.test_hash_table(1, name_suffix="")
        with pytest.raises(ValueError, match="Unable to find table checkpoint in"):
            self.restore_value(table, basename)

    @pytest.mark.usefixtures("saved")
    @pytest.mark.parametrize(
        ("suffix", "extra"),
        [
            pytest.param("new", "MonolithHashTable_t", id="verbatim"),
            pytest.param("new", "t", id="decorated"),
        ],
    )
    def test_extra_restore_names(self, basename, suffix, extra):
        names = ["never_was", extra]
        table = single.test_hash_table(1, name_suffix=suffix, extra_restore_names=names)
        assert self.restore_value(table, basename) == [[1]]

    def test_extra_restore_names_of_tables_on_servers(self, basename):
        with tf.Graph().as_default():
            tables = [single.test_hash_table(1, name_suffix=f"old_{i}") for i in range(2)]
            writes = [table.assign([0], [[10.0 + i]]).as_op() for i, table in enumerate(tables)]
            listener = SaverListener(basename)
            with tf.compat.v1.Session() as session:
                session.run(writes)
                listener.before_save(session, 1)
        tables = [
            single.test_hash_table(1, name_suffix=f"new_{i}", extra_restore_names=["old"])
            for i in range(2)
        ]
        listener = RestorerListener(basename)
        rows = [table.lookup([0]) for table in tables]
        with tf.compat.v1.Session() as session:
            listener.before_restore(session)
            assert [row.tolist() for row in session.run(rows)] == [[[10]], [[11]]]

    @pytest.mark.usefixtures("saved")
    def test_own_name_comes_first(self, basename):
        with tf.Graph().as_default():
            old = single.test_hash_table(1, name_suffix="old")
            with tf.compat.v1.Session() as session:
                path = f"{basename}-1.assets/MonolithHashTable_old"
                session.run(old.assign([0], [[5.0]]).save(path).as_op())
        table = single.test_hash_table(1, name_suffix="t", extra_restore_names=["old"])
        assert self.restore_value(table, basename) == [[1]]

    @pytest.mark.usefixtures("saved")
    def test_damaged_table_is_named(self, basename, tmp_path):
        file = tmp_path / "model.ckpt-1.assets" / "MonolithHashTable_t-00000-of-00001"
        file.write_bytes(file.read_bytes()[:-1])
        table = single.test_hash_table(1, name_suffix="t")
        with pytest.raises(tf.errors.DataLossError, match="MonolithHashTable_t-00000-of-00001"):
            self.restore_value(table, basename)

    @pytest.mark.usefixtures("saved")
    def test_whole_file_of_another_save_is_refused_whoever_restored_the_variables(
        self, basename, tmp_path
    ):
        manifest.write(f"{basename}-1")
        file = tmp_path / "model.ckpt-1.assets" / "MonolithHashTable_t-00000-of-00001"
        with context.eager_mode():
            other = single.test_hash_table(1, name_suffix="other_save")
            other.assign([0], [[2.0]])
            other.save(str(tmp_path / "other"))
        assert (tmp_path / "other-00000-of-00001").stat().st_size == file.stat().st_size
        (tmp_path / "other-00000-of-00001").rename(file)
        table = single.test_hash_table(1, name_suffix="t")
        with pytest.raises(tf.errors.DataLossError, match=f"{file} is damaged: its content"):
            self.restore_value(table, basename)

    @pytest.mark.usefixtures("saved")
    def test_only_servers_that_started_anew_are_restored(self, basename):
        class Monitor:
            def __init__(self):
                self.asked = []

            def is_ps_uninitialized(self, sess, device):
                self.asked.append((sess, device))
                return False

        table = single.test_hash_table(1, name_suffix="t")
        monitor = Monitor()
        listener = RestorerListener(basename, ps_monitor=monitor)
        keep = table.assign([0], [[7.0]]).as_op()
        rows = table.lookup([0])
        with tf.compat.v1.Session() as session:
            session.run(keep)
            listener.before_restore(session)
            assert session.run(rows).tolist() == [[7]]
            assert monitor.asked == [(session, "/device:CPU:0")]

    def test_path_prefix_can_be_given(self, basename):
        table = single.test_hash_table(1, name_suffix="t")
        write = table.assign([0], [[3.0]]).as_op()
        saver, listener = SaverListener(basename), RestorerListener(basename)
        rows = table.lookup([0])
        with tf.compat.v1.Session() as session:
            session.run(write)
            saver.before_save(session, 42)
        with tf.compat.v1.Session() as session:
            listener._restore_from_path_prefix(session, f"{basename}-42")
            assert session.run(rows).tolist() == [[3]]


def test_graph_without_tables(basename, tmp_path):
    with tf.compat.v1.Session() as session:
        SaverListener(basename).before_save(session, 1)
        RestorerListener(basename).before_restore(session)
        RestorerListener(basename)._restore_from_path_prefix(session, f"{basename}-1")
    assert not list(tmp_path.iterdir())


def test_names_can_be_patched_where_the_historical_module_is(monkeypatch, basename):
    monkeypatch.setattr(single.HashTableCheckpointSaverListener, "before_save", lambda *_: 5)
    listener = single_snapshots.HashTableCheckpointSaverListener(basename)
    assert listener.before_save(None, 0) == 5


def test_save_waits_a_moment_per_table(basename):
    for _ in range(3):
        single.test_hash_table(1)
    SaverListener(basename)
    saves = [
        op
        for op in tf.compat.v1.get_default_graph().get_operations()
        if op.type == "MonolithHashTableSave"
    ]
    assert [op.get_attr("random_sleep_ms") for op in saves] == [45, 45, 45]
