"""Saves, restores and expiry of many tables in one resource."""

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from support.multi_tables import (
    MultiHashTable,
    make_configs,
    make_session,
    make_table,
    run,
    to_lists,
)

from monolith.checkpoint import restore_hook
from monolith.embedding import entry
from monolith.embedding.tables import multi
from monolith.proto import ckpt_info_pb2, embedding_hash_table_pb2

DAY = 24 * 60 * 60


def make_expiring_configs(**slot_to_days) -> dict[str, entry.HashTableConfigInstance]:
    configs = make_configs(**dict.fromkeys(slot_to_days, 1))
    for slot, days in slot_to_days.items():
        configs[slot].table_config.slot_expire_time_config.default_expire_time = days
    return configs


@pytest.mark.usefixtures("graph_mode")
class TestSnapshot:
    def test_save_restore_of_other_tables(self, tmp_path):
        base = str(tmp_path / "t")
        configs = make_configs(slot0=1, slot1=2, slot2=2)
        saved = MultiHashTable.from_configs(configs, name_suffix="saved")
        saved = saved.assign_add(
            {
                "slot0": ([0], [[1.0]]),
                "slot1": ([1], [[2.0, 2.0]]),
                "slot2": ([2, 3], [[4.0, 4.0], [8.0, 8.0]]),
            }
        ).save(base)
        features, counts = saved.feature_stat(base)
        restored = make_table(make_configs(slot0=1, slot2=2, slot3=1), name_suffix="restored")
        before = restored.assign({"slot3": ([5], [[5.0]]), "slot0": ([6], [[6.0]])})
        after = before.restore(base)
        rows = after.lookup({"slot0": [0, 6], "slot2": [2, 3], "slot3": [5]})
        with make_session() as session:
            features, counts = session.run([features, counts])
            assert dict(zip(features.tolist(), counts.tolist(), strict=True)) == {
                b"slot0": 1,
                b"slot1": 1,
                b"slot2": 2,
            }
            assert counts.dtype == np.uint64
            # A restore adds rows; id 6 and slot3 stay as they were.
            assert to_lists(session.run(rows)) == {
                "slot0": [[1], [6]],
                "slot2": [[4, 4], [8, 8]],
                "slot3": [[5]],
            }

    def test_files(self, tmp_path):
        table = make_table(make_configs(a=1, b=1), saver_parallel=2)
        run(table.assign({"a": ([1], [[1.0]])}).save(str(tmp_path / "t")).as_op())
        assert sorted(p.name for p in tmp_path.iterdir()) == [
            "t-00000-of-00002",
            "t-00001-of-00002",
            "t.meta-00000-of-00002",
            "t.meta-00001-of-00002",
        ]
        counts = {"a": 0, "b": 0}
        for path in tmp_path.glob("t.meta-*"):
            for record in tf.compat.v1.io.tf_record_iterator(str(path)):
                meta = embedding_hash_table_pb2.MultiHashTableMetadata.FromString(record)
                counts[meta.table_name] += meta.num_entries
        assert counts == {"a": 1, "b": 0}

    def test_expired_rows_are_left_out(self, tmp_path):
        configs = make_configs(a=1)
        configs["a"].table_config.slot_expire_time_config.default_expire_time = 1
        table = MultiHashTable.from_configs(configs, name_suffix="x")
        table = table.assign({"a": ([1], [[1.0]])}, req_time=1000)
        table = table.assign({"a": ([2], [[2.0]])}, req_time=1000 + 86400)
        table = table.save(str(tmp_path / "t"))
        _, counts = table.feature_stat(str(tmp_path / "t"))
        assert run(counts).tolist() == [1]

    def test_tables_expire_by_their_own_times(self, tmp_path):
        table = make_table(make_expiring_configs(a=1, b=3650))
        for req_time, ids in ((1000, [1]), (1000 + 5 * DAY, [2, 3])):
            rows = (ids, [[1.0]] * len(ids))
            table = table.assign({"a": rows, "b": rows}, req_time=req_time)
        features, counts = run(table.save(str(tmp_path / "t")).feature_stat(str(tmp_path / "t")))
        # Row 1 is 5 days old: too old for a only.
        assert dict(zip(features, counts, strict=True)) == {b"a": 2, b"b": 3}

    def test_reinitialize_lets_no_row_expire(self, tmp_path):
        table = make_table(make_expiring_configs(a=30), name_suffix="x")
        table = table.assign({"a": ([1, 2, 3], [[1.0]] * 3)})  # Nobody says when.
        table, _ = table.reinitialize("a", [2])
        saved = table.save(str(tmp_path / "t"))
        again = saved.restore(str(tmp_path / "t")).save(str(tmp_path / "u"))
        with tf.control_dependencies([again.as_op()]):
            counts = [again.feature_stat(str(tmp_path / name))[1] for name in ("t", "u")]
        assert [c.tolist() for c in run(counts)] == [[3], [3]]


@pytest.mark.usefixtures("graph_mode")
class TestEvict:
    def test_removes_what_a_save_leaves_out(self):
        table = make_table(make_expiring_configs(a=1, b=3650, c=1))
        old, new = ([1], [[1.0]]), ([2], [[2.0]])
        table = table.assign({"a": old, "b": old, "c": old}, req_time=1000)
        table = table.assign({"a": new, "b": new}, req_time=1000 + 5 * DAY)
        table, evicted = table.evict()
        with tf.control_dependencies([table.as_op()]):
            sizes, rows = table.sizes(), table.lookup({"a": [1, 2], "b": [1, 2], "c": [1]})
        evicted, sizes, rows = run((evicted, sizes, rows))
        # Row 1 of c is the newest of its table.
        assert (evicted.tolist(), sizes.tolist()) == ([1, 0, 0], [1, 2, 1])
        assert to_lists(rows) == {"a": [[0], [2]], "b": [[1], [2]], "c": [[1]]}

    def test_at_a_given_time(self):
        table = make_table(make_expiring_configs(a=1, b=3))
        rows = ([1], [[1.0]])
        table = table.assign({"a": rows, "b": rows}, req_time=1000)
        table, none_yet = table.evict(1000 + DAY - 1)
        table, first = table.evict(1000 + DAY)
        table, second = table.evict(1000 + 3 * DAY)
        counts = run((none_yet, first, second))
        assert [c.tolist() for c in counts] == [[0, 0], [1, 0], [0, 1]]

    @pytest.mark.parametrize("time", [-2, [1, 2]], ids=["negative", "several"])
    def test_no_time_is_refused(self, time):
        table = make_table(make_configs(a=1))
        unknown_shape = tf.compat.v1.placeholder_with_default(tf.constant(time, tf.int64), None)
        with pytest.raises(tf.errors.InvalidArgumentError, match="`max_update_time` must be a"):
            run(table.evict(unknown_shape)[1])


@pytest.mark.usefixtures("graph_mode")
class TestListeners:
    def test_saver_and_restorer(self, tmp_path):
        basename = str(tmp_path / "model.ckpt")
        step = tf.compat.v1.train.get_or_create_global_step()
        train = tf.compat.v1.assign_add(step, 1)
        table = MultiHashTable.from_configs(make_configs(a=1, b=2), name_suffix="x")
        other = MultiHashTable.from_configs(make_configs(a=1), name_suffix="y")
        write = [
            table.assign({"a": ([1], [[1.0]]), "b": ([2, 3], [[2.0, 2.0], [3.0, 3.0]])}).as_op(),
            other.assign({"a": ([7, 8], [[7.0], [8.0]])}).as_op(),
        ]
        overwrite = table.assign({"a": ([1], [[9.0]])}).as_op()
        rows = table.lookup({"a": [1], "b": [3]})
        saver_hook = tf.compat.v1.train.CheckpointSaverHook(
            str(tmp_path),
            save_steps=1,
            listeners=[multi.MultiHashTableCheckpointSaverListener(basename)],
        )
        restore = restore_hook.CheckpointRestorerHook(
            [multi.MultiHashTableCheckpointRestorerListener(basename)]
        )

        with tf.compat.v1.train.MonitoredSession(hooks=[saver_hook, restore]) as session:
            session.run(write)
            session.run(train)
        assert (tmp_path / "model.ckpt-1.assets" / f"{table.shared_name}-00000-of-00001").exists()
        info = ckpt_info_pb2.CkptInfo()
        text_format.Parse((tmp_path / "ckpt.info-1").read_text(), info)
        # Summed over the two resources.
        assert dict(info.feature_counts) == {"a": 3, "b": 2}

        with tf.compat.v1.Session() as session:
            tf.compat.v1.train.Saver().restore(session, tf.train.latest_checkpoint(str(tmp_path)))
            session.run([table.initializer, other.initializer])
            session.run(overwrite)
            restore.after_create_session(session, None)
            assert to_lists(session.run(rows)) == {"a": [[1]], "b": [[3, 3]]}

    def test_no_checkpoint(self, tmp_path):
        table = MultiHashTable.from_configs(make_configs(a=1), name_suffix="x")
        listener = multi.MultiHashTableCheckpointRestorerListener(str(tmp_path / "model.ckpt"))
        write = table.assign({"a": ([1], [[1.0]])})
        rows = write.lookup({"a": [1]})["a"]
        with make_session() as session:
            session.run(rows)
            listener.before_restore(session)
            assert session.run(table.lookup({"a": [1]})["a"]).tolist() == [[1]]

    def test_without_ckpt_info(self, tmp_path):
        table = MultiHashTable.from_configs(make_configs(a=1), name_suffix="x")
        listener = multi.MultiHashTableCheckpointSaverListener(
            str(tmp_path / "model.ckpt"), write_ckpt_info=False
        )
        with make_session() as session:
            listener.before_save(session, 5)
        assert not (tmp_path / "ckpt.info-5").exists()
        assert (tmp_path / "model.ckpt-5.assets" / f"{table.shared_name}-00000-of-00001").exists()

    def test_counts_that_do_not_match(self, tmp_path):
        listener = multi.MultiHashTableCheckpointSaverListener(str(tmp_path / "m"))
        with pytest.raises(
            ValueError,
            match=r"^Number of features \[1\] does not match number of fid counts \[2\]$",
        ):
            listener._write_counts([([b"a"], [1, 2])], str(tmp_path / "ckpt.info-1"))
        assert not (tmp_path / "ckpt.info-1").exists()

    def test_restorer_saver_listener(self, tmp_path):
        basename = str(tmp_path / "model.ckpt")
        table = MultiHashTable.from_configs(make_configs(a=1), name_suffix="x")
        saver = multi.MultiHashTableCheckpointSaverListener(basename)
        restorer = multi.MultiHashTableRestorerSaverListener(basename)
        first = table.assign({"a": ([1], [[1.0]])}).as_op()
        second = table.assign({"a": ([1], [[2.0]])}).as_op()
        with make_session() as session:
            session.run(first)
            saver.before_save(session, 3)
            session.run(second)
            restorer.after_save(session, 3)
            assert session.run(table.lookup({"a": [1]})["a"]).tolist() == [[1]]

    def test_expired_rows_leave_the_memory_after_a_save(self, tmp_path):
        basename = str(tmp_path / "model.ckpt")
        table = MultiHashTable.from_configs(make_expiring_configs(a=1, b=10), name_suffix="x")
        saver = multi.MultiHashTableCheckpointSaverListener(basename)
        restorer = multi.MultiHashTableRestorerSaverListener(basename)
        written = table
        for req_time, ids in ((1000, [1, 2, 3]), (1000 + 5 * DAY, [4])):
            rows = (ids, [[1.0]] * len(ids))
            written = written.assign({"a": rows, "b": rows}, req_time=req_time)
        with make_session() as session:
            session.run(written.as_op())
            saver.before_save(session, 3)
            restorer.after_save(session, 3)
            assert session.run(table.sizes()).tolist() == [1, 4]

    def test_graph_without_tables(self, tmp_path):
        basename = str(tmp_path / "model.ckpt")
        with tf.compat.v1.Session() as session:
            multi.MultiHashTableCheckpointSaverListener(basename).before_save(session, 1)
            multi.MultiHashTableRestorerSaverListener(basename).after_save(session, 1)
        assert not list(tmp_path.iterdir())
