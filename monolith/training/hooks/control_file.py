"""Steering a run by a file: an operator leaves `action: TRIGGER_SAVE` or `action: STOP` in it.

For places where nothing but the model directory can be reached; where the chief can be reached, the
controller of `monolith.training.controller` answers faster. The chief looks for the file
`monolith_action`, carries the action out after its current step, says how it went in
`monolith_action_response` and removes the request.

Example:
    >>> saves = []
    >>> with tf.Graph().as_default():
    ...     step = tf.constant(1)
    ...     hook = ControllerHook(trigger_save=lambda: saves.append("saved"))
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         session.run(hook.trigger_save_op)  # As QueryActionHook does.
    ...         for _ in range(3):
    ...             _ = session.run(step)
    >>> saves
    ['saved']
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.lib.io import file_io

from monolith.graph import devices
from monolith.proto import controller_hooks_pb2
from monolith.training.controller import barrier

logger = logging.getLogger(__name__)

# What the barrier is placed for.
STOP_ACTION = "Stop"
# Seconds between two looks for the request.
QUERY_INTERVAL = 60

REQUEST_FILENAME = "monolith_action"
RESPONSE_FILENAME = "monolith_action_response"

_STOP, _TRIGGER_SAVE = 0, 1
_MAX_PENDING_SEC = 30.0
_POLL_SEC = 2.0

_Action = controller_hooks_pb2.ControllerHooksProto


class ControllerHook(tf.compat.v1.train.SessionRunHook):
    """Stops or saves after the step in which `stop_op` or `trigger_save_op` was run.

    Goes into the chief's session. Stopping places the barrier, so that each process learns of it
    through its `StopHelper`, waits until all workers are there, at most 30 seconds, and removes it.
    While somebody else has placed the barrier, the stop waits for them. Without a barrier only this
    session stops. A save that fails is logged, and the training goes on.

    Args:
        num_ps: Number of parameter servers; with at least one, the requests lie on server 0.
        barrier_op: The barrier of the job.
        trigger_save: Called without arguments; saves a checkpoint.
        sleep: Waits for some seconds; None is `time.sleep`.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        num_ps: int = 0,
        barrier_op: barrier.BarrierOp | None = None,
        trigger_save: Callable[[], Any] | None = None,
        *,
        sleep: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._barrier_op = barrier_op
        self._trigger_save = trigger_save
        self._sleep = sleep
        self._clock = clock
        with tf.device(devices.ps_device(0)) if num_ps > 0 else contextlib.nullcontext():
            variable = tf.compat.v1.get_variable(
                "control_var",
                shape=[2],
                dtype=tf.bool,
                initializer=tf.compat.v1.zeros_initializer(),
                trainable=False,
                use_resource=True,
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
            )
            self._requests = variable.read_value()
            self._set_ops = [
                tf.compat.v1.scatter_update(variable, index, True).op
                for index in (_STOP, _TRIGGER_SAVE)
            ]
            self._reset_ops = [
                tf.compat.v1.scatter_update(variable, index, False).op
                for index in (_STOP, _TRIGGER_SAVE)
            ]

    @property
    def stop_op(self) -> tf.Operation:
        """Asks for a stop when it runs."""
        return self._set_ops[_STOP]

    @property
    def trigger_save_op(self) -> tf.Operation:
        """Asks for a save when it runs."""
        return self._set_ops[_TRIGGER_SAVE]

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(self._requests)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        if run_values.results[_STOP]:
            self._stop(run_context)
        elif run_values.results[_TRIGGER_SAVE]:
            run_context.session.run(self._reset_ops[_TRIGGER_SAVE])
            self._save()

    def _stop(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        session = run_context.session
        if self._barrier_op is None:
            session.run(self._reset_ops[_STOP])
            run_context.request_stop()
            return
        try:
            self._barrier_op.place_barrier(session, STOP_ACTION)
        except barrier.BarrierAlreadyPlacedError:
            # The request stays, and is tried again after the next step.
            logger.info("the stop waits until whoever placed the barrier removes it")
            return
        session.run(self._reset_ops[_STOP])
        try:
            self._wait_for_workers(session, self._barrier_op)
        finally:
            self._barrier_op.remove_barrier(session)

    def _wait_for_workers(
        self, session: tf.compat.v1.Session, barrier_op: barrier.BarrierOp
    ) -> None:
        start_sec = self._clock()
        while missing := barrier_op.get_unblocked_indices(session):
            if self._clock() - start_sec >= _MAX_PENDING_SEC:
                logger.warning("workers %s did not come to the barrier to be stopped", missing)
                return
            (self._sleep or time.sleep)(_POLL_SEC)

    def _save(self) -> None:
        if self._trigger_save is None:
            logger.warning("a save was asked for, but this run has nothing that could save")
            return
        try:
            self._trigger_save()
        except tf.errors.OpError:
            logger.exception("the save that was asked for has failed, the training goes on")


class StopHelper:
    """Stops the session of one process when the barrier is placed for a stop."""

    def __init__(self) -> None:
        self._should_stop = False

    def create_barrier_callback(self) -> barrier.BarrierCallback:
        """Returns the callback for the `BarrierOp` of this process."""

        def note(action: str, session: tf.compat.v1.Session) -> None:
            self._should_stop = self._should_stop or action == STOP_ACTION

        return note

    def create_stop_hook(self) -> tf.compat.v1.train.SessionRunHook:
        """Returns the hook for the session of this process."""
        return _StopHook(self)

    @property
    def should_stop(self) -> bool:
        """Whether a stop was asked for."""
        return self._should_stop


class _StopHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, helper: StopHelper) -> None:
        self._helper = helper

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        if self._helper.should_stop:
            run_context.request_stop()


class QueryActionHook(tf.compat.v1.train.SessionRunHook):
    """Looks for the request of an operator, every `QUERY_INTERVAL` seconds.

    Args:
        model_dir: Where the request is left and the response goes.
        hook: Carries the request out; in the same session.
    """

    def __init__(self, model_dir: str, hook: ControllerHook) -> None:
        self._request_path = os.path.join(model_dir, REQUEST_FILENAME)
        self._response_path = os.path.join(model_dir, RESPONSE_FILENAME)
        self._hook = hook

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        # The coordinator stops, and waits for the thread, when the session ends or fails.
        thread = threading.Thread(
            target=self._poll, args=(session, coord), name="query_action", daemon=True
        )
        coord.register_thread(thread)
        thread.start()

    def _poll(self, session: tf.compat.v1.Session, coord: tf.train.Coordinator) -> None:
        while not coord.should_stop():
            try:
                self._query(session)
            except Exception:
                # A thread that ended would leave the operator without an answer for ever.
                if not coord.should_stop():
                    logger.exception("the request in %s was not carried out", self._request_path)
            coord.wait_for_stop(QUERY_INTERVAL)

    def _query(self, session: tf.compat.v1.Session) -> None:
        try:
            request = file_io.read_file_to_string(self._request_path, binary_mode=True)
        except tf.errors.NotFoundError:
            return
        response = self._carry_out(session, request)
        logger.info("%s: %r, response: %s", self._request_path, request, response)
        file_io.atomic_write_string_to_file(self._response_path, response)
        tf.io.gfile.remove(self._request_path)

    def _carry_out(self, session: tf.compat.v1.Session, request: bytes) -> str:
        try:
            action = text_format.Parse(request, _Action()).action
        except (text_format.ParseError, UnicodeDecodeError) as error:
            return f"The request cannot be read: {error}; expected `action: TRIGGER_SAVE` or `STOP`"
        if action == _Action.STOP:
            session.run(self._hook.stop_op)
        elif action == _Action.TRIGGER_SAVE:
            session.run(self._hook.trigger_save_op)
        else:
            return f"Unknown action: {_Action.Action.Name(action)}; expected TRIGGER_SAVE or STOP"
        return "OK"
