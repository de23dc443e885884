"""Finds what to train by its name, MODULE:NAME.

A name may be that of

- a task: a `NativeTask`, such as a `MonolithModel`, its class, or params;
- an `ml.Model`, its class if it needs no arguments, or an instance; its data has a name, too;
- an `Estimator`, of either kind, or a function that makes one, or makes one of the above. A
  parameter `model_dir` of it gets the model directory. It may return a pair: what to train, and
  the data of an `ml.Model`.

Example:
    >>> find_work("monolith.cli.demo_model:MovieModel")
    Traceback (most recent call last):
        ...
    monolith.errors.ConfigError: 'monolith.cli.demo_model:MovieModel' needs arguments \
(missing a required argument: 'world'); name a function without any, or with `model_dir` alone, \
that makes it.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

from monolith import errors
from monolith.core.hyperparams import InstantiableParams
from monolith.model.model import Model
from monolith.model.task import NativeTask
from monolith.training.config.run import RunConfig
from monolith.training.estimator import Estimator
from monolith.training.launch.work import ModelWork, TaskWork, Work
from monolith.training.model_arguments import check_data
from monolith.training.model_estimator import DEFAULT_OPTIMIZER, ModelEstimator, make_work

_KINDS = "a task, an ml.Model, an Estimator, or a function that makes one of them"


def find_work(
    target: str,
    data: str | None = None,
    *,
    model_dir: str | None = None,
    steps: int | None = None,
    max_steps: int | None = None,
    epochs: int = 1,
    settings: Mapping[str, Any] | None = None,
) -> Work:
    """Returns what a name stands for.

    Args:
        target: MODULE:NAME of what is trained.
        data: MODULE:NAME of the data of an `ml.Model`, or NAME alone in the same module.
        model_dir: The model directory; None takes that of an Estimator.
        steps: How many steps to train.
        max_steps: Global step to train to.
        epochs: How often data is read.
        settings: Settings of a `RunConfig`, in place of its own.

    Raises:
        ConfigError: There is no such thing, it is of another kind, or it does not go together.
    """
    if steps is not None and max_steps is not None:
        raise errors.ConfigError("Give `steps` or `max_steps`, not both.")
    found, made_data = _make(target, find(target), model_dir), None
    if isinstance(found, tuple) and len(found) == 2:
        found, made_data = _make(target, found[0], model_dir), found[1]
    if made_data is not None and data is not None:
        raise errors.ConfigError(
            f"{target!r} brings data of its own, and --data names {data!r}; leave one of them out."
        )
    if data is not None:
        made_data = _find_data(target, data)
    work = _to_work(target, found, made_data, epochs)
    work.steps, work.max_steps = steps, max_steps
    if settings:
        work = dataclasses.replace(work, config=dataclasses.replace(work.config, **settings))
        if "metrics_host" in settings and work.config.metrics_port is None:
            raise errors.ConfigError(
                f"--metrics-host is {settings['metrics_host']!r}, but nothing says on which port "
                "members tell their metrics; give --metrics-port, too, 0 for free ones."
            )
    return _set_model_dir(target, work, model_dir)


def find(target: str) -> Any:
    """Imports a module and returns what it has under a name.

    Raises:
        ConfigError: The name is not of the form MODULE:NAME, the module cannot be imported, or it
            has no such name.
    """
    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise errors.ConfigError(
            f"What to train is given as MODULE:NAME, such as jobs.ranking:make_estimator; got "
            f"{target!r}."
        )
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise errors.ConfigError(_describe_import(module_name, error)) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise errors.ConfigError(f"Module {module_name!r} has no {name!r}; see {target!r}.")
        found = getattr(found, part)
    return found


def _describe_import(name: str, error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    if isinstance(error, ModuleNotFoundError) and error.name in (name, name.partition(".")[0]):
        return (
            f"There is no module {name!r}; start the command where it can be imported from, or set "
            "PYTHONPATH."
        )
    where = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and file != __file__ and "importlib" not in file:
            where = f" at {file}:{trace.tb_lineno}"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {error.filename}:{error.lineno}"
    return f"Module {name!r} cannot be imported: {type(error).__name__}: {text}{where}."


def _make(target: str, found: Any, model_dir: str | None) -> Any:
    """Calls a function, and makes an instance of a model's class."""
    if isinstance(found, type) and issubclass(found, NativeTask):
        # A task is made from its params, unless it has arguments of its own.
        takes_params = "params" in inspect.signature(found).parameters
        return found.params() if takes_params else _call(target, found, {})
    if isinstance(found, type) and issubclass(found, Model):
        return _call(target, found, {})
    if isinstance(found, type) or not callable(found) or _is_trainable(found):
        return found
    arguments = {}
    if "model_dir" in inspect.signature(found).parameters:
        if model_dir is None:
            raise errors.ConfigError(f"{target!r} takes a `model_dir`; give --model-dir.")
        arguments["model_dir"] = model_dir
    return _call(target, found, arguments)


def _is_trainable(found: Any) -> bool:
    kinds = (NativeTask, InstantiableParams, Model, Estimator, ModelEstimator)
    return isinstance(found, kinds)


def _call(target: str, function: Any, arguments: dict[str, Any]) -> Any:
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise errors.ConfigError(
            f"{target!r} needs arguments ({error}); name a function without any, or with "
            "`model_dir` alone, that makes it."
        ) from error
    return function(**arguments)


def _find_data(target: str, data: str) -> Any:
    return find(data if ":" in data else f"{target.partition(':')[0]}:{data}")


def _to_work(target: str, found: Any, data: Any, epochs: int) -> Work:
    if isinstance(found, Model | ModelEstimator):
        if data is None:
            raise errors.ConfigError(
                f"{target!r} is an {_name_kind(found)}, which has no data; name it with --data "
                "MODULE:NAME, a function that returns a tf.data.Dataset of dicts, or a reader."
            )
        if isinstance(found, ModelEstimator):
            return make_work(found, data, epochs=epochs)
        return ModelWork(
            model=found,
            data=check_data(data),
            optimizer=DEFAULT_OPTIMIZER,
            config=RunConfig(),
            epochs=epochs,
        )
    if not _is_trainable(found):
        raise errors.ConfigError(f"{target!r} is {found!r}; name {_KINDS}.")
    for name, is_given in (("--data", data is not None), ("--epochs", epochs != 1)):
        if is_given:
            raise errors.ConfigError(
                f"{target!r} is a task, which brings its own input; leave {name} out."
            )
    if isinstance(found, Estimator):
        return TaskWork(model=found.model, config=found.given_config)
    return TaskWork(model=found, config=RunConfig())


def _set_model_dir(target: str, work: Work, model_dir: str | None) -> Work:
    own = work.config.model_dir
    if model_dir is None and not own:
        raise errors.ConfigError(
            f"{target!r} names no model directory; give --model-dir, one that all members share."
        )
    if model_dir is not None and own and own != model_dir:
        raise errors.ConfigError(
            f"There are two model directories, {own!r} of {target!r} and --model-dir "
            f"{model_dir!r}; give one, or have the function take it as `model_dir`."
        )
    return dataclasses.replace(
        work, config=dataclasses.replace(work.config, model_dir=model_dir or own)
    )


def _name_kind(found: Any) -> str:
    return "ml.Model" if isinstance(found, Model) else "ml.Estimator"
