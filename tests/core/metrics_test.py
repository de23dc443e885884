"""Metrics go to the user's sink, or nowhere."""

import copy
import pickle

import pytest

from monolith.core import metrics
from monolith.native_training.metric import cli


class RecordingSink:
    def __init__(self):
        self.emitted = []
        self.flushes = 0

    def emit(self, kind, name, value, tags):
        self.emitted.append((kind, name, value, dict(tags)))

    def flush(self):
        self.flushes += 1


class FailingSink:
    def emit(self, kind, name, value, tags):
        raise ConnectionError("no monitoring today")

    def flush(self):
        raise ConnectionError("no monitoring today")


@pytest.fixture
def sink():
    recording = RecordingSink()
    metrics.set_sink(recording)
    yield recording
    metrics.set_sink(None)


def test_nothing_happens_without_a_sink(caplog, capfd):
    client = metrics.get_cli("prefix")
    assert client.emit_counter("c", 1) is None
    assert client.emit_timer("t", 0.5, {"a": "b"}) is None
    assert client.emit_store("s", 3, tagkv={"a": "b"}) is None
    assert client.flush() is None
    captured = capfd.readouterr()
    assert caplog.text + captured.out + captured.err == ""


def test_values_reach_the_sink_under_the_prefix(sink):
    client = metrics.get_cli(prefix="monolith.training")
    client.emit_counter("failovers", 1, {"index": "0"})
    client.emit_timer("save", 2.5)
    client.emit_store("step", 7, tagkv={"a": "b"})
    client.flush()
    assert sink.emitted == [
        ("counter", "monolith.training.failovers", 1, {"index": "0"}),
        ("timer", "monolith.training.save", 2.5, {}),
        ("store", "monolith.training.step", 7, {"a": "b"}),
    ]
    assert sink.flushes == 1


def test_client_without_prefix_emits_plain_names(sink):
    metrics.get_cli().emit_counter("failovers", 1)
    assert sink.emitted == [("counter", "failovers", 1, {})]


def test_client_made_before_the_sink_uses_it():
    client = metrics.get_cli("early")
    recording = RecordingSink()
    metrics.set_sink(recording)
    try:
        client.emit_counter("c", 1)
    finally:
        metrics.set_sink(None)
    client.emit_counter("c", 2)
    assert recording.emitted == [("counter", "early.c", 1, {})]


def test_failing_sink_does_not_reach_the_caller():
    metrics.set_sink(FailingSink())
    try:
        client = metrics.get_cli("p")
        client.emit_counter("c", 1)
        client.flush()
    finally:
        metrics.set_sink(None)


def test_any_other_method_accepts_anything(sink):
    client = metrics.Client("p", 1, 2, anything="else")
    assert client.emit_rate_counter("x", 1, tagkv={}, more=object()) is None
    assert client.whatever() is None
    assert sink.emitted == []


def test_clients_can_be_copied_and_pickled(sink):
    client = metrics.get_cli("p")
    for twin in (copy.deepcopy(client), pickle.loads(pickle.dumps(client))):
        twin.emit_counter("c", 1)
    assert sink.emitted == [("counter", "p.c", 1, {})] * 2


def test_historical_path():
    assert cli is metrics


def test_a_watcher_knows_whether_there_is_a_sink(monkeypatch):
    monkeypatch.setattr(metrics, "_watchers", [])
    seen = []
    metrics.watch_sink(seen.append)
    metrics.set_sink(RecordingSink())
    metrics.set_sink(None)
    assert seen == [False, True, False]
