"""Finding a controller; the calls themselves are tested with the server.

Covers monolith/training/controller/files.py.
"""

import os
import stat

import grpc
import pytest

from monolith import errors
from monolith.proto import service_pb2
from monolith.training.controller import client, files


def test_missing_controller(tmp_path):
    with pytest.raises(files.ControllerNotFoundError) as raised:
        client.get_stub_from_model_dir(str(tmp_path))
    assert str(raised.value) == (
        f"There is no '{tmp_path}/controller_server_addr.txt', so no run with a controller is "
        f"active in that model directory; check the directory, or start the run."
    )
    assert isinstance(raised.value, FileNotFoundError)


@pytest.mark.parametrize("text", ["", "nonsense", "host:port"])
def test_file_without_an_address(tmp_path, text):
    (tmp_path / files.SERVER_ADDR_FILENAME).write_text(text)
    with pytest.raises(errors.ConfigError, match="Invalid addr"):
        client.get_stub_from_model_dir(str(tmp_path))


def test_token_that_cannot_be_read(tmp_path):
    files.write_address(str(tmp_path), "127.0.0.1:1")
    # A directory, because root could read any file.
    (tmp_path / files.SERVER_TOKEN_FILENAME).mkdir()
    message = (
        "token in '.*controller_server_token.txt', which cannot be read: Is a directory; act as"
    )
    with pytest.raises(errors.ConfigError, match=message):
        client.get_stub_from_model_dir(str(tmp_path))


def test_controller_that_was_killed(tmp_path):
    # Nobody listens on port 1 of this machine.
    files.write_address(str(tmp_path), "127.0.0.1:1")
    with client.connect(str(tmp_path)) as stub, pytest.raises(grpc.RpcError) as raised:
        stub.StopTraining(service_pb2.StopTrainingRequest())
    assert raised.value.code() == grpc.StatusCode.UNAVAILABLE


def test_connection_is_closed_at_the_end(tmp_path):
    files.write_address(str(tmp_path), "127.0.0.1:1")
    with client.connect(str(tmp_path)) as stub:
        pass
    with pytest.raises(ValueError, match="closed channel"):
        stub.StopTraining(service_pb2.StopTrainingRequest())


def test_files_round_trip(tmp_path):
    model_dir = str(tmp_path / "new" / "model")
    files.write_address(model_dir, "127.0.0.1:4711")
    files.write_token(model_dir, "first")
    files.write_token(model_dir, "second")
    assert files.read_address(model_dir) == "127.0.0.1:4711"
    assert files.read_token(model_dir) == "second"
    assert len(os.listdir(model_dir)) == 2
    mode = os.stat(f"{model_dir}/{files.SERVER_TOKEN_FILENAME}").st_mode
    assert stat.S_IMODE(mode) == 0o600
    files.remove_token(model_dir, "first")
    assert files.read_token(model_dir) == "second"
    files.remove_token(model_dir, "second")
    files.remove_address(model_dir, "127.0.0.1:1")
    assert os.listdir(model_dir) == [files.SERVER_ADDR_FILENAME]
    files.remove_address(model_dir, "127.0.0.1:4711")
    files.remove_address(model_dir, "127.0.0.1:4711")
    files.remove_token(model_dir)
    assert os.listdir(model_dir) == []


def test_token_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / files.SERVER_TOKEN_FILENAME).mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_token(str(tmp_path), "token")
    assert os.listdir(tmp_path) == [files.SERVER_TOKEN_FILENAME]
