"""Tables that ranks share: in one process, and between two and three."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from support import ranks
from support.jobs import Job

from monolith import errors
from monolith.embedding.sharding.ranks import IS_IDLE, DistributedMultiTypeHashTableMpi
from monolith.embedding.tables import multi, multi_type, single
from monolith.graph import collectives, tensorflow_collectives
from monolith.graph.rank_place import Place
from monolith.optimizer import learning_rate
from monolith.testing import generate_test_hash_table_config


class TestOneRank:
    @pytest.fixture(autouse=True)
    def initialized(self, monkeypatch):
        monkeypatch.setattr(collectives, "_lib", collectives._Lib())
        collectives.init()
        yield
        collectives.shutdown()

    @pytest.mark.usefixtures("graph_mode")
    @pytest.mark.parametrize("kind", ["merged", "native"])
    def test_basic(self, kind):
        """Two slots, of which one has a learning rate that goes from 1 to 2."""
        rate = learning_rate.PolynomialDecay(1.0, 10, 2.0)
        configs = {
            "1": generate_test_hash_table_config(1, learning_rate=1.0),
            "2": generate_test_hash_table_config(2, learning_rate=rate),
        }

        def make(rank):
            if kind == "native":
                return multi.MultiHashTable.from_configs(configs)
            return multi_type.MultiTypeHashTable(
                configs,
                lambda name, config: single.hash_table_from_config(config, name_suffix=name),
            )

        step = tf.compat.v1.train.create_global_step()
        table = DistributedMultiTypeHashTableMpi(1, make)
        ids = {"1": tf.constant([1, 1], tf.int64), "2": tf.constant([2], tf.int64)}
        rows, bundle = table.lookup(ids, {}, table.reorder(ids))
        grads = {"1": [[0.5], [0.5]], "2": [[0.5, 1.0]]}
        updated = table.apply_gradients(grads, bundle, step)
        with tf.control_dependencies([updated.as_op()]):
            later, _ = updated.lookup(ids, {}, table.reorder(ids))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(ranks.make_tables())
            before, after = session.run([rows, later])
        assert {slot: value.tolist() for slot, value in before.items()} == {
            "1": [[0], [0]],
            "2": [[0, 0]],
        }
        # 0 - 1 * (0.5 + 0.5), and at step 0 the rate is still 1.
        assert {slot: value.tolist() for slot, value in after.items()} == {
            "1": [[-1], [-1]],
            "2": [[-0.5, -1]],
        }

    @pytest.fixture
    def table(self):
        configs = {"a": generate_test_hash_table_config(1)}
        return DistributedMultiTypeHashTableMpi(
            1, lambda rank: multi.MultiHashTable.from_configs(configs, name_suffix="ranks_test")
        )

    def test_ids_must_come_in_order(self, table):
        with pytest.raises(AssertionError, match="reorder_fids_in_data_pipeline=False was dropped"):
            table.lookup({"a": [1]}, {})

    def test_scale(self, table):
        pack = table.reorder({"a": [3]})
        _, bundle = table.lookup({"a": None}, {"mine": tf.constant(1)}, pack)
        assert "mine" in bundle
        table.apply_gradients({"a": [[2.0]]}, bundle, 0, scale=0.5)
        assert table.lookup({"a": None}, {}, pack)[0]["a"].numpy().tolist() == [[-1.0]]

    def test_what_it_does_not_do(self, table):
        for call in (table.assign, table.assign_add, lambda x: table.reinitialize("a", x)):
            with pytest.raises(NotImplementedError, match="dost not support"):
                call({})

    def test_a_shard_for_each_rank(self):
        with pytest.raises(AssertionError, match="a shard for each of 1 ranks, got 2"):
            DistributedMultiTypeHashTableMpi(2, lambda rank: None)

    def test_queues_that_are_not_there(self):
        with pytest.raises(errors.ConfigError, match="no queue `enable_pipelining`"):
            DistributedMultiTypeHashTableMpi(1, lambda rank: None, {"enable_pipelining": 1})
        with pytest.raises(errors.ConfigError, match="must be 0 or more, got -1"):
            DistributedMultiTypeHashTableMpi(
                1, lambda rank: None, {"embedding_prefetch_capacity": -1}
            )


class UnconnectedRanks(tensorflow_collectives.Ranks):
    """Builds the ops of a rank of two, which has met nobody."""

    def __init__(self):
        self.place = Place(rank=0, size=2, local_size=2)


@pytest.mark.usefixtures("graph_mode")
class TestExchanges:
    @pytest.fixture(autouse=True)
    def two_ranks(self, monkeypatch):
        lib = collectives._Lib()
        monkeypatch.setattr(collectives, "_lib", lib)
        lib.own._ranks = UnconnectedRanks()
        lib.own._place = lib.own._ranks.place

    @pytest.mark.parametrize("num_slots", [1, 20])
    @pytest.mark.parametrize(
        ("queues", "num_gathers"),
        # Sizes. What is sent in another call of the session tells its own once more, and each queue
        # of rows how full it is.
        [({}, 1), ({"enable_async_optimize": 1}, 2), ({"embedding_prefetch_capacity": 1}, 2)],
        ids=["no_queue", "late_gradients", "early_rows"],
    )
    def test_one_for_all_slots_in_each_direction(self, num_slots, queues, num_gathers):
        configs = {f"slot{i}": generate_test_hash_table_config(1 + i % 3) for i in range(num_slots)}
        table = DistributedMultiTypeHashTableMpi(
            2, lambda rank: multi.MultiHashTable.from_configs(configs), queues
        )
        ids = {slot: tf.constant([1, 2], tf.int64) for slot in configs}
        bundle = {IS_IDLE: tf.constant(False)}
        rows, bundle = table.lookup(ids, bundle, table.reorder(ids))
        step = tf.compat.v1.train.create_global_step()
        table.apply_gradients(rows, bundle, step).as_op()
        # Ids, rows and gradients.
        assert count_collectives() == {
            "CollectiveAllToAllV2": 3,
            "CollectiveGatherV2": num_gathers,
        }


def count_collectives():
    """Returns how many collectives of each kind the default graph and its functions have."""
    graph = tf.compat.v1.get_default_graph().as_graph_def()
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    return collections.Counter(node.op for node in nodes if node.op.startswith("Collective"))


NUM_STEPS = 20


def compute(optimizer):
    """What one process makes of whole batches."""
    rows = {slot: np.zeros([40, dim]) for slot, dim in ranks.SLOTS.items()}
    squares = {slot: np.full([40, dim], 0.1) for slot, dim in ranks.SLOTS.items()}
    for step in range(NUM_STEPS):
        for slot, (ids, grads) in ranks.make_rank_batch(step, 0, 1).items():
            total = np.zeros_like(rows[slot])
            np.add.at(total, ids, grads)
            if optimizer == "adagrad":
                squares[slot] += total**2
                rows[slot] -= 0.1 * total / np.sqrt(squares[slot])
            else:
                rows[slot] -= 0.1 * total
    return rows


@pytest.mark.distributed
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_train_as_one_process_does(tmp_path, size, optimizer):
    with Job(tmp_path / "logs") as job:
        ranks.start(job, size, "train_tables", str(tmp_path), optimizer, NUM_STEPS)
        job.expect_success()
    expected = compute(optimizer)
    for rank, rows in enumerate(ranks.read_all(tmp_path, "rows", size)):
        for slot, dim in ranks.SLOTS.items():
            if rank == 0 and size > 1:
                assert rows[slot] == []
            else:
                assert np.shape(rows[slot]) == (40, dim)
                np.testing.assert_allclose(rows[slot], expected[slot], atol=1e-5)
