"""MMoE against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.layers.mmoe import MMoE


def test_outputs_and_gradients(check_against_model):
    x = tf.compat.v1.placeholder(tf.float64, [None, 3])
    outputs = MMoE(num_tasks=2, num_experts=3, expert_units=[4, 2], activation="tanh")(x)
    assert [output.shape.as_list() for output in outputs] == [[None, 2], [None, 2]]

    def model(weights, inputs):
        experts = []
        for e in range(3):
            hidden = inputs
            for i in range(2):
                scope = f"mmoe/expert_{e}/dense_{i}"
                hidden = np.tanh(hidden @ weights[f"{scope}/kernel"] + weights[f"{scope}/bias"])
            experts.append(hidden)
        tasks = []
        for t in range(2):
            scores = np.exp(inputs @ weights[f"mmoe/gate_{t}/kernel"])
            shares = scores / scores.sum(axis=1, keepdims=True)
            tasks.append(sum(shares[:, [e]] * experts[e] for e in range(3)))
        return np.stack(tasks)

    check_against_model(tf.stack(outputs), model, np.random.default_rng(1).normal(size=[5, 3]), x)


def test_all_experts_count_the_same_at_first():
    first, second = MMoE(2, 4, [3])(tf.random.normal([6, 5]))
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        first, second = session.run([first, second])
    np.testing.assert_array_equal(first, second)


def test_gates_learn_which_expert_serves_which_task():
    x = np.random.default_rng(1).normal(size=[64, 2]).astype(np.float32)
    first, second = MMoE(2, 2, [8, 1], activation="tanh")(x)
    # The tasks want opposite things of the same inputs; one shared tower could serve neither.
    target = np.tanh(x[:, :1])
    loss = tf.reduce_mean(tf.square(first - target) + tf.square(second + target))
    train = tf.compat.v1.train.AdamOptimizer(0.05).minimize(loss)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        before = session.run(loss)
        for _ in range(300):
            session.run(train)
        assert session.run(loss) < 0.05 * before


@pytest.mark.parametrize(
    "settings",
    [
        {"num_tasks": 0, "num_experts": 1, "expert_units": [1]},
        {"num_tasks": 1, "num_experts": 0, "expert_units": [1]},
        {"num_tasks": 1, "num_experts": 1, "expert_units": [0]},
    ],
)
def test_zero_sizes(settings):
    with pytest.raises(errors.ConfigError, match="must be a positive int, got 0"):
        MMoE(**settings)


def test_sequence_is_refused():
    with pytest.raises(errors.ConfigError, match="needs a tensor with 2 dimensions"):
        MMoE(1, 1, [1])(tf.ones([2, 3, 4]))
