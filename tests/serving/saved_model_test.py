"""Writing of SavedModels; `tests/training/graph/estimator_test.py` loads and runs them."""

import os
import subprocess

import pytest
import tensorflow as tf

from monolith import errors
from monolith.serving import saved_model, temporary_dirs

v1 = tf.compat.v1


class TestTimestampedDir:
    def test_is_named_after_the_second(self, tmp_path):
        path = saved_model.make_timestamped_dir(str(tmp_path), clock=lambda: 1234.9)
        assert path == str(tmp_path / "1234")
        assert not os.path.exists(path)

    def test_takes_the_next_free_second(self, tmp_path):
        (tmp_path / "1234").mkdir()
        (tmp_path / "1235").mkdir()
        path = saved_model.make_timestamped_dir(str(tmp_path), clock=lambda: 1234)
        assert path == str(tmp_path / "1236")

    def test_gives_up_in_the_end(self, tmp_path, monkeypatch):
        monkeypatch.setattr(saved_model, "_MAX_TIMESTAMP_TRIES", 2)
        (tmp_path / "5").mkdir()
        (tmp_path / "6").mkdir()
        with pytest.raises(errors.ConfigError, match="each of the 2 seconds from 5; export less"):
            saved_model.make_timestamped_dir(str(tmp_path), clock=lambda: 5)


@pytest.fixture
def session(graph_mode):
    with v1.Session() as session:
        variable = v1.get_variable("v", initializer=3.0)
        session.run(variable.initializer)
        yield session


class TestWrite:
    def test_what_a_killed_export_left_is_removed(self, session, tmp_path):
        killed = subprocess.Popen(["true"])
        killed.wait()
        mine = temporary_dirs.make_name("6")
        left = tmp_path / mine.replace(f".{os.getpid()}", f".{killed.pid}")
        left.mkdir()
        (left / "saved_model.pb").write_text("half")
        saved_model.write_saved_model(session, str(tmp_path / "7"), {})
        assert os.listdir(tmp_path) == ["7"]
        with tf.Graph().as_default(), v1.Session() as loaded:
            v1.saved_model.load(loaded, ["serve"], str(tmp_path / "7"))
            assert loaded.run("v/Read/ReadVariableOp:0") == 3

    def test_nothing_is_there_when_it_fails(self, session, tmp_path):
        with pytest.raises(tf.errors.NotFoundError):
            saved_model.write_saved_model(
                session, str(tmp_path / "7"), {}, assets_extra={"a": str(tmp_path / "missing")}
            )
        assert not os.path.exists(tmp_path / "7")

    def test_assets_of_the_graph(self, session, tmp_path):
        (tmp_path / "vocabulary.txt").write_text("word")
        asset = tf.constant(str(tmp_path / "vocabulary.txt"), name="asset")
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        saved_model.write_saved_model(session, str(tmp_path / "7"), {})
        assert (tmp_path / "7" / "assets" / "vocabulary.txt").read_text() == "word"

    @pytest.mark.parametrize(("clear", "device"), [(True, ""), (False, "/device:CPU:0")])
    def test_devices(self, session, tmp_path, clear, device):
        with tf.device("/device:CPU:0"):
            tf.constant(1, name="placed")
        saved_model.write_saved_model(session, str(tmp_path / "7"), {}, clear_devices=clear)
        with tf.Graph().as_default() as graph, v1.Session() as loaded:
            v1.saved_model.load(loaded, ["serve"], str(tmp_path / "7"))
            assert graph.get_operation_by_name("placed").device == device
