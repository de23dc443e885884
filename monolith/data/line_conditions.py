"""Conditions on a field of a LineId or on a feature, as filters of rows have them.

| op | holds if the value |
| --- | --- |
| `gt`, `ge`, `lt`, `le` | is greater than the operand, greater or equal, less, less or equal |
| `eq`, `neq` | is the operand, or is not |
| `between` | is at least the first of two operands, and less than the second |
| `in`, `not-in` | is one of the operands, or none of them |
| `startswith`, `endswith` | is a text that begins or ends with the operand |
| `any`, `all`, `diff` | of several values: has one of the operands, has them all, has none |

A test is one op over serialized rows, in C++.

Example:
    >>> from monolith.proto import example_pb2
    >>> is_recent = make_condition("req_time", "ge", 100)
    >>> rows = [example_pb2.Example() for _ in range(2)]
    >>> for row, time in zip(rows, (99, 100)):
    ...     row.line_id.req_time = time
    >>> is_recent.test(tf.constant([row.SerializeToString() for row in rows]), "example").numpy()
    array([False,  True])
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor

from monolith import errors
from monolith.data import conversions, files
from monolith.native import ops
from monolith.proto import example_pb2, line_id_pb2

_ORDERS = ("gt", "ge", "lt", "le", "between")
_TEXTS = ("startswith", "endswith")
_LISTS = ("in", "not-in")
_SEVERAL = ("any", "all", "diff")
_SINGLE = ("gt", "ge", "lt", "le", "eq", "neq", "between", *_LISTS, *_TEXTS)
# How the types of a feature are called, and what the op calls them.
_FEATURE_KINDS = {"int64": "int64", "float": "float", "double": "double", "bytes": "string"}
# How far integers of the op reach.
_RANGES = {"int64": (-(1 << 63), (1 << 63) - 1), "uint64": (-(1 << 63), (1 << 64) - 1)}


@dataclasses.dataclass(frozen=True)
class Condition:
    """What can be asked of serialized rows.

    Attributes:
        settings: Those of the op.
    """

    settings: dict[str, Any]

    def test(self, rows: tf.Tensor, variant_type: str) -> tf.Tensor:
        """Returns of which rows it holds.

        Args:
            rows: Serialized rows.
            variant_type: What they are, `instance` or `example`.
        """
        return ops.monolith_row_has_value(rows, format=variant_type, **self.settings)


def make_condition(
    field_name: str,
    op: str,
    operand: Any,
    *,
    keep_empty: bool = False,
    operand_filepath: str | None = None,
) -> Condition:
    """Returns a condition on a field of the LineId.

    Args:
        field_name: A field of the LineId. One that is not set has its default.
        op: What has to hold; the module's page has the list.
        operand: What the value is compared with: one, or several.
        keep_empty: What holds of a repeated field without values.
        operand_filepath: A file with a serialized FilterValues, in place of the operand, for `in`
            and `not-in`.

    Raises:
        errors.ConfigError: There is no such field, or the op does not fit it, or the operand.
        errors.DataError: The file cannot be read.
    """
    field = line_id_pb2.LineId.DESCRIPTOR.fields_by_name.get(field_name)
    if field is None:
        raise errors.ConfigError(f"{field_name} is not in line id, pls check!")
    fitting = _SEVERAL if field.is_repeated else _SINGLE
    if op not in fitting:
        kind = "a repeated" if field.is_repeated else "a single"
        raise errors.ConfigError(
            f"{op!r} does not fit {field_name}, which is {kind} field; choose of "
            f"{', '.join(fitting)}."
        )
    operand = _get_operand(op, operand, operand_filepath)
    return _make_condition(field_name, _get_kind(field), op, operand, keep_empty)


def make_feature_condition(
    field_name: str,
    op: str,
    operand: Any,
    field_type: str,
    *,
    keep_empty: bool = False,
    operand_filepath: str | None = None,
) -> Condition:
    """Returns a condition on a feature of an Example.

    Args:
        field_name: Its name.
        op: What has to hold. `any`, `all` and `diff` look at all values, the others at the first.
        operand: What the values are compared with: one, or several.
        field_type: Their type, `int64`, `float`, `double` or `bytes`.
        keep_empty: What holds of a row without values.
        operand_filepath: As that of `make_condition`.

    Raises:
        errors.ConfigError: The op does not fit the type, or the operand.
        errors.DataError: The file cannot be read.
    """
    if field_type not in _FEATURE_KINDS:
        raise errors.ConfigError(
            f"`field_type` is {', '.join(_FEATURE_KINDS)}, got {field_type!r}."
        )
    if op not in (*_SINGLE, *_SEVERAL):
        raise errors.ConfigError(f"There is no {op!r}; choose of {', '.join(_SINGLE + _SEVERAL)}.")
    operand = _get_operand(op, operand, operand_filepath)
    kind = _FEATURE_KINDS[field_type]
    return _make_condition(field_name, kind, op, operand, keep_empty, is_feature=True)


def _make_condition(
    name: str, kind: str, op: str, operand: Any, keep_empty: bool, *, is_feature: bool = False
) -> Condition:
    is_text = kind == "string"
    if (op in _TEXTS and not is_text) or (op in _ORDERS and is_text):
        raise errors.ConfigError(
            f"{op!r} does not fit {name}, which is {'a text' if is_text else 'a number'}."
        )
    is_one = isinstance(operand, str | bytes) or not isinstance(operand, Sequence | set | frozenset)
    operands = [_convert(name, kind, one) for one in ([operand] if is_one else operand)]
    if op == "between" and len(operands) != 2:
        raise errors.ConfigError(f"`between` has two operands, got {operand!r}.")
    if op not in ("between", *_LISTS, *_SEVERAL) and len(operands) != 1:
        raise errors.ConfigError(f"{op!r} has one operand, got {operand!r}.")
    parameter = {"float": "floats", "string": "strings"}.get(kind, "integers")
    settings = {"field_name": name, "comparison": op, "kind": kind, parameter: operands}
    return Condition({**settings, "keep_empty": keep_empty, "is_feature": is_feature})


def _get_kind(field: Any) -> str:
    if field.cpp_type == descriptor.FieldDescriptor.CPPTYPE_STRING:
        return "string"
    if field.cpp_type == descriptor.FieldDescriptor.CPPTYPE_FLOAT:
        return "float"
    return "uint64" if field.type == descriptor.FieldDescriptor.TYPE_FIXED64 else "int64"


def _convert(name: str, kind: str, operand: Any) -> Any:
    """Returns an operand as the op takes it."""
    if kind == "string":
        if isinstance(operand, str | bytes):
            return operand
    elif kind in _RANGES:
        low, high = _RANGES[kind]
        if isinstance(operand, bool | int | np.integer) and low <= operand <= high:
            # As a tensor has it: with the same bits.
            return (int(operand) + (1 << 63)) % (1 << 64) - (1 << 63)
    elif isinstance(operand, bool | int | float | np.number):
        return float(operand) if kind == "float" else int(np.float64(operand).view(np.int64))
    raise errors.ConfigError(f"{operand!r} cannot be compared with {name}, which is {kind}.")


def _get_operand(op: str, operand: Any, path: str | None) -> Any:
    if (operand is None) == (path is None):
        raise errors.ConfigError("Give either `operand` or `operand_filepath`.")
    if path is None:
        return operand
    if op not in _LISTS:
        raise errors.ConfigError(f"`operand_filepath` is for in and not-in, not for {op!r}.")
    with files.describe_errors(path), tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    try:
        values = conversions.parse(example_pb2.FilterValues, content)
    except errors.DataError as e:
        raise errors.DataError(f"{path!r}: {e}; write a serialized FilterValues there.") from None
    kind = values.WhichOneof("type")
    if kind is None:
        raise errors.DataError(f"{path!r} holds no values; write a serialized FilterValues there.")
    return list(getattr(values, kind).value)
