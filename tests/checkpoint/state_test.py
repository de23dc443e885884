"""The file `monolith_checkpoint`."""

import logging
import os

import pytest
import tensorflow as tf

from monolith.checkpoint import state as checkpoint_state
from monolith.proto.monolith_checkpoint_state_pb2 import MonolithCheckpointState


def test_round_trip(tmp_path):
    saved = MonolithCheckpointState(
        exempt_model_checkpoint_paths=["/a/model.ckpt-1", "model.ckpt-2"],
        last_checkpoint_save_timestamp=1700000000,
        builtin_hash_table_type=MonolithCheckpointState.MULTI_CUCKOO_HASH_MAP,
    )
    checkpoint_state.save_monolith_checkpoint_state(str(tmp_path), saved)
    assert checkpoint_state.get_monolith_checkpoint_state(str(tmp_path)) == saved
    assert os.listdir(tmp_path) == ["monolith_checkpoint"]
    # Operators read and edit the file, and so did the original system: it is text.
    assert (
        'exempt_model_checkpoint_paths: "/a/model.ckpt-1"'
        in (tmp_path / "monolith_checkpoint").read_text()
    )


def test_file_name_can_be_chosen(tmp_path):
    (tmp_path / "other").write_text('exempt_model_checkpoint_paths: "x"')
    state = checkpoint_state.get_monolith_checkpoint_state(str(tmp_path), "other")
    assert list(state.exempt_model_checkpoint_paths) == ["x"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(None, id="missing"),
        pytest.param(b'exempt_model_checkpoint_paths: "mod', id="half_written"),
        pytest.param(b"\xff\xfe\x00", id="garbage"),
    ],
)
def test_unreadable_state_is_none_and_logged(tmp_path, caplog, content):
    caplog.set_level(logging.INFO)
    if content is not None:
        (tmp_path / "monolith_checkpoint").write_bytes(content)
    assert checkpoint_state.get_monolith_checkpoint_state(str(tmp_path)) is None
    assert str(tmp_path / "monolith_checkpoint") in caplog.text


def test_a_directory_in_place_of_the_file_is_none(tmp_path):
    (tmp_path / "monolith_checkpoint").mkdir()
    assert checkpoint_state.get_monolith_checkpoint_state(str(tmp_path)) is None


def test_remove_invalid_path_keeps_what_exists(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
        variable = tf.compat.v1.get_variable("v", initializer=1.0, use_resource=True)
        sess.run(variable.initializer)
        saver = tf.compat.v1.train.Saver()
        here = saver.save(sess, str(tmp_path / "model.ckpt"), global_step=1)
        os.mkdir(elsewhere)
        other = saver.save(sess, str(elsewhere / "model.ckpt"), global_step=5)
    paths = ["model.ckpt-1", "model.ckpt-2", other, str(elsewhere / "model.ckpt-6")]
    checkpoint_state.save_monolith_checkpoint_state(
        str(tmp_path), MonolithCheckpointState(exempt_model_checkpoint_paths=paths)
    )
    state = checkpoint_state.get_monolith_checkpoint_state(str(tmp_path))
    assert list(state.exempt_model_checkpoint_paths) == paths
    state = checkpoint_state.get_monolith_checkpoint_state(str(tmp_path), remove_invalid_path=True)
    assert list(state.exempt_model_checkpoint_paths) == [here, other]


class TestLatestCheckpointState:
    @pytest.fixture(autouse=True)
    def _empty_cache(self, monkeypatch):
        monkeypatch.setattr(checkpoint_state, "_ckpt_state_cache_map", {})

    def write(self, directory, step):
        path = directory / "checkpoint"
        path.write_text(f'model_checkpoint_path: "model.ckpt-{step}"')

    def get_step(self, directory, step):
        state = checkpoint_state.get_latest_checkpoint_state(str(directory), step)
        return None if state is None else int(state.model_checkpoint_path.rpartition("-")[2])

    def test_read_again_when_the_step_has_grown(self, tmp_path):
        self.write(tmp_path, 1)
        assert self.get_step(tmp_path, 10) == 1
        self.write(tmp_path, 2)
        assert self.get_step(tmp_path, 10) == 1
        assert self.get_step(tmp_path, 9) == 1
        assert self.get_step(tmp_path, 11) == 2

    def test_no_checkpoint_is_not_remembered(self, tmp_path):
        assert self.get_step(tmp_path, 10) is None
        self.write(tmp_path, 1)
        assert self.get_step(tmp_path, 10) == 1

    def test_each_directory_on_its_own(self, tmp_path):
        for step, name in enumerate("ab"):
            (tmp_path / name).mkdir()
            self.write(tmp_path / name, step)
        assert self.get_step(tmp_path / "a", 10) == 0
        assert self.get_step(tmp_path / "b", 10) == 1
        assert self.get_step(tmp_path / "a", 10) == 0


class TestRemoveCheckpoint:
    def test_everything_with_the_prefix_goes(self, tmp_path):
        for name in ("m-1.index", "m-1.data-00000-of-00001", "m-1.meta", "m-10.index", "m-1x"):
            (tmp_path / name).write_text("")
        (tmp_path / "m-1.assets" / "nested").mkdir(parents=True)
        (tmp_path / "m-1.assets" / "nested" / "table").write_text("")
        checkpoint_state.remove_checkpoint(str(tmp_path / "m-1"))
        assert sorted(os.listdir(tmp_path)) == ["m-10.index", "m-1x"]

    def test_index_goes_first(self, tmp_path, monkeypatch):
        """Who is killed on the way leaves no checkpoint that looks whole."""
        for name in ("m-1.data-00000-of-00001", "m-1.index", "m-1.meta"):
            (tmp_path / name).write_text("")
        seen = []
        monkeypatch.setattr(tf.io.gfile, "remove", lambda path: seen.append(os.listdir(tmp_path)))
        checkpoint_state.remove_checkpoint(str(tmp_path / "m-1"))
        assert len(seen) == 3
        for names in seen:  # Nothing was removed, but the index has become a mark.
            assert sorted(names) == ["m-1.data-00000-of-00001", "m-1.meta", "m-1.unfinished"]

    def test_missing_is_fine(self, tmp_path, monkeypatch):
        checkpoint_state.remove_checkpoint(str(tmp_path / "m-1"))
        checkpoint_state.remove_checkpoint(str(tmp_path / "no" / "m-1"))
        monkeypatch.chdir(tmp_path)
        (tmp_path / "m-1.index").write_text("")
        checkpoint_state.remove_checkpoint("m-1")
        assert os.listdir(tmp_path) == []
