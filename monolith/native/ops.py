"""The compiled ops, loaded once when this module is imported.

Every op `MonolithFooBar` of the library is here twice, as TensorFlow generates it: as the function
`monolith_foo_bar(...)` and as the raw op `MonolithFooBar(keyword=...)`. The dense optimizers also
have the names that training code knows, `resource_apply_adamom` and `resource_apply_rmsprop`.

Example:
    >>> from monolith.native import ops
    >>> ops.monolith_fused_value_rowids([0, 2, 3]).numpy().tolist()
    [0, 0, 1]
"""

import functools
import inspect
import pathlib
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from monolith import native

_LIBRARY = "libmonolith_ops.so"
_BUILT_FOR = "built_for.txt"
_REBUILD = (
    "`make native` in a checkout, or `pip install --force-reinstall --no-deps monolith-recsys`"
)


def _find_library() -> pathlib.Path:
    # An editable install keeps compiled files apart from the sources, so both places count.
    for directory in native.__path__:
        path = pathlib.Path(directory) / _LIBRARY
        if path.exists():
            return path
    raise ImportError(
        f"The op library {_LIBRARY} is missing from {', '.join(native.__path__)} "
        f"(running TensorFlow {tf.__version__}); build it with {_REBUILD}."
    )


def _load(path: pathlib.Path, running: str) -> types.ModuleType:
    """Loads the library at `path` into TensorFlow `running`, or explains why that cannot work."""
    built_for_file = path.parent / _BUILT_FOR
    built_for = built_for_file.read_text().strip() if built_for_file.exists() else "unknown"
    if _minor(built_for) != _minor(running):
        raise ImportError(
            f"{path} was built for TensorFlow {built_for} but TensorFlow {running} is running; "
            f"rebuild it with {_REBUILD}."
        )
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.OpError, OSError) as e:
        raise ImportError(
            f"{path}, built for TensorFlow {built_for}, does not load into TensorFlow {running}; "
            f"rebuild it with {_REBUILD}. The loader said: {e}"
        ) from e


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _with_equal_lists(function: Callable[..., Any], op: str) -> Callable[..., Any]:
    """Refuses lists of unequal lengths where the op expects equal ones.

    Called eagerly, TensorFlow only counts all inputs together; with three lists it takes the length
    of one for what goes in and that of another for what comes out, and reads beyond the outputs.
    """
    inputs = op_def_registry.get(op).input_arg
    by_number: dict[str, list[str]] = {}
    for argument in inputs:
        by_number.setdefault(argument.number_attr, []).append(argument.name)
    families = [names for number, names in by_number.items() if number and len(names) > 1]
    if not families:
        return function

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip((argument.name for argument in inputs), args, strict=False)) | kwargs
        for names in families:
            lengths = [
                len(given[name]) for name in names if isinstance(given.get(name), list | tuple)
            ]
            if len(set(lengths)) > 1:
                raise tf.errors.InvalidArgumentError(
                    None,
                    None,
                    f"{op} needs lists of one length for {', '.join(names)}, got {lengths}.",
                )
        return function(*args, **kwargs)

    return checked


# For the few functions of the library that are not ops.
LIBRARY_PATH = _find_library()

_module = _load(LIBRARY_PATH, tf.__version__)
_names = [
    name
    for name, value in vars(_module).items()
    if inspect.isfunction(value)
    and not name.startswith("_")
    and not name.endswith("_eager_fallback")
    and value.__module__ == _module.__name__
]
_op_of = {value.lower(): value for value in _names if op_def_registry.get(value) is not None}
globals().update(
    {
        name: _with_equal_lists(getattr(_module, name), _op_of[name.replace("_", "").lower()])
        for name in _names
    }
)
# Dense optimizers are called without the prefix, too.
globals().update(
    {
        name.removeprefix("monolith_"): getattr(_module, name)
        for name in _names
        if name.startswith("monolith_resource_apply_")
    }
)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"The op library has no op {name!r}; it was built from other sources than this Python "
        f"code, rebuild it with {_REBUILD}."
    )


# Gradients refer to the ops above.
from monolith.native import (  # noqa: E402
    distribution_gradients,  # noqa: F401
    gradients,  # noqa: F401
    layout_gradients,  # noqa: F401
)
