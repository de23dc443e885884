"""Feature ids that carry the number of their slot, in two versions, and how to make them.

| | v1 | v2 |
| --- | --- | --- |
| signature | low 54 bits | low 48 bits |
| slot | the 10 bits above, 0 to 1023 | the 15 bits above, 0 to 32767 |
| bit 63 | part of the slot | 0 |

They are 64 bits without a sign, and tensors carry them as int64 with the same bits. The functions
here take and return plain integers, or NumPy arrays of uint64; `to_int64` makes of them what
tensors carry.

Example:
    >>> fid = make_v1(slot=549, signature=12)
    >>> get_slot_v1(fid), get_slot_v2(convert_v1_to_v2(fid))
    (549, 549)
    >>> int(to_int64(make_v1(slot=1023, signature=0)))
    -18014398509481984
    >>> int(extract_fid(185, 4))
    1153447759131936
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors

MASK_V1 = (1 << 54) - 1
MAX_SLOT_V1 = 1023
MASK_V2 = (1 << 48) - 1
# As the original's generator of data has it; a slot of version 2 has 15 bits.
MAX_SLOT_V2 = 65535

NUM_SLOTS_V1 = 1 << 10
NUM_SLOTS_V2 = 1 << 15

# Constants of CityHash64 for 8 bytes.
_K2 = 0x9AE16A3B2F90404F
_MUL = (_K2 + 2 * 8) % 2**64
_HASH_MASK = (1 << 49) - 1


def make_v1(slot: int, signature: Any) -> Any:
    """Returns fids of version 1.

    Raises:
        errors.ConfigError: There is no such slot.
    """
    return (_check_slot(slot, NUM_SLOTS_V1) << 54) | (signature & MASK_V1)


def make_v2(slot: int, signature: Any) -> Any:
    """Returns fids of version 2.

    Raises:
        errors.ConfigError: There is no such slot.
    """
    return (_check_slot(slot, NUM_SLOTS_V2) << 48) | (signature & MASK_V2)


def get_slot_v1(fid: Any) -> Any:
    """Returns the slots of fids of version 1."""
    return (fid >> 54) & (NUM_SLOTS_V1 - 1)


def get_slot_v2(fid: Any) -> Any:
    """Returns the slots of fids of version 2."""
    return (fid >> 48) & (NUM_SLOTS_V2 - 1)


def convert_v1_to_v2(fid: Any) -> Any:
    """Returns fids with the same slot and the low 48 bits of the signature."""
    return (fid & MASK_V2) | (get_slot_v1(fid) << 48)


def switch_slot(ragged: tf.RaggedTensor | tf.Tensor, slot: int) -> tf.RaggedTensor | tf.Tensor:
    """Returns fids of version 2 with the same signatures in another slot, so in its table.

    Args:
        ragged: int64, of any shape.
        slot: 0 to 32767.

    Raises:
        errors.ConfigError: There is no such slot.

    Example:
        >>> fid = switch_slot(tf.ragged.constant([[make_v2(3, 7)], []], dtype=tf.int64), 5)
        >>> fid.to_list() == [[make_v2(5, 7)], []]
        True
    """
    first = _check_slot(slot, NUM_SLOTS_V2) << 48

    def switch(values: tf.Tensor) -> tf.Tensor:
        return tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(values, MASK_V2), first)

    if isinstance(ragged, tf.RaggedTensor):
        return ragged.with_flat_values(switch(ragged.flat_values))
    return switch(tf.convert_to_tensor(ragged, tf.int64))


def to_int64(fid: Any) -> np.ndarray:
    """Returns the same bits as signed integers, which is what tensors carry."""
    return np.asarray(fid, np.uint64).astype(np.int64)


def extract_fid(x: tf.Tensor | int, slot: int) -> tf.Tensor:
    """Returns fids of version 2 that are hashes of integers: of any tensor of int64.

    Raises:
        errors.ConfigError: There is no such slot.
    """
    first = _check_slot(slot, NUM_SLOTS_V2) << 48
    # The hash has one bit more than a signature, as in the original.
    hashed = tf.cast(_hash(tf.convert_to_tensor(x, tf.int64)), tf.int64)
    return tf.bitwise.bitwise_or(tf.bitwise.bitwise_and(hashed, _HASH_MASK), first)


def gen_fids_v1(slot: int, size: int = 1) -> list[int]:
    """Returns random fids of a slot for tests, none unless 0 < slot < 1023."""
    return _generate(slot, size, 54) if 0 < slot < MAX_SLOT_V1 else []


def gen_fids_v2(slot: int, size: int = 1) -> list[int]:
    """Returns random fids of a slot for tests, which must be 0 < slot < 65535."""
    assert 0 < slot < MAX_SLOT_V2, f"There is no slot {slot}; it must be 0 < slot < {MAX_SLOT_V2}."
    return _generate(slot, size, 48)


def _generate(slot: int, size: int, bits: int) -> list[int]:
    return [(slot << bits) | int(sig) for sig in np.random.randint(0, 1 << bits, size)]


def check_slots(slots: Iterable[int]) -> list[int]:
    """Returns slots as a list; those that no version of fids has are refused.

    Raises:
        errors.ConfigError: There is no such slot.
    """
    return [_check_slot(slot, NUM_SLOTS_V2) for slot in slots]


def _check_slot(slot: int, num_slots: int) -> int:
    if not 0 <= slot < num_slots:
        raise errors.ConfigError(f"slot should be less than {num_slots}, while got {slot}")
    return slot


def _hash(x: tf.Tensor) -> tf.Tensor:
    """CityHash64 of the 8 bytes of each integer, little-endian."""
    b = tf.cast(x, tf.uint64)
    mul = tf.constant(_MUL, tf.uint64)
    a = b + tf.constant(_K2, tf.uint64)
    c = _rotate(b, 37) * mul + a
    d = (_rotate(a, 25) + b) * mul
    first = tf.bitwise.bitwise_xor(c, d) * mul
    first = tf.bitwise.bitwise_xor(first, _shift_right(first, 47))
    second = tf.bitwise.bitwise_xor(d, first) * mul
    second = tf.bitwise.bitwise_xor(second, _shift_right(second, 47))
    return second * mul


def _shift_right(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, tf.constant(bits, tf.uint64))


def _rotate(x: tf.Tensor, bits: int) -> tf.Tensor:
    left = tf.bitwise.left_shift(x, tf.constant(64 - bits, tf.uint64))
    return tf.bitwise.bitwise_or(_shift_right(x, bits), left)
