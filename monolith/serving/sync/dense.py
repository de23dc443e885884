"""Sends the variables of a model to all servers of its dense part, from time to time.

There are few of them, and nearly all change in every step. So all that a server has are sent, less
often than rows, with a call for each function of the model that takes some of them. A server that
is new gets them at once. One that does not answer is asked a short question, at growing intervals,
and only when it answers that, variables are read for it again.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

from monolith.serving.server.writing import VARIABLES_ASSIGN, assigns_variables
from monolith.serving.sync.channel import Answer, SyncChannel
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.targets import ENTRY, SyncBackend, Target, find_targets

logger = logging.getLogger(__name__)

_METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
# With this a server refuses a message that is too large, or one more than it can do.
_TOO_LARGE = (grpc.StatusCode.RESOURCE_EXHAUSTED,)
_MIN_BACKOFF_SEC = 0.1
_MAX_BACKOFF_SEC = 2.0

Values = Mapping[str, np.ndarray]
# Returns the values of variables by name, and none for a name that nothing has.
Read = Callable[[Collection[str]], Values]
# Variables by the function that takes them.
Wanted = Mapping[str, Collection[str]]


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

    def read(self, run: Callable[..., Any], names: Collection[str]) -> dict[str, np.ndarray]:
        """Returns the values by name.

        Args:
            run: Runs fetches, as `Session.run` does.
            names: Of which variables; those that are not there are left out.
        """
        wanted = {name: sorted(self._parts[name]) for name in names if name in self._parts}
        values = run({name: [self._tensors[i] for _, i in wanted[name]] for name in wanted})
        return {
            name: parts[0] if len(parts) == 1 else np.concatenate(parts, self._axes[name])
            for name, parts in values.items()
        }


class DensePusher:
    """Keeps the variables of servers up to date, until it is closed.

    Each server has a thread of its own, so one that is slow or does not answer holds up no other.

    Args:
        read: Returns the values of variables by name. Called by any thread.
        backend: Knows the servers.
        config: How often, and how.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        read: Read,
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
        self._thread = threading.Thread(target=self._run, name="sync_dense", daemon=True)

    def start(self) -> "DensePusher":
        """Begins to send."""
        self._thread.start()
        return self

    def close(self, flush_sec: float | None = None) -> bool:
        """Sends the variables a last time, and ends.

        Args:
            flush_sec: How long to wait for that; None: as the config says. 0: they are not sent,
                such as when nobody can read them any more.

        Returns:
            Whether all servers have got them.
        """
        self._stopped.set()
        self._thread.join()
        flush_sec = self._config.flush_sec if flush_sec is None else flush_sec
        is_done = flush_sec != 0 and self._send_last(flush_sec)
        for server in self._servers.values():
            server.close()
        return is_done

    def _run(self) -> None:
        # Looked at as often as rows are sent, for servers that are new or did not answer.
        poll_sec = min(self._config.interval_sec, self._config.dense_interval_sec)
        while not self._stopped.is_set():
            self._find()
            reading = _Reading(self._read)
            for server in self._servers.values():
                if server.is_due():
                    server.update(reading)
            self._stopped.wait(poll_sec)

    def _send_last(self, flush_sec: float) -> bool:
        is_found = self._find()
        reading = _Reading(self._read)
        sent = [server.update(reading) for server in self._servers.values()]
        done, late = futures.wait(sent, flush_sec)
        return is_found and not late and all(future.result() for future in done)

    def _find(self) -> bool:
        """Asks for the servers; returns whether all are known, and have a thread."""
        try:
            targets = {target.name: target for target in find_targets(self._backend, ENTRY)}
        except Exception as e:  # noqa: BLE001 - training goes on, and the next time may succeed
            problem = str(e).partition("\n")[0]
            if problem != self._problem:
                logger.warning("nobody new gets variables at the moment: %s", problem)
            self._problem = problem
            return False
        for name in [name for name in self._servers if name not in targets]:
            self._servers.pop(name).close()
        self._problem = self._connect(targets)
        return not self._problem

    def _connect(self, targets: Mapping[str, Target]) -> str:
        """Gives each server a thread; returns what keeps one from having it, said once."""
        problem = ""
        for name in [name for name in targets if name not in self._servers]:
            try:
                self._servers[name] = _DenseServer(targets[name], self._config, self._clock)
            except Exception as e:  # noqa: BLE001 - such as a token that cannot be read just now
                problem = str(e).partition("\n")[0]
                if problem != self._problem:
                    logger.warning("%s gets no variables at the moment: %s", name, problem)
                    self._problem = problem
        return problem


class _Reading:
    """The variables as they are when the first server wants them; read once for all. Thread-safe.

    Args:
        read: Returns their values by name.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._asked: set[str] = set()
        self._values: dict[str, np.ndarray] = {}

    def get(self, names: Collection[str]) -> Values:
        """Returns the values by name, of those that are there."""
        with self._lock:
            new = sorted(set(names) - self._asked)
            if new:
                self._values.update(self._read(new))
                self._asked.update(new)
            return {name: self._values[name] for name in names if name in self._values}


class _DenseServer:
    """A server that gets variables, and the thread that sends them.

    Args:
        target: The server, and the model.
        config: How it is called.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(self, target: Target, config: SyncConfig, clock: Callable[[], float]) -> None:
        self._channel = SyncChannel(target, config)
        self._interval_sec = config.dense_interval_sec
        self._clock = clock
        self._pool = futures.ThreadPoolExecutor(1, "sync_dense")
        self._job: futures.Future[bool] | None = None
        self._due_sec = clock()
        self._backoff_sec = 0.0
        self._wanted: Wanted | None = None
        self._told = ""

    def is_due(self) -> bool:
        """Returns whether it is time to send, and nothing is on its way."""
        return (self._job is None or self._job.done()) and self._due_sec <= self._clock()

    def update(self, reading: _Reading) -> "futures.Future[bool]":
        """Sends variables as soon as the thread is free; returns whether they arrive."""
        self._job = self._pool.submit(self._update, reading)
        return self._job

    def close(self) -> None:
        """Ends the thread; what is on its way is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._channel.close()

    def _update(self, reading: _Reading) -> bool:
        started_sec = self._clock()
        is_done, is_over = False, False
        try:
            is_done, is_over = self._send(reading)
        except Exception as e:  # noqa: BLE001 - such as a session that is closed
            self._tell(f"at the moment: {str(e).partition(chr(10))[0]}")
        if is_over:
            self._backoff_sec = 0.0
            self._due_sec = started_sec + self._interval_sec
        else:
            self._backoff_sec = min(_MAX_BACKOFF_SEC, self._backoff_sec * 2 or _MIN_BACKOFF_SEC)
            self._due_sec = self._clock() + self._backoff_sec
        return is_done

    def _send(self, reading: _Reading) -> tuple[bool, bool]:
        """Returns whether all has arrived, and whether that is all to do for this interval."""
        # A server that was silent is asked this first: to read all variables costs more.
        wanted, is_awake = self._wanted, False
        if wanted is None:
            wanted, is_awake = self._ask(), True
        if wanted is None:
            return False, False
        self._wanted = None  # Until it is known to be the same server.
        if not wanted:
            self._tell(
                f"since it has no function {VARIABLES_ASSIGN!r}; export it with this version"
            )
            return True, True
        names = sorted(itertools.chain.from_iterable(wanted.values()))
        values = reading.get(names)
        missing = [name for name in names if name not in values]
        if missing:
            self._tell(
                f"as it has variables that this training does not have: {', '.join(missing)}"
            )
            return True, True
        answers = self._assign(wanted, values)
        if any(answer.is_other_server for answer in answers[1:]):
            return False, False  # It has not got what was sent before.
        if answers[-1].is_ok and not answers[0].is_other_server:
            self._wanted = wanted
            self._told = ""
        # Who is silent gets them once it answers. Who answers questions, but refuses this or is too
        # slow for it, would do the same again: that is not worth a read before it is time.
        return answers[-1].is_ok, is_awake or not answers[-1].is_silence

    def _assign(self, wanted: Wanted, values: Values) -> list[Answer]:
        """Calls the functions that take variables, up to one that fails; returns the answers."""
        sizes = {call: sum(values[name].nbytes for name in wanted[call]) for call in wanted}
        answers: list[Answer] = []
        # What may be too large comes first: a server has variables of one time, and not of two.
        for call in sorted(wanted, key=lambda call: -sizes[call]):
            request = predict_pb2.PredictRequest()
            for name in wanted[call]:
                request.inputs[name].CopyFrom(tf.make_tensor_proto(values[name]))
            answer = self._channel.predict(call, request.SerializeToString(), 0, untold=_TOO_LARGE)
            answers.append(answer)
            if answer.code in _TOO_LARGE:
                largest = max(wanted[call], key=lambda name: values[name].nbytes)
                others = " and others" if len(wanted[call]) > 1 else ""
                self._tell(
                    f"since it does not take {sizes[call]:,} bytes at once, of {largest!r}{others};"
                    " start it with a larger `--max-request-mb` if that is too much for it: "
                    f"{answer.details}"
                )
            if not answer.is_ok:
                break
        return answers

    def _ask(self) -> Wanted | None:
        """Returns the variables of the model there; None if it does not answer."""
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = self._channel.target.model
        answer = self._channel.call(_METADATA, request.SerializeToString())
        if answer.code is grpc.StatusCode.UNIMPLEMENTED:
            return {}  # Not even who serves models of others needs it.
        if not answer.is_ok:
            return None
        response = get_model_metadata_pb2.GetModelMetadataResponse.FromString(answer.response)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        return {
            name: sorted(definition.inputs)
            for name, definition in signatures.signature_def.items()
            if assigns_variables(name)
        }

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            logger.warning("%s gets no variables %s", self._channel.target.name, problem)
        self._told = problem
