"""A function of a loaded model: what it takes and gives, and whether a request fits.

Example:
    >>> from tensorflow.core.framework.types_pb2 import DT_FLOAT
    >>> spec = TensorSpec("x", "x:0", DT_FLOAT, (None, 2))
    >>> spec.find_problem(np.zeros([4, 2], np.float32)) is None
    True
    >>> spec.find_problem(np.zeros([4, 3], np.float32))
    "Input 'x' must be of shape [?, 2], got [4, 3]."
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from monolith.serving.server import status, tensors

DEFAULT = "serving_default"
PREDICT = "tensorflow/serving/predict"
CLASSIFY = "tensorflow/serving/classify"
REGRESS = "tensorflow/serving/regress"

Shape = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """An input or an output.

    Attributes:
        name: What clients call it.
        tensor: Its name in the graph.
        dtype: An enum `DataType`.
        shape: The shape, with None for sizes that are open; None if the rank is.
    """

    name: str
    tensor: str
    dtype: int
    shape: Shape | None

    @property
    def has_rows(self) -> bool:
        """Whether the first dimension is open, as that of a batch is."""
        return self.shape is None or (len(self.shape) > 0 and self.shape[0] is None)

    def find_problem(self, array: np.ndarray) -> str | None:
        """Returns a sentence if an array cannot be this input."""
        dtype = tensors.get_type(array)
        if dtype != self.dtype:
            expected, found = map(tensors.get_type_name, (self.dtype, dtype))
            return f"Input {self.name!r} must be of type {expected}, got {found}."
        if self.shape is None or (len(self.shape) == array.ndim == 1 and self.shape[0] is None):
            return None
        if len(array.shape) != len(self.shape) or any(
            expected not in (None, found)
            for expected, found in zip(self.shape, array.shape, strict=True)
        ):
            return (
                f"Input {self.name!r} must be of shape {format_shape(self.shape)}, got "
                f"{list(array.shape)}."
            )
        return None


class Signature:
    """A function of a model.

    Args:
        name: Its name.
        definition: The `SignatureDef`.

    Attributes:
        inputs: What it takes, in the order of the names.
        outputs: What it gives, in the order of the names.
        method: What the function is for, such as `PREDICT`.
        problem: A sentence if it cannot be called, else None.
    """

    def __init__(self, name: str, definition: Any) -> None:
        self.name = name
        self.method = definition.method_name
        self.inputs = _read_specs(definition.inputs)
        self.outputs = _read_specs(definition.outputs)
        self.problem = self._find_problem(definition)
        self._defaults: dict[str, np.ndarray] = {}
        if self.problem is None:
            # Part of the model, which is trusted, so its size is not limited.
            self._defaults = {
                alias: tensors.read_tensor(proto, max_bytes=1 << 62)
                for alias, proto in definition.defaults.items()
                if alias in self.inputs
            }

    def complete(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the inputs in their order.

        Args:
            arrays: Inputs of a request; those that have a default may be missing.

        Raises:
            RequestError: One is missing, unknown, or not what the model takes.
        """
        if arrays.keys() != self.inputs.keys():
            self._check_names(arrays)
        complete = []
        for alias, spec in self.inputs.items():
            array = arrays.get(alias)
            if array is None:
                array = self._defaults[alias]
            elif (problem := spec.find_problem(array)) is not None:
                raise status.invalid(problem)
            complete.append(array)
        return complete

    def _check_names(self, arrays: Mapping[str, np.ndarray]) -> None:
        unknown = sorted(arrays.keys() - self.inputs.keys())
        missing = sorted(self.inputs.keys() - arrays.keys() - self._defaults.keys())
        if unknown or missing:
            parts = [f"{', '.join(map(repr, unknown))} is not among them"] if unknown else []
            parts += [f"{', '.join(map(repr, missing))} is missing"] if missing else []
            raise status.invalid(
                f"Signature {self.name!r} takes the inputs "
                f"{', '.join(map(repr, self.inputs)) or 'nothing'}; {', and '.join(parts)}."
            )

    def choose_outputs(self, output_filter: Sequence[str]) -> tuple[str, ...]:
        """Returns the names of the outputs that a request asks for, all if it names none.

        Raises:
            RequestError: One is not there, or is named twice.
        """
        if not output_filter:
            return tuple(self.outputs)
        for index, alias in enumerate(output_filter):
            if alias not in self.outputs:
                raise status.invalid(
                    f"Signature {self.name!r} has no output {alias!r}; it has "
                    f"{', '.join(map(repr, self.outputs))}."
                )
            if alias in output_filter[:index]:
                raise status.invalid(f"Output {alias!r} is asked for twice.")
        return tuple(output_filter)

    def _find_problem(self, definition: Any) -> str | None:
        infos = (*definition.inputs.values(), *definition.outputs.values())
        if any(info.WhichOneof("encoding") not in ("name", None) for info in infos):
            return "has sparse or ragged inputs or outputs, which a request cannot hold"
        for spec in (*self.inputs.values(), *self.outputs.values()):
            if not tensors.is_supported(spec.dtype):
                name = tensors.get_type_name(spec.dtype)
                return f"has {spec.name!r} of type {name}, which a request cannot hold"
        return None


def format_shape(shape: Shape) -> str:
    """Returns a shape as text, with a question mark for an open size."""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _read_specs(infos: Mapping[str, Any]) -> dict[str, TensorSpec]:
    specs = {}
    for alias in sorted(infos):
        info = infos[alias]
        shape: Shape | None = None
        if not info.tensor_shape.unknown_rank:
            shape = tuple(None if dim.size < 0 else dim.size for dim in info.tensor_shape.dim)
        specs[alias] = TensorSpec(alias, info.name, info.dtype, shape)
    return specs
