"""Which ids a server is asked for, and when: only by a training whose tables are filled."""

import numpy as np
import pytest
import tensorflow as tf
from support import multi_tables
from tensorflow_serving.apis import predict_pb2

from monolith.embedding.tables import multi, single
from monolith.native import ops

pytestmark = pytest.mark.usefixtures("graph_mode")


class Steps:
    """The steps of a client with room for 100 ids, for a server `x`."""

    def __init__(self, session, name):
        self._session = session
        self.client = ops.monolith_parameter_sync_client(shared_name=name, capacity=100)

    def gather(self):
        """Returns whether the server has everything."""
        gathered = ops.monolith_parameter_sync_gather(self.client, ["x"])
        return bool(self._session.run(gathered.is_caught_up)[0])

    def take(self):
        """Returns the function and the inputs of the next call, which arrives; None: no call."""
        taken = self._session.run(
            ops.monolith_parameter_sync_take(self.client, ["x"], "hashtable_assign", lists=True)
        )
        if not len(taken.requests):
            return None
        self._session.run(ops.monolith_parameter_sync_settle(self.client, ["x"], [True], [False]))
        request = predict_pb2.PredictRequest.FromString(taken.requests[0])
        inputs = {name: tf.make_ndarray(tensor).tolist() for name, tensor in request.inputs.items()}
        return taken.signatures[0].decode(), inputs

    def compare(self, ids, next_place, is_known=True):
        self._session.run(
            ops.monolith_parameter_sync_compare(
                self.client, ["x"], np.array(ids, np.int64), np.int64(next_place), is_known
            )
        )


@pytest.fixture
def session():
    with tf.compat.v1.Session() as session:
        yield session


def test_questions_of_a_set_go_table_by_table(session):
    steps = Steps(session, "set")
    table = multi.MultiHashTable.from_configs(
        multi_tables.make_configs(a=1, b=1), sync_client=steps.client, name_suffix="asked"
    )
    session.run(table.initializer)
    session.run(table.apply_gradients({"a": ([1], [[1.0]])}, 0).as_op())
    steps.gather()
    name = "MonolithMultiHashTable_asked"
    assert steps.take()[0] == f"{name}/raw_assign"
    asked = []
    for answer in (([1, 2], 17), ([3], -1), ([4], -1)):
        signature, inputs = steps.take()
        assert signature == f"{name}/raw_list_ids"
        asked.append(inputs)
        steps.compare(*answer)
        assert not steps.gather()
        if answer[0] != [1]:
            signature, inputs = steps.take()
            # Of 1 there is a row.
            assert signature == f"{name}/raw_remove"
            assert inputs["id"] == answer[0][-1:]
    # A quarter of the capacity.
    places = [(0, 0), (0, 17), (1, 0)]
    assert asked == [{"table": t, "place": p, "max_ids": 25} for t, p in places]
    assert steps.take() is None
    assert steps.gather()


def test_who_does_not_know_the_question_is_asked_no_more(session):
    steps = Steps(session, "older")
    table = single.test_hash_table(1, sync_client=steps.client, name_suffix="older")
    session.run(table.as_op())
    session.run(table.apply_gradients([1], [[1.0]], global_step=0).as_op())
    steps.gather()
    assert steps.take()[0] == "hashtable_assign"
    assert steps.take() == (
        "hashtable_list_ids/MonolithHashTable_older",
        {"table": 0, "place": 0, "max_ids": 25},
    )
    assert not steps.gather()
    steps.compare([], 0, is_known=False)
    assert steps.take() is None
    assert steps.gather()


def test_tables_that_are_not_filled_yet_are_compared_with_nothing(session, tmp_path):
    steps = Steps(session, "early")
    table = single.test_hash_table(1, sync_client=steps.client, name_suffix="early")
    saved = single.test_hash_table(1, name_suffix="saved")
    basename = str(tmp_path / "table")
    session.run([table.as_op(), saved.as_op()])
    session.run(saved.assign([5], [[1.0]]).save(basename).as_op())
    # As the tables look, all rows of the server are gone.
    steps.gather()
    assert steps.take() is None
    assert steps.gather()
    session.run(table.restore(basename).as_op())
    session.run(table.apply_gradients([5], [[1.0]], global_step=0).as_op())
    # The training has begun, but the round was one of the tables before.
    assert steps.take() is None
    assert not steps.gather()
    assert steps.take()[1]["MonolithHashTable_early_id"] == [5]
    assert steps.take()[0] == "hashtable_list_ids/MonolithHashTable_early"


def test_a_restore_is_enough_and_is_sent(session, tmp_path):
    steps = Steps(session, "restored")
    table = single.test_hash_table(1, sync_client=steps.client, name_suffix="restored")
    basename = str(tmp_path / "table")
    session.run(table.as_op())
    session.run(table.assign([5, 6], [[1.0], [2.0]]).save(basename).as_op())
    steps.gather()
    for _ in range(2):  # The second is one of equal rows, which stay where they are.
        session.run(table.restore(basename).as_op())
        assert not steps.gather()
        assert sorted(steps.take()[1]["MonolithHashTable_restored_id"]) == [5, 6]
        assert steps.take()[0] == "hashtable_list_ids/MonolithHashTable_restored"
        steps.compare([5, 6], -1)
        assert steps.gather()
