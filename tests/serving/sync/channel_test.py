"""Calls of one server, and whether it is still the same.

Covers monolith/serving/server/incarnation.py.
"""

import logging
import time

import grpc
import pytest
from support import serving
from support.row_server import RowServer

from monolith import errors
from monolith.core import metrics
from monolith.serving.sync.channel import SyncChannel
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.targets import Target

CONFIG = SyncConfig(timeout_sec=60)


def ask(channel):
    return channel.predict("f", b"", 3)


def test_another_server_is_noticed():
    with RowServer() as server:
        channel = SyncChannel(server.target, CONFIG)
        assert [ask(channel).is_other_server for _ in range(2)] == [False, False]
        server.incarnation = "second"
        assert [ask(channel).is_other_server for _ in range(2)] == [True, False]
        server.version = 2  # Its rows come from another export.
        assert [ask(channel).is_other_server for _ in range(2)] == [True, False]
        channel.close()


def test_a_short_question_says_it_too():
    with RowServer() as server:
        channel = SyncChannel(server.target, CONFIG)
        assert not ask(channel).is_other_server
        assert not channel.ask().is_other_server
        server.incarnation = "second"
        assert [channel.ask().is_other_server for _ in range(2)] == [True, False]
        assert not ask(channel).is_other_server
        server.version = 2
        assert [channel.ask().is_other_server for _ in range(2)] == [True, False]
        channel.close()


def test_a_server_that_says_nothing_may_be_another_after_each_absence():
    with RowServer() as server:
        server.incarnation = ""
        channel = SyncChannel(server.target, CONFIG)
        assert not ask(channel).is_other_server
        port = server.port
    assert ask(channel).code is grpc.StatusCode.UNAVAILABLE
    with RowServer(port) as server:
        server.incarnation = ""
        answer = ask(channel)
        while not answer.is_ok:  # Until the connection is there again.
            answer = ask(channel)
        assert answer.is_other_server
        assert not ask(channel).is_other_server
        channel.close()


def test_our_server_says_who_it_is(tmp_path):
    serving.save_model(tmp_path / "1")
    with serving.serving(tmp_path) as (server, _):
        channel = SyncChannel(Target(f"127.0.0.1:{server.port}", "m"), CONFIG)
        body = serving.make_request({"x": [1.0]})
        body.ClearField("model_spec")
        for _ in range(2):
            answer = channel.predict("serving_default", body.SerializeToString(), 1)
            assert (answer.is_ok, answer.is_other_server) == (True, False), answer.details
        assert channel._known is not None
        incarnation, version = channel._known
        assert len(incarnation) == 32
        assert version == 1
        # The same in other words, until it has another export.
        answer = channel.ask()
        assert (answer.is_ok, answer.is_other_server) == (True, False), answer.details
        serving.save_model(tmp_path / "2")
        while not answer.is_other_server:
            answer = channel.ask()
        assert channel._known is not None
        assert channel._known[0] != incarnation
        assert channel._known[1] == 2
        assert not channel.predict("serving_default", body.SerializeToString(), 1).is_other_server
        channel.close()


def test_a_model_that_is_not_there_confirms_nothing(tmp_path):
    with serving.serving(tmp_path) as (server, _):
        for name in ("m", "other"):
            channel = SyncChannel(Target(f"127.0.0.1:{server.port}", name), CONFIG)
            answer = channel.ask()
            assert (answer.is_ok, answer.is_silence) == (False, False)
            channel.close()


def test_a_version_that_is_loaded_again_is_another(tmp_path):
    serving.save_model(tmp_path / "1")
    with serving.serving(tmp_path) as (server, client):
        channel = SyncChannel(Target(f"127.0.0.1:{server.port}", "m"), CONFIG)
        assert channel.ask().is_ok
        (tmp_path / "1").rename(tmp_path / "away")
        serving.save_model(tmp_path / "2")
        while client.get_states().get(1) == "AVAILABLE":
            time.sleep(0.02)
        (tmp_path / "2").rename(tmp_path / "gone")
        (tmp_path / "away").rename(tmp_path / "1")
        while client.get_states().get(1) != "AVAILABLE":
            time.sleep(0.02)
        assert [channel.ask().is_other_server for _ in range(2)] == [True, False]
        channel.close()


def test_what_is_wrong_is_said_once_and_counted(caplog):
    sent = []

    class Sink:
        def emit(self, kind, name, value, tags):
            sent.append((kind, name.rpartition(".")[2], tags["status"]))

        def flush(self):
            pass

    metrics.set_sink(Sink())
    try:
        with RowServer() as server, caplog.at_level(logging.INFO):
            channel = SyncChannel(server.target, CONFIG)
            server.refusal = "The dim does not match."
            assert [ask(channel).details for _ in range(3)] == ["The dim does not match."] * 3
            server.refusal = ""
            assert ask(channel).is_ok
            channel.close()
    finally:
        metrics.set_sink(None)
    said = [r.getMessage() for r in caplog.records if "changes" in r.getMessage()]
    name = server.target.name
    assert said == [
        f"{name} does not get changes, which are kept for it: INVALID_ARGUMENT The dim does not "
        "match.",
        f"{name} gets changes again",
    ]
    one = [
        ("timer", "parameter_sync_latency"),
        ("counter", "parameter_sync_fid_count"),
        ("counter", "parameter_sync_byte_size"),
    ]
    assert sent == [(*call, "KO") for call in one * 3] + [(*call, "OK") for call in one]


def test_a_token_that_is_not_there():
    with pytest.raises(errors.ConfigError, match="/nowhere cannot be read"):
        SyncChannel(Target("127.0.0.1:1", "m"), SyncConfig(token_file="/nowhere"))
