"""Trains, evaluates, predicts with and exports an `ml.Model`: what users know as `ml.Estimator`.

It stands on `monolith.training.estimator`, which is for models in the original system's form.

Example:
    >>> import monolith as ml
    >>> class Clicks(ml.Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed = ml.Embedding("user", dim=4)
    ...         self.mlp = ml.MLP([8, 1])
    ...     def call(self, batch):
    ...         return ml.BinaryHead("click", self.mlp(self.embed(batch)), batch.get("click"))
    >>> def data():
    ...     columns = {"user": [1, 2, 1, 2], "click": [1.0, 0.0, 1.0, 0.0]}
    ...     return tf.data.Dataset.from_tensor_slices(columns).batch(4)
    >>> estimator = ModelEstimator(Clicks(), "clicks", ml.Adagrad(0.1), progress=False)
    >>> estimator.train(data, epochs=30).evaluate(data)["click_auc"] > 0.99
    True
    >>> [round(p["click"]) for p in estimator.predict(data)]
    [1, 0, 1, 0]
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.checkpoint import manifest
from monolith.checkpoint.changed_model import OnChange
from monolith.checkpoint.paths import SaveHelper
from monolith.embedding import optimizers
from monolith.graph import collectives, quiet
from monolith.graph.spec import Hook
from monolith.model.model import (
    Data,
    Model,
    ModelTask,
    inspect,
)
from monolith.training.config.run import RunConfig
from monolith.training.estimator import Estimator
from monolith.training.hooks import checkpoint_barrier
from monolith.training.hooks.epochs import Epoch
from monolith.training.hooks.evaluation import EvaluationHook
from monolith.training.hooks.progress import ProgressLine
from monolith.training.hooks.saved_steps import SavedStepsHook
from monolith.training.hooks.summaries import SummaryWriter
from monolith.training.hooks.watch import Reporter, WatchHook
from monolith.training.launch import cluster
from monolith.training.launch.work import ModelWork, OneEpoch, Repeated
from monolith.training.model_arguments import (
    NO_LINE,
    ONE_LINE,
    check_cluster,
    check_count,
    check_data,
    check_hooks,
    check_sync,
    check_topics,
    make_config,
    refuse_log_lines,
)
from monolith.training.tables import save

DEFAULT_OPTIMIZER = optimizers.Adagrad(0.02)


class ModelEstimator:
    """A model, a directory for what it learns, and how it learns.

    Data is a function that returns a `tf.data.Dataset` of dicts, columns by name, or a reader such
    as `ml.data.csv`. Every call continues from, or uses, the last checkpoint of the directory, also
    in another program, on another day, and with a model that has changed in between.

    With `num_workers` of the settings above 1, training runs in processes of their own: so many
    workers, which divide the data, and `num_ps` parameter servers. They get the model and the data
    by import, or, what the program itself defines, as a pickle. All else happens in this process.

    With `sync` of the settings, this process is a rank of a synchronous job: `monolith run -n 3`
    starts the program three times, and `train` trains with the others (docs/synchronous.md). All
    else each of them does alone.

    Args:
        model: The model.
        model_dir: Directory of checkpoints and summaries. None: one of this user alone below the
            temporary directory, named after the model.
        optimizer: Of the dense variables, and of embeddings that have none of their own.
        clip_norm: Limit of the norm of all gradients; None: no limit.
        config: Further settings.
        progress: Whether training and evaluation show how they are getting on: one line on a
            terminal, a line now and then in a log; or a line every `log_step_count_steps`.

    Raises:
        ConfigError: A setting is out of its range, or the directory cannot be written.
    """

    def __init__(
        self,
        model: Model,
        model_dir: str | os.PathLike[str] | None = None,
        optimizer: Any = DEFAULT_OPTIMIZER,
        *,
        clip_norm: float | None = None,
        config: RunConfig | None = None,
        progress: bool = True,
    ) -> None:
        if not isinstance(model, Model):
            hint = "an instance, as in Ranking()" if isinstance(model, type) else "an ml.Model"
            raise errors.ConfigError(f"An Estimator needs {hint}; got {model!r}.")
        optimizers.to_dense_optimizer(optimizer)  # Here, where the traceback shows who wrote it.
        if clip_norm is not None and not clip_norm > 0:
            raise errors.ConfigError(f"`clip_norm` must be positive, got {clip_norm!r}.")
        self._model = model
        self._optimizer = optimizer
        self._clip_norm = clip_norm
        self._has_default_dir = not model_dir and not (config and config.model_dir)
        config = make_config(config, model_dir, model.name)
        if not progress:
            refuse_log_lines(config, NO_LINE)
        if config.sync:
            check_sync(config)
        self._cluster = (config.num_ps, config.num_workers) if config.num_workers != 1 else None
        self._metrics_port = config.metrics_port
        if self._cluster is not None:
            check_cluster(config)
            # What is not training happens here; how many servers wrote a checkpoint is the same.
            config = dataclasses.replace(config, num_ps=0, num_workers=1, metrics_port=None)
        self._config = config
        self._progress = progress
        self._data: Data | None = None

    @property
    def model(self) -> Model:
        """The model."""
        return self._model

    @property
    def config(self) -> RunConfig:
        """The settings."""
        return self._config

    @property
    def model_dir(self) -> str:
        """Directory of checkpoints and summaries."""
        return self._config.model_dir

    def train(
        self,
        data: Any,
        *,
        epochs: int = 1,
        steps: int | None = None,
        max_steps: int | None = None,
        restore_what_fits: bool = False,
        hooks: Sequence[Hook] | None = None,
    ) -> "ModelEstimator":
        """Trains until the data has been read `epochs` times, or for some steps.

        Data that an earlier call, or an earlier program, has not read to its end goes on where the
        last checkpoint was saved; any other data starts at its beginning.

        Args:
            data: The data.
            epochs: How often it is read.
            steps: How many batches to train on, if the data does not end before.
            max_steps: The same, counted from the first step ever; nothing happens if the last
                checkpoint is there.
            restore_what_fits: Whether to go on with a network that has changed since the last
                checkpoint: variables that are new, or have another shape, start anew then, instead
                of being refused. Tables whose optimizer has changed keep their weights, those of
                another dim start without rows; all others go on either way.
            hooks: Hooks of the session.

        Returns:
            The estimator.

        Raises:
            ConfigError: The model does not fit the data, or a limit is not positive; or training
                has several workers and what they need cannot be pickled.
            DataError: The data cannot be read.
            JobError: Training has several workers and has failed.
            KeyboardInterrupt: Ctrl-C has stopped the training, which is saved.
            SystemExit: SIGTERM has stopped the training, which is saved.
        """
        check_count("epochs", epochs)
        for name, limit in (("steps", steps), ("max_steps", max_steps)):
            if limit is not None:
                check_count(name, limit)
        if steps is not None and max_steps is not None:
            raise errors.ConfigError("Give `steps` or `max_steps`, not both.")
        hooks = check_hooks(hooks)
        read = check_data(data)
        if self._cluster is not None:
            made = make_work(
                self, read, epochs=epochs, restore_what_fits=restore_what_fits, hooks=hooks
            )
            self._train_on_cluster(made, steps, max_steps)
            return self
        check_topics(self._config, read)
        if self._config.sync:
            # Ranks build the same graph in the same step of the program.
            collectives.init()
        is_first = not self._config.sync or collectives.rank() == 0
        repeated = read if epochs == 1 else Repeated(read, epochs)
        with _graph():
            task = self._make_task(repeated, training=True)
            if restore_what_fits:
                task.p.train.changed_model = OnChange.KEEP_WHAT_FITS
            estimator = Estimator(task, self._config)
            if is_first:
                save.prepare_model_dir(self.model_dir, estimator.model.p)
                # The wish is granted once: what is evaluated from now on is what this saves.
                estimator.go_back()
            self._config = dataclasses.replace(self._config, restore_ckpt=None)
            shown = [self._make_watch(steps, max_steps)] if is_first else []
            estimator.train(steps=steps, max_steps=max_steps, hooks=[*shown, *(hooks or ())])
        return self

    def evaluate(
        self, data: Any, *, steps: int | None = None, hooks: Sequence[Hook] | None = None
    ) -> dict[str, float]:
        """Returns the metrics of each head over the data.

        Args:
            data: The data; never remembered, always read from its beginning.
            steps: How many batches; None takes all.
            hooks: Hooks of the session.

        Returns:
            "<head>_auc" of a `BinaryHead`, "<head>_accuracy" of a `SoftmaxHead`, "<head>_mse" of
            a `RegressionHead`; "loss", the mean over the batches; and "global_step".

        Raises:
            ConfigError: Nothing was trained yet, or the model does not fit the data.
        """
        with _graph():
            shown = [EvaluationHook(steps)] if self._progress else []
            return self._open(check_data(data)).compute_metrics(steps, [*shown, *(hooks or ())])

    def train_and_evaluate(
        self,
        data: Any,
        eval_data: Any,
        *,
        epochs: int = 1,
        every_steps: int | None = None,
        restore_what_fits: bool = False,
    ) -> list[dict[str, float]]:
        """Trains and evaluates in turns.

        A program that was killed, and is started again, trains what is left of its epochs.

        Args:
            data: What to train on.
            eval_data: What to evaluate on, after each epoch, or as `every_steps` says.
            epochs: How often `data` is read.
            every_steps: If given, evaluates after so many steps, and at the end of the data; a
                checkpoint is saved then, beside those that the settings ask for.
            restore_what_fits: As in `train`.

        Returns:
            The metrics of each evaluation of this call, the oldest first.
        """
        if every_steps is not None:
            check_count("every_steps", every_steps)
            if self._cluster is not None:
                raise errors.ConfigError(
                    f"`every_steps` is {every_steps}, but training has {self._cluster[1]} workers "
                    "in processes of their own, which do not stop to evaluate; leave it out to "
                    "evaluate after each epoch, or leave `num_workers` at 1."
                )
            return self._evaluate_saves(
                data, eval_data, every_steps, epochs=epochs, restore_what_fits=restore_what_fits
            )
        check_count("epochs", epochs)
        read = check_data(data)
        history = []
        number = 0
        while number < epochs:
            number += 1
            self.train(OneEpoch(read, Epoch(number, epochs)), restore_what_fits=restore_what_fits)
            # Of a training that was started again, the first one here is a later one.
            trained = checkpoint_barrier.read_epoch(self._find_checkpoint())
            number = number if trained is None else max(number, trained.number)
            history.append(self.evaluate(eval_data))
        return history

    def _evaluate_saves(
        self, data: Any, eval_data: Any, every_steps: int, **settings: Any
    ) -> list[dict[str, float]]:
        history: list[dict[str, float]] = []

        def evaluate() -> None:
            step = SaveHelper.get_global_step_value(self._find_checkpoint())
            if not history or history[-1]["global_step"] != step:
                history.append(self.evaluate(eval_data))

        self.train(data, hooks=[SavedStepsHook(every_steps, evaluate)], **settings)
        evaluate()
        return history

    def predict(
        self,
        data: Any,
        *,
        hooks: Sequence[Hook] | None = None,
        checkpoint_path: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Returns a generator of predictions, for each example a dict by head.

        Args:
            data: The data; labels are not needed.
            hooks: Hooks of the session.
            checkpoint_path: What to predict with; None takes the last checkpoint.

        Raises:
            ConfigError: Nothing was trained yet, or the model does not fit the data.
        """
        with _graph():
            predictions = self._open(check_data(data)).predict(
                hooks=list(hooks or ()), checkpoint_path=checkpoint_path
            )
        return _quietly(predictions)

    def export(self, directory: str | os.PathLike[str] | None = None, *, data: Any = None) -> str:
        """Writes the last checkpoint as a SavedModel with all rows in it, for serving.

        `ml.load` calls it from Python. It is fed with the columns that the model reads, by name;
        those that it asks for with `batch.get` are left out.

        Args:
            directory: Where versions of the model go, each named after the time; None:
                `exported_models` of the model directory.
            data: What says which columns there are, and of which types, if this estimator has not
                seen any yet.

        Returns:
            The directory of the new version.

        Raises:
            ConfigError: Nothing was trained yet, or the directory cannot be written.
        """
        with _graph():
            estimator = self._open_for_export("export", directory, data)
            return os.fsdecode(estimator.export_saved_model(batch_size=0))

    def export_parts(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        data: Any = None,
        dense_only: bool = False,
    ) -> dict[str, str]:
        """Writes the last checkpoint in parts, for tables that one server cannot hold.

        `entry` is the network, and asks `ps_0`, `ps_1` and so on for rows: as many as there were
        parameter servers in training, at least one. docs/serving.md says how they are served.

        Args:
            directory: Where the parts go, each to a directory of its own with all its versions;
                None: `exported_models` of the model directory.
            data: As in `export`.
            dense_only: Whether only the entry is written; servers keep the rows that they have.

        Returns:
            The directory of the new version of each part.

        Raises:
            ConfigError: As in `export`.
        """
        with _graph():
            estimator = self._open_for_export("export_parts", directory, data)
            export_dirs = estimator.export_parts(batch_size=0, dense_only=dense_only)
            return {part: os.fsdecode(path) for part, path in export_dirs.items()}

    def latest_checkpoint(self) -> str | None:
        """Returns the prefix of the last checkpoint, None if there is none."""
        return tf.train.latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Returns the names of all dense variables in the last checkpoint."""
        reader = manifest.open_variables(self._find_checkpoint())
        return sorted(reader.get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> np.ndarray:
        """Returns the value of a dense variable in the last checkpoint.

        Raises:
            ConfigError: Nothing was trained yet, or the checkpoint has no such variable.
        """
        checkpoint = self._find_checkpoint()
        reader = manifest.open_variables(checkpoint)
        if not reader.has_tensor(name):
            raise errors.ConfigError(
                f"{checkpoint} has no variable {name!r}; get_variable_names() lists those it has."
            )
        return manifest.read_variable(checkpoint, reader, name)

    def _train_on_cluster(self, made: ModelWork, steps: int | None, max_steps: int | None) -> None:
        with _graph():
            # Before any process is started: a model that does not fit its data is refused here.
            self._data = made.data
            task = made.make_model("worker")
            estimator = Estimator(task, self._config)
            save.prepare_model_dir(self.model_dir, estimator.model.p)
            estimator.go_back()
            self._config = dataclasses.replace(self._config, restore_ckpt=None)
            if max_steps is not None and estimator.get_step() >= max_steps:
                return
        made.steps, made.max_steps = steps, max_steps
        # All of it was done above, once.
        made.config = dataclasses.replace(made.config, restore_dir=None, restore_ckpt=None)
        assert self._cluster is not None
        num_ps, num_workers = self._cluster
        cluster.train_on_cluster(
            made,
            num_ps=num_ps,
            num_workers=num_workers,
            model_dir=os.path.abspath(self.model_dir),
            progress=self._progress,
        )

    def _find_checkpoint(self) -> str:
        checkpoint = self.latest_checkpoint()
        if checkpoint is None:
            raise errors.ConfigError(f"There is no checkpoint in {self.model_dir}; train first.")
        return checkpoint

    def _make_watch(self, steps: int | None, max_steps: int | None) -> WatchHook:
        """Returns the hook that shows how a training is getting on, and writes it down."""
        config = self._config
        reporters: list[Reporter] = [
            SummaryWriter(self.model_dir, every_steps=config.save_summary_steps)
        ]
        if self._progress:
            every_steps = config.log_step_count_steps
            reporters.append(ProgressLine(max_steps, steps=steps, every_steps=every_steps))
        rate = getattr(self._optimizer, "learning_rate", None)
        return WatchHook(reporters, learning_rates={"dense": rate})

    def _open(self, data: Data) -> Estimator:
        """Returns an estimator of the model over `data`."""
        return Estimator(self._make_task(data), self._config)

    def _open_for_export(
        self, method: str, directory: str | os.PathLike[str] | None, data: Any
    ) -> Estimator:
        """Returns an estimator that exports models with their rows in them."""
        if data is not None:
            self._data = check_data(data)
        if self._data is None:
            raise errors.ConfigError(
                "An export must know the columns of the data: train, evaluate or predict before, "
                f"or give {method}(data=...); no batch of it is read."
            )
        checkpoint = self.latest_checkpoint()
        if checkpoint is not None:
            manifest.verify(checkpoint)
        task = self._make_task(self._data)
        task.p.serving.shared_embedding = False
        if directory is not None:
            task.p.serving.export_dir_base = os.path.abspath(directory)
        return Estimator(task, self._config)

    def _make_task(self, data: Data, *, training: bool = False) -> ModelTask:
        self._data = data
        found = inspect(self._model, data, training=training)
        return ModelTask(self._model, data, self._optimizer, self._clip_norm, found)


def make_work(
    estimator: ModelEstimator,
    data: Any,
    *,
    epochs: int = 1,
    restore_what_fits: bool = False,
    hooks: Sequence[Hook] = (),
) -> ModelWork:
    """Returns a training as other processes can have it; for who starts them.

    Args:
        estimator: Model, optimizer and settings.
        data: What to train on.
        epochs: How often it is read.
        restore_what_fits: As in `ModelEstimator.train`.
        hooks: Hooks of all workers.

    Raises:
        ConfigError: The settings ask for log lines by steps.
    """
    config = estimator._config
    refuse_log_lines(config, ONE_LINE)
    num_ps, num_workers = estimator._cluster or (config.num_ps, config.num_workers)
    config = dataclasses.replace(
        config,
        is_local=False,
        num_ps=num_ps,
        num_workers=num_workers,
        metrics_port=estimator._metrics_port,
    )
    if estimator._has_default_dir:
        config.model_dir = ""
    return ModelWork(
        model=estimator._model,
        data=check_data(data),
        optimizer=estimator._optimizer,
        clip_norm=estimator._clip_norm,
        epochs=epochs,
        restore_what_fits=restore_what_fits,
        hooks=hooks,
        config=config,
    )


@contextlib.contextmanager
def _graph() -> Iterator[None]:
    """Makes a graph the current one, since programs run eagerly and training does not."""
    with tf.Graph().as_default(), quiet.quiet_tensorflow():
        yield


def _quietly(predictions: Iterator[Any]) -> Iterator[Any]:
    while True:
        with quiet.quiet_tensorflow():
            try:
                prediction = next(predictions)
            except StopIteration:
                return
        yield prediction
