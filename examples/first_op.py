"""A native op at work: what did each user do, when every user has a history of another length?

Recommendation data is ragged. The clicks of all users lie in one long array, and `splits` says
where each user's part begins. To add up or to average per user, every click needs the number of its
user. `monolith_fused_value_rowids` writes those numbers in one pass over memory; TensorFlow alone
builds them from several ops. This program does both, checks that they agree with each other and
that the sums agree with NumPy, and prints what each took.

Needs: the installed package. Run: `python examples/first_op.py`.
"""

import os
import time
from collections.abc import Callable

# Before TensorFlow is imported: no messages about GPUs, which this program does not use.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf

from monolith.native import ops

USERS = 100_000
MOST_CLICKS = 40
ROUNDS = 15


def make_histories() -> tuple[np.ndarray, np.ndarray]:
    """Returns where each user's clicks begin, [USERS + 1], and the seconds watched, [clicks]."""
    rng = np.random.default_rng(2022)
    clicks = rng.integers(0, MOST_CLICKS, USERS)
    splits = np.concatenate([[0], np.cumsum(clicks)])
    return splits, rng.integers(1, 60, splits[-1]).astype(np.float32)


def users_with_monolith(splits: tf.Tensor) -> tf.Tensor:
    return ops.monolith_fused_value_rowids(splits)


def users_with_tensorflow(splits: tf.Tensor) -> tf.Tensor:
    return tf.repeat(tf.range(tf.size(splits, tf.int64) - 1), splits[1:] - splits[:-1])


def measure(function: Callable[[tf.Tensor], tf.Tensor], splits: tf.Tensor) -> float:
    """Returns the milliseconds of the fastest of several calls."""
    function(splits)
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        function(splits)
        best = min(best, time.perf_counter() - start)
    return 1000 * best


def main() -> None:
    splits, seconds = make_histories()
    print(f"{USERS:,} users, {len(seconds):,} clicks, 0 to {MOST_CLICKS - 1} for each user.\n")

    users = ops.monolith_fused_value_rowids(splits)
    watched = tf.math.unsorted_segment_sum(seconds, users, USERS).numpy()
    print(" user  clicks  seconds watched")
    for user in range(4):
        history = seconds[splits[user] : splits[user + 1]]
        print(f"{user:>5}  {len(history):>6}  {watched[user]:>15.0f}")
        assert watched[user] == history.sum()
    assert watched.sum(dtype=np.float64) == seconds.sum(dtype=np.float64)

    # Both as graphs, as in a training step.
    with_monolith = tf.function(users_with_monolith)
    with_tensorflow = tf.function(users_with_tensorflow)
    splits_tensor = tf.constant(splits)
    np.testing.assert_array_equal(with_monolith(splits_tensor), with_tensorflow(splits_tensor))
    monolith_ms = measure(with_monolith, splits_tensor)
    tensorflow_ms = measure(with_tensorflow, splits_tensor)
    print("\nThe user of every click:")
    print(f"  TensorFlow alone   {tensorflow_ms:7.2f} ms")
    print(f"  with Monolith's op {monolith_ms:7.2f} ms")
    print(f"Same numbers, in {monolith_ms / tensorflow_ms:.0%} of the time.")


if __name__ == "__main__":
    main()
