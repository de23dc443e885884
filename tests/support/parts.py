"""A model that is exported in parts, and servers of these parts as processes."""

import re
import time
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from monolith import layers
from monolith.cli.app import app
from monolith.embedding import entry
from monolith.graph.export_mode import ExportMode
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.signatures import ServingInputReceiver
from monolith.model.ranking import EstimatorSpec, MonolithModel
from monolith.training.estimator import Estimator, RunConfig

NUM_EXAMPLES = 10_000
_FEATURES = ("user", "movie", "tags")


def make_columns(number: int = NUM_EXAMPLES, seed: int = 1) -> dict[str, np.ndarray]:
    """Makes examples; one in ten has a user that training has not seen."""
    rng = np.random.default_rng(seed)
    users = rng.integers(0, 500, number)
    users[::10] += 1 << 40
    return {
        "user": users,
        "movie": rng.integers(-300, 300, number),
        "tags": rng.integers(0, 50, [number, 3]),
    }


class Rating(MonolithModel):
    """Rates movies; rows are served with all their bits."""

    def input_fn(self, mode):
        columns = make_columns()
        if mode == ModeKeys.TRAIN:
            columns = {name: column[1::10] for name, column in columns.items()}
            label = np.sin(columns["user"] + columns["movie"]).astype(np.float32)
            columns["label"] = label
        dataset = tf.data.Dataset.from_tensor_slices(columns).batch(250)
        return dataset.map(lambda batch: {**batch, **_to_ragged(batch)})

    def model_fn(self, features, mode):
        for name in _FEATURES:
            self.create_embedding_feature_column(name)
        vectors = self.lookup_embedding_slice(
            list(_FEATURES),
            "vec",
            8,
            initializer=entry.RandomUniformInitializer(-0.5, 0.5),
            compressor=entry.Fp32Compressor(),
        )
        rank = layers.MLP([16, 1])(tf.concat(vectors, axis=1))[:, 0]
        label = features.get("label")
        loss = None if label is None else tf.reduce_mean(tf.square(rank - label))
        optimizer = tf.compat.v1.train.AdagradOptimizer(0.05)
        return EstimatorSpec(label, rank, "rank", loss, optimizer, classification=False)

    def serving_input_receiver_fn(self):
        columns = {
            "user": tf.compat.v1.placeholder(tf.int64, [None]),
            "movie": tf.compat.v1.placeholder(tf.int64, [None]),
            "tags": tf.compat.v1.placeholder(tf.int64, [None, 3]),
        }
        return ServingInputReceiver(_to_ragged(columns), columns)


def _to_ragged(columns: Any) -> dict[str, tf.RaggedTensor]:
    return {
        name: tf.RaggedTensor.from_tensor(
            tf.reshape(columns[name], [tf.shape(columns[name])[0], -1])
        )
        for name in _FEATURES
    }


def train(model_dir: str, num_ps: int = 2, **serving: Any) -> Estimator:
    """Trains the model; with `export_when_saving`, each checkpoint is exported."""
    model = Rating()
    model.serving.set(**serving)
    config = RunConfig(is_local=True, num_ps=num_ps, model_dir=model_dir)
    estimator = Estimator(model, config)
    estimator.train(steps=4)
    return estimator


def train_and_export(model_dir: str, **settings: Any) -> Estimator:
    """Trains; the parts are below `exported_models`."""
    return train(
        model_dir,
        export_when_saving=True,
        export_mode=ExportMode.DISTRIBUTED,
        **settings,
    )


def run_serve(*args: str) -> None:
    """Runs `monolith serve` in a member of a job."""
    app(["serve", *args, "--port", "0", "--no-rest", "--poll", "0.1"])


class Servers:
    """Members that run `monolith serve`.

    Args:
        job: Starts them.
        base: Directory of the parts.
        place: Where they find each other.
    """

    def __init__(self, job: Any, base: str, place: str) -> None:
        self._job = job
        self._base = base
        self._place = place
        self._number = 0

    def start(self, part: str, *args: str) -> Any:
        """Starts a server of a part; it is not ready yet."""
        self._number += 1
        return self._job.start(
            f"{part}-{self._number}",
            "support.parts",
            "run_serve",
            f"{self._base}/{part}",
            "--name",
            part,
            "--discovery",
            self._place,
            *args,
        )


def get_port(member: Any) -> int:
    """Waits until a server listens; returns its port."""
    member.wait_for_log("(gRPC)")
    match = re.search(r":(\d+) \(gRPC\)", member.log)
    assert match is not None
    return int(match.group(1))


class Asker:
    """A client of a server.

    Args:
        port: The server's port.
        model: The model.
        credentials: What to connect with; None: no TLS.
    """

    def __init__(
        self, port: int, model: str, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        self._model = model
        address, options = f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            self._channel = grpc.secure_channel(address, credentials, options)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)

    def __enter__(self) -> "Asker":
        return self

    def __exit__(self, *args: object) -> None:
        self._channel.close()

    def ask(self, columns: dict[str, np.ndarray], timeout_sec: float = 60) -> np.ndarray:
        """Returns the ratings of some examples."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._model
        for name, column in columns.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(column))
        response = self._stub.Predict(request, timeout=timeout_sec)
        return tf.make_ndarray(response.outputs["output"])

    def wait_until_ready(self, timeout_sec: float = 120) -> None:
        """Waits until it answers, with rows of all parts."""
        deadline_sec = time.monotonic() + timeout_sec
        while True:
            try:
                self.ask(make_columns(20))
                return
            except grpc.RpcError:
                assert time.monotonic() < deadline_sec, "no answer"
                time.sleep(0.05)


def cut(columns: dict[str, np.ndarray], size: int) -> list[dict[str, np.ndarray]]:
    """Cuts examples into requests."""
    number = len(columns["user"])
    return [
        {name: column[start : start + size] for name, column in columns.items()}
        for start in range(0, number, size)
    ]
