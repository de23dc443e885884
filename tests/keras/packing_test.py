"""The files of a table as arrays."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers
from monolith.embedding.table import Table
from monolith.keras import packing


def make_table(**settings):
    return Table("scores", 3, optimizers.Adagrad(0.1), **settings)


def test_round_trip_in_pieces(monkeypatch):
    monkeypatch.setattr(packing, "_PIECE_BYTES", 1000)
    table = make_table(admit_after=1)
    rows = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    table.assign(np.arange(500), rows)
    table.apply_gradients(tf.IndexedSlices(tf.ones([1, 3]), tf.constant([-1])))
    arrays = packing.pack(table)
    assert max(array.size for array in arrays.values()) == 1000
    assert all(array.dtype == np.uint8 for array in arrays.values())
    copy = make_table(admit_after=1)
    packing.unpack(arrays, copy)
    np.testing.assert_array_equal(copy(np.arange(500)).numpy(), rows)
    copy.apply_gradients(tf.IndexedSlices(tf.ones([2, 3]), tf.constant([-1, -2])))
    assert len(copy) == 501  # -1 had been counted.


@pytest.mark.parametrize("arrays", [{}, {"0": np.zeros(3)}, {"files": np.zeros(3, np.uint8)}])
def test_other_arrays(arrays):
    with pytest.raises(errors.DataError, match="The file has no rows for table 'scores'"):
        packing.unpack(arrays, make_table())


def test_damage_changes_nothing():
    table = make_table()
    table.assign([7], [[1.0, 2.0, 3.0]])
    arrays = packing.pack(table)
    for key in [key for key in arrays if key != "files"]:
        broken = {**arrays, key: arrays[key].copy()}
        broken[key][broken[key].size // 2] ^= 0xFF
        other = make_table()
        other.assign([8], [[1.0, 1.0, 1.0]])
        with pytest.raises(errors.DataError):
            packing.unpack(broken, other)
        assert other.ids().tolist() == [8]
