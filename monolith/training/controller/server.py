"""The controller: a gRPC server in the chief through which operators steer a running job.

The user who started the job can pause the workers, let them go on, ask who waits, have a checkpoint
written and ask for the global step, without touching the processes of the job. All it takes is the
model directory, where only that user can read the token that every call has to carry.

Example:
    >>> import tempfile
    >>> from monolith.proto import service_pb2
    >>> from monolith.training.controller import barrier, client
    >>> with tf.Graph().as_default(), tempfile.TemporaryDirectory() as model_dir:
    ...     step = tf.compat.v1.train.get_or_create_global_step()
    ...     hook = ServerHook(model_dir, barrier.BarrierOp(capacity=1), saver_hook=None)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]):
    ...         with client.connect(model_dir) as stub:
    ...             stub.GetTrainingStatus(service_pb2.GetTrainingStatusRequest()).global_step
    0
"""

import hmac
import ipaddress
import logging
import secrets
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, Protocol, TypeVar

import grpc
import tensorflow as tf

from monolith import errors
from monolith.cluster import net
from monolith.proto import service_pb2, service_pb2_grpc
from monolith.training.controller import barrier, files

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

_NUM_THREADS = 2
_END_GRACE_SEC = 20.0

_Result = TypeVar("_Result")


class SaverHook(Protocol):
    """Whatever can write a checkpoint when asked to."""

    def trigger_save(self, session: tf.compat.v1.Session) -> Any:
        """Saves, and returns when the checkpoint is complete."""


class ControllerServicer(service_pb2_grpc.ControllerServicer):
    """Answers the calls of `service Controller`, with one session.

    An error of a call goes to the log, and to the client as INTERNAL with its text.

    Args:
        sess: The session of the run.
        barrier_op: The barrier of the run.
        saver_hook: Saves when asked to; None if the run saves nothing.
    """

    def __init__(
        self,
        sess: tf.compat.v1.Session,
        barrier_op: barrier.BarrierOp,
        saver_hook: SaverHook | None,
    ) -> None:
        self._session = sess
        self._barrier_op = barrier_op
        self._saver_hook = saver_hook
        self._global_step = tf.compat.v1.train.get_global_step(sess.graph)

    def StopTraining(
        self, request: service_pb2.StopTrainingRequest, context: grpc.ServicerContext
    ) -> service_pb2.StopTrainingResponse:
        """Places the barrier; ALREADY_EXISTS if it is placed."""
        self._do(context, "stop the training", self._barrier_op.place_barrier, self._session)
        return service_pb2.StopTrainingResponse()

    def ResumeTraining(
        self, request: service_pb2.ResumeTrainingRequest, context: grpc.ServicerContext
    ) -> service_pb2.ResumeTrainingResponse:
        """Removes the barrier, whoever placed it."""
        self._do(context, "resume the training", self._barrier_op.remove_barrier, self._session)
        return service_pb2.ResumeTrainingResponse()

    def GetBlockStatus(
        self, request: service_pb2.GetBlockStatusRequest, context: grpc.ServicerContext
    ) -> service_pb2.GetBlockStatusResponse:
        """Tells which workers wait at the barrier."""
        blocked = self._do(
            context, "ask who waits", self._barrier_op.get_blocked_indices, self._session
        )
        # Computed rather than read again, so that the two lists are of one moment.
        unblocked = sorted(set(range(self._barrier_op.capacity)) - set(blocked))
        return service_pb2.GetBlockStatusResponse(
            blocked_indices=blocked, unblocked_indices=unblocked
        )

    def SaveCheckpoint(
        self, request: service_pb2.SaveCheckpointRequest, context: grpc.ServicerContext
    ) -> service_pb2.SaveCheckpointResponse:
        """Saves, and answers when that is done."""
        if self._saver_hook is None:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "This run has no saver hook, so there is nothing that could save a checkpoint.",
            )
            raise AssertionError("abort raises")
        self._do(context, "save a checkpoint", self._saver_hook.trigger_save, self._session)
        return service_pb2.SaveCheckpointResponse()

    def GetTrainingStatus(
        self, request: service_pb2.GetTrainingStatusRequest, context: grpc.ServicerContext
    ) -> service_pb2.GetTrainingStatusResponse:
        """Tells the global step."""
        if self._global_step is None:
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                "The graph of this run has no global step, so there is no status to report.",
            )
        step = self._do(context, "read the global step", self._session.run, self._global_step)
        return service_pb2.GetTrainingStatusResponse(global_step=int(step))

    def _do(
        self,
        context: grpc.ServicerContext,
        what: str,
        action: Callable[[Any], _Result],
        argument: Any,
    ) -> _Result:
        try:
            return action(argument)
        except barrier.BarrierAlreadyPlacedError:
            code, message = grpc.StatusCode.ALREADY_EXISTS, "Barrier is placed already."
        except Exception as error:
            logger.exception("the controller could not %s", what)
            code = grpc.StatusCode.INTERNAL
            message = f"The controller could not {what}: {error}"
        context.abort(code, message)
        raise AssertionError("abort raises")


class ServerHook(tf.compat.v1.train.SessionRunHook):
    """Runs the controller while a session is open.

    The server starts on a free port when the session is created and publishes its address in the
    model directory. It stops when the session ends, also when it fails; a session that is created
    again gets a new server.

    Args:
        model_dir: Where the address goes, and the token; created if it is missing.
        barrier_op: What stops the workers.
        saver_hook: Saves when asked to; None if the run saves nothing.
        listen_host: The address of this machine to listen on. The default can be reached from
            this machine only; `0.0.0.0` or `::` are all.
        require_token: Whether calls must carry the token that is in the model directory, in a
            file which only its owner can read. Without it, every user who can reach the address
            can stop the training.

    Raises:
        errors.ConfigError: The server cannot listen (when the session is created), or a token is
            required in a directory that is not local.
    """

    def __init__(
        self,
        model_dir: str,
        barrier_op: barrier.BarrierOp,
        saver_hook: SaverHook | None,
        *,
        listen_host: str = LOOPBACK,
        require_token: bool = True,
    ) -> None:
        if require_token and not files.can_hold_token(model_dir):
            raise errors.ConfigError(
                "A controller that requires a token needs a local model directory, where only its "
                f"owner can read the token, got {model_dir!r}; do not require one, or train "
                "locally."
            )
        self._model_dir = model_dir
        self._barrier_op = barrier_op
        self._saver_hook = saver_hook
        self._listen_host = listen_host
        self._require_token = require_token
        self._running: _RunningServer | None = None

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        servicer = ControllerServicer(session, self._barrier_op, self._saver_hook)
        running = _RunningServer(
            self._model_dir, servicer, self._listen_host, require_token=self._require_token
        )
        self._running = running
        # `end` is not called for a session that fails, but its coordinator stops, and waits for
        # the threads that are registered with it.
        watcher = threading.Thread(
            target=_stop_with_coordinator, args=(coord, running), name="controller", daemon=True
        )
        coord.register_thread(watcher)
        watcher.start()

    def end(self, session: tf.compat.v1.Session) -> None:
        if self._running is not None:
            self._running.stop(_END_GRACE_SEC)
            self._running = None


class _RunningServer:
    """A started server and its files."""

    def __init__(
        self,
        model_dir: str,
        servicer: ControllerServicer,
        listen_host: str,
        *,
        require_token: bool,
    ) -> None:
        self._model_dir = model_dir
        self._lock = threading.Lock()
        self._stopped = False
        self._token = secrets.token_urlsafe(32) if require_token else None
        if self._token is None:
            logger.warning(
                "the controller listens on %s without a token: %s can stop the training",
                listen_host,
                "every user of this machine"
                if _is_loopback(listen_host)
                else "whoever reaches this machine",
            )
        self._executor = futures.ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="controller")
        # Without reuseport, two controllers never share a port.
        self._server = grpc.server(
            self._executor,
            interceptors=[_TokenChecker(self._token)] if self._token else [],
            options=[("grpc.so_reuseport", 0)],
        )
        service_pb2_grpc.add_ControllerServicer_to_server(servicer, self._server)
        self._address = _get_public_address(listen_host, self._bind(listen_host))
        try:
            self._start()
        except BaseException:
            self.stop(None)
            raise
        logger.info(
            "the controller listens on %s, for calls with %s",
            self._address,
            f"the token in {self._model_dir}" if self._token else "or without a token",
        )

    def stop(self, grace_sec: float | None) -> None:
        """Withdraws the address and stops; calls under way have `grace_sec` to finish."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            try:
                files.remove_address(self._model_dir, self._address)
                if self._token is not None:
                    files.remove_token(self._model_dir, self._token)
            except (OSError, tf.errors.OpError) as error:
                # A stale address does no harm worth failing for: nobody listens there.
                logger.warning("the address of the controller could not be removed: %s", error)
            self._server.stop(grace_sec).wait()
            self._executor.shutdown(wait=False)
        logger.info("the controller on %s has stopped", self._address)

    def _bind(self, listen_host: str) -> int:
        try:
            return int(self._server.add_insecure_port(net.concat_ip_and_port(listen_host, 0)))
        except RuntimeError as error:
            self._executor.shutdown(wait=False)
            raise errors.ConfigError(
                f"The controller cannot listen on {listen_host!r}; `listen_host` must be an "
                f"address of this machine, such as {LOOPBACK!r}."
            ) from error

    def _start(self) -> None:
        if self._token is None:
            # Clients would go on sending the token of an earlier run.
            files.remove_token(self._model_dir)
        else:
            files.write_token(self._model_dir, self._token)
        self._server.start()
        # The address is last: who finds it finds the token, and somebody who answers.
        files.write_address(self._model_dir, self._address)


class _TokenChecker(grpc.ServerInterceptor):
    """Refuses calls that do not carry the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._refuse = grpc.unary_unary_rpc_method_handler(_refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        metadata = dict(handler_call_details.invocation_metadata)
        given = str(metadata.get(files.AUTHORIZATION_KEY, "")).encode()
        # Takes the same time wherever the first difference is.
        if hmac.compare_digest(given, self._expected):
            return continuation(handler_call_details)
        return self._refuse


def _refuse(request: Any, context: grpc.ServicerContext) -> None:
    context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        f"The controller requires the token that is in {files.SERVER_TOKEN_FILENAME} of the model "
        f"directory, and the call carried none or another one; connect with the model directory.",
    )


def _stop_with_coordinator(coord: tf.train.Coordinator, running: _RunningServer) -> None:
    coord.wait_for_stop()
    # After `end` this does nothing. Without `end` the session has failed, and so will the calls.
    running.stop(None)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _get_public_address(host: str, port: int) -> str:
    try:
        is_any = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_any = False
    return net.get_local_server_addr(port) if is_any else net.concat_ip_and_port(host, port)
