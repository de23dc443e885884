"""Tensors as JSON, in the two forms of TensorFlow Serving's REST API.

`{"instances": [...]}` has one element per row, `{"inputs": ...}` the whole of each input; the
answers are `predictions` and `outputs` in the same form. A signature with one input, or one output,
needs no name for it. Bytes are `{"b64": "..."}`.

Example:
    >>> import types
    >>> from tensorflow.core.framework.types_pb2 import DT_FLOAT
    >>> signature = types.SimpleNamespace(
    ...     name="f", inputs={"x": TensorSpec("x", "x:0", DT_FLOAT, (None, 2))})
    >>> arrays, form = read_inputs({"instances": [[1, 2], [3, 4.5]]}, signature)
    >>> arrays["x"].tolist()
    [[1.0, 2.0], [3.0, 4.5]]
    >>> write_outputs({"y": arrays["x"].sum(1)}, form, rows=2)
    {'predictions': [3.0, 7.5]}
"""

import base64
import binascii
import enum
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from monolith.serving.server import status
from monolith.serving.server.signature import Signature, TensorSpec

_BYTES_KEY = "b64"
_BYTES_SUFFIX = "_bytes"
_MAX_SHOWN = 60


class Form(enum.Enum):
    """How a request holds its tensors, and its answer will."""

    ROWS = "instances"
    COLUMNS = "inputs"


def read_inputs(body: Any, signature: Signature) -> tuple[dict[str, np.ndarray], Form]:
    """Reads the inputs of a request.

    Args:
        body: The request, parsed.
        signature: What the model takes.

    Raises:
        RequestError: The request has no inputs, or they do not fit.
    """
    has_rows, has_columns = Form.ROWS.value in body, Form.COLUMNS.value in body
    if has_rows == has_columns:
        raise status.invalid(
            'A request must have either "instances", a list with one element per row, or '
            '"inputs", with the whole of each input.'
        )
    if has_rows:
        columns = _to_columns(body[Form.ROWS.value], signature)
        form = Form.ROWS
    else:
        columns = _name_columns(body[Form.COLUMNS.value], signature)
        form = Form.COLUMNS
    arrays = {name: to_array(value, signature.inputs[name]) for name, value in columns.items()}
    return arrays, form


def write_outputs(arrays: Mapping[str, np.ndarray], form: Form, rows: int) -> dict[str, Any]:
    """Returns an answer.

    Args:
        arrays: The outputs.
        form: That of the request.
        rows: How many rows the request had.

    Raises:
        RequestError: The request was by rows, and the answer is not.
    """
    values = {name: to_json(array, name) for name, array in arrays.items()}
    if form is Form.COLUMNS:
        return {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    for name, array in arrays.items():
        if array.ndim == 0 or len(array) != rows:
            raise status.invalid(
                f"Output {name!r} is of shape {list(array.shape)} and has no row for each of the "
                f'{rows} "instances"; send "inputs" instead.'
            )
    if len(values) == 1:
        return {"predictions": next(iter(values.values()))}
    rows_of_all = zip(*values.values(), strict=True)
    return {"predictions": [dict(zip(values, row, strict=True)) for row in rows_of_all]}


def to_array(value: Any, spec: TensorSpec) -> np.ndarray:
    """Makes an array of nested lists.

    Raises:
        RequestError: They are not of one depth and width, or hold something else.
    """
    shape: list[int] = []
    first = value
    while isinstance(first, list):
        shape.append(len(first))
        if not first:
            break
        first = first[0]
    if len(shape) > 32:
        raise status.invalid(f"Input {spec.name!r} has more than 32 dimensions.")
    flat = [value]
    for depth, size in enumerate(shape):
        if any(type(part) is not list or len(part) != size for part in flat):
            raise status.invalid(
                f"Input {spec.name!r} must be a list of equal lists; not all at depth {depth} "
                f"have {size} elements."
            )
        flat = list(itertools.chain.from_iterable(flat))
    if not flat and spec.shape is not None:
        # An empty list does not tell how wide its elements would be.
        shape += [dim or 0 for dim in spec.shape[len(shape) :]]
    dtype = tf.dtypes.as_dtype(spec.dtype)
    if dtype == tf.string:
        array = np.empty([len(flat)], object)
        array[:] = [_to_bytes(item, spec) for item in flat]
    else:
        array = _to_numbers(flat, dtype, spec)
    return array.reshape(shape)


def to_json(array: np.ndarray, name: str) -> Any:
    """Returns an array as nested lists that `json` can write."""
    kind = array.dtype.kind
    if kind in "OSU":
        is_bytes = name.endswith(_BYTES_SUFFIX)
        flat = [_from_bytes(item, is_bytes) for item in array.ravel()]
        texts = np.empty([len(flat)], object)
        texts[:] = flat
        return texts.reshape(array.shape).tolist()
    if kind in "biu":
        return array.tolist()
    if array.dtype != np.float64:
        # Through text: 0.2 has to stay 0.2, and not become 0.20000000298023224.
        array = array.astype(np.float32).astype("U").astype(np.float64)
    return array.tolist()


def _to_columns(instances: Any, signature: Signature) -> dict[str, Any]:
    if not isinstance(instances, list) or not instances:
        raise status.invalid('"instances" must be a list with at least one element.')
    # A lone object with a "b64" is a value, not a row.
    if not isinstance(instances[0], dict) or _is_bytes(instances[0]):
        return _name_columns(instances, signature)
    columns: dict[str, Any] = {name: [] for name in instances[0]}
    _check_names(columns, signature)
    for row in instances:
        if not isinstance(row, dict) or row.keys() != columns.keys():
            raise status.invalid(
                'All elements of "instances" must be objects with the same inputs; '
                f"{_show(row)} is not like the first."
            )
        for name, value in row.items():
            columns[name].append(value)
    return columns


def _name_columns(value: Any, signature: Signature) -> dict[str, Any]:
    if isinstance(value, dict) and not _is_bytes(value):
        _check_names(value, signature)
        return value
    if len(signature.inputs) != 1:
        raise status.invalid(
            f"Signature {signature.name!r} takes several inputs, "
            f"{', '.join(map(repr, signature.inputs))}; name them."
        )
    return {next(iter(signature.inputs)): value}


def _check_names(names: Any, signature: Signature) -> None:
    for name in names:
        if name not in signature.inputs:
            raise status.invalid(
                f"Signature {signature.name!r} has no input {status.shorten(name)!r}; it has "
                f"{', '.join(map(repr, signature.inputs))}."
            )


def _to_numbers(flat: list[Any], dtype: tf.DType, spec: TensorSpec) -> np.ndarray:
    numpy_type = dtype.as_numpy_dtype
    kinds = {bool} if dtype.is_bool else {int} if dtype.is_integer else {int, float}
    if not set(map(type, flat)) <= kinds:
        wrong = next(item for item in flat if type(item) not in kinds)
        raise status.invalid(
            f"Input {spec.name!r} must be of type {dtype.name}, got {_show(wrong)}."
        )
    try:
        if dtype.is_integer and flat:
            limits = np.iinfo(numpy_type)
            if min(flat) < limits.min or max(flat) > limits.max:
                raise OverflowError
        array = np.array(flat, np.float64) if dtype.is_floating else np.array(flat, numpy_type)
    except OverflowError as e:
        raise status.invalid(f"Input {spec.name!r} has a number beyond {dtype.name}.") from e
    if dtype.is_floating:
        with np.errstate(over="ignore"):
            narrow = array.astype(numpy_type)
        if np.any(np.isinf(narrow.astype(np.float64)) & np.isfinite(array)):
            raise status.invalid(f"Input {spec.name!r} has a number beyond {dtype.name}.")
        array = narrow
    return array


def _to_bytes(item: Any, spec: TensorSpec) -> bytes:
    if isinstance(item, str):
        return item.encode("utf-8", "surrogatepass")
    if not _is_bytes(item):
        raise status.invalid(f"Input {spec.name!r} must be of type string, got {_show(item)}.")
    try:
        return base64.b64decode(item[_BYTES_KEY], validate=True)
    except (binascii.Error, ValueError) as e:
        raise status.invalid(f'Input {spec.name!r} has a "b64" that is not base64: {e}.') from e


def _is_bytes(item: Any) -> bool:
    return (
        isinstance(item, dict) and list(item) == [_BYTES_KEY] and isinstance(item[_BYTES_KEY], str)
    )


def _from_bytes(item: Any, is_bytes: bool) -> Any:
    content = item if isinstance(item, bytes) else str(item).encode()
    if not is_bytes:
        try:
            return content.decode()
        except UnicodeDecodeError:
            pass  # Text cannot hold it.
    return {_BYTES_KEY: base64.b64encode(content).decode()}


def _show(item: Any) -> str:
    text = repr(item)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."
