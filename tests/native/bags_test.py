"""The ops on bags of ids, against NumPy: values, gradients, many threads, and what they refuse."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import monolith as ml
from monolith.native import ops

DIVISORS = {"sum": lambda n: 1, "mean": lambda n: n, "sqrtn": lambda n: n**0.5}


def make_table(num_ids=100, dim=3):
    table = ml.Table("rows", dim, ml.SGD(1.0))
    rows = np.random.default_rng(0).normal(size=(num_ids, dim)).astype(np.float32)
    table.assign(np.arange(num_ids), rows)
    return table, rows


def combine(rows, ids, splits, combiner):
    bags = []
    for begin, end in itertools.pairwise(splits):
        found = rows[ids[begin:end]].sum(0)
        bags.append(found / DIVISORS[combiner](end - begin) if end > begin else found)
    return np.stack(bags)


def look_up(table, ids, splits, combiner="sum", dim=3):
    return ops.monolith_hash_table_lookup_bags(
        table.handle, ids, splits, dim_size=dim, combiner=combiner
    )


@pytest.mark.parametrize("combiner", DIVISORS)
@pytest.mark.parametrize("num_bags", [1, 7, 3000])  # The last one is worth several threads.
def test_bags(combiner, num_bags):
    table, rows = make_table()
    rng = np.random.default_rng(num_bags)
    splits = np.concatenate([[0], np.cumsum(rng.integers(0, 20, num_bags))])
    ids = rng.integers(0, 100, splits[-1])
    bags = look_up(table, ids, splits, combiner)
    np.testing.assert_allclose(bags, combine(rows, ids, splits, combiner), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "lengths",
    [
        [0] * 9 + [1] * 5000 + [0] * 9 + [50] * 600 + [0] * 9,  # The last bags have most ids.
        [0, 40_000, 0, 1],  # More threads than bags with ids.
        [0] * 100_000 + [20_000],
    ],
    ids=["histories behind", "one long bag", "many without ids"],
)
def test_threads_share_bags_of_all_lengths(lengths):
    table, rows = make_table()
    splits = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.random.default_rng(1).integers(0, 100, splits[-1])
    bags = look_up(table, ids, splits)
    sums = np.cumsum(np.concatenate([np.zeros((1, 3)), rows[ids]]), 0)
    np.testing.assert_allclose(bags, sums[splits[1:]] - sums[splits[:-1]], rtol=1e-3, atol=1e-3)
    gradient = np.arange(3 * len(lengths), dtype=np.float32).reshape(-1, 3)
    spread = ops.monolith_hash_table_lookup_bags_gradient(ids, splits, gradient)
    np.testing.assert_array_equal(spread, np.repeat(gradient, lengths, 0))


@pytest.mark.parametrize("combiner", DIVISORS)
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
def test_gradient_by_the_handle(combiner, traced):
    table, _ = make_table()
    splits, ids = [0, 2, 2, 5], [7, 8, 7, 9, 9]

    def differentiate():
        with tf.GradientTape() as tape:
            tape.watch(table.handle)
            weights = tf.constant([[1.0], [2.0], [3.0]])
            loss = tf.reduce_sum(weights * look_up(table, ids, splits, combiner))
        return tape.gradient(loss, table.handle)

    gradient = (tf.function(differentiate) if traced else differentiate)()
    assert gradient.indices.numpy().tolist() == ids
    divisor = DIVISORS[combiner]
    expected = [1 / divisor(2)] * 2 + [3 / divisor(3)] * 3
    np.testing.assert_allclose(gradient.values, np.stack([expected] * 3, 1), rtol=1e-6)


def test_gradient_of_many_ids():
    splits = np.arange(0, 40_001, 20)
    gradient = np.random.default_rng(0).normal(size=(2000, 5)).astype(np.float32)
    rows = ops.monolith_hash_table_lookup_bags_gradient(
        np.zeros(40_000, np.int64), splits, gradient, combiner="mean"
    )
    np.testing.assert_allclose(rows, np.repeat(gradient, 20, 0) / 20, rtol=1e-6)


@pytest.mark.parametrize("combiner", DIVISORS)
@pytest.mark.parametrize("num_bags", [1, 7, 3000])
def test_update(combiner, num_bags):
    table, rows = make_table()
    rng = np.random.default_rng(num_bags)
    splits = np.concatenate([[0], np.cumsum(rng.integers(0, 20, num_bags))])
    ids = rng.integers(0, 100, splits[-1])
    gradient = rng.normal(size=(num_bags, 3)).astype(np.float32)
    ops.monolith_hash_table_optimize_bags(
        table.handle, ids, splits, gradient, [0.5], 0, 0, combiner=combiner
    )
    for bag, (begin, end) in enumerate(itertools.pairwise(splits)):
        for id_ in ids[begin:end]:
            rows[id_] -= 0.5 * gradient[bag] / DIVISORS[combiner](end - begin)
    np.testing.assert_allclose(table(np.arange(100)), rows, rtol=1e-4, atol=1e-4)


def test_a_table_takes_the_gradients_of_bags():
    """In a function, where no row for each id is made; and only if the tape gave just that."""
    table, rows = make_table()
    ids, splits = tf.constant([7, 8, 7], tf.int64), tf.constant([0, 1, 3], tf.int64)

    @tf.function
    def train(change):
        with tf.GradientTape() as tape:
            bags = table.look_up_bags(ids, splits, "mean", table)
            loss = tf.reduce_sum(tf.constant([[1.0], [2.0]]) * bags)
        table.apply_gradients(change(tape.gradient(loss, table)))

    def list_ops(change):
        return {op.type for op in train.get_concrete_function(change).graph.get_operations()}

    def keep(gradient):
        return gradient

    def double(gradient):
        return tf.IndexedSlices(2.0 * gradient.values, gradient.indices)

    def move(gradient):
        return tf.IndexedSlices(gradient.values, tf.constant([1, 2, 3], tf.int64))

    train(keep)
    rows[7] -= 1.0 + 2.0 / 2
    rows[8] -= 2.0 / 2
    assert "MonolithHashTableOptimizeBags" in list_ops(keep)
    train(double)
    rows[7] -= 2 * (1.0 + 2.0 / 2)
    rows[8] -= 2 * (2.0 / 2)
    assert "MonolithHashTableOptimizeBags" not in list_ops(double)
    train(move)
    rows[1] -= 1.0
    rows[2:4] -= 2.0 / 2
    assert "MonolithHashTableOptimizeBags" not in list_ops(move)
    np.testing.assert_allclose(table(np.arange(100)), rows, rtol=1e-6)


def test_absent_ids_and_no_ids():
    table, rows = make_table()
    bags = look_up(table, tf.constant([7, 1000], tf.int64), [0, 0, 2])
    np.testing.assert_array_equal(bags, [[0, 0, 0], rows[7]])
    assert look_up(table, tf.zeros([0], tf.int64), [0]).shape == (0, 3)
    assert len(table) == 100


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ([], "`row_splits` must have at least one element"),
        ([0, 1], "must start with 0 and end with the number of values, 2"),
        ([1, 2], "must start with 0"),
        ([0, 3, 2], "row_splits"),
        ([0, -1, 2], "row_splits"),
        ([[0, 2]], "must have 1 dimension|must be rank 1"),
    ],
)
def test_bad_splits(splits, message):
    table, _ = make_table()
    splits = tf.constant(splits, tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        look_up(table, [7, 8], splits)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.monolith_hash_table_lookup_bags_gradient([7, 8], splits, tf.zeros([1, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.monolith_hash_table_optimize_bags(
            table.handle, [7, 8], splits, tf.zeros([1, 3]), [0.1], 0, 0
        )


def test_other_bad_input():
    table, _ = make_table()
    with pytest.raises(tf.errors.InvalidArgumentError, match="`dim_size` is 4, but table"):
        look_up(table, [7], [0, 1], dim=4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one per bag"):
        ops.monolith_hash_table_lookup_bags_gradient([7], [0, 1], tf.zeros([2, 3]))
    for gradient, rates, message in [
        (tf.zeros([2, 3]), [0.1], "one per bag"),
        (tf.zeros([1, 4]), [0.1], "1 ids of dim 3 need 3 values, got 4"),
        (tf.zeros([1, 3]), [0.1, 0.1], "needs 1 learning rates"),
    ]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ops.monolith_hash_table_optimize_bags(table.handle, [7], [0, 1], gradient, rates, 0, 0)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="combiner"):
        look_up(table, [7], [0, 1], combiner="max")


def test_shapes_in_graphs():
    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64), tf.TensorSpec([5], tf.int64)],
        autograph=False,
    )
    def bags(ids, splits):
        table, _ = make_table()
        found = look_up(table, ids, splits)
        assert found.shape == [4, 3]
        return found

    assert bags.get_concrete_function() is not None
