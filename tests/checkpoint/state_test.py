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
