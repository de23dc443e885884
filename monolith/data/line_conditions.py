"""Conditions on a field of a LineId, as filters of rows have them.

| op | holds if the value |
| --- | --- |
| `gt`, `ge`, `lt`, `le` | is greater than the operand, greater or equal, less, less or equal |
| `eq`, `neq` | is the operand, or is not |
| `between` | is at least the first of two operands, and less than the second |
| `in`, `not-in` | is one of the operands, or none of them |
| `startswith`, `endswith` | is a text that begins or ends with the operand |
| `any`, `all` | of a repeated field: are at least one of the operands, or have them all |

Example:
    >>> is_recent = make_condition("req_time", "ge", 100)
    >>> [is_recent(line_id_pb2.LineId(req_time=time)) for time in (99, 100)]
    [False, True]
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor

from monolith import errors
from monolith.data import conversions, files
from monolith.proto import example_pb2, line_id_pb2

Condition = Callable[[line_id_pb2.LineId], bool]

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
_EQUALS: dict[str, Callable[[Any, Any], bool]] = {"eq": operator.eq, "neq": operator.ne}
_LISTS: dict[str, Callable[[Any, Any], bool]] = {
    "in": lambda value, operands: value in operands,
    "not-in": lambda value, operands: value not in operands,
}
_TEXTS: dict[str, Callable[[Any, Any], bool]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
}
_REPEATED: dict[str, Callable[[Any, Any], bool]] = {
    "any": lambda values, operands: not operands.isdisjoint(values),
    "all": lambda values, operands: operands.issubset(values),
}
_SINGLE = {**_ORDERS, **_EQUALS, "between": None, **_LISTS, **_TEXTS}


def make_condition(
    field_name: str,
    op: str,
    operand: Any,
    *,
    keep_empty: bool = False,
    operand_filepath: str | None = None,
) -> Condition:
    """Returns what tells whether a condition holds for a LineId.

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
    fitting = _REPEATED if field.is_repeated else _SINGLE
    if op not in fitting:
        kind = "a repeated" if field.is_repeated else "a single"
        raise errors.ConfigError(
            f"{op!r} does not fit {field_name}, which is {kind} field; choose of "
            f"{', '.join(fitting)}."
        )
    if (operand is None) == (operand_filepath is None):
        raise errors.ConfigError("Give either `operand` or `operand_filepath`.")
    if operand_filepath is not None:
        if op not in _LISTS:
            raise errors.ConfigError(f"`operand_filepath` is for in and not-in, not for {op!r}.")
        operand = _read_operands(operand_filepath)
    if field.is_repeated:
        operands = frozenset(_convert_all(field, operand))
        compare = _REPEATED[op]

        def holds_of_all(line_id: line_id_pb2.LineId) -> bool:
            values = getattr(line_id, field_name)
            return compare(values, operands) if values else keep_empty

        return holds_of_all
    test = _make_test(field, op, operand)
    return lambda line_id: test(getattr(line_id, field_name))


def _make_test(field: Any, op: str, operand: Any) -> Callable[[Any], bool]:
    is_text = field.cpp_type == descriptor.FieldDescriptor.CPPTYPE_STRING
    if (op in _TEXTS and not is_text) or ((op in _ORDERS or op == "between") and is_text):
        raise errors.ConfigError(
            f"{op!r} does not fit {field.name}, which is {'a text' if is_text else 'a number'}."
        )
    if op in _LISTS:
        found, compare_list = frozenset(_convert_all(field, operand)), _LISTS[op]
        return lambda value: compare_list(value, found)
    if op == "between":
        bounds = _convert_all(field, operand)
        if len(bounds) != 2:
            raise errors.ConfigError(f"`between` has two operands, got {operand!r}.")
        return lambda value: bounds[0] <= value < bounds[1]
    compare = {**_ORDERS, **_EQUALS, **_TEXTS}[op]
    one = _convert(field, operand)
    return lambda value: compare(value, one)


def _convert_all(field: Any, operands: Any) -> list[Any]:
    if isinstance(operands, str | bytes) or not isinstance(operands, Sequence | set | frozenset):
        operands = [operands]
    return [_convert(field, operand) for operand in operands]


def _convert(field: Any, operand: Any) -> Any:
    if field.cpp_type == descriptor.FieldDescriptor.CPPTYPE_STRING:
        if isinstance(operand, bytes):
            operand = operand.decode(errors="replace")
        if isinstance(operand, str):
            return operand
    elif isinstance(operand, bool | int | float | np.number):
        is_float = field.cpp_type == descriptor.FieldDescriptor.CPPTYPE_FLOAT
        # As the field has it: 0.1 is another number in 32 bits.
        return float(np.float32(operand)) if is_float else operand
    raise errors.ConfigError(f"{operand!r} cannot be compared with {field.name} of a LineId.")


def _read_operands(path: str) -> list[Any]:
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
