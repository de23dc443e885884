"""Has TensorFlow know the compiled ops as soon as it and this package are both imported.

A SavedModel with tables can be loaded by any program then, without a call into this package:

    import monolith
    import tensorflow as tf

    model = tf.saved_model.load("exported_models/1700000000")

Importing this package must stay cheap, so where TensorFlow is not imported yet, this waits until
somebody does. A library that does not fit is not this module's concern: whoever uses an op is told.
"""

import contextlib
import functools
import importlib
import importlib.abc
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec

_TENSORFLOW = "tensorflow"


def load_ops_beside_tensorflow() -> None:
    """Loads the ops now, or when TensorFlow is imported."""
    if _TENSORFLOW in sys.modules:
        _load_ops()
    else:
        sys.meta_path.insert(0, _Watcher())


class _Watcher(importlib.abc.MetaPathFinder):
    """Waits for the import of TensorFlow, and finds nothing itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _TENSORFLOW:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            # Of this one loader, which nobody else has.
            spec.loader.exec_module = functools.partial(_execute, execute)  # type: ignore[method-assign]
        return spec


def _execute(execute: Callable[[types.ModuleType], None], module: types.ModuleType) -> None:
    execute(module)
    _load_ops()


def _load_ops() -> None:
    with contextlib.suppress(ImportError):
        importlib.import_module("monolith.native.ops")
