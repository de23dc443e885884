"""Dense optimizers, clipping and packing against the same work written in TensorFlow ops.

What it shows: milliseconds per training step for 50 variables of 100,000 floats each (optimizers
and clipping) and for 200 small tensors (packing), graph mode, two threads. Both sides run in one
process, in turns, so that a busy machine slows both; the table has the medians over all rounds and
the ratio of TensorFlow's time to ours beside the bar it has to reach.

Run: `make bench-dense`, or `python -m benchmarks.dense --rounds 15 --only adamom`.
"""

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from monolith.optimizer import adamom, clip, rmsprop
from monolith.tensor import packing

VARIABLES = 50
ELEMENTS = 100_000
PACKED_TENSORS = 200
PACKED_SHAPE = [128, 16]
THREADS = 2


@dataclasses.dataclass(frozen=True)
class Case:
    """Two functions that add the same step to a graph, and by how much ours has to be faster."""

    name: str
    ours: Callable[[], tf.Operation]
    theirs: Callable[[], tf.Operation]
    bar: float


def make_gradients(seed: int = 0) -> list[tf.Variable]:
    """Returns gradients as variables: a constant would be folded into the step."""
    rng = np.random.default_rng(seed)
    return [
        tf.Variable(rng.normal(size=ELEMENTS).astype(np.float32), trainable=False)
        for _ in range(VARIABLES)
    ]


def make_gradients_and_variables() -> list[tuple[tf.Tensor, tf.Variable]]:
    gradients = make_gradients()
    variables = make_gradients(seed=1)
    return [(g.read_value(), v) for g, v in zip(gradients, variables, strict=True)]


def consume(tensors: Sequence[tf.Tensor]) -> tf.Operation:
    """Returns an op that needs all tensors; a mere control dependency would be optimized away."""
    always = tf.Variable(True, trainable=False).read_value()
    return tf.raw_ops.Assert(condition=always, data=tensors)


def make_slots(var: tf.Variable, n: int) -> list[tf.Variable]:
    return [tf.Variable(tf.zeros(var.shape), trainable=False) for _ in range(n)]


def adamom_ours() -> tf.Operation:
    optimizer = adamom.AdamomOptimizer(1e-3, weight_decay=1e-4)
    return optimizer.apply_gradients(make_gradients_and_variables())


def adamom_theirs() -> tf.Operation:
    steps = []
    for grad, var in make_gradients_and_variables():
        m, v, c = make_slots(var, 3)
        h = grad + 1e-4 * var
        new_m = 0.99 * m + 0.01 * h
        new_v = 0.9999 * v + h * h
        new_c = 0.9999 * c + 1.0
        steps += [m.assign(new_m, read_value=False), v.assign(new_v, read_value=False)]
        steps += [c.assign(new_c, read_value=False)]
        steps += [var.assign_sub(1e-3 * new_m / tf.sqrt(new_v / new_c + 1e-6), read_value=False)]
    return tf.group(*steps)


def rmsprop_ours(use_v2: bool) -> tf.Operation:
    optimizer = rmsprop.RmspropOptimizer(1e-3, weight_decay=1e-4, use_v2=use_v2)
    return optimizer.apply_gradients(make_gradients_and_variables())


def rmsprop_theirs(use_v2: bool) -> tf.Operation:
    steps = []
    for grad, var in make_gradients_and_variables():
        m, v = make_slots(var, 2)
        h = grad + 1e-4 * var
        if use_v2:
            new_v = 0.999 * v + h * h
            new_m = 0.99 * m + 1e-3 * h / (tf.sqrt(new_v) + 1e-8)
        else:
            new_v = 0.999 * v + 0.001 * (h * h)
            new_m = 0.99 * m + 1e-3 * h / tf.sqrt(new_v + 1e-8)
        steps += [m.assign(new_m, read_value=False), v.assign(new_v, read_value=False)]
        steps += [var.assign_sub(new_m, read_value=False)]
    return tf.group(*steps)


def clip_step(
    function: Callable[..., tuple[list[tf.Tensor], tf.Tensor]], limit: float
) -> tf.Operation:
    clipped, norm = function([g.read_value() for g in make_gradients()], limit)
    return consume([*clipped, norm])


def make_packable(open_batch: bool) -> dict[str, tf.Tensor]:
    rng = np.random.default_rng(2)
    shape = [None, *PACKED_SHAPE[1:]] if open_batch else PACKED_SHAPE
    return {
        f"feature_{i:03d}": tf.Variable(
            rng.normal(size=PACKED_SHAPE).astype(np.float32), trainable=False, shape=shape
        ).read_value()
        for i in range(PACKED_TENSORS)
    }


def packing_ours(open_batch: bool) -> tf.Operation:
    tensors = make_packable(open_batch)
    packed = packing.pack_tensors(tensors)
    unpacked = packing.unpack_tensors({key: [None, *PACKED_SHAPE[1:]] for key in tensors}, packed)
    return consume(list(unpacked.values()))


def packing_theirs(open_batch: bool) -> tf.Operation:
    tensors = list(make_packable(open_batch).values())
    packed = tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)
    sizes = tf.stack([tf.size(t) for t in tensors])
    pieces = tf.split(packed, sizes, num=PACKED_TENSORS)
    return consume([tf.reshape(piece, [-1, *PACKED_SHAPE[1:]]) for piece in pieces])


CASES = [
    Case("adamom", adamom_ours, adamom_theirs, 2.0),
    Case("rmsprop", lambda: rmsprop_ours(False), lambda: rmsprop_theirs(False), 2.0),
    Case("rmsprop_v2", lambda: rmsprop_ours(True), lambda: rmsprop_theirs(True), 2.0),
    Case(
        "clip",
        lambda: clip_step(clip.clip_by_global_norm, 1.0),
        lambda: clip_step(tf.clip_by_global_norm, 1.0),
        1.3,
    ),
    Case(
        "clip_within_limit",
        lambda: clip_step(clip.clip_by_global_norm, 1e9),
        lambda: clip_step(tf.clip_by_global_norm, 1e9),
        1.3,
    ),
    Case("pack_unpack", lambda: packing_ours(True), lambda: packing_theirs(True), 1.0),
    # With all shapes known, TensorFlow computes the sizes while it optimizes the graph.
    Case("pack_known_shapes", lambda: packing_ours(False), lambda: packing_theirs(False), 1.0),
]


class Step:
    """One side of a case, in its own graph and session."""

    def __init__(self, build: Callable[[], tf.Operation]) -> None:
        with tf.Graph().as_default():
            operation = build()
            config = tf.compat.v1.ConfigProto(
                intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS
            )
            self._session = tf.compat.v1.Session(config=config)
            self._session.run(tf.compat.v1.global_variables_initializer())
            self._run = self._session.make_callable(operation)

    def milliseconds(self, steps: int) -> float:
        """Returns the median time of one step."""
        times = []
        for _ in range(steps):
            start = time.perf_counter()
            self._run()
            times.append(time.perf_counter() - start)
        return 1000 * statistics.median(times)

    def close(self) -> None:
        self._session.close()


def measure(case: Case, rounds: int, steps: int) -> tuple[float, float, list[float]]:
    """Returns the median milliseconds of both sides, and the ratio in each round."""
    ours, theirs = Step(case.ours), Step(case.theirs)
    for step in (ours, theirs):
        step.milliseconds(steps)  # Warms up memory, threads and caches.
    pairs = [(ours.milliseconds(steps), theirs.milliseconds(steps)) for _ in range(rounds)]
    ours.close()
    theirs.close()
    return (
        statistics.median(pair[0] for pair in pairs),
        statistics.median(pair[1] for pair in pairs),
        [pair[1] / pair[0] for pair in pairs],
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side")
    parser.add_argument("--steps", type=int, default=20, help="steps per turn")
    parser.add_argument("--only", choices=[case.name for case in CASES], action="append")
    args = parser.parse_args(argv)

    print(f"{VARIABLES} variables of {ELEMENTS} floats, {THREADS} threads, {args.rounds} rounds")
    print(
        f"{'case':<18} {'ours ms':>9} {'tf ms':>9} {'ratio':>6} {'lowest':>7} {'highest':>8} "
        f"{'bar':>5}"
    )
    for case in CASES:
        if args.only and case.name not in args.only:
            continue
        ours, theirs, ratios = measure(case, args.rounds, args.steps)
        ratio = statistics.median(ratios)
        print(
            f"{case.name:<18} {ours:9.3f} {theirs:9.3f} {ratio:6.2f} {min(ratios):7.2f} "
            f"{max(ratios):8.2f} {case.bar:5.1f}  {'PASS' if ratio >= case.bar else 'MISS'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
