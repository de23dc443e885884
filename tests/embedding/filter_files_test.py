"""Admission filters on disk: what is saved, restored and refused."""

import os

import numpy as np
import pytest
import tensorflow as tf
from support.filters import (
    Intercepted,
    count_rows,
    make_config,
    make_filter,
    read_records,
    read_split,
    restore,
    save,
    split_path,
)
from tensorflow.python.eager import context

from monolith.checkpoint import manifest, restore_hook
from monolith.embedding import filters
from monolith.proto import embedding_hash_table_pb2 as pb


class TestFiles:
    def test_disabled_does_nothing(self, graph_mode, tmp_path):
        hash_filter = filters.create_hash_filter(300, 5, make_config(1))
        basename = os.fspath(tmp_path / "f")
        with tf.compat.v1.Session() as session:
            for make_op in (filters.save_hash_filter, filters.restore_hash_filter):
                assert make_op(hash_filter, basename).type == "NoOp"
                session.run(make_op(hash_filter, basename))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(filters.create_dummy_hash_filter, id="dummy"),
            pytest.param(lambda: filters.create_probabilistic_filter(False), id="probabilistic"),
        ],
    )
    def test_filter_without_state_has_no_files(self, make, tmp_path):
        hash_filter = make()
        save(hash_filter, tmp_path / "f")
        assert list(tmp_path.iterdir()) == []
        restore(hash_filter, tmp_path / "f")

    def test_restored_filter_goes_on_like_the_original(self, tmp_path):
        original, copy = make_filter(), make_filter()
        rng = np.random.default_rng(1)
        pool = rng.integers(-(1 << 63), (1 << 63) - 1, 400)
        for _ in range(5):
            count_rows(original, rng.choice(pool, 200).tolist())
        count_rows(copy, [1, 2, 3])  # Replaced by the restore.
        save(original, tmp_path / "f")
        restore(copy, tmp_path / "f")
        for _ in range(5):
            ids = rng.choice(pool, 200).tolist()
            assert count_rows(copy, ids) == count_rows(original, ids)

    def test_cells_are_what_the_format_says(self, tmp_path):
        hash_filter = make_filter()  # 75 ids and 90 positions in a split.
        count_rows(hash_filter, [5, 5, (0xABC << 17) + 1])
        save(hash_filter, tmp_path / "f")
        meta, cells = read_split(tmp_path / "f", 0, 5)
        # Cell = signature << 4 | count, at the id modulo the number of positions.
        assert cells == {5: 2, ((0xABC << 17) + 1) % 90: 0xABC1}
        assert meta == pb.HashFilterSplitMetaDump(
            failure_count=0,
            total_size=75,
            num_elements=2,
            fill_rate=1.2,
            sliding_hash_filter_meta=pb.SlidingHashFilterMetaDump(
                split_num=5,
                max_forward_step=2,
                max_backward_step=3,
                max_step=16,
                head=0,
                head_increment=0,
                failure_count=0,
            ),
        )

    @pytest.mark.parametrize("cells_per_record", [154, 50, 1])
    def test_reads_files_of_other_writers(self, tmp_path, cells_per_record):
        """Files written by protobuf and TensorFlow, with all cells and whatever record size."""
        for split in range(5):
            meta = pb.HashFilterSplitMetaDump(total_size=75, fill_rate=1.2, num_elements=0)
            meta.sliding_hash_filter_meta.MergeFrom(
                pb.SlidingHashFilterMetaDump(
                    split_num=5, max_forward_step=2, max_backward_step=3, max_step=16
                )
            )
            cells = [0] * 154
            if split == 0:
                cells[7] = 2
            with tf.io.TFRecordWriter(os.fspath(split_path(tmp_path / "f", split, 5))) as writer:
                writer.write(meta.SerializeToString())
                for start in range(0, 154, cells_per_record):
                    data = cells[start : start + cells_per_record]
                    dump = pb.HashFilterSplitDataDump(offset=start, data=data)
                    writer.write(dump.SerializeToString())
        hash_filter = make_filter(threshold=2)
        restore(hash_filter, tmp_path / "f")
        assert count_rows(hash_filter, [7, 8]) == [True, False]
        save(hash_filter, tmp_path / "g")
        assert read_split(tmp_path / "g", 0, 5)[0].num_elements == 2

    def test_saving_again_replaces_the_files(self, tmp_path):
        hash_filter = make_filter()
        save(hash_filter, tmp_path / "f")
        count_rows(hash_filter, [5])
        save(hash_filter, tmp_path / "f")
        assert len(list(tmp_path.iterdir())) == 5
        assert read_split(tmp_path / "f", 0, 5)[1] == {5: 1}

    def test_another_number_of_splits_replaces_the_files(self, tmp_path):
        save(make_filter(split_num=7), tmp_path / "f")
        save(make_filter(split_num=5), tmp_path / "f")
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            f"f-0000{i}-of-00005" for i in range(5)
        ]

    def test_where_no_directory_can_be_made(self, tmp_path):
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(tf.errors.OpError, match="file"):
            save(make_filter(), tmp_path / "file" / "f")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_failed_save_leaves_no_temporary_files(self, tmp_path):
        # A directory of the final name: the rename fails after everything was written.
        in_the_way = split_path(tmp_path / "f", 4, 5)
        in_the_way.mkdir()
        (in_the_way / "child").touch()
        with pytest.raises(tf.errors.OpError):
            save(make_filter(), tmp_path / "f")
        assert [path for path in tmp_path.iterdir() if "tmp" in path.name] == []

    def test_leftovers_of_an_interrupted_save_are_passed_over(self, tmp_path):
        hash_filter = make_filter(threshold=1)
        count_rows(hash_filter, [5])
        save(hash_filter, tmp_path / "f")
        (tmp_path / "f-00000-of-00005-tmp-123").write_bytes(b"half")
        (tmp_path / "f-00000-of-00009").write_bytes(b"other")
        fresh = make_filter(threshold=1)
        restore(fresh, tmp_path / "f")
        assert count_rows(fresh, [5]) == [True]

    def test_basename_must_be_a_scalar(self, tmp_path):
        names = tf.constant([os.fspath(tmp_path / "f")])
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="`basename` must have 0 dimensions"
        ):
            filters.save_hash_filter(make_filter(), names, True)

    def test_one_file_missing(self, tmp_path):
        hash_filter = make_filter()
        save(hash_filter, tmp_path / "f")
        missing = split_path(tmp_path / "f", 3, 5)
        missing.unlink()
        with pytest.raises(tf.errors.NotFoundError, match=f"lacks 1 of its 5 files.*{missing}"):
            restore(hash_filter, tmp_path / "f")

    @pytest.mark.parametrize(
        ("capacity", "split_num", "message"),
        [
            pytest.param(
                300, 7, "split_num: 5 does't match with : 7 read from hash filter checkpoint file."
            ),
            pytest.param(
                600, 5, "total_size: 75 does't match with : 150 read from hash filter checkpoint"
            ),
        ],
    )
    def test_files_of_a_filter_with_other_settings(self, tmp_path, capacity, split_num, message):
        save(make_filter(capacity=capacity, split_num=split_num), tmp_path / "f")
        hash_filter = make_filter(threshold=1)
        count_rows(hash_filter, [5])
        with pytest.raises(tf.errors.ResourceExhaustedError, match=message) as error:
            restore(hash_filter, tmp_path / "f")
        assert os.fspath(tmp_path / "f") in str(error.value)
        assert count_rows(hash_filter, [5, 6]) == [True, False]

    def test_files_of_different_saves(self, tmp_path):
        hash_filter = make_filter()
        save(hash_filter, tmp_path / "old")
        count_rows(hash_filter, [i << 17 | i for i in range(100)])  # Moves the head.
        save(hash_filter, tmp_path / "new")
        split_path(tmp_path / "old", 2, 5).rename(split_path(tmp_path / "new", 2, 5))
        with pytest.raises(tf.errors.DataLossError, match="different saves"):
            restore(hash_filter, tmp_path / "new")

    def test_other_thresholds_are_no_obstacle(self, tmp_path):
        """Thresholds may be tuned between runs; the counts stay valid."""
        hash_filter = make_filter(threshold=5)
        count_rows(hash_filter, [5, 5])
        save(hash_filter, tmp_path / "f")
        other = make_filter(threshold=2)
        restore(other, tmp_path / "f")
        assert count_rows(other, [5]) == [True]


class TestDamagedFiles:
    """Whichever byte is wrong or missing: DataLoss that names the file, and nothing changed."""

    @pytest.fixture
    def saved(self, tmp_path):
        hash_filter = make_filter()
        count_rows(hash_filter, [(i << 17) + i for i in range(90)])
        save(hash_filter, tmp_path / "f")
        return tmp_path / "f"

    @pytest.fixture
    def live(self, tmp_path):
        """A filter with a state of its own, which must be the same at the end."""
        hash_filter = make_filter()
        count_rows(hash_filter, [i << 17 for i in range(30)])
        save(hash_filter, tmp_path / "before" / "f")
        yield hash_filter
        save(hash_filter, tmp_path / "after" / "f")
        for before in (tmp_path / "before").iterdir():
            assert (tmp_path / "after" / before.name).read_bytes() == before.read_bytes()

    def expect_data_loss(self, live, saved, path):
        with pytest.raises(tf.errors.DataLossError, match=path.name):
            restore(live, saved)

    @pytest.mark.parametrize("split", [0, 4])
    def test_every_flipped_byte(self, saved, live, split):
        path = split_path(saved, split, 5)
        good = path.read_bytes()
        assert 300 < len(good) < 1000
        for i in range(len(good)):
            path.write_bytes(good[:i] + bytes([good[i] ^ 0x41]) + good[i + 1 :])
            self.expect_data_loss(live, saved, path)

    def test_every_truncation(self, saved, live):
        path = split_path(saved, 0, 5)
        good = path.read_bytes()
        for size in range(len(good)):
            path.write_bytes(good[:size])
            self.expect_data_loss(live, saved, path)

    @pytest.mark.parametrize("size", [1, 11, 12, 20])
    def test_bytes_behind_the_end(self, saved, live, size):
        path = split_path(saved, 1, 5)
        with path.open("ab") as file:
            file.write(bytes(size))
        self.expect_data_loss(live, saved, path)

    @pytest.mark.parametrize(
        ("records", "message"),
        [
            pytest.param([b""], "not the metadata", id="empty_record"),
            pytest.param([b"\xff\xff"], "not the metadata", id="no_message"),
            pytest.param(["meta", b"\x0a"], "not a protobuf message", id="no_cells"),
            pytest.param(["meta"], "truncated", id="metadata_only"),
            pytest.param(["meta", "cells", "cells"], "do not fit", id="cells_twice"),
            pytest.param(["cells"], "not the metadata", id="no_metadata"),
        ],
    )
    def test_valid_records_with_wrong_content(self, saved, live, records, message):
        path = split_path(saved, 1, 5)
        meta, cells = read_records(path)
        with tf.io.TFRecordWriter(os.fspath(path)) as writer:
            for record in records:
                writer.write({"meta": meta, "cells": cells}.get(record, record))
        with pytest.raises(tf.errors.DataLossError, match=message) as error:
            restore(live, saved)
        assert path.name in str(error.value)


@pytest.mark.usefixtures("graph_mode")
class TestListeners:
    THRESHOLD = 2

    def make_session(self, model_dir, listener_class, num_filters=1, **listener_arguments):
        """Makes a session that counts id 1 in each step, with a saver or restorer listener."""
        hash_filters = [
            filters.create_hash_filter(300, 5, make_config(self.THRESHOLD), f"_{i}")
            for i in range(num_filters)
        ]
        self.gradients = [Intercepted(f, [1]).gradient for f in hash_filters]
        step = tf.compat.v1.train.get_or_create_global_step()
        self.next_step = tf.compat.v1.assign_add(step, 1)
        basename = os.path.join(model_dir, "model.ckpt")
        listener = listener_class(basename, hash_filters, **listener_arguments)
        if listener_class is filters.HashFilterCheckpointSaverListener:
            hook = tf.compat.v1.train.CheckpointSaverHook(
                model_dir, save_steps=1000, listeners=[listener]
            )
        else:
            hook = restore_hook.CheckpointRestorerHook([listener])
        return tf.compat.v1.train.SingularMonitoredSession(hooks=[hook], checkpoint_dir=model_dir)

    def save_after_counting(self, model_dir, times, **arguments):
        with (
            tf.Graph().as_default(),
            self.make_session(
                model_dir, filters.HashFilterCheckpointSaverListener, **arguments
            ) as session,
        ):
            for _ in range(times):
                session.run(self.gradients)
            session.run(self.next_step)

    def count_after_restoring(self, model_dir, **arguments):
        """Returns for each filter whether id 1 passes at once."""
        with (
            tf.Graph().as_default(),
            self.make_session(
                model_dir, filters.HashFilterCheckpointRestorerListener, **arguments
            ) as session,
        ):
            return [bool(g[0, 0]) for g in session.run(self.gradients)]

    def test_save_and_restore_with_a_checkpoint(self, tmp_path):
        model_dir = os.fspath(tmp_path)
        self.save_after_counting(model_dir, 2, num_filters=2, enable_hash_filter=True)
        assert sorted(path.name for path in (tmp_path / "model.ckpt-1.assets").iterdir()) == [
            f"hash_filter_{ps}-0000{i}-of-00005" for ps in range(2) for i in range(5)
        ]
        assert self.count_after_restoring(model_dir, num_filters=2, enable_hash_filter=True) == [
            True,
            True,
        ]
        # Without the restore they start from nothing.
        assert self.count_after_restoring(model_dir, num_filters=2) == [False, False]

    def test_counts_go_on_where_they_were(self, tmp_path):
        model_dir = os.fspath(tmp_path)
        self.save_after_counting(model_dir, 1, enable_hash_filter=True)
        assert self.count_after_restoring(model_dir, enable_hash_filter=True) == [False]
        with (
            tf.Graph().as_default(),
            self.make_session(
                model_dir, filters.HashFilterCheckpointRestorerListener, enable_hash_filter=True
            ) as session,
        ):
            # One occurrence was saved; the threshold is 2.
            assert [session.run(self.gradients)[0][0, 0] for _ in range(3)] == [0, 1, 1]

    @pytest.mark.parametrize(
        "arguments",
        [{}, {"enable_hash_filter": True, "enable_save_restore": False}],
        ids=["no_filter", "no_save_restore"],
    )
    def test_disabled(self, tmp_path, arguments):
        self.save_after_counting(os.fspath(tmp_path), 5, **arguments)
        assert not (tmp_path / "model.ckpt-1.assets").exists()
        assert self.count_after_restoring(os.fspath(tmp_path), **arguments) == [False]

    def test_without_a_checkpoint(self, tmp_path):
        assert self.count_after_restoring(os.fspath(tmp_path), enable_hash_filter=True) == [False]

    def test_checkpoint_without_asset_directory(self, tmp_path):
        """Files of the days before asset directories lie beside the checkpoint itself."""
        model_dir = os.fspath(tmp_path)
        self.save_after_counting(model_dir, 2, enable_hash_filter=True)
        for path in (tmp_path / "model.ckpt-1.assets").iterdir():
            path.rename(tmp_path / f"model.ckpt-1{path.name}")
        (tmp_path / "model.ckpt-1.assets").rmdir()
        assert self.count_after_restoring(model_dir, enable_hash_filter=True) == [True]

    def test_model_that_gets_its_first_threshold_starts_with_empty_filters(self, tmp_path, caplog):
        """As it does when the number of servers changes, instead of not starting at all."""
        model_dir = os.fspath(tmp_path)
        self.save_after_counting(model_dir, 2)
        assert self.count_after_restoring(model_dir, enable_hash_filter=True) == [False]
        assert f"hash filters start empty: {model_dir}/model.ckpt-1 has none" in caplog.text
        # Tables alone make an asset directory, too.
        (tmp_path / "model.ckpt-1.assets").mkdir()
        assert self.count_after_restoring(model_dir, enable_hash_filter=True) == [False]

    def test_splits_that_were_swapped_are_refused(self, tmp_path):
        """Each of them is whole, of the same save and of the same size."""
        model_dir = os.fspath(tmp_path)
        self.save_after_counting(model_dir, 2, enable_hash_filter=True)
        prefix = os.path.join(model_dir, "model.ckpt-1")
        basename = tmp_path / "model.ckpt-1.assets" / "hash_filter_0"
        first, second = (split_path(basename, split, 5) for split in (0, 1))
        # Ids fill one split after the other, until there are as many in the second.
        with context.eager_mode():
            hash_filter = make_filter()
            for i in range(200):
                count_rows(hash_filter, [i << 17 | i])
                save(hash_filter, basename)
                if i > 60 and first.stat().st_size == second.stat().st_size:
                    break
        assert first.stat().st_size == second.stat().st_size
        assert first.read_bytes() != second.read_bytes()
        manifest.write(prefix)
        self.count_after_restoring(model_dir, enable_hash_filter=True)
        first.rename(tmp_path / "first")
        second.rename(first)
        (tmp_path / "first").rename(second)
        with pytest.raises(tf.errors.DataLossError, match=r"hash_filter_0-0000\d-of-00005 is"):
            self.count_after_restoring(model_dir, enable_hash_filter=True)

    def test_filters_are_written_before_the_checkpoint_is_visible(self, tmp_path):
        seen = []

        class Observed(filters.HashFilterCheckpointSaverListener):
            def before_save(self, sess, global_step_value):
                super().before_save(sess, global_step_value)
                assets = tmp_path / f"model.ckpt-{global_step_value}.assets"
                seen.append((len(list(assets.iterdir())), (tmp_path / "checkpoint").exists()))

        tf.compat.v1.train.create_global_step()
        hash_filter = filters.create_hash_filter(300, 5, make_config(1))
        listener = Observed(os.fspath(tmp_path / "model.ckpt"), [hash_filter], True)
        hook = tf.compat.v1.train.CheckpointSaverHook(
            os.fspath(tmp_path), save_steps=1000, listeners=[listener]
        )
        with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]):
            pass
        assert seen[0] == (5, False)
