"""A prefetch queue between an input of 5 ms per batch and a model step of 5 ms.

What it shows: milliseconds per training step when a step first waits for its batch and then
computes (no queue), and when an `EnqueueHook` fills a queue while the model computes. Without a
queue a step costs the sum of both, with one the larger of them and the queue's own cost; the bar is
6.5 ms for 5 ms each. Input and model sleep inside the graph, so the figures do not depend on how
fast the machine is, only on how busy it is; both sides run in turns in one process.

Run: `python -m benchmarks.prefetch`, or with `--input-ms 8 --model-ms 3 --capacity 2`.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from monolith.tensor import prefetch

BAR_MS = 6.5
BATCH = [256, 64]


def sleep_with(tensor: tf.Tensor, seconds: float) -> tf.Tensor:
    """Returns `tensor`, `seconds` later."""

    def sleep(value: np.ndarray) -> np.ndarray:
        time.sleep(seconds)
        return value

    result = tf.numpy_function(sleep, [tensor], tensor.dtype)
    result.set_shape(tensor.shape)
    return result


class Training:
    """A training loop in its own graph and session, with a queue or without."""

    def __init__(self, input_seconds: float, model_seconds: float, capacity: int) -> None:
        with tf.Graph().as_default():
            batch = sleep_with(tf.random.uniform(BATCH), input_seconds)
            features, queue = prefetch.enqueue_dicts_with_queue_return({"x": batch}, capacity)
            step = tf.reduce_sum(sleep_with(features["x"], model_seconds)).op
            hooks = [prefetch.EnqueueHook(queue)] if queue else []
            self._session = tf.compat.v1.train.MonitoredSession(hooks=hooks)
            self._step = step

    def milliseconds(self, steps: int) -> float:
        """Returns the mean time of a step: with a queue one step may profit from the one before."""
        start = time.perf_counter()
        for _ in range(steps):
            self._session.run(self._step)
        return 1000 * (time.perf_counter() - start) / steps

    def close(self) -> None:
        self._session.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input-ms", type=float, default=5.0, help="time to make a batch")
    parser.add_argument("--model-ms", type=float, default=5.0, help="time of a model step")
    parser.add_argument("--capacity", type=int, default=1, help="batches that the queue holds")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side")
    parser.add_argument("--steps", type=int, default=50, help="steps per turn")
    args = parser.parse_args(argv)

    times: dict[int, list[float]] = {0: [], args.capacity: []}
    for round_number in range(args.rounds + 1):
        for capacity, measured in times.items():
            # Closed after each turn: a thread that fills its queue would disturb the other side.
            training = Training(args.input_ms / 1000, args.model_ms / 1000, capacity)
            training.milliseconds(5)
            milliseconds = training.milliseconds(args.steps)
            training.close()
            if round_number > 0:  # The first one warms up.
                measured.append(milliseconds)

    print(
        f"input {args.input_ms:g} ms, model {args.model_ms:g} ms, {args.rounds} rounds of "
        f"{args.steps} steps"
    )
    print(f"{'queue':<16} {'ms per step':>11} {'lowest':>7} {'highest':>8} {'bar':>5}")
    for capacity, measured in times.items():
        name = f"capacity {capacity}" if capacity else "none"
        line = f"{name:<16} {statistics.median(measured):11.2f} {min(measured):7.2f}"
        line += f" {max(measured):8.2f}"
        if capacity and args.input_ms == args.model_ms == 5.0:
            reached = statistics.median(measured) <= BAR_MS
            line += f" {BAR_MS:5.1f}  {'PASS' if reached else 'MISS'}"
        print(line)
    ratio = statistics.median(times[0]) / statistics.median(times[args.capacity])
    print(f"{'ratio':<16} {ratio:11.2f}")


if __name__ == "__main__":
    main()
