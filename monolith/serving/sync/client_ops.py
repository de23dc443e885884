"""Sync clients, which remember what changes, and the step that sends it; `distributed_serving_ops`.

A table that is made with a sync client tells it which rows change. `ParameterSyncClient` makes the
op that sends them to the servers of a config, all of them at once; what a server has not confirmed
is sent again in the next step. For a training, `monolith.serving.sync.pusher` does the same beside
the steps, with a thread for each server.

Example:
    >>> from monolith.embedding.tables import single
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     server = DummySyncServer("127.0.0.1:0")
    ...     client = ParameterSyncClient(parameter_sync_client_from_config(name_suffix="example"))
    ...     table = single.test_hash_table(2, name_suffix="synced", sync_client=client.handle)
    ...     _ = session.run(table.initializer or [])
    ...     port = session.run(server.get_port())[0]
    ...     config = parameter_sync_pb2.ClientConfig(targets=[f"127.0.0.1:{port}"], model_name="m")
    ...     sync = client.create_sync_op(config.SerializeToString())
    ...     changed = table.apply_gradients([7], [[1.0, 1.0]], global_step=0).as_op()
    ...     _ = session.run(changed)
    ...     responses = json_format.Parse(session.run(sync)[0], parameter_sync_pb2.PushResult())
    ...     number = responses.responses[0].update_num
    ...     _ = session.run(server.shutdown())
    >>> number
    1
"""

import concurrent.futures
from collections.abc import Sequence
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format, message
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from monolith import errors
from monolith.embedding.tables.single import create_dummy_sync_client
from monolith.graph import devices, export_mode
from monolith.native import ops
from monolith.native.remote_predict import remote_predict
from monolith.proto import parameter_sync_pb2
from monolith.serving.sync.channel import PACKED, REFUSALS, Answer, SyncChannel
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.targets import Target, find_targets

__all__ = [
    "ASSIGN_SIGNATURE",
    "DummySyncServer",
    "ParameterSyncClient",
    "create_dummy_sync_client",
    "create_dummy_sync_server",
    "create_parameter_sync_clients",
    "parameter_sync_client_from_config",
    "refresh_sync_config",
    "remote_predict",
]

ASSIGN_SIGNATURE = "hashtable_assign"

_SHARED_NAME = "MonolithSyncClient_"
_TIMEOUT_MS = 3000
# Of each server, in one step: 64 MiB.
_MAX_REQUESTS = 16
# What a server for tests takes. gRPC's own 4 MiB are those of rows without the model's name.
_MAX_MESSAGE_BYTES = 32 << 20
_SHUTDOWN_RESULT = 100
_BAD_CONFIG = "Unable to parse config. Make sure it is serialized version of ClientConfig"


def create_parameter_sync_clients(ps_num: int) -> list[tf.Tensor]:
    """Makes a sync client for each parameter server, there; one here if there are none.

    Args:
        ps_num: Number of parameter servers.

    Returns:
        Their handles.
    """
    if ps_num == 0:
        return [parameter_sync_client_from_config()]
    clients = []
    for index in range(ps_num):
        # A model that is exported as a whole knows no servers.
        device = None if export_mode.is_exporting_standalone() else devices.ps_device(index)
        with tf.device(device):
            clients.append(parameter_sync_client_from_config(name_suffix=str(index)))
    return clients


def parameter_sync_client_from_config(
    config: parameter_sync_pb2.ClientConfig | None = None, name_suffix: str = ""
) -> tf.Tensor:
    """Makes a sync client, or finds the one of the same name; returns its handle.

    Args:
        config: Checked, and no more: each step is told the servers anew.
        name_suffix: Tells clients on one device apart.
    """
    return ops.monolith_parameter_sync_client(
        config=b"" if config is None else config.SerializeToString(),
        shared_name=_SHARED_NAME + name_suffix,
    )


def refresh_sync_config(sync_backend: Any, ps_index: int) -> bytes:
    """Returns the serialized `ClientConfig`: which servers get the rows of a part of the tables.

    Args:
        sync_backend: Knows them: `get_sync_targets("ps_<index>")` returns the name of the model
            and a list of addresses, or a dict with what is known of each.
        ps_index: Which part.
    """
    model, targets = sync_backend.get_sync_targets(f"ps_{ps_index}")
    config = parameter_sync_pb2.ClientConfig(
        model_name=model, signature_name=ASSIGN_SIGNATURE, timeout_in_ms=_TIMEOUT_MS
    )
    for target in targets:
        config.targets.append(target.address if isinstance(target, Target) else target)
    if isinstance(targets, dict):
        config.targets_extra_info.extend(targets.values())
    return bytes(config.SerializeToString())


class ParameterSyncClient:
    """A sync client, and the op that sends what it remembers.

    Args:
        client: Its handle.
    """

    def __init__(self, client: tf.Tensor) -> None:
        self._client = client

    @property
    def handle(self) -> tf.Tensor:
        """The handle, a scalar of type resource."""
        return self._client

    def as_op(self) -> Any:
        """Returns the op that makes the client; called eagerly, the handle."""
        return self._client if tf.executing_eagerly() else self._client.op

    def create_sync_op(self, config_str: Any) -> tf.Tensor:
        """Makes the op that sends changed rows, in graph mode.

        Rows are collected where the client is, and sent by the process that makes this op. Where
        the client is on another process, say around this which one that is, as device functions of
        a cluster do: `with tf.device("/job:worker/task:0"):`.

        Args:
            config_str: A serialized `ClientConfig`, a scalar.

        Returns:
            A `PushResult` as JSON, a string vector of one element. It has an answer for each call
            of a server, and no answers if nothing has changed. That a server does not take rows in
            the form in which they are served is no answer: in the same step, it gets floats.
        """
        sender = _Sender()
        here = _find_process(self._client.device)
        with tf.device(here):
            targets, signature = tf.numpy_function(
                _read_config, [config_str], [tf.string, tf.string]
            )
        with tf.device(self._client.device):
            targets, signature = tf.reshape(targets, [-1]), tf.reshape(signature, [])
            done = list(ops.monolith_parameter_sync_gather(self._client, targets))
        results = []
        for packed in (True, False):
            with tf.device(here), tf.control_dependencies(done):
                takers = tf.numpy_function(sender.find_takers, [config_str, packed], tf.string)
            with tf.device(self._client.device):
                takers = tf.reshape(takers, [-1])
                taken = ops.monolith_parameter_sync_take(
                    self._client, takers, signature, max_requests=_MAX_REQUESTS, packed=packed
                )
            with tf.device(here):
                result, arrived, start_over = tf.numpy_function(
                    sender.send, [takers, *taken], [tf.string, tf.bool, tf.bool]
                )
                results.append(result)
            with tf.device(self._client.device):
                settled = ops.monolith_parameter_sync_settle(
                    self._client, takers, tf.reshape(arrived, [-1]), tf.reshape(start_over, [-1])
                )
                done = [settled]
        with tf.device(here), tf.control_dependencies(done):
            text = tf.numpy_function(_to_json, results, tf.string)
        with tf.device(self._client.device):
            return tf.reshape(text, [1])


class DummySyncServer:
    """A server that takes rows and does nothing with them, for tests. It is there at once.

    Args:
        address: Where it listens, such as `127.0.0.1:0`.

    Raises:
        errors.ConfigError: It cannot listen there.
    """

    def __init__(self, address: str) -> None:
        self._server = grpc.server(
            concurrent.futures.ThreadPoolExecutor(max_workers=4),
            options=[("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)],
        )
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(_Echo(), self._server)
        try:
            self._port = self._server.add_insecure_port(address)
        except RuntimeError as e:
            raise errors.ConfigError(f"A sync server cannot listen on {address}.") from e
        self._server.start()
        self._handle = tf.constant(address)

    @property
    def handle(self) -> tf.Tensor:
        """Something to depend on."""
        return self._handle

    def as_op(self) -> Any:
        """The same as an op, in graph mode."""
        return self._handle if tf.executing_eagerly() else self._handle.op

    def get_port(self) -> tf.Tensor:
        """Returns the port, an int32 vector of one element."""
        return tf.constant([self._port], tf.int32)

    def shutdown(self) -> tf.Tensor:
        """Makes the op that ends the server; it returns an int64 vector of one element."""

        def stop() -> np.ndarray:
            self._server.stop(None)
            return np.array([_SHUTDOWN_RESULT], np.int64)

        return tf.ensure_shape(tf.numpy_function(stop, [], tf.int64), [1])


def create_dummy_sync_server(address: str) -> DummySyncServer:
    """Starts a `DummySyncServer`."""
    return DummySyncServer(address)


class _Echo(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Answers with what was asked, if it looks like rows."""

    def Predict(self, request: Any, context: Any) -> Any:
        for name in request.inputs:
            if not name.endswith(("_id", "_value")) and name not in (
                "id",
                "id_split",
                "flat_value",
            ):
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"An input ends with '_id' or '_value', got {name!r}.",
                )
        return predict_pb2.PredictResponse(model_spec=request.model_spec)

    def GetModelMetadata(self, request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "It has no model, and takes no variables.")


class _Sender:
    """Sends the calls of one step, to all servers at the same time; keeps its connections."""

    def __init__(self) -> None:
        self._channels: dict[Target, SyncChannel] = {}
        self._refusing: set[str] = set()  # Addresses of who does not take rows as they are served.

    def find_takers(self, config_str: bytes, packed: bool) -> np.ndarray:
        """Returns the servers that take rows as they are served, or those that need floats."""
        self._connect(_parse(config_str))
        addresses = [target.address for target in self._channels]
        return np.array([a for a in addresses if (a not in self._refusing) == packed], object)

    def send(
        self,
        takers: np.ndarray,
        target_index: np.ndarray,
        signatures: np.ndarray,
        requests: np.ndarray,
        num_ids: np.ndarray,
    ) -> tuple[bytes, np.ndarray, np.ndarray]:
        """Returns a `PushResult`, and of each server: has all arrived, does it need everything."""
        by_address = {target.address: channel for target, channel in self._channels.items()}
        channels = [by_address[address.decode()] for address in takers]
        calls: list[list[tuple[str, bytes, int]]] = [[] for _ in channels]
        for index, *call in zip(target_index, signatures, requests, num_ids, strict=True):
            calls[index].append((call[0].decode(), call[1], int(call[2])))
        result = parameter_sync_pb2.PushResult()
        has_arrived = np.zeros(len(channels), bool)
        start_over = np.zeros(len(channels), bool)
        with concurrent.futures.ThreadPoolExecutor(max(1, len(channels))) as pool:
            for index, answers in enumerate(pool.map(_send_all, channels, calls)):
                target = channels[index].target
                has_arrived[index] = all(answer.is_ok for _, _, answer in answers)
                start_over[index] = any(answer.is_other_server for _, _, answer in answers)
                if start_over[index]:
                    self._refusing.discard(target.address)
                for signature, number, answer in answers:
                    if signature.endswith(PACKED) and answer.code in REFUSALS:
                        self._refusing.add(target.address)
                        continue
                    result.responses.add(
                        status_code=answer.code.value[0],
                        error_message=answer.details,
                        target=target.address,
                        update_num=number if answer.is_ok else 0,
                    )
        return result.SerializeToString(), has_arrived, start_over

    def _connect(self, config: parameter_sync_pb2.ClientConfig) -> None:
        targets = find_targets(_Listed(config), "")
        sync_config = SyncConfig(timeout_sec=config.timeout_in_ms / 1000)
        for target in [target for target in self._channels if target not in targets]:
            self._channels.pop(target).close()
            self._refusing.discard(target.address)
        self._channels = {
            target: self._channels.get(target) or SyncChannel(target, sync_config)
            for target in targets
        }


class _Listed:
    """The servers of a config, as a backend; what is known of them counts if it is of all."""

    def __init__(self, config: parameter_sync_pb2.ClientConfig) -> None:
        self._config = config

    def get_sync_targets(self, sub_graph: str) -> tuple[str, Any]:
        targets, infos = list(self._config.targets), list(self._config.targets_extra_info)
        if len(infos) == len(targets):
            return self._config.model_name, dict(zip(targets, infos, strict=True))
        return self._config.model_name, targets

    def subscribe_model(self, model_name: str) -> None:
        """Does nothing."""

    def start(self) -> None:
        """Does nothing."""

    def stop(self) -> None:
        """Does nothing."""


def _find_process(device: str) -> str:
    """Returns the device of the process that Python runs in: as said around, else `device`."""
    around: str = tf.no_op(name="sync_process").device
    return around if tf.DeviceSpec.from_string(around).job else device


def _send_all(
    channel: SyncChannel, calls: Sequence[tuple[str, bytes, int]]
) -> list[tuple[str, int, Answer]]:
    """Returns the function, the number of ids and the answer of each call, up to one that fails."""
    answers = []
    for signature, request, num_ids in calls:
        untold = REFUSALS if signature.endswith(PACKED) else ()
        answers.append((signature, num_ids, channel.predict(signature, request, num_ids, untold)))
        if not answers[-1][-1].is_ok:
            break
    return answers


def _to_json(*results: bytes) -> bytes:
    """Merges `PushResult`s."""
    text = json_format.MessageToJson(
        parameter_sync_pb2.PushResult.FromString(b"".join(results)),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return text.encode()


def _read_config(config_str: bytes) -> tuple[np.ndarray, bytes]:
    config = _parse(config_str)
    targets = list(dict.fromkeys(config.targets))
    return np.array(targets, object), (config.signature_name or ASSIGN_SIGNATURE).encode()


def _parse(config_str: bytes) -> parameter_sync_pb2.ClientConfig:
    try:
        return parameter_sync_pb2.ClientConfig.FromString(config_str)
    except message.DecodeError as e:
        raise ValueError(_BAD_CONFIG) from e
