"""RmspropOptimizer with `use_v2`."""

import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.native_training.optimizers import rmsprop


def build_graph():
    v = tf.Variable([0.1], name="var")
    loss = 0.12 * v
    optimizer = rmsprop.RmspropOptimizer(
        learning_rate=0.1, weight_decay=1, beta1=0.9, beta2=0.9, epsilon=0.1, use_v2=True
    )
    return optimizer.minimize(loss)


class RmspropTest(tf.test.TestCase):
    def testBasic(self):
        self._check()

    def testWeightDecay(self):
        self._check()

    def _check(self):
        with (
            tf.Graph().as_default(),
            tf.device("/device:GPU:0"),
            self.assertRaisesRegex(tf.errors.UnimplementedError, "CPUs only"),
        ):
            build_graph()

        results = []
        for device in ("", "/device:CPU:0"):
            with tf.Graph().as_default(), tf.device(device), self.session() as session:
                train_op = build_graph()
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(train_op)
                variables = tf.compat.v1.global_variables()
                self.assertTrue(all(variable.device == device for variable in variables))
                results.append({var.op.name: session.run(var) for var in variables})
        for values in results:
            self.assertLen(values, 3)
            # h = 0.12 + 1 * 0.1 = 0.22; v = h^2; m = 0.1 * h / (0.22 + 0.1); 0.1 - m
            self.assertAllClose(values["var/Rmsprop/m"], [0.068750])
            self.assertAllClose(values["var/Rmsprop/v"], [0.0484])
            self.assertAllClose(values["var"], [0.031250])
        self.assertAllEqual(results[0]["var"], results[1]["var"])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    shape=st.sampled_from([(), (1,), (7,), (3, 5), (2, 1, 33)]),
    dtype=st.sampled_from([tf.float32, tf.float64]),
    beta1=st.sampled_from([0.0, 0.9, 0.99]),
    beta2=st.sampled_from([0.5, 0.9, 0.999]),
    epsilon=st.sampled_from([1e-4, 0.1]),
    weight_decay=st.sampled_from([0.0, 0.1]),
)
def test_random_steps_agree_with_numpy(check_rmsprop, **case):
    check_rmsprop(**case, use_v2=True)
