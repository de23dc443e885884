"""The file that remembers which checkpoint each exported model was made from."""

import os

import pytest
from google.protobuf import text_format

from monolith.proto import export_pb2
from monolith.serving import export_state


def test_missing_file_is_an_empty_state(tmp_path):
    state = export_state.get_export_saver_listener_state(str(tmp_path))
    assert state == export_pb2.ServingModelState()


def test_round_trip(tmp_path):
    state = export_pb2.ServingModelState()
    state.entries.add(export_dir="exported/1", global_step=5)
    for _ in range(2):  # The second time, the file is there already.
        export_state.overwrite_export_saver_listener_state(str(tmp_path / "new"), state)
    assert os.listdir(tmp_path / "new") == ["ExportSaverListenerState"]
    text = (tmp_path / "new" / "ExportSaverListenerState").read_text()
    assert text == 'entries {\n  export_dir: "exported/1"\n  global_step: 5\n}\n'
    assert export_state.get_export_saver_listener_state(str(tmp_path / "new")) == state


def test_damaged_file_is_named(tmp_path):
    (tmp_path / "ExportSaverListenerState").write_text("entries {")
    with pytest.raises(
        text_format.ParseError, match=r"ExportSaverListenerState does not say .* Repair or"
    ):
        export_state.get_export_saver_listener_state(str(tmp_path))
