"""Watching the memory of the parameter servers, before one of them is killed for it.

Each server sets its own limit when it starts (`logging_ops.machine_info`); the chief asks all of
them regularly. When one is past its limit, whoever is in charge is told and the workers are stopped
at the barrier, so that the model in memory can still be saved.

Example:
    >>> from monolith.training.controller import barrier
    >>> with tf.Graph().as_default():
    ...     config = Config(barrier.BarrierOp(1), num_ps=1, ps_device_fn=lambda index: "")
    ...     hook = PsHealthCheckerHook(config)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         config.barrier_op.is_barrier_placed(session)
    False
"""

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from monolith.graph import devices
from monolith.native import logging_ops
from monolith.proto import logging_ops_pb2
from monolith.training.controller import barrier

logger = logging.getLogger(__name__)

_CHECK_INTERVAL_SEC = 30.0
_TIMEOUT_IN_MS = 30_000

HealthReport = Mapping[int, logging_ops_pb2.MachineHealthResult]


def get_ps_machine_info_shared_name(index: int) -> str:
    """Returns the name under which server `index` keeps its limit."""
    return f"ps_machine_info_{index}"


def _default_report(results: HealthReport) -> None:
    for index, result in results.items():
        logger.error("parameter server %d is not healthy: %s", index, result.message)


class Config(NamedTuple):
    """What is watched, and what happens then.

    Attributes:
        barrier_op: The barrier of the job, placed when a server is not healthy.
        num_ps: Number of parameter servers.
        ps_device_fn: Returns the device of a server.
        report_fn: Called with the results of the servers that are not healthy, by their index; by
            default they are logged as errors.
    """

    barrier_op: barrier.BarrierOp
    num_ps: int
    ps_device_fn: Callable[[int], str] = devices.ps_device
    report_fn: Callable[[HealthReport], None] = _default_report


class PsHealthCheckerHook(tf.compat.v1.train.SessionRunHook):
    """Asks all parameter servers for their health every 30 seconds, while a session is open.

    The first bad answer is reported, once; then the barrier stays placed until somebody removes it
    (`monolith control MODEL_DIR resume`). A server that cannot be asked is logged: that it is gone
    is noticed by the training itself.

    Args:
        config: What to watch.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._checks: list[tf.Tensor] = []

    def begin(self) -> None:
        self._checks = []
        for index in range(self._config.num_ps):
            with tf.device(self._config.ps_device_fn(index)):
                info = logging_ops.machine_info(shared_name=get_ps_machine_info_shared_name(index))
                self._checks.append(logging_ops.check_machine_health(info))

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        if not self._checks:
            return
        # Daemon, and without a claim on the session: if a later hook fails here, nobody stops the
        # coordinator, and the thread must neither hold up the process nor live on.
        thread = threading.Thread(
            target=self._watch, args=(weakref.ref(session), coord), name="ps_health", daemon=True
        )
        coord.register_thread(thread)
        thread.start()

    def _watch(
        self, get_session: Callable[[], tf.compat.v1.Session | None], coord: tf.train.Coordinator
    ) -> None:
        while not coord.should_stop():
            session = get_session()
            if session is None:
                return
            try:
                is_healthy = self._check(session)
            except Exception as error:  # noqa: BLE001 - watching goes on whatever happened
                if not coord.should_stop():
                    logger.warning("the parameter servers' health is not known: %s", error)
                is_healthy = True
            del session
            if not is_healthy:
                return
            coord.wait_for_stop(_CHECK_INTERVAL_SEC)

    def _check(self, session: tf.compat.v1.Session) -> bool:
        options = tf.compat.v1.RunOptions(timeout_in_ms=_TIMEOUT_IN_MS)
        results = {
            index: logging_ops_pb2.MachineHealthResult.FromString(status)
            for index, status in enumerate(session.run(self._checks, options=options))
            if status
        }
        if not results:
            return True
        try:
            self._config.report_fn(results)
        except Exception:
            # The barrier matters more than who hears of it.
            logger.exception("the health of the parameter servers could not be reported")
        try:
            self._config.barrier_op.place_barrier(session)
        except barrier.BarrierAlreadyPlacedError:
            logger.info("the barrier is placed already, it stops the workers as well")
        return False
