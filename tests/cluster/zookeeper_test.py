"""ZooKeeper's servers, credentials and cleaning up, with a fake and with a real server."""

import datetime
import subprocess
import sys
import textwrap
import time
import types
import uuid

import pytest
from kazoo import security
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.handlers.threading import KazooTimeoutError

from monolith import errors
from monolith.cluster import zookeeper
from monolith.native_training import zk_utils

_WEEK_SEC = 7 * 24 * 3600
_VARIABLES = ("MY_HOST_IP", "MY_POD_IP", "MY_HOST_IPV6")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in (*_VARIABLES, "ZK_AUTH"):
        monkeypatch.delenv(name, raising=False)


class TestIsIpv6Only:
    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({"MY_HOST_IP": "10.0.0.1"}, False),
            ({"MY_POD_IP": "10.0.0.2"}, False),
            ({"MY_HOST_IPV6": "fd00::1"}, True),
            ({"MY_HOST_IPV6": "fd00::1", "MY_HOST_IP": "10.0.0.1"}, False),
            ({"MY_HOST_IPV6": "fd00::1", "MY_POD_IP": "10.0.0.2"}, False),
            ({"MY_HOST_IPV6": "fd00::1", "MY_HOST_IP": ""}, True),
        ],
    )
    def test_environment_decides(self, environment, expected, monkeypatch):
        def lookup(name):
            raise AssertionError("the environment says enough")

        monkeypatch.setattr(zookeeper.socket, "gethostbyname", lookup)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert zookeeper.is_ipv6_only() is expected

    def test_elsewhere_the_host_name_decides(self, monkeypatch):
        monkeypatch.setattr(zookeeper.socket, "gethostname", lambda: "me")
        monkeypatch.setattr(zookeeper.socket, "gethostbyname", {"me": "10.0.0.1"}.__getitem__)
        assert zookeeper.is_ipv6_only() is False

        def lookup(name):
            raise OSError("no address")

        monkeypatch.setattr(zookeeper.socket, "gethostbyname", lookup)
        assert zookeeper.is_ipv6_only() is True


class TestDefaultServers:
    def test_none_in_this_build(self):
        assert zk_utils._PORT == 2181
        assert zk_utils._HOSTS == []
        assert zk_utils._HOSTS_IPV6 == []
        assert zk_utils.default_zk_servers() == ""
        assert zk_utils.default_zk_servers(use_ipv6=True) == ""

    def test_format(self, monkeypatch):
        monkeypatch.setattr(zookeeper, "_HOSTS", ["10.0.0.1", "10.0.0.2"])
        monkeypatch.setattr(zookeeper, "_HOSTS_IPV6", ["fd00::1", "fd00::2"])
        monkeypatch.setenv("MY_HOST_IP", "10.0.0.9")
        assert zookeeper.default_zk_servers() == "10.0.0.1:2181,10.0.0.2:2181"
        assert zookeeper.default_zk_servers(use_ipv6=True) == "[fd00::1]:2181,[fd00::2]:2181"
        monkeypatch.delenv("MY_HOST_IP")
        monkeypatch.setenv("MY_HOST_IPV6", "fd00::9")
        assert zookeeper.default_zk_servers() == "[fd00::1]:2181,[fd00::2]:2181"


class TestClient:
    def test_credentials_come_from_the_environment(self, monkeypatch):
        assert zookeeper.MonolithKazooClient("a:1").auth_data == set()
        monkeypatch.setenv("ZK_AUTH", "user:password")
        client = zookeeper.MonolithKazooClient("a:1", timeout=3.0)
        assert client.auth_data == {("digest", "user:password")}
        assert client._session_timeout == 3000

    def test_given_credentials_hold(self, monkeypatch):
        monkeypatch.setenv("ZK_AUTH", "user:password")
        client = zookeeper.MonolithKazooClient("a:1", auth_data=[("digest", "me:mine")])
        assert client.auth_data == {("digest", "me:mine")}

    @pytest.mark.parametrize("hosts", ["", "  "])
    @pytest.mark.parametrize("kind", [errors.ConfigError, KazooTimeoutError])
    def test_no_server_is_said_at_once(self, hosts, kind):
        with pytest.raises(kind, match="No ZooKeeper server is configured; set `zk_server`"):
            zookeeper.MonolithKazooClient(hosts)

    @pytest.mark.external
    def test_server_accepts_the_credentials(self, zookeeper_server, monkeypatch):
        monkeypatch.setenv("ZK_AUTH", "user:password")
        client = zookeeper.MonolithKazooClient(zookeeper_server.hosts)
        client.start()
        path = f"/secret-{uuid.uuid4().hex}"
        acl = security.make_digest_acl("user", "password", all=True)
        client.create(path, b"value", acl=[acl], ephemeral=True)
        assert client.get(path)[0] == b"value"
        stranger = KazooClient(zookeeper_server.hosts)
        stranger.start()
        with pytest.raises(NoAuthError):
            stranger.get(path)
        for each in (client, stranger):
            each.stop()
            each.close()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.external)])
def hosts(request, monkeypatch):
    """Where a ZooKeeper is."""
    if request.param == "fake":
        server = request.getfixturevalue("fake_kazoo").FakeZooKeeper()
        monkeypatch.setattr(zookeeper, "MonolithKazooClient", server.client)
        return "fake:2181"
    return request.getfixturevalue("zookeeper_server").hosts


@pytest.fixture
def hand(hosts):
    """A client of that ZooKeeper."""
    client = zookeeper.MonolithKazooClient(hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def job(hand):
    job = f"job-{uuid.uuid4().hex}"
    yield job
    hand.delete(f"/monolith/{job}", recursive=True)


class TestClearZkPath:
    def test_nothing_there(self, hosts, hand, job):
        zookeeper.clear_zk_path(hosts, job, False)
        assert hand.exists("/monolith")
        assert not hand.exists(f"/monolith/{job}")

    def test_refuses_a_job_that_has_members(self, hosts, hand, job):
        hand.create(f"/monolith/{job}/ps.0", value=b"", makepath=True)
        hand.create(f"/monolith/{job}/ps.1", value=b"")
        with pytest.raises(ValueError, match=r"^there are ") as info:
            zookeeper.clear_zk_path(hosts, job, False)
        assert str(info.value) in (
            "there are [ps.0,ps.1] in monolith zk path",
            "there are [ps.1,ps.0] in monolith zk path",
        )
        assert hand.exists(f"/monolith/{job}/ps.0")

    def test_force(self, hosts, hand, job):
        hand.create(f"/monolith/{job}/ps.0", value=b"", makepath=True)
        zookeeper.clear_zk_path(hosts, job, True)
        assert not hand.exists(f"/monolith/{job}")

    @pytest.mark.parametrize(
        ("weeks", "kept"),
        [
            pytest.param(8.99, True, id="younger_than_nine_weeks"),
            pytest.param(9.01, False, id="older_than_nine_weeks"),
        ],
    )
    def test_old_jobs_are_dropped(self, hosts, hand, job, weeks, kept, monkeypatch):
        hand.create(f"/monolith/{job}/ps.0", value=b"", makepath=True)
        later_sec = time.time() + weeks * _WEEK_SEC

        class Later(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return cls.fromtimestamp(later_sec, tz)

        # Only for our module: kazoo needs the real time.
        monkeypatch.setattr(zookeeper, "datetime", types.SimpleNamespace(datetime=Later))
        zookeeper.clear_zk_path(hosts, f"{job}-next", False)
        assert bool(hand.exists(f"/monolith/{job}")) is kept

    def test_client_is_stopped_whatever_happens(self, hosts, hand, job, monkeypatch):
        clients = []
        make_client = zookeeper.MonolithKazooClient

        def remember(*args, **kwargs):
            clients.append(make_client(*args, **kwargs))
            return clients[-1]

        monkeypatch.setattr(zookeeper, "MonolithKazooClient", remember)
        hand.create(f"/monolith/{job}/ps.0", value=b"", makepath=True)
        with pytest.raises(ValueError, match=r"ps\.0"):
            zookeeper.clear_zk_path(hosts, job, False)
        assert clients[0].client_id is None
        assert clients[0].state == "LOST"


def test_another_job_cleans_up_at_the_same_time(fake_kazoo, monkeypatch, caplog):
    server = fake_kazoo.FakeZooKeeper()
    monkeypatch.setattr(zookeeper, "MonolithKazooClient", server.client)
    hand = server.client()
    hand.start()
    hand.ensure_path("/monolith/gone")
    hand.ensure_path("/monolith/stays")
    real_children = server.children

    def children(path):
        # It was listed, and is gone when its turn comes.
        if path == "/monolith/gone":
            server.nodes.pop(path, None)
        return real_children(path)

    monkeypatch.setattr(server, "children", children)
    zookeeper.clear_zk_path("fake", "job", False)
    assert "could not clean up /monolith/gone" in caplog.text
    assert "/monolith/stays" in server.nodes


def test_without_kazoo_everything_else_works():
    program = textwrap.dedent(
        """
        import sys
        sys.modules["kazoo"] = None  # as if it were not installed
        from monolith.cluster import discovery, zookeeper
        assert zookeeper.default_zk_servers() == ""
        discovery.TfConfigServiceDiscovery({"cluster": {}, "task": {}})
        for make in (
            lambda: zookeeper.MonolithKazooClient("a:1"),
            lambda: discovery.ZKServiceDiscovery("job", "a:1"),
            lambda: zookeeper.clear_zk_path("a:1", "job", False),
        ):
            try:
                make()
            except ImportError as error:
                print(error)
        """
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    sentence = (
        "ZooKeeper needs the package kazoo, which is not installed; "
        'run `pip install "monolith-recsys[zookeeper]"`.'
    )
    assert result.stdout.splitlines() == [sentence] * 3
