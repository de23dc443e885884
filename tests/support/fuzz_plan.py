"""Which call of which op comes when: decided by a seed and the number of the call alone.

A third of the calls is as its recipe says, most have one or two things wrong, the rest are made of
odd values only. Some are made through a graph that knows more or less of the shapes.
"""

import math
import random
from typing import Any

from support import fuzz_layout_recipes, fuzz_table_recipes  # noqa: F401 They add recipes.
from support import fuzz_resources as resources
from support import fuzz_values as values
from support.fuzz_recipes import RECIPES
from support.fuzz_values import Array, Call, Handle, Path, Paths, Value
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.framework import dtypes, op_def_registry

from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2 as pb

AS_IT_IS, SPOILED = 0.35, 0.85  # Of 1; what is above is odd in every place.
IN_A_GRAPH = 0.25
# TensorFlow makes room for so many outputs before it asks anybody.
MOST_OUTPUTS = 40
# Some numbers are only slow or large: each shard is a file, each millisecond is slept, and a filter
# is made of the memory that its capacity says.
ODD_ATTRS: dict[str, list[int]] = {
    "MonolithHashFilter capacity": [-1, 0, 1, 2, 7, 10**6, 2**41, 2**62, 2**63 - 1, -(2**63)],
    "nshards": [-2, -1, 0, 1, 7, 10**5, 2**31, 2**62, -(2**63)],
    "random_sleep_ms": [-1, 0, 3, 2**31, 2**62, -(2**63)],
}


def all_ops() -> list[str]:
    """The ops of the library, those without a recipe too."""
    # pylint: disable=protected-access
    names = (name for name in ops._names if name[0].isupper())
    return sorted(name for name in names if op_def_registry.get(name) is not None)


def plan(seed: int, number: int, names: list[str]) -> Call:
    rng = random.Random(f"{seed}/{number}")
    op = names[number % len(names)]
    planner = _Planner(op, rng)
    kind = rng.random()
    if op in RECIPES and kind < SPOILED:
        inputs, attrs = RECIPES[op](rng)
        call = Call(op, dict(inputs), dict(attrs))
        if kind > AS_IT_IS:
            for _ in range(rng.choice([1, 1, 2])):
                planner.spoil(call)
    else:
        call = planner.odd_call()
    if rng.random() < IN_A_GRAPH:
        call.graph = True
        call.known = [_what_is_known(rng, tensor) for tensor in flat(call)]
    return call


def flat(call: Call) -> list[Value]:
    """All tensors of a call, in order."""
    result: list[Value] = []
    for value in call.inputs.values():
        result += value if isinstance(value, list) else [value]
    return result


def _what_is_known(rng: random.Random, tensor: Value) -> Any:
    how = rng.choice(["constant", "all", "rank", "nothing", "some", "some", "odd"])
    if how == "odd":
        # No tensor needs to fit: such graphs are built and not run.
        return ["odd", rng.choice([None, *_ODD_STATIC_SHAPES])]
    if how == "some" and isinstance(tensor, Array):
        return [None if rng.random() < 0.5 else size for size in tensor.shape]
    return "nothing" if how == "some" else how


_ODD_FLOATS = [0.0, -1.0, 2.0, math.nan, math.inf]
_ODD_TYPES = ["float32", "int64", "string", "resource", "variant"]
_ODD_STATIC_SHAPES: list[list[int | None]] = [
    *([size] for size in (None, 0, 1, 3, 2**31, 2**62)),
    *([rows, columns] for rows in (None, 0, 2, 2**62) for columns in (None, 2, 3, 2**62)),
    *([None, 2**62, 4], [2**62, None, 2**62], [2**31, 2**31], [1, None, 2], [None] * 4, []),
]


class _Planner:
    def __init__(self, op: str, rng: random.Random) -> None:
        self._rng = rng
        self._op = op
        self._def: op_def_pb2.OpDef = op_def_registry.get(op)
        self._args = {arg.name: arg for arg in self._def.input_arg}
        inferred = {arg.number_attr for arg in self._def.input_arg}
        inferred |= {arg.type_attr for arg in self._def.input_arg}
        inferred |= {arg.type_list_attr for arg in self._def.input_arg}
        self._attrs = {attr.name: attr for attr in self._def.attr if attr.name not in inferred}
        self._counts_outputs = {arg.number_attr for arg in self._def.output_arg}

    def spoil(self, call: Call) -> None:
        rng = self._rng
        places = list(call.inputs) + list(self._attrs)
        if not places:
            return
        name = rng.choice(places)
        if name in self._attrs:
            call.attrs[name] = self._odd_attr(name, call.attrs.get(name))
            return
        value = call.inputs[name]
        if isinstance(value, list):
            self._spoil_list(call, name, list(value))
        else:
            call.inputs[name] = self._spoil_one(value)

    def _spoil_list(self, call: Call, name: str, items: list[Value]) -> None:
        rng = self._rng
        kind = rng.randrange(5)
        if kind == 0 and items:
            items.pop(rng.randrange(len(items)))
        elif kind == 1 and items:
            items.append(rng.choice(items))
        elif kind == 2 and items:
            # From one list to another: the number of all inputs stays what the op expects.
            others = [n for n, v in call.inputs.items() if isinstance(v, list) and n != name]
            if others:
                call.inputs[rng.choice(others)].append(items.pop())
        elif items:
            place = rng.randrange(len(items))
            items[place] = self._spoil_one(items[place])
        call.inputs[name] = items

    def _spoil_one(self, value: Value) -> Value:
        rng = self._rng
        if isinstance(value, Handle):
            return Handle(rng.choice(resources.HANDLES), rng.randrange(2))
        if isinstance(value, Path):
            kind = rng.randrange(10)
            if kind == 0:
                return values.odd_array(rng, "string")
            return self._odd_path()
        if isinstance(value, Paths):
            paths = list(value.paths)
            if paths:
                paths[rng.randrange(len(paths))] = self._odd_path()
            return Paths(tuple(rng.choice([paths, paths[1:], [*paths, self._odd_path()]])))
        if value.dtype == "string" and value.shape == () and len(value.values[0]) > 40:
            return values.scalar(odd_config(rng, value.values[0]), "string")
        return values.disturb(rng, value)

    def odd_call(self) -> Call:
        rng = self._rng
        types = {
            attr.name: rng.choice(
                list(attr.allowed_values.list.type) or [dtypes.float32.as_datatype_enum]
            )
            for attr in self._def.attr
            if attr.type == "type"
        }
        lengths = {attr.name: rng.randrange(4) for attr in self._def.attr if attr.type == "int"}
        inputs: dict[str, Value] = {}
        for name, arg in self._args.items():
            if arg.type_list_attr:
                kinds = [rng.choice(["float32", "int64", "string", "resource"]) for _ in range(3)]
                inputs[name] = [self._odd_tensor(kind) for kind in kinds[: rng.randrange(4)]]
                continue
            dtype = dtypes.as_dtype(types[arg.type_attr] if arg.type_attr else arg.type).name
            if arg.number_attr:
                length = lengths[arg.number_attr]
                inputs[name] = [self._odd_tensor(dtype) for _ in range(length)]
            else:
                inputs[name] = self._odd_tensor(dtype)
        attrs = {
            name: self._odd_attr(name, None)
            for name, attr in self._attrs.items()
            if not attr.HasField("default_value") or rng.random() < 0.5
        }
        return Call(self._op, inputs, attrs)

    def _odd_tensor(self, dtype: str) -> Value:
        if dtype == "resource":
            return Handle(self._rng.choice(resources.HANDLES), self._rng.randrange(2))
        if dtype == "string" and self._rng.random() < 0.5:
            return self._odd_path()
        return values.odd_array(self._rng, dtype)

    def _odd_path(self) -> Path:
        return Path(self._rng.choice(resources.PATHS), self._rng.randrange(1000))

    def _odd_attr(self, name: str, now: Any) -> Any:
        rng, attr = self._rng, self._attrs[name]
        if attr.type == "int":
            if name in self._counts_outputs:
                return rng.randrange(-1, MOST_OUTPUTS)
            odd = ODD_ATTRS.get(f"{self._op} {name}") or ODD_ATTRS.get(name)
            return rng.choice(odd or values.ODD_INTS)
        if attr.type == "bool":
            return rng.random() < 0.5
        if attr.type == "string":
            if name == "filename":
                return self._odd_path()
            if now and name == "feature_cfgs" and rng.random() < 0.8:
                return _with_odd_bytes(rng, now)
            if "config" in name and rng.random() < 0.8:
                return odd_config(rng, now)
            return rng.choice(values.ODD_BYTES)
        if attr.type == "float":
            return rng.choice(_ODD_FLOATS)
        if attr.type == "type":
            return rng.choice(_ODD_TYPES)
        if attr.type == "shape":
            return rng.choice([None, [], *values.ODD_SHAPES, *_ODD_STATIC_SHAPES])
        if attr.type.startswith("list("):
            return self._odd_list(attr.type[5:-1], list(now or []))
        raise ValueError(f"The fuzzer does not know attributes of type {attr.type}; teach it.")

    def _odd_list(self, kind: str, items: list[Any]) -> list[Any]:
        rng = self._rng
        make = {
            "int": lambda: rng.choice(values.ODD_INTS),
            "bool": lambda: rng.random() < 0.5,
            "float": lambda: rng.choice(_ODD_FLOATS),
            "string": lambda: rng.choice(values.ODD_BYTES),
            "type": lambda: rng.choice(_ODD_TYPES),
            "shape": lambda: rng.choice([None, [], *_ODD_STATIC_SHAPES, *values.ODD_SHAPES]),
        }[kind]
        how = rng.randrange(5)
        if how == 0:
            return []
        if how == 1 and items:
            return items[:-1]
        if how == 2:
            return [*items, make()]
        if how == 3:
            return [make()] * rng.randrange(1, 5)
        if items:
            items[rng.randrange(len(items))] = make()
        return items


def odd_config(rng: random.Random, config: bytes | None) -> bytes:
    """A serialized message that is nearly right: changed bytes, or one odd setting of a table."""
    if config and rng.random() < 0.3:
        return _with_odd_bytes(rng, config)
    if rng.random() < 0.2:
        return rng.choice(values.ODD_BYTES)
    message = resources.table_config()
    _set_odd_field(rng, message)
    if rng.random() < 0.5:
        both = pb.MultiEmbeddingHashTableConfig(names=["a"], configs=[message])
        both.names.extend(rng.choice([[], ["a"], ["b", ""], ["\0"]]))
        return both.SerializeToString()
    return message.SerializeToString()


def _with_odd_bytes(rng: random.Random, message: bytes) -> bytes:
    changed = bytearray(message)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    return bytes(changed)


def _set_odd_field(rng: random.Random, message: Any) -> None:
    """Goes down into the message at random and sets one field to something odd."""
    if not message.DESCRIPTOR.fields:
        return
    field = rng.choice(message.DESCRIPTOR.fields)
    if field.type == field.TYPE_MESSAGE:
        if field.is_repeated:
            items = getattr(message, field.name)
            _set_odd_field(rng, rng.choice(items) if items else items.add())
        else:
            getattr(message, field.name).SetInParent()
            _set_odd_field(rng, getattr(message, field.name))
        return
    kinds = {
        field.CPPTYPE_INT32: lambda: values.odd_element(rng, "int32"),
        field.CPPTYPE_INT64: lambda: values.odd_element(rng, "int64"),
        field.CPPTYPE_UINT32: lambda: abs(values.odd_element(rng, "int32")),
        field.CPPTYPE_UINT64: lambda: abs(values.odd_element(rng, "int64")),
        field.CPPTYPE_FLOAT: lambda: rng.choice(values.ODD_FLOATS),
        field.CPPTYPE_DOUBLE: lambda: rng.choice([*values.ODD_FLOATS, math.pi]),
        field.CPPTYPE_BOOL: lambda: rng.random() < 0.5,
        field.CPPTYPE_ENUM: lambda: rng.choice(field.enum_type.values).number,
        field.CPPTYPE_STRING: lambda: "odd",
    }
    value = kinds[field.cpp_type]()
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)
