"""Time stamps, timers and machine health, from Python down to the ops."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from absl import flags

from monolith import errors
from monolith.core import metrics
from monolith.native import logging_ops
from monolith.native_training import logging_ops as historical_logging_ops
from monolith.proto import logging_ops_pb2
from monolith.testing import create_test_ps_cluster

OUT_OF_MEMORY = logging_ops_pb2.MachineHealthResult.OUT_OF_MEMORY


class Recorder:
    """A sink that remembers."""

    def __init__(self):
        self.emitted = []

    def emit(self, kind, name, value, tags):
        self.emitted.append((kind, name, value, dict(tags)))

    def flush(self):
        pass


@pytest.fixture
def sink():
    recorder = Recorder()
    metrics.set_sink(recorder)
    yield recorder
    metrics.set_sink(None)


def parse(status):
    return logging_ops_pb2.MachineHealthResult.FromString(status)


def test_historical_path():
    assert historical_logging_ops is logging_ops


class LoggingOpsTest(tf.test.TestCase):
    def test_tensors_timestamp(self):
        tensors, first = logging_ops.tensors_timestamp([tf.constant(1), tf.constant("a")])
        _, second = logging_ops.tensors_timestamp(tensors)
        self.assertAllEqual(tensors[0], 1)
        self.assertAllEqual(tensors[1], b"a")
        self.assertGreaterEqual(self.evaluate(second), self.evaluate(first))

    def test_machine_health(self):
        healthy = logging_ops.check_machine_health(logging_ops.machine_info(mem_limit=1 << 62))
        self.assertEqual(self.evaluate(healthy), b"")
        exceeded = logging_ops.check_machine_health(logging_ops.machine_info(mem_limit=0))
        self.assertEqual(parse(self.evaluate(exceeded)).status, OUT_OF_MEMORY)


class TestTimestamp:
    def test_is_the_time_of_the_clock(self):
        before_us = time.time_ns() // 1000
        _, timestamp_us = logging_ops.tensors_timestamp([])
        assert timestamp_us.dtype == tf.int64
        assert before_us <= int(timestamp_us) <= time.time_ns() // 1000 + 1

    def test_every_run_takes_the_time_anew(self):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            # Two equal ops must not be merged into one.
            stamps = [logging_ops.tensors_timestamp([tf.constant(1)])[1] for _ in range(2)]
            assert stamps[0] is not stamps[1]
            first = session.run(stamps)
            while session.run(stamps[0]) == first[0]:
                pass

    def test_shapes_pass_through(self):
        with tf.Graph().as_default():
            ragged = tf.compat.v1.placeholder(tf.float32, [None, 3])
            (same,), stamp = logging_ops.tensors_timestamp([ragged])
            assert same.shape.as_list() == [None, 3]
            assert stamp.shape.as_list() == []

    def test_gradients_pass_through(self):
        x = tf.Variable([1.0, 2.0])
        with tf.GradientTape() as tape:
            (same, _), _ = logging_ops.tensors_timestamp([x, tf.constant(3)])
            loss = tf.reduce_sum(same * same)
        np.testing.assert_array_equal(tape.gradient(loss, x), [2.0, 4.0])


class TestTimer:
    def test_reaches_the_sink(self, sink):
        logging_ops.emit_timer("lookup_us", 12.5, {"server": "3", "kind": "fused"})
        logging_ops.emit_timer("lookup_us", tf.constant(7, tf.int64))
        assert sink.emitted == [
            ("timer", "monolith.training.lookup_us", 12.5, {"server": "3", "kind": "fused"}),
            ("timer", "monolith.training.lookup_us", 7.0, {}),
        ]

    def test_each_run_of_a_graph_emits(self, sink):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            value = tf.compat.v1.placeholder(tf.float32, [])
            timer = logging_ops.emit_timer("step_ms", value)
            assert sink.emitted == []
            for step in range(3):
                session.run(timer, {value: step})
        assert [value for _, _, value, _ in sink.emitted] == [0.0, 1.0, 2.0]

    def test_many_threads_emit(self, sink):
        def emit(i):
            for _ in range(50):
                logging_ops.emit_timer("busy", i)

        threads = [threading.Thread(target=emit, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert np.bincount([int(v) for _, _, v, _ in sink.emitted]).tolist() == [50] * 4

    def test_without_a_sink_nothing_happens(self):
        logging_ops.emit_timer("nobody", 1.0)

    def test_sink_that_fails_does_not_end_the_training(self):
        class Broken(Recorder):
            def emit(self, kind, name, value, tags):
                self.emitted.append(name)
                raise OSError("the monitoring is down")

        broken = Broken()
        metrics.set_sink(broken)
        try:
            logging_ops.emit_timer("step_ms", 1.0)
        finally:
            metrics.set_sink(None)
        assert broken.emitted == ["monolith.training.step_ms"]

    @pytest.mark.parametrize("tags", [{"a=b": "c"}, {"a": "b|c"}])
    def test_tags_that_could_not_be_told_apart(self, tags):
        with pytest.raises(errors.ConfigError, match=r"must not contain '=' or '\|'"):
            logging_ops.emit_timer("timer", 1.0, tags)

    def test_value_must_be_a_scalar(self):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="`value` of timer t must be a scalar"
        ):
            logging_ops.emit_timer("t", [1.0, 2.0])

    def test_process_that_ends_while_timers_run(self, tmp_path):
        # Threads of TensorFlow are still emitting when the interpreter goes away.
        code = (
            "import threading, tensorflow as tf\n"
            "from monolith.core import metrics\n"
            "from monolith.native import logging_ops\n"
            "emitted = threading.Event()\n"
            "class Sink:\n"
            "    def emit(self, *args): emitted.set()\n"
            "metrics.set_sink(Sink())\n"
            "def emit():\n"
            "    while True: logging_ops.emit_timer('t', 1.0)\n"
            "threading.Thread(target=emit, daemon=True).start()\n"
            "assert emitted.wait(60)\n"
            "print('done')\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
        )
        assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr


class TestMachineHealth:
    def test_message_tells_memory_and_limit(self):
        limit = 4096
        handle = logging_ops.machine_info(mem_limit=limit)
        message = parse(logging_ops.check_machine_health(handle).numpy()).message
        prefix, suffix = "Memory limit exceeded. Current: ", f", Limit: {limit}"
        assert message.startswith(prefix)
        assert message.endswith(suffix)
        current = int(message.removeprefix(prefix).removesuffix(suffix))
        with open("/proc/self/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert current == pytest.approx(resident, rel=0.2)

    def test_flag_is_the_default_limit(self):
        assert flags.FLAGS["monolith_default_machine_info_mem_limit"].value == 1 << 62
        assert logging_ops.check_machine_health(logging_ops.machine_info()).numpy() == b""
        flags.FLAGS["monolith_default_machine_info_mem_limit"].value = 1
        status = logging_ops.check_machine_health(logging_ops.machine_info()).numpy()
        assert parse(status).status == OUT_OF_MEMORY

    def test_first_limit_of_a_shared_name_counts(self):
        # As a parameter server does for itself, before the chief asks.
        first = logging_ops.machine_info(mem_limit=0, shared_name="first_limit_test")
        second = logging_ops.machine_info(shared_name="first_limit_test")
        other = logging_ops.machine_info(shared_name="first_limit_test_other")
        for handle, is_healthy in ((first, False), (second, False), (other, True)):
            assert (logging_ops.check_machine_health(handle).numpy() == b"") is is_healthy

    def test_graph_asks_each_time(self):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            status = logging_ops.check_machine_health(logging_ops.machine_info(mem_limit=0))
            assert status.shape.as_list() == []
            for _ in range(2):
                assert parse(session.run(status)).status == OUT_OF_MEMORY

    def test_handle_of_another_kind(self):
        with pytest.raises(tf.errors.InvalidArgumentError):
            logging_ops.check_machine_health(tf.Variable(1.0).handle)

    def test_parameter_server_sets_its_limit_itself(self):
        servers, config = create_test_ps_cluster(1)
        with tf.Graph().as_default(), tf.device("/job:ps/task:0/device:CPU:0"):
            own = logging_ops.machine_info(mem_limit=0, shared_name="ps_machine_info_0")
            with tf.compat.v1.Session(servers[0].target, config=config) as session:
                session.run(own.op)
        with tf.Graph().as_default(), tf.device("/job:ps/task:0/device:CPU:0"):
            status = logging_ops.check_machine_health(
                logging_ops.machine_info(shared_name="ps_machine_info_0")
            )
            with tf.compat.v1.Session(servers[0].target, config=config) as session:
                assert parse(session.run(status)).status == OUT_OF_MEMORY
