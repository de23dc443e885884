"""Tensors on the wire: `TensorProto` to NumPy and back, without trust in what a client sends.

A tensor may be written as raw bytes, as a list of values, or as fewer values of which the last one
counts for the rest. The latter lets a message of a few bytes stand for any amount of memory, so
reading has a limit.

Example:
    >>> proto = write_tensor(np.array([[1.5, 2.5]], np.float32))
    >>> list(proto.float_val)
    [1.5, 2.5]
    >>> read_tensor(proto, max_bytes=100).tolist()
    [[1.5, 2.5]]
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2, types_pb2

from monolith.serving.server import status

# How many bytes an element of a string tensor takes in memory, at least.
_STRING_BYTES = 16

# Field of `TensorProto` with the values of a type. Half-precision numbers are kept as their bits.
_VALUE_FIELDS: Mapping[int, str] = {
    types_pb2.DT_FLOAT: "float_val",
    types_pb2.DT_DOUBLE: "double_val",
    types_pb2.DT_INT32: "int_val",
    types_pb2.DT_INT16: "int_val",
    types_pb2.DT_INT8: "int_val",
    types_pb2.DT_UINT8: "int_val",
    types_pb2.DT_UINT16: "int_val",
    types_pb2.DT_INT64: "int64_val",
    types_pb2.DT_UINT32: "uint32_val",
    types_pb2.DT_UINT64: "uint64_val",
    types_pb2.DT_BOOL: "bool_val",
    types_pb2.DT_STRING: "string_val",
    types_pb2.DT_HALF: "half_val",
    types_pb2.DT_BFLOAT16: "half_val",
}
_NUMPY_TYPES: Mapping[int, np.dtype] = {
    dtype: np.dtype(tf.dtypes.as_dtype(dtype).as_numpy_dtype) for dtype in _VALUE_FIELDS
}
_TYPES: Mapping[np.dtype, int] = {
    numpy_type: dtype for dtype, numpy_type in _NUMPY_TYPES.items() if numpy_type.kind != "O"
}
_BITS_OF_HALF = (types_pb2.DT_HALF, types_pb2.DT_BFLOAT16)
# `float_val` is field 5 and `double_val` field 6; both are packed (wire type 2) on the wire, as the
# very bytes that NumPy has.
_PACKED_TAGS: Mapping[int, bytes] = {
    types_pb2.DT_FLOAT: bytes([5 << 3 | 2]),
    types_pb2.DT_DOUBLE: bytes([6 << 3 | 2]),
}


def is_supported(dtype: int) -> bool:
    """Returns whether tensors of a type (an enum `DataType`) can be sent."""
    return dtype in _VALUE_FIELDS


def get_type_name(dtype: int) -> str:
    """Returns the name of a type that may come from a client, such as 'float32'."""
    try:
        return str(tf.dtypes.as_dtype(dtype).name)
    except TypeError:
        return f"type {dtype}"


def read_tensor(proto: tensor_pb2.TensorProto, *, max_bytes: int) -> np.ndarray:
    """Reads a tensor.

    Args:
        proto: The tensor.
        max_bytes: How much memory it may take.

    Raises:
        RequestError: The message contradicts itself, is of a type that cannot be sent, or stands
            for a larger tensor.
    """
    dtype = proto.dtype
    if not is_supported(dtype):
        raise status.invalid(f"Tensors of {get_type_name(dtype)} cannot be sent to a model.")
    shape = _read_shape(proto)
    numpy_type = _NUMPY_TYPES[dtype]
    is_string = dtype == types_pb2.DT_STRING
    itemsize = _STRING_BYTES if is_string else numpy_type.itemsize
    size = math.prod(shape)
    if size * itemsize > max_bytes:
        raise status.RequestError(
            status.Code.RESOURCE_EXHAUSTED,
            f"A tensor of shape {list(shape)} takes {size * itemsize} bytes; the limit of a "
            f"request is {max_bytes}.",
        )
    content = proto.tensor_content
    if content:
        if is_string:
            raise status.invalid("Strings must be in `string_val`, not in `tensor_content`.")
        return _read_content(content, numpy_type, shape, size)
    values = getattr(proto, _VALUE_FIELDS[dtype])
    if len(values) > size:
        raise status.invalid(
            f"A tensor of shape {list(shape)} has {size} values, the message has {len(values)}."
        )
    if is_string:
        return _read_strings(values, shape, size)
    return _read_values(values, dtype, numpy_type, shape, size)


def write_tensor(array: np.ndarray) -> tensor_pb2.TensorProto:
    """Writes a tensor into the field of its type, where clients look for it."""
    proto = tensor_pb2.TensorProto()
    write_tensor_into(array, proto)
    return proto


def write_tensor_into(array: np.ndarray, proto: tensor_pb2.TensorProto) -> None:
    """Writes a tensor into a message that is empty."""
    dtype = get_type(array)
    proto.dtype = dtype
    for dim in array.shape:
        proto.tensor_shape.dim.add().size = dim
    tag = _PACKED_TAGS.get(dtype)
    if tag is not None:
        content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()
        proto.MergeFromString(tag + _encode_varint(len(content)) + content)
        return
    values = getattr(proto, _VALUE_FIELDS[dtype])
    if dtype == types_pb2.DT_STRING:
        values.extend(_to_bytes(value) for value in array.ravel())
    elif dtype in _BITS_OF_HALF:
        values.extend(array.ravel().view(np.uint16).tolist())
    else:
        values.extend(array.ravel().tolist())


def get_type(array: np.ndarray) -> int:
    """Returns the enum `DataType` of an array.

    Raises:
        RequestError: No message can hold it; a model returns what clients cannot read.
    """
    dtype = _TYPES.get(array.dtype)
    if dtype is None and array.dtype.kind in "OSU":
        return int(types_pb2.DT_STRING)
    if dtype is None:  # The bytes of a number may be in another order.
        dtype = _TYPES.get(array.dtype.newbyteorder("="))
    if dtype is None:
        raise status.RequestError(
            status.Code.UNIMPLEMENTED, f"The model returns {array.dtype}, which cannot be sent."
        )
    return dtype


def _read_shape(proto: tensor_pb2.TensorProto) -> tuple[int, ...]:
    found = proto.tensor_shape
    if found.unknown_rank:
        raise status.invalid("The shape of a tensor must be known.")
    shape = tuple([dim.size for dim in found.dim])
    if shape and min(shape) < 0:
        raise status.invalid(f"The shape of a tensor must be known, got {list(shape)}.")
    if len(shape) > 32:  # What NumPy can have.
        raise status.invalid(f"A tensor has at most 32 dimensions, got {len(shape)}.")
    return shape


def _read_content(
    content: bytes, numpy_type: np.dtype, shape: tuple[int, ...], size: int
) -> np.ndarray:
    expected = size * numpy_type.itemsize
    if len(content) != expected:
        raise status.invalid(
            f"`tensor_content` of a tensor of shape {list(shape)} must have {expected} bytes, got "
            f"{len(content)}."
        )
    if numpy_type.kind == "b":
        # Any other byte than 0 and 1 would be a boolean that is neither.
        return (np.frombuffer(content, np.uint8) != 0).reshape(shape)
    array = np.frombuffer(content, numpy_type)
    return array if len(shape) == 1 else array.reshape(shape)


def _read_strings(values: Any, shape: tuple[int, ...], size: int) -> np.ndarray:
    array = np.empty([size], object)
    if len(values) == size:
        array[:] = list(values)
    elif len(values):
        array[: len(values)] = list(values)
        array[len(values) :] = values[-1]
    else:
        array[:] = b""
    return array.reshape(shape)


def _read_values(
    values: Any, dtype: int, numpy_type: Any, shape: tuple[int, ...], size: int
) -> np.ndarray:
    if not len(values):
        return np.zeros(shape, numpy_type)
    if dtype in _BITS_OF_HALF:
        _check_range(values, np.uint16, dtype)
        read = np.array(values, np.uint16).view(numpy_type)
    else:
        if _VALUE_FIELDS[dtype] == "int_val" and dtype != types_pb2.DT_INT32:
            _check_range(values, numpy_type, dtype)
        read = np.fromiter(values, numpy_type, len(values))
    if len(values) == size:
        return read.reshape(shape)
    array = np.full([size], read[-1], numpy_type)
    array[: len(values)] = read
    return array.reshape(shape)


def _check_range(values: Any, numpy_type: Any, dtype: int) -> None:
    limits = np.iinfo(numpy_type)
    smallest, largest = min(values), max(values)
    if smallest < limits.min or largest > limits.max:
        raise status.invalid(
            f"A tensor of {get_type_name(dtype)} has values from {limits.min} to {limits.max}, "
            f"got {smallest} to {largest}."
        )


def _to_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
