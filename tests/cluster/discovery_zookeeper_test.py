"""Membership in a real ZooKeeper: processes that are killed, servers that go and come back."""

import json
import pathlib
import subprocess
import sys
import textwrap
import threading
import time
import uuid

import pytest
from kazoo.client import KazooClient

from monolith.cluster.discovery import ZKServiceDiscovery

pytestmark = pytest.mark.external

_MEMBER = pathlib.Path(__file__).parent / "zookeeper_member.py"
_SESSION_SEC = 1.0
# Outlives a server that is away for a moment. A client that meets a server while it starts waits
# for two thirds of this before it tries again.
_LONG_SESSION_SEC = 3.0
# For a busy machine to notice and write down what has happened.
_SLACK_SEC = 10.0


class Member:
    """A process that is a member of a job, and the views it has reported."""

    def __init__(self, hosts, job, index, addr, session_sec):
        self.addr = addr
        self.reports = []
        self._process = subprocess.Popen(
            [sys.executable, _MEMBER, hosts, job, "ps", str(index), addr, str(session_sec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            report = json.loads(line)
            view = {int(index): addr for index, addr in report["view"].items()}
            self.reports.append((report["time"], view))

    @property
    def view(self):
        return self.reports[-1][1] if self.reports else None

    def first_time(self, condition, after):
        """When this member first saw a view that meets `condition`, or None."""
        return next((t for t, view in list(self.reports) if t > after and condition(view)), None)

    def register(self):
        self._process.stdin.write("register\n")
        self._process.stdin.flush()

    def kill(self):
        self._process.kill()
        self._end()

    def leave(self):
        self._process.stdin.close()
        self._end()
        assert self._process.returncode == 0

    def _end(self):
        self._process.wait(20)
        self._reader.join()
        self._process.stdout.close()
        self._process.stdin.close()


@pytest.fixture
def job():
    return f"job-{uuid.uuid4().hex}"


@pytest.fixture
def start_member(zookeeper_server, job):
    members = []

    def start(index, addr, *, register=True, session_sec=_SESSION_SEC):
        member = Member(zookeeper_server.hosts, job, index, addr, session_sec)
        members.append(member)
        if register:
            member.register()
        return member

    yield start
    for member in members:
        member.kill()


@pytest.mark.distributed
class TestThreeProcesses:
    @pytest.fixture
    def members(self, start_member, eventually):
        members = [start_member(i, f"127.0.0.1:{1000 + i}") for i in range(3)]
        everybody = {i: member.addr for i, member in enumerate(members)}
        for member in members:
            eventually(lambda m=member: m.view == everybody)
        return members

    def test_killed_member_leaves_and_its_successor_is_seen(
        self, members, start_member, zookeeper_server, eventually
    ):
        first, victim, last = members
        killed_at = time.monotonic()
        victim.kill()
        for survivor in (first, last):
            without = {0: first.addr, 2: last.addr}
            left_at = eventually(
                lambda s=survivor, w=without: s.first_time(lambda view: view == w, killed_at)
            )
            # A session ends with the first tick after its timeout.
            assert left_at - killed_at < _SESSION_SEC + zookeeper_server.tick_sec + _SLACK_SEC

        successor = start_member(1, "127.0.0.1:2001")
        everybody = {0: first.addr, 1: successor.addr, 2: last.addr}
        for member in (first, successor, last):
            eventually(lambda m=member: m.view == everybody)

    def test_successor_that_comes_before_the_old_session_ends(
        self, start_member, job, zookeeper_server, eventually
    ):
        """Its address is seen at once, and outlives the session of the process it follows."""
        observer = start_member(0, "127.0.0.1:1000")
        victim = start_member(1, "127.0.0.1:1001", session_sec=_LONG_SESSION_SEC)
        successor = start_member(1, "127.0.0.1:2001", register=False)
        for member in (observer, successor):
            eventually(lambda m=member: m.view == {0: observer.addr, 1: victim.addr})
        hand = KazooClient(zookeeper_server.hosts)
        hand.start()
        old_owner = hand.exists(f"/monolith/{job}/ps.1").ephemeralOwner
        victim.kill()
        successor.register()
        everybody = {0: observer.addr, 1: successor.addr}
        eventually(lambda: observer.view == everybody)
        assert hand.exists(f"/monolith/{job}/ps.1").ephemeralOwner == old_owner
        eventually(
            lambda: (
                (stat := hand.exists(f"/monolith/{job}/ps.1")) and stat.ephemeralOwner != old_owner
            )
        )
        for member in (observer, successor):
            eventually(lambda m=member: m.view == everybody)
        hand.stop()
        hand.close()

    def test_member_that_leaves_takes_its_node_along(self, members, job, zookeeper_server):
        hand = KazooClient(zookeeper_server.hosts)
        hand.start()
        members[1].leave()
        # It said good-bye, so nobody waits for its session to time out.
        assert sorted(hand.get_children(f"/monolith/{job}")) == ["ps.0", "ps.2"]
        hand.stop()
        hand.close()


class TestServerGoesAway:
    @pytest.fixture
    def server(self, make_zookeeper_server):
        return make_zookeeper_server()

    def make_discovery(self, server, job, request, session_sec=_SESSION_SEC):
        discovery = ZKServiceDiscovery(
            job, server.hosts, delay=0.1, session_timeout_secs=session_sec
        )
        request.addfinalizer(discovery.close)
        return discovery

    def test_back_before_the_session_ends(self, server, job, request, eventually, caplog):
        discovery = self.make_discovery(server, job, request, session_sec=_LONG_SESSION_SEC)
        discovery.register("ps", 0, "127.0.0.1:1000")
        eventually(lambda: discovery.query("ps") == {0: "127.0.0.1:1000"})
        server.stop()
        eventually(lambda: "ZooKeeper does not answer" in caplog.text)
        # Queries go on with what is known.
        assert discovery.query("ps") == {0: "127.0.0.1:1000"}
        server.start()
        other = self.make_discovery(server, job, request)
        assert other.query("ps") == {0: "127.0.0.1:1000"}
        other.register("ps", 1, "127.0.0.1:1001")
        eventually(lambda: discovery.query("ps") == {0: "127.0.0.1:1000", 1: "127.0.0.1:1001"})

    def test_registration_waits_until_it_is_back(self, server, job, request, eventually, caplog):
        discovery = self.make_discovery(server, job, request, session_sec=_LONG_SESSION_SEC)
        server.stop()
        eventually(lambda: "ZooKeeper does not answer" in caplog.text)
        thread = threading.Thread(target=discovery.register, args=("ps", 0, "127.0.0.1:1000"))
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        server.start()
        thread.join(20)
        assert not thread.is_alive()
        eventually(lambda: discovery.query("ps") == {0: "127.0.0.1:1000"})

    def test_close_does_not_wait_for_it(self, server, job, request, eventually, caplog):
        discovery = self.make_discovery(server, job, request, session_sec=_LONG_SESSION_SEC)
        discovery.register("ps", 0, "127.0.0.1:1000")
        server.stop()
        eventually(lambda: "ZooKeeper does not answer" in caplog.text)
        discovery.do_all_registrations()  # a thread that hangs in a call
        start = time.monotonic()
        discovery.close()
        assert time.monotonic() - start < 30  # The server never comes back.


def test_server_and_members_with_ipv6(make_zookeeper_server, job, eventually):
    server = make_zookeeper_server("::1")
    assert server.hosts.startswith("[::1]:")
    discovery = ZKServiceDiscovery(job, server.hosts)
    discovery.register("ps", 0, "[::1]:1000")
    eventually(lambda: discovery.query("ps") == {0: "[::1]:1000"})
    discovery.close()


def test_interpreter_exits_without_close(zookeeper_server, job):
    program = textwrap.dedent(
        f"""
        from monolith.cluster.discovery import ZKServiceDiscovery
        discovery = ZKServiceDiscovery({job!r}, {zookeeper_server.hosts!r})
        discovery.register("ps", 0, "127.0.0.1:1000")
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
