"""MonolithClipByGlobalNorm keeps its output memory between steps: nobody may notice."""

import concurrent.futures

import numpy as np
import pytest
import tensorflow as tf

from monolith.native import ops

LARGE = 100_000  # Elements; small outputs are not kept.


def make_session():
    """Returns a function that scales each element of two large fed tensors by 1 / norm."""
    with tf.Graph().as_default():
        fed = [tf.compat.v1.placeholder(tf.float32, [None]) for _ in range(2)]
        norm = tf.compat.v1.placeholder(tf.float32, [])
        clipped = ops.monolith_clip_by_global_norm(fed, norm, 1.0)
        session = tf.compat.v1.Session()
        return session, session.make_callable(clipped, [*fed, norm])


def test_results_of_earlier_steps_stay_as_they_were():
    session, clip = make_session()
    with session:
        results = [clip(np.full(LARGE, i), np.full(LARGE, -i), 2.0) for i in range(1, 6)]
        for i, (first, second) in enumerate(results, start=1):
            np.testing.assert_array_equal(first, np.full(LARGE, i / 2))
            np.testing.assert_array_equal(second, np.full(LARGE, -i / 2))


def test_eager_results_stay_as_they_were():
    results = [
        ops.monolith_clip_by_global_norm([tf.fill([LARGE], float(i))], 4.0, 1.0)[0]
        for i in range(5)
    ]
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full(LARGE, i / 4))


def test_memory_is_used_again_once_it_is_free():
    value = tf.ones([LARGE])
    others = []

    def clip_and_forget():
        (result,) = ops.monolith_clip_by_global_norm([value], 2.0, 1.0)
        address = np.asarray(memoryview(result)).__array_interface__["data"][0]
        del result
        others.append(tf.fill([LARGE], 1.0))  # Would get the block if it had been freed.
        return address

    assert len({clip_and_forget() for _ in range(5)}) == 1


def test_sizes_may_change_from_step_to_step():
    session, clip = make_session()
    with session:
        for size in (LARGE, 2 * LARGE, 10, 0, LARGE):
            first, second = clip(np.ones(size), np.ones(size + 1), 2.0)
            np.testing.assert_array_equal(first, np.full(size, 0.5))
            np.testing.assert_array_equal(second, np.full(size + 1, 0.5))


def test_concurrent_steps_do_not_share_memory():
    session, clip = make_session()

    def step(i):
        first, second = clip(np.full(LARGE, i), np.full(LARGE, 10 * i), 2.0)
        return bool((first == i / 2).all() and (second == 5 * i).all())

    with session, concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(step, range(60)))


@pytest.mark.parametrize(
    ("norm", "limit", "message"),
    [
        pytest.param([5.0], 1.0, r"`global_norm` must be a scalar, got shape \[1\]", id="norm"),
        pytest.param(5.0, [1.0], r"`clip_norm` must be a scalar, got shape \[1\]", id="limit"),
        pytest.param(5.0, -1.0, "`clip_norm` must be zero or positive, got -1", id="negative"),
    ],
)
def test_bad_limits(norm, limit, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.monolith_clip_by_global_norm([tf.ones([2])], norm, limit)
