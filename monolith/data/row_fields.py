"""Fields of serialized rows as tensors, by their names: labels, and what stands in the LineId.

A row is a serialized Instance or Example, and here as everywhere one alone or many at once. Unlike
the parsers, which give a number of values that is agreed on, these give as many as there are.

Example:
    >>> example = example_pb2.Example(label=[1, 0])
    >>> example.line_id.actions.extend([7, 9])
    >>> row = example.SerializeToString()
    >>> read_labels([row, b""], "example").to_list()
    [[1.0, 0.0], []]
    >>> read_line_id([row, b""], "actions", "example").to_list()
    [[7, 9], []]
"""

import functools
from typing import Any

import tensorflow as tf
from google.protobuf import descriptor, descriptor_pb2

from monolith import errors
from monolith.proto import example_pb2, line_id_pb2, proto_parser_pb2

MESSAGES = {"instance": proto_parser_pb2.Instance, "example": example_pb2.Example}

_FIELD = descriptor.FieldDescriptor


def check_type(variant_type: str) -> str:
    """Returns what rows are, if they are rows.

    Raises:
        errors.ConfigError: They are none.
    """
    if variant_type not in MESSAGES:
        raise errors.ConfigError(
            f"`variant_type` is {' or '.join(MESSAGES)}, got {variant_type!r}; make rows of "
            "batches first."
        )
    return variant_type


def read_labels(rows: tf.Tensor, variant_type: str) -> tf.RaggedTensor:
    """Returns all labels of rows, `[rows, None]`.

    Args:
        rows: Several rows, `[rows]`.
        variant_type: What they are, `instance` or `example`.

    Raises:
        tf.errors.DataLossError: A row is damaged.
    """
    return _read(rows, MESSAGES[check_type(variant_type)].DESCRIPTOR, "label", tf.float32)


def read_line_id(rows: tf.Tensor, field_name: str, variant_type: str) -> tf.RaggedTensor:
    """Returns all values of a field of the LineIds of rows, `[rows, None]`.

    A field that is not set has no value.

    Args:
        rows: Several rows, `[rows]`.
        field_name: The field. Integers become int64, with the same bits.
        variant_type: What the rows are, `instance` or `example`.

    Raises:
        errors.ConfigError: There is no such field.
        tf.errors.DataLossError: A row is damaged.
    """
    message = MESSAGES[check_type(variant_type)].DESCRIPTOR
    line_ids = _read(rows, message, "line_id", tf.string)
    # One, or none, which joins to an empty one.
    return read_field_of_line_ids(tf.strings.reduce_join(line_ids, axis=1), field_name)


def read_field_of_line_ids(line_ids: tf.Tensor, field_name: str) -> tf.RaggedTensor:
    """Returns all values of a field of serialized LineIds, as `read_line_id` does of rows.

    Args:
        line_ids: `[rows]`; an empty one has no values.
        field_name: The field.

    Raises:
        errors.ConfigError: There is no such field.
        tf.errors.DataLossError: A LineId is damaged.
    """
    field = line_id_pb2.LineId.DESCRIPTOR.fields_by_name.get(field_name)
    if field is None:
        raise errors.ConfigError(f"{field_name} is not in line id, pls check!")
    values = _read(line_ids, line_id_pb2.LineId.DESCRIPTOR, field_name, _find_type(field))
    is_integer = values.dtype.is_integer or values.dtype == tf.bool
    return tf.cast(values, tf.int64) if is_integer else values


def _find_type(field: Any) -> tf.DType:
    if field.cpp_type == _FIELD.CPPTYPE_BOOL:
        return tf.bool
    if field.cpp_type == _FIELD.CPPTYPE_STRING:
        return tf.string
    if field.cpp_type == _FIELD.CPPTYPE_FLOAT:
        return tf.float32
    if field.cpp_type == _FIELD.CPPTYPE_INT32:
        return tf.int32
    return tf.uint64 if field.cpp_type == _FIELD.CPPTYPE_UINT64 else tf.int64


def _read(rows: tf.Tensor, message: Any, field: str, dtype: tf.DType) -> tf.RaggedTensor:
    found = tf.io.decode_proto(
        tf.convert_to_tensor(rows, tf.string),
        message.full_name,
        [field],
        [dtype],
        descriptor_source=_describe_messages(),
    )
    sizes = tf.cast(found.sizes[:, 0], tf.int64)
    return tf.RaggedTensor.from_tensor(found.values[0], lengths=sizes)


@functools.cache
def _describe_messages() -> bytes:
    """Returns all messages of rows, as TensorFlow wants them described."""
    files = descriptor_pb2.FileDescriptorSet()
    known: set[str] = set()

    def add(file: Any) -> None:
        if file.name in known:
            return
        known.add(file.name)
        # What a file imports stands before it.
        for needed in file.dependencies:
            add(needed)
        file.CopyToProto(files.file.add())

    for message in MESSAGES.values():
        add(message.DESCRIPTOR.file)
    return b"bytes://" + files.SerializeToString()
