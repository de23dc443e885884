"""Discovery from TF_CONFIG, beyond the seed's case in discovery_test.py."""

import json

import pytest

from monolith import errors
from monolith.cluster.discovery import TfConfigServiceDiscovery


def make(cluster, task=None):
    return TfConfigServiceDiscovery(
        {"cluster": cluster, "task": task or {"type": "ps", "index": 0}}
    )


@pytest.mark.parametrize(
    ("cluster", "task", "server_type", "index", "addr"),
    [
        pytest.param(
            {"chief": ["a:1"], "worker": ["b:1"]},
            {"type": "chief", "index": 0},
            "worker",
            0,
            "a:1",
            id="chief_is_worker_0",
        ),
        pytest.param(
            {"chief": ["a:1"], "worker": ["b:1"]},
            {"type": "worker", "index": 0},
            "worker",
            1,
            "b:1",
            id="workers_follow_the_chief",
        ),
        pytest.param(
            {"worker": ["b:1", "c:1"]},
            {"type": "worker", "index": 1},
            "worker",
            1,
            "c:1",
            id="without_a_chief_workers_count_from_0",
        ),
        pytest.param(
            {"chief": ["a:1"], "ps": ["d:1", "e:1"]},
            {"type": "ps", "index": "1"},
            "ps",
            1,
            "e:1",
            id="ps_with_an_index_in_quotes",
        ),
    ],
)
def test_own_place(cluster, task, server_type, index, addr):
    discovery = make(cluster, task)
    assert (discovery.server_type, discovery.index, discovery.addr) == (server_type, index, addr)
    assert discovery.query(server_type)[index] == addr


def test_survives_a_round_trip_through_json():
    tf_config = {"cluster": {"ps": ["[fd00::1]:1"]}, "task": {"type": "ps", "index": 0}}
    discovery = TfConfigServiceDiscovery(json.loads(json.dumps(tf_config)))
    assert discovery.query("ps") == {0: "[fd00::1]:1"}


def test_registering_changes_nothing():
    discovery = make({"ps": ["a:1"]})
    discovery.register("ps", 5, "z:1")
    discovery.deregister("ps", 0, "a:1")
    assert discovery.query("ps") == {0: "a:1"}
    discovery.close()


def test_chief_alone_is_the_only_worker():
    assert make({"chief": ["a:1"]}).query("worker") == {0: "a:1"}


def test_unknown_name():
    with pytest.raises(ValueError, match=r"^name must be ps/worker$"):
        make({"ps": []}).query("chief")


@pytest.mark.parametrize(
    ("tf_config", "message"),
    [
        (None, "TF_CONFIG must be a dictionary"),
        ("{}", "TF_CONFIG must be a dictionary"),
        ({"task": {}}, "under 'cluster', found None"),
        ({"cluster": {}}, "under 'task', found None"),
        ({"cluster": [], "task": {}}, r"under 'cluster', found \[\]"),
    ],
)
def test_missing_sections(tf_config, message):
    with pytest.raises(errors.ConfigError, match=message):
        TfConfigServiceDiscovery(tf_config)


def test_missing_jobs():
    discovery = make({"worker": ["a:1"], "ps": "b:1"})
    with pytest.raises(errors.ConfigError, match="addresses of 'ps' in 'cluster', found 'b:1'"):
        discovery.query("ps")
    with pytest.raises(
        errors.ConfigError, match=r"'worker' .*found None; the cluster has \['ps'\]"
    ):
        make({"ps": []}).query("worker")


@pytest.mark.parametrize(
    ("task", "attribute", "message"),
    [
        ({"index": 0}, "server_type", "no 'type' in 'task'"),
        ({"type": "ps"}, "index", "'index' in 'task'"),
        ({"type": "ps", "index": -1}, "index", "'index' in 'task'"),
        ({"type": "ps", "index": "x"}, "index", "'index' in 'task'"),
        ({"type": "ps", "index": 1}, "addr", "'ps' number 1, but its cluster has only 1"),
        ({"type": "evaluator", "index": 0}, "addr", "addresses of 'evaluator'"),
    ],
)
def test_senseless_tasks(task, attribute, message):
    with pytest.raises(errors.ConfigError, match=message):
        getattr(make({"ps": ["a:1"]}, task), attribute)
