"""Where the saver does more than TensorFlow's, and how its restore is built."""

import os

import pytest
import tensorflow as tf
from support.savers import initialize, make_variable
from tensorflow.python.eager import context

from monolith import errors
from monolith.checkpoint import state as checkpoint_state
from monolith.native_training import save_utils

pytestmark = pytest.mark.usefixtures("graph_mode")

Saver = save_utils.PartialRecoverySaver

v1 = tf.compat.v1


class TestBeyondTensorFlow:
    def test_nothing_is_saved_by_the_process_that_skips(self, tmp_path):
        make_variable("v", 1.0)
        with v1.Session() as session:
            initialize(session)
            saver = Saver(skip_save=True)
            assert saver.save(session, str(tmp_path / "m")) is None
        assert os.listdir(tmp_path) == []

    def test_state_file_is_written_last(self, tmp_path, monkeypatch):
        """Who reads `checkpoint` never sees a name whose files are not all there."""
        seen = []
        write_list = checkpoint_state.write_list

        def look(*args, **kwargs):
            seen.append(sorted(os.listdir(tmp_path)))
            write_list(*args, **kwargs)

        monkeypatch.setattr(checkpoint_state, "write_list", look)
        make_variable("v", 1.0)
        with v1.Session() as session:
            initialize(session)
            Saver().save(session, str(tmp_path / "m"), global_step=1)
        parts = ["data-00000-of-00001", "index", "meta", "unfinished"]
        assert seen == [[*(f"m-1.{part}" for part in parts), "manifest-m-1"]]
        assert not (tmp_path / "m-1.unfinished").exists()
        assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "m-1")

    def test_without_state(self, tmp_path):
        make_variable("v", 1.0)
        with v1.Session() as session:
            initialize(session)
            saver = Saver(max_to_keep=1)
            for step in (1, 2):
                saver.save(session, str(tmp_path / "m"), global_step=step, write_state=False)
        assert saver.last_checkpoints == []
        assert tf.train.latest_checkpoint(str(tmp_path)) is None
        assert {path.name for path in tmp_path.glob("*.index")} == {"m-1.index", "m-2.index"}

    def test_object_based_checkpoint(self, tmp_path):
        with context.eager_mode():
            trackable = tf.train.Checkpoint(v=tf.Variable(7.0, name="v"))
            path = trackable.write(str(tmp_path / "objects"))
        v = make_variable("v", 0.0)
        with v1.Session() as session:
            Saver().restore(session, path)
            assert session.run(v) == 7.0

    def test_saver_of_an_imported_graph(self, tmp_path):
        with tf.Graph().as_default(), v1.Session() as session:
            make_variable("v", 3.0)
            saver = Saver()
            v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
            initialize(session)
            path = saver.save(session, str(tmp_path / "m"))
            definition = saver.as_saver_def()
        with tf.Graph().as_default() as graph, v1.Session() as session:
            assert v1.train.import_meta_graph(f"{path}.meta").as_saver_def() == definition
            Saver.from_proto(definition).restore(session, path)
            assert session.run(graph.get_tensor_by_name("v/Read/ReadVariableOp:0")) == 3.0

    def test_missing_variable_is_named(self, tmp_path):
        with tf.Graph().as_default(), v1.Session() as session:
            make_variable("old", 3.0)
            initialize(session)
            path = Saver().save(session, str(tmp_path / "m"))
        make_variable("new", 3.0)
        message = "a Variable name or other graph key that is missing.*Key new not found"
        with (
            v1.Session() as session,
            pytest.raises(tf.errors.NotFoundError, match=f"(?s){message}"),
        ):
            Saver().restore(session, path)

    def test_variable_of_another_shape_is_refused_and_named(self, tmp_path):
        # TensorFlow's saver restores it: the variable then has the shape of the checkpoint.
        with tf.Graph().as_default(), v1.Session() as session:
            make_variable("same", 1.0)
            make_variable("wider", [1.0, 2.0])
            initialize(session)
            path = Saver().save(session, str(tmp_path / "m"))
        same, wider = make_variable("same", 0.0), make_variable("wider", [0.0, 0.0, 0.0])
        with v1.Session() as session:
            initialize(session)
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=r"Variable 'wider' has the shape \(3,\), in the checkpoint \[2\]",
            ):
                Saver().restore(session, path)
            assert session.run(same) == 0.0
            assert session.run(wider).tolist() == [0.0, 0.0, 0.0]

    def test_monitor_needs_a_builder_that_knows_devices(self):
        from tensorflow.python.training import saver as tf_saver

        make_variable("v", 1.0)
        monitor = save_utils.PsMonitor(1)
        with pytest.raises(errors.ConfigError, match="such as SaverBuilder, got BulkSaverBuilder"):
            Saver(builder=tf_saver.BulkSaverBuilder(), ps_monitor=monitor)


class TestSaverBuilder:
    def test_one_op_per_device_restores_only_that_device(self, tmp_path):
        config = v1.ConfigProto(device_count={"CPU": 2})
        variables = []
        for i in range(2):
            with tf.device(f"/cpu:{i}"):
                variables += [make_variable(f"a{i}", 1.0), make_variable(f"b{i}", 2.0)]
        builder = save_utils.SaverBuilder()
        saver = Saver(builder=builder, sharded=True)
        devices = ["/device:CPU:0", "/device:CPU:1"]
        assert list(builder.restore_ops_per_device) == devices
        bump = [v1.assign_add(v, 10.0) for v in variables]
        with v1.Session(config=config) as session:
            initialize(session)
            path = saver.save(session, str(tmp_path / "m"))
            session.run(bump)
            feed = {saver.saver_def.filename_tensor_name: path}
            session.run(builder.restore_ops_per_device[devices[1]], feed)
            assert session.run(variables) == [11.0, 12.0, 1.0, 2.0]
            saver.restore(session, path)
            assert session.run(variables) == [1.0, 2.0, 1.0, 2.0]

    def test_not_sharded(self):
        make_variable("v", 1.0)
        builder = save_utils.SaverBuilder()
        Saver(builder=builder)
        assert builder.restore_ops_per_device == {}
