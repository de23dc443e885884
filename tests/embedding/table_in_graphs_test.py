"""`ml.Table` in the graphs of TensorFlow 1, where it lives in the session.

Covers monolith/embedding/table_homes.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers
from monolith.embedding.table import Table
from monolith.embedding.tables import registry
from monolith.optimizer.learning_rate import PolynomialDecay


@pytest.mark.usefixtures("graph_mode")
class TestGraph:
    def make_step(self, **settings):
        optimizer = settings.pop("optimizer", optimizers.SGD(1.0))
        table = Table("scores", 1, optimizer, initializer="zeros", **settings)
        ids = tf.compat.v1.placeholder(tf.int64, [None, 2])
        rows = table(ids)
        assert rows.shape.as_list() == [None, 2, 1]
        (gradient,) = tf.gradients(tf.reduce_sum(rows), table)
        assert isinstance(gradient, tf.IndexedSlices)
        update = table.apply_gradients(gradient)
        assert isinstance(update, tf.Operation)
        return table, ids, rows, update

    def test_train(self):
        table, ids, rows, update = self.make_step()
        with tf.compat.v1.Session() as session:
            for _ in range(2):
                session.run(update, {ids: [[7, 8], [7, 9]]})
            found = session.run(rows, {ids: [[7, 8], [9, 1]]})
            assert found.tolist() == [[[-4.0], [-2.0]], [[-2.0], [0.0]]]
            assert len(table) == session.run(table.size()) == 3
        with tf.compat.v1.Session():
            assert len(table) == 0  # Another session, another table.

    def test_tape(self):
        table = Table("scores", 1, optimizers.SGD(1.0), initializer="zeros")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table([7, 7]))
        update = table.apply_gradients(tape.gradient(loss, table))
        with tf.compat.v1.Session() as session:
            session.run(update)
            assert session.run(table([7])).tolist() == [[-2.0]]

    def test_save_and_restore(self, tmp_path):
        table, ids, rows, update = self.make_step(
            optimizer=optimizers.Adagrad(0.5), admit_after=1, expire_after_days=7
        )
        tf.compat.v1.get_default_graph().finalize()
        with tf.compat.v1.Session() as session:
            for _ in range(2):
                session.run(update, {ids: [[7, 8]]})
            session.run(update, {ids: [[9, 10]]})  # Counted once, no rows yet.
            assert len(table) == 2
            table.save(str(tmp_path / "scores"))
            expected = session.run(rows, {ids: [[7, 8]]})
        with tf.compat.v1.Session() as session:
            table.restore(str(tmp_path / "scores"))
            np.testing.assert_array_equal(session.run(rows, {ids: [[7, 8]]}), expected)
            session.run(update, {ids: [[9, 11]]})
            assert len(table) == 3  # 9 was seen before, 11 was not.

    def test_schedule_follows_the_global_step(self):
        step = tf.compat.v1.train.get_or_create_global_step()
        schedule = PolynomialDecay(1.0, 2, end_learning_rate=0.0)
        _, ids, rows, update = self.make_step(optimizer=optimizers.SGD(schedule))
        with tf.compat.v1.Session() as session:
            session.run(step.initializer)
            session.run(update, {ids: [[7, 8]]})
            session.run(step.assign(1))
            session.run(update, {ids: [[7, 9]]})
            assert session.run(rows, {ids: [[7, 8]]}).tolist() == [[[-1.5], [-1.0]]]

    def test_assign(self):
        table = Table("scores", 1, optimizers.SGD(1.0), admit_after=2)
        assign = table.assign([7], [[5.0]])
        with tf.compat.v1.Session() as session:
            session.run(assign)
            assert session.run(table([7])).tolist() == [[5.0]]

    def test_checkpoints_know_of_it(self):
        table = Table("scores", 1, optimizers.SGD(1.0))
        (entry,) = registry.get_tables()
        assert entry.table.name == "MonolithHashTable_scores"
        with pytest.raises(
            errors.ConfigError, match="The graph has a table named 'scores' already"
        ):
            Table("scores", 1, optimizers.SGD(1.0))
        assert table.name == "scores"

    def test_calls_that_need_a_session(self):
        table = Table("scores", 1, optimizers.SGD(1.0))
        for call in (lambda: len(table), lambda: table.save("x")):
            with pytest.raises(errors.ConfigError, match=r"with session.as_default\(\)"):
                call()

    def test_calls_that_are_eager(self):
        table = Table("scores", 1, optimizers.SGD(1.0), expire_after_days=1)
        for call in (table.ids, table.evict):
            with pytest.raises(errors.ConfigError, match="works eagerly, not in a graph"):
                call()

    def test_in_another_graph(self):
        table = Table("scores", 1, optimizers.SGD(1.0))
        with (
            tf.Graph().as_default(),
            pytest.raises(errors.ConfigError, match="was made in another graph"),
        ):
            table([7])


def test_what_a_graph_has_saved_is_loaded_eagerly(tmp_path):
    path = str(tmp_path / "scores")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = Table("scores", 1, optimizers.SGD(1.0))
        session.run(table.assign([7], [[-1.0]]))
        table.save(path)
    for ids in ([7], tf.constant([7], tf.int64)):
        with pytest.raises(errors.ConfigError, match="was made in another graph"):
            table(ids)
    assert Table.load(path)([7, 9]).numpy().tolist() == [[-1.0], [0.0]]


def test_eager_table_in_a_graph():
    table = Table("scores", 1, optimizers.SGD(1.0))
    with (
        tf.Graph().as_default(),
        pytest.raises(errors.ConfigError, match="'scores' was made eagerly, and its rows are not"),
    ):
        table([7])
