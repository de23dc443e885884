"""Small models to serve, and a server over them."""

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_log_pb2,
    prediction_service_pb2_grpc,
)

from monolith.serving import remote
from monolith.serving.loading import import_saved_model
from monolith.serving.server.config import Loading, ModelConfig, ServerConfig
from monolith.serving.server.server import PredictionServer

# Looks for versions often, so that tests do not wait, and does not try again what is broken.
QUICK = Loading(poll_sec=0.02, max_retries=0)


def save_model(path: os.PathLike[str] | str, factor: float = 2.0) -> str:
    """Saves a model, complete or not at all, as a version should appear.

    Its functions: `serving_default` multiplies `x` by the factor; `pair` has two inputs and two
    outputs; `total` has one number for all rows; `text` takes strings, `ids` integers; `ragged`
    sums `ids_lengths` integers for each row; `matrix` needs rows of 3; `failing` does not take NaN;
    `classify` and `regress` read `x` of examples.
    """
    target = pathlib.Path(path)
    temporary = target.with_name(f"temp-{target.name}")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        y = tf.compat.v1.placeholder(tf.float32, [None], name="y")
        matrix = tf.compat.v1.placeholder(tf.float32, [None, 3], name="matrix")
        ids = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
        lengths = tf.compat.v1.placeholder(tf.int64, [None], name="lengths")
        text = tf.compat.v1.placeholder(tf.string, [None], name="text")
        examples = tf.compat.v1.placeholder(tf.string, [None], name="examples")
        w = tf.compat.v1.get_variable("w", initializer=factor)
        parsed = tf.io.parse_example(examples, {"x": tf.io.FixedLenFeature([], tf.float32)})["x"]
        scores = tf.stack([parsed * w, -parsed * w], axis=1)
        classes = tf.broadcast_to(tf.constant([["up", "down"]]), tf.shape(scores))
        sums = tf.reduce_sum(tf.RaggedTensor.from_row_lengths(ids, lengths), axis=1)
        session.run(tf.compat.v1.global_variables_initializer())
        make = tf.compat.v1.saved_model.predict_signature_def
        build = tf.compat.v1.saved_model.build_signature_def
        info = tf.compat.v1.saved_model.build_tensor_info
        builder = tf.compat.v1.saved_model.Builder(str(temporary))
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            {
                "serving_default": make({"x": x}, {"output": x * w}),
                "pair": make({"x": x, "y": y}, {"sum": x + y, "product": x * y}),
                "total": make({"x": x}, {"total": tf.reduce_sum(x)}),
                "matrix": make({"matrix": matrix}, {"sums": tf.reduce_sum(matrix, 1)}),
                "ids": make({"ids": ids}, {"next": ids + 1}),
                "ragged": make({"ids": ids, "ids_lengths": lengths}, {"sum": sums}),
                "text": make(
                    {"text": text},
                    {"upper": tf.strings.upper(text), "raw_bytes": text + b"\xff"},
                ),
                "failing": make({"x": x}, {"output": tf.debugging.check_numerics(x, "bad x")}),
                "classify": build(
                    {"inputs": info(examples)},
                    {"scores": info(scores), "classes": info(classes)},
                    "tensorflow/serving/classify",
                ),
                "regress": build(
                    {"inputs": info(examples)},
                    {"outputs": info(parsed * w)},
                    "tensorflow/serving/regress",
                ),
            },
        )
        builder.save()
    temporary.rename(target)
    return str(target)


def write_warmup(path: str, *logs: prediction_log_pb2.PredictionLog | bytes) -> None:
    """Gives a saved model requests to warm up with."""
    directory = os.path.join(path, "assets.extra")
    os.makedirs(directory, exist_ok=True)
    with tf.io.TFRecordWriter(os.path.join(directory, "tf_serving_warmup_requests")) as writer:
        for log in logs:
            writer.write(log if isinstance(log, bytes) else log.SerializeToString())


def make_example(x: float) -> tf.train.Example:
    example = tf.train.Example()
    example.features.feature["x"].float_list.value.append(x)
    return example


def make_request(
    inputs: Mapping[str, Any], model: str = "m", signature: str = "", version: int | None = None
) -> predict_pb2.PredictRequest:
    """Makes a request as a client of TensorFlow Serving does."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(
            tf.make_tensor_proto(value, tf.float32 if isinstance(value[0], float) else None)
        )
    return request


class Client:
    """Talks to a server as a client of TensorFlow Serving does.

    Args:
        port: The server's port of gRPC.
        credentials: What to connect with; None: no TLS.
    """

    def __init__(self, port: int | None, credentials: grpc.ChannelCredentials | None = None):
        address = f"localhost:{port}"
        # Channels of one process share connections, also those to a server that is gone.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            self.channel = grpc.secure_channel(address, credentials, options)
        self.prediction = prediction_service_pb2_grpc.PredictionServiceStub(self.channel)
        self.model = model_service_pb2_grpc.ModelServiceStub(self.channel)

    def predict(self, x: list[float], **spec: Any) -> list[float]:
        """Calls `serving_default`."""
        response = self.prediction.Predict(make_request({"x": x}, **spec), timeout=60)
        return list(response.outputs["output"].float_val)

    def get_states(self, model: str = "m") -> dict[int, str]:
        """Returns the state of each version."""
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = model
        state = get_model_status_pb2.ModelVersionStatus.State
        response = self.model.GetModelStatus(request, timeout=60)
        return {s.version: state.Name(s.state) for s in response.model_version_status}

    def close(self) -> None:
        self.channel.close()


@contextlib.contextmanager
def serving(
    base_path: os.PathLike[str] | str, **settings: Any
) -> Iterator[tuple[PredictionServer, Client]]:
    """Serves the versions in a directory as model `m`, on ports that are free."""
    settings.setdefault("models", (ModelConfig(name="m", base_path=str(base_path)),))
    config = ServerConfig(
        **{"port": 0, "rest_port": 0, "loading": QUICK, "grace_sec": 5.0, **settings}
    )
    with PredictionServer(config) as server:
        server.wait_until_loaded(60)
        client = Client(server.port)
        try:
            yield server, client
        finally:
            client.close()


def call_in_parts(base: str, num_ps: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Serves the newest version of each part of a model; returns what its entry says."""
    models = tuple(
        ModelConfig(name=f"ps_{i}", base_path=os.path.join(base, f"ps_{i}")) for i in range(num_ps)
    )
    with contextlib.ExitStack() as stack:
        server, _ = stack.enter_context(serving(base, models=models, rest_port=None))
        address = f"127.0.0.1:{server.port}"
        servers = {model.name: [address] for model in models}
        client = remote.connect(servers, remote.RemoteConfig(timeout_ms=30_000))
        stack.callback(remote.disconnect, client)
        infer = stack.enter_context(
            import_saved_model(os.path.join(base, "entry"), output_name=None)
        )
        return infer(inputs)
