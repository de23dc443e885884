"""The model of `monolith demo online` and the audience that it serves.

The audience asks a server about every example before it happens, as an application does before it
shows a movie, and then writes down what happened, for the training to read. So each model is judged
by examples that it cannot have seen.
"""

import dataclasses
import json
import pathlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from monolith.cli import demo_model
from monolith.data import auc, growing_files, movies
from monolith.data.schema import Ids, Label
from monolith.training.estimator import ModeKeys, ServingInputReceiver

MODELS = ("online", "hourly", "frozen")
BATCH_SIZE = demo_model.BATCH_SIZE
MINUTE = 2 * BATCH_SIZE  # Examples of a minute of the stream: whole batches.
HOUR = 60 * MINUTE

_SCHEMA = (Ids("user"), Ids("movie"), Ids("genres"), Label("label"))
_ANSWER_SEC = 60.0
_PROBE_POLL_SEC = 0.02
_STOP_FILE = "stop"


class OnlineModel(demo_model.MovieModel):
    """The demo's model, which trains on the files of a stream.

    Args:
        world: Whose users and movies.
        stream: Directory of the files; None: the world's own examples, `start` to `stop`.
    """

    def __init__(
        self, world: movies.World, stream: pathlib.Path | None = None, **settings: Any
    ) -> None:
        super().__init__(world, **settings)
        self._files = stream

    def input_fn(self, mode: str) -> tf.data.Dataset:
        if self._files is None or mode != ModeKeys.TRAIN:
            return super().input_fn(mode)
        return growing_files.tail(
            self._files / "clicks-*.jsonl",
            _SCHEMA,
            batch_size=BATCH_SIZE,
            stop_file=self._files / _STOP_FILE,
        )()

    def serving_input_receiver_fn(self) -> ServingInputReceiver:
        """Returns what the exported model is asked: ids of users, and numbers of movies."""
        user = tf.compat.v1.placeholder(tf.int64, [None], name="user")
        movie = tf.compat.v1.placeholder(tf.int64, [None], name="movie")
        genres = tf.gather(self._world.movie_genres, movie)
        features = {
            "user": demo_model.to_ragged(user),
            "movie": demo_model.to_ragged(tf.gather(self._world.movie_ids, movie)),
            "genres": tf.ragged.boolean_mask(
                tf.gather(self._world.genre_ids, tf.maximum(genres, 0)), genres >= 0
            ),
        }
        return ServingInputReceiver(features, {"user": user, "movie": movie})


class Client:
    """Asks models of a server; from several threads if need be.

    Args:
        address: Where the server listens.
    """

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def ask(self, model: str, user_ids: np.ndarray, movie: np.ndarray) -> np.ndarray:
        """Returns how likely clicks are, `[n]`."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = model
        request.inputs["user"].CopyFrom(tf.make_tensor_proto(user_ids))
        request.inputs["movie"].CopyFrom(tf.make_tensor_proto(movie))
        answer = self._stub.Predict(request, timeout=_ANSWER_SEC, wait_for_ready=True)
        (output,) = answer.outputs.values()
        return np.asarray(tf.make_ndarray(output)).reshape(-1)

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()


class Record:
    """What the models have answered, by minutes of the stream.

    Attributes:
        lags_sec: How long it took each time from a click to an answer that knows of it.
    """

    def __init__(self) -> None:
        self.lags_sec: list[float] = []
        self._scores: dict[str, list[np.ndarray]] = {name: [] for name in MODELS}
        self._probability: list[np.ndarray] = []

    @property
    def num_minutes(self) -> int:
        """How many minutes are over."""
        return len(self._probability)

    def add(self, scores: dict[str, np.ndarray], probability: np.ndarray) -> None:
        """Adds a minute: what each model has answered, and how likely the clicks were."""
        for name, values in scores.items():
            self._scores[name].append(values)
        self._probability.append(probability)

    def compute_auc(self, start: int, stop: int) -> dict[str, float]:
        """Returns the AUC of each model, and the best possible, from one minute to another."""
        probability = np.concatenate(self._probability[start:stop])
        found = {
            name: auc.auc(np.concatenate(scores[start:stop]), probability)
            for name, scores in self._scores.items()
        }
        return {**found, "best": auc.best_auc(probability)}

    def compute_windows(self, size: int) -> list[tuple[int, dict[str, float]]]:
        """Returns the AUC of windows of so many minutes, each with the minute of its end."""
        ends = range(size, self.num_minutes + 1, size)
        return [(end, self.compute_auc(end - size, end)) for end in ends]

    def describe_lag(self) -> tuple[float, float] | None:
        """Returns the median and the 99th percentile of the lags; None without any."""
        if not self.lags_sec:
            return None
        median, high = np.percentile(self.lags_sec, [50, 99])
        return float(median), float(high)


@dataclasses.dataclass
class _Probe:
    """A user who has never been there, with one click."""

    user_id: int
    written_sec: float | None = None


class Audience:
    """Users who ask a server and click, at a steady pace, in threads of their own.

    Args:
        world: Whose users and movies.
        start: The first example.
        num_minutes: How many minutes of the stream.
        minute_sec: How long a minute of the stream takes.
        directory: Where clicks are written to.
        client: Asks the server.
        show: Called with the record after every minute.
    """

    def __init__(
        self,
        world: movies.World,
        *,
        start: int,
        num_minutes: int,
        minute_sec: float,
        directory: pathlib.Path,
        client: Client,
        show: Callable[[Record], None],
    ) -> None:
        self._world = world
        self._start = start
        self._num_minutes = num_minutes
        self._minute_sec = minute_sec
        self._directory = directory
        self._client = client
        self._show = show
        self._probe: _Probe | None = None
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), name=name, daemon=True)
            for name, run in (("audience", self._click), ("probes", self._send_probes))
        ]
        self.record = Record()

    def start(self) -> None:
        """Begins."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends, also before the last minute.

        Raises:
            Exception: What the audience has met.
        """
        self._stopped.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._error is not None:
            raise self._error

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as e:  # noqa: BLE001 - raised by `close`
            self._error = self._error or e
        finally:
            # The training reads to the end of what is written, and ends.
            self._stopped.set()
            (self._directory / _STOP_FILE).touch()

    def _click(self) -> None:
        due_sec = time.monotonic()
        for minute in range(self._num_minutes):
            first = self._start + minute * MINUTE
            examples = self._world.examples(first, first + MINUTE)
            users = self._world.user_ids[examples.user]
            scores = {name: self._client.ask(name, users, examples.movie) for name in MODELS}
            self._write(minute, examples)
            self.record.add(scores, examples.probability)
            self._show(self.record)
            # A machine that cannot keep up makes the stream slower, not the steps larger.
            due_sec = max(due_sec + self._minute_sec, time.monotonic())
            if self._stopped.wait(due_sec - time.monotonic()):
                return

    def _write(self, minute: int, examples: movies.Examples) -> None:
        columns: Any = self._world.features(examples)
        user_ids = columns["user"].values.tolist()
        probe = self._probe
        if probe is not None and probe.written_sec is None:
            user_ids[-1] = probe.user_id
        genres = np.split(columns["genres"].values, np.cumsum(columns["genres"].lengths)[:-1])
        rows = zip(user_ids, columns["movie"].values.tolist(), genres, examples.label, strict=True)
        lines = [
            json.dumps({"user": user, "movie": movie, "genres": ids.tolist(), "label": int(label)})
            for user, movie, ids, label in rows
        ]
        path = self._directory / f"clicks-{minute // 60:04}.jsonl"
        with path.open("a") as file:
            file.write("\n".join([*lines, ""]))
        if probe is not None and probe.written_sec is None:
            probe.written_sec = time.monotonic()

    def _send_probes(self) -> None:
        """Measures lags: when is the answer for a new user another than that for a stranger?"""
        # Small numbers; ids of the world's users are spread over 63 bits.
        stranger, movie = 0, np.zeros(2, np.int64)
        number = 0
        while not self._stopped.is_set():
            number += 1
            self._probe = probe = _Probe(number)
            users = np.array([number, stranger], np.int64)
            while not self._stopped.wait(_PROBE_POLL_SEC):
                if probe.written_sec is None:
                    continue
                known, unknown = self._client.ask("online", users, movie)
                if known != unknown:
                    self.record.lags_sec.append(time.monotonic() - probe.written_sec)
                    break


class StartHook(tf.compat.v1.train.SessionRunHook):
    """Lets the audience begin when the training is ready for it.

    Args:
        audience: The audience.
    """

    def __init__(self, audience: Audience) -> None:
        self._audience = audience

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._audience.start()


def compute_means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the mean of each column."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
