"""A session that remembers its fetches gives the same as one that does not."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from monolith.training.hooks import cached_fetches
from monolith.training.hooks.cached_fetches import CachedFetchesHook

v1 = tf.compat.v1
Pair = collections.namedtuple("Pair", ["first", "second"])


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


class Fetching(v1.train.SessionRunHook):
    """Asks for something in every step and keeps what it gets."""

    def __init__(self, fetches, feed_dict=None, options=None):
        self._args = v1.train.SessionRunArgs(fetches, feed_dict, options)
        self.values = []

    def before_run(self, run_context):
        return self._args

    def after_run(self, run_context, run_values):
        self.values.append(run_values)


def run_twice(fetches, *hooks):
    """Returns the results of two steps, the second with what the first has left behind."""
    with v1.train.MonitoredSession(hooks=[CachedFetchesHook(), *hooks]) as session:
        return [session.run(fetches) for _ in range(2)]


def make_counter():
    counter = v1.get_variable("counter", [], initializer=v1.zeros_initializer())
    return tf.convert_to_tensor(v1.assign_add(counter, 1.0))


def test_every_step_runs():
    assert run_twice(make_counter()) == [1, 2]


def test_results_have_the_structure_of_the_fetches():
    a, b = tf.constant(1), tf.constant([2.0, 3.0])
    nested = {"list": [a, b, a], "tuple": (a, [b]), "dict": {"a": a}, "op": a.op, "empty": []}
    hook = Fetching([b, a])
    for results in run_twice(nested, hook):
        np.testing.assert_equal(
            results,
            {
                "list": [1, np.float32([2, 3]), 1],
                "tuple": (1, [np.float32([2, 3])]),
                "dict": {"a": 1},
                "op": None,
                "empty": [],
            },
        )
    for values in hook.values:
        np.testing.assert_equal(values.results, [np.float32([2, 3]), 1])


@pytest.mark.parametrize("kind", ["namedtuple", "name", "sparse", "variable"])
def test_other_fetches_work_as_ever(kind):
    variable = v1.get_variable("v", [], initializer=v1.ones_initializer())
    one = tf.constant(1.0, name="one")
    fetches, expected = {
        "namedtuple": (Pair(one, one), Pair(1, 1)),
        "name": ("one:0", 1),
        "sparse": (tf.sparse.from_dense([1]), None),
        "variable": (variable, 1),
    }[kind]
    for result in run_twice(fetches):
        if kind == "sparse":
            assert result.values.tolist() == [1]
        else:
            assert result == expected
            assert type(result) is not tuple


def test_feeds():
    x = v1.placeholder(tf.float32, [])
    hook = Fetching(None, {x: 3.0})
    assert run_twice(2 * x, hook) == [6, 6]


def test_traces_are_not_lost():
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    hook = Fetching(None, options=options)
    run_twice(make_counter(), hook)
    assert all(values.run_metadata.step_stats.dev_stats for values in hook.values)


def test_fetches_that_change():
    tensors = [tf.constant(i) for i in range(3)]
    with v1.train.MonitoredSession(hooks=[CachedFetchesHook()]) as session:
        for i in (0, 1, 2, 1, 0):
            assert session.run(tensors[i]) == i


def test_more_fetches_than_are_kept(monkeypatch):
    monkeypatch.setattr(cached_fetches, "_MAX_CACHED", 2)
    tensors = [tf.constant(i) for i in range(5)]
    with v1.train.MonitoredSession(hooks=[CachedFetchesHook()]) as session:
        for _ in range(2):
            assert [session.run(tensor) for tensor in tensors] == list(range(5))


def test_errors_name_the_op():
    logarithm = tf.math.log(2 - make_counter())  # Of 1 in the first step, of 0 in the second.
    check = tf.debugging.check_numerics(logarithm, "infinite", name="check")
    with v1.train.MonitoredSession(hooks=[CachedFetchesHook()]) as session:
        session.run(check)
        with pytest.raises(tf.errors.InvalidArgumentError, match="infinite") as failure:
            session.run(check)
    assert failure.value.op.name == "check"


def test_the_end_of_the_input_is_no_error():
    iterator = v1.data.make_one_shot_iterator(tf.data.Dataset.range(3))
    batch, steps = iterator.get_next(), 0
    with v1.train.MonitoredSession(hooks=[CachedFetchesHook()]) as session:
        while not session.should_stop():
            session.run(batch)
            steps += 1
    assert steps == 3


def test_run_is_asked_once():
    asked = []

    class Counting(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            run = session.run
            session.run = lambda *args, **kwargs: (asked.append(args), run(*args, **kwargs))[1]

    counter = make_counter()
    with v1.train.MonitoredSession(hooks=[Counting(), CachedFetchesHook()]) as session:
        before = len(asked)
        assert [session.run(counter) for _ in range(3)] == [1, 2, 3]
        assert len(asked) == before
