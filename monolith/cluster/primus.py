"""Where this process runs, and how it controls its job under Primus on YARN.

Primus runs an application master (AM) beside every job. A trainer asks it over gRPC to end the
job (`maybe_finish_application`, `maybe_kill_application`) or to take a savepoint of the input
(`create_primus_save_point`). Outside Primus nothing answers, so each of these functions says in
its result that nothing was done instead of raising.

The AM's address comes from `PRIMUS_AM_RPC_HOST` and `PRIMUS_AM_RPC_PORT`. Host `unix` with the
path of a socket as the port reaches an AM over a Unix domain socket.

Example:
    >>> from unittest import mock
    >>> with mock.patch.dict("os.environ", {"CLOUDNATIVE_INET_ADDR": "10.0.0.1,fd00::1"}):
    ...     get_local_host()
    '10.0.0.1'
"""

import logging
import os
import threading
import time
from collections.abc import Callable

import grpc
from google.protobuf import wrappers_pb2

from monolith.cluster import net
from monolith.cluster.progress import WaitProgress
from monolith.proto import primus_am_service_pb2, primus_am_service_pb2_grpc

logger = logging.getLogger(__name__)

_GRACEFUL_SHUTDOWN_TIMEOUT_MS = 20000
_CONTROL_RPC_TIMEOUT_SEC = 10
# Taking a savepoint may touch slow storage before the AM answers; still, no call waits forever.
_SAVEPOINT_RPC_TIMEOUT_SEC = 60
_SAVEPOINT_POLL_SEC = 5

_CHANNEL_MAP: dict[str, grpc.Channel] = {}
_CHANNEL_LOCK = threading.Lock()


def get_local_host() -> str:
    """Returns the address under which other members of the job reach this machine.

    The first entry of `CLOUDNATIVE_INET_ADDR`, else `YARN_INET_ADDR`, else what the resolver
    says about this machine's name.

    Raises:
        AssertionError: If the variable that decides is set but holds no address.
    """
    if "CLOUDNATIVE_INET_ADDR" in os.environ:
        source = "CLOUDNATIVE_INET_ADDR"
        host = os.environ[source].split(",")[0].strip()
    elif "YARN_INET_ADDR" in os.environ:
        source = "YARN_INET_ADDR"
        host = os.environ[source].strip()
    else:
        source = "the resolver"
        host = net.get_local_ip()
    if not host:
        raise AssertionError(
            f"The address of this machine must not be empty, but {source} gave {host!r}; "
            "set CLOUDNATIVE_INET_ADDR or YARN_INET_ADDR to this machine's address, or unset both."
        )
    return host


def _get_primus_am_host() -> str:
    """Returns the AM's address, or "" when this process does not run under Primus."""
    host = os.environ.get("PRIMUS_AM_RPC_HOST")
    port = os.environ.get("PRIMUS_AM_RPC_PORT")
    return f"{host}:{port}" if host and port else ""


def _get_channel(addr: str) -> grpc.Channel:
    """Returns the one channel to `addr`; any thread may call it."""
    with _CHANNEL_LOCK:
        channel = _CHANNEL_MAP.get(addr)
        if channel is None:
            channel = _CHANNEL_MAP[addr] = grpc.insecure_channel(addr)
        return channel


def maybe_kill_application(reason: str) -> bool:
    """Asks Primus to end the job as failed, with `reason` as its diagnosis.

    Returns:
        True if the AM accepted; False if it did not, or if there is no AM.
    """
    addr = _get_primus_am_host()
    if not addr:
        logger.debug("Current framework doesn't support kill. Ignore killing...")
        return False
    request = primus_am_service_pb2.KillRequest(
        exit_code=1,
        diagnose=reason,
        graceful_shutdown_timeout_ms=_graceful_shutdown_timeout(),
    )
    try:
        _stub(addr).kill(request, timeout=_CONTROL_RPC_TIMEOUT_SEC)
    except grpc.RpcError as error:
        logger.error("Primus AM at %s did not kill the job: %s", addr, _describe(error))
        return False
    logger.info("Primus AM at %s kills the job: %s", addr, reason)
    return True


def maybe_finish_application() -> bool | None:
    """Asks Primus to end the job as succeeded.

    Returns:
        True if the AM accepted; None if it did not, or if there is no AM.
    """
    addr = _get_primus_am_host()
    if not addr:
        return None
    request = primus_am_service_pb2.SucceedRequest(
        graceful_shutdown_timeout_ms=_graceful_shutdown_timeout()
    )
    try:
        _stub(addr).succeed(request, timeout=_CONTROL_RPC_TIMEOUT_SEC)
    except grpc.RpcError as error:
        logger.error("Primus AM at %s did not finish the job: %s", addr, _describe(error))
        return None
    logger.info("Primus AM at %s finishes the job.", addr)
    return True


def create_primus_save_point(dst: str, sleep: Callable[[float], None] = time.sleep) -> bool | None:
    """Asks Primus for a savepoint in `dst` and waits until it is taken or has failed.

    A status answer whose `code` is not 0 counts as failed: its state is the default, PENDING, and
    would be asked for forever.

    Args:
        dst: Directory of the savepoint.
        sleep: Called with the seconds to wait between two questions about the savepoint's state.

    Returns:
        True if the savepoint succeeded, False if it did not, None if there is no AM.
    """
    addr = _get_primus_am_host()
    if not addr:
        return None
    try:
        return _create_save_point(addr, dst, sleep)
    except grpc.RpcError as error:
        logger.error("Primus AM at %s took no savepoint in %s: %s", addr, dst, _describe(error))
        return False


def _create_save_point(addr: str, dst: str, sleep: Callable[[float], None]) -> bool:
    stub = _stub(addr)
    created = stub.createSavepoint(
        primus_am_service_pb2.CreateSavepointRequest(savepoint_dir=dst),
        timeout=_SAVEPOINT_RPC_TIMEOUT_SEC,
    )
    if created.code != 0:
        logger.error(
            "Primus AM at %s refused a savepoint in %s: code %d, %s",
            addr,
            dst,
            created.code,
            created.message,
        )
        return False

    states = primus_am_service_pb2.CreateSavepointStatusResponse.CreateSavepointState
    request = primus_am_service_pb2.CreateSavepointStatusRequest(
        savepoint_restore_id=created.savepoint_id
    )
    progress = WaitProgress(logger)
    while True:
        status = stub.createSavepointStatus(request, timeout=_SAVEPOINT_RPC_TIMEOUT_SEC)
        state = status.create_savepoint_state
        if status.code == 0 and state in (states.PENDING, states.RUNNING):
            progress.report(
                f"Waiting for Primus savepoint {created.savepoint_id} in {dst}, "
                f"now {states.Name(state)}."
            )
            sleep(_SAVEPOINT_POLL_SEC)
        elif status.code == 0 and state == states.SUCCEEDED:
            logger.info("Primus savepoint %s in %s succeeded.", created.savepoint_id, dst)
            return True
        else:
            logger.error(
                "Primus savepoint %s in %s failed: state %s, code %d, %s",
                created.savepoint_id,
                dst,
                states.Name(state) if state in states.values() else state,
                status.code,
                status.message,
            )
            return False


def _stub(addr: str) -> primus_am_service_pb2_grpc.AppMasterServiceStub:
    return primus_am_service_pb2_grpc.AppMasterServiceStub(_get_channel(addr))


def _graceful_shutdown_timeout() -> wrappers_pb2.Int64Value:
    return wrappers_pb2.Int64Value(value=_GRACEFUL_SHUTDOWN_TIMEOUT_MS)


def _describe(error: grpc.RpcError) -> str:
    # Errors of a call carry code and details; the bare base class carries neither.
    if isinstance(error, grpc.Call):
        return f"{error.code().name}, {error.details()}"
    return repr(error)
