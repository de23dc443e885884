"""Command line flags made from the dataclasses that configure training.

A config documents each field with a `:param name: text` line; those fields become flags of the
same name and default, so that a setting is written down once. What the code sets explicitly wins
over the command line, which wins over the default.

Example:
    >>> import dataclasses
    >>> from absl import flags
    >>> @extract_flags_decorator()
    ... @dataclasses.dataclass
    ... class DoctestConfig:
    ...     '''Settings.
    ...
    ...     :param doctest_num_ps: Number of parameter servers.
    ...     '''
    ...     doctest_num_ps: int = 0
    >>> flags.FLAGS["doctest_num_ps"].help
    'Number of parameter servers.'
"""

import dataclasses
import enum
import functools
import inspect
import logging
import re
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from absl import flags

logger = logging.getLogger(__name__)

FLAGS = flags.FLAGS

# `:param name: text`, with or without a type before the name.
_PARAM_LINE = re.compile(r":param\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)")

_LINKS_ATTRIBUTE = "_linked_flags"

_ClassT = TypeVar("_ClassT", bound=type)


def extract_help_info(cls: type, is_nested: bool = True) -> dict[str, str]:
    """Returns the texts of the `:param` lines in the docstring of a class.

    Args:
        cls: Class to read.
        is_nested: Whether the docstrings of its base classes are read too.
    """
    help_info: dict[str, str] = {}
    for owner in _classes(cls, is_nested):
        name = None
        for line in (owner.__dict__.get("__doc__") or "").splitlines():
            line = line.strip()
            match = _PARAM_LINE.match(line)
            if match:
                name = match["name"]
                help_info[name] = match["text"]
            elif not line or line.startswith(":"):
                name = None
            elif name is not None:
                help_info[name] = f"{help_info[name]} {line}".strip()
    return help_info


def extract_flags(
    gflags: Any, dcls: type, is_nested: bool = True, skip_flags: Collection[str] | None = None
) -> None:
    """Defines a flag for every documented field of a class.

    Fields of type int, bool, str, float or an enum, each possibly `| None`, become flags; an
    enum's flag takes the names of its members in lower case. Fields of other types, and names that
    are flags already, are left alone.

    Args:
        gflags: The module `absl.flags`.
        dcls: Class whose annotated fields become flags.
        is_nested: Whether the fields of its base classes do too.
        skip_flags: Fields that do not.
    """
    define_by_type = {
        int: gflags.DEFINE_integer,
        bool: gflags.DEFINE_bool,
        str: gflags.DEFINE_string,
        float: gflags.DEFINE_float,
    }
    help_info = extract_help_info(dcls, is_nested)
    for name, field_type in _field_types(dcls, is_nested).items():
        if name not in help_info or name in (skip_flags or ()) or name in gflags.FLAGS:
            continue
        default = _class_default(dcls, name)
        kwargs = {"help": help_info[name], "module_name": dcls.__module__}
        if field_type in define_by_type:
            define_by_type[field_type](name, default, **kwargs)
        elif _is_enum(field_type):
            member_names = [member.lower() for member in field_type.__members__]
            default_name = None if default is None else default.name.lower()
            gflags.DEFINE_enum(name, default_name, member_names, **kwargs)


def extract_flags_decorator(
    remove_flags: Collection[str] | None = None, is_nested: bool = True
) -> Callable[[_ClassT], _ClassT]:
    """Returns a class decorator that calls `extract_flags`, without the fields `remove_flags`."""

    def decorate(cls: _ClassT) -> _ClassT:
        extract_flags(flags, cls, is_nested, remove_flags)
        return cls

    return decorate


def update(config: Any) -> None:
    """Takes the value of each flag that is set, where `config` still has its class's default."""
    cls = type(config)
    for name, field_type in _field_types(cls).items():
        if name not in FLAGS:
            continue
        # Not FLAGS.name, which refuses to answer before the command line is parsed.
        value = FLAGS[name].value
        if _is_enum(field_type) and isinstance(value, str):
            value = field_type[value.upper()]
        default = _class_default(cls, name)
        if value is not None and value != default and getattr(config, name) == default:
            object.__setattr__(config, name, value)


class LinkDataclassToFlags:
    """Class decorator that ties fields of a dataclass to flags that exist already.

    A new object takes the value of a linked flag where its field was left at the default and the
    flag was not. Subclasses inherit the links; one that is a dataclass itself, and so has a
    constructor of its own, is decorated with `update_by_flags`.
    """

    def __init__(
        self,
        linked_list: Iterable[str] | None = None,
        linked_map: Mapping[str, str] | None = None,
    ) -> None:
        """Initializes the decorator.

        Args:
            linked_list: Fields whose flag has the same name.
            linked_map: Flags by field, for those whose names differ.
        """
        self._links = {name: name for name in linked_list or ()} | dict(linked_map or {})

    def __call__(self, cls: _ClassT) -> _ClassT:
        if not dataclasses.is_dataclass(cls):
            raise AssertionError(f"{cls} is not a dataclass; only dataclasses are linked to flags.")
        known = {field.name for field in dataclasses.fields(cls)}
        for name, flag in self._links.items():
            if name not in known:
                raise ValueError(f"{name} is not a valid attribute of {cls.__qualname__}")
            if flag not in FLAGS:
                raise ValueError(f"{flag} is not defined in gflags")
        setattr(cls, _LINKS_ATTRIBUTE, self._links)
        return update_by_flags(cls)


def update_by_flags(cls: _ClassT) -> _ClassT:
    """Makes the constructor of a dataclass apply the links of the class and its base classes."""
    original_init = cls.__init__  # type: ignore[misc]

    @functools.wraps(original_init)
    def init_and_update(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        _apply_links(self)

    cls.__init__ = init_and_update  # type: ignore[misc]
    return cls


def get_flags_parser(flags: Any, FLAGS: flags.FlagValues) -> Callable[[Sequence[str]], list[str]]:
    """Returns a parser for `absl.app.run` that logs a bad command line and exits with status 1.

    Args:
        flags: The module `absl.flags`.
        FLAGS: Where the parsed values go.
    """

    def parse(args: Sequence[str]) -> list[str]:
        try:
            return list(FLAGS(args))
        except flags.Error as error:
            logger.error("Cannot parse the command line: %s Pass --helpshort for help.", error)
            sys.exit(1)

    return parse


def _apply_links(config: Any) -> None:
    cls = type(config)
    links: dict[str, str] = {}
    for owner in _classes(cls):
        links |= owner.__dict__.get(_LINKS_ATTRIBUTE, {})
    for name, flag_name in links.items():
        flag = FLAGS[flag_name]
        if flag.value != flag.default and getattr(config, name) == _class_default(cls, name):
            # A frozen dataclass is complete only after this.
            object.__setattr__(config, name, flag.value)


def _classes(cls: type, is_nested: bool = True) -> Sequence[type]:
    """Returns the class, after its base classes if asked for: what comes later overrides."""
    return tuple(reversed(cls.__mro__)) if is_nested else (cls,)


def _field_types(cls: type, is_nested: bool = True) -> dict[str, Any]:
    field_types: dict[str, Any] = {}
    for owner in _classes(cls, is_nested):
        field_types |= inspect.get_annotations(owner, eval_str=True)
    return {name: _strip_none(field_type) for name, field_type in field_types.items()}


def _strip_none(field_type: Any) -> Any:
    """Returns `T` for `T | None`, anything else unchanged."""
    if typing.get_origin(field_type) in (typing.Union, types.UnionType):
        others = [arg for arg in typing.get_args(field_type) if arg is not types.NoneType]
        if len(others) == 1:
            return others[0]
    return field_type


def _is_enum(field_type: Any) -> bool:
    return isinstance(field_type, type) and issubclass(field_type, enum.Enum)


def _class_default(cls: type, name: str) -> Any:
    """Returns the value that an object has unless told otherwise, None if there is no such."""
    # Fields come first: a class with slots has descriptors instead of defaults as attributes.
    field = cls.__dict__.get("__dataclass_fields__", {}).get(name)
    if field is None:
        return getattr(cls, name, None)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default
