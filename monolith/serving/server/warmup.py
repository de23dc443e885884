"""Runs the requests that a model brings along, before it answers those of clients.

They are in `assets.extra/tf_serving_warmup_requests`, a TFRecord file of `PredictionLog`s, as for
TensorFlow Serving. A model that cannot answer them is not served.
"""

import asyncio
import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import prediction_log_pb2

from monolith.serving.server import predict, status
from monolith.serving.server.loaded import LoadedModel, LoadError
from monolith.serving.server.signature import Signature

WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")


def warm_up(model: LoadedModel, *, max_records: int, max_bytes: int) -> int:
    """Runs all requests of a model's file.

    Args:
        model: The model.
        max_records: How many there may be.
        max_bytes: How large one may be.

    Returns:
        How many there were; 0 without a file.

    Raises:
        LoadError: The file is damaged or too long, or a request failed.
    """
    path = os.path.join(model.path, WARMUP_FILE)
    if not tf.io.gfile.exists(path):
        return 0
    number = 0
    try:
        for number, record in enumerate(tf.compat.v1.io.tf_record_iterator(path), start=1):
            if number > max_records:
                raise LoadError(f"{path} has more than {max_records} requests to warm up with.")
            log = prediction_log_pb2.PredictionLog.FromString(record)
            asyncio.run(_run(_Direct(model), log, max_bytes))
    except status.RequestError as e:
        raise LoadError(f"Request {number} of {path} failed: {e.message}") from e
    except (tf.errors.OpError, DecodeError) as e:
        message = e.message if isinstance(e, tf.errors.OpError) else str(e)
        raise LoadError(f"{path} cannot be read: {status.shorten(message)}") from e
    return number


class _Direct:
    """A version that nobody else uses yet, so that nothing has to be merged or waited for."""

    number = 0

    def __init__(self, model: LoadedModel) -> None:
        self.model = model

    async def run(
        self,
        signature: Signature,
        outputs: tuple[str, ...],
        arrays: Mapping[str, np.ndarray],
        deadline_sec: float | None = None,
    ) -> dict[str, np.ndarray]:
        values = self.model.run(signature, outputs, signature.complete(arrays))
        return dict(zip(outputs, values, strict=True))


async def _run(version: _Direct, log: prediction_log_pb2.PredictionLog, max_bytes: int) -> None:
    kind = log.WhichOneof("log_type")
    if kind == "predict_log":
        await predict.run_predict(version, log.predict_log.request, max_bytes)
    elif kind == "classify_log":
        await predict.run_classify(version, log.classify_log.request)
    elif kind == "regress_log":
        await predict.run_regress(version, log.regress_log.request)
    elif kind == "multi_inference_log":
        await predict.run_multi_inference(version, log.multi_inference_log.request)
    else:
        raise status.invalid(f"a model cannot be warmed up with a {kind or 'log of no kind'}")
