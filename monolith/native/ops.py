"""The compiled ops, loaded once when this module is imported.

Every op `MonolithFooBar` of the library is here twice, as TensorFlow generates it: as the function
`monolith_foo_bar(...)` and as the raw op `MonolithFooBar(keyword=...)`. The dense optimizers also
have the names that training code knows, `resource_apply_adamom` and `resource_apply_rmsprop`.

Example:
    >>> from monolith.native import ops
    >>> ops.monolith_fused_value_rowids([0, 2, 3]).numpy().tolist()
    [0, 0, 1]
"""

import inspect
import pathlib
import types
from typing import Any

import tensorflow as tf

from monolith import native

_LIBRARY = "libmonolith_ops.so"
_BUILT_FOR = "built_for.txt"
_REBUILD = "`make native` in a checkout, or `pip install --force-reinstall --no-deps monolith`"


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
globals().update({name: getattr(_module, name) for name in _names})
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
from monolith.native import distribution_gradients, gradients  # noqa: E402, F401
