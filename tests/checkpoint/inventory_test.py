"""Which checkpoints a directory has, and whether they are whole."""

import os

import pytest
import tensorflow as tf

from monolith.checkpoint import delta_chain, inventory, manifest, state
from monolith.checkpoint.inventory import CheckpointState


def write_checkpoint(directory, step, num_bytes=100, has_manifest=True):
    prefix = directory / f"model.ckpt-{step}"
    (directory / f"{prefix.name}.index").write_bytes(b"i" * 10)
    (directory / f"{prefix.name}.data-00000-of-00001").write_bytes(b"d" * num_bytes)
    assets = directory / f"{prefix.name}.assets"
    assets.mkdir()
    (assets / "table-00000-of-00001").write_bytes(b"t" * 5)
    if has_manifest:
        manifest.write(str(prefix))
    return str(prefix)


def list_states(directory):
    return {info.step: info.state for info in inventory.list_checkpoints(str(directory))}


def test_sizes_times_and_the_one_that_is_restored(tmp_path):
    prefixes = [write_checkpoint(tmp_path, step) for step in (100, 9)]
    state.write_list(str(tmp_path), prefixes[0], prefixes[::-1])
    os.utime(f"{prefixes[0]}.index", (50, 50))
    first, second = inventory.list_checkpoints(str(tmp_path))
    assert (first.step, second.step) == (9, 100)
    assert second == inventory.CheckpointInfo(
        name="model.ckpt-100",
        step=100,
        saved_sec=50,
        size_bytes=115,
        state=CheckpointState.COMPLETE,
        is_listed=True,
        is_newest=True,
    )
    assert first.is_listed
    assert not first.is_newest


def test_deltas_belong_to_their_checkpoint(tmp_path):
    prefix = write_checkpoint(tmp_path, 100)
    delta = f"{prefix}.delta-120"
    (tmp_path / f"{os.path.basename(delta)}.index").write_bytes(b"12")
    manifest.write(delta)
    listed = delta_chain.serialize([delta_chain.Delta(step=120, num_rows=7)])
    (tmp_path / "model.ckpt-100.deltas").write_text(listed)
    (info,) = inventory.list_checkpoints(str(tmp_path))
    assert (info.name, info.step, info.num_deltas) == ("model.ckpt-100", 120, 1)
    assert info.state is CheckpointState.COMPLETE
    (tmp_path / f"{os.path.basename(delta)}.index").unlink()
    (info,) = inventory.list_checkpoints(str(tmp_path))
    assert info.state is CheckpointState.DAMAGED
    assert info.problem.endswith("model.ckpt-100.delta-120.index is missing.")


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "is missing."),
        (lambda path: path.write_bytes(b"short"), "has 5 bytes, 100 were saved."),
    ],
    ids=["missing", "cut"],
)
def test_damaged(tmp_path, damage, problem):
    write_checkpoint(tmp_path, 7)
    damage(tmp_path / "model.ckpt-7.data-00000-of-00001")
    (info,) = inventory.list_checkpoints(str(tmp_path))
    assert info.state is CheckpointState.DAMAGED
    assert info.problem.endswith(problem)


def test_unreadable_lists_do_not_hide_the_checkpoints(tmp_path):
    write_checkpoint(tmp_path, 7)
    (tmp_path / "checkpoint").write_bytes(b"\xff\x00 nonsense")
    (tmp_path / "model.ckpt-7.deltas").write_text("nonsense")
    (info,) = inventory.list_checkpoints(str(tmp_path))
    assert info.state is CheckpointState.DAMAGED
    assert "model.ckpt-7.deltas is damaged" in info.problem
    assert not info.is_listed


def test_unfinished_and_unchecked(tmp_path):
    write_checkpoint(tmp_path, 7, has_manifest=False)
    write_checkpoint(tmp_path, 8, has_manifest=False)
    (tmp_path / "model.ckpt-8.unfinished").write_bytes(b"")
    (tmp_path / "model.ckpt-9.unfinished").write_bytes(b"")
    (tmp_path / "model.ckpt-9.data-00000-of-00001").write_bytes(b"123")
    (tmp_path / "unrelated.index").write_bytes(b"")
    assert list_states(tmp_path) == {
        7: CheckpointState.UNCHECKED,
        8: CheckpointState.UNFINISHED,
        9: CheckpointState.UNFINISHED,
    }


def test_nothing_there(tmp_path):
    assert inventory.list_checkpoints(str(tmp_path)) == []
    assert inventory.list_checkpoints(str(tmp_path / "missing")) == []


def test_checkpoint_of_tensorflow(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("v", [2], use_resource=True)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), 3)
    (info,) = inventory.list_checkpoints(str(tmp_path))
    assert (info.step, info.state) == (3, CheckpointState.UNCHECKED)
    assert info.is_newest
