"""AsyncFunctionMgr and its hooks: the historical cases, and that every push happens once."""

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import cluster_pb2, config_pb2

from monolith.native_training import prefetch_queue

v1 = tf.compat.v1


@pytest.mark.usefixtures("graph_mode")
class AsyncManagerTest(tf.test.TestCase):
    def testBasic(self):
        total = tf.Variable(0)
        manager = prefetch_queue.AsyncFunctionMgr(is_async=True)
        enqueue = manager.add_async_function(total.assign_add, (tf.constant(1),))
        self.assertLen(manager.hooks, 1)
        with v1.train.SingularMonitoredSession(hooks=manager.hooks) as session:
            session.run(enqueue)
            self.assertEqual(session.raw_session().run(total), 0)
            session.run(enqueue)
            self.assertEqual(session.raw_session().run(total), 1)

    def testSync(self):
        total = tf.Variable(0)
        manager = prefetch_queue.AsyncFunctionMgr(is_async=False)
        add = manager.add_async_function(total.assign_add, (tf.constant(1),))
        self.assertEmpty(manager.hooks)
        with v1.train.SingularMonitoredSession(hooks=manager.hooks) as session:
            session.run(add)
            self.assertEqual(session.raw_session().run(total), 1)

    def testEmptyInput(self):
        total = tf.Variable(0)
        manager = prefetch_queue.AsyncFunctionMgr(is_async=True)
        enqueue = manager.add_async_function(lambda: total.assign_add(1))
        with v1.train.SingularMonitoredSession(hooks=manager.hooks) as session:
            session.run(enqueue)
            session.run(enqueue)
            self.assertEqual(session.raw_session().run(total), 1)


class ReadAtEnd(v1.train.SessionRunHook):
    """Reads a tensor when all hooks before this one have ended."""

    def __init__(self, tensor):
        self._tensor = tensor
        self.value = None

    def end(self, session):
        self.value = session.run(self._tensor)


def train(step, hooks, steps=1000):
    with v1.train.MonitoredSession(hooks=hooks) as session:
        for _ in range(steps):
            session.run(step)


def range_input(n):
    return v1.data.make_one_shot_iterator(tf.data.Dataset.range(n)).get_next()


@pytest.mark.usefixtures("graph_mode")
class TestAsyncFunctionMgr:
    def test_function_overrides_the_manager(self):
        total = tf.Variable(0)
        manager = prefetch_queue.AsyncFunctionMgr(is_async=False)
        manager.add_async_function(total.assign_add, (tf.constant(1),), is_async=True)
        assert len(manager.hooks) == 1
        manager = prefetch_queue.AsyncFunctionMgr(is_async=True)
        result = manager.add_async_function(
            lambda a, b: (a, b), (1,), {"b": "x"}, is_async=False, queue_name="unused"
        )
        assert result == (1, "x")
        assert manager.hooks == []

    def test_nested_arguments_and_keywords(self):
        total = tf.Variable(0.0)

        def push(pairs, *, scale, ragged, name):
            assert name == "constant"
            (a, b), _ = pairs
            return total.assign_add(scale * (a + b) + tf.reduce_sum(ragged.values))

        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(
            push,
            [[(tf.constant(1.0), tf.constant(2.0)), None]],
            {
                "scale": tf.constant(10.0),
                "ragged": tf.ragged.constant([[4.0], []]),
                "name": "constant",
            },
        )
        at_end = ReadAtEnd(total)
        train(enqueue, [*manager.hooks, at_end], steps=1)
        assert at_end.value == 34.0  # 10 * (1 + 2) + 4

    def test_rest_is_pushed_at_the_end(self, caplog):
        total = tf.Variable(0, dtype=tf.int64)
        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(total.assign_add, (range_input(5) + 1,))
        at_end = ReadAtEnd(total)
        train(enqueue, [*manager.hooks, at_end])
        assert at_end.value == 1 + 2 + 3 + 4 + 5
        assert "may be lost" not in caplog.text

    @pytest.mark.parametrize("capacity", [0, 1, 3])
    def test_nothing_is_lost_when_the_input_ends_with_parameter_servers(self, capacity):
        """The end of the input aborts what its step does elsewhere: without the gate, mostly."""
        servers = [v1.train.Server.create_local_server() for _ in range(2)]
        cluster = cluster_pb2.ClusterDef()
        job = cluster.job.add(name="ps")
        for i, server in enumerate(servers):
            job.tasks[i] = server.target.removeprefix("grpc://")
        with tf.device("/job:ps/task:1"):
            total = tf.Variable(0, dtype=tf.int64)
        batch, queue = prefetch_queue.enqueue_dicts_with_queue_return(range_input(6), capacity)
        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(total.assign_add, (batch,))
        at_end = ReadAtEnd(total)
        creator = v1.train.ChiefSessionCreator(
            master=servers[0].target, config=config_pb2.ConfigProto(cluster_def=cluster)
        )
        hooks = [*manager.hooks, at_end]
        if queue is not None:
            hooks.insert(0, prefetch_queue.EnqueueHook(queue))
        with v1.train.MonitoredSession(session_creator=creator, hooks=hooks) as session:
            while not session.should_stop():
                session.run(enqueue)
        assert at_end.value == 0 + 1 + 2 + 3 + 4 + 5

    def test_step_that_enqueues_nothing_does_not_wait(self):
        total, unrelated = tf.Variable(0), tf.constant(7)
        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(total.assign_add, (tf.constant(1),))
        with v1.train.SingularMonitoredSession(hooks=manager.hooks) as session:
            session.run(enqueue)
            for _ in range(3):
                assert session.run(unrelated) == 7
                assert session.raw_session().run(total) == 1
            session.run(enqueue)
            assert session.raw_session().run(total) == 1
            session.run(enqueue)
            assert session.raw_session().run(total) == 2

    def test_enqueue_may_be_run_by_another_hook(self):
        total, unrelated = tf.Variable(0), tf.constant(7)
        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(total.assign_add, (tf.constant(1),))

        class Enqueue(v1.train.SessionRunHook):
            def before_run(self, run_context):
                return v1.train.SessionRunArgs(enqueue)

        at_end = ReadAtEnd(total)
        train(unrelated, [Enqueue(), *manager.hooks, at_end], steps=5)
        assert at_end.value == 5

    def test_every_kind_of_fetch_is_understood(self):
        steps, total = tf.Variable(0), tf.Variable(0)
        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(total.assign_add, (tf.constant(1),))
        with tf.control_dependencies([enqueue]):
            tensor = tf.constant(1)
            unread = steps.assign_add(1)
            ragged = tf.RaggedTensor.from_row_lengths(tf.constant([1]), [1])
        fetches = [enqueue, enqueue.name, tensor, tensor.name, {"a": [unread]}, ragged, unread]
        with v1.train.SingularMonitoredSession(hooks=manager.hooks) as session:
            for expected, fetch in enumerate(fetches):
                session.run(fetch)
                assert session.raw_session().run(total) == expected

    def test_function_does_not_run_what_the_step_waits_for(self):
        steps, total = tf.Variable(0), tf.Variable(0)
        manager = prefetch_queue.AsyncFunctionMgr()
        with tf.control_dependencies([steps.assign_add(1)]):
            enqueue = manager.add_async_function(total.assign_add, (tf.constant(1),))
        at_end = ReadAtEnd([steps.read_value(), total.read_value()])
        train(enqueue, [*manager.hooks, at_end], steps=3)
        assert at_end.value == [3, 3]

    def test_arguments_that_depend_on_the_function_are_rejected(self):
        total = tf.Variable(0)
        manager = prefetch_queue.AsyncFunctionMgr()
        made_inside = []

        def push(x):
            made_inside.append(x + 1)
            # Adds the function's own op to what makes the argument.
            argument.op._add_control_input(made_inside[0].op)
            return total.assign_add(x)

        argument = tf.identity(tf.constant(1))
        with pytest.raises(RuntimeError, match=r"may cause ops .* to be run twice"):
            manager.add_async_function(push, (argument,))

    def test_function_without_ops_is_rejected(self):
        manager = prefetch_queue.AsyncFunctionMgr()
        with pytest.raises(ValueError, match="'q' must return its ops"):
            manager.add_async_function(lambda: None, queue_name="q")

    def test_function_may_use_the_input_of_the_step_it_runs_in(self):
        batch, total = range_input(10), tf.Variable(0, dtype=tf.int64)
        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(lambda x: total.assign_add(x + 10 * batch), (batch,))
        with v1.train.SingularMonitoredSession(hooks=manager.hooks) as session:
            session.run(enqueue)
            session.run(enqueue)
            # One batch per step: the argument is 0, what the step itself reads is 1.
            assert session.raw_session().run(total) == 0 + 10 * 1

    def test_function_that_uses_an_input_that_has_ended_is_explained(self, caplog):
        batch, total = range_input(3), tf.Variable(0, dtype=tf.int64)
        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(lambda x: total.assign_add(x + 10 * batch), (batch,))
        train(enqueue, manager.hooks)
        assert "last element of queue async_queue may be lost" in caplog.text


@pytest.mark.usefixtures("graph_mode")
class TestAsyncPushHook:
    """The hook on its own, with ops that somebody else has built."""

    def make_hook(self):
        total = tf.Variable(0, dtype=tf.int64)
        value, queue = prefetch_queue.enqueue_dicts_with_queue_return(range_input(4) + 1)
        return total, queue, prefetch_queue.AsyncPushHook(queue, total.assign_add(value).op)

    def test_ops_run_with_each_step_once_the_queue_is_filled(self):
        total, queue, hook = self.make_hook()
        with v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            assert hook.before_run(None) is None
            session.run(queue.enqueue_op)
            assert hook.before_run(None).fetches is hook._run_ops
            session.run(queue.enqueue_op)
            assert session.raw_session().run(total) == 1

    def test_rest_is_drained(self):
        total, queue, hook = self.make_hook()
        at_end = ReadAtEnd(total)
        train(queue.enqueue_op, [hook, at_end], steps=3)
        assert at_end.value == 1 + 2 + 3

    def test_possible_loss_is_logged(self, caplog):
        _, queue, hook = self.make_hook()
        train(queue.enqueue_op, [hook])
        assert "last element of queue prefetch_queue may be lost" in caplog.text


@pytest.mark.usefixtures("graph_mode")
class TestErrorsOfThePush:
    def test_error_is_raised_by_the_step(self):
        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(
            lambda x: tf.debugging.Assert(x < 0, ["push failed"]), (tf.constant(1),)
        )
        session = v1.train.SingularMonitoredSession(hooks=manager.hooks)
        session.run(enqueue)
        with pytest.raises(tf.errors.InvalidArgumentError, match="push failed"):
            session.run(enqueue)

    def test_goes_on_in_the_session_after_a_preemption(self):
        total = tf.Variable(0)
        manager = prefetch_queue.AsyncFunctionMgr()
        enqueue = manager.add_async_function(total.assign_add, (tf.constant(1),))

        class Preemption(v1.train.SessionRunHook):
            steps = 0

            def before_run(self, run_context):
                self.steps += 1
                if self.steps == 2:
                    raise tf.errors.AbortedError(None, None, "preempted")

        at_end = ReadAtEnd(total)
        train(enqueue, [Preemption(), *manager.hooks, at_end], steps=3)
        # The variable starts again with the new session, which two of the three steps have used.
        assert at_end.value == 2
