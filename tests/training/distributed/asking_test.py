"""What a worker takes for the answer of a discovery that is away."""

import pytest

from monolith import errors
from monolith.cluster.discovery import MLPServiceDiscovery
from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.training.distributed.asking import PatientQuery


class Scripted(ServiceDiscovery):
    """Answers as it was told, one query after the other."""

    def __init__(self, answers):
        self._answers = iter(answers)

    def register(self, name, index, addr):
        pass

    def deregister(self, name, index, addr):
        pass

    def query(self, name):
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def describe(self):
        return "Somewhere"


def test_errors_are_nobody_and_told_once_a_minute(caplog):
    now_sec = 0.0
    failures = [OSError(f"try {i}\nand more") for i in range(4)]
    query = PatientQuery(Scripted([*failures, {1: "a:1"}, None]), clock=lambda: now_sec)
    for now_sec in (0.0, 1.0, 59.0, 61.0):  # noqa: B007 - the clock reads it
        assert query("ps") == {}
    assert query("ps") == {1: "a:1"}
    assert query("ps") == {}
    assert [record.getMessage() for record in caplog.records] == [
        f"Somewhere does not say who is registered as ps: OSError: try {i}" for i in (0, 3)
    ]


def test_settings_that_make_no_sense_are_no_outage():
    with pytest.raises(errors.ConfigError, match="lacks"):
        PatientQuery(Scripted([errors.ConfigError("It lacks a cluster.")]))("ps")


@pytest.mark.parametrize("lists_dead", [True, False])
def test_mlp_is_told_whether_to_wait(monkeypatch, lists_dead):
    asked = []

    def query(self, name, skip_port_check=False):
        asked.append(skip_port_check)
        return {}

    monkeypatch.setattr(MLPServiceDiscovery, "query", query)
    PatientQuery(MLPServiceDiscovery(), lists_dead=lists_dead)("ps")
    assert asked == [lists_dead]
