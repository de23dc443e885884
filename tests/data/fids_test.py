"""Fids of both versions: their bits, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import fids


def test_slot_and_signature_are_the_bits_of_the_specification():
    assert fids.make_v1(549, 12) == 549 * 2**54 + 12
    assert fids.make_v2(32767, 1 << 48) == 32767 * 2**48  # The signature has 48 bits.
    assert fids.make_v1(1023, 1 << 54) == 1023 * 2**54
    assert fids.get_slot_v1(fids.make_v1(1023, 5)) == 1023
    assert fids.get_slot_v2((1 << 63) | fids.make_v2(7, 5)) == 7


def test_arrays_are_converted_as_numbers_are():
    values = np.array([fids.make_v1(3, (1 << 50) + 9), fids.make_v1(1023, 1)], np.uint64)
    assert fids.convert_v1_to_v2(values).tolist() == [3 * 2**48 + 9, 1023 * 2**48 + 1]
    # 1023 * 2^54 + 1 - 2^64
    assert fids.to_int64(values)[1] == -(2**54) + 1


@pytest.mark.parametrize(("make", "slots"), [(fids.make_v1, 1024), (fids.make_v2, 32768)])
def test_a_slot_that_does_not_exist_is_refused(make, slots):
    with pytest.raises(
        errors.ConfigError, match=f"slot should be less than {slots}, while got {slots}"
    ):
        make(slots, 0)


def test_extract_fid_is_the_hash_of_the_original():
    assert int(fids.extract_fid(185, 4)) == 1153447759131936  # From the specification.
    many = fids.extract_fid(tf.constant([[185], [-1]], tf.int64), 4)
    assert many.shape == (2, 1)
    # The hash has one bit more than a signature, so that a slot is even or the next one.
    assert set(fids.get_slot_v2(many.numpy().ravel())) <= {4, 5}


def test_generated_fids_have_their_slot():
    assert [fids.get_slot_v1(fid) for fid in fids.gen_fids_v1(7, 3)] == [7] * 3
    assert [fids.get_slot_v2(fid) for fid in fids.gen_fids_v2(7)] == [7]
    assert fids.gen_fids_v1(1023) == []
    with pytest.raises(AssertionError):
        fids.gen_fids_v2(65535)


def test_a_switched_slot_keeps_the_signature():
    values = [fids.make_v2(3, (1 << 48) - 1), fids.make_v2(32767, 5)]
    expected = [fids.make_v2(9, (1 << 48) - 1), fids.make_v2(9, 5)]
    nested = tf.ragged.constant([[[values[0]], []], [[values[1]]]], dtype=tf.int64)
    assert fids.switch_slot(nested, 9).to_list() == [[[expected[0]], []], [[expected[1]]]]
    assert fids.switch_slot(tf.constant([values], tf.int64), 9).numpy().tolist() == [expected]
    switched = tf.function(lambda ids: fids.switch_slot(ids, 32767))(tf.constant(values, tf.int64))
    assert fids.get_slot_v2(switched.numpy()).tolist() == [32767, 32767]
    with pytest.raises(errors.ConfigError, match="slot should be less than 32768, while got 32768"):
        fids.switch_slot(nested, 32768)
