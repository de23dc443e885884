"""Models by name, so that a command line can say which one to train.

Example:
    >>> @RegisterSingleTaskModel
    ... class MovieRanking(SingleTaskModelParams):
    ...     def task(self):
    ...         return "the params of a task"
    >>> GetParams(f"{MovieRanking.__module__}.MovieRanking")
    'the params of a task'
"""

import logging
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

_TASKS_PREFIX = "monolith.tasks."


class SingleTaskModelParams:
    """Describes one model; subclasses say which task it trains."""

    def task(self) -> Any:
        """Returns the params of the task."""
        raise NotImplementedError("Abstract method")


_ModelT = TypeVar("_ModelT", bound=type)

_registered: dict[str, type[SingleTaskModelParams]] = {}


def RegisterSingleTaskModel(src_cls: _ModelT) -> _ModelT:
    """Registers a class under its full name and, if it differs, a shorter one.

    The shorter name leaves out the prefix `monolith.tasks.` and packages called `params`.

    Raises:
        TypeError: The class is not a `SingleTaskModelParams`.
        ValueError: One of its names is taken.
    """
    if not isinstance(src_cls, type) or not issubclass(src_cls, SingleTaskModelParams):
        raise TypeError(f"src_cls {src_cls} is not a SingleTaskModelParams!")
    full_name = f"{src_cls.__module__}.{src_cls.__name__}"
    parts = full_name.removeprefix(_TASKS_PREFIX).split(".")
    short_name = ".".join(part for part in parts if part != "params")
    for key in (full_name, short_name):
        if key in _registered:
            raise ValueError(
                f"Duplicate model registered for key {key}: {src_cls.__module__}.{src_cls.__name__}"
            )
    _registered[full_name] = src_cls
    _registered[short_name] = src_cls
    return src_cls


def GetAllRegisteredClasses() -> dict[str, type[SingleTaskModelParams]]:
    """Returns all models by name; a model with a short name is in it twice."""
    return dict(_registered)


def GetClass(class_key: str) -> type[SingleTaskModelParams]:
    """Returns the class registered under a name.

    Raises:
        LookupError: There is none; the known names are logged.
    """
    if class_key not in _registered:
        for name in sorted(_registered):
            logger.info("Known model: %s", name)
        raise LookupError(f"Model {class_key} not found from list of above known models.")
    return _registered[class_key]


def GetParams(class_key: str) -> Any:
    """Returns the task params of the model registered under a name."""
    return GetClass(class_key)().task()
