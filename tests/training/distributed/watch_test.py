"""What a worker notices of the others, and what it does then; see also the tests with processes."""

import json
import socket

import pytest
import tensorflow as tf

from monolith.cluster import heartbeat, members
from monolith.cluster.members import MemberConflictError, Membership, MemberState, read_member
from monolith.training.distributed import server
from monolith.training.distributed.watch import MemberWatch
from monolith.training.tables.members import NodeAliveCheckerError


@pytest.fixture(autouse=True)
def _no_beats(monkeypatch):
    """A test decides itself when a member is heard of."""
    monkeypatch.setattr(members, "BEAT_SEC", 3)
    monkeypatch.setattr(members, "SILENT_AFTER_SEC", 10)
    monkeypatch.setattr(heartbeat, "start", lambda *args, **kwargs: None)
    yield
    heartbeat._stop_all()


class Cluster:
    """A server, a chief and the worker that watches them."""

    def __init__(self, model_dir):
        self.model_dir = str(model_dir)
        self.now_sec = 0.0
        self.sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        addrs = [f"127.0.0.1:{skt.getsockname()[1]}" for skt in self.sockets]
        self.server = Membership(self.model_dir, "ps", 0, addrs[0])
        self.chief = Membership(self.model_dir, "worker", 0, addrs[1])
        self.worker = Membership(self.model_dir, "worker", 1, "c:1")
        for member in (self.server, self.chief, self.worker):
            member.join()
        heartbeat._stop_all()
        self.watch = MemberWatch(
            self.model_dir,
            {addrs[0]: read_member(self.model_dir, "ps", 0)},
            {addrs[1]: read_member(self.model_dir, "worker", 0)},
            self.worker,
            clock=lambda: self.now_sec,
        )

    def look_after(self, seconds):
        self.now_sec += seconds
        self.watch.look()

    def take_place(self, role, index):
        path = members._get_path(self.model_dir, role, index)
        with open(path) as file:
            values = json.load(file)
        with open(path, "w") as file:
            json.dump({**values, "incarnation": "other", "address": "d:1"}, file)


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    yield cluster
    for skt in cluster.sockets:
        skt.close()


def test_all_is_well(cluster):
    for _ in range(5):
        cluster.look_after(9)
        cluster.server.update()
        cluster.chief.update()
    cluster.watch.check()
    assert cluster.watch.servers == {"ps 0": cluster.server.record.incarnation}


def test_server_that_is_frozen_and_comes_back(cluster, caplog):
    cluster.look_after(0)
    cluster.look_after(9)
    assert "frozen" not in caplog.text
    cluster.look_after(2)
    cluster.look_after(60)
    cluster.watch.check()
    assert caplog.text.count("is frozen: it takes connections but has been silent for 10 s") == 1
    cluster.server.update()
    cluster.look_after(1)
    assert "ps 0 at" in caplog.text
    assert "is back" in caplog.text


def test_server_that_was_told_to_end(cluster):
    cluster.look_after(0)
    assert cluster.watch.stopping == set()
    cluster.server.update(details={server.STOPPING: True})
    cluster.look_after(1)
    cluster.watch.check()  # It is still there.
    assert cluster.watch.stopping == {cluster.server.record.incarnation}


def test_server_that_is_gone(cluster):
    cluster.look_after(0)
    cluster.sockets[0].close()
    cluster.look_after(9)
    cluster.watch.check()
    cluster.look_after(2)
    with pytest.raises(NodeAliveCheckerError, match=r"^ps 0 at .* is gone$"):
        cluster.watch.check()


def test_server_that_is_replaced_loses_its_connections(cluster):
    client = socket.create_connection(cluster.sockets[0].getsockname())
    cluster.take_place("ps", 0)
    cluster.look_after(0)
    with pytest.raises(NodeAliveCheckerError, match=r"^ps 0 was replaced by one at d:1$"):
        cluster.watch.check()
    assert client.recv(1) == b""
    client.close()


def test_chief_that_is_gone(cluster):
    cluster.look_after(0)
    cluster.sockets[1].close()
    cluster.look_after(5)
    cluster.watch.check()
    # After two heartbeats that did not come.
    cluster.look_after(1)
    with pytest.raises(NodeAliveCheckerError, match=r"^the chief at .* is gone$"):
        cluster.watch.check()


def test_chief_that_is_silent_but_there(cluster):
    cluster.look_after(0)
    cluster.look_after(11)
    cluster.watch.check()


def test_chief_that_is_replaced(cluster):
    cluster.take_place("worker", 0)
    cluster.look_after(0)
    with pytest.raises(
        NodeAliveCheckerError, match=r"^the chief at .* was replaced by one at d:1$"
    ):
        cluster.watch.check()


def test_chief_that_is_done(cluster):
    cluster.chief.leave(MemberState.FINISHED)
    cluster.look_after(0)
    with pytest.raises(NodeAliveCheckerError, match=r"^the chief at .* is finished$"):
        cluster.watch.check()


def test_chief_that_begins_again(cluster):
    cluster.chief.update(details={"attempt": 1})
    cluster.look_after(0)
    cluster.watch.check()
    cluster.watch.follow(read_member(cluster.model_dir, "worker", 0))
    cluster.look_after(1)
    cluster.watch.check()
    cluster.chief.update(details={"attempt": 2})
    cluster.look_after(1)
    with pytest.raises(NodeAliveCheckerError, match=r"restores the model$"):
        cluster.watch.check()


def test_this_worker_is_replaced(cluster):
    cluster.take_place("worker", 1)
    cluster.worker.update()
    with pytest.raises(MemberConflictError, match=r"^Worker 1 at c:1 gives way"):
        cluster.watch.check()


def test_chief_knows_which_workers_are_silent(cluster):
    watch = MemberWatch(cluster.model_dir, {}, {}, cluster.chief, clock=lambda: cluster.now_sec)
    watch.look()
    cluster.now_sec += 9
    watch.look()
    worker = read_member(cluster.model_dir, "worker", 1)
    assert not watch.is_silent(worker)
    cluster.now_sec += 2
    assert watch.is_silent(worker)
    cluster.worker.update()
    assert not watch.is_silent(read_member(cluster.model_dir, "worker", 1))


def test_file_system_that_is_away(cluster, monkeypatch):
    monkeypatch.setattr(members, "read_member", lambda *args: None)
    cluster.look_after(0)
    cluster.look_after(1000)
    cluster.watch.check()


@pytest.mark.usefixtures("graph_mode")
def test_a_step_fails(cluster, monkeypatch):
    monkeypatch.setattr("monolith.training.distributed.watch.PERIOD_SEC", 0.01)
    step = tf.constant(1)
    hooks = [cluster.watch.create_hook()]
    with cluster.watch, tf.compat.v1.train.SingularMonitoredSession(hooks=hooks) as session:
        session.run(step)
        cluster.take_place("ps", 0)

        def run_for_ever():
            while True:
                session.run(step)

        with pytest.raises(NodeAliveCheckerError, match="was replaced"):
            run_for_ever()


class TestWorkersThatDoStepsTogether:
    """The chief looks after the other worker, and whoever cannot go on leaves the servers."""

    @pytest.fixture
    def watch(self, cluster):
        cluster.listener = socket.create_server(("127.0.0.1", 0))
        addr = f"127.0.0.1:{cluster.listener.getsockname()[1]}"
        cluster.worker = Membership(cluster.model_dir, "worker", 1, addr, details={"attempt": 1})
        cluster.worker.join()
        heartbeat._stop_all()
        server = cluster.server.record
        watch = MemberWatch(
            cluster.model_dir,
            {server.address: server},
            {},
            cluster.chief,
            cuts_all=True,
            clock=lambda: cluster.now_sec,
        )
        watch.follow_workers([read_member(cluster.model_dir, "worker", 1)])
        cluster.watch = watch
        yield watch
        cluster.listener.close()

    @pytest.fixture
    def client(self, cluster, watch):
        """A connection to the server."""
        with socket.create_connection(cluster.sockets[0].getsockname()) as client:
            client.settimeout(0.1)
            yield client

    @staticmethod
    def is_cut(client):
        try:
            return client.recv(1) == b""
        except TimeoutError:
            return False

    def test_all_is_well(self, cluster, watch, client):
        for _ in range(3):
            cluster.look_after(9)
            cluster.server.update()
            cluster.worker.update(MemberState.RUNNING)
        watch.check()
        assert not self.is_cut(client)

    def test_worker_that_is_gone(self, cluster, watch, client):
        cluster.look_after(0)
        cluster.listener.close()
        cluster.look_after(7)
        with pytest.raises(NodeAliveCheckerError, match=r"^worker 1 at .* is gone$"):
            watch.check()
        assert self.is_cut(client)

    def test_what_is_tried_again_is_ended_again(self, cluster, watch, client):
        cluster.take_place("worker", 1)
        cluster.look_after(0)
        with socket.create_connection(cluster.sockets[0].getsockname()) as another:
            cluster.look_after(1)
            assert another.recv(1) == b""
        with pytest.raises(NodeAliveCheckerError, match=r"^worker 1 was replaced by one at d:1$"):
            watch.check()

    def test_worker_that_begins_anew(self, cluster, watch, client):
        cluster.worker.update(details={"attempt": 2})
        cluster.look_after(0)
        with pytest.raises(NodeAliveCheckerError, match=r"^worker 1 at .* begins anew$"):
            watch.check()
        assert self.is_cut(client)

    def test_worker_that_fails(self, cluster, watch, client):
        cluster.worker.update(MemberState.FAILED, "There is no file.")
        cluster.look_after(0)
        with pytest.raises(NodeAliveCheckerError, match=r"has ended \(There is no file\)$"):
            watch.check()
        assert self.is_cut(client)

    def test_worker_that_is_frozen(self, cluster, watch, client, caplog):
        cluster.look_after(0)
        cluster.server.update()
        cluster.look_after(11)
        watch.check()
        assert "worker 1 at" in caplog.text
        assert "is frozen: it takes connections but has been silent for 10 s" in caplog.text
        assert not self.is_cut(client)

    def test_worker_that_ends_first(self, cluster, watch, client):
        cluster.worker.update(MemberState.FINISHED)
        cluster.look_after(0)
        # The chief is not in a step: both have done the last one.
        cluster.look_after(100)
        watch.check()
        watch.begin_step()
        cluster.server.update()
        cluster.look_after(9)
        watch.check()
        cluster.look_after(2)
        with pytest.raises(NodeAliveCheckerError, match=r"^worker 1 .* left while others go on$"):
            watch.check()
        assert self.is_cut(client)

    def test_steps_that_end_are_no_reason(self, cluster, watch, client):
        hook = watch.create_hook()
        hook.before_run(None)
        hook.after_run(None, None)
        cluster.worker.update(MemberState.FINISHED)
        cluster.look_after(0)
        cluster.look_after(100)
        watch.check()
