"""Which checkpoint is taken when the newest is damaged, and what becomes of the list."""

import os

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from monolith.checkpoint import fallback
from monolith.checkpoint import saver as saving

v1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("graph_mode")


@pytest.fixture
def session():
    v1.get_variable("v", initializer=0.0, use_resource=True)
    with v1.Session() as session:
        yield session


def save(session, directory, *steps, **settings):
    """Saves a variable whose value is the step."""
    (variable,) = v1.global_variables()
    saver = saving.PartialRecoverySaver(**settings)
    for step in steps:
        variable.load(float(step), session)
        saver.save(session, str(directory / "m"), global_step=step)


def damage(directory, *steps):
    for step in steps:
        path = directory / f"m-{step}.data-00000-of-00001"
        path.write_bytes(bytes(path.stat().st_size - 1) + b"\1")


def restore(session, directory, path=None, **settings):
    saver = saving.PartialRecoverySaver(fall_back_to_older_checkpoint=True, **settings)
    saver.restore(session, path or tf.train.latest_checkpoint(str(directory)))
    return saver, session.run(v1.global_variables()[0])


def read_list(directory):
    state = text_format.Parse((directory / "checkpoint").read_text(), CheckpointState())
    assert state.model_checkpoint_path == state.all_model_checkpoint_paths[-1]
    return [os.path.basename(path) for path in state.all_model_checkpoint_paths]


def test_undamaged(session, tmp_path):
    save(session, tmp_path, 1, 2)
    before = (tmp_path / "checkpoint").read_text()
    assert restore(session, tmp_path)[1] == 2.0
    assert (tmp_path / "checkpoint").read_text() == before


def test_newest_that_is_not_damaged(session, tmp_path, caplog):
    save(session, tmp_path, 1, 2, 3)
    damage(tmp_path, 2, 3)
    assert restore(session, tmp_path)[1] == 1.0
    assert read_list(tmp_path) == ["m-1"]
    for step in (2, 3):
        assert f"skipping checkpoint {tmp_path}/m-{step}, it is damaged" in caplog.text
        assert (tmp_path / f"m-{step}.index").exists()
    assert f"restoring {tmp_path}/m-1 instead" in caplog.text


def test_damaged_ones_are_not_listed_by_later_saves(session, tmp_path):
    save(session, tmp_path, 1, 2)
    damage(tmp_path, 2)
    saver, _ = restore(session, tmp_path)
    # As a session does, which has read the list before.
    saver.recover_last_checkpoints([str(tmp_path / "m-1"), str(tmp_path / "m-2")])
    saver.save(session, str(tmp_path / "m"), global_step=3)
    assert read_list(tmp_path) == ["m-1", "m-3"]
    # What is saved anew under the name of a damaged one is not damaged.
    saver.save(session, str(tmp_path / "m"), global_step=2)
    saver.recover_last_checkpoints([str(tmp_path / f"m-{step}") for step in (1, 3, 2)])
    saver.save(session, str(tmp_path / "m"), global_step=4)
    assert read_list(tmp_path) == ["m-1", "m-3", "m-2", "m-4"]


def test_exempt_stays_listed(session, tmp_path):
    save(session, tmp_path, 1, 2, 3)
    damage(tmp_path, 2, 3)
    assert restore(session, tmp_path, exempt_checkpoint_paths=["m-2"])[1] == 1.0
    assert read_list(tmp_path) == ["m-2", "m-1"]


def test_higher_steps_belong_to_what_was_given_up(session, tmp_path):
    save(session, tmp_path, 1, 2, 3)
    state = text_format.Parse((tmp_path / "checkpoint").read_text(), CheckpointState())
    state.model_checkpoint_path = str(tmp_path / "m-2")  # Somebody went back.
    (tmp_path / "checkpoint").write_text(text_format.MessageToString(state))
    damage(tmp_path, 2)
    assert restore(session, tmp_path)[1] == 1.0


def test_relative_paths_stay_relative(session, tmp_path):
    save(session, tmp_path, 1, 2, save_relative_paths=True)
    damage(tmp_path, 2)
    assert restore(session, tmp_path)[1] == 1.0
    assert 'model_checkpoint_path: "m-1"' in (tmp_path / "checkpoint").read_text()


def test_files_that_are_gone(session, tmp_path):
    save(session, tmp_path, 1, 2)
    for path in tmp_path.glob("m-2.*"):
        path.unlink()
    assert restore(session, tmp_path, str(tmp_path / "m-2"))[1] == 1.0


def test_no_substitute_for_what_was_asked_for_by_name(session, tmp_path):
    save(session, tmp_path, 1, 2, 3)
    damage(tmp_path, 2)
    with pytest.raises(tf.errors.DataLossError, match=r"m-2\.data-00000-of-00001 is damaged"):
        restore(session, tmp_path, str(tmp_path / "m-2"))
    assert read_list(tmp_path) == ["m-1", "m-2", "m-3"]


def test_all_damaged(session, tmp_path):
    save(session, tmp_path, 1, 2)
    damage(tmp_path, 1, 2)
    before = (tmp_path / "checkpoint").read_text()
    with pytest.raises(tf.errors.DataLossError, match="no older checkpoint") as error:
        restore(session, tmp_path)
    assert "m-2.data-00000-of-00001 is damaged" in error.value.message
    assert (tmp_path / "checkpoint").read_text() == before


def test_nothing_there(tmp_path):
    assert fallback.fall_back(str(tmp_path)) == []
