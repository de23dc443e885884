"""What a job trains, in a form that each of its processes can have.

A process gets it by its name (`monolith.training.launch.targets`), or as a pickle, in which
functions and classes of the program itself travel by value, and those of modules by name.

Example:
    >>> import cloudpickle
    >>> from monolith.data import movies
    >>> copy = unpickle(pickle_work(TaskWork(model="model", config=RunConfig(), max_steps=7)))
    >>> copy.model, copy.max_steps
    ('model', 7)
"""

import copy
import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle

from monolith import errors
from monolith.checkpoint.changed_model import OnChange
from monolith.graph.spec import Hook
from monolith.model.model import Data, Inspection, Model, ModelTask, inspect, make_dataset
from monolith.training.config.run import RunConfig
from monolith.training.hooks.epochs import Epoch, note
from monolith.training.hooks.summaries import SummaryWriter
from monolith.training.hooks.watch import Reporter
from monolith.training.model_arguments import check_topics
from monolith.training.runner import RunnerConfig


@dataclasses.dataclass(kw_only=True)
class Work:
    """What is trained, and for how long.

    Attributes:
        config: The settings; what a member is, and where it meets the others, is filled in.
        steps: How many steps all workers train together.
        max_steps: Global step at which they end.
        hooks: Hooks of the sessions of all workers.
    """

    config: RunConfig | RunnerConfig
    steps: int | None = None
    max_steps: int | None = None
    hooks: Sequence[Hook] = ()

    @property
    def name(self) -> str:
        """Name of the model."""
        raise NotImplementedError

    def make_model(self, role: str) -> Any:
        """Returns the task, or its params, for a member of a certain role."""
        raise NotImplementedError

    def make_reporters(self, model_dir: str) -> list[Reporter]:
        """Returns who, in the chief, gets the figures of the training."""
        return []

    def make_config(self) -> RunnerConfig:
        """Returns a copy of the settings."""
        if isinstance(self.config, RunConfig):
            return self.config.to_runner_config()
        return copy.deepcopy(self.config)


@dataclasses.dataclass(kw_only=True)
class TaskWork(Work):
    """A task in the original system's form, which brings its own input.

    Attributes:
        model: The task, or its params.
    """

    model: Any

    @property
    def name(self) -> str:
        return str(getattr(self.model, "name", "") or type(self.model).__name__)

    def make_model(self, role: str) -> Any:
        return self.model


@dataclasses.dataclass(kw_only=True)
class ModelWork(Work):
    """An `ml.Model` with its data.

    Attributes:
        model: The model.
        data: Returns a `tf.data.Dataset` of dicts.
        optimizer: Of dense variables, and of rows whose layer has none.
        clip_norm: Limit of the norm of all gradients.
        epochs: How often the data is read.
        restore_what_fits: Whether to go on with a network that has changed.
    """

    model: Model
    data: Data
    optimizer: Any
    clip_norm: float | None = None
    epochs: int = 1
    restore_what_fits: bool = False

    @property
    def name(self) -> str:
        return self.model.name

    def make_model(self, role: str) -> ModelTask:
        data = self.data if self.epochs == 1 else Repeated(self.data, self.epochs)
        if role == "ps":  # It builds no graph, and may be where the data is not.
            found = Inspection({}, {}, [], [])
        else:
            check_topics(self.config, data)
            found = inspect(self.model, data, training=True)
        task = ModelTask(self.model, data, self.optimizer, self.clip_norm, found)
        if self.restore_what_fits:
            task.p.train.changed_model = OnChange.KEEP_WHAT_FITS
        return task

    def make_reporters(self, model_dir: str) -> list[Reporter]:
        # What a `RunnerConfig` says may be nothing but its default.
        own = self.config.save_summary_steps if isinstance(self.config, RunConfig) else None
        return [SummaryWriter(model_dir, every_steps=own)]


class Repeated:
    """Data that is read several times."""

    def __init__(self, data: Data, epochs: int) -> None:
        self._data = data
        self._epochs = epochs

    def __call__(self) -> Any:
        return make_dataset(self._data).repeat(self._epochs)


class OneEpoch:
    """Data that is one epoch of several, of which checkpoints remember the number."""

    def __init__(self, data: Data, epoch: Epoch) -> None:
        self._data = data
        self._epoch = epoch

    def __call__(self) -> Any:
        note(self._epoch)
        return make_dataset(self._data)


def pickle_work(work: Work) -> bytes:
    """Returns the pickle of some work.

    Raises:
        ConfigError: A part of it cannot be pickled.
    """
    try:
        return cloudpickle.dumps(work)
    except Exception as error:
        raise errors.ConfigError(
            f"{_find_unpicklable(work)} cannot be handed to other processes, since it cannot be "
            f"pickled ({_first_line(error)}); open files, connections and locks where they are "
            "used, or put the model and its data into a module and name them to `monolith train`."
        ) from error


def unpickle(given: bytes) -> Work:
    """Returns the work of a pickle that `pickle_work` has made.

    Raises:
        ConfigError: A module that it names cannot be imported here.
    """
    try:
        work = pickle.loads(given)
    except (ImportError, AttributeError) as error:
        raise errors.ConfigError(
            f"The model cannot be made in another process ({_first_line(error)}); have what it is "
            "made of in a module that can be imported, or in the program itself."
        ) from error
    assert isinstance(work, Work)
    return work


def _find_unpicklable(work: Work) -> str:
    for field in dataclasses.fields(work):
        try:
            cloudpickle.dumps(getattr(work, field.name))
        except Exception:  # noqa: BLE001 - as above
            return f"`{field.name}` of the job"
    return "The job"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
