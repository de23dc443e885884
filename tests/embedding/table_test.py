"""`ml.Table`: lookups, gradients and updates, eagerly and in functions.

Graphs are in `table_in_graphs_test.py`, files in `table_saving_test.py`.
"""

import copy
import gc
import threading
import time
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers
from monolith.embedding.table import Table
from monolith.native import ops
from monolith.optimizer.learning_rate import PolynomialDecay


def make_scores(**settings):
    settings = {"initializer": "zeros", "optimizer": optimizers.SGD(1.0), **settings}
    return Table("scores", settings.pop("dim", 1), **settings)


def slices(ids, values):
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(ids, tf.int64))


def read(table, *ids):
    return table(list(ids)).numpy()[:, 0].tolist()


class TestLookups:
    @pytest.mark.parametrize("eager", [True, False], ids=["eager", "function"])
    @pytest.mark.parametrize(
        "ids",
        [
            tf.constant([7, 8, 9], tf.int64),
            tf.constant([[7, 8], [9, 7]], tf.int64),
            tf.constant([[7, 8], [9, 7]], tf.int32),
            tf.constant(7, tf.int64),
            tf.zeros([0, 2], tf.int64),
            tf.constant(["a", "b"]),
        ],
        ids=["vector", "matrix", "int32", "scalar", "none", "strings"],
    )
    def test_rows_have_the_shape_of_the_ids(self, ids, eager):
        table = make_scores(dim=3)
        look_up = table if eager else tf.function(table)
        assert look_up(ids).shape == [*ids.shape, 3]

    def test_ragged_and_sparse(self):
        table = make_scores()
        table.assign([7, 8], [[1.0], [2.0]])
        ragged = table(tf.ragged.constant([[7], [], [8, 9]], dtype=tf.int64))
        assert ragged.to_list() == [[[1.0]], [], [[2.0], [0.0]]]
        sparse = table(tf.SparseTensor([[0, 0], [2, 0], [2, 1]], [7, 8, 9], [3, 2]))
        assert sparse.to_list() == ragged.to_list()

    def test_a_lookup_makes_no_row(self):
        table = make_scores(initializer=1.0)
        assert read(table, 7) == [0.0]
        assert len(table) == 0
        assert table

    def test_initializer_counts_from_the_first_update_on(self):
        table = Table("x", 4, optimizers.SGD(0.0))
        table.apply_gradients(slices([7], [[1.0] * 4]))
        row = table([7]).numpy()
        assert np.all(np.abs(row) < 0.05)
        assert np.any(row != 0)

    def test_shapes_are_known_in_functions(self):
        table = make_scores(dim=3)

        @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64)])
        def look_up(ids):
            rows = table(ids)
            assert rows.shape.as_list() == [None, 2, 3]
            return rows

        look_up(tf.constant([[1, 2]], tf.int64))

    def test_bad_ids(self):
        with pytest.raises(errors.ConfigError, match="Ids must be integers or strings"):
            make_scores()(tf.constant([1.0]))


class TestGradients:
    def test_snippet_of_the_front_page(self):
        table = make_scores()
        with tf.GradientTape() as tape:
            rows = table(tf.constant([[7, 8], [7, 9]], tf.int64))
            loss = tf.reduce_sum(tf.constant([[[1.0], [2.0]], [[3.0], [4.0]]]) * rows)
        gradient = tape.gradient(loss, table)
        assert isinstance(gradient, tf.IndexedSlices)
        table.apply_gradients(gradient)
        # Equal ids are summed: 1 + 3.
        assert read(table, 7, 8, 9, 10) == [-4.0, -2.0, -4.0, 0.0]

    def test_equal_ids_are_one_step_of_the_optimizer(self):
        table = make_scores(optimizer=optimizers.Adagrad(1.0))
        table.apply_gradients(slices([7, 7], [[3.0], [1.0]]))
        # n = 16; 4 / sqrt(16). Two steps would be 3 / 3 and 1 / sqrt(10).
        assert read(table, 7) == pytest.approx([-1.0])

    def test_several_lookups_of_one_tape(self):
        table = make_scores()
        with tf.GradientTape() as tape:
            rows = (
                table(tf.constant([7], tf.int64)),
                table([[8, 7]]),
                table(tf.ragged.constant([[9]])),
            )
            loss = (
                tf.reduce_sum(rows[0]) + 2 * tf.reduce_sum(rows[1]) + tf.reduce_sum(rows[2].values)
            )
        table.apply_gradients(tape.gradient(loss, table))
        assert read(table, 7, 8, 9) == [-3.0, -2.0, -1.0]

    def test_persistent_tape_beside_variables(self):
        table, weight = make_scores(), tf.Variable(2.0)
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_sum(table([7]) + 1.0) * weight
        gradients = tape.gradient(loss, {"table": table, "weight": weight})
        assert float(gradients["weight"]) == 1.0
        assert gradients["table"].values.numpy().tolist() == [[2.0]]
        assert tape.gradient(loss, table).values.numpy().tolist() == [[2.0]]

    def test_two_tables_of_one_tape(self):
        first, second = make_scores(), make_scores()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first([7])) + 3 * tf.reduce_sum(second([7]))
        for table, gradient in zip(
            (first, second), tape.gradient(loss, [first, second]), strict=True
        ):
            table.apply_gradients(gradient)
        assert (read(first, 7), read(second, 7)) == ([-1.0], [-3.0])

    def test_tape_around_a_function(self):
        table = make_scores()

        @tf.function
        def inner(ids):
            return tf.reduce_sum(table(ids))

        @tf.function
        def outer(ids):
            return 2 * inner(ids)

        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = outer(tf.constant([7, 7, 8], tf.int64))
            table.apply_gradients(tape.gradient(loss, table))
        assert read(table, 7, 8) == [-8.0, -4.0]

    def test_tape_in_a_function(self):
        table = make_scores()

        @tf.function
        def look_up(ids):
            return table(ids)

        @tf.function
        def train(ids):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(look_up(ids))
            table.apply_gradients(tape.gradient(loss, table))
            return table(ids)

        # The lookup behind the update sees it.
        assert train(tf.constant([7, 8, 7], tf.int64)).numpy().tolist() == [[-2.0], [-1.0], [-2.0]]
        assert train(tf.constant([7], tf.int64)).numpy().tolist() == [[-3.0]]

    def test_update_in_a_loop_and_in_a_branch(self):
        table = make_scores()

        @tf.function
        def train(n):
            for i in tf.range(n):
                if i % 2 == 0:
                    table.apply_gradients(slices([7], [[1.0]]))
            return table.size()

        assert int(train(tf.constant(5))) == 1
        assert read(table, 7) == [-3.0]

    def test_clipped_gradients(self):
        table = make_scores()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum([3.0, 4.0] * table([7, 8])[:, 0])
        clipped, _ = tf.clip_by_global_norm([tape.gradient(loss, table)], 1.0)
        table.apply_gradients(clipped[0])
        assert read(table, 7, 8) == pytest.approx([-0.6, -0.8])

    @pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
    def test_gradients_of_other_types(self, dtype):
        table = make_scores()
        table.apply_gradients(tf.IndexedSlices(tf.constant([[2.0]], dtype), tf.constant([7])))
        assert read(table, 7) == [-2.0]

    def test_no_gradient_is_a_sentence(self):
        table = make_scores()
        rows = table([7])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rows)
        with pytest.raises(errors.ConfigError, match="no gradient for table 'scores': the loss"):
            table.apply_gradients(tape.gradient(loss, table))

    @pytest.mark.parametrize("gradient", [tf.ones([1, 1]), [1.0], "x", (None, None)])
    def test_something_else_is_a_sentence(self, gradient):
        with pytest.raises(errors.ConfigError, match="takes what tape"):
            make_scores().apply_gradients(gradient)

    def test_gradients_of_another_width(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="dim doesn't match"):
            make_scores().apply_gradients(slices([7], [[1.0, 2.0]]))

    def test_empty_batch(self):
        table = make_scores()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(table(tf.zeros([0], tf.int64)))
        table.apply_gradients(tape.gradient(loss, table))
        assert len(table) == 0

    @pytest.mark.parametrize("looks_up", [True, False])
    def test_lookup_in_a_branch(self, looks_up):
        table = make_scores(dim=2)

        @tf.function
        def step(condition):
            with tf.GradientTape() as tape:
                loss = tf.cond(
                    condition,
                    lambda: tf.reduce_sum(table([[7, 8], [7, 9]])),
                    lambda: tf.constant(0.0),
                )
            table.apply_gradients(tape.gradient(loss, table))

        step(tf.constant(looks_up))
        assert read(table, 7, 8, 9) == ([-2.0, -1.0, -1.0] if looks_up else [0.0] * 3)
        assert len(table) == (3 if looks_up else 0)

    @pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["eager", "function"])
    def test_recomputing_is_refused(self, wrap):
        table = make_scores()
        look_up = tf.recompute_grad(lambda ids: 2.0 * table(ids))
        with tf.GradientTape(), pytest.raises(errors.ConfigError, match="inside of keras"):
            wrap(look_up)(tf.constant([7, 8], tf.int64))

    def test_optimizers_of_keras_are_refused(self):
        table = make_scores()
        with pytest.raises(errors.ConfigError, match=r"table\.apply_gradients\(tape\.gradient"):
            keras.optimizers.SGD().apply_gradients([(slices([7], [[1.0]]), table)])


class TestLearningRates:
    @pytest.mark.parametrize("traced", [False, True], ids=["eager", "function"])
    def test_a_schedule_counts_the_updates_of_the_table(self, traced):
        schedule = PolynomialDecay(1.0, 2, end_learning_rate=0.0)
        table = make_scores(optimizer=optimizers.SGD(schedule))

        def update():
            table.apply_gradients(slices([7], [[1.0]]))

        update = tf.function(update) if traced else update
        rows = []
        for _ in range(4):
            update()
            rows += read(table, 7)
        assert rows == [-1.0, -1.5, -1.5, -1.5]  # Rates 1, 0.5, 0, 0.

    def test_the_global_step_of_others_stays(self):
        step = tf.compat.v1.train.get_or_create_global_step()
        step.assign(5)
        table = make_scores(optimizer=optimizers.SGD(PolynomialDecay(1.0, 2)))
        table.apply_gradients(slices([7], [[1.0]]))
        assert tf.compat.v1.train.get_global_step() is step
        assert int(step) == 5

    def test_a_function_is_asked_at_each_update(self):
        rate = tf.Variable(1.0)
        table = make_scores(optimizer=optimizers.SGD(lambda: rate))

        @tf.function
        def update():
            table.apply_gradients(slices([7], [[1.0]]))

        update()
        rate.assign(3.0)
        update()
        assert read(table, 7) == [-4.0]

    def test_rate_that_is_not_finite_changes_nothing(self):
        table = make_scores(optimizer=optimizers.SGD(lambda: float("nan")))
        with pytest.raises(tf.errors.InvalidArgumentError, match="update was not applied"):
            table.apply_gradients(slices([7], [[1.0]]))
        assert len(table) == 0


class TestRows:
    def test_assign_in_any_shape(self):
        table = make_scores(dim=2)
        table.assign([[7], [8]], [[[1.0, 2.0]], [[3.0, 4.0]]])
        assert table([8, 7]).numpy().tolist() == [[3.0, 4.0], [1.0, 2.0]]
        table.assign("a", [5.0, 6.0])
        assert table(["a"]).numpy().tolist() == [[5.0, 6.0]]

    def test_assign_in_a_function(self):
        table = make_scores()
        tf.function(lambda: table.assign([7], [[5.0]]))()
        assert read(table, 7) == [5.0]

    def test_assign_goes_past_the_filter(self):
        table = make_scores(admit_after=3)
        table.assign([7], [[5.0]])
        assert read(table, 7) == [5.0]

    def test_rows_of_another_width(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="dim doesn't match"):
            make_scores().assign([7], [[1.0, 2.0]])

    def test_admission(self):
        table = make_scores(admit_after=2)
        sizes = []
        for _ in range(3):
            table.apply_gradients(slices([7], [[1.0]]))
            sizes.append(len(table))
        assert sizes == [0, 0, 1]
        assert read(table, 7) == [-1.0]  # What came before is lost.

    def test_admission_counts_all_of_a_batch_and_gives_rows_in_the_next(self):
        table = make_scores(admit_after=2)
        table.apply_gradients(slices([7] * 10 + [8], [[1.0]] * 11))
        assert len(table) == 0
        table.apply_gradients(slices([7, 8, 7], [[1.0]] * 3))
        assert (read(table, 7), read(table, 8)) == ([-2.0], [0.0])

    def test_expiry(self):
        table = make_scores(expire_after_days=2)
        table.assign([7, 8], [[1.0], [2.0]])
        now = time.time()
        assert table.evict() == 0
        assert table.evict(now + 86400) == 0
        assert table.evict(now + 3 * 86400) == 2
        assert len(table) == 0
        with pytest.raises(errors.ConfigError, match="do not expire"):
            make_scores().evict()

    def test_ids(self):
        table = make_scores()
        assert table.ids().tolist() == []
        ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 250_000)
        table.assign(ids, np.zeros([ids.size, 1], np.float32))
        assert sorted(table.ids()) == sorted(set(ids.tolist()))

    def test_settings_are_readable(self):
        table = make_scores(admit_after=1)
        assert (table.name, table.dim) == ("scores", 1)
        assert table.config.admit_after == 1
        assert "SGD(learning_rate=1.0)" in str(table.config)
        assert repr(table) == "Table('scores', dim=1)"


class TestLife:
    def test_tables_of_one_name_are_two(self):
        first, second = make_scores(), make_scores()
        first.assign([7], [[1.0]])
        assert (len(first), len(second)) == (1, 0)

    def test_made_in_a_function(self):
        made = []

        @tf.function
        def look_up(ids):
            if not made:
                made.append(make_scores())
            return made[0](ids)

        look_up([7])
        made[0].assign([7], [[1.0]])
        assert look_up([7]).numpy().tolist() == [[1.0]]

    @pytest.mark.parametrize("admit_after", [0, 1])
    def test_its_memory_is_freed_with_it(self, admit_after):
        table = make_scores(admit_after=admit_after)
        handle = tf.identity(table.handle)
        assert int(ops.monolith_hash_table_size(handle)) == 0
        del table
        gc.collect()
        with pytest.raises(tf.errors.NotFoundError, match="does not exist"):
            ops.monolith_hash_table_size(handle)

    def test_a_function_keeps_it(self):
        def make():
            table = make_scores()
            table.assign([7], [[1.0]])
            handle, dim = table.handle, table.dim
            function = tf.function(
                lambda ids: ops.monolith_hash_table_lookup(handle, ids, dim)
            ).get_concrete_function(tf.TensorSpec([None], tf.int64))
            return function, weakref.ref(table)

        function, table = make()
        gc.collect()
        assert table() is None
        assert function(tf.constant([7], tf.int64)).numpy().tolist() == [[1.0]]

    def test_copies_are_refused(self):
        with pytest.raises(TypeError, match="cannot be copied or pickled; use save and load"):
            copy.deepcopy(make_scores())

    def test_threads(self):
        table = make_scores()

        def work():
            for _ in range(50):
                table.apply_gradients(slices([7], [[-1.0]]))
                table([7])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert read(table, 7) == [200.0]
