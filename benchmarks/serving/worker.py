"""A process of the measurement: takes commands as JSON lines, answers in the same way.

`in process` calls the model itself; `client` asks a server, as a client of TensorFlow Serving does.
"""

import argparse
import asyncio
import http.client
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.serving import workload
from benchmarks.table.worker import serve

WARM_UP_SEC = 0.2


def summarize(
    latencies: list[float], seconds: float, cpu_sec: float, made: int
) -> dict[str, float]:
    """Returns what is known of some requests, in milliseconds; `made` includes the warm-up."""
    return {
        "made": made,
        "per_sec": len(latencies) / seconds,
        "p50": 1e3 * float(np.percentile(latencies, 50)),
        "p99": 1e3 * float(np.percentile(latencies, 99)),
        "cpu": 1e3 * cpu_sec / made,
    }


def repeat(call: Callable[[int], Any], seconds: float) -> dict[str, float]:
    """Calls a function with 0, 1, ... for about that long."""
    latencies = []
    started, cpu = time.perf_counter(), time.process_time()
    now = started
    while now - started < seconds:
        call(len(latencies))
        before, now = now, time.perf_counter()
        latencies.append(now - before)
    return summarize(latencies, now - started, time.process_time() - cpu, len(latencies))


class InProcess:
    """The model, called without a server."""

    def create(self, *, path: str) -> None:
        import tensorflow as tf

        from monolith.serving.server import loaded

        self._plain = tf.saved_model.load(path).signatures["serving_default"]
        self._tensors = {
            batch: [
                {name: tf.constant(array) for name, array in inputs.items()}
                for inputs in workload.make_inputs(batch)
            ]
            for batch in workload.BATCHES
        }
        self._model = loaded.LoadedModel.load(path)
        self._signature = self._model.get_signature("serving_default")
        self._outputs = tuple(self._signature.outputs)
        self._inputs = {
            batch: [self._signature.complete(inputs) for inputs in workload.make_inputs(batch)]
            for batch in workload.BATCHES
        }

    def run(self, *, batch: int, seconds: float) -> dict[str, float]:
        """As anybody calls a SavedModel."""
        inputs = self._tensors[batch]
        return repeat(
            lambda i: [out.numpy() for out in self._plain(**inputs[i % len(inputs)]).values()],
            seconds,
        )

    def run_prepared(self, *, batch: int, seconds: float) -> dict[str, float]:
        """As the server calls it."""
        inputs = self._inputs[batch]
        return repeat(
            lambda i: self._model.run(self._signature, self._outputs, inputs[i % len(inputs)]),
            seconds,
        )

    def split(self, *, batch: int, seconds: float) -> dict[str, float]:
        """Returns microseconds of what a request needs beside its way, one after another."""
        from tensorflow_serving.apis import predict_pb2

        from monolith.serving.server import tensors

        requests = [make_request(inputs) for inputs in workload.make_inputs(batch)]
        contents = [request.SerializeToString() for request in requests]
        arrays = list(workload.make_inputs(batch))
        inputs = self._inputs[batch]
        results = [self._model.run(self._signature, self._outputs, one) for one in inputs]

        def write(i: int) -> predict_pb2.PredictResponse:
            response = predict_pb2.PredictResponse()
            for name, array in zip(self._outputs, results[i], strict=True):
                tensors.write_tensor_into(array, response.outputs[name])
            return response

        answers = [write(i).SerializeToString() for i in range(len(results))]
        steps: dict[str, Callable[[int], Any]] = {
            "client: request to bytes": lambda i: requests[i].SerializeToString(),
            "server: bytes to arrays": lambda i: [
                tensors.read_tensor(proto, max_bytes=1 << 30)
                for proto in predict_pb2.PredictRequest.FromString(contents[i]).inputs.values()
            ],
            "server: checks": lambda i: self._signature.complete(arrays[i]),
            "model": lambda i: self._model.run(self._signature, self._outputs, inputs[i]),
            "server: arrays to bytes": lambda i: write(i).SerializeToString(),
            "client: bytes to array": lambda i: read_response(
                predict_pb2.PredictResponse.FromString(answers[i])
            ),
        }
        return {
            name: 1e3 * repeat(lambda i, s=step: s(i % workload.REQUESTS), seconds)["p50"]
            for name, step in steps.items()
        }


class Client:
    """Asks a server, over gRPC and REST."""

    def create(self, *, port: int, rest_port: int) -> None:
        import grpc
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        self._address = f"127.0.0.1:{port}"
        self._channel = grpc.insecure_channel(self._address)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._rest = http.client.HTTPConnection("127.0.0.1", rest_port)
        inputs = {batch: list(workload.make_inputs(batch)) for batch in workload.BATCHES}
        self._requests = {
            batch: [make_request(one) for one in of_batch] for batch, of_batch in inputs.items()
        }
        self._bodies = {
            batch: [
                json.dumps({"inputs": {name: array.tolist() for name, array in one.items()}})
                for one in of_batch
            ]
            for batch, of_batch in inputs.items()
        }

    def run(self, *, batch: int, seconds: float) -> dict[str, float]:
        """One client with one request after another, over gRPC."""
        requests = self._requests[batch]
        return repeat(
            lambda i: read_response(self._stub.Predict(requests[i % len(requests)], timeout=60)),
            seconds,
        )

    def run_rest(self, *, batch: int, seconds: float) -> dict[str, float]:
        """The same over REST."""
        bodies = self._bodies[batch]

        url = f"/v1/models/{workload.MODEL}:predict"

        def ask(i: int) -> None:
            self._rest.request("POST", url, bodies[i % len(bodies)])
            with self._rest.getresponse() as response:
                assert response.status == 200, response.read()
                np.array(json.load(response)["outputs"])

        return repeat(ask, seconds)

    def run_many(self, *, batch: int, clients: int, seconds: float) -> dict[str, float]:
        """Several clients at once over gRPC, each with one request after another."""
        return asyncio.run(self._run_many(batch, clients, seconds))

    async def _run_many(self, batch: int, clients: int, seconds: float) -> dict[str, float]:
        import grpc
        from tensorflow_serving.apis import prediction_service_pb2_grpc

        requests = itertools.cycle(self._requests[batch])
        latencies: list[float] = []
        made = 0
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
            started = time.perf_counter()
            begin, end = started + WARM_UP_SEC, started + WARM_UP_SEC + seconds

            async def ask_all_the_time() -> None:
                nonlocal made
                before = time.perf_counter()
                while before < end:
                    read_response(await stub.Predict(next(requests), timeout=60))
                    made += 1
                    after = time.perf_counter()
                    if begin <= after < end:
                        latencies.append(after - before)
                    before = after

            cpu = time.process_time()
            await asyncio.gather(*(ask_all_the_time() for _ in range(clients)))
            return summarize(latencies, seconds, time.process_time() - cpu, made)


def make_request(inputs: dict[str, np.ndarray]) -> Any:
    """Makes a request as a client of TensorFlow Serving does."""
    import tensorflow as tf
    from tensorflow_serving.apis import predict_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = workload.MODEL
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    return request


def read_response(response: Any) -> dict[str, np.ndarray]:
    """Reads the answer as a client does."""
    return {name: np.array(proto.float_val, np.float32) for name, proto in response.outputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contender", choices=["in process", "client"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = InProcess() if args.contender == "in process" else Client()
    serve(worker, answers)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
