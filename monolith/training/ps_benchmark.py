"""Measures parameter servers, so that a job can leave the slowest ones out.

A job that was given more servers than it needs first trains this task on all of them: one step in
which every server computes for a while. The chief then keeps those that computed most.

Example:
    >>> config = BenchmarkConfig(["10.0.0.1:80", "10.0.0.2:80"], 1, num_workers=1, index=0)
    >>> config.benchmark_secs, config.ps_str_overridden
    (60.0, '')
"""

import collections
import dataclasses
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from monolith.cluster import net
from monolith.core.hyperparams import InstantiableParams
from monolith.graph import devices
from monolith.graph.mode_keys import ModeKeys
from monolith.model.task import NativeTask
from monolith.training.config.flags import SharedFlags, get_shared_collections
from monolith.training.graph.estimator import GraphRunConfig, GraphSpec

logger = logging.getLogger(__name__)

# Where the variables of a measurement are on the servers. A container takes no "_".
CONTAINER = "ps-benchmark"
_SCOPE_NAME = "ps_benchmark"
_READY_SHARE = 0.9
_POLL_SEC = 0.5
_SETTLE_SEC = 1.0
_WAIT_TIMEOUT_SEC = 3600.0
_DONE_TIMEOUT_SEC = 10.0
_LOG_EVERY_SEC = 60.0
_MATRIX_SIZE = 256


@dataclasses.dataclass
class BenchmarkConfig:
    """What to measure.

    Attributes:
        ps_list: Addresses of all servers; when the benchmark is over, of those that were chosen.
        num_ps_required: How many to choose.
        num_workers: Workers that measure at the same time.
        index: Which of them this process is; 0 is the chief.
        benchmark_secs: How long each server computes.
        ps_str_overridden: Addresses to choose without measuring, separated by commas.
    """

    ps_list: list[str]
    num_ps_required: int
    num_workers: int
    index: int
    benchmark_secs: float = 60.0
    ps_str_overridden: str = ""


class _BenchmarkWorkerHook(tf.compat.v1.train.SessionRunHook):
    """Lets all workers measure at the same time and has the chief choose.

    Args:
        bm_config: What to measure; its `ps_list` becomes the result.
        throughput_tensor: Mean over the workers, one number per server of `ps_list`.
    """

    def __init__(self, bm_config: BenchmarkConfig, throughput_tensor: tf.Tensor) -> None:
        self._bm_config = bm_config
        self._throughput_tensor = throughput_tensor
        self._start_time: float | None = None
        # Where the workers meet: variables of the same name on a device that all of them see.
        is_chief = bm_config.index == 0
        with tf.compat.v1.variable_scope(_SCOPE_NAME):
            self._ready = SharedFlags("ready", bm_config.num_workers, is_chief=is_chief)
            self._done = SharedFlags("done", bm_config.num_workers, is_chief=is_chief)
            self._result = tf.compat.v1.get_variable(
                "result",
                initializer=tf.constant(""),
                trainable=False,
                use_resource=True,
                collections=get_shared_collections(is_chief),
            )
        self._result_placeholder = tf.compat.v1.placeholder(tf.string, [], "result_placeholder")
        self._result_assign = self._result.assign(self._result_placeholder).op

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._ready.set(session, self._bm_config.index, True)
        wanted = int(self._bm_config.num_workers * _READY_SHARE)
        self._wait(lambda: len(self._ready.find(session, True)) >= wanted, what="workers to start")
        time.sleep(_SETTLE_SEC)
        self._start_time = time.monotonic()

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        session = run_context.session
        if self._bm_config.ps_str_overridden:
            self._set_result(session, self._bm_config.ps_str_overridden)
        if self._get_result(session):
            raise tf.errors.OutOfRangeError(None, None, "The servers are chosen already.")

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        assert self._start_time is not None
        logger.info("measured for %.1f seconds", time.monotonic() - self._start_time)
        run_context.request_stop()

    def end(self, session: tf.compat.v1.Session) -> None:
        self._done.set(session, self._bm_config.index, True)
        # A worker that was lost must not hold up the others.
        self._wait(
            lambda: not self._done.find(session, False), _DONE_TIMEOUT_SEC, what="workers to end"
        )
        if self._bm_config.index == 0 and not self._bm_config.ps_str_overridden:
            self._set_result(session, ",".join(self._choose(session)))
        self._wait(lambda: bool(self._get_result(session)), what="the chief's choice")
        # In place: the caller holds the list.
        self._bm_config.ps_list[:] = self._get_result(session).split(",")
        logger.info("chosen parameter servers: %s", self._bm_config.ps_list)

    def _choose(self, session: tf.compat.v1.Session) -> list[str]:
        throughputs = session.run(self._throughput_tensor)
        measured = sorted(
            zip(self._bm_config.ps_list, map(float, throughputs), strict=True),
            key=lambda pair: pair[1],
            reverse=True,
        )
        for ps, throughput in measured:
            logger.info("parameter server %s: %.2f rounds per second", ps, throughput)
        # Servers on one machine slow each other down; together they show what it can do.
        by_ip: dict[str, float] = collections.defaultdict(float)
        for ps, throughput in measured:
            by_ip[_get_ip(ps)] += throughput
        ranked = sorted(measured, key=lambda pair: by_ip[_get_ip(pair[0])], reverse=True)
        return [ps for ps, _ in ranked[: self._bm_config.num_ps_required]]

    def _get_result(self, session: tf.compat.v1.Session) -> str:
        return session.run(self._result).decode()

    def _set_result(self, session: tf.compat.v1.Session, result: str) -> None:
        session.run(self._result_assign, {self._result_placeholder: result})

    def _wait(
        self, cond: Callable[[], bool], timeout: float = _WAIT_TIMEOUT_SEC, what: str = "others"
    ) -> bool:
        """Waits until `cond` holds; returns whether it does."""
        start_sec = last_log_sec = time.monotonic()
        while not cond():
            now_sec = time.monotonic()
            if now_sec - start_sec > timeout:
                logger.warning("waited %.0f seconds for %s in vain", now_sec - start_sec, what)
                return False
            if now_sec - last_log_sec >= _LOG_EVERY_SEC:
                last_log_sec = now_sec
                logger.info("waiting for %s", what)
            time.sleep(_POLL_SEC)
        return True


class _DummyCheckpointSaverHook(tf.compat.v1.train.CheckpointSaverHook):
    """Saves nothing, and by being there keeps an estimator from adding a hook that does.

    Args:
        checkpoint_dir: Not written to; None: `$HOME/tmp`.
        save_steps: Has no effect.
        kwargs: As of TensorFlow's hook.
    """

    def __init__(
        self, checkpoint_dir: str | None = None, save_steps: int | None = 1, **kwargs: Any
    ) -> None:
        if checkpoint_dir is None:
            checkpoint_dir = os.path.join(os.environ.get("HOME", ""), "tmp")
        super().__init__(checkpoint_dir, save_steps=save_steps, **kwargs)

    def begin(self) -> None:
        """Does nothing."""

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Does nothing."""

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        """Does nothing."""

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        """Does nothing."""

    def end(self, session: tf.compat.v1.Session) -> None:
        """Does nothing."""

    def _save(self, session: tf.compat.v1.Session, step: int) -> bool:
        return False


class PsBenchMarkTask(NativeTask):
    """One step in which every parameter server computes for a while."""

    @classmethod
    def params(cls) -> InstantiableParams:
        p = super().params()
        p.define("bm_config", None, "What to measure, a BenchmarkConfig.")
        return p

    def create_input_fn(self, mode: str) -> Callable[[], tf.data.Dataset]:
        """Returns a vector of four numbers, again and again."""

        def input_fn() -> tf.data.Dataset:
            dataset = tf.data.Dataset.from_tensors(tf.constant([0.12, 0.23, 0.34, 0.45]))
            return dataset.repeat().prefetch(tf.data.AUTOTUNE)

        return input_fn

    def create_model_fn(self) -> Callable[..., GraphSpec]:
        """Returns the function that builds the measurement."""

        def model_fn(features: tf.Tensor, mode: str, config: GraphRunConfig) -> GraphSpec:
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions=tf.constant(0.0))
            bm_config: BenchmarkConfig = self.p.bm_config
            throughputs = [
                _measure(i, features, bm_config.benchmark_secs)
                for i in range(len(bm_config.ps_list))
            ]
            mean, update = _mean_over_workers(tf.stack(throughputs), bm_config.index == 0)
            global_step = tf.compat.v1.train.get_or_create_global_step()
            return GraphSpec(
                mode,
                loss=tf.constant(0.0),
                train_op=tf.group(update, global_step.assign_add(1)),
                training_hooks=[
                    _BenchmarkWorkerHook(bm_config, mean),
                    _DummyCheckpointSaverHook(),
                ],
            )

        return model_fn


def _mean_over_workers(values: tf.Tensor, is_chief: bool) -> tuple[tf.Tensor, tf.Operation]:
    """Returns the mean of what all workers have measured, and the op that adds this worker's.

    Not `metrics.mean_tensor`, whose sums each worker sets to zero when its session begins: one that
    comes late would take away what the others have measured.
    """
    with tf.compat.v1.variable_scope(_SCOPE_NAME):
        total, count = (
            tf.compat.v1.get_variable(
                name,
                values.shape,
                values.dtype,
                initializer=tf.compat.v1.zeros_initializer(),
                trainable=False,
                use_resource=True,
                collections=get_shared_collections(is_chief),
            )
            for name in ("total", "count")
        )
    update = tf.group(total.assign_add(values), count.assign_add(tf.ones_like(values)))
    return tf.math.divide_no_nan(total.read_value(), count.read_value()), update


def _measure(ps_index: int, features: tf.Tensor, benchmark_secs: float) -> tf.Tensor:
    """Returns how many rounds per second server `ps_index` computes, a scalar float64."""
    with tf.device(devices.ps_device(ps_index)):
        weights = tf.compat.v1.get_variable(
            f"ps_benchmark_weights_{ps_index}",
            [_MATRIX_SIZE, _MATRIX_SIZE],
            initializer=tf.compat.v1.ones_initializer(),
            trainable=False,
            partitioner=None,
        )
        start = tf.timestamp()
        # Nothing of it is known beforehand, so nothing of the loop can be computed beforehand.
        first = weights.read_value() * tf.reduce_sum(features)

        def is_running(rounds: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
            # A timestamp has no input, so the loop has to be told to take a new one each round.
            with tf.control_dependencies([values]):
                return tf.timestamp() - start < benchmark_secs

        def compute(rounds: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            left, right = tf.split(values, 2, axis=1)
            values = tf.concat([tf.sqrt(right), tf.sqrt(left)], axis=1)
            return rounds + 1, values

        with tf.control_dependencies([start]):
            first = tf.identity(first)
        rounds, values = tf.while_loop(
            is_running, compute, [tf.constant(0.0, tf.float64), first], parallel_iterations=1
        )
        with tf.control_dependencies([values]):
            end = tf.timestamp()
        return rounds / (end - start)


def _get_ip(address: str) -> str:
    try:
        return net.parse_address(address)[0]
    except ValueError:
        return address
