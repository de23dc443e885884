"""Monolith: recommendation models whose vocabulary never stops growing.

    import monolith as ml

Importing this package is cheap: a name below loads what it needs when it is first used, TensorFlow
included. Once TensorFlow is imported, by whomever, it knows the compiled ops of this package, so
that `tf.saved_model.load` takes models with tables.

Example:
    >>> import monolith as ml
    >>> ml.__version__ == ml.version.__version__
    True
    >>> ml.Adagrad(0.1)
    Adagrad(learning_rate=0.1, initial_accumulator=1e-06, weight_decay=0.0)
"""

import importlib
from typing import TYPE_CHECKING, Any

from monolith import version
from monolith.native.beside_tensorflow import load_ops_beside_tensorflow
from monolith.native_training import install_historical_paths
from monolith.version import __version__

install_historical_paths()

if TYPE_CHECKING:
    from monolith import data, errors, keras, layers
    from monolith.embedding.optimizers import (
        FTRL,
        SGD,
        Adadelta,
        Adagrad,
        Adam,
        AMSGrad,
        Momentum,
        RMSprop,
    )
    from monolith.embedding.table import Table
    from monolith.layers import FM, MLP, CrossNet, Dense, Dropout, MMoE
    from monolith.model.embedding import Embedding
    from monolith.model.model import Model
    from monolith.model.objectives import BinaryHead, Output, RegressionHead, SoftmaxHead
    from monolith.serving.served_model import load
    from monolith.training.config.run import RunConfig
    from monolith.training.model_estimator import ModelEstimator as Estimator

__all__ = [
    "FM",
    "FTRL",
    "MLP",
    "SGD",
    "AMSGrad",
    "Adadelta",
    "Adagrad",
    "Adam",
    "BinaryHead",
    "CrossNet",
    "Dense",
    "Dropout",
    "Embedding",
    "Estimator",
    "MMoE",
    "Model",
    "Momentum",
    "Output",
    "RMSprop",
    "RegressionHead",
    "RunConfig",
    "SoftmaxHead",
    "Table",
    "__version__",
    "data",
    "errors",
    "keras",
    "layers",
    "load",
    "version",
]

# Where a name of this package lives, and what it is called there.
_HOMES = {
    "Table": ("monolith.embedding.table", "Table"),
    "Embedding": ("monolith.model.embedding", "Embedding"),
    "Model": ("monolith.model.model", "Model"),
    "BinaryHead": ("monolith.model.objectives", "BinaryHead"),
    "Output": ("monolith.model.objectives", "Output"),
    "RegressionHead": ("monolith.model.objectives", "RegressionHead"),
    "SoftmaxHead": ("monolith.model.objectives", "SoftmaxHead"),
    "Estimator": ("monolith.training.model_estimator", "ModelEstimator"),
    "RunConfig": ("monolith.training.config.run", "RunConfig"),
    "load": ("monolith.serving.served_model", "load"),
    **{
        name: ("monolith.embedding.optimizers", name)
        for name in ("SGD", "Adagrad", "Adam", "AMSGrad", "Adadelta", "Momentum", "RMSprop", "FTRL")
    },
    **{
        name: ("monolith.layers", name)
        for name in ("Dense", "Dropout", "MLP", "CrossNet", "FM", "MMoE")
    },
}
_PACKAGES = ("data", "errors", "keras", "layers")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # What this module itself imports is not what people look for.
    return sorted({name for name in globals() if name.startswith("__")} | {*__all__})


# Last, since the ops are part of this package.
load_ops_beside_tensorflow()
