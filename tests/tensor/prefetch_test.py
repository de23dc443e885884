"""Prefetch queues: the historical cases, how threads end, and that nothing is lost.

Covers monolith/tensor/queues.py.
"""

import threading

import numpy as np
import pytest
import tensorflow as tf

from monolith.native_training import nested_tensors, prefetch_queue
from monolith.training.graph import estimator as graph_estimator

v1 = tf.compat.v1

# Without a GPU the soft placement of the test sessions moves these ops to the CPU.
GPU = "/device:GPU:0"
CPU = "/device:CPU:0"


@pytest.mark.usefixtures("graph_mode")
class GPUCompatiblePaddingFIFOQueueTests(tf.test.TestCase):
    def testEnqueueAndDequeue(self):
        with self.session(use_gpu=True) as session, tf.device(GPU):
            queue = prefetch_queue._GPUCompatiblePaddingFIFOQueue(10, [tf.float32], [()])
            elements = [tf.constant(x) for x in (10.0, 20.0, 30.0)]
            for element in elements:
                session.run(queue.enqueue((element,)))
            for element, expected in zip(elements, (11.0, 21.0, 31.0), strict=True):
                dequeued = queue.dequeue()
                self.assertEqual(dequeued.device, element.device)
                self.assertIn("GPU:0", dequeued.device)
                self.assertEqual(session.run(dequeued + 1.0), expected)

    def testGPUQueueCPUTensor(self):
        with self.session(use_gpu=True) as session:
            with tf.device(GPU):
                queue = prefetch_queue._GPUCompatiblePaddingFIFOQueue(10, [tf.float32], [()])
            with tf.device(CPU):
                elements = [tf.constant(x) for x in (10.0, 20.0, 30.0)]
                for element in elements:
                    enqueue = queue.enqueue((element,))
                    self.assertIn("GPU:0", enqueue.device)
                    session.run(enqueue)
                for expected in (11.0, 21.0, 31.0):
                    result = queue.dequeue() + 1.0
                    self.assertIn("CPU:0", result.device)
                    self.assertEqual(session.run(result), expected)

    def testMultiEnqueueAndDequeue(self):
        with self.session(use_gpu=True) as session, tf.device(GPU):
            queue = prefetch_queue._GPUCompatiblePaddingFIFOQueue(
                10, [tf.int32, tf.float32], [(), ()]
            )
            elements = [(5, 10.0), (10, 20.0), (15, 30.0)]
            for x, y in elements:
                session.run(queue.enqueue((tf.constant(x), tf.constant(y))))
            x, y = queue.dequeue()
            for expected in elements:
                self.assertEqual(session.run((x, y)), expected)

    def testIdentityHelper(self):
        with self.session(use_gpu=True) as session:
            with tf.device(CPU):
                on_cpu = tf.constant(2)
            with tf.device(GPU):
                on_gpu = tf.identity(on_cpu)
                queue = prefetch_queue._GPUCompatiblePaddingFIFOQueue(2, [tf.int32], [()])
                enqueue = queue.enqueue(on_gpu)
                dequeued = queue.dequeue()
            self.assertIn("GPU:0", on_gpu.device)
            session.run(enqueue)
            self.assertEqual(session.run(tf.identity(dequeued)), 2)

    def test_a_single_type(self):
        queue = prefetch_queue._GPUCompatiblePaddingFIFOQueue(10, tf.float32, ((),))
        self.assertEqual(queue.dtypes, [tf.float32])
        with self.session() as session:
            session.run(queue.enqueue(tf.constant(2.5)))
            self.assertEqual(session.run(queue.dequeue()), 2.5)

    def test_elements_may_differ_in_open_dimensions(self):
        queue = prefetch_queue._GPUCompatiblePaddingFIFOQueue(3, [tf.int32], [(None, 2)])
        fed = v1.placeholder(tf.int32, [None, 2])
        enqueue, dequeued = queue.enqueue(fed), queue.dequeue()
        self.assertEqual(dequeued.shape.as_list(), [None, 2])
        with self.session() as session:
            for n in (3, 0):
                session.run(enqueue, {fed: np.full([n, 2], n)})
            self.assertEqual(session.run(dequeued).shape, (3, 2))
            self.assertEqual(session.run(dequeued).shape, (0, 2))

    def test_shapes_must_match_types(self):
        with self.assertRaisesRegex(ValueError, "received 2 dtypes and 1 shapes"):
            prefetch_queue._GPUCompatiblePaddingFIFOQueue(1, [tf.int32, tf.int32], [()])
        with self.assertRaisesRegex(ValueError, "tensor 1 of queue 'q' has an unknown shape"):
            prefetch_queue._GPUCompatiblePaddingFIFOQueue(
                1, [tf.int32, tf.int32], [(), None], name="q"
            )

    def test_many_elements_at_once_are_not_supported(self):
        queue = prefetch_queue._GPUCompatiblePaddingFIFOQueue(1, [tf.int32], [()])
        with self.assertRaises(NotImplementedError):
            queue.enqueue_many([[1, 2]])
        with self.assertRaises(NotImplementedError):
            queue.dequeue_many(2)


@pytest.mark.usefixtures("graph_mode")
class FIFOQueueTest(tf.test.TestCase):
    def test_fifo_queue_data(self):
        dense = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        ragged = tf.ragged.constant([[], [1], [2, 3]])
        nested = nested_tensors.NestedTensors({"dense": dense, "ragged": ragged})
        queue = prefetch_queue._FIFOQueue(nested.get_tensors())
        result = nested.get_nested_result(queue.dequeue())
        with self.session() as session:
            session.run(queue.enqueue_op)
            self.assertEqual(session.run(queue.size()), 1)
            value = session.run(result)
        self.assertAllEqual(value["dense"], [[1, 2], [3, 4]])
        self.assertEqual(value["ragged"].to_list(), [[], [1], [2, 3]])

    def test_fifo_queue_capacity(self):
        counter = tf.Variable(0)
        queue = prefetch_queue._FIFOQueue([counter.assign_add(1) + 0], capacity=4)
        (dequeued,) = queue.dequeue()
        with self.session() as session:
            session.run(counter.initializer)
            for _ in range(4):
                session.run(queue.enqueue_op)
            self.assertEqual(session.run(queue.size()), 4)
            self.assertEqual([session.run(dequeued) for _ in range(4)], [1, 2, 3, 4])

    def test_only_lists_of_tensors(self):
        for make_queue in (prefetch_queue._FIFOQueue, prefetch_queue._MultiFIFOQueue):
            with self.assertRaisesRegex(ValueError, "got None"):
                make_queue(None)
            with self.assertRaisesRegex(TypeError, "got tuple"):
                make_queue((tf.constant(1),))
            with self.assertRaisesRegex(ValueError, "at least one tensor"):
                make_queue([])


@pytest.mark.usefixtures("graph_mode")
class MultiFIFOQueueTest(tf.test.TestCase):
    def make_tensors(self, devices):
        tensors = []
        for i, device in enumerate(devices):
            with tf.device(device):
                tensors.append(tf.constant(i))
        return tensors

    def test_tensors_of_both_devices_come_back_in_order(self):
        queue = prefetch_queue._MultiFIFOQueue(self.make_tensors([GPU, CPU, CPU, GPU]))
        dequeued = queue.dequeue()
        self.assertEqual(["GPU" in t.device for t in dequeued], [True, False, False, True])
        self.assertEqual(["GPU" in q.queue_ref.device for q in queue.queues], [False, True])
        with self.assertRaisesRegex(NotImplementedError, "use `queues`"):
            _ = queue.queue
        size = queue.size()
        self.assertIn("CPU", size.op.inputs[0].device)
        with self.session() as session:
            session.run(queue.enqueue_op)
            self.assertEqual(session.run(size), 1)
            self.assertEqual(session.run(dequeued), [0, 1, 2, 3])
            self.assertEqual(session.run([q.size() for q in queue.queues]), [0, 0])

    def test_cpu_only(self):
        queue = prefetch_queue._MultiFIFOQueue(self.make_tensors([CPU, CPU]))
        self.assertEqual(queue.queues, [queue.queue])
        with self.session() as session:
            session.run(queue.enqueue_op)
            self.assertEqual(session.run(queue.dequeue()), [0, 1])

    def test_gpu_only_has_a_cpu_queue_too(self):
        queue = prefetch_queue._MultiFIFOQueue(self.make_tensors([GPU]))
        self.assertLen(queue.queues, 2)
        with self.session() as session:
            session.run(queue.enqueue_op)
            self.assertEqual(session.run(queue.size()), 1)
            self.assertEqual(session.run(queue.dequeue()), [0])

    def test_runner_of_several_queues(self):
        queue = prefetch_queue._MultiFIFOQueue(self.make_tensors([GPU, CPU]))
        runner = prefetch_queue.MultiQueueRunner(queue.queues, [queue.enqueue_op])
        self.assertEqual(runner.name, queue.queues[0].name)
        with self.assertRaises(NotImplementedError):
            _ = runner.queue
        with self.session() as session:
            session.run(queue.enqueue_op)
            session.run(runner.close_op)
            self.assertEqual(session.run(queue.dequeue()), [0, 1])
            for q in queue.queues:
                self.assertTrue(session.run(q.is_closed()))

    def test_runner_of_one_queue(self):
        queue = prefetch_queue._MultiFIFOQueue(self.make_tensors([CPU]))
        runner = prefetch_queue.MultiQueueRunner(queue.queues, [queue.enqueue_op])
        self.assertIs(runner.queue, queue.queue)
        self.assertEqual(runner.name, queue.queue.name)
        with self.assertRaisesRegex(ValueError, "Must provide queue and enqueue_ops"):
            prefetch_queue.MultiQueueRunner([], [queue.enqueue_op])


def range_input(n):
    return v1.data.make_one_shot_iterator(tf.data.Dataset.range(n)).get_next()


@pytest.mark.usefixtures("graph_mode")
class PrefetchTest(tf.test.TestCase):
    def test_enqueue_dicts_with_queue_return(self):
        """The version of this name that ran: strings and None among nested tensors."""
        tensors = {
            "outer": {"dense": tf.constant([1, 2]), "name": "abc", "nothing": None},
            "list": [tf.constant(3.0), {"ragged": tf.ragged.constant([[1], [2, 3]])}],
        }
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(tensors)
        self.assertEqual(result["outer"]["name"], "abc")
        self.assertIsNone(result["outer"]["nothing"])
        with self.session() as session:
            session.run(queue.enqueue_op)
            dense, scalar, ragged = session.run(
                (result["outer"]["dense"], result["list"][0], result["list"][1]["ragged"])
            )
        self.assertAllEqual(dense, [1, 2])
        self.assertEqual(scalar, 3.0)
        self.assertEqual(ragged.to_list(), [[1], [2, 3]])

    def test_enqueue_dicts_with_control_flow(self):
        v = tf.Variable(0)
        with tf.control_dependencies([v.assign_add(1)]):
            result, queue = prefetch_queue.enqueue_dicts_with_queue_return({"a": tf.constant(1)})
        with self.session() as session:
            session.run(v.initializer)
            session.run(queue.enqueue_op)
            self.assertEqual(session.run(v), 1)
            # To use the element must not run what came before it a second time.
            self.assertEqual(session.run(result), {"a": 1})
            self.assertEqual(session.run(v), 1)

    def test_enqueue_with_zero_capacity(self):
        tensors = {"a": tf.constant(1), "b": tf.ragged.constant([[1], []])}
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(tensors, capacity=0)
        self.assertIs(result, tensors)
        self.assertIsNone(queue)
        with self.session() as session:
            value = session.run(result)
        self.assertEqual(value["a"], 1)
        self.assertEqual(value["b"].to_list(), [[1], []])

    def test_estimator_prefetch(self):
        def input_fn():
            return tf.data.Dataset.range(20).batch(2)

        def model_fn(features, mode):
            features, queue = prefetch_queue.enqueue_dicts_with_queue_return(features)
            hooks = [prefetch_queue.EnqueueHook(queue)]
            return graph_estimator.GraphSpec(mode, predictions=features, prediction_hooks=hooks)

        estimator = graph_estimator.GraphEstimator(model_fn, self.get_temp_dir())
        self.assertEqual(list(estimator.predict(input_fn)), list(range(20)))

    def test_negative_capacity_is_rejected(self):
        with self.assertRaisesRegex(ValueError, "'q' must not be negative: -1"):
            prefetch_queue.enqueue_dicts_with_queue_return(tf.constant(1), -1, "q")

    def test_nothing_to_enqueue_is_rejected(self):
        with self.assertRaisesRegex(ValueError, "at least one tensor"):
            prefetch_queue.enqueue_dicts_with_queue_return({"a": 1, "b": "x"})

    def test_dequeue_ignores_the_device_around_it(self):
        with tf.device(CPU):
            on_cpu = tf.constant(1)
        with tf.device(GPU):
            result, queue = prefetch_queue.enqueue_dicts_with_queue_return(on_cpu)
        self.assertIn("CPU", queue.queue.queue_ref.device)
        self.assertIn("CPU", result.device)


@pytest.mark.usefixtures("graph_mode")
class PrefetchShadowedTest(tf.test.TestCase):
    def test_enqueue_dicts_with_queue_return(self):
        """The version of this name that the other one hid: several elements under way."""
        step = tf.Variable(0, dtype=tf.int64)
        n = step.assign_add(1) + 0
        dense = {"dense": tf.fill([2], n)}
        ragged = {"ragged": tf.RaggedTensor.from_row_lengths(tf.range(n), [n - 1, 0, 1])}
        (dense, ragged), queue = prefetch_queue.enqueue_dicts_with_queue_return(
            (dense, ragged), capacity=3
        )
        with self.session() as session:
            session.run(step.initializer)
            expected = 1
            for enqueued in (3, 1, 2, 3):
                for _ in range(enqueued):
                    session.run(queue.enqueue_op)
                self.assertEqual(session.run(queue.size()), enqueued)
                for _ in range(enqueued):
                    dense_value, ragged_value = session.run((dense, ragged))
                    self.assertAllEqual(dense_value["dense"], [expected, expected])
                    values = list(range(expected))
                    self.assertEqual(
                        ragged_value["ragged"].to_list(), [values[:-1], [], values[-1:]]
                    )
                    expected += 1


def queue_threads():
    return [t for t in threading.enumerate() if "QueueRunnerThread" in t.name]


def failing_input(n_good):
    """Counts from 0 and fails at `n_good`, with an error that is not the end of the input."""

    def check(i):
        with tf.control_dependencies([tf.debugging.Assert(i < n_good, ["bad record", i])]):
            return tf.identity(i)

    dataset = tf.data.Dataset.range(1000).map(check)
    return v1.data.make_one_shot_iterator(dataset).get_next()


def train(step, queues, got, fail_at=None):
    """Runs `step` until the input ends and keeps its values in `got`."""
    hooks = [prefetch_queue.EnqueueHook(queue) for queue in queues]
    with v1.train.MonitoredSession(hooks=hooks) as session:
        while not session.should_stop():
            got.append(session.run(step))
            if len(got) == fail_at:
                raise ZeroDivisionError("A bug in the training loop.")


@pytest.mark.usefixtures("graph_mode")
class TestEnqueueHook:
    @pytest.fixture(autouse=True)
    def no_thread_is_left(self):
        assert queue_threads() == []
        yield
        assert queue_threads() == []

    @pytest.mark.parametrize("capacity", [1, 3, 100])
    def test_nothing_is_lost_at_the_end_of_the_input(self, capacity):
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(range_input(7), capacity)
        hook = prefetch_queue.EnqueueHook(queue)
        is_closed = queue.queue.is_closed()
        got = []
        with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            if capacity > 7:
                # The input has ended and the queue is closed before anything is taken from it.
                while not session.raw_session().run(is_closed):
                    pass
            while not session.should_stop():
                got.append(session.run(result))
        assert got == list(range(7))

    def test_queue_behind_a_queue(self):
        first, first_queue = prefetch_queue.enqueue_dicts_with_queue_return(range_input(9), 2, "a")
        last, last_queue = prefetch_queue.enqueue_dicts_with_queue_return(first + 1, 2, "b")
        got = []
        train(last, [first_queue, last_queue], got)
        assert got == list(range(1, 10))

    def test_threads_end_with_the_session(self):
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(range_input(1000))
        with v1.train.MonitoredSession(hooks=[prefetch_queue.EnqueueHook(queue)]) as session:
            session.run(result)
            threads = queue_threads()
            assert threads
            assert all(thread.daemon for thread in threads)

    def test_threads_end_after_an_error_in_the_loop(self):
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(range_input(1000))
        with pytest.raises(ZeroDivisionError):
            train(result, [queue], [], fail_at=1)

    def test_error_of_the_thread_reaches_the_loop(self):
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(failing_input(3), 10)
        got = []
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad record"):
            train(result, [queue], got)
        assert got == list(range(len(got)))
        assert len(got) <= 3

    def test_error_of_the_thread_reaches_a_loop_that_does_not_ask(self):
        """A loop without `should_stop` that takes OutOfRangeError for the end of the input."""
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(failing_input(3))
        session = v1.train.MonitoredSession(hooks=[prefetch_queue.EnqueueHook(queue)])

        def train():
            try:
                while True:
                    session.run(result)
            except tf.errors.OutOfRangeError:
                session.close()

        with pytest.raises(tf.errors.InvalidArgumentError, match="bad record"):
            train()
        if not session._is_closed():
            with pytest.raises(tf.errors.InvalidArgumentError, match="bad record"):
                session.close()

    def test_error_before_the_first_element(self):
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(failing_input(0))
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad record"):
            train(result, [queue], [])

    def test_goes_on_in_the_session_after_a_preemption(self):
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(range_input(1000))

        class Preemption(v1.train.SessionRunHook):
            raised = False

            def before_run(self, run_context):
                if not self.raised and got:
                    self.raised = True
                    raise tf.errors.AbortedError(None, None, "preempted")

        got = []
        hooks = [prefetch_queue.EnqueueHook(queue), Preemption()]
        with v1.train.MonitoredSession(hooks=hooks) as session:
            for _ in range(3):
                got.append(session.run(result))
        # The new session has a new input and a new queue.
        assert got == [0, 0, 1]

    def test_session_that_could_not_be_created_leaves_no_thread(self):
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(range_input(1000))

        class FailsOnce(v1.train.SessionRunHook):
            attempts = 0

            def after_create_session(self, session, coord):
                self.attempts += 1
                if self.attempts == 1:
                    raise tf.errors.AbortedError(None, None, "lost while restoring")

        fails_once = FailsOnce()
        hooks = [prefetch_queue.EnqueueHook(queue), fails_once]
        with v1.train.MonitoredSession(hooks=hooks) as session:
            assert session.run(result) == 0
        assert fails_once.attempts == 2
        # Nobody joins the thread of the first attempt; it has been told to stop.
        for thread in queue_threads():
            thread.join(30)

    def test_slow_end_is_logged(self, monkeypatch):
        """The input waits for data that does not come while the session is being closed."""
        started, released, messages = threading.Event(), threading.Event(), []

        def log(message, *args):
            messages.append(message % args)
            released.set()

        monkeypatch.setattr(prefetch_queue, "_STOP_LOG_SECS", 0.01)
        monkeypatch.setattr(prefetch_queue.logger, "warning", log)

        def wait(n):
            if n > 0:
                started.set()
                released.wait(60)
            return n

        count = tf.Variable(0)
        slow = tf.numpy_function(wait, [count.assign_add(1) - 1], tf.int32)
        slow.set_shape([])
        result, queue = prefetch_queue.enqueue_dicts_with_queue_return(slow, 5, "slow_queue")
        with v1.train.MonitoredSession(hooks=[prefetch_queue.EnqueueHook(queue)]) as session:
            session.run(result)
            started.wait(60)
        assert len(messages) == 1
        assert messages[0].startswith("Queue slow_queue was told to stop")
