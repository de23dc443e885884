"""Cluster specs, session configs, and the list of parameter servers on disk."""

import functools
import importlib.util
import logging
import os
import threading
import time
import unittest

import pytest
import tensorflow as tf

from monolith import errors
from monolith.cluster import manager
from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.cluster.discovery_file import FileServiceDiscovery


class ScriptedDiscovery(ServiceDiscovery):
    """Answers each query with the next of the given maps, the last one again and again."""

    def __init__(self, **answers):
        self._answers = answers

    def register(self, name, index, addr):
        raise NotImplementedError

    deregister = register

    def query(self, name):
        answers = self._answers[name]
        return answers.pop(0) if len(answers) > 1 else answers[0]


class FakeClock:
    """Time that passes only when somebody waits."""

    def __init__(self):
        self.now_sec = 0.0

    def __call__(self):
        return self.now_sec

    def wait(self, seconds):
        self.now_sec += seconds


class MetricsRecorder:
    def __init__(self):
        self.stored = []

    def emit_store(self, name, value, tagkv=None):
        self.stored.append((name, value, tagkv))


@pytest.fixture
def no_sleep(monkeypatch):
    """Polls follow each other at once; gives the number of waits as its length."""
    waits = []
    monkeypatch.setattr(manager, "_cluster_query_failure_handler", lambda: waits.append(1))
    return waits


@pytest.fixture
def metrics(monkeypatch):
    recorder = MetricsRecorder()
    monkeypatch.setattr(manager, "_MCLI", recorder)
    return recorder


def get_cluster(discovery, tmp_path, **overrides):
    arguments = {
        "worker_addr": "me:2222",
        "index": 0,
        "num_redundant_ps": 0,
        "num_required_ps": 2,
        "num_workers": 3,
        "model_dir": str(tmp_path),
        "uuid": "run",
    }
    return manager.get_training_cluster(discovery, **{**arguments, **overrides})


class ClusterManagerTest(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _tmp_dir(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TEST_TMPDIR", str(tmp_path))

    def testBasic(self):
        file_name = os.path.join(os.environ["TEST_TMPDIR"], "testBasic", "ps_info")
        ps_addrs = ["192.168.0.1:1001", "192.168.0.2:1002"]
        manager._save_ps_cluster_to_file(file_name, ps_addrs)
        self.assertEqual(manager._fetch_ps_cluster_from_file(file_name), ps_addrs)
        with open(file_name) as f:
            self.assertEqual(f.read(), "192.168.0.1:1001,192.168.0.2:1002")


# Session configs.


def test_session_config_of_a_process_alone():
    config = manager.generate_session_config()
    assert config.allow_soft_placement
    assert config.share_cluster_devices_in_session
    assert config.experimental.share_session_state_in_clusterspec_propagation
    assert config.graph_options.rewrite_options.disable_meta_optimizer
    assert not config.HasField("cluster_def")
    assert not config.device_filters


@pytest.mark.parametrize(
    ("task", "filters"),
    [
        ({"type": "chief", "index": 0}, ["/job:ps", "/job:chief"]),
        ({"type": "worker", "index": 1}, ["/job:ps", "/job:chief", "/job:worker/task:1"]),
    ],
)
def test_session_config_of_a_member(task, filters):
    cluster = {"chief": ["c:1"], "worker": ["w:1", "w:2"], "ps": ["p:1"]}
    config = manager.generate_session_config((cluster, task))
    assert config.allow_soft_placement
    assert config.share_cluster_devices_in_session
    assert config.experimental.share_session_state_in_clusterspec_propagation
    assert config.graph_options.rewrite_options.disable_meta_optimizer
    assert list(config.device_filters) == filters
    assert tf.train.ClusterSpec(config.cluster_def).as_dict() == cluster


def test_session_reaches_the_ps_and_leaves_fake_workers_alone():
    # Both processes of the job run in this one; the two other workers do not exist at all. Without
    # device filters TensorFlow would wait for them, and the timeout would end the run.
    ps, chief = (tf.distribute.Server({"local": ["127.0.0.1:0"]}) for _ in range(2))
    addr = [server.target.removeprefix("grpc://") for server in (ps, chief)]
    discovery = ScriptedDiscovery(ps=[{0: addr[0]}])
    cluster_and_task = manager.get_training_cluster(
        discovery, addr[1], 0, 0, 1, num_workers=3, model_dir="", uuid=""
    )
    config = manager.generate_session_config(cluster_and_task)
    config.operation_timeout_in_ms = 20000
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            variable = tf.compat.v1.get_variable("v", initializer=41, use_resource=True)
        with tf.compat.v1.Session(chief.target, config=config) as sess:
            sess.run(variable.initializer)
            assert sess.run(variable.assign_add(1)) == 42
            devices = [device.name for device in sess.list_devices()]
    assert any("/job:ps/replica:0/task:0" in name for name in devices)
    assert not any("/job:worker" in name for name in devices)


# The cluster as each member sees it.


def test_chief_takes_the_first_servers_in_order_of_index(tmp_path):
    discovery = ScriptedDiscovery(ps=[{2: "p2:1", 10: "p10:1", 0: "p0:1"}])
    cluster, task = get_cluster(discovery, tmp_path)
    assert cluster == {
        "chief": ["me:2222"],
        "worker": ["0.0.0.0:1", "0.0.0.0:2"],
        "ps": ["p0:1", "p2:1"],
    }
    assert task == {"type": "chief", "index": 0}
    assert not list(tmp_path.iterdir())  # Only a job with redundant servers needs the file.


def test_worker_stands_at_its_place_among_fakes(tmp_path):
    discovery = ScriptedDiscovery(worker=[{0: "chief:1", 1: "w:1"}], ps=[{0: "p0:1", 1: "p1:1"}])
    cluster, task = get_cluster(discovery, tmp_path, index=2)
    assert cluster == {
        "chief": ["chief:1"],
        "worker": ["0.0.0.0:1", "me:2222"],
        "ps": ["p0:1", "p1:1"],
    }
    assert task == {"type": "worker", "index": 1}


def test_a_job_of_one_worker_and_no_server(tmp_path):
    cluster, task = get_cluster(
        ScriptedDiscovery(ps=[{}]), tmp_path, num_workers=1, num_required_ps=0
    )
    assert cluster == {"chief": ["me:2222"], "worker": [], "ps": []}
    assert task == {"type": "chief", "index": 0}


@pytest.mark.parametrize("index", [-1, 3, 4])
def test_index_that_no_worker_has(tmp_path, index):
    message = rf"Worker index must be in 0\.\.2 for num_workers=3, got {index};"
    with pytest.raises(errors.ConfigError, match=message):
        get_cluster(ScriptedDiscovery(ps=[{}]), tmp_path, index=index)


@pytest.mark.parametrize("bad", ["p1", "p1:", ":1", "p1:0", "p1:65536", "p1:x"])
@pytest.mark.parametrize("index", [0, 1])
def test_malformed_address_of_a_server(tmp_path, bad, index):
    discovery = ScriptedDiscovery(worker=[{0: "chief:1"}], ps=[{0: "p0:1", 1: bad}])
    with pytest.raises(errors.ConfigError, match="Address 1 of job 'ps' must be host:port") as info:
        get_cluster(discovery, tmp_path, index=index)
    assert repr(bad) in str(info.value)


def test_malformed_address_of_the_chief(tmp_path):
    discovery = ScriptedDiscovery(worker=[{0: "chief:99999"}], ps=[{0: "p0:1", 1: "p1:1"}])
    with pytest.raises(errors.ConfigError, match=r"job 'chief' .* got 'chief:99999'"):
        get_cluster(discovery, tmp_path, index=1)


# Waiting, and saying for whom.


def test_waiting_for_servers_names_the_missing_ones(no_sleep, caplog):
    caplog.set_level(logging.INFO)
    discovery = ScriptedDiscovery(
        ps=[{}, {1: "p1:1"}, {1: "p1:1"}, {1: "p1:1", 2: "p2:1", 0: "p0:1"}]
    )
    assert manager._query_ps_cluster(discovery, 3) == ["p0:1", "p1:1", "p2:1"]
    assert len(no_sleep) == 3
    lines = [record.getMessage() for record in caplog.records]
    # The second and third poll bring the same news, which is told once.
    assert [line.partition(" (waited")[0] for line in lines] == [
        "Waiting for parameter servers, 0 of 3 registered, 3 more needed; "
        "missing: ps 0, ps 1, ps 2; looking in ScriptedDiscovery.",
        "Waiting for parameter servers, 1 of 3 registered, 2 more needed; missing: ps 0, ps 2; "
        "looking in ScriptedDiscovery.",
    ]


def test_two_servers_that_claim_one_index_count_once_and_the_line_shows_it(
    tmp_path, monkeypatch, caplog
):
    caplog.set_level(logging.INFO)
    discovery = FileServiceDiscovery(str(tmp_path), stale_after_secs=None)
    discovery.register("ps", 0, "10.0.0.1:2222")
    discovery.register("ps", 0, "10.0.0.2:2222")
    monkeypatch.setattr(
        manager,
        "_cluster_query_failure_handler",
        lambda: discovery.register("ps", 1, "10.0.0.1:2222"),
    )
    assert manager._query_ps_cluster(discovery, 2) == ["10.0.0.2:2222", "10.0.0.1:2222"]
    assert "1 of 2 registered, 1 more needed; missing: ps 1; looking in" in caplog.text


def test_a_large_cluster_does_not_flood_the_line(no_sleep, caplog):
    caplog.set_level(logging.INFO)
    everyone = {index: f"p{index}:1" for index in range(500)}
    manager._query_ps_cluster(ScriptedDiscovery(ps=[{}, everyone]), 500)
    assert "ps 19 and 480 more;" in caplog.text
    assert "ps 20" not in caplog.text


def test_waiting_ends_with_a_sentence_that_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.setattr(manager, "_cluster_query_failure_handler", lambda: None)
    discovery = FileServiceDiscovery(str(tmp_path), stale_after_secs=None)
    where = f"; looking in {tmp_path}, a directory that all members must share; nobody has come in"
    for role, missing in (
        ("ps", "Waiting for parameter servers, 0 of 2 registered, 2 more needed; missing: ps 0, "),
        ("chief", "Waiting for the chief, worker 0; registered: none"),
    ):
        wait = manager._query_ps_cluster if role == "ps" else manager._query_chief_addr
        arguments = [discovery, 2] if role == "ps" else [discovery]
        with pytest.raises(errors.ConfigError) as caught:
            wait(*arguments, timeout_sec=0.01)
        assert str(caught.value).startswith(missing)
        assert f"{where} 0.01 s (`session_creation_timeout_secs`)." in str(caught.value)


def test_waiting_emits_metrics_for_a_named_model_only(no_sleep, metrics):
    def make_discovery():
        return ScriptedDiscovery(ps=[{}, {0: "p0:1"}, {0: "p0:1", 1: "p1:1"}])

    manager._query_ps_cluster(make_discovery(), 2)
    assert metrics.stored == []
    manager._query_ps_cluster(make_discovery(), 2, model_name="ctr", cluster_type="tide")
    tags = {"model_name": "ctr", "cluster_type": "tide"}
    assert metrics.stored == [
        ("num_left_ps", 2, tags),
        ("job_waiting", 1, tags),
        ("num_left_ps", 1, tags),
        ("job_waiting", 1, tags),
    ]


def test_waiting_for_the_chief(no_sleep, caplog):
    caplog.set_level(logging.INFO)
    discovery = ScriptedDiscovery(worker=[None, {2: "w2:1"}, {2: "w2:1", 0: "chief:1"}])
    assert manager._query_chief_addr(discovery) == "chief:1"
    assert len(no_sleep) == 2
    assert "Waiting for the chief, worker 0; registered: none; looking in" in caplog.text
    assert "Waiting for the chief, worker 0; registered: worker 2; looking in" in caplog.text


def test_poll_interval(monkeypatch):
    # The module as it is written: a member of a job that ran in this process may have patched it.
    spec = importlib.util.spec_from_file_location("unpatched_manager", manager.__file__)
    unpatched = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unpatched)
    sleeps = []
    monkeypatch.setattr(unpatched.time, "sleep", sleeps.append)
    unpatched._cluster_query_failure_handler()
    assert sleeps == [5]


def test_emit_store_delegates(metrics):
    manager.emit_store("name", 3, {"k": "v"})
    assert metrics.stored == [("name", 3, {"k": "v"})]


# The file with the list.


def test_name_of_the_file():
    assert manager._get_ps_cluster_file_name("/m", "u1") == "/m/ps_cluster_dir/u1"
    assert manager._get_ps_cluster_file_name("/m", "") == "/m/ps_cluster_dir/ps_info"
    assert manager._get_ps_cluster_file_name("/m", None) == "/m/ps_cluster_dir/ps_info"


def test_chief_and_workers_of_a_job_with_redundant_servers_agree(tmp_path, monkeypatch):
    """The real thing in threads: whoever starts first waits for whom it needs."""
    monkeypatch.setattr(manager, "_cluster_query_failure_handler", lambda: time.sleep(0.01))
    discovery = FileServiceDiscovery(str(tmp_path / "discovery"), stale_after_secs=None)
    clusters = {}

    def run_worker(index):
        addr = f"127.0.0.1:{3000 + index}"
        discovery.register("worker", index, addr)
        clusters[index] = get_cluster(
            discovery, tmp_path, worker_addr=addr, index=index, num_redundant_ps=1
        )[0]

    threads = [threading.Thread(target=run_worker, args=(index,)) for index in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for index in (2, 0, 1):  # Two are enough; whether the chief sees the third does not matter.
        discovery.register("ps", index, f"127.0.0.1:{2000 + index}")
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(clusters) == [0, 1, 2]
    assert clusters[0]["ps"] == clusters[1]["ps"] == clusters[2]["ps"]
    assert len(clusters[0]["ps"]) == 2
    # A chief that restarts keeps to its choice, whatever discovery says by now.
    again, _ = get_cluster(ScriptedDiscovery(ps=[{}]), tmp_path, num_redundant_ps=1)
    assert again["ps"] == clusters[0]["ps"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"p0:1", "has 1 of 2 addresses"),
        (b"p0:1,", "half-written, it has an empty address"),
        (b"p0:1,p1", "half-written, 'p1' is not host:port"),
        (b"p0:1,p1:", "half-written, 'p1:' is not host:port"),
        (b"p0:1,p1:1,p2:1", "has 3 of 2 addresses"),
        (b"\xff\xfe\x00,p1:1", "half-written"),
    ],
)
def test_half_written_file(tmp_path, monkeypatch, caplog, content, problem):
    caplog.set_level(logging.INFO)
    path = manager._get_ps_cluster_file_name(str(tmp_path), "run")
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as f:
        f.write(content)

    clock = FakeClock()
    monkeypatch.setattr(manager, "_cluster_query_failure_handler", lambda: clock.wait(60))
    assert manager._fetch_ps_cluster_from_file(path, num_ps=2, clock=clock) == []
    assert clock.now_sec == 1800
    assert f"Waiting for the chief's PS list: {path}" in caplog.text
    assert problem in caplog.text

    # The chief does not trust the file either, asks again, and repairs it.
    discovery = ScriptedDiscovery(ps=[{0: "p0:1", 1: "p1:1", 2: "p2:1"}])
    cluster, _ = get_cluster(discovery, tmp_path, num_redundant_ps=1)
    assert cluster["ps"] == ["p0:1", "p1:1"]
    assert manager._fetch_ps_cluster_from_file(path, timeout=0, num_ps=2) == ["p0:1", "p1:1"]


def test_worker_waits_for_the_chief_to_repair_the_file(tmp_path, monkeypatch):
    path = manager._get_ps_cluster_file_name(str(tmp_path), "run")
    manager._save_ps_cluster_to_file(path, ["p0:1"])
    monkeypatch.setattr(
        manager,
        "_cluster_query_failure_handler",
        lambda: manager._save_ps_cluster_to_file(path, ["p0:1", "p1:1"]),
    )
    discovery = ScriptedDiscovery(worker=[{0: "chief:1"}])
    cluster, _ = get_cluster(discovery, tmp_path, index=1, num_redundant_ps=1)
    assert cluster["ps"] == ["p0:1", "p1:1"]


def test_worker_gives_up_with_a_sentence(tmp_path, monkeypatch):
    fetch_at_once = functools.partial(manager._fetch_ps_cluster_from_file, timeout=0)
    monkeypatch.setattr(manager, "_fetch_ps_cluster_from_file", fetch_at_once)
    discovery = ScriptedDiscovery(worker=[{0: "chief:1"}])
    with pytest.raises(AssertionError, match="needs 2 parameter servers but found 0") as info:
        get_cluster(discovery, tmp_path, index=1, num_redundant_ps=1)
    assert manager._get_ps_cluster_file_name(str(tmp_path), "run") in str(info.value)


def test_fetch_waits_as_long_as_told(tmp_path, monkeypatch):
    clock = FakeClock()
    waits = []

    def wait():
        waits.append(clock.now_sec)
        clock.wait(5)

    monkeypatch.setattr(manager, "_cluster_query_failure_handler", wait)
    assert manager._fetch_ps_cluster_from_file(str(tmp_path / "no"), timeout=20, clock=clock) == []
    assert waits == [0, 5, 10, 15]
    waits.clear()
    assert manager._fetch_ps_cluster_from_file(str(tmp_path / "no"), timeout=0, clock=clock) == []
    assert waits == []


def test_killed_writer_leaves_the_old_list(tmp_path):
    path = str(tmp_path / "ps_info")
    manager._save_ps_cluster_to_file(path, ["p0:1"])
    with open(f"{path}-tmp", "w") as f:
        f.write("p7:1,p8:")  # Where a killed chief had got to.
    assert manager._fetch_ps_cluster_from_file(path, timeout=0) == ["p0:1"]
    manager._save_ps_cluster_to_file(path, ["p1:1"])
    assert manager._fetch_ps_cluster_from_file(path, timeout=0) == ["p1:1"]
    assert os.listdir(tmp_path) == ["ps_info"]


def test_a_reader_never_sees_a_part(tmp_path):
    path = str(tmp_path / "ps_info")
    lists = [[f"host-{letter}-{index}:1" for index in range(500)] for letter in "ab"]
    manager._save_ps_cluster_to_file(path, lists[0])
    done = threading.Event()

    def write():
        for turn in range(200):
            manager._save_ps_cluster_to_file(path, lists[turn % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    num_reads = 0
    while not done.is_set():
        assert manager._fetch_ps_cluster_from_file(path, timeout=0) in lists
        num_reads += 1
    writer.join()
    assert num_reads > 0


@pytest.mark.parametrize("bad", ["", "p0:1,p1:1"])
def test_address_that_the_format_cannot_hold(tmp_path, bad):
    with pytest.raises(errors.ConfigError, match="free of commas, got"):
        manager._save_ps_cluster_to_file(str(tmp_path / "ps_info"), [bad])
    assert not list(tmp_path.iterdir())


def test_historical_path_is_the_same_module():
    from monolith.native_training import cluster_manager

    assert cluster_manager is manager
