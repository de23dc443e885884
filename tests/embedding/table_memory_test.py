"""What `ml.Table.memory()` says, against the bytes that a row is made of."""

import numpy as np
import pytest
import tensorflow as tf

import monolith as ml
from monolith import errors
from monolith.embedding.table_memory import TableMemory

NUM_ROWS = 50_000
# Rows are handed out in blocks of 16, of which each of the 64 parts of a table fills one.
MOST_SPARE_ROWS = 16 * 64


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [pytest.param(ml.SGD(0.1), 0, id="sgd"), pytest.param(ml.Adagrad(0.1), 8, id="adagrad")],
)
def test_memory_is_that_of_the_rows(optimizer, state):
    table = ml.Table("rows", 8, optimizer)
    assert (table.memory().rows, table.memory().row_bytes) == (0, 0)
    assert table.memory().bytes_per_row == 0.0
    table.assign(np.arange(NUM_ROWS), np.zeros([NUM_ROWS, 8], np.float32))
    memory = table.memory()
    assert memory.rows == len(table) == NUM_ROWS
    # Id, time and a mark are 16 bytes; then 8 values, and Adagrad's squares of them.
    one_row = 16 + 4 * (8 + state)
    assert NUM_ROWS * one_row <= memory.row_bytes <= (NUM_ROWS + MOST_SPARE_ROWS) * one_row
    # A tag and a number are 5 bytes, in buckets that are at least a third full.
    assert 5 * NUM_ROWS <= memory.index_bytes <= 16 * NUM_ROWS
    assert memory.total_bytes == memory.row_bytes + memory.index_bytes
    assert memory.bytes_per_row == memory.total_bytes / NUM_ROWS


def test_places_of_removed_rows_are_used_again():
    table = ml.Table("rows", 4, ml.SGD(0.1), expire_after_days=1)
    ids = np.arange(10_000)
    table.assign(ids, np.zeros([10_000, 4], np.float32))
    full = table.memory()
    assert table.evict(now=2**31) == 10_000
    assert table.memory() == full._replace(rows=0)
    table.assign(ids, np.zeros([10_000, 4], np.float32))
    assert table.memory() == full


def test_memory_in_a_session():
    with tf.Graph().as_default():
        table = ml.Table("rows", 2, ml.SGD(0.1))
        assign = table.assign([7, 8], [[1.0, 1.0], [2.0, 2.0]])
        with pytest.raises(errors.ConfigError, match="memory"):
            table.memory()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(assign)
            memory = table.memory()
    assert memory.rows == 2
    assert memory.row_bytes in (16 * 24, 2 * 16 * 24)  # One block of 16 rows, or two.


def test_it_reads_as_a_sentence():
    memory = TableMemory(rows=2_000, row_bytes=48_000, index_bytes=16_000)
    assert str(memory) == "2,000 rows in 64,000 bytes, 32.0 bytes per row"
