"""The parts of looking at a job that need no job; the rest is in distributed_train_test.py."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.checkpoint.saver_hook import META_GRAPH_FILE_NAME
from monolith.proto import debugging_info_pb2
from monolith.training.distributed import debugging


def test_variables_of_other_members_are_left_out():
    with tf.Graph().as_default():
        for name, device in (("kept", "/job:ps/task:1"), ("flags", "/job:chief/task:0")):
            with tf.device(device):
                tf.compat.v1.get_variable(name, [2], use_resource=True)
        meta_graph = tf.compat.v1.train.export_meta_graph()
    # A session of the servers has no chief, where the value of the other one is.
    assert list(debugging._list_variables(meta_graph)) == ["kept"]


@pytest.mark.parametrize("name", [debugging.INFO_FILE_NAME, META_GRAPH_FILE_NAME])
def test_a_damaged_file_is_named(tmp_path, name):
    info = debugging_info_pb2.DebuggingInfo(num_workers=1)
    (tmp_path / debugging.INFO_FILE_NAME).write_bytes(info.SerializeToString())
    (tmp_path / META_GRAPH_FILE_NAME).touch()
    (tmp_path / name).write_bytes(b"\xff damaged")
    with pytest.raises(errors.ConfigError, match=rf"^'{tmp_path}/{name}' is damaged; the chief of"):
        debugging.DebuggingWorker(str(tmp_path))


@pytest.mark.parametrize("axis", [0, 1])
def test_variable_that_is_split_is_also_there_as_a_whole(axis):
    shape = [4, 6]
    value = np.arange(24.0, dtype=np.float32).reshape(shape)
    with tf.Graph().as_default(), tf.compat.v1.variable_scope("mlp"), tf.device("/job:ps/task:1"):
        tf.compat.v1.get_variable(
            "kernel",
            shape,
            partitioner=tf.compat.v1.fixed_size_partitioner(2, axis=axis),
            use_resource=True,
        )
        found = debugging._list_variables(tf.compat.v1.train.export_meta_graph())
    assert set(found) == {"mlp/kernel", "mlp/kernel/part_0", "mlp/kernel/part_1"}
    # Here nobody is at the servers' place: the parts are cut by hand.
    parts = dict(zip(("part_0", "part_1"), np.split(value, 2, axis=axis), strict=True))
    whole = found["mlp/kernel"]
    assert [name.split("/")[2] for name in whole.snapshots] == ["part_0", "part_1"]
    np.testing.assert_array_equal(whole.join(list(parts.values())), value)
    part = found["mlp/kernel/part_1"].join([parts["part_1"]])
    np.testing.assert_array_equal(part, parts["part_1"])
