"""Collectives of workers that meet on servers; here all of them are in one process.

`tests/integration/partial_sync_test.py` has real ones.
"""

import threading

import numpy as np
import pytest
import tensorflow as tf
from support import counting

from monolith import errors
from monolith.graph import collectives, mpi
from monolith.graph.rank_place import Place
from monolith.training.hooks import end_of_input

pytestmark = pytest.mark.usefixtures("graph_mode")


@pytest.fixture(scope="module")
def target():
    """Of a session that reaches two servers."""
    addrs = [f"127.0.0.1:{port}" for port in counting.find_ports(2)]
    servers = [tf.distribute.Server({"ps": addrs}, "ps", index) for index in range(2)]
    return servers[0].target


def run_ranks(target, size, make, meeting, times=1):
    """Returns what each rank gets for what `make` makes of its number."""
    graphs = []
    for rank in range(size):
        graph = tf.Graph()
        with (
            graph.as_default(),
            collectives.on_servers(Place(rank=rank, size=size), 2, meeting),
        ):
            graphs.append((graph, make(rank)))
    results = {}

    def run(rank):
        graph, fetches = graphs[rank]
        with tf.compat.v1.Session(target, graph=graph) as session:
            for _ in range(times):
                results[rank] = session.run(fetches)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == list(range(size))
    return [results[rank] for rank in range(size)]


@pytest.mark.parametrize("size", [2, 3])
def test_every_collective(target, size):
    def make(rank):
        assert (collectives.rank(), collectives.size(), mpi.get_mpi_rank()) == (rank, size, rank)
        return {
            "sum": collectives.allreduce(tf.fill([3], float(rank)), collectives.Sum),
            "average": collectives.allreduce(tf.constant(float(rank))),
            "grouped": collectives.grouped_allreduce(
                [tf.fill([2, 2], float(rank)), tf.constant([1.0])], collectives.Sum
            ),
            "flag": collectives.allreduce(tf.constant(rank == 1), collectives.Sum),
            "rows": collectives.allgather(tf.fill([rank, 1], rank)),
            "numbers": collectives.allgather(tf.constant([rank]), same_shape=True),
            "first": collectives.broadcast(tf.constant([rank + 7]), 1),
        }

    total = sum(range(size))
    results = run_ranks(target, size, make, f"every-{size}", times=3)
    for result in results:
        assert result["sum"].tolist() == [total] * 3
        assert result["average"] == pytest.approx(total / size)
        assert result["grouped"][0].tolist() == [[total] * 2] * 2
        assert result["grouped"][1].tolist() == [size]
        assert result["flag"]
        assert result["rows"].tolist() == [[r] for r in range(size) for _ in range(r)]
        assert result["numbers"].tolist() == list(range(size))
        assert result["first"].tolist() == [8]


def test_sums_are_the_same_in_all_ranks_to_the_last_bit(target):
    def make(rank):
        return collectives.allreduce(tf.constant(values[rank]), collectives.Sum)

    values = np.random.default_rng(1).normal(size=(3, 1000)).astype(np.float32)
    results = run_ranks(target, 3, make, "bits")
    expected = values[0] + values[1] + values[2]
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-6)


def test_meetings_do_not_hear_of_each_other(target):
    # A rank of the first has left its number, and is gone.
    place = Place(rank=1, size=2)
    with tf.Graph().as_default(), collectives.on_servers(place, 2, "left"):
        total = collectives.allreduce(tf.constant(5.0), collectives.Sum)
        options = tf.compat.v1.RunOptions(timeout_in_ms=500)
        with (
            tf.compat.v1.Session(target) as session,
            pytest.raises(tf.errors.DeadlineExceededError),
        ):
            session.run(total, options=options)
    results = run_ranks(
        target, 2, lambda rank: collectives.allreduce(tf.constant(1.0), collectives.Sum), "next"
    )
    assert results == [2.0, 2.0]


def test_steps_know_that_they_take_all_ranks():
    for rank in range(2):
        with tf.Graph().as_default(), collectives.on_servers(Place(rank=rank, size=2), 1, "step"):
            alone = tf.constant(1.0) * 2
            assert not end_of_input.has_collectives([alone])
            assert end_of_input.has_collectives([collectives.allreduce(alone) + 1])


def test_rows_are_not_exchanged():
    with (
        tf.Graph().as_default(),
        collectives.on_servers(Place(rank=0, size=2), 1, "rows"),
        pytest.raises(errors.ConfigError, match="`alltoall` is for ranks that share the"),
    ):
        collectives.alltoall(tf.zeros([2, 1]))


def test_one_worker_alone():
    with tf.Graph().as_default(), collectives.on_servers(Place(), 1, "alone"):
        assert collectives.size() == 1
        with tf.compat.v1.Session() as session:
            assert session.run(collectives.allreduce(tf.constant(2.0))) == 2.0
    assert collectives._lib.connected is None


def test_ranks_that_have_met_elsewhere_do_not_meet_on_servers():
    collectives.init()
    try:
        with (
            pytest.raises(errors.ConfigError, match=r"have met already, by `collectives\.init`"),
            collectives.on_servers(Place(), 1, "twice"),
        ):
            pass
    finally:
        collectives.shutdown()
