"""`monolith demo online`: the loop of real-time training, in one command.

Users whose tastes drift click on movies; what they do is written to files that grow. A model trains
on these files and sends what it learns to a server every second. The users ask this server all the
time, about each movie before they see it, and two more models beside: the same one as it was at the
start, and the same one as it was exported last, once in an hour of the stream.
"""

import contextlib
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import rich.console
import rich.live
import rich.table
import typer

from monolith import errors
from monolith.cli import demo, line_chart

if TYPE_CHECKING:
    from monolith.cli import demo_stream
    from monolith.training.estimator import Estimator

_HISTORY_HOURS = 4  # What the first export has learned from.
_TURNS_PER_HOUR = 0.15
_INTERVAL_SEC = 1.0
_WINDOW_MINUTES = 10
_LOADED_SEC = 600.0  # On a machine that does much else.
_SHOWN_SEC = 1.0


def online(
    model_dir: Annotated[
        pathlib.Path, typer.Option(metavar="DIR", help="Where everything goes.")
    ] = pathlib.Path("monolith-demo-online"),
    hours: Annotated[int, typer.Option(min=1, help="Hours of the stream.")] = 6,
    hour_sec: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="How long an hour of the stream takes.")
    ] = 15.0,
    seed: Annotated[int, typer.Option(min=0, help="Another seed is another world.")] = 1,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget what an earlier run has trained.")
    ] = False,
) -> None:
    """Train on a stream whose tastes drift, and serve what was learned a second ago.

    Shows the AUC of the served model beside that of a model that stays as it is and of one that is
    exported once per hour of the stream; ends with a plot and with the lag. Ctrl-C ends it sooner.
    """

    def refuse() -> None:
        if any(model_dir.iterdir()):
            raise errors.ConfigError(
                f"{model_dir} is not empty, and this demo begins anew; --restart forgets an "
                "earlier run, or name another --model-dir."
            )

    demo.run_in_directory(
        model_dir,
        restart,
        lambda console: _OnlineDemo(console, model_dir, hours, hour_sec, seed).run(),
        refuse,
    )


class _OnlineDemo:
    """The demo's chapters."""

    def __init__(
        self,
        console: rich.console.Console,
        model_dir: pathlib.Path,
        hours: int,
        hour_sec: float,
        seed: int,
    ) -> None:
        # Here, because it takes seconds, and what it tells belongs into the log.
        import tensorflow as tf

        from monolith.cli import demo_stream
        from monolith.data import movies

        tf.compat.v1.disable_eager_execution()
        self._stream = demo_stream
        self._console = console
        self._model_dir = model_dir
        self._hours = hours
        self._hour_sec = hour_sec
        self._history = _HISTORY_HOURS * demo_stream.HOUR
        total = _HISTORY_HOURS + hours
        config = movies.WorldConfig(
            seed=seed,
            num_users=2_000,
            num_movies=600,
            num_examples=total * demo_stream.HOUR,
            taste_turns=total * _TURNS_PER_HOUR,
        )
        self._world = movies.World(config)
        self._clicks = model_dir / "clicks"

    def run(self) -> bool:
        """Returns whether it came to its end."""
        config = self._world.config
        self._say(
            f"{config.num_users:,} users, {config.num_movies:,} movies that appear and fade; all "
            f"tastes turn by {360 * _TURNS_PER_HOUR:.0f} degrees in an hour of the stream, which "
            f"takes {self._hour_sec:g} s and has {self._stream.HOUR:,} examples."
        )
        version = self._train_history()
        with self._serve(version) as address:
            client = self._stream.Client(address)
            try:
                record, is_done = self._follow(client)
            finally:
                client.close()
        self._report(record)
        return is_done

    def _train_history(self) -> int:
        """Trains on the hours before, and exports; returns the version."""
        self._clicks.mkdir()
        self._title(f"Training on the {_HISTORY_HOURS} hours before")
        estimator = self._make_estimator(start=0, stop=self._history)
        estimator.train()
        path = estimator.export_saved_model(self._stream.BATCH_SIZE).decode()
        self._say(f"Exported as version {pathlib.Path(path).name}, with all rows.")
        return int(pathlib.Path(path).name)

    def _follow(self, client: "demo_stream.Client") -> tuple["demo_stream.Record", bool]:
        """Trains on what the audience does, until it is gone."""
        from monolith.training.hooks import interrupt

        self._title("Training, sending what is learned every second, and asking all the time")
        stop = interrupt.StopOnSignalHook()
        with _View(self._console) as view:
            audience = self._stream.Audience(
                self._world,
                start=self._history,
                num_minutes=60 * self._hours,
                minute_sec=self._hour_sec / 60,
                directory=self._clicks,
                client=client,
                show=view.show,
            )
            estimator = self._make_estimator(
                stream=self._clicks,
                export_when_saving=True,
                save_checkpoints_steps=self._stream.HOUR // self._stream.BATCH_SIZE,
                sync_to=self._get_place(),
                sync_model="online",
                sync_interval_secs=_INTERVAL_SEC,
                sync_dense_interval_secs=_INTERVAL_SEC,
            )
            try:
                estimator.train(hooks=[stop, self._stream.StartHook(audience)])
            finally:
                audience.close()
            view.show(audience.record, is_last=True)
        return audience.record, stop.received is None

    def _report(self, record: "demo_stream.Record") -> None:
        if record.num_minutes < _WINDOW_MINUTES:
            self._say("It was stopped before there was something to compare.")
            return
        hours = [row for _, row in record.compute_windows(60)] or [
            record.compute_auc(0, record.num_minutes)
        ]
        means = self._stream.compute_means(hours)
        margin = means["online"] - means["hourly"]
        self._title("What it was worth")
        self._say(
            f"AUC of the online model {means['online']:.4f}, exported once an hour "
            f"{means['hourly']:.4f}, frozen at the start {means['frozen']:.4f}; the best that any "
            f"model can reach is {means['best']:.4f}."
        )
        self._say(f"Online is better than hourly by {margin:+.4f}.")
        lag = record.describe_lag()
        if lag is not None:
            self._say(
                f"From a click of a new user to an answer that knows of it: median {lag[0]:.2f} s, "
                f"99 % within {lag[1]:.2f} s, of {len(record.lags_sec)} clicks."
            )
        windows = record.compute_windows(_WINDOW_MINUTES)
        lines = {name: [(end / 60, row[name]) for end, row in windows] for name in means}
        plot = self._model_dir / "online.svg"
        plot.write_text(
            line_chart.draw_lines("AUC while tastes drift", "hours of the stream", lines)
        )
        results = {
            "seed": self._world.config.seed,
            "auc": means,
            "hours": hours,
            "margin": margin,
            "lags_sec": record.lags_sec,
        }
        (self._model_dir / "online.json").write_text(json.dumps(results))
        self._say(f"The plot is {plot}, the figures are {plot.with_suffix('.json')}.")

    @contextlib.contextmanager
    def _serve(self, version: int) -> Iterator[str]:
        """Serves the models in a process of its own; yields its address."""
        models = self._model_dir / "models.txt"
        models.write_text(self._describe_models(version))
        command = [sys.executable, "-m", "monolith.cli.app", "serve"]
        command += ["--models-file", str(models), "--port", "0", "--no-rest", "--allow-writes"]
        command += ["--discovery", self._get_place()]
        log = self._model_dir / "serve.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
            )
        try:
            yield self._wait_for_models(process, log)
        finally:
            process.terminate()
            process.wait()

    def _describe_models(self, version: int) -> str:
        """Returns what the server is told: of one model it takes each new version."""
        parts = []
        for name in self._stream.MODELS:
            policy = "" if name == "hourly" else f"specific {{ versions: {version} }}"
            parts.append(
                f'config {{ name: "{name}" base_path: {json.dumps(str(self._get_export_dir()))} '
                f'model_platform: "tensorflow" model_version_policy {{ {policy} }} }}'
            )
        return "model_config_list {\n" + "\n".join(parts) + "\n}\n"

    def _wait_for_models(self, process: subprocess.Popen, log: pathlib.Path) -> str:
        from monolith.cluster.discovery_file import FileServiceDiscovery

        discovery = FileServiceDiscovery(str(self._get_servers()))
        deadline_sec = time.monotonic() + _LOADED_SEC
        try:
            while True:
                found = [discovery.query(name) for name in self._stream.MODELS]
                if all(found):
                    return str(next(iter(found[0].values())))
                if process.poll() is not None or time.monotonic() > deadline_sec:
                    raise errors.MonolithError(f"The server does not answer; {log} says why.")
                time.sleep(0.1)
        finally:
            discovery.close()

    def _make_estimator(self, export_when_saving: bool = False, **settings: Any) -> "Estimator":
        from monolith.graph.export_mode import ExportMode
        from monolith.training.estimator import Estimator, RunConfig

        of_model = {name: settings.pop(name, None) for name in ("start", "stop", "stream")}
        model = self._stream.OnlineModel(self._world, **{k: v for k, v in of_model.items() if v})
        model.serving.shared_embedding = False  # What is exported outlives its checkpoint.
        model.serving.export_mode = ExportMode.STANDALONE
        model.serving.export_when_saving = export_when_saving
        config = RunConfig(
            is_local=True, model_dir=str(self._model_dir), checkpoints_max_to_keep=2, **settings
        )
        return Estimator(model, config)

    def _get_export_dir(self) -> pathlib.Path:
        return (self._model_dir / "exported_models").absolute()

    def _get_servers(self) -> pathlib.Path:
        return (self._model_dir / "servers").absolute()

    def _get_place(self) -> str:
        return f"file:{self._get_servers()}"

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)

    def _title(self, text: str) -> None:
        self._console.print(f"\n{text}", style="bold", soft_wrap=True, markup=False)


class _View:
    """A table with a row for each hour, the last of which changes; without a terminal, lines."""

    def __init__(self, console: rich.console.Console) -> None:
        self._console = console
        self._live = rich.live.Live(console=console, auto_refresh=False)
        self._hours: list[dict[str, float]] = []
        self._shown_sec = 0.0

    def __enter__(self) -> "_View":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._live.stop()

    def show(self, record: "demo_stream.Record", is_last: bool = False) -> None:
        """Shows what has come, once a second at most."""
        hours, minutes = divmod(record.num_minutes, 60)
        if len(self._hours) < hours:
            start = 60 * len(self._hours)
            self._hours.append(record.compute_auc(start, start + 60))
            if not self._console.is_terminal:
                text = ", ".join(f"{name} {auc:.4f}" for name, auc in self._hours[-1].items())
                lag = _describe_lag(record)
                self._console.print(f"hour {hours}: AUC {text}; lag {lag}", soft_wrap=True)
        now_sec = time.monotonic()
        if not self._console.is_terminal or (
            now_sec - self._shown_sec < _SHOWN_SEC and not is_last
        ):
            return
        self._shown_sec = now_sec
        rows = [(f"hour {i + 1}", row) for i, row in enumerate(self._hours)]
        if minutes:
            current = record.compute_auc(60 * hours, 60 * hours + minutes)
            rows.append((f"hour {hours + 1}, {minutes} min", current))
        self._live.update(_make_table(rows, _describe_lag(record)), refresh=True)


def _describe_lag(record: "demo_stream.Record") -> str:
    lag = record.describe_lag()
    return "not known yet" if lag is None else f"{lag[0]:.2f} s"


def _make_table(rows: list[tuple[str, dict[str, float]]], lag: str) -> rich.table.Table:
    table = rich.table.Table(
        title="AUC of what is served", caption=f"median lag from a click to an answer: {lag}"
    )
    table.add_column("stream time")
    for name in rows[0][1] if rows else ():
        table.add_column(name, justify="right", style="bold" if name == "online" else "")
    for when, row in rows:
        table.add_row(when, *(f"{auc:.4f}" for auc in row.values()))
    return table
