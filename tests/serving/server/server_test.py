"""The server as a whole."""

import gc
import logging
import os
import shutil
import socket
import threading
import time

import grpc
import pytest
from support import sockets
from support.serving import QUICK, Client, save_model, serving

from monolith import errors
from monolith.serving.server.config import Batching, ModelConfig, Security, ServerConfig
from monolith.serving.server.server import PredictionServer

# Versions under load; the full run, for a figure: MONOLITH_VERSION_SWAPS=100.
SWAPS = int(os.environ.get("MONOLITH_VERSION_SWAPS", "10"))


@pytest.fixture
def models(tmp_path):
    (tmp_path / "models").mkdir()
    save_model(tmp_path / "models" / "1", factor=1.0)
    return tmp_path / "models"


def make_config(models, **settings) -> ServerConfig:
    model = ModelConfig(name="m", base_path=str(models))
    return ServerConfig(
        **{"models": (model,), "port": 0, "rest_port": 0, "loading": QUICK, **settings}
    )


def test_only_this_machine_can_reach_it(models):
    before = sockets.get_listening()
    with serving(models) as (server, _):
        listening = sockets.get_listening() - before
        assert {port for _, port in listening} == {server.port, server.rest_port}
        assert all(sockets.is_loopback(address) for address, _ in listening)
    assert sockets.get_listening() == before


@pytest.mark.parametrize("taken", ["port", "rest_port"])
def test_a_port_that_is_taken(models, taken):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(errors.ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            PredictionServer(make_config(models, **{taken: port}))
    assert not [thread for thread in threading.enumerate() if thread.name == "loop"]


def test_an_address_of_another_machine(models):
    for ports in ({"rest_port": None}, {"port": None}):
        with pytest.raises(errors.ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
            PredictionServer(make_config(models, host="192.0.2.1", **ports))


def test_one_api_is_enough(models):
    with serving(models, rest_port=None) as (server, client):
        assert server.rest_port is None
        assert client.predict([1.0]) == [1]
    with PredictionServer(make_config(models, port=None)) as server:
        assert server.port is None


def test_a_server_that_everybody_can_reach_says_so(models, caplog, tmp_path):
    with caplog.at_level(logging.WARNING):
        with PredictionServer(make_config(models, host="0.0.0.0")):
            pass
        assert "everybody who can reach 0.0.0.0" in caplog.text
        caplog.clear()
        (tmp_path / "token").write_text("secret")
        security = Security(token_file=str(tmp_path / "token"))
        with PredictionServer(make_config(models, host="0.0.0.0", security=security)):
            pass
        assert "tokens are sent as plain text" in caplog.text


def test_nothing_is_left_behind(models):
    def list_threads() -> set[str]:
        return {thread.name for thread in threading.enumerate()}

    before = list_threads()
    with serving(models) as (_, client):
        client.predict([1.0])
    deadline = time.monotonic() + 10
    while list_threads() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not {name for name in list_threads() - before if not name.startswith("asyncio")}


class Load:
    """Clients that ask all the time, and notice whatever is not a right answer."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self.answers: list[float] = []
        self.failures: list[Exception] = []
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=[port]) for _ in range(clients)]

    def _run(self, port: int) -> None:
        client = Client(port)
        while not self._is_over.is_set():
            try:
                first, second = client.predict([1.0, 2.0])
                assert second == 2 * first
                self.answers.append(first)
            except Exception as e:  # noqa: BLE001 - the test shows it
                self.failures.append(e)
        client.close()

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.parametrize("batching", [None, Batching(max_rows=8)], ids=["alone", "merged"])
def test_versions_are_swapped_without_a_failed_request(models, batching):
    gc.collect()
    with (
        serving(models, rest_port=None, batching=batching) as (server, client),
        Load(server.port) as load,
    ):
        for number in range(2, 2 + SWAPS):
            save_model(models / str(number), factor=float(number))
            deadline = time.monotonic() + 60
            while client.predict([1.0]) != [number]:
                assert time.monotonic() < deadline
            shutil.rmtree(models / str(number - 1))
    print(f"{SWAPS} swaps: {len(load.answers)} answers, {len(load.failures)} failures")
    assert not load.failures
    # Each version has answered, and none after its successor did.
    assert set(load.answers) == {float(number) for number in range(1, 2 + SWAPS)}


def test_a_broken_version_does_not_disturb(models):
    with serving(models, rest_port=None) as (server, client), Load(server.port, 1) as load:
        (models / "2").mkdir()
        (models / "2" / "saved_model.pb").write_bytes(b"nonsense")
        deadline = time.monotonic() + 60
        while client.get_states().get(2) != "END":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        save_model(models / "3", factor=3.0)
        while client.predict([1.0]) != [3]:
            assert time.monotonic() < deadline
    assert not load.failures
    assert set(load.answers) <= {1.0, 3.0}


def test_a_server_that_stops_refuses(models):
    with serving(models, rest_port=None) as (server, client):
        client.predict([1.0])
        late = Client(server.port)
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        late.predict([1.0])
    late.close()
