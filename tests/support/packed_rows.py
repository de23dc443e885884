"""Rows in their serving form, by NumPy: what `csrc/core/row/serving_form.h` makes of them."""

import struct

import numpy as np

# The numbers of the compressors in a form.
FP32, FP16, FIXED_R8, ONE_BIT = 1, 2, 3, 4


def make_form(kind: int, dim: int, setting: float | None = None) -> int:
    """Returns the number of a form of one segment: FNV-1a of what its bytes depend on."""
    text = struct.pack("<Ii", kind, dim)
    if setting is not None:
        text += struct.pack("<f", setting)
    number = 0xCBF29CE484222325
    for byte in text:
        number = (number ^ byte) * 0x100000001B3 % 2**64
    return number - 2**64 if number >= 2**63 else number


def pack(kind: int, rows: np.ndarray, r: float = 1.0) -> np.ndarray:
    """Returns the bytes of rows of one segment, each filled up to a multiple of 4."""
    if kind == FP16:
        values = rows.astype("<f2")
    elif kind == FIXED_R8:
        # To the nearest multiple of r/128, halves away from zero.
        steps = np.trunc(rows * 128 / r + np.copysign(0.5, rows))
        values = np.clip(steps, -128, 127).astype(np.int8)
    elif kind == ONE_BIT:
        values = np.where(rows > 0, 1, -1).astype(np.int8)
    else:
        values = rows.astype("<f4")
    packed = values.view(np.uint8).reshape(len(rows), -1)
    return np.pad(packed, ((0, 0), (0, -packed.shape[1] % 4)))
