"""Gradients that are carried back through a cut in the graph."""

import pytest
import tensorflow as tf

from monolith.graph import gradients


@pytest.mark.usefixtures("graph_mode")
class TestPropagateBackGradients:
    def test_order_follows_xs(self):
        a, b, unused = tf.constant(2.0), tf.constant(3.0), tf.constant(4.0)
        y, z = a * b, 5.0 * b
        pairs = [(tf.constant(1.0), y), (tf.constant(10.0), z)]
        db, da, nothing = gradients.propagate_back_gradients(pairs, [b, a, unused])
        with tf.compat.v1.Session() as session:
            # d(ab)/da = b; d(ab)/db + 10 * d(5b)/db = a + 50
            assert session.run([da, db]) == [3.0, 52.0]
        assert nothing is None

    def test_pairs_may_be_an_iterator(self):
        x = tf.constant(3.0)
        (grad,) = gradients.propagate_back_gradients(iter([(tf.constant(2.0), x * x)]), iter([x]))
        with tf.compat.v1.Session() as session:
            assert session.run(grad) == 12.0  # 2 * d(x^2)/dx

    def test_invalid_variable(self):
        x, y = tf.constant(1.0), tf.constant(2.0)
        with pytest.raises(RuntimeError) as raised:
            gradients.propagate_back_gradients([(x, y)], [x], {x})
        assert raised.value.args[0] == "Invalid variables in the input"
        assert raised.value.args[1] is y
