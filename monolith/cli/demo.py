"""`monolith demo`: a ranking model from the first example to recommendations, in two minutes.

It trains on a synthetic stream of movie clicks, with parameter servers in the process, saves,
restores what it saved into new servers, evaluates, recommends movies to three users, and exports
the model. Because the stream is synthetic, it can say how good any model could be at best.
"""

import contextlib
import logging
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import rich.console
import rich.table
import typer

from monolith import errors
from monolith.core import directories

if TYPE_CHECKING:
    from monolith.data import movies
    from monolith.training.estimator import Estimator

_HELD_OUT = 102_400
_NUM_RECOMMENDED = 5
_LOG = "demo.log"
_INTERRUPTED = 130  # What a shell reports of a program that Ctrl-C has ended.

app = typer.Typer(invoke_without_command=True)


@app.callback()
def demo(
    context: typer.Context,
    model_dir: Annotated[
        pathlib.Path, typer.Option(metavar="DIR", help="Where everything goes.")
    ] = pathlib.Path("monolith-demo"),
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Batches of 512 to train on; by default the whole stream."),
    ] = None,
    num_ps: Annotated[int, typer.Option(min=0, help="Parameter servers, all in this process.")] = 2,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what an earlier run has trained.")
    ] = False,
) -> None:
    """Train a movie-ranking model on a synthetic stream and recommend movies.

    Ctrl-C saves and ends; the same command goes on from there.
    """
    if context.invoked_subcommand is not None:
        _refuse_options_of_another_demo(context)
        return
    run_in_directory(
        model_dir, restart, lambda console: _Demo(console, model_dir, steps, num_ps).run()
    )


def run_in_directory(
    model_dir: pathlib.Path,
    restart: bool,
    run: Callable[[rich.console.Console], bool],
    refuse: Callable[[], None] | None = None,
) -> None:
    """Runs a demo whose messages go to a log in its directory, and ends the command if need be.

    Args:
        model_dir: The directory.
        restart: Whether what an earlier run has left there is removed.
        run: The demo; returns whether it came to its end.
        refuse: Raises a `ConfigError` if the demo cannot run there.
    """
    console = rich.console.Console(highlight=False)
    log = model_dir / _LOG
    try:
        if restart:
            _remove(model_dir)
        directories.make_writable("--model-dir", str(model_dir))
        if refuse is not None:
            refuse()
    except errors.ConfigError as error:
        stderr = rich.console.Console(stderr=True, soft_wrap=True, highlight=False)
        stderr.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    try:
        with _divert_messages(log):
            is_done = run(console)
    except Exception:
        console.print(f"The demo failed; {log} may say more.", style="red", soft_wrap=True)
        raise
    if not is_done:
        raise typer.Exit(_INTERRUPTED)


def _refuse_options_of_another_demo(context: typer.Context) -> None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"{parameter.opts[0]} stands before {context.invoked_subcommand}, which has "
                "options of its own; write it behind, if it is one of them."
            )


class _Demo:
    """The demo's chapters."""

    def __init__(
        self, console: rich.console.Console, model_dir: pathlib.Path, steps: int | None, num_ps: int
    ) -> None:
        # Here, because it takes seconds, and what it tells belongs into the log.
        import tensorflow as tf

        from monolith.cli import demo_model
        from monolith.data import movies

        tf.compat.v1.disable_eager_execution()
        self._model = demo_model
        self._console = console
        self._model_dir = model_dir
        self._num_ps = num_ps
        self._world = movies.World()
        whole = self._world.config.num_examples // demo_model.BATCH_SIZE
        self._steps = min(steps or whole, whole)
        self._held_out = min(_HELD_OUT, self._steps * demo_model.BATCH_SIZE)

    def run(self) -> bool:
        """Returns whether it came to its end."""
        config = self._world.config
        self._say(
            f"A stream of {config.num_examples:,} examples: {config.num_users:,} users, "
            f"{config.num_movies:,} movies that appear and fade while it runs."
        )
        if not self._train():
            return False
        restored = self._restore()
        self._evaluate(restored)
        self._recommend()
        self._export()
        self._say_what_next()
        return True

    def _train(self) -> bool:
        from monolith.training.hooks import interrupt, progress

        done = self._get_step()
        if done >= self._steps:
            self._say(
                f"{self._model_dir} holds a model of {done:,} steps already; --restart trains anew."
            )
            return True
        servers = f"{self._num_ps} parameter servers" if self._num_ps else "tables in the process"
        self._title(f"Training with {servers}; Ctrl-C saves and ends")
        if done:
            self._say(f"Going on from step {done:,}.")
        size = self._model.BATCH_SIZE
        estimator = self._make_estimator(start=done * size, stop=self._steps * size)
        stop = interrupt.StopOnSignalHook()
        with progress.ProgressHook(self._steps, console=self._console) as line:
            estimator.train(max_steps=self._steps, hooks=[line, stop])
        step = self._get_step()
        if stop.received is None:
            return True
        self._say(
            f"\nStopped at step {step:,} and saved in {self._model_dir}; the same command goes on "
            "from there."
        )
        return False

    def _restore(self) -> "Estimator":
        estimator = self._make_estimator(held_out=self._held_out)
        checkpoint = estimator.latest_checkpoint()
        assert checkpoint is not None
        self._title(f"Restoring into new {'servers' if self._num_ps else 'tables'}, and evaluating")
        self._say(f"Checkpoint {os.path.basename(checkpoint)}, {_describe_size(checkpoint)}.")
        return estimator

    def _evaluate(self, estimator: "Estimator") -> None:
        from monolith.data import movies

        examples = self._world.held_out(self._held_out)
        # It writes its metrics to the standard error, which is the log here.
        auc = float(estimator.evaluate()[f"{self._model.HEAD}_auc"])
        best = movies.best_auc(examples.probability)
        self._say(
            f"AUC {auc:.4f} on {self._held_out:,} examples from after the stream; the best that "
            f"any model can reach is {best:.4f}."
        )
        self._say(f"That is {(auc - 0.5) / (best - 0.5):.1%} of the way from a coin's 0.5.")

    def _recommend(self) -> None:
        import numpy as np

        world = self._world
        self._title("Recommending what is showing now")
        showing = np.argsort(-world.popularity(1.0))[: world.config.num_movies // 4]
        users = _choose_users(world, showing)
        pairs = [(user, int(movie)) for user in users for movie in showing]
        clicks = np.fromiter(self._make_estimator(pairs=pairs).predict(), np.float64)
        for user, scores in zip(users, clicks.reshape(len(users), -1), strict=True):
            table = rich.table.Table(
                title=f"User {user}, who likes {', '.join(world.favourite_genres(user))}",
                title_justify="left",
                title_style="",
            )
            for name in ("movie", "genres"):
                table.add_column(name)
            for name in ("predicted", "true"):
                table.add_column(name, justify="right")
            for i in np.argsort(-scores)[:_NUM_RECOMMENDED]:
                movie = int(showing[i])
                true = float(world.click_probability(user, movie))
                table.add_row(
                    world.titles[movie],
                    ", ".join(world.genres(movie)),
                    f"{scores[i]:.0%}",
                    f"{true:.0%}",
                )
            self._console.print(table)

    def _export(self) -> None:
        self._title("Exporting it for a server")
        version = os.path.basename(
            self._make_estimator().export_saved_model(self._model.BATCH_SIZE).decode()
        )
        self._say(f"Version {version} is in {self._get_export_dir()}, with all rows.")

    def _say_what_next(self) -> None:
        self._title("What to try next")
        log = self._model_dir / _LOG
        self._say(f"Checkpoints, tables and summaries are in {self._model_dir}, the log is {log}.")
        for what, command in (
            (
                "Ask it over HTTP (docs/serving.md):",
                f"monolith serve {shlex.quote(str(self._get_export_dir()))} --name movies",
            ),
            ("See the loss and the metrics:", _describe_tensorboard(self._model_dir)),
            ("Train without servers:", "monolith demo --num-ps 0 --model-dir monolith-demo-local"),
            ("Read the model and change it:", "examples/movies.py, docs/models.md"),
        ):
            self._say(f"{what:<35} {command}")

    def _make_estimator(self, **settings: Any) -> "Estimator":
        from monolith.training.estimator import Estimator, RunConfig

        config = RunConfig(
            is_local=True,
            model_dir=str(self._model_dir),
            num_ps=self._num_ps,
            checkpoints_max_to_keep=2,
        )
        model = self._model.MovieModel(self._world, **settings)
        model.serving.shared_embedding = False  # What is exported outlives its checkpoint.
        return Estimator(model, config)

    def _get_export_dir(self) -> pathlib.Path:
        return self._model_dir / "exported_models"

    def _get_step(self) -> int:
        """Returns the step of the last checkpoint, 0 if there is none."""
        estimator = self._make_estimator()
        if estimator.latest_checkpoint() is None:
            return 0
        return int(estimator.get_variable_value("global_step"))

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    def _title(self, text: str) -> None:
        self._console.print(f"\n{text}", style="bold", soft_wrap=True, markup=False)


def _choose_users(world: "movies.World", showing: Any, count: int = 3) -> list[int]:
    """Returns users who are often there, click on some things only, and differ in their taste."""
    import numpy as np

    often = np.argsort(-np.bincount(world.held_out(_HELD_OUT).user))
    chosen: dict[int, set[str]] = {}
    for user in map(int, often):
        likes = set(world.favourite_genres(user))
        is_picky = world.click_probability(user, showing).mean() < 0.4
        if is_picky and not any(likes & others for others in chosen.values()):
            chosen[user] = likes
        if len(chosen) == count:
            break
    return list(chosen)


def _remove(model_dir: pathlib.Path) -> None:
    """Removes what an earlier demo has left; any other directory that holds something stays.

    Raises:
        ConfigError: It is one of these, or cannot be removed.
    """
    if not model_dir.exists():
        return
    if not (model_dir / _LOG).exists() and (not model_dir.is_dir() or any(model_dir.iterdir())):
        raise errors.ConfigError(
            f"{model_dir} has no {_LOG}, so it is not of an earlier demo, and --restart does not "
            "remove it; name another --model-dir."
        )
    try:
        shutil.rmtree(model_dir)
    except OSError as error:
        raise errors.ConfigError(
            f"--restart cannot remove {error.filename}: {(error.strerror or str(error)).lower()}; "
            "remove it yourself, or name another --model-dir."
        ) from error


def _describe_tensorboard(model_dir: pathlib.Path) -> str:
    """Returns the command that shows the summaries, with the one that installs it if need be."""
    show = f"tensorboard --logdir {shlex.quote(str(model_dir))}"
    if shutil.which("tensorboard"):
        return show
    beside = pathlib.Path(sys.executable).with_name("tensorboard")
    if beside.exists():  # In an environment that is not active.
        return f"{shlex.quote(str(beside.parent))}/{show}"
    return f'pip install "monolith-recsys[tensorboard]"; {show}'


def _describe_size(checkpoint: str) -> str:
    """Returns what a checkpoint, with its tables, takes on disk."""
    prefix = pathlib.Path(checkpoint)
    parts = list(prefix.parent.glob(f"{prefix.name}.*"))
    files = [file for part in parts for file in [part, *part.rglob("*")] if file.is_file()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB"


@contextlib.contextmanager
def _divert_messages(path: pathlib.Path) -> Iterator[None]:
    """Sends what libraries tell, in Python and in C++, to a file instead of between our lines."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("a") as log:
        os.dup2(log.fileno(), 2)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
