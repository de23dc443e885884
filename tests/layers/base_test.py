"""What all layers share: weights per graph, reuse, scopes, partitioners, and clear errors."""

import copy

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from monolith import errors, layers
from monolith.layers import base


def variable_names() -> list[str]:
    return [variable.op.name for variable in tf.compat.v1.trainable_variables()]


class TestWeights:
    def test_calling_twice_shares_weights(self):
        dense = layers.Dense(2)
        x = tf.constant([[1.0, 2.0, 3.0]])
        first, second = dense(x), dense(2 * x)
        assert variable_names() == ["dense/kernel", "dense/bias"]
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            first, second = session.run([first, second])
        np.testing.assert_allclose(second, 2 * first, rtol=1e-6)

    def test_gradients_of_both_calls_reach_the_shared_weights(self):
        dense = layers.Dense(1, use_bias=False)
        loss = tf.reduce_sum(dense([[1.0]])) + tf.reduce_sum(dense([[10.0]]))
        (gradient,) = tf.gradients(loss, tf.compat.v1.trainable_variables())
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            assert session.run(gradient) == [[11.0]]

    def test_nested_layers_share_too(self):
        mlp = layers.MLP([3, 1])
        mlp(tf.ones([2, 4]))
        names = variable_names()
        mlp(tf.ones([5, 4]))
        assert variable_names() == names
        assert names[0] == "mlp/dense_0/kernel"

    def test_unnamed_layers_are_separate(self):
        layers.Dense(2)(tf.ones([1, 3]))
        layers.Dense(2)(tf.ones([1, 3]))
        assert variable_names() == [
            "dense/kernel",
            "dense/bias",
            "dense_1/kernel",
            "dense_1/bias",
        ]

    def test_two_layers_of_one_given_name_are_refused(self):
        layers.Dense(2, name="tower")(tf.ones([1, 3]))
        with pytest.raises(ValueError, match="tower/kernel already exists"):
            layers.Dense(2, name="tower")(tf.ones([1, 3]))

    def test_scope_with_reuse_shares_between_layers_of_one_name(self):
        for _ in range(2):
            with tf.compat.v1.variable_scope("tower", reuse=tf.compat.v1.AUTO_REUSE):
                layers.Dense(2, name="top")(tf.ones([1, 3]))
        assert variable_names() == ["tower/top/kernel", "tower/top/bias"]

    def test_one_layer_works_in_several_graphs(self):
        dense = layers.Dense(2)
        for _ in range(2):
            with tf.Graph().as_default():
                dense(tf.ones([1, 3]))
                assert variable_names() == ["dense/kernel", "dense/bias"]

    def test_layer_can_be_copied_after_use(self):
        mlp = layers.MLP([2])
        mlp(tf.ones([1, 3]))
        copied = copy.deepcopy(mlp)
        with tf.Graph().as_default():
            assert copied(tf.ones([1, 3])).shape == (1, 2)
        copied(tf.ones([1, 3]))
        assert "mlp_1/dense_0/kernel" in variable_names()

    def test_first_call_inside_of_a_function_is_not_repeated_by_the_second(self):
        # Branches of a conditional are graphs of their own, inside of the graph with the weights.
        dense = layers.Dense(1)
        outside = dense(tf.ones([1, 3]))
        chosen = tf.cond(
            tf.constant(True), lambda: dense(2 * tf.ones([1, 3])), lambda: tf.zeros([1, 1])
        )
        assert variable_names() == ["dense/kernel", "dense/bias"]
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            outside, chosen = session.run([outside, chosen])
        np.testing.assert_allclose(chosen, 2 * outside, rtol=1e-6)

    def test_partitioner_of_the_scope_applies(self):
        partitioner = tf.compat.v1.variable_axis_size_partitioner(64)  # bytes: 16 floats
        x = np.random.default_rng(0).normal(size=[5, 8]).astype(np.float32)
        dense = layers.Dense(4)
        with tf.compat.v1.variable_scope("model", partitioner=partitioner):
            outputs = dense(x)
        again = dense(x)
        parts = [f"model/dense/kernel/part_{i}" for i in range(2)]
        assert variable_names() == [*parts, "model/dense/bias/part_0"]
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            *kernels, bias = session.run(tf.compat.v1.trainable_variables())
            expected = x @ np.concatenate(kernels) + bias
            np.testing.assert_allclose(session.run(outputs), expected, rtol=1e-5)
            np.testing.assert_allclose(session.run(again), expected, rtol=1e-5)

    def test_partitioned_kernel_starts_with_the_spread_of_the_whole(self):
        # glorot_uniform: sqrt(6 / (512 + 512)); the fan of one of 128 parts would give 0.108.
        limit = np.sqrt(6 / 1024)
        partitioner = tf.compat.v1.fixed_size_partitioner(128)
        with tf.compat.v1.variable_scope("model", partitioner=partitioner):
            layers.Dense(512, use_bias=False)(tf.ones([1, 512]))
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            kernel = np.concatenate(session.run(tf.compat.v1.trainable_variables()))
        assert kernel.shape == (512, 512)
        assert limit * 0.99 < np.abs(kernel).max() <= limit

    def test_variable_creator_of_the_scope_applies(self):
        made = []

        def creator(next_creator, **kwargs):
            made.append(kwargs["name"])
            return next_creator(**kwargs)

        with tf.variable_creator_scope(creator):
            layers.Dense(2)(tf.ones([1, 3]))
        assert made == ["dense/kernel", "dense/bias"]


class TestErrors:
    def test_eager_call(self):
        with context.eager_mode(), pytest.raises(RuntimeError, match="called eagerly"):
            layers.Dense(2)(tf.ones([1, 3]))

    @pytest.mark.parametrize(
        "inputs",
        [
            pytest.param([1.0, 2.0], id="vector"),
            pytest.param(1.0, id="scalar"),
        ],
    )
    def test_wrong_rank(self, inputs):
        with pytest.raises(
            errors.ConfigError, match="'dense' needs a tensor with at least 2 dimensions"
        ):
            layers.Dense(2)(inputs)

    def test_unknown_rank(self):
        x = tf.compat.v1.placeholder(tf.float32)
        with pytest.raises(errors.ConfigError, match="got shape <unknown>"):
            layers.Dense(2)(x)

    def test_unknown_last_dimension(self):
        x = tf.compat.v1.placeholder(tf.float32, [4, None])
        with pytest.raises(
            errors.ConfigError, match=r"known, positive last dimension.*tf.ensure_shape"
        ):
            layers.Dense(2, name="top")(x)

    def test_ints(self):
        with pytest.raises(
            base.InputTypeError, match=r"needs floats, got int32; use `tf.cast`"
        ) as e:
            layers.Dense(2)([[1, 2]])
        assert isinstance(e.value, TypeError)

    def test_ragged_ids(self):
        with pytest.raises(
            base.InputTypeError, match="got a RaggedTensor; look ids up in an embedding"
        ):
            layers.MLP([2])(tf.ragged.constant([[1], [2, 3]], dtype=tf.int64))

    def test_other_width_in_a_later_call(self):
        dense = layers.Dense(2)
        dense(tf.ones([1, 3]))
        with pytest.raises(errors.ConfigError, match=r"of width 3 before .* got shape \(1, 4\)"):
            dense(tf.ones([1, 4]))

    def test_unknown_activation(self):
        with pytest.raises(errors.ConfigError, match="Unknown activation 'rellu'; use one of elu,"):
            layers.Dense(2, "rellu")

    def test_activation_of_the_wrong_type(self):
        with pytest.raises(errors.ConfigError, match="Unknown activation 3"):
            layers.Dense(2, 3)

    def test_unknown_initializer(self):
        with pytest.raises(errors.ConfigError, match="Unknown initializer 'glorot'; use one of"):
            layers.Dense(2, kernel_initializer="glorot")

    @pytest.mark.parametrize("units", [0, -1, 2.5, True, None, "8"])
    def test_bad_units(self, units):
        with pytest.raises(errors.ConfigError, match="positive int, got"):
            layers.Dense(units)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("relu", lambda x: np.maximum(x, 0)),
        ("relu6", lambda x: np.clip(x, 0, 6)),
        ("leaky_relu", lambda x: np.where(x > 0, x, 0.2 * x)),
        ("elu", lambda x: np.where(x > 0, x, np.expm1(x))),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("silu", lambda x: x / (1 + np.exp(-x))),
        ("swish", lambda x: x / (1 + np.exp(-x))),
        ("softplus", lambda x: np.log1p(np.exp(x))),
        ("tanh", np.tanh),
        ("linear", lambda x: x),
        ("softmax", lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)),
    ],
)
def test_activation_by_name(name, expected):
    x = np.linspace(-8.0, 8.0, 16).reshape(2, 8)
    outputs = base.get_activation(name)(tf.constant(x))
    with tf.compat.v1.Session() as session:
        np.testing.assert_allclose(session.run(outputs), expected(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "spread"),
    [
        # [fan_in, fan_out] = [300, 100]; a uniform distribution in +-a has deviation a / sqrt(3).
        ("glorot_normal", np.sqrt(2 / 400)),
        ("glorot_uniform", np.sqrt(6 / 400 / 3)),
        ("he_normal", np.sqrt(2 / 300)),
        ("he_uniform", np.sqrt(6 / 300 / 3)),
        ("ones", 0.0),
        ("zeros", 0.0),
        # Redrawn beyond 2 deviations, which leaves 0.88 of the deviation.
        ("truncated_normal", 0.88 * 0.05),
    ],
)
def test_initializer_by_name(name, spread):
    layers.Dense(100, kernel_initializer=name, use_bias=False)(tf.ones([1, 300]))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        (kernel,) = session.run(tf.compat.v1.trainable_variables())
    assert kernel.std() == pytest.approx(spread, rel=0.03)
    assert kernel.mean() == pytest.approx(1.0 if name == "ones" else 0.0, abs=0.003)
