"""Ops that would run others, too."""

import pytest
import tensorflow as tf

from monolith.graph import dependence


class TestDependence:
    @pytest.fixture
    def chain(self):
        """Three ops, each after the one before: by input, then by control dependency."""
        with tf.Graph().as_default():
            first = tf.constant(1.0, name="first")
            second = tf.identity(first, name="second")
            with tf.control_dependencies([second]):
                tf.constant(1.0, name="third")
            tf.constant(1.0, name="apart")
            yield

    @pytest.mark.usefixtures("chain")
    def test_dependence_is_transitive(self):
        with pytest.raises(RuntimeError, match=r"the ops \[apart,third\] depend on ops \[first\]"):
            dependence.check_ops_dependence(["apart", "third"], ["first", "unrelated"])

    @pytest.mark.usefixtures("chain")
    def test_dependence_has_a_direction(self):
        dependence.check_ops_dependence("first", ["second", "third", "apart"])

    @pytest.mark.usefixtures("chain")
    def test_names_of_tensors_are_accepted(self):
        with pytest.raises(RuntimeError, match=r"depend on ops \[second\]"):
            dependence.check_ops_dependence("third:0", "second:0")

    @pytest.mark.usefixtures("chain")
    def test_unknown_op_is_named(self):
        with pytest.raises(KeyError, match="nowhere"):
            dependence.check_ops_dependence("nowhere", "first")
