"""Ids for things that have names: strings hashed to 63 bits, the same everywhere and for ever.

A table's rows are found by the ids they were trained with, so the hash must not change between
machines, releases or languages. It is FarmHash's `Fingerprint64` of the UTF-8 bytes, modulo
2^63 - 1: never negative, and what `tf.strings.to_hash_bucket_fast(strings, 2**63 - 1)` computes.
`Fingerprint64` is public (github.com/google/farmhash, BigQuery's FARM_FINGERPRINT, Guava's
farmHashFingerprint64) and promises to give the same values for ever. Among a million strings two
share an id with a probability of about 1 in 18 million, among a billion about 1 in 18.

`hash_strings` is for tensors, in graphs too; `hash_string` is plain Python, for a program that only
wants to look one id up, or that writes data where TensorFlow is not at hand.

Example:
    >>> hash_string("The Silent Cellar")
    8584092784043921916
    >>> hash_strings(["The Silent Cellar", ""]).numpy().tolist()
    [8584092784043921916, 1936946117179621456]
"""

import struct
from typing import TYPE_CHECKING, Any

from monolith import errors

if TYPE_CHECKING:
    import tensorflow as tf

NUM_IDS = 2**63 - 1

_MASK = 2**64 - 1
_K0 = 0xC3A5C85C97CB3127
_K1 = 0xB492B66FBE98F273
_K2 = 0x9AE16A3B2F90404F


def hash_strings(strings: Any) -> "tf.Tensor | tf.RaggedTensor":
    """Returns the ids of strings, int64, in the shape that `strings` has.

    Args:
        strings: A string tensor, a ragged one, or what TensorFlow makes one of.

    Raises:
        errors.ConfigError: It is a tensor of something else.
    """
    import tensorflow as tf  # Here, so that `hash_string` needs no TensorFlow.

    if not isinstance(strings, tf.RaggedTensor):
        strings = tf.convert_to_tensor(strings)
    if strings.dtype != tf.string:
        raise errors.ConfigError(
            f"hash_strings needs strings but got {strings.dtype.name}; integers are ids already, "
            "use them as they are or convert them with tf.strings.as_string."
        )
    return tf.strings.to_hash_bucket_fast(strings, NUM_IDS)


def hash_string(string: str | bytes) -> int:
    """Returns the id of one string, the same as `hash_strings` gives it."""
    return fingerprint64(string) % NUM_IDS


def fingerprint64(string: str | bytes) -> int:
    """Returns FarmHash's `Fingerprint64` of the UTF-8 bytes, 0 to 2^64 - 1."""
    data = string.encode() if isinstance(string, str) else bytes(string)
    if len(data) <= 16:
        return _hash_up_to_16(data)
    if len(data) <= 32:
        return _hash_17_to_32(data)
    if len(data) <= 64:
        return _hash_33_to_64(data)
    return _hash_over_64(data)


def _hash_up_to_16(data: bytes) -> int:
    size = len(data)
    multiplier = _K2 + 2 * size
    if size >= 8:
        a = _word(data, 0) + _K2
        b = _word(data, size - 8)
        c = _rotate(b, 37) * multiplier + a
        d = (_rotate(a, 25) + b) * multiplier
        return _mix(c, d, multiplier)
    if size >= 4:
        first, last = struct.unpack_from("<I", data)[0], struct.unpack_from("<I", data, size - 4)[0]
        return _mix(size + (first << 3), last, multiplier)
    if size > 0:
        y = data[0] + (data[size // 2] << 8)
        z = size + (data[-1] << 2)
        return _shift_mix(y * _K2 ^ z * _K0) * _K2 & _MASK
    return _K2


def _hash_17_to_32(data: bytes) -> int:
    multiplier = _K2 + 2 * len(data)
    a = _word(data, 0) * _K1
    b = _word(data, 8)
    c = _word(data, -8) * multiplier
    d = _word(data, -16) * _K2
    return _mix(_rotate(a + b, 43) + _rotate(c, 30) + d, a + _rotate(b + _K2, 18) + c, multiplier)


def _hash_33_to_64(data: bytes) -> int:
    multiplier = _K2 + 2 * len(data)
    a = _word(data, 0) * _K2
    b = _word(data, 8)
    c = _word(data, -8) * multiplier
    d = _word(data, -16) * _K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d
    z = _mix(y, a + _rotate(b + _K2, 18) + c, multiplier)
    e = _word(data, 16) * multiplier
    f = _word(data, 24)
    g = (y + _word(data, -32)) * multiplier
    h = (z + _word(data, -24)) * multiplier
    return _mix(_rotate(e + f, 43) + _rotate(g, 30) + h, e + _rotate(f + a, 18) + g, multiplier)


def _hash_over_64(data: bytes) -> int:
    seed = 81
    x = seed * _K2 + _word(data, 0)
    y = seed * _K1 + 113
    z = _shift_mix(y * _K2 + 113) * _K2
    v = w = (0, 0)

    def absorb(at: int, multiplier: int, factor: int) -> None:
        # One block of 64 bytes; `factor` is 9 for the last one.
        nonlocal x, y, z, v, w
        x = _rotate(x + y + v[0] + _word(data, at + 8), 37) * multiplier
        y = _rotate(y + v[1] + _word(data, at + 48), 42) * multiplier
        x = (x ^ (w[1] * factor)) & _MASK
        y = (y + v[0] * factor + _word(data, at + 40)) & _MASK
        z = _rotate(z + w[0], 33) * multiplier
        v = _hash_32_bytes(data, at, v[1] * multiplier, x + w[0])
        w = _hash_32_bytes(data, at + 32, z + w[1], y + _word(data, at + 16))
        x, z = z & _MASK, x

    tail = (len(data) - 1) % 64
    for at in range(0, len(data) - 1 - tail, 64):
        absorb(at, _K1, factor=1)
    multiplier = _K1 + ((z & 0xFF) << 1)
    # The last 64 bytes, which overlap the block before.
    w = (w[0] + tail, w[1])
    v = (v[0] + w[0], v[1])
    w = (w[0] + v[0], w[1])
    absorb(len(data) - 64, multiplier, factor=9)
    return _mix(
        _mix(v[0], w[0], multiplier) + _shift_mix(y) * _K0 + z,
        _mix(v[1], w[1], multiplier) + x,
        multiplier,
    )


def _hash_32_bytes(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    first, second, third, fourth = struct.unpack_from("<4Q", data, at)
    a += first
    b = _rotate(b + a + fourth, 21)
    c = a
    a += second + third
    b += _rotate(a, 44)
    return (a + fourth) & _MASK, (b + c) & _MASK


def _mix(u: int, v: int, multiplier: int) -> int:
    a = _shift_mix((u ^ v) * multiplier)
    b = _shift_mix((v ^ a) * multiplier)
    return b * multiplier & _MASK


def _shift_mix(value: int) -> int:
    value &= _MASK
    return value ^ (value >> 47)


def _rotate(value: int, bits: int) -> int:
    value &= _MASK
    return (value >> bits | value << (64 - bits)) & _MASK


def _word(data: bytes, at: int) -> int:
    """Returns the 8 bytes at `at`, which counts from the end when negative, little-endian."""
    return struct.unpack_from("<Q", data, at)[0]
