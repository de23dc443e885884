"""Carries the calls of entry models to the servers of their parts, over gRPC.

One client serves all models of a process. Requests are sent as the op has written them, without
being unpacked, and nothing here waits: answers come on threads of gRPC.
"""

import functools
import logging
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import prometheus_client
from tensorflow_serving.apis import predict_pb2

from monolith import errors
from monolith.native import remote_predict
from monolith.native.remote_predict import RemoteCall
from monolith.serving.remote.attempts import Attempts, Kind
from monolith.serving.remote.config import RemoteConfig
from monolith.serving.remote.health import Health
from monolith.serving.remote.metrics import RemoteMetrics
from monolith.serving.remote.replicas import Addresses, ReplicaSource, StaticReplicas
from monolith.serving.remote.timers import Timers

logger = logging.getLogger(__name__)

_NO_ANSWER = "did not answer:"
_NO_SERVERS = "No available remote servers."
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
# Calls to a server that is not listed any more may go on for so long.
_LINGER_SEC = 60.0
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A server that comes back under its address is seen soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class RemoteClient:
    """Calls parts of models. Thread-safe.

    Args:
        source: Knows where they are; closed together with this.
        config: How they are called.
        registry: Takes what is counted; None: nobody looks.

    Raises:
        errors.ConfigError: A file cannot be read.
    """

    def __init__(
        self,
        source: ReplicaSource,
        config: RemoteConfig | None = None,
        registry: prometheus_client.CollectorRegistry | None = None,
    ) -> None:
        self._source = source
        self._config = config or RemoteConfig()
        self._metrics = RemoteMetrics(registry or prometheus_client.CollectorRegistry())
        self._credentials, self._metadata = read_credentials(self._config)
        self._timers = Timers()
        self._lock = threading.Lock()
        self._is_closed = False
        self._channels: dict[str, Any] = {}
        self._stubs: dict[str, Any] = {}
        self._health = Health()
        self._last_seen: dict[str, Addresses] = {}
        self._specs: dict[tuple[str, str, int], bytes] = {}

    def send(self, call: RemoteCall) -> None:
        """Sends the call of an op, and sees that it gets its answer."""
        start_sec = time.monotonic()
        name, addresses = self._find(call)
        if not addresses:
            self._fail(
                call,
                name,
                grpc.StatusCode.UNAVAILABLE,
                f"{_NO_SERVERS} model_name={call.model_name},signature_name={call.signature_name}",
                start_sec,
            )
            return
        request = self._make_spec(name, call) + call.request
        timeout_ms = self._config.timeout_ms
        if timeout_ms is None:
            timeout_ms = max(1, call.deadline_ms)
        Attempts(
            lambda: self._health.rank(self._source.find(name)),
            functools.partial(self._attempt, name, request),
            functools.partial(self._finish, call, name, start_sec),
            self._config,
            timeout_ms / 1000,
            self._timers,
        ).start()

    def close(self) -> None:
        """Ends all connections; calls that are on their way fail."""
        self._source.close()
        with self._lock:
            self._is_closed = True
            channels, self._channels, self._stubs = self._channels, {}, {}
        for channel in channels.values():
            channel.close()
        self._timers.close()

    def _find(self, call: RemoteCall) -> tuple[str, Addresses]:
        """Returns the name under which the model is served, and who does."""
        name = call.model_name
        addresses = self._source.find(name)
        if not addresses and call.old_model_name:
            name = call.old_model_name
            addresses = self._source.find(name)
        if self._last_seen.get(name) != addresses:
            self._forget_others(name, addresses)
        return name, addresses

    def _attempt(
        self, name: str, request: bytes, address: str, timeout_sec: float, kind: Kind
    ) -> Any:
        if kind is Kind.RETRY:
            self._metrics.count_retry(name)
        elif kind is Kind.HEDGE:
            self._metrics.count_hedge(name)
        future = self._get_stub(address).future(
            request, timeout=timeout_sec, metadata=self._metadata
        )
        future.add_done_callback(functools.partial(self._note, address, kind))
        return future

    def _note(self, address: str, kind: Kind, future: Any) -> None:
        code = future.code()
        if code is grpc.StatusCode.OK:
            self._health.note_success(address)
        elif code is not grpc.StatusCode.CANCELLED or kind is Kind.FIRST:
            # A first attempt is cancelled when a later one was faster.
            self._health.note_failure(address)
            self._source.refresh()

    def _finish(
        self,
        call: RemoteCall,
        name: str,
        start_sec: float,
        code: grpc.StatusCode,
        response: bytes | None,
        details: str,
    ) -> None:
        if response is None:
            self._fail(call, name, code, f"{name} {_NO_ANSWER} {details}", start_sec)
            return
        self._metrics.count_call(name, code.name, seconds=time.monotonic() - start_sec)
        call.finish(response)

    def _fail(
        self, call: RemoteCall, name: str, code: grpc.StatusCode, message: str, start_sec: float
    ) -> None:
        default_row = self._config.default_row
        self._metrics.count_call(name, code.name, seconds=time.monotonic() - start_sec)
        if default_row is not None:
            self._metrics.count_default(name)
        call.fail(code.value[0], message, default_row)

    def _make_spec(self, name: str, call: RemoteCall) -> bytes:
        """Returns the beginning of a request: which function of which model it is for."""
        key = (name, call.signature_name, call.version)
        spec = self._specs.get(key)
        if spec is None:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = name
            request.model_spec.signature_name = call.signature_name
            if call.version >= 0:
                request.model_spec.version.value = call.version
            spec = self._specs[key] = request.SerializeToString()
        return spec

    def _get_stub(self, address: str) -> Any:
        stub = self._stubs.get(address)
        if stub is not None:
            return stub
        with self._lock:
            if self._is_closed:
                raise ValueError("the connections to other servers were ended")
            if address not in self._stubs:
                if self._credentials is None:
                    channel = grpc.insecure_channel(address, CHANNEL_OPTIONS)
                else:
                    channel = grpc.secure_channel(address, self._credentials, CHANNEL_OPTIONS)
                self._channels[address] = channel
                # Bytes in, bytes out: the op reads and writes them.
                self._stubs[address] = channel.unary_unary(_PREDICT)
            return self._stubs[address]

    def _forget_others(self, name: str, addresses: Addresses) -> None:
        """Ends connections to servers that no model has any more."""
        with self._lock:
            self._last_seen[name] = addresses
            used = {address for seen in self._last_seen.values() for address in seen}
            gone = [address for address in self._channels if address not in used]
            channels = [self._channels.pop(address) for address in gone]
            for address in gone:
                self._stubs.pop(address, None)
                self._health.forget(address)
        for channel in channels:
            self._timers.after(_LINGER_SEC, channel.close)


def is_no_answer(message: str) -> bool:
    """Returns whether an error of a model says that another server did not answer.

    Example:
        >>> is_no_answer("ps_0 did not answer: Connection refused")
        True
    """
    return _NO_ANSWER in message or _NO_SERVERS in message


_client: RemoteClient | None = None
_connecting = threading.Lock()


def connect(
    servers: ReplicaSource | Mapping[str, Sequence[str]],
    config: RemoteConfig | None = None,
    registry: prometheus_client.CollectorRegistry | None = None,
) -> RemoteClient:
    """Has the entry models of this process call these servers from now on, in place of others.

    Args:
        servers: Addresses by part, such as `{"ps_0": ["10.0.0.1:8500"]}`, or what finds them.
        config: How they are called.
        registry: Takes what is counted.

    Returns:
        The client.

    Raises:
        errors.ConfigError: An address or a setting makes no sense.
    """
    global _client
    source = servers if isinstance(servers, ReplicaSource) else StaticReplicas(servers)
    client = RemoteClient(source, config, registry)
    with _connecting:
        previous, _client = _client, client
        remote_predict.set_sender(client.send)
    if previous is not None:
        previous.close()
    return client


def disconnect(client: RemoteClient | None = None) -> None:
    """Ends what `connect` began; entry models cannot be called then.

    Args:
        client: Only if it is this one that is connected; None: in any case.
    """
    global _client
    with _connecting:
        if _client is None or (client is not None and client is not _client):
            return
        previous, _client = _client, None
        remote_predict.set_sender(None)
    previous.close()


def read_credentials(config: Any) -> tuple[Any, list[tuple[str, str]] | None]:
    """Returns what a channel and its calls need, from `server_authority` and `token_file`.

    Raises:
        errors.ConfigError: A file cannot be read, or has something else.
    """
    credentials = metadata = None
    if config.server_authority is not None:
        authority = _read(config.server_authority)
        _check_certificates(authority, config.server_authority)
        credentials = grpc.ssl_channel_credentials(authority)
    if config.token_file is not None:
        lines = _read(config.token_file).decode("utf-8", "replace").splitlines()
        if not lines or not lines[0].strip():
            raise errors.ConfigError(f"There is no token in the first line of {config.token_file}.")
        metadata = [("authorization", f"Bearer {lines[0].strip()}")]
    return credentials, metadata


def _check_certificates(content: bytes, path: str) -> None:
    """Refuses what gRPC would take, and then find no server that it vouches for."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=content.decode("ascii", "ignore")
        )
    except (ssl.SSLError, ValueError) as e:
        raise errors.ConfigError(
            f"There is no certificate in {path}, or one that is damaged; write PEM."
        ) from e


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as e:
        raise errors.ConfigError(f"{path} cannot be read: {e.strerror}.") from e
