"""A checkpoint in a model that has changed: what fits is restored, the rest is new, or refused."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.checkpoint import changed_model
from monolith.checkpoint.changed_model import OnChange
from monolith.checkpoint.saver import PartialRecoverySaver

pytestmark = pytest.mark.usefixtures("graph_mode")


def make_network(units, value, optimizer=None, partitioner=None):
    """A layer and what follows, all weights of one value; with the optimizer's state."""
    with tf.compat.v1.variable_scope("net", partitioner=partitioner):
        initializer = tf.compat.v1.constant_initializer(value)
        kernel = tf.compat.v1.get_variable("kernel", [4, units], initializer=initializer)
        bias = tf.compat.v1.get_variable("bias", [4], initializer=initializer)
    tf.compat.v1.train.create_global_step()
    if optimizer is not None:
        loss = tf.reduce_sum(tf.convert_to_tensor(kernel)) + tf.reduce_sum(
            tf.convert_to_tensor(bias)
        )
        optimizer.minimize(loss)
    return kernel, bias


def save(**settings):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        make_network(**settings)
        saver = PartialRecoverySaver(sharded=True)
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(tf.compat.v1.assign(tf.compat.v1.train.get_global_step(), 7))
        return saver.save(session, "model.ckpt", write_meta_graph=False)


def restore(path, on_change=OnChange.KEEP_WHAT_FITS, **settings):
    """Restores in a finalized graph, as a monitored session does; returns all values."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        kernel, bias = make_network(**settings)
        values = {
            "kernel": tf.convert_to_tensor(kernel),
            "bias": tf.convert_to_tensor(bias),
            "step": tf.compat.v1.train.get_global_step(),
        }
        saver = PartialRecoverySaver(sharded=True, changed_model=on_change)
        graph.finalize()
        saver.restore(session, path)
        return session.run(values)


def test_a_layer_of_another_shape_starts_anew_and_all_else_goes_on():
    values = restore(save(units=2, value=5.0), units=3, value=1.0)
    np.testing.assert_array_equal(values["kernel"], np.ones([4, 3]))
    np.testing.assert_array_equal(values["bias"], np.full([4], 5.0))
    assert values["step"] == 7


def test_an_unchanged_model_is_restored_as_ever():
    values = restore(save(units=2, value=5.0), units=2, value=1.0)
    np.testing.assert_array_equal(values["kernel"], np.full([4, 2], 5.0))


def test_the_state_of_another_optimizer_starts_anew():
    adagrad = tf.compat.v1.train.AdagradOptimizer(0.1)
    path = save(units=2, value=5.0, optimizer=adagrad)
    adam = tf.compat.v1.train.AdamOptimizer(0.1)
    values = restore(path, units=2, value=1.0, optimizer=adam)
    np.testing.assert_array_equal(values["kernel"], np.full([4, 2], 5.0))


@pytest.mark.parametrize("num_parts", [2, 3])
def test_variables_in_parts(num_parts):
    path = save(units=2, value=5.0, partitioner=tf.compat.v1.fixed_size_partitioner(2))
    values = restore(
        path, units=3, value=1.0, partitioner=tf.compat.v1.fixed_size_partitioner(num_parts)
    )
    np.testing.assert_array_equal(values["kernel"], np.ones([4, 3]))
    np.testing.assert_array_equal(values["bias"], np.full([4], 5.0))


def test_parts_are_read_at_their_place():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("v", initializer=np.arange(10.0).reshape(5, 2))
        session.run(tf.compat.v1.global_variables_initializer())
        path = tf.compat.v1.train.Saver().save(session, "v.ckpt", write_meta_graph=False)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        v = tf.compat.v1.get_variable(
            "v", [5, 2], tf.float64, partitioner=tf.compat.v1.fixed_size_partitioner(3)
        )
        tf.compat.v1.get_variable("new", initializer=1.0)
        whole = tf.convert_to_tensor(v)
        saver = PartialRecoverySaver(changed_model=OnChange.KEEP_WHAT_FITS)
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run(whole), np.arange(10.0).reshape(5, 2))


def test_refused_with_what_has_changed_and_the_way_out():
    path = save(units=2, value=5.0)
    with pytest.raises(errors.ConfigError, match="train with restore_what_fits=True") as caught:
        restore(path, OnChange.REFUSE, units=3, value=1.0)
    assert "'net/kernel' has the shape [4, 3], in the checkpoint [4, 2]" in str(caught.value)


def test_many_changes_are_counted():
    reasons = {f"v{i}": "is not in the checkpoint" for i in range(9)}
    text = changed_model.Changes([], reasons).describe()
    assert text.startswith("'v0' is not in the checkpoint, 'v1'")
    assert text.endswith(", and 3 more")


class TestTables:
    """Tables that have changed are named by the saver, before it restores a variable."""

    NARROW = changed_model.TableChange("user", "has dim 3, in the checkpoint dim 2")
    OPTIMIZER = changed_model.TableChange("item", "has dim 2 (adam), ...", keeps_weights=True)

    def restore(self, path, on_change, *changes, units=2):
        asked = []
        with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
            kernel, _ = make_network(units, 1.0)
            value = tf.convert_to_tensor(kernel)
            changed_model.add_table_check(lambda prefix: asked.append(prefix) or list(changes))
            session.run(tf.compat.v1.global_variables_initializer())
            saver = PartialRecoverySaver(sharded=True, changed_model=on_change)
            graph.finalize()
            try:
                saver.restore(session, path)
            finally:
                self.value = session.run(value)[0, 0]
        assert asked == ([path] if on_change is not OnChange.KEEP_WHAT_FITS else [])

    @pytest.mark.parametrize("on_change", [None, OnChange.REFUSE])
    def test_one_sentence_names_tables_and_variables(self, on_change):
        path = save(units=2, value=5.0)
        with pytest.raises(errors.ConfigError) as caught:
            self.restore(path, on_change, self.NARROW, self.OPTIMIZER, units=3)
        assert str(caught.value) == (
            f"The model has changed since {path} was saved: table 'user' has dim 3, in the "
            "checkpoint dim 2, table 'item' has dim 2 (adam), ..., 'net/kernel' has the shape "
            "[4, 3], in the checkpoint [4, 2]. To go on with what fits and start the rest anew, "
            "train with restore_what_fits=True, which starts 'user' with no rows, keeps the "
            "weights of 'item', and keeps all other rows; or use another model directory."
        )
        assert self.value == 1.0

    def test_who_keeps_what_fits_restores_the_variables(self):
        self.restore(save(units=2, value=5.0), OnChange.KEEP_WHAT_FITS, self.NARROW)
        assert self.value == 5.0

    @pytest.mark.parametrize("on_change", [None, *OnChange])
    def test_tables_that_have_not_changed(self, on_change):
        self.restore(save(units=2, value=5.0), on_change)
        assert self.value == 5.0
