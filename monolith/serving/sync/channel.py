"""Carries calls to one server, over gRPC, and notices when another server has taken its place.

Another process has none of the changes that were sent, and neither has another version of the
model. Answers to changes say which it is; while there is nothing to send, so does a short question.
"""

import dataclasses
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

import grpc
from tensorflow_serving.apis import get_model_status_pb2, predict_pb2

from monolith.core import metrics
from monolith.serving.remote.client import CHANNEL_OPTIONS, read_credentials
from monolith.serving.server.incarnation import ASK, INCARNATION
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.targets import Target

logger = logging.getLogger(__name__)

# With these a server says that it does not know a function, or does not like its inputs.
REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
)

# Functions whose names end so take rows in the form in which they are served.
PACKED = "_packed"

_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
# These say that a server may have gone; after others it is the same as before.
_MAYBE_ANOTHER = (grpc.StatusCode.UNAVAILABLE,)
_AVAILABLE = get_model_status_pb2.ModelVersionStatus.AVAILABLE
# These come from this side: nobody has answered.
_SILENCE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What came of a call.

    Attributes:
        code: Status of gRPC.
        details: What a server that refuses says.
        is_other_server: Whether it is not the server, or not the version of the model, that
            answered before.
        response: The serialized answer.
    """

    code: grpc.StatusCode
    details: str = ""
    is_other_server: bool = False
    response: bytes = b""

    @property
    def is_ok(self) -> bool:
        """Whether the server has done what it was asked for."""
        return self.code is grpc.StatusCode.OK

    @property
    def is_silence(self) -> bool:
        """Whether nobody has answered; what was sent may still be acted on."""
        return self.code in _SILENCE


class SyncChannel:
    """A connection to one server. For one thread at a time.

    Args:
        target: The server, and the model.
        config: How it is called.
    """

    def __init__(self, target: Target, config: SyncConfig) -> None:
        self.target = target
        self._timeout_sec = config.timeout_sec
        credentials, metadata = read_credentials(config)
        self._metadata = [*(metadata or ()), (ASK, "1")]
        if credentials is None:
            self._channel = grpc.insecure_channel(target.address, CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target.address, credentials, CHANNEL_OPTIONS)
        self._methods: dict[str, Any] = {}
        self._known: tuple[str, int] | None = None
        self._was_away = False
        self._told: tuple[grpc.StatusCode, str] | None = None
        self._metrics = metrics.get_cli(metrics.get_metric_prefix())

    def ask(self) -> Answer:
        """Asks a short question: whether the server is there, with the model, and the same one."""
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = self.target.model
        answer = self.call(_STATUS, request.SerializeToString(), untold=tuple(grpc.StatusCode))
        if answer.is_ok and _read_available_version(answer.response) is None:
            return Answer(grpc.StatusCode.FAILED_PRECONDITION, "No version is available.")
        return answer

    def predict(
        self,
        signature: str,
        body: bytes,
        num_ids: int,
        untold: Collection[grpc.StatusCode] = (),
    ) -> Answer:
        """Calls a function of the model.

        Args:
            signature: Its name.
            body: A serialized `PredictRequest` without `model_spec`.
            num_ids: How many rows are in it, for metrics.
            untold: Failures that the caller expects, and that are not for the log.
        """
        spec = predict_pb2.PredictRequest()
        spec.model_spec.name = self.target.model
        spec.model_spec.signature_name = signature
        request = spec.SerializeToString() + body
        start_sec = time.monotonic()
        answer = self.call(_PREDICT, request, untold)
        tags = {
            "model_name": self.target.model,
            "signature_name": signature,
            "target": self.target.address,
            "status": "OK" if answer.is_ok else "KO",
            "idc": self.target.place,
            "replica_id": str(self.target.replica),
        }
        micros = (time.monotonic() - start_sec) * 1e6
        self._metrics.emit_timer("parameter_sync_latency", micros, tags)
        self._metrics.emit_counter("parameter_sync_fid_count", num_ids, tags)
        self._metrics.emit_counter("parameter_sync_byte_size", len(request), tags)
        return answer

    def call(self, method: str, request: bytes, untold: Collection[grpc.StatusCode] = ()) -> Answer:
        """Calls a method of the server, and waits for its answer."""
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(method)
        try:
            response, call = self._methods[method].with_call(
                request, timeout=self._timeout_sec, metadata=self._metadata
            )
        except grpc.RpcError as e:
            code, details = e.code(), e.details() or ""
            self._was_away = self._was_away or code in _MAYBE_ANOTHER
            if code not in untold:
                self._tell(code, details)
            return Answer(code, details)
        if method == _PREDICT:
            # That a server answers other questions does not say that it takes changes.
            self._tell(grpc.StatusCode.OK, "")
        read_version = _VERSION_READERS.get(method)
        version = None if read_version is None else read_version(response)
        is_other = version is not None and self._note(version, call)
        return Answer(grpc.StatusCode.OK, "", is_other, response)

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def _note(self, version: int, call: Any) -> bool:
        """Returns whether the one who has answered is another than before."""
        incarnation = dict(call.trailing_metadata() or ()).get(INCARNATION, "")
        known, self._known = self._known, (incarnation, version)
        # A server that does not say who it is may be another after each time it was away.
        was_away, self._was_away = self._was_away and not incarnation, False
        return known is not None and (known != self._known or was_away)

    def _tell(self, code: grpc.StatusCode, details: str) -> None:
        """Says once what is wrong with a server, however often it is tried."""
        told = (code, details)
        if told == self._told or (self._told is None and code is grpc.StatusCode.OK):
            return
        self._told = told if code is not grpc.StatusCode.OK else None
        if code is grpc.StatusCode.OK:
            logger.info("%s gets changes again", self.target.name)
            return
        logger.warning(
            "%s does not get changes, which are kept for it: %s %s",
            self.target.name,
            code.name,
            details,
        )


def _read_version_used(response: bytes) -> int:
    return int(predict_pb2.PredictResponse.FromString(response).model_spec.version.value)


def _read_available_version(response: bytes) -> int | None:
    """Returns the version that answers who names none, as changes do; None if there is none."""
    status = get_model_status_pb2.GetModelStatusResponse.FromString(response)
    found = [s.version for s in status.model_version_status if s.state == _AVAILABLE]
    return max(found, default=None)


# Answers that say of which version they are.
_VERSION_READERS: dict[str, Callable[[bytes], int | None]] = {
    _PREDICT: _read_version_used,
    _STATUS: _read_available_version,
}
