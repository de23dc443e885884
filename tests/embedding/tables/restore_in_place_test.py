"""Restoring into a table that has rows: no second table, and nothing is lost."""

import os
import pathlib
import threading

import numpy as np
import pytest
import tensorflow as tf
from support.snapshots import make_config

from monolith.embedding import entry
from monolith.embedding.tables import single
from monolith.native import ops

DIM = 64
ROWS = 60_000
DAY = 24 * 60 * 60
NEWEST = 1_700_000_000
BOTH = np.arange(ROWS // 2, ROWS)  # Ids of the table that the snapshot has, too.


@pytest.fixture
def make_table(request):
    """Makes tables of rows with `value` for some ids; about 33 MB for `ROWS` ids."""
    handles = []

    def make(ids=(), value=0.0, now=NEWEST):
        table = single.hash_table_from_config(
            make_config(DIM, entry.AdagradOptimizer(), expire_time=1),
            name_suffix=f"{request.node.name}{len(handles)}",
            saver_parallel=4,
        )
        handles.append(table.table)
        return write(table, ids, value, now)

    yield make
    for handle in handles:
        tf.raw_ops.DestroyResourceOp(resource=handle)


def write(table, ids, value, now=NEWEST):
    """Gives ids rows full of `value`, whose accumulators differ from id to id."""
    for some in np.array_split(np.asarray(ids, np.int64), max(1, len(ids) // 10_000)):
        table.assign(some, np.full([len(some), DIM], value, np.float32), req_time=now)
        gradients = np.repeat(np.sin(some)[:, None], DIM, axis=1).astype(np.float32)
        time, step = tf.constant([now, 0], tf.int64)
        ops.monolith_hash_table_optimize(table.table, some, gradients, [0.0], time, step)
    return table


def get_rows(table, ids):
    """Returns serialized rows, with optimizer states and times."""
    return ops.monolith_hash_table_lookup_entry(table.table, np.asarray(ids, np.int64)).numpy()


def assert_same(table, expected, ids):
    np.testing.assert_array_equal(get_rows(table, ids), get_rows(expected, ids))
    assert table.size().numpy() == expected.size().numpy()


def read_memory(field):
    """Returns bytes of this process that are in RAM, now (VmRSS) or at most (VmHWM)."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(field)


def measure_extra_memory(call):
    """Returns how much more memory the process had at most during the call than before."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # Forgets the peak.
    before = read_memory("VmRSS")
    call()
    return read_memory("VmHWM") - before


def get_row_bytes(rows):
    """Returns the memory of rows: header, values and accumulators."""
    return rows * (16 + 2 * 4 * DIM)


def cut_when_rows_go(table, size, file, length, done):
    """Waits until the table has another size, then cuts the file off; or until it is too late."""
    while not done.is_set():
        if table.size().numpy() != size:
            os.truncate(file, length)
            return


class TestMemory:
    def test_other_rows_take_the_place_of_those_that_go(self, make_table, tmp_path):
        saved = make_table(np.arange(ROWS // 2, ROWS // 2 + ROWS), 2.0)
        saved.save(str(tmp_path / "t"))
        table = make_table(np.arange(ROWS), 1.0)
        extra = measure_extra_memory(lambda: table.restore(str(tmp_path / "t")))
        assert extra < 0.3 * get_row_bytes(ROWS)
        assert_same(table, saved, np.arange(2 * ROWS))

    def test_a_save_that_leaves_out_what_has_expired(self, make_table, tmp_path):
        # What HashTableRestorerSaverListener does to evict.
        table = make_table(np.arange(ROWS // 2), 1.0, now=NEWEST - 2 * DAY)
        write(table, BOTH, 2.0)

        def roll_over():
            table.save(str(tmp_path / "t"))
            table.restore(str(tmp_path / "t"))

        assert measure_extra_memory(roll_over) < 0.3 * get_row_bytes(ROWS)
        assert_same(table, make_table(BOTH, 2.0), np.arange(ROWS))

    def test_memory_of_rows_that_are_much_fewer_is_given_back(self, make_table, tmp_path):
        saved = make_table([1, 2, 3], 2.0)
        saved.save(str(tmp_path / "t"))
        table = make_table(np.arange(ROWS), 1.0)
        table.restore(str(tmp_path / "t"))
        assert_same(table, saved, np.arange(ROWS))
        row_bytes = ops.monolith_multi_hash_table_stats(table.table).row_bytes.numpy().sum()
        assert row_bytes < get_row_bytes(ROWS) / 2


class TestDamage:
    @pytest.fixture
    def table(self, make_table):
        return make_table(np.arange(ROWS), 1.0)

    @pytest.fixture
    def files(self, make_table, tmp_path):
        """The data files of a snapshot about as large as the table."""
        make_table(np.arange(ROWS // 2, ROWS // 2 + ROWS), 2.0).save(str(tmp_path / "t"))
        return [tmp_path / f"t-0000{i}-of-00004" for i in range(4)]

    def test_nothing_has_changed_after_an_error(self, table, files, make_table, tmp_path):
        whole = files[3].read_bytes()
        for damaged in (whole[:-100], whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:]):
            files[3].write_bytes(damaged)
            with pytest.raises(tf.errors.DataLossError, match=str(files[3])):
                table.restore(str(tmp_path / "t"))
            assert_same(table, make_table(np.arange(ROWS), 1.0), np.arange(2 * ROWS))
        # The marks of these tries do not count.
        files[3].write_bytes(whole)
        table.restore(str(tmp_path / "t"))
        assert table.size().numpy() == ROWS
        assert table.lookup([0, ROWS]).numpy()[:, 0].tolist() == [0, 2]

    def test_a_file_that_breaks_after_the_check(self, table, files, tmp_path):
        whole = files[3].read_bytes()
        # Somebody cuts a file off between the two passes: when the first rows are gone. That may
        # come too late, so it is tried until it does not.
        for _ in range(50):
            files[3].write_bytes(whole)
            write(table, np.arange(ROWS), 1.0)
            done = threading.Event()
            args = (table, table.size().numpy(), files[3], len(whole) - 100, done)
            thread = threading.Thread(target=cut_when_rows_go, args=args)
            thread.start()
            try:
                table.restore(str(tmp_path / "t"))
            except tf.errors.DataLossError as error:
                message = error.message
                break
            finally:
                done.set()
                thread.join()
        else:
            pytest.fail("No file was cut off in time.")
        assert str(files[3]) in message
        assert "some of their rows are in the table now, others are not" in message
        # Rows are whole, of the snapshot or of before, and restoring again mends it.
        values = table.lookup(np.arange(2 * ROWS)).numpy()
        assert (values == values[:, :1]).all()
        assert set(np.unique(values)) <= {0, 1, 2}
        files[3].write_bytes(whole)
        table.restore(str(tmp_path / "t"))
        assert table.size().numpy() == ROWS
        assert (table.lookup(np.arange(ROWS // 2, ROWS)).numpy() == 2).all()


def test_time_starts_anew(make_table, tmp_path):
    # The rows that come are days older than those that go, and have not expired all the same.
    old = make_table(BOTH, 2.0, now=NEWEST - 9 * DAY)
    old.save(str(tmp_path / "old"))
    table = make_table(np.arange(ROWS), 1.0)
    table.restore(str(tmp_path / "old"))
    table.save(str(tmp_path / "new"))
    assert_same(make_table().restore(str(tmp_path / "new")), old, np.arange(ROWS))


def test_deltas(make_table, tmp_path):
    source = make_table(np.arange(ROWS // 2), 2.0, now=NEWEST - DAY - 100)
    ops.monolith_table_track_touched(source.table, capacity=ROWS)
    write(source, BOTH, 2.0, now=NEWEST - DAY // 2)
    # Nothing has expired yet at the newest update of the full snapshot: it has all rows.
    source.save(str(tmp_path / "full"))
    write(source, BOTH[:100], 3.0)
    ops.monolith_table_gather_touched(source.table)
    ops.monolith_hash_table_evict(source.table, tf.constant(NEWEST, tf.int64))
    ops.monolith_table_gather_touched(source.table)
    ops.monolith_table_save_touched(source.table, str(tmp_path / "delta"))
    table = make_table(np.arange(100, ROWS + 100), 1.0)
    layers = [str(tmp_path / "full"), str(tmp_path / "delta")]
    ops.monolith_table_restore_layers(table.table, layers, tf.constant([0, 1], tf.int64))
    assert_same(table, source, np.arange(ROWS + 100))
    assert table.lookup([0, BOTH[0], BOTH[100]]).numpy()[:, 0].tolist() == [0, 3, 2]


def test_lookups_meanwhile_find_old_rows_or_new_ones(make_table, tmp_path):
    make_table(BOTH, 2.0).save(str(tmp_path / "t"))
    table = make_table(np.arange(ROWS), 1.0)
    found = set()
    done = threading.Event()

    def look_up():
        ids = tf.constant(BOTH[::100])
        while not done.is_set():
            found.update(np.unique(table.lookup(ids).numpy()).tolist())

    thread = threading.Thread(target=look_up)
    thread.start()
    table.restore(str(tmp_path / "t"))
    done.set()
    thread.join()
    assert found
    assert found <= {1, 2}
