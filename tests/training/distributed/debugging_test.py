"""The parts of looking at a job that need no job; the rest is in distributed_train_test.py."""

import tensorflow as tf

from monolith.training.distributed import debugging


def test_variables_of_other_members_are_left_out():
    with tf.Graph().as_default():
        for name, device in (("kept", "/job:ps/task:1"), ("flags", "/job:chief/task:0")):
            with tf.device(device):
                tf.compat.v1.get_variable(name, [2], use_resource=True)
        meta_graph = tf.compat.v1.train.export_meta_graph()
    # A session of the servers has no chief, where the value of the other one is.
    assert list(debugging._list_variables(meta_graph)) == ["kept"]
