"""Settings of a model as a tree of named, documented, checked values.

A misspelt setting must not pass silently: every name is defined once, with its default and a
description, and reading or setting an unknown one fails with the names that come close.

Example:
    >>> p = Params()
    >>> p.define("learning_rate", 0.1, "Step size.")
    >>> p.set(learning_rate=0.5).learning_rate
    0.5
    >>> p.learning_rte = 1
    Traceback (most recent call last):
    ...
    AttributeError: learning_rte (did you mean: [learning_rate])
"""

import copy
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

# Settings of Keras layers that `InstantiableParams.instantiate` passes on when they are set.
allowed_kwargs = {
    "input_dim",
    "input_shape",
    "batch_input_shape",
    "weights",
    "activity_regularizer",
    "autocast",
    "implementation",
    "name",
}

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LIST_ELEMENT = re.compile(r"(?P<name>.+)\[(?P<index>-?\d+)\]")

_ParamsT = TypeVar("_ParamsT", bound="Params")
_ToT = TypeVar("_ToT", bound="Params")


class _Param:
    """One setting."""

    def __init__(self, name: str, value: Any, description: str) -> None:
        self.name = name
        self.value = value
        self.description = description

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Param":
        # A tensor belongs to its graph and cannot be copied out of it.
        value = self.value if _is_tensor(self.value) else copy.deepcopy(self.value, memo)
        return _Param(self.name, value, self.description)


class Params:
    """An ordered set of named values, read and set as attributes; values may be `Params` again."""

    def __init__(self) -> None:
        self.__dict__["_immutable"] = False
        self.__dict__["_params"] = {}

    def define(self, name: str, default_value: Any, description: str) -> None:
        """Adds a setting.

        Raises:
            AssertionError: `name` is not lower case letters, digits and underscores.
            AttributeError: The name is defined already.
            TypeError: The params are frozen.
        """
        self._check_mutable()
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise AssertionError(
                f"A parameter is named with lower case letters, digits and underscores and "
                f"starts with a letter, got {name!r}."
            )
        if name in self._params:
            raise AttributeError(f"Parameter {name} is already defined")
        self._params[name] = _Param(name, default_value, description)

    def set(self: _ParamsT, **kwargs: Any) -> _ParamsT:
        """Sets several values, nested ones as `p.set(**{"inner.layers[0].dim": 3})`.

        Raises:
            AttributeError: A name, or a part of its path, is not defined.
            AssertionError: A path leads through something that is not a `Params`.
            TypeError: The params are frozen.
        """
        if self._immutable:
            raise TypeError(f"This Params instance is immutable: {self}")
        for path, value in kwargs.items():
            owner, name = self._resolve(path)
            if owner._immutable:
                raise TypeError(f"This Params instance is immutable: {owner}")
            owner._params[name].value = value
        return self

    def get(self, name: str) -> Any:
        """Returns a value; `name` may be dotted, as in `set`."""
        owner, leaf = self._resolve(name)
        return owner._params[leaf].value

    def delete(self: _ParamsT, *names: str) -> _ParamsT:
        """Removes settings; names may be dotted, as in `set`."""
        self._check_mutable()
        for path in names:
            owner, name = self._resolve(path)
            owner._check_mutable()
            del owner._params[name]
        return self

    def copy(self: _ParamsT) -> _ParamsT:
        """Returns a deep copy, frozen if this one is; tensors are shared, not copied."""
        return copy.deepcopy(self)

    def freeze(self) -> None:
        """Forbids further changes, except inside of nested params."""
        self.__dict__["_immutable"] = True

    def is_immutable(self) -> bool:
        """Returns whether the params are frozen."""
        return bool(self._immutable)

    def contain(self, name: str) -> bool:
        """Returns whether `name` is defined here; it is not dotted."""
        return name in self._params

    def iter_params(self) -> Iterator[tuple[str, Any]]:
        """Yields names and values, in the order of definition."""
        for name, param in self._params.items():
            yield name, param.value

    def __getattr__(self, name: str) -> Any:
        # Python looks up its own protocols before `__init__` ran, while copying for instance.
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getitem__(self, name: str) -> Any:
        if name not in self._params:
            raise AttributeError(self._explain_unknown(name))
        return self._params[name].value

    def __setitem__(self, name: str, value: Any) -> None:
        self._check_mutable()
        if name not in self._params:
            raise AttributeError(self._explain_unknown(name))
        self._params[name].value = value

    def __contains__(self, name: object) -> bool:
        return name in self._params

    def __len__(self) -> int:
        return len(self._params)

    def __dir__(self) -> list[str]:
        return sorted(self._params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Params) and dict(self.iter_params()) == dict(other.iter_params())

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return self._to_string(depth=0)

    def __deepcopy__(self: _ParamsT, memo: dict[int, Any]) -> _ParamsT:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__["_immutable"] = self._immutable
        copied.__dict__["_params"] = copy.deepcopy(self._params, memo)
        return copied

    def _check_mutable(self) -> None:
        if self._immutable:
            raise TypeError("This Params instance is immutable.")

    def _resolve(self, path: str) -> tuple["Params", str]:
        """Returns the params that hold the last part of a dotted path, and that part."""
        owner: Params = self
        *parents, leaf = path.split(".")
        for depth, part in enumerate(parents):
            so_far = ".".join(parents[: depth + 1])
            element = _LIST_ELEMENT.fullmatch(part)
            name = element["name"] if element else part
            if name not in owner._params:
                raise AttributeError(so_far)
            value = owner._params[name].value
            if element and isinstance(value, (list, tuple)):
                index = int(element["index"])
                if not -len(value) <= index < len(value):
                    raise AttributeError(so_far)
                value = value[index]
            if not isinstance(value, Params):
                raise AssertionError(f"Cannot introspect {type(value)} for {so_far}")
            owner = value
        if leaf not in owner._params:
            raise AttributeError(self._explain_unknown(path))
        return owner, leaf

    def _explain_unknown(self, name: str) -> str:
        similar = sorted(known for known in self._params if _is_similar(name, known))
        return f"{name} (did you mean: [{','.join(similar)}])" if similar else name

    def _to_string(self, depth: int) -> str:
        lines = []
        for name, value in sorted(self.iter_params()):
            if isinstance(value, Params):
                text = value._to_string(depth + 1)
            elif isinstance(value, str):
                text = f'"{value}"'
            else:
                text = _format(value, str)
            lines.append(f"{'  ' * (depth + 1)}{name}: {text}")
        return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"


class InstantiableParams(Params):
    """Params that know the class they configure."""

    def __init__(self, cls: type | None = None) -> None:
        super().__init__()
        self.define("cls", cls, "The class that these params configure.")

    def instantiate(self) -> Any:
        """Makes an object of the class.

        A class made for params, which has a `params` attribute and a constructor that takes only
        `params`, gets this object. Any other class gets those values of the tree, by name, that
        its constructor asks for, and those of `allowed_kwargs` that are set and that it accepts.
        """
        if self.cls is None:
            raise AssertionError("Cannot instantiate params without a class; set `cls`.")
        signature = inspect.signature(self.cls.__init__).parameters
        if len(signature) == 2 and "params" in signature and hasattr(self.cls, "params"):
            return self.cls(self)

        values: dict[str, Any] = {}
        _collect_leaves(self, values)
        kinds = {parameter.kind for parameter in signature.values()}
        accepts_more = inspect.Parameter.VAR_KEYWORD in kinds
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        named = {name for name, parameter in signature.items() if parameter.kind not in variadic}
        kwargs = {name: value for name, value in values.items() if name in named - {"self"}}
        if accepts_more:
            for name in sorted(allowed_kwargs & values.keys()):
                if values[name] is not None:
                    kwargs[name] = values[name]
        return self.cls(**kwargs)


def copy_params_to(from_p: Params, to_p: _ToT, skip: Collection[str] | None = None) -> _ToT:
    """Sets every value of `from_p`, except those named in `skip`, on `to_p`, which is returned."""
    for name, value in from_p.iter_params():
        if not skip or name not in skip:
            to_p.set(**{name: value.copy() if isinstance(value, Params) else value})
    return to_p


def update_params(params: Params, args_dict: dict[str, Any]) -> None:
    """Sets the values, at any depth, whose names are keys of `args_dict`; used keys are removed."""
    for name, value in list(params.iter_params()):
        if isinstance(value, Params):
            update_params(value, args_dict)
        elif name in args_dict:
            params[name] = args_dict.pop(name)


def _collect_leaves(params: Params, leaves: dict[str, Any]) -> None:
    """Adds all values below `params`; of two with one name the one nearer to the root stays."""
    nested = []
    for name, value in params.iter_params():
        if isinstance(value, Params):
            nested.append(value)
        else:
            leaves.setdefault(name, value)
    for child in nested:
        _collect_leaves(child, leaves)


def _is_similar(name: str, known: str) -> bool:
    """Whether more than half of the 3-letter pieces of `name`, but its last, occur in `known`."""
    pieces = [name[start : start + 3] for start in range(len(name) - 3)]
    return sum(piece in known for piece in pieces) * 2 > len(pieces)


def _is_tensor(value: Any) -> bool:
    # Params are used without TensorFlow too; a tensor exists only where it was imported.
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(value, tensorflow.Tensor)


def _format(value: Any, format_leaf: Callable[[Any], str] = repr) -> str:
    if isinstance(value, Params):
        value = dict(value.iter_params())
    if isinstance(value, Mapping):
        items = sorted(value.items(), key=lambda item: str(item[0]))
        return "{" + ", ".join(f"{key!r}: {_format(item)}" for key, item in items) + "}"
    if type(value) is list:
        return "[" + ", ".join(map(_format, value)) + "]"
    if type(value) is tuple:
        return "(" + ", ".join(map(_format, value)) + (",)" if len(value) == 1 else ")")
    if hasattr(value, "Repr") and not isinstance(value, type):
        return str(value.Repr())
    return format_leaf(value)
