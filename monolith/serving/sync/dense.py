"""Sends the variables of a model to all servers of its dense part, from time to time.

There are few of them, and nearly all change in every step. So all are sent, less often than rows. A
server that is new gets them at once.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

from monolith.serving.server.writing import VARIABLES_ASSIGN
from monolith.serving.sync.channel import SyncChannel
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.targets import ENTRY, SyncBackend, Target, find_targets

logger = logging.getLogger(__name__)

_METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
_MAX_THREADS = 8

Values = Mapping[str, np.ndarray]


class VariableReads:
    """The variables of the default graph, as a model that is exported will have them.

    A variable that is split over servers is one there.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[int, int]]] = {}  # Offset, and number of the tensor.
        self._axes: dict[str, int] = {}
        self._tensors: list[tf.Tensor] = []
        for variable in tf.compat.v1.global_variables():
            info = variable._get_save_slice_info()
            name, axis, offset = variable.op.name, 0, 0
            if info is not None:
                name = info.full_name
                split = [i for i, n in enumerate(info.full_shape) if info.var_shape[i] != n]
                axis = split[0] if split else 0
                offset = info.var_offset[axis]
            self._parts.setdefault(name, []).append((offset, len(self._tensors)))
            self._tensors.append(tf.identity(variable))
            self._axes[name] = axis

    def read(self, run: Callable[..., Any]) -> dict[str, np.ndarray]:
        """Returns the values by name.

        Args:
            run: Runs fetches, as `Session.run` does.
        """
        values = run(self._tensors)
        return {
            name: values[parts[0][1]]
            if len(parts) == 1
            else np.concatenate([values[i] for _, i in sorted(parts)], self._axes[name])
            for name, parts in self._parts.items()
        }


class DensePusher:
    """Keeps the variables of servers up to date, until it is closed.

    Args:
        read: Returns the values of all variables by name.
        backend: Knows the servers.
        config: How often, and how.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        read: Callable[[], Values],
        backend: SyncBackend,
        config: SyncConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._backend = backend
        self._config = config
        self._clock = clock
        self._servers: dict[str, _DenseServer] = {}
        self._problem = ""
        self._stopped = threading.Event()
        self._pool = futures.ThreadPoolExecutor(_MAX_THREADS, "sync_dense")
        self._thread = threading.Thread(target=self._run, name="sync_dense", daemon=True)

    def start(self) -> "DensePusher":
        """Begins to send."""
        self._thread.start()
        return self

    def close(self, flush_sec: float | None = None) -> bool:
        """Sends the variables a last time, and ends.

        Args:
            flush_sec: 0: it does not, such as when nobody can read them any more.

        Returns:
            Whether all servers have got them.
        """
        self._stopped.set()
        self._thread.join()
        is_done = flush_sec != 0 and self._send(is_last=True)
        self._pool.shutdown(wait=False)
        for server in self._servers.values():
            server.channel.close()
        return is_done

    def _run(self) -> None:
        # Looked at as often as rows are sent, for servers that are new or did not answer.
        poll_sec = min(self._config.interval_sec, self._config.dense_interval_sec)
        while not self._stopped.is_set():
            self._send()
            self._stopped.wait(poll_sec)

    def _send(self, is_last: bool = False) -> bool:
        try:
            due = self._find_due(is_last)
            values = self._read() if due else {}
        except Exception as e:  # noqa: BLE001 - training goes on, and the next time may succeed
            problem = str(e).partition("\n")[0]
            if problem != self._problem:
                logger.warning("variables are not sent at the moment: %s", problem)
            self._problem = problem
            return False
        self._problem = ""
        now_sec = self._clock()
        sent = [self._pool.submit(server.send, values) for server in due]
        is_done = True
        for server, future in zip(due, sent, strict=True):
            if future.result():
                server.sent_sec = now_sec
            else:
                is_done = False
        return is_done

    def _find_due(self, is_last: bool) -> list["_DenseServer"]:
        targets = {target.name: target for target in find_targets(self._backend, ENTRY)}
        for name in [name for name in self._servers if name not in targets]:
            self._servers.pop(name).channel.close()
        for name, target in targets.items():
            if name not in self._servers:
                self._servers[name] = _DenseServer(target, self._config)
        latest_sec = self._clock() - self._config.dense_interval_sec
        return [
            server
            for server in self._servers.values()
            if is_last or server.sent_sec is None or server.sent_sec <= latest_sec
        ]


class _DenseServer:
    """A server that gets variables.

    Attributes:
        channel: The connection.
        sent_sec: When it got them last; None: never.
    """

    def __init__(self, target: Target, config: SyncConfig) -> None:
        self.channel = SyncChannel(target, config)
        self.sent_sec: float | None = None
        self._wanted: Sequence[str] | None = None
        self._told = ""

    def send(self, values: Values) -> bool:
        """Sends what the model there wants; returns whether it has arrived."""
        if self._wanted is None:
            self._wanted = self._ask()
        if self._wanted is None:
            return False
        missing = sorted(set(self._wanted) - values.keys())
        if missing or not self._wanted:
            self._tell(
                f"has variables that this training does not have: {', '.join(missing)}"
                if missing
                else f"has no function {VARIABLES_ASSIGN!r}; export it with this version"
            )
            return True  # Until it is another server, there is nothing to send.
        request = predict_pb2.PredictRequest()
        for name in self._wanted:
            request.inputs[name].CopyFrom(tf.make_tensor_proto(values[name]))
        answer = self.channel.predict(VARIABLES_ASSIGN, request.SerializeToString(), 0)
        if not answer.is_ok or answer.is_other_server:
            self._wanted = None  # It may have another model by now.
        return answer.is_ok

    def _ask(self) -> Sequence[str] | None:
        """Returns the variables of the model there; None if it does not answer."""
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = self.channel.target.model
        answer = self.channel.call(_METADATA, request.SerializeToString())
        if not answer.is_ok:
            return None
        response = get_model_metadata_pb2.GetModelMetadataResponse.FromString(answer.response)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        return sorted(signatures.signature_def[VARIABLES_ASSIGN].inputs)

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            logger.warning("%s gets no variables: it %s", self.channel.target.name, problem)
        self._told = problem
