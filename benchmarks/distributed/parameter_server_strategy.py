"""The same model by hand under `tf.distribute.ParameterServerStrategy`, with plain variables.

A stricter peer than `keras_fit`, which is what users of Keras have: a step written for speed,
scheduled by a `ClusterCoordinator`. Equal ids are looked up once, so that rows and gradients cross
once; only rows that a batch has used are updated; several steps are one call.

Beside workers and servers, the strategy has a coordinator, a process that ours does not have.
"""

import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from benchmarks.distributed import workload

# A variable is divided among the servers if its parts have at least as many bytes.
_MIN_SHARD_BYTES = 256 << 10


def start_server(
    cluster: dict[str, list[str]], role: str, index: int, threads: int
) -> tf.distribute.Server:
    """Starts the server of a worker or a parameter server, which then runs by itself."""
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=threads)
    # With fewer, a worker that waits for all servers would wait for ever.
    config.inter_op_parallelism_threads = max(4, len(cluster["ps"]) + 2)
    return tf.distribute.Server(
        tf.train.ClusterSpec(cluster), role, index, protocol="grpc", config=config
    )


class Coordinator:
    """A hand-written step, several in one scheduled function."""

    def __init__(
        self, batches: workload.Batches, model: workload.Model, cluster: dict[str, list[str]]
    ) -> None:
        self._strategy = make_strategy(cluster)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        with self._strategy.scope():
            self._tables = [
                Table(model.count_rows(number), model.dim) for number in range(model.features)
            ]
            columns = model.features + bool(model.history)
            widths = [columns * model.dim, *workload.HIDDEN, 1]
            self._layers = [
                (Parameter(_kernel(rows, columns)), Parameter(tf.zeros([columns])))
                for rows, columns in itertools.pairwise(widths)
            ]

        def make_input() -> tf.data.Dataset:
            numbers = [batches.get_numbers(number) for number in range(model.features)]
            if model.history:
                numbers.append(batches.draw_history(model.history))
            arrays = (*numbers, batches.labels[..., None])
            return tf.data.Dataset.from_tensor_slices(arrays).repeat().prefetch(tf.data.AUTOTUNE)

        self._batches = iter(self._coordinator.create_per_worker_dataset(make_input))
        self._steps = tf.function(self._run_steps)
        self._calls_per_sec = 0.0
        self._workers = len(cluster["worker"])
        self.run(0.0)  # Traces.

    def run(self, seconds: float) -> tuple[int, float, float]:
        """Returns steps done, the seconds they took, and a loss."""
        calls = max(self._workers, round(self._calls_per_sec * seconds))
        start = time.perf_counter()
        for _ in range(calls):
            loss = self._coordinator.schedule(self._steps, args=(self._batches,))
        self._coordinator.join()
        elapsed = time.perf_counter() - start
        self._calls_per_sec = calls / elapsed
        return calls * workload.STEPS_PER_CALL, elapsed, float(loss.fetch())

    def _run_steps(self, batches: Iterator[Any]) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(workload.STEPS_PER_CALL):
            loss = self._step(next(batches))
        return loss

    def _step(self, batch: tuple[tf.Tensor, ...]) -> tf.Tensor:
        *ids, labels = batch
        parameters = [parameter for layer in self._layers for parameter in layer]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            for table in self._tables:
                tape.watch(table.parts)
            tape.watch([parameter.value for parameter in parameters])
            of_tables, history = ids[: len(self._tables)], ids[len(self._tables) :]
            rows = [
                table.look_up(numbers)
                for table, numbers in zip(self._tables, of_tables, strict=True)
            ]
            for seen in history:
                found = self._tables[workload.MOVIE].look_up(tf.reshape(seen, [-1]))
                found = tf.reshape(found, [*seen.shape, found.shape[-1]])
                rows.append(tf.reduce_mean(found, 1))
            hidden = tf.concat(rows, 1)
            for number, (kernel, bias) in enumerate(self._layers):
                hidden = tf.nn.bias_add(tf.matmul(hidden, kernel.value), bias.value)
                if number < len(self._layers) - 1:
                    hidden = tf.nn.relu(hidden)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, hidden)
            loss = tf.reduce_mean(losses)
        variables = [part for table in self._tables for part in table.parts]
        variables += [parameter.value for parameter in parameters]
        accumulators = [part for table in self._tables for part in table.accumulators]
        accumulators += [parameter.accumulator for parameter in parameters]
        gradients = tape.gradient(loss, variables)
        for variable, accumulator, gradient in zip(variables, accumulators, gradients, strict=True):
            _apply_adagrad(variable, accumulator, gradient)
        return loss


class Parameter:
    """A dense variable and its accumulator, on the same server."""

    def __init__(self, initial: tf.Tensor) -> None:
        self.value = tf.Variable(initial)
        with tf.distribute.get_strategy().extended.colocate_vars_with(self.value):
            self.accumulator = tf.Variable(tf.fill(initial.shape, workload.INITIAL_ACCUMULATOR))


class Table:
    """A plain variable with a row for each number, divided among the servers."""

    def __init__(self, rows: int, dim: int) -> None:
        self._variable = tf.Variable(lambda: tf.random.uniform([rows, dim], -0.05, 0.05))
        accumulator = tf.Variable(lambda: tf.fill([rows, dim], workload.INITIAL_ACCUMULATOR))
        self.parts = _parts_of(self._variable)
        self.accumulators = _parts_of(accumulator)

    def look_up(self, numbers: tf.Tensor) -> tf.Tensor:
        distinct, places = tf.unique(numbers)
        return tf.gather(tf.nn.embedding_lookup(self._variable, distinct), places)


def make_strategy(cluster: dict[str, list[str]]) -> Any:
    """Connects this process, the coordinator, to workers and servers."""
    config = {
        "cluster": {**cluster, "chief": ["localhost:0"]},
        "task": {"type": "chief", "index": 0},
    }
    os.environ["TF_CONFIG"] = json.dumps(config)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        _MIN_SHARD_BYTES, max_shards=len(cluster["ps"])
    )
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


def _parts_of(variable: Any) -> Sequence[tf.Variable]:
    return list(variable.variables) if hasattr(variable, "variables") else [variable]


def _kernel(rows: int, columns: int) -> tf.Tensor:
    limit = (6.0 / (rows + columns)) ** 0.5
    return tf.random.uniform([rows, columns], -limit, limit)


def _apply_adagrad(variable: tf.Variable, accumulator: tf.Variable, gradient: Any) -> None:
    handles = {"var": variable.handle, "accum": accumulator.handle, "lr": workload.LEARNING_RATE}
    if isinstance(gradient, tf.IndexedSlices):
        tf.raw_ops.ResourceSparseApplyAdagrad(
            **handles, grad=gradient.values, indices=gradient.indices
        )
    else:
        tf.raw_ops.ResourceApplyAdagrad(**handles, grad=gradient)
