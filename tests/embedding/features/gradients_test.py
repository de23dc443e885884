"""A training step: gradients of variables and rows, clipping, updates, the global step.

Covers monolith/embedding/features/clipping.py.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding.features import combiners, dense_allreduce
from monolith.embedding.features import gradients as feature_gradients
from monolith.embedding.features.factory import EmbeddingLayoutFactory, FeatureFactoryFromEmbeddings
from monolith.embedding.features.gradients import GradClipType
from monolith.embedding.features.slices import create_embedding_slices
from monolith.embedding.features.slots import FeatureColumn, FeatureSlotConfig
from monolith.embedding.tables import single
from monolith.graph import collectives, rank_library
from monolith.graph.dependence import check_ops_dependence
from monolith.graph.rank_place import Place
from monolith.model import task
from monolith.native_training import feature_utils
from monolith.tensor import prefetch

pytestmark = pytest.mark.usefixtures("graph_mode")

ID = 5


class TableFactory(FeatureFactoryFromEmbeddings):
    """Rows of one real table; slices of 3 and 1 numbers of each feature of `name_to_ids`."""

    def __init__(self, name_to_ids, dims=(3, 1), learning_rate=1.0):
        self.table = single.test_hash_table(sum(dims), learning_rate=learning_rate)
        self.initialize = self.table.assign(range(10), np.ones([10, sum(dims)])).as_op()
        self._ids = name_to_ids
        self._rows = {name: self.table.lookup(ids.values) for name, ids in name_to_ids.items()}
        slices = create_embedding_slices(
            self._rows,
            name_to_ids,
            dict.fromkeys(name_to_ids, combiners.ReduceSum()),
            dict.fromkeys(name_to_ids, dims),
        )
        super().__init__(self._rows, slices)

    def apply_gradients(self, grads_and_vars, req_time=None, scale=1):
        table = self.table
        for grad, var in grads_and_vars:
            (name,) = [name for name, rows in self._rows.items() if rows is var]
            table = table.apply_gradients(self._ids[name].values, grad * scale, 0)
        return table.as_op()


class Model:
    """One feature with one id in one example: a row of ones, slices of 3 and 1 numbers."""

    def __init__(self, is_async=False, ids=((ID,),)):
        ids = tf.ragged.constant(ids, dtype=tf.int64)
        self.factory = TableFactory({"user": ids})
        self.manager = prefetch.AsyncFunctionMgr(is_async=is_async)
        self.ctx = task.NativeContext(self.factory, self.manager)
        slot = self.ctx.create_feature_slot(FeatureSlotConfig(name="user"))
        self.first, self.second = slot.add_feature_slice(3), slot.add_feature_slice(1)
        self.column = FeatureColumn(slot, "user")
        self.embedding = self.column.embedding_lookup(self.first)
        self.row = self.factory.table.lookup([ID])[0]
        self.step = tf.compat.v1.train.get_or_create_global_step()

    def minimize(self, loss, learning_rate=1.0, **kwargs):
        return feature_gradients.apply_gradients_with_var_optimizer(
            self.ctx,
            [self.column],
            tf.compat.v1.train.GradientDescentOptimizer(learning_rate),
            loss,
            **kwargs,
        )

    def run(self, train_op, *fetches, steps=1):
        """Returns the row, the global step and `fetches` after some steps."""
        results = self.run_steps(train_op, *fetches, steps=steps)
        return results[-1]

    def run_steps(self, train_op, *fetches, steps):
        results = []
        # Not closed the regular way: async pushes that are left over must not be made up for.
        session = tf.compat.v1.train.SingularMonitoredSession(hooks=self.manager.hooks)
        session.raw_session().run(self.factory.initialize)
        for _ in range(steps):
            session.run(train_op)
            results.append(session.raw_session().run((self.row, self.step, *fetches)))
        session.raw_session().close()
        return results


def make_variable(value=1.0, name="var"):
    return tf.compat.v1.get_variable(
        name, initializer=tf.constant(value, tf.float32), use_resource=True
    )


def test_historical_path_gives_the_same_module():
    assert feature_utils is feature_gradients


def test_numbers_of_clip_types():
    assert {t.name: t.value for t in GradClipType} == {
        "ClipByNorm": 1,
        "ClipByGlobalNorm": 2,
        "ClipByValue": 3,
        "ClipByDenseAndSparse": 4,
        "NoClip": 5,
    }


class TestStep:
    def test_basic(self):
        # The gradients are 1, 1, 1, 0 and 1, of norm 2, which is clipped to 1.
        model, var = Model(), make_variable()
        train_op = model.minimize(tf.reduce_sum(model.embedding) + var, clip_norm=1.0)
        row, step, value = model.run(train_op, var)
        np.testing.assert_allclose(row, [0.5, 0.5, 0.5, 1])
        assert (value, step) == (0.5, 1)

    def test_without_clipping_and_without_variables(self):
        model = Model()
        row, step = model.run(model.minimize(tf.reduce_sum(model.embedding)))
        assert row.tolist() == [0, 0, 0, 1]
        assert step == 1

    def test_async_dense_push(self):
        model, var = Model(is_async=True), make_variable()
        train_op = model.minimize(tf.reduce_sum(model.embedding) + var)
        row, step, value = model.run(train_op, var, steps=3)
        assert value == -1.0  # Two updates; the third is in the queue.
        assert row.tolist() == [-2, -2, -2, 1]
        assert step == 3

    def test_each_occurrence_of_an_id_counts(self):
        model = Model(ids=[[ID, ID], [], [ID]])
        weights = tf.constant([[1.0], [10.0], [100.0]])
        row, _ = model.run(model.minimize(tf.reduce_sum(model.embedding * weights)))
        assert row.tolist() == [1 - 102, 1 - 102, 1 - 102, 1]

    def test_two_columns_of_one_feature_count_once(self):
        model = Model()
        twin = FeatureColumn(model.column.feature_slot, "user")
        train_op = feature_gradients.apply_gradients_with_var_optimizer(
            model.ctx,
            [model.column, twin],
            tf.compat.v1.train.GradientDescentOptimizer(1.0),
            tf.reduce_sum(model.embedding),
        )
        assert model.run(train_op)[0].tolist() == [0, 0, 0, 1]

    def test_shared_embeddings_of_two_features(self):
        ids = {
            "clicked": tf.ragged.constant([[ID], []], dtype=tf.int64),
            "shown": tf.ragged.constant([[3], [ID]], dtype=tf.int64),
        }
        factory = TableFactory(ids)
        ctx = task.NativeContext(factory, prefetch.AsyncFunctionMgr(is_async=False))
        slot = ctx.create_feature_slot(FeatureSlotConfig(name="item"))
        vector = slot.add_feature_slice(3)
        columns = [FeatureColumn(slot, name) for name in ids]
        clicked, shown = [column.embedding_lookup(vector) for column in columns]
        loss = tf.reduce_sum(clicked) + 2 * tf.reduce_sum(shown)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        train_op = feature_gradients.apply_gradients_with_var_optimizer(
            ctx, columns, optimizer, loss
        )
        rows = factory.table.lookup([ID, 3])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(factory.initialize)
            session.run(train_op)
            assert session.run(rows).tolist() == [[-2, -2, -2, 1], [-1, -1, -1, 1]]

    def test_feature_that_the_loss_does_not_use(self, caplog):
        model, var = Model(), make_variable()
        row, _, value = model.run(model.minimize(var * 0.5), var)
        assert (row.tolist(), value) == ([1, 1, 1, 1], 0.5)
        assert "does not depend on the embeddings of 'user'" in caplog.text

    def test_nothing_to_train(self, caplog):
        model = Model()
        train_op = model.minimize(tf.constant(1.0))
        assert train_op.type == "NoOp"
        assert "depends on no variable and no embedding" in caplog.text

    def test_no_columns_and_no_variables(self):
        ctx = task.NativeContext()
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        train_op = feature_gradients.apply_gradients_with_var_optimizer(
            ctx, [], optimizer, tf.constant(1.0)
        )
        assert train_op.type == "NoOp"

    def test_global_step_of_the_caller(self):
        model = Model()
        counter = tf.compat.v1.get_variable(
            "counter", initializer=tf.constant(7, tf.int64), trainable=False
        )
        train_op = model.minimize(tf.reduce_sum(model.embedding), global_step=counter)
        _, step, count = model.run(train_op, counter)
        assert (step, count) == (0, 8)

    def test_global_step_is_counted_after_the_updates(self):
        model, var = Model(), make_variable()
        train_op = model.minimize(tf.reduce_sum(model.embedding) + var)
        needed, pending = set(), [train_op]
        while pending:
            op = pending.pop()
            if op not in needed:
                needed.add(op)
                pending += [t.op for t in op.inputs] + list(op.control_inputs)
        types = collections.Counter(op.type for op in needed)
        assert train_op.type == "AssignAddVariableOp"
        assert types["ResourceApplyGradientDescent"] == 1
        assert types["MonolithHashTableOptimize"] == 1

    def test_sum_over_the_batch_as_mean(self):
        model, var = Model(), make_variable()
        loss = tf.reduce_sum(model.embedding) + 4 * var
        row, _, value = model.run(model.minimize(loss, dense_reduce_mean=True, batch_size=8), var)
        assert value == 1 - 4 / 8
        assert row.tolist() == [0, 0, 0, 1]  # Only dense gradients are divided.

    @pytest.mark.parametrize("is_async", [False, True])
    def test_gathered_variable(self, is_async):
        # Its gradient is tf.IndexedSlices.
        model, var = Model(is_async), make_variable([[1.0], [2.0], [3.0]])
        loss = tf.reduce_sum(model.embedding) + tf.reduce_sum(tf.gather(var, [2, 0, 2]))
        results = model.run_steps(model.minimize(loss), var, steps=2)
        assert results[1 if is_async else 0][2].tolist() == [[0], [2], [1]]

    def test_weight_decay_comes_after_clipping(self):
        model, var = Model(), make_variable(10.0)
        loss = tf.reduce_sum(model.embedding) + var
        row, _, value = model.run(model.minimize(loss, clip_norm=1.0, dense_weight_decay=0.1), var)
        assert value == pytest.approx(10 - 0.5 - 0.1 * 10)
        np.testing.assert_allclose(row, [0.5, 0.5, 0.5, 1])

    def test_weight_decay_of_a_gathered_variable(self):
        model, var = Model(), make_variable([[1.0], [2.0]])
        loss = tf.reduce_sum(tf.gather(var, [1]))
        _, _, value = model.run(model.minimize(loss, dense_weight_decay=0.5), var)
        np.testing.assert_allclose(value, [[1 - 0.5], [2 - 1 - 1.0]])

    def test_variable_with_an_optimizer_of_its_own(self):
        model, var, other = Model(), make_variable(), make_variable(name="other")
        var.optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.25)
        _, _, value, other_value = model.run(model.minimize(var + other), var, other)
        assert (value, other_value) == (0.75, 0.0)

    def test_control_ops_come_before_dense_updates(self):
        model, var = Model(), make_variable()
        with tf.Graph().as_default():
            feature_gradients.control_ops.append(tf.no_op())  # Of another graph: no effect.
        counter = make_variable(0.0, "counter")
        with tf.control_dependencies([counter.assign(var)]):
            feature_gradients.control_ops.append(tf.no_op())
        try:
            # The counter sees the variable before its update.
            _, _, seen, value = model.run(model.minimize(var * 2.0), counter, var)
        finally:
            feature_gradients.control_ops.clear()
        assert (seen, value) == (1.0, -1.0)

    def test_dense_updates_are_listed(self):
        model, var = Model(), make_variable()
        model.minimize(var * 2.0)
        assert [op.graph for op in feature_gradients.dense_opt_ops] == [var.graph]


class TestClipping:
    """Gradients: 3 for the variable, 4 for one number of the row."""

    def step(self, **kwargs):
        model, var = Model(), make_variable(0.0)
        loss = 3 * var + 4 * tf.reduce_sum(model.embedding[:, :1])
        row, _, value = model.run(model.minimize(loss, **kwargs), var)
        return -value, 1 - row[0]

    @pytest.mark.parametrize(
        ("clip_type", "limits", "expected"),
        [
            pytest.param("ClipByGlobalNorm", {"clip_norm": 1.0}, (0.6, 0.8), id="global"),
            pytest.param("ClipByGlobalNorm", {"clip_norm": 5.0}, (3, 4), id="global_at_limit"),
            pytest.param("ClipByGlobalNorm", {}, (3, 4), id="global_without_limit"),
            pytest.param(
                "ClipByGlobalNorm",
                {"clip_norm": 1.0, "sparse_clip_norm": 2.5},
                (0.6, 2.0),
                id="global_with_limit_of_rows",
            ),
            pytest.param("ClipByDenseAndSparse", {"clip_norm": 1.0}, (1, 4), id="dense"),
            pytest.param(
                "ClipByDenseAndSparse",
                {"clip_norm": 1.0, "sparse_clip_norm": 2.0},
                (1, 2),
                id="dense_and_sparse",
            ),
            pytest.param("ClipByDenseAndSparse", {"sparse_clip_norm": 2.0}, (3, 2), id="sparse"),
            pytest.param("ClipByDenseAndSparse", {}, (3, 4), id="neither"),
            pytest.param("ClipByValue", {"clip_norm": 3.5}, (3, 3.5), id="value"),
            pytest.param("ClipByValue", {}, (3, 4), id="value_without_limit"),
            pytest.param("ClipByNorm", {"clip_norm": 2.0}, (2, 2), id="norm"),
            pytest.param("ClipByNorm", {}, (3, 4), id="norm_without_limit"),
            pytest.param("NoClip", {"clip_norm": 1.0}, (3, 4), id="none"),
        ],
    )
    def test_types(self, clip_type, limits, expected):
        result = self.step(clip_type=GradClipType[clip_type], **limits)
        np.testing.assert_allclose(result, expected, rtol=1e-6)

    def test_warmup_of_the_limit_of_rows(self):
        model, var = Model(), make_variable(0.0)
        loss = 3 * var + 4 * tf.reduce_sum(model.embedding[:, :1])
        train_op = model.minimize(loss, clip_norm=1.0, sparse_norm_warmup_steps=2)
        results = model.run_steps(train_op, var, steps=4)
        # Limits of rows: 0, 0.5, 1, 1; the norm is 5 and the gradient 4.
        np.testing.assert_allclose([r[0][0] for r in results], [1, 0.6, -0.2, -1.0], atol=1e-6)
        np.testing.assert_allclose([r[2] for r in results], [-0.6, -1.2, -1.8, -2.4], rtol=1e-6)

    @pytest.mark.parametrize(
        ("clip_type", "tags"),
        [
            ("ClipByGlobalNorm", {"global_gradient_norm": 5.0}),
            (
                "ClipByDenseAndSparse",
                {"global_gradient_norm/dense": 3.0, "global_gradient_norm/sparse": 4.0},
            ),
        ],
    )
    def test_norms_are_summarized(self, clip_type, tags):
        model, var = Model(), make_variable(0.0)
        loss = 3 * var + 4 * tf.reduce_sum(model.embedding[:, :1])
        train_op = model.minimize(loss, clip_type=GradClipType[clip_type], clip_norm=100.0)
        # Before the step: afterwards the gradients are the same, the loss is linear.
        _, _, serialized = model.run(train_op, tf.compat.v1.summary.merge_all())
        summary = tf.compat.v1.Summary.FromString(serialized)
        assert {v.tag: v.simple_value for v in summary.value} == tags

    def test_histograms(self):
        model, var = Model(), make_variable([[1.0], [2.0]])
        loss = tf.reduce_sum(model.embedding) + tf.reduce_sum(tf.gather(var, [1]))
        train_op = model.minimize(loss, grads_and_vars_summary=True)
        _, _, serialized = model.run(train_op, tf.compat.v1.summary.merge_all())
        histograms = {v.tag: v.histo for v in tf.compat.v1.Summary.FromString(serialized).value}
        row_name = model.column.get_all_embeddings_concat().name.replace(":", "_")
        assert set(histograms) == {
            "var_0",
            "var_0/gradient",
            row_name,
            f"{row_name}/gradient",
        }
        assert histograms["var_0/gradient"].num == 1
        assert histograms[f"{row_name}/gradient"].sum == 3


class TestUserEmbeddingCheck:
    """Gradients of a variable that is named after a feature which is switched off are dropped."""

    def step(self, name, feature_value, threshold=0.5):
        model, var, other = Model(), make_variable(name=name), make_variable(name="other")
        train_op = model.minimize(
            var + other + tf.reduce_sum(tf.gather(other[tf.newaxis], [0])),
            ue_gradient_check=True,
            ue_fc_names=["fc_user"],
            ue_euclidean_norm_threshold=threshold,
            features={"fc_user": feature_value},
        )
        _, _, value, other_value = model.run(train_op, var, other)
        assert other_value == -1.0
        return value

    @pytest.mark.parametrize(
        ("name", "value", "expected"),
        [
            pytest.param("tower_fc_user", [[0.3, 0.4]], 1.0, id="at_threshold"),
            pytest.param("tower_fc_user", [[0.6, 0.8]], 0.0, id="above_threshold"),
            pytest.param("uue_tower", [[0.3, 0.4]], 1.0, id="uue"),
            pytest.param("tower", [[0.3, 0.4]], 0.0, id="another_variable"),
        ],
    )
    def test_dense_feature(self, name, value, expected):
        assert self.step(name, tf.constant(value)) == expected

    def test_ragged_feature(self):
        assert self.step("fc_user", tf.ragged.constant([[0.0], [], [0.1]])) == 1.0

    def test_nan_is_dropped_too(self):
        model, var = Model(), make_variable(name="uue")
        train_op = model.minimize(
            var * np.nan,
            ue_gradient_check=True,
            ue_fc_names=["fc_user"],
            features={"fc_user": tf.zeros([2])},
        )
        assert model.run(train_op, var)[2] == 1.0

    def test_feature_that_is_not_there(self):
        model = Model()
        with pytest.raises(errors.ConfigError, match="not in `features`: fc_user"):
            model.minimize(
                tf.reduce_sum(model.embedding), ue_gradient_check=True, ue_fc_names=["fc_user"]
            )


def test_learns_what_plain_tensorflow_learns():
    """Several ids per example, two slices, a dense layer, 20 steps of SGD with clipping."""
    rng = np.random.default_rng(11)
    lengths = rng.integers(0, 4, 16)
    ids_values = rng.integers(0, 10, lengths.sum())
    labels = rng.normal(size=(16, 1)).astype(np.float32)
    kernel = rng.normal(size=(3, 1)).astype(np.float32)

    def make_loss(vectors, biases, weights):
        return tf.reduce_mean((vectors @ weights + biases - labels) ** 2)

    ids = tf.RaggedTensor.from_row_lengths(tf.constant(ids_values), tf.constant(lengths))
    factory = TableFactory({"user": ids}, learning_rate=0.1)
    ctx = task.NativeContext(factory, prefetch.AsyncFunctionMgr(is_async=False))
    slot = ctx.create_feature_slot(FeatureSlotConfig(name="user"))
    vector, bias = slot.add_feature_slice(3), slot.add_feature_slice(1)
    column = FeatureColumn(slot, "user")
    weights = make_variable(kernel)
    loss = make_loss(column.embedding_lookup(vector), column.embedding_lookup(bias), weights)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    train_op = feature_gradients.apply_gradients_with_var_optimizer(
        ctx, [column], optimizer, loss, clip_norm=3.0
    )

    # The same with an ordinary variable for all rows, whose gradient is that of each occurrence.
    with tf.Graph().as_default():
        table = make_variable(np.ones([10, 4]), "table")
        plain_weights = make_variable(kernel, "weights")
        rows = tf.gather(table, ids_values)
        combined = tf.scatter_nd(np.repeat(np.arange(16), lengths)[:, np.newaxis], rows, [16, 4])
        plain_loss = make_loss(combined[:, :3], combined[:, 3:], plain_weights)
        gradients, _ = tf.clip_by_global_norm(tf.gradients(plain_loss, [rows, plain_weights]), 3.0)
        update = tf.group(
            table.scatter_sub(tf.IndexedSlices(0.1 * gradients[0], ids_values)),
            plain_weights.assign_sub(0.1 * gradients[1]),
        )
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for _ in range(20):
                session.run(update)
            expected = session.run((table, plain_weights, plain_loss))

    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(factory.initialize)
        first_loss = session.run(loss)
        for _ in range(20):
            session.run(train_op)
        result = session.run((factory.table.lookup(range(10)), weights, loss))
    for actual, wanted in zip(result, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-6)
    assert result[2] < 0.5 * first_loss


class FusedTable:
    """Stands for the table of layouts, which lives on servers: keeps the gradients in variables."""

    def apply_gradients(self, grads_and_vars, global_step, **kwargs):
        self.kept = [
            tf.compat.v1.get_variable(f"kept_{i}", initializer=tf.zeros_like(var), trainable=False)
            for i, (_, var) in enumerate(grads_and_vars)
        ]
        grads = [grad for grad, _ in grads_and_vars]
        return tf.group([v.assign(g) for v, g in zip(self.kept, grads, strict=True)])


class TestFusedLayout:
    def step(self, minimize):
        table, var = FusedTable(), make_variable(0.0)
        layouts = {"x": tf.ones([1, 2]), "unused": tf.ones([2])}
        factory = EmbeddingLayoutFactory(table, layouts)
        manager = prefetch.AsyncFunctionMgr(is_async=False)
        ctx = task.NativeContext(async_function_mgr=manager, layout_factory=factory)
        loss = 3 * var + 4 * tf.reduce_sum(factory.get_layout("x")[:, 0])
        train_op = minimize(ctx, tf.compat.v1.train.GradientDescentOptimizer(1.0), loss)
        step = tf.compat.v1.train.get_global_step()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(train_op)
            unused, x = session.run(table.kept)
            assert session.run(step) == 1
            assert unused.tolist() == [0, 0]  # Zeros, not left out.
            return session.run(var), x.tolist()

    def test_with_var_optimizer(self):
        var, x = self.step(
            lambda ctx, optimizer, loss: feature_gradients.apply_gradients_with_var_optimizer(
                ctx, [], optimizer, loss, is_fused_layout=True
            )
        )
        assert (var, x) == (-3.0, [[4.0, 0.0]])

    @pytest.mark.parametrize(
        ("kwargs", "expected"),
        [
            pytest.param({}, (-3.0, [[4.0, 0.0]]), id="unclipped"),
            pytest.param({"clip_norm": 2.5}, (-1.5, [[2.0, 0.0]]), id="global_norm"),
            pytest.param(
                {"clip_norm": 1.0, "clip_type": GradClipType.ClipByDenseAndSparse},
                (-1.0, [[4.0, 0.0]]),
                id="dense_and_sparse",
            ),
        ],
    )
    def test_apply_gradients(self, kwargs, expected):
        def minimize(ctx, optimizer, loss):
            return feature_gradients.apply_gradients(ctx, optimizer, loss, **kwargs)

        assert self.step(minimize) == expected

    @pytest.mark.parametrize(
        "clip_type", [GradClipType.ClipByValue, GradClipType.ClipByNorm, GradClipType.NoClip]
    )
    def test_other_clip_types(self, clip_type):
        with pytest.raises(Exception, match=f"{clip_type} is not supported yet!"):
            feature_gradients.apply_gradients(None, None, tf.constant(0.0), clip_type=clip_type)


class TestAllReduce:
    """How gradients are averaged is tested with `dense_allreduce`."""

    def step(self, monkeypatch, **kwargs):
        monkeypatch.setattr(dense_allreduce, "average", lambda grads: [grad / 2 for grad in grads])
        model, var = Model(), make_variable()
        loss = tf.reduce_sum(model.embedding) + var
        row, _, value = model.run(model.minimize(loss, **kwargs), var)
        assert row.tolist() == [0, 0, 0, 1]  # Tables have their own ways.
        return value

    @pytest.mark.parametrize(
        ("is_asked_for", "horovod", "expected"),
        [(True, "True", 0.5), (True, None, 0.0), (True, "0", 0.0), (False, "True", 0.0)],
    )
    def test_only_if_asked_for_and_enabled(self, monkeypatch, is_asked_for, horovod, expected):
        if horovod is not None:
            monkeypatch.setenv("MONOLITH_WITH_HOROVOD", horovod)
        assert self.step(monkeypatch, use_allreduce=is_asked_for) == expected

    def test_comes_after_clipping_and_before_weight_decay(self, monkeypatch):
        monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "1")
        value = self.step(
            monkeypatch,
            use_allreduce=True,
            clip_type=GradClipType.ClipByDenseAndSparse,
            clip_norm=0.5,
            dense_weight_decay=0.1,
        )
        assert value == pytest.approx(1 - (0.5 / 2 + 0.1 * 1))


class TwoRanks:
    """Stands for a job whose other rank always has the same as this one.

    Attributes:
        sent: What has travelled, message by message.
    """

    place = Place(rank=0, size=2, local_size=2)

    def __init__(self):
        self.sent = []

    def reduce(self, tensor):
        self.sent.append(tensor)
        return 2 * tensor


class TestOverlap:
    """Gradients of the last layers travel while those of the first are still computed."""

    @pytest.fixture
    def ranks(self, monkeypatch):
        # Of the gradients below, two.
        monkeypatch.setattr(rank_library, "_BUCKET_BYTES", 32)
        lib = collectives._Lib()
        monkeypatch.setattr(collectives, "_lib", lib)
        lib.own._ranks = ranks = TwoRanks()
        lib.own._place = ranks.place
        collectives.average_gradients()
        return ranks

    @pytest.mark.parametrize(
        ("clip_type", "clip_norm", "does_overlap"),
        [
            (GradClipType.ClipByGlobalNorm, None, True),
            (GradClipType.NoClip, 1.0, True),
            (GradClipType.ClipByValue, 1.0, True),
            (GradClipType.ClipByNorm, 1.0, True),
            # A norm of all gradients has to wait for all of them.
            (GradClipType.ClipByGlobalNorm, 1.0, False),
            (GradClipType.ClipByDenseAndSparse, 1.0, False),
        ],
    )
    def test_unless_clipping_needs_all_gradients(self, ranks, clip_type, clip_norm, does_overlap):
        model = Model()
        activation = tf.tile(model.embedding, [1, 4])[:, :4]
        for i in range(3):
            weight = tf.compat.v1.get_variable(f"w{i}", [4], use_resource=True)
            with tf.name_scope(f"layer{i}"):
                activation = tf.tanh(activation * weight)
        loss = tf.reduce_sum(activation)
        model.minimize(loss, clip_type=clip_type, clip_norm=clip_norm)
        last, first = (message.op.name for message in ranks.sent)
        graph = tf.compat.v1.get_default_graph()
        backward = [op.name for op in graph.get_operations() if "gradients/layer0/" in op.name]
        assert [depends_on(message, backward) for message in (first, last)] == [
            True,
            not does_overlap,
        ]


def depends_on(name, others):
    try:
        check_ops_dependence(name, others)
    except RuntimeError:
        return True
    return False
