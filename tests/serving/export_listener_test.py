"""Exports after each save: what is exported, what the state file says, and what goes again."""

import os
import pathlib

import pytest
import tensorflow as tf

from monolith.core import metrics
from monolith.graph.signatures import ServingInputReceiver
from monolith.graph.spec import GraphSpec
from monolith.native_training.model_export import export_hooks, export_state_utils
from monolith.proto import export_pb2
from monolith.serving import export_listener, export_state
from monolith.serving.export import StandaloneExporter
from monolith.serving.export_listener import ExportSaverListener
from monolith.serving.loading import import_saved_model

pytestmark = pytest.mark.usefixtures("graph_mode")

v1 = tf.compat.v1


def model_fn(features, mode, config):
    """Gives the step of the checkpoint."""
    step = v1.train.get_global_step()
    return GraphSpec(mode, predictions=features["feature"] * 0 + tf.cast(step, tf.float32))


def receive_x() -> ServingInputReceiver:
    x = v1.placeholder(tf.float32, [])
    return ServingInputReceiver(x, x)


class Exporter:
    """Makes empty versions of several sub models, in place of a model for several servers."""

    def __init__(self, base: pathlib.Path, names=("entry", "ps_0")) -> None:
        self._base = base
        self._names = names
        self.calls: list[tuple[str, int]] = []

    def export_saved_model(self, serving_input_receiver_fn, checkpoint_path=None, global_step=None):
        self.calls.append((checkpoint_path, global_step))
        directories = {name: self._base / name / str(1000 + global_step) for name in self._names}
        for directory in directories.values():
            directory.mkdir(parents=True)
        return {name: os.fsencode(directory) for name, directory in directories.items()}


def write_checkpoint_state(directory: pathlib.Path, steps) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    paths = [str(directory / f"model.ckpt-{step}") for step in steps]
    v1.train.update_checkpoint_state(str(directory), paths[-1], paths)


def list_steps(base: pathlib.Path) -> list[int]:
    state = export_state.get_export_saver_listener_state(str(base))
    return [entry.global_step for entry in state.entries]


def list_versions(base: pathlib.Path) -> list[str]:
    return sorted(path.name for path in base.iterdir() if path.is_dir())


class TestListener:
    def test_export_goes_with_its_checkpoint(self, tmp_path):
        """Two real saves and exports, of which the saver keeps one."""
        base = tmp_path / "exported"
        exporter = StandaloneExporter(model_fn, str(tmp_path), str(base))
        save_path = str(tmp_path / "model.ckpt")
        step = v1.train.create_global_step()
        listener = ExportSaverListener(save_path, receive_x, exporter)
        saver_hook = v1.train.CheckpointSaverHook(
            str(tmp_path),
            save_steps=1,
            saver=v1.train.Saver(max_to_keep=1, sharded=True),
            listeners=[listener],
        )
        next_step = step.assign_add(1)
        with v1.train.SingularMonitoredSession(hooks=[saver_hook]) as session:
            session.run(next_step)
            session.run(next_step)
        (entry,) = export_state.get_export_saver_listener_state(str(base)).entries
        assert entry.global_step == 2
        assert list_versions(base) == [os.path.basename(entry.export_dir)]
        with import_saved_model(entry.export_dir) as infer:
            assert infer(0.0)["output"] == 2

    def test_every_sub_model_has_its_own_state(self, tmp_path):
        exporter = Exporter(tmp_path / "exported")
        listener = ExportSaverListener(str(tmp_path / "model.ckpt"), receive_x, exporter)
        for step in (1, 2, 3):
            write_checkpoint_state(tmp_path, range(max(1, step - 1), step + 1))
            listener.after_save(None, step)
        assert exporter.calls == [(str(tmp_path / f"model.ckpt-{i}"), i) for i in (1, 2, 3)]
        for name in ("entry", "ps_0"):
            base = tmp_path / "exported" / name
            assert list_steps(base) == [2, 3]
            assert list_versions(base) == ["1002", "1003"]

    def test_exempt_checkpoints(self, tmp_path):
        listener = ExportSaverListener(
            str(tmp_path / "model.ckpt"),
            receive_x,
            Exporter(tmp_path / "exported", ["entry"]),
            exempt_checkpoint_paths=["model.ckpt-1"],
        )
        for step in (1, 2, 3):
            write_checkpoint_state(tmp_path, [step])
            listener.after_save(None, step)
        assert list_steps(tmp_path / "exported" / "entry") == [1, 3]

    @pytest.mark.parametrize(("dense_only", "steps"), [(True, [1, 3]), (False, [3])])
    def test_dense_only_keeps_steps_of_full_checkpoints(self, tmp_path, dense_only, steps):
        write_checkpoint_state(tmp_path, [1])
        directory = tmp_path / "dense_only"
        listener = ExportSaverListener(
            str(directory / "model.ckpt"),
            receive_x,
            Exporter(tmp_path / "exported", ["entry"]),
            dense_only=dense_only,
        )
        for step in (1, 2, 3):
            write_checkpoint_state(directory, [step])
            listener.after_save(None, step)
        assert list_steps(tmp_path / "exported" / "entry") == steps

    def test_step_that_was_just_saved_is_kept(self, tmp_path):
        listener = ExportSaverListener(
            str(tmp_path / "model.ckpt"), receive_x, Exporter(tmp_path / "exported", ["entry"])
        )
        listener.after_save(None, 4)  # Nobody has written a file `checkpoint`.
        assert list_steps(tmp_path / "exported" / "entry") == [4]

    def test_only_directories_beside_the_state_are_removed(self, tmp_path):
        """An entry may name a directory of somebody else, from whom the exports were copied."""
        other = tmp_path / "other" / "1001"
        other.mkdir(parents=True)
        base = tmp_path / "exported" / "entry"
        (base / "1001").mkdir(parents=True)
        state = export_pb2.ServingModelState()
        state.entries.add(export_dir=str(other), global_step=1)
        state.entries.add(export_dir=str(base / "999"), global_step=1)  # Gone already.
        export_state.overwrite_export_saver_listener_state(str(base), state)
        listener = ExportSaverListener(
            str(tmp_path / "model.ckpt"), receive_x, Exporter(tmp_path / "exported", ["entry"])
        )
        listener.after_save(None, 2)
        assert other.exists()
        assert list_versions(base) == ["1002"]
        assert list_steps(base) == [2]

    def test_export_that_cannot_be_removed_stays_listed(self, tmp_path, monkeypatch, caplog):
        listener = ExportSaverListener(
            str(tmp_path / "model.ckpt"), receive_x, Exporter(tmp_path / "exported", ["entry"])
        )
        listener.after_save(None, 1)

        def refuse(path):
            raise tf.errors.PermissionDeniedError(None, None, "not yours")

        # A directory that root cannot remove would need a file system of its own.
        monkeypatch.setattr(tf.io.gfile, "rmtree", refuse)
        listener.after_save(None, 2)
        assert list_steps(tmp_path / "exported" / "entry") == [1, 2]
        assert "could not remove the old export" in caplog.text

    def test_damaged_state_does_not_end_training(self, tmp_path, caplog):
        base = tmp_path / "exported" / "entry"
        base.mkdir(parents=True)
        (base / "ExportSaverListenerState").write_text("entries {")
        listener = ExportSaverListener(
            str(tmp_path / "model.ckpt"), receive_x, Exporter(tmp_path / "exported", ["entry"])
        )
        listener.after_save(None, 1)
        assert list_versions(base) == ["1001"]
        assert (base / "ExportSaverListenerState").read_text() == "entries {"
        assert "exported but not recorded" in caplog.text

    @pytest.mark.parametrize(("version", "emitted"), [("1234", [1234]), ("v1", [])])
    def test_latest_version_is_measured(self, tmp_path, monkeypatch, version, emitted):
        values = []

        class Sink:
            def emit(self, kind, name, value, tags):
                if name.endswith("export_models.latest_version"):
                    values.append(value)

            def flush(self):
                pass

        class OneVersion:
            def export_saved_model(self, *args):
                (tmp_path / "exported" / version).mkdir(parents=True)
                return os.fsencode(tmp_path / "exported" / version)

        metrics.set_sink(Sink())
        try:
            listener = ExportSaverListener(str(tmp_path / "model.ckpt"), receive_x, OneVersion())
            listener.after_save(None, 1)
        finally:
            metrics.set_sink(None)
        assert values == emitted
        assert list_steps(tmp_path / "exported") == [1]

    @pytest.mark.parametrize(
        ("path", "step"), [("/a/model.ckpt-12", 12), ("model.ckpt-0", 0), ("a-3/model.ckpt-4", 4)]
    )
    def test_get_global_step(self, path, step):
        assert export_listener.get_global_step(path) == step

    def test_historical_paths(self):
        assert export_hooks is export_listener
        assert export_state_utils is export_state
