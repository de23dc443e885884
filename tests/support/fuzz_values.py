"""Values for fuzzing ops: described as data, so that a call can be printed before it is made.

A call is made of `Array`, `Handle`, `Path` and `Paths`, or lists of them, and of plain attributes.
Nothing here touches TensorFlow's runtime: the process that plans calls forks those that make them.
"""

import dataclasses
import math
import random
from typing import Any

Numbers = list[int] | list[float] | list[bytes] | list[bool]


@dataclasses.dataclass(frozen=True)
class Array:
    """A tensor: `values` flat, none of them if a dimension is 0."""

    dtype: str
    shape: tuple[int, ...]
    values: tuple[Any, ...]

    def __str__(self) -> str:
        shown = ", ".join(str(value) for value in self.values[:8])
        more = ", ..." if len(self.values) > 8 else ""
        return f"{self.dtype}{list(self.shape)}({shown}{more})"


@dataclasses.dataclass(frozen=True)
class Handle:
    """A resource of some kind (see fuzz_resources), made anew for each call.

    `place` tells several of a kind in one call apart; equal places are one resource.
    """

    kind: str
    place: int = 0

    def __str__(self) -> str:
        return f"<{self.kind} {self.place}>"


@dataclasses.dataclass(frozen=True)
class Path:
    """A name of a file or of a snapshot, of some kind (see fuzz_resources).

    `salt` says which of the many ways to damage a file it is.
    """

    kind: str
    salt: int = 0

    def __str__(self) -> str:
        return f"<path: {self.kind} {self.salt}>"


@dataclasses.dataclass(frozen=True)
class Paths:
    """A vector of names."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return f"<paths: {', '.join(str(path) for path in self.paths)}>"


Value = Any  # Array, Handle, Path, Paths, or a list of one of them.


@dataclasses.dataclass
class Call:
    """One call of an op. In a `graph` its shapes are only known as far as `known` says."""

    op: str
    inputs: dict[str, Value]
    attrs: dict[str, Any]
    graph: bool = False
    # What the graph knows of each tensor that goes in: "constant", "all", "rank", "nothing",
    # or the dimensions, with None for those that are open.
    known: list[Any] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        parts = [f"{name}={_show(value)}" for name, value in self.inputs.items()]
        parts += [f"{name}={value!r}"[:200] for name, value in self.attrs.items()]
        how = f" in a graph that knows {self.known}" if self.graph else ""
        return f"{self.op}({', '.join(parts)}){how}"


def _show(value: Value) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(str(one) for one in value) + "]"
    return str(value)


def ints(values: list[int], dtype: str = "int64", shape: tuple[int, ...] | None = None) -> Array:
    return Array(dtype, (len(values),) if shape is None else shape, tuple(values))


def scalar(value: Any, dtype: str = "int64") -> Array:
    return Array(dtype, (), (value,))


def floats(rng: random.Random, *shape: int, dtype: str = "float32") -> Array:
    count = math.prod(shape)
    return Array(dtype, shape, tuple(round(rng.uniform(-2, 2), 3) for _ in range(count)))


def strings(*values: bytes) -> Array:
    return Array("string", (len(values),), values)


ODD_INTS = [
    *(0, 1, 2, 3, -1, -2, 7, 100, 4096),
    *(2**31 - 1, 2**31, -(2**31), 2**32, 2**32 - 1, 2**33 + 1, 2**40, 2**48),
    *(2**61, 2**62, -(2**62), 2**63 - 1, 2**63 - 2, -(2**63), 2**63 // 3),
]
ODD_FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, -3e38, math.inf, -math.inf, math.nan, 0.5]
ODD_BYTES = [
    b"",
    b"\0",
    b"a\0b",
    b"x" * 5000,
    b"\xff\xfe",
    "ü/ß".encode(),
    b"/",
    b".",
    b"%s%n",
    b"-",
]
# No tensor holds more than a few numbers, but a dimension of 0 lets the others be anything.
ODD_SHAPES: list[tuple[int, ...]] = [
    *(
        (),
        (0,),
        (1,),
        (2,),
        (5,),
        (1, 1),
        (2, 3),
        (0, 0),
        (0, 3),
        (3, 0),
        (1, 0),
        (2, 2, 2),
        (1, 1, 1, 1),
    ),
    *((0, 2**62), (2**40, 0), (0, 2**31), (2**62, 0), (0, 2**40, 2**40), (2**31 - 1, 0)),
]
_RANGES = {
    "int32": (-(2**31), 2**31),
    "int64": (-(2**63), 2**63),
    "uint32": (0, 2**32),
    "uint64": (0, 2**64),
}
FLOATS = ("float32", "float64", "float16", "bfloat16")


def odd_element(rng: random.Random, dtype: str) -> Any:
    if dtype in _RANGES:
        least, limit = _RANGES[dtype]
        return rng.choice([value for value in ODD_INTS if least <= value < limit])
    if dtype in FLOATS:
        return rng.choice(ODD_FLOATS)
    if dtype == "bool":
        return rng.random() < 0.5
    return rng.choice(ODD_BYTES)


def odd_array(rng: random.Random, dtype: str) -> Array:
    """A tensor of any shape with anything in it."""
    shape = rng.choice(ODD_SHAPES)
    small = rng.random() < 0.5
    count = 0 if 0 in shape else math.prod(shape)
    if small and dtype in _RANGES:
        return Array(dtype, shape, tuple(rng.randrange(4) for _ in range(count)))
    return Array(dtype, shape, tuple(odd_element(rng, dtype) for _ in range(count)))


def disturb(rng: random.Random, array: Array) -> Array:
    """The same tensor with one thing wrong, perhaps."""
    kind = rng.randrange(7)
    values = list(array.values)
    if kind == 0:
        return odd_array(rng, array.dtype)
    if kind == 1 and values:
        values[rng.randrange(len(values))] = odd_element(rng, array.dtype)
        return dataclasses.replace(array, values=tuple(values))
    if kind == 2 and values:  # One row less.
        return (
            _with_rows(array, array.shape[0] - 1) if array.shape else ints_like(array, values * 2)
        )
    if kind == 3 and array.shape and max(array.shape) < 1000:  # One row more.
        return _with_rows(array, array.shape[0] + 1, odd_element(rng, array.dtype))
    if kind == 4:  # Another rank.
        shape = rng.choice([(1, *array.shape), (*array.shape, 1), (len(values),)])
        return dataclasses.replace(array, shape=shape) if 0 not in array.shape else array
    if kind == 5 and values:
        rng.shuffle(values)
        return dataclasses.replace(array, values=tuple(values))
    return dataclasses.replace(array, shape=(0, *array.shape[1:]), values=())


def ints_like(array: Array, values: list[Any]) -> Array:
    return Array(array.dtype, (len(values),), tuple(values))


def _with_rows(array: Array, rows: int, fill: Any = None) -> Array:
    size = 0 if 0 in array.shape[1:] else math.prod(array.shape[1:])
    values = list(array.values[: rows * size])
    values += [fill] * (rows * size - len(values))
    return Array(array.dtype, (rows, *array.shape[1:]), tuple(values))
