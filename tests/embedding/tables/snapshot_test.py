"""Tables on disk: names and contents of files, and expiry."""

import pathlib
import struct
import threading

import numpy as np
import pytest
import tensorflow as tf
from support.snapshots import lookup, make_config

from monolith.embedding import entry
from monolith.embedding.tables import single
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2

DAY = 86400

INT64 = np.iinfo(np.int64)


def read_entries(path) -> list[embedding_hash_table_pb2.EntryDump]:
    records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
    return [embedding_hash_table_pb2.EntryDump.FromString(record) for record in records]


def names_in(directory: pathlib.Path, *, meta: bool = False) -> list[str]:
    """Names of data files, or of the meta files that stand beside them."""
    return sorted(p.name for p in directory.iterdir() if (".meta-" in p.name) == meta)


class TestLargeFiles:
    """Files that do not fit into the buffers they are written and read through."""

    @staticmethod
    def make_rows(dim: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(count)
        return np.arange(count) * 7919 - 1000, rng.standard_normal((count, dim), np.float32)

    @pytest.mark.parametrize(
        ("dim", "count"),
        [
            pytest.param(16, 20_000, id="many_small_rows"),
            pytest.param(300_000, 3, id="rows_larger_than_a_buffer"),
        ],
    )
    def test_round_trip(self, make_table, tmp_path, dim, count):
        ids, values = self.make_rows(dim, count)
        table = make_table(dim=dim, optimizer=entry.AdagradOptimizer())
        table = table.assign(ids, values, req_time=1_700_000_000)
        table.save(str(tmp_path / "large"))
        (file,) = (path for path in tmp_path.iterdir() if ".meta-" not in path.name)
        assert file.stat().st_size > 3 << 20
        # TensorFlow reads the same, checksums included.
        by_id = {dump.id: dump.num for dump in read_entries(file)}
        assert sorted(by_id) == ids.tolist()
        np.testing.assert_array_equal(np.stack([by_id[i] for i in ids]).astype(np.float32), values)
        restored = make_table(dim=dim, optimizer=entry.AdagradOptimizer())
        restored = restored.restore(str(tmp_path / "large"))
        assert int(restored.size()) == count
        np.testing.assert_array_equal(
            restored.lookup_entry(ids).numpy(), table.lookup_entry(ids).numpy()
        )

    def test_a_flipped_bit_anywhere_is_noticed(self, make_table, tmp_path):
        ids, values = self.make_rows(16, 20_000)
        table = make_table(dim=16).assign(ids, values)
        table.save(str(tmp_path / "large"))
        file = tmp_path / "large-00000-of-00001"
        good = file.read_bytes()
        restored = make_table(dim=16)
        for position in np.random.default_rng(1).integers(len(good), size=30):
            damaged = bytearray(good)
            damaged[position] ^= 1 << position % 8
            file.write_bytes(damaged)
            with pytest.raises(tf.errors.DataLossError, match="large-00000-of-00001"):
                restored.restore(str(tmp_path / "large"))
            assert int(restored.size()) == 0
        file.write_bytes(good[: len(good) * 2 // 3])
        with pytest.raises(tf.errors.DataLossError, match="large-00000-of-00001"):
            restored.restore(str(tmp_path / "large"))
        file.write_bytes(good)
        assert int(restored.restore(str(tmp_path / "large")).size()) == len(ids)


class TestFiles:
    def test_one_file_of_dumps(self, make_table, tmp_path):
        table = make_table(dim=2, optimizer=entry.AdagradOptimizer(initial_accumulator_value=1.0))
        table = table.assign([5, -1], [[1.0, 2.0], [3.0, 4.0]], req_time=100)
        table = table.apply_gradients([-1], [[1.0, 2.0]], 0, req_time=101)
        table.save(str(tmp_path / "users"))
        assert names_in(tmp_path) == ["users-00000-of-00001"]
        by_id = {dump.id: dump for dump in read_entries(tmp_path / "users-00000-of-00001")}
        assert sorted(by_id) == [-1, 5]
        assert list(by_id[5].num) == [1.0, 2.0]
        assert list(by_id[5].opt.dump[0].adagrad.norm) == [1.0, 1.0]
        assert by_id[5].last_update_ts_sec == 100
        # norm = 1 + g^2; w -= g / sqrt(norm)
        assert list(by_id[-1].opt.dump[0].adagrad.norm) == [2.0, 5.0]
        assert by_id[-1].num == pytest.approx([3 - 1 / np.sqrt(2), 4 - 2 / np.sqrt(5)])
        assert by_id[-1].last_update_ts_sec == 101

    @pytest.mark.parametrize(
        ("table_id", "value", "optimizer", "time", "expected"),
        [
            (1, [1.0], None, 100, "09 0100000000000000 15 0000803f 1a04 0a02 1200 2064"),
            (
                -1,
                [0.5, -0.5],
                entry.AdagradOptimizer(initial_accumulator_value=1.5),
                1234,
                "09ffffffffffffffff 1208 0000003f000000bf 1a0e 0a0c 0a0a 0a08 0000c03f0000c03f "
                "20d209",
            ),
        ],
        ids=["sgd", "adagrad"],
    )
    def test_bytes_of_a_record(
        self, make_table, tmp_path, table_id, value, optimizer, time, expected
    ):
        table = make_table(dim=len(value), optimizer=optimizer)
        table.assign([table_id], [value], req_time=time).save(str(tmp_path / "t"))
        data = (tmp_path / "t-00000-of-00001").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        assert data[12 : 12 + length] == bytes.fromhex(expected)
        assert len(data) == 8 + 4 + length + 4

    def test_number_of_files(self, make_table, tmp_path):
        table = make_table(saver_parallel=3)
        ids = list(range(-50, 50))
        table.assign(ids, [[float(i)] for i in ids]).save(str(tmp_path / "t"))
        files = [f"t-0000{i}-of-00003" for i in range(3)]
        assert names_in(tmp_path) == files
        saved = [dump.id for file in files for dump in read_entries(tmp_path / file)]
        assert sorted(saved) == ids

    def test_directories_are_made(self, make_table, tmp_path):
        make_table().assign([1], [[1.0]]).save(str(tmp_path / "a" / "b" / "t"))
        assert names_in(tmp_path / "a" / "b") == ["t-00000-of-00001"]

    def test_empty_table(self, make_table, tmp_path):
        make_table(saver_parallel=2).save(str(tmp_path / "t"))
        assert names_in(tmp_path) == ["t-00000-of-00002", "t-00001-of-00002"]
        table = make_table().assign([1], [[1.0]]).restore(str(tmp_path / "t"))
        assert table.size().numpy() == 0

    def test_saving_again_with_fewer_files_leaves_no_others(self, make_table, tmp_path):
        many = make_table(saver_parallel=4).assign([1, 2, 3], [[1.0], [2.0], [3.0]])
        many.save(str(tmp_path / "t"))
        few = make_table(saver_parallel=2).restore(str(tmp_path / "t"))
        few.assign([4], [[4.0]]).save(str(tmp_path / "t"))
        assert names_in(tmp_path) == ["t-00000-of-00002", "t-00001-of-00002"]
        assert len(names_in(tmp_path, meta=True)) == 2
        table = make_table().restore(str(tmp_path / "t"))
        assert lookup(table, [1, 2, 3, 4]) == [[1], [2], [3], [4]]

    def test_no_temporary_files_stay(self, make_table, tmp_path):
        make_table(saver_parallel=2).assign([1], [[1.0]]).save(str(tmp_path / "t"))
        assert not list(tmp_path.glob("*tmp*"))

    def test_random_sleep(self, make_table, tmp_path):
        table = make_table().assign([1], [[1.0]])
        table.save(str(tmp_path / "t"), random_sleep_ms=5)
        assert lookup(make_table().restore(str(tmp_path / "t")), [1]) == [[1]]


class TestRoundTrip:
    def test_save_restore(self, make_table, tmp_path):
        make_table().assign_add([-1, 1], [[1.0], [2.0]]).save(str(tmp_path / "t"))
        table = make_table().restore(str(tmp_path / "t"))
        assert lookup(table, [-1, 1]) == [[1], [2]]

    def test_extreme_ids(self, make_table, tmp_path):
        ids = [0, -1, INT64.min, INT64.max]
        make_table().assign(ids, [[1.0], [2.0], [3.0], [4.0]]).save(str(tmp_path / "t"))
        table = make_table().restore(str(tmp_path / "t"))
        assert lookup(table, ids) == [[1], [2], [3], [4]]
        assert table.size().numpy() == 4

    def test_restore_replaces_all_rows(self, make_table, tmp_path):
        table = make_table().assign([1], [[1.0]]).save(str(tmp_path / "t"))
        table = table.assign([1, 2], [[5.0], [6.0]]).restore(str(tmp_path / "t"))
        assert lookup(table, [1, 2]) == [[1], [0]]
        assert table.size().numpy() == 1

    @pytest.mark.parametrize(("written", "read"), [(1, 4), (4, 1), (3, 5)])
    def test_another_number_of_shards(self, make_table, tmp_path, written, read):
        ids = list(range(1000))
        table = make_table(saver_parallel=written)
        table.assign(ids, [[float(i)] for i in ids]).save(str(tmp_path / "a"))
        table = make_table(saver_parallel=read).restore(str(tmp_path / "a"))
        table.save(str(tmp_path / "b"))
        assert len(list(tmp_path.glob("b-*"))) == read
        again = make_table().restore(str(tmp_path / "b"))
        assert lookup(again, ids) == [[i] for i in ids]

    @pytest.mark.parametrize(
        "optimizer",
        [
            entry.AdagradOptimizer(),
            entry.AdadeltaOptimizer(),
            entry.AdamOptimizer(),
            entry.AmsgradOptimizer(),
            entry.MomentumOptimizer(),
            entry.MovingAverageOptimizer(),
            entry.RmspropOptimizer(),
            entry.RmspropV2Optimizer(),
            entry.FtrlOptimizer(),
            entry.FTRLWithGroupSparsityOptimizer(),
            entry.AdaGradWithGroupLassoOptimizer(),
            entry.DynamicWdAdagradOptimizer(weight_decay_factor=0.1),
        ],
        ids=lambda optimizer: type(optimizer).__name__,
    )
    def test_restored_table_takes_the_same_next_step(self, make_table, tmp_path, optimizer):
        grads = [[1.0, -2.0], [0.5, 3.0]]
        table = make_table(dim=2, optimizer=optimizer)
        for step in range(3):
            table = table.apply_gradients([7, -8], grads, step, req_time=step)
        table.save(str(tmp_path / "t"))
        restored = make_table(dim=2, optimizer=optimizer).restore(str(tmp_path / "t"))
        entries = [t.lookup_entry([7, -8]).numpy().tolist() for t in (table, restored)]
        assert entries[0] == entries[1]
        after = [lookup(t.apply_gradients([7, -8], grads, 3), [7, -8]) for t in (table, restored)]
        assert after[0] == after[1]
        assert after[0] != [[0, 0], [0, 0]]

    def test_batch_softmax_keeps_its_step(self, make_table, tmp_path):
        optimizer = entry.BatchSoftmaxOptimizer()
        table = make_table(optimizer=optimizer).apply_gradients([1], [[0.0]], 5)
        table.save(str(tmp_path / "t"))
        restored = make_table(optimizer=optimizer).restore(str(tmp_path / "t"))
        # Learning rate 1: the value is the number of steps since the last update.
        assert lookup(restored.apply_gradients([1], [[0.0]], 12), [1]) == [[7]]

    def test_packed_floats_are_read_too(self, make_table, tmp_path):
        # id 3, then both floats in one length-delimited field.
        record = b"\x09" + struct.pack("<q", 3) + b"\x12\x08" + struct.pack("<2f", 1.5, 2.5)
        record += bytes.fromhex("1a040a021200")
        with tf.io.TFRecordWriter(str(tmp_path / "t-00000-of-00001")) as writer:
            writer.write(record)
        assert lookup(make_table(dim=2).restore(str(tmp_path / "t")), [3]) == [[1.5, 2.5]]

    def test_name_that_starts_another_name(self, make_table, tmp_path):
        make_table().assign([1], [[1.0]]).save(str(tmp_path / "table1"))
        make_table(saver_parallel=2).assign([1], [[2.0]]).save(str(tmp_path / "table10"))
        assert lookup(make_table().restore(str(tmp_path / "table1")), [1]) == [[1]]

    def test_special_characters_in_the_path(self, make_table, tmp_path):
        base = str(tmp_path / "a[0-9]*?" / "t{x}")
        make_table().assign([1], [[1.0]]).save(base)
        assert lookup(make_table().restore(base), [1]) == [[1]]

    def test_memory_file_system(self, make_table):
        make_table().assign([1], [[1.0]]).save("ram://snapshot_test/t")
        assert tf.io.gfile.exists("ram://snapshot_test/t-00000-of-00001")
        assert lookup(make_table().restore("ram://snapshot_test/t"), [1]) == [[1]]

    def test_restoring_goes_past_the_filter(self, make_table, tmp_path):
        make_table().assign([1], [[1.0]]).save(str(tmp_path / "t"))
        filtered = single.test_hash_table(1, enable_hash_filter=True, occurrence_threshold=9)
        assert lookup(filtered.restore(str(tmp_path / "t")), [1]) == [[1]]


class TestExpiry:
    NEWEST = 10**7

    def save_and_restore(self, make_table, table, tmp_path):
        table.save(str(tmp_path / "t"))
        return make_table().restore(str(tmp_path / "t"))

    @pytest.mark.parametrize("method", ["assign_add", "apply_gradients"])
    def test_rows_of_yesterday(self, make_table, tmp_path, method):
        times = [self.NEWEST - DAY - 1, self.NEWEST - DAY + 1, self.NEWEST]
        table = make_table(expire_time=1)
        for i, time in enumerate(times):
            value = [[float(i + 1)]]
            arguments = (value, 0) if method == "apply_gradients" else (value,)
            table = getattr(table, method)([i], *arguments, req_time=time)
        sign = -1 if method == "apply_gradients" else 1
        restored = self.save_and_restore(make_table, table, tmp_path)
        assert lookup(restored, [0, 1, 2]) == [[0], [2 * sign], [3 * sign]]
        # Saving leaves out, it does not remove.
        assert lookup(table, [0, 1, 2]) == [[1 * sign], [2 * sign], [3 * sign]]

    def test_exactly_one_day_is_expired(self, make_table, tmp_path):
        table = make_table(expire_time=1).assign([0], [[1.0]], req_time=self.NEWEST - DAY)
        table = table.assign([1], [[2.0]], req_time=self.NEWEST)
        assert lookup(self.save_and_restore(make_table, table, tmp_path), [0, 1]) == [[0], [2]]

    @pytest.mark.parametrize("req_time", [None, 0, 100])
    def test_absent_zero_or_equal_times_drop_nothing(self, make_table, tmp_path, req_time):
        table = make_table(expire_time=1).assign([0, 1], [[1.0], [2.0]], req_time=req_time)
        assert lookup(self.save_and_restore(make_table, table, tmp_path), [0, 1]) == [[1], [2]]

    @pytest.mark.parametrize(
        ("days", "expected"), [(0, [[0], [0]]), (3600, [[1], [2]])], ids=["0", "3600"]
    )
    def test_time_to_live(self, make_table, tmp_path, days, expected):
        table = make_table(expire_time=days).assign([0, 1], [[1.0], [2.0]], req_time=100)
        assert lookup(self.save_and_restore(make_table, table, tmp_path), [0, 1]) == expected

    def test_per_slot(self, make_table, tmp_path):
        config = make_config(expire_time=3600)
        times = config.table_config.slot_expire_time_config.slot_expire_times
        times.add(slot=1, expire_time=0)
        times.add(slot=2, expire_time=1)
        table = make_table(config)
        ids = [1 << 48, 2 << 48, 3 << 48]
        for _ in range(2):  # Twice in a row: the snapshot keeps the times.
            table = table.assign(ids, [[1.0], [2.0], [3.0]], req_time=100)
            table = table.save(str(tmp_path / "t")).restore(str(tmp_path / "t"))
            assert lookup(table, ids) == [[0], [2], [3]]

    def test_restored_rows_expire_later(self, make_table, tmp_path):
        table = make_table(expire_time=1).assign([0], [[1.0]], req_time=self.NEWEST)
        table.save(str(tmp_path / "t"))
        table = make_table(expire_time=1).restore(str(tmp_path / "t"))
        table = table.assign([1], [[2.0]], req_time=self.NEWEST + DAY)
        assert lookup(self.save_and_restore(make_table, table, tmp_path), [0, 1]) == [[0], [2]]

    def test_bad_config(self, make_table, tmp_path):
        table = make_table()
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match=r"Unable to parse config\. Make sure it is serialized version of SlotExpireTime",
        ):
            ops.monolith_hash_table_save(
                table.table, str(tmp_path / "t"), slot_expire_time_config=b"\xff"
            )


class TestWhileOthersWork:
    IDS = np.arange(2000, dtype=np.int64)

    def run_beside(self, work, main):
        """Runs `work` again and again on another thread while `main` runs."""
        stop, failures = threading.Event(), []

        def loop():
            try:
                while not stop.is_set():
                    work()
            except Exception as e:  # noqa: BLE001 - shown by the test's own thread
                failures.append(e)

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            main()
        finally:
            stop.set()
            thread.join()
        assert not failures

    def test_restore_while_training(self, make_table, tmp_path):
        table = make_table(dim=2)
        for value in (1.0, 2.0):
            filled = table.assign(self.IDS, np.full([2000, 2], value, np.float32))
            filled.save(str(tmp_path / f"all_{value:.0f}"))

        zeros = np.zeros([2000, 2], np.float32)

        def train():
            # Updates of zero keep the rows. Each row is that of one snapshot or of the other, and
            # never gone; a call that comes while they are restored in place may see some of both.
            table.apply_gradients(self.IDS, zeros, 0)
            rows = table.lookup(self.IDS).numpy()
            np.testing.assert_array_equal(rows[:, 0], rows[:, 1])
            assert set(np.unique(rows)) <= {1, 2}

        def restore():
            for i in range(30):
                value = 1 + i % 2
                table.restore(str(tmp_path / f"all_{value}"))
                np.testing.assert_array_equal(table.lookup(self.IDS), np.full([2000, 2], value))

        self.run_beside(train, restore)
        assert table.size().numpy() == 2000

    def test_failed_restore_while_training_loses_no_update(self, make_table, tmp_path):
        table = make_table().assign(self.IDS, np.zeros([2000, 1], np.float32))
        table.save(str(tmp_path / "t"))
        file = tmp_path / "t-00000-of-00001"
        file.write_bytes(file.read_bytes()[:-1])
        steps = []

        def train():
            table.apply_gradients(self.IDS, -np.ones([2000, 1], np.float32), 0)
            steps.append(1)

        def restore():
            for _ in range(20):
                with pytest.raises(tf.errors.DataLossError):
                    table.restore(str(tmp_path / "t"))

        self.run_beside(train, restore)
        np.testing.assert_array_equal(table.lookup(self.IDS), np.full([2000, 1], len(steps)))

    def test_save_while_training_and_growing(self, make_table, tmp_path):
        table = make_table(dim=2, saver_parallel=2)
        table.assign(self.IDS, np.ones([2000, 2], np.float32))
        fresh_id = iter(range(10**6, 10**7))

        def train():
            # Both floats of a row change together.
            table.apply_gradients(self.IDS, -np.ones([2000, 2], np.float32), 0)
            new_ids = [next(fresh_id) for _ in range(100)]
            table.assign(new_ids, np.ones([100, 2], np.float32))

        def save():
            for i in range(10):
                table.save(str(tmp_path / f"t{i}"))
                restored = make_table(dim=2).restore(str(tmp_path / f"t{i}"))
                rows = restored.lookup(self.IDS).numpy()
                assert rows.min() >= 1
                np.testing.assert_array_equal(rows[:, 0], rows[:, 1])

        self.run_beside(train, save)
