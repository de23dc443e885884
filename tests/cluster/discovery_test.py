"""The cases of the seed: Consul and ZooKeeper through fakes, TF_CONFIG.

ZooKeeper's cases run a second time against a real server, in `RealZKServiceDiscoveryTest`.

Covers monolith/cluster/discovery_base.py.
"""

import collections
import contextlib
import threading
import unittest
import uuid
from unittest import mock

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from monolith import errors
from monolith.cluster import consul, discovery, heartbeat
from monolith.native_training import service_discovery

_MODULE = "monolith.native_training.service_discovery"


class FakeConsul:
    """Keeps services in memory, with the call shapes of `consul.Client`."""

    def __init__(self, blacklist=()):
        self._services = collections.defaultdict(dict)
        self._blacklist = blacklist

    def lookup(self, name, **kwargs):
        return [
            {"Host": tags["ip"], "Port": port, "Tags": {k: str(v) for k, v in tags.items()}}
            for port, tags in self._services[name].items()
            if tags["ip"] not in self._blacklist
        ]

    def register(self, name, port, tags=None, check_script=None, host=None):
        assert list(tags) == ["index", "name", "ip"]
        self._services[name][port] = tags

    def deregister(self, name, port, host=None):
        del self._services[name][port]


class ConsultServiceDiscovery(unittest.TestCase):
    def setUp(self):
        super().setUp()
        self.consul = FakeConsul()
        for target, value in (
            ("consul.Client", lambda: self.consul),
            ("_RETRY_MAX_BACKOFF_SECS", 0),
        ):
            patcher = mock.patch(f"{_MODULE}.{target}", value)
            patcher.start()
            self.addCleanup(patcher.stop)

    def make_discovery(self):
        return service_discovery.ConsulServiceDiscovery("unique_id", retry_time_secs=0)

    def test_basic(self):
        discovery = self.make_discovery()
        discovery.register("server", 0, "192.168.0.1:1001")
        discovery.register("server", 1, "192.168.0.2:1002")
        self.assertEqual(discovery.query("server"), {0: "192.168.0.1:1001", 1: "192.168.0.2:1002"})
        discovery.deregister("server", 0, "192.168.0.1:1001")
        discovery.deregister("server", 1, "192.168.0.2:1002")
        self.assertEqual(discovery.query("server"), {})

    def test_duplicate_registration(self):
        discovery = self.make_discovery()
        discovery.register("server", 0, "192.168.0.1:1001")
        discovery.register("server", 0, "192.168.0.1:1002")
        self.assertEqual(discovery.query("server"), {0: "192.168.0.1:1002"})

    def test_multi_names(self):
        discovery = self.make_discovery()
        discovery.register("ps", 0, "192.168.0.1:1001")
        discovery.register("worker", 1, "192.168.0.1:1002")
        self.assertEqual(discovery.query("ps"), {0: "192.168.0.1:1001"})
        self.assertEqual(discovery.query("worker"), {1: "192.168.0.1:1002"})
        self.assertEqual(
            discovery.query_all(),
            {"ps": {0: "192.168.0.1:1001"}, "worker": {1: "192.168.0.1:1002"}},
        )

    def test_retry(self):
        for method in ("lookup", "register", "deregister"):
            with (
                self.subTest(method=method),
                mock.patch.object(self.consul, method, side_effect=TimeoutError) as call,
            ):
                discovery = self.make_discovery()
                with self.assertRaises(TimeoutError):
                    if method == "deregister":
                        discovery.deregister("server", 0, "192.168.0.1:1001")
                    else:
                        discovery.register("server", 0, "192.168.0.1:1001")
                self.assertEqual(call.call_count, 5)

    def test_registration_failed(self):
        self.consul = FakeConsul(blacklist=["192.168.0.1"])
        discovery = self.make_discovery()
        with self.assertRaisesRegex(OSError, "^This machine is blacklisted by consul.$"):
            discovery.register("server", 0, "192.168.0.1:1001")

    def test_retry_ends_with_the_first_success(self):
        calls = mock.Mock(side_effect=[TimeoutError, ConnectionResetError, "answer"])
        self.assertEqual(service_discovery.retry_with_socket_error(calls), "answer")
        calls = mock.Mock(side_effect=ValueError)
        with self.assertRaises(ValueError):
            service_discovery.retry_with_socket_error(calls)
        self.assertEqual(calls.call_count, 1)

    def test_retry_backs_off_by_chance(self):
        with (
            mock.patch(f"{_MODULE}._RETRY_MAX_BACKOFF_SECS", 7),
            mock.patch(f"{_MODULE}.np.random.rand", side_effect=[0.0, 0.25, 0.5, 1.0]),
            mock.patch(f"{_MODULE}.time.sleep") as sleep,
            self.assertRaises(OSError),
        ):
            service_discovery.retry_with_socket_error(mock.Mock(side_effect=OSError))
        self.assertEqual([call.args[0] for call in sleep.mock_calls], [0, 1.75, 3.5, 7])

    def test_ipv6(self):
        discovery = self.make_discovery()
        discovery.register("server", 0, "[fd00::1]:1001")
        self.assertEqual(self.consul.lookup("unique_id")[0]["Tags"]["ip"], "fd00::1")
        self.assertEqual(discovery.query("server"), {0: "[fd00::1]:1001"})

    def test_malformed_registrations(self):
        discovery = self.make_discovery()
        for addr in ("192.168.0.1", "192.168.0.1:99999", ":1001"):
            with self.assertRaisesRegex(ValueError, f"^Invalid addr: {addr}"):
                discovery.register("server", 0, addr)
        with self.assertRaisesRegex(errors.ConfigError, "at least 0, got -1"):
            discovery.register("server", -1, "192.168.0.1:1001")
        with self.assertRaisesRegex(errors.ConfigError, "got 'a/b'"):
            discovery.register("a/b", 0, "192.168.0.1:1001")
        self.assertEqual(self.consul.lookup("unique_id"), [])

    def test_foreign_services_are_ignored(self):
        self.consul.lookup = lambda name, **kwargs: [
            {"Port": 1, "Tags": {}},
            {"Port": 2, "Tags": {"name": "ps", "index": "x", "ip": "a"}},
            {"Tags": {"name": "ps", "index": "0", "ip": "a"}},
            {"Port": 4, "Tags": {"name": "ps", "index": "1", "ip": "a"}},
        ]
        with self.assertLogs(discovery.logger, "WARNING") as logs:
            self.assertEqual(self.make_discovery().query_all(), {"ps": {1: "a:4"}})
        self.assertEqual(len(logs.output), 3)

    def test_index_of_another_machine_that_stays(self):
        """Consul takes back only what this machine registered."""
        self.consul.register("unique_id", 1, {"index": 0, "name": "ps", "ip": "other"})
        refused = mock.Mock(side_effect=consul.ConsulException("Unknown service ID"))
        clock = range(0, 10_000, 50)
        with (
            mock.patch.object(self.consul, "deregister", refused),
            mock.patch(f"{_MODULE}.time.monotonic", side_effect=clock),
            self.assertRaisesRegex(OSError, "ps 0 is still registered in Consul at other:1"),
        ):
            self.make_discovery().register("ps", 0, "mine:1001")
        self.assertGreater(refused.call_count, 1)

    def test_two_claim_one_index(self):
        answers = [[], [{"Port": 1, "Tags": {"index": "0", "name": "ps", "ip": "other"}}]]
        self.consul.lookup = lambda name, **kwargs: answers.pop(0)
        with self.assertLogs(discovery.logger, "ERROR") as logs:
            self.make_discovery().register("ps", 0, "mine:1001")
        self.assertIn("Consul shows ps 0 at other:1, not at mine:1001", logs.output[0])


class UtilsTest(unittest.TestCase):
    @mock.patch(f"{_MODULE}._RETRY_MAX_BACKOFF_SECS", 0)
    def test_deregister_all(self):
        fake = FakeConsul()
        with mock.patch(f"{_MODULE}.consul.Client", return_value=fake):
            discovery = service_discovery.ConsulServiceDiscovery("unique_id")
            discovery.register("ps", 0, "192.168.0.1:1001")
            discovery.register("ps", 1, "192.168.0.1:1002")
            discovery.register("worker", 0, "192.168.0.1:1003")
            service_discovery.deregister_all("unique_id")
            self.assertEqual(discovery.query_all(), {})


class TfConfigServiceDiscoveryTest(unittest.TestCase):
    def test_tf_conf_sd(self):
        tf_config = {
            "cluster": {
                "chief": ["host0:2222"],
                "ps": ["host1:2222", "host2:2222"],
                "worker": ["host3:2222", "host4:2222", "host5:2222"],
            },
            "task": {"type": "worker", "index": 1},
        }
        discovery = service_discovery.TfConfigServiceDiscovery(tf_config)
        self.assertEqual(discovery.query("ps"), {0: "host1:2222", 1: "host2:2222"})
        self.assertEqual(
            discovery.query("worker"),
            {0: "host0:2222", 1: "host3:2222", 2: "host4:2222", 3: "host5:2222"},
        )
        self.assertEqual(discovery.addr, "host4:2222")
        self.assertEqual(discovery.server_type, "worker")
        self.assertEqual(discovery.index, 2)


class ZKCases:
    """What both ZooKeepers must do; a subclass says how to reach one."""

    repair_sec = 1

    def make_discovery(self):
        discovery = service_discovery.ZKServiceDiscovery(
            self.job_name, self.hosts, max_tries=3, delay=0.1
        )
        self.addCleanup(discovery.close)
        return discovery

    def assert_view(self, discovery, name, addrs):
        self.eventually(lambda: discovery.query(name) == addrs)

    def test_basic(self):
        discovery = self.make_discovery()
        discovery.register("server", 0, "192.168.0.1:1001")
        discovery.register("server", 1, "192.168.0.2:1002")
        self.assert_view(discovery, "server", {0: "192.168.0.1:1001", 1: "192.168.0.2:1002"})
        discovery.deregister("server", 0, "192.168.0.1:1001")
        self.assert_view(discovery, "server", {1: "192.168.0.2:1002"})
        discovery.deregister("server", 1, "192.168.0.2:1002")
        self.assert_view(discovery, "server", {})

    def test_duplicate_registration(self):
        discovery = self.make_discovery()
        discovery.register("server", 0, "192.168.0.1:1001")
        discovery.register("server", 0, "192.168.0.1:1002")
        self.assert_view(discovery, "server", {0: "192.168.0.1:1002"})
        # And one thread is left to look after it.
        self.assertEqual(len(self.registration_threads()), 1)

    def test_multi_names(self):
        discovery = self.make_discovery()
        discovery.register("ps", 0, "192.168.0.1:1001")
        discovery.register("worker", 0, "192.168.0.1:1002")
        self.assert_view(discovery, "ps", {0: "192.168.0.1:1001"})
        self.assert_view(discovery, "worker", {0: "192.168.0.1:1002"})
        self.assertEqual(discovery.query("nobody"), {})

    def test_periodic_registration(self):
        with mock.patch(f"{_MODULE}._ZK_REGISTRATION_PERIOD", 0.01):
            discovery = self.make_discovery()
            discovery.register("server", 0, "192.168.0.1:1001")
            self.assert_view(discovery, "server", {0: "192.168.0.1:1001"})
            self.hand.set(self.path("server.0"), b"wrongdata")
            self.eventually(
                lambda: self.hand.get(self.path("server.0"))[0] == b"192.168.0.1:1001",
                timeout_sec=self.repair_sec,
            )
            self.assert_view(discovery, "server", {0: "192.168.0.1:1001"})

    def test_listener(self):
        discovery = self.make_discovery()
        discovery.register("server", 0, "192.168.0.1:1001")
        first_owner = self.hand.exists(self.path("server.0")).ephemeralOwner
        self.lose_and_regain_session(discovery)
        self.eventually(
            lambda: (
                (stat := self.hand.exists(self.path("server.0")))
                and stat.ephemeralOwner != first_owner
            )
        )
        self.assertEqual(self.hand.get(self.path("server.0"))[0], b"192.168.0.1:1001")
        self.assert_view(discovery, "server", {0: "192.168.0.1:1001"})

    # From here on: not in the seed.

    def test_ipv6_addresses(self):
        discovery = self.make_discovery()
        discovery.register("server", 0, "[fd00::1]:1001")
        self.assert_view(discovery, "server", {0: "[fd00::1]:1001"})

    def test_others_see_registrations(self):
        ours, theirs = self.make_discovery(), self.make_discovery()
        ours.register("ps", 0, "192.168.0.1:1001")
        theirs.register("ps", 1, "192.168.0.2:1001")
        both = {0: "192.168.0.1:1001", 1: "192.168.0.2:1001"}
        self.assert_view(ours, "ps", both)
        self.assert_view(theirs, "ps", both)
        theirs.close()
        self.assert_view(ours, "ps", {0: "192.168.0.1:1001"})

    def test_deleted_node_comes_back_at_once(self):
        discovery = self.make_discovery()
        discovery.register("ps", 0, "192.168.0.1:1001")
        self.assert_view(discovery, "ps", {0: "192.168.0.1:1001"})
        self.hand.delete(self.path("ps.0"))
        self.eventually(lambda: self.hand.exists(self.path("ps.0")))
        self.assert_view(discovery, "ps", {0: "192.168.0.1:1001"})

    def test_changed_node_is_restored_at_once(self):
        discovery = self.make_discovery()
        discovery.register("ps", 0, "192.168.0.1:1001")
        self.assert_view(discovery, "ps", {0: "192.168.0.1:1001"})
        self.hand.set(self.path("ps.0"), b"\xff not an address")
        self.eventually(lambda: self.hand.get(self.path("ps.0"))[0] == b"192.168.0.1:1001")
        self.assert_view(discovery, "ps", {0: "192.168.0.1:1001"})

    def test_deregistered_node_stays_away(self):
        discovery = self.make_discovery()
        with mock.patch(f"{_MODULE}._ZK_REGISTRATION_PERIOD", 0.001):
            discovery.register("ps", 0, "192.168.0.1:1001")
            self.assert_view(discovery, "ps", {0: "192.168.0.1:1001"})
            discovery.deregister("ps", 0, "192.168.0.1:1001")
        self.assertEqual(self.registration_threads(), [])
        self.assertIsNone(self.hand.exists(self.path("ps.0")))
        discovery.deregister("ps", 0, "192.168.0.1:1001")  # twice does no harm

    def test_two_living_processes_claim_one_index(self):
        """The first keeps it, the second says so, and gets it when the first is gone."""
        first, second = self.make_discovery(), self.make_discovery()
        first.register("ps", 0, "192.168.0.1:1001")
        self.assert_view(second, "ps", {0: "192.168.0.1:1001"})
        with self.assertLogs("monolith.cluster.discovery_zookeeper", "ERROR") as logs:
            second.register("ps", 0, "192.168.0.2:2002")
            self.eventually(lambda: logs.output)
        self.assertIn("ps.0 at 192.168.0.2:2002 gives way to 192.168.0.1:1001", logs.output[0])
        self.assert_view(first, "ps", {0: "192.168.0.1:1001"})
        self.assert_view(second, "ps", {0: "192.168.0.1:1001"})
        # Not its node, so not its to delete.
        second.deregister("ps", 0, "192.168.0.2:2002")
        self.assertEqual(self.hand.get(self.path("ps.0"))[0], b"192.168.0.1:1001")
        second.register("ps", 0, "192.168.0.2:2002")
        self.assert_view(second, "ps", {0: "192.168.0.1:1001"})
        first.close()
        self.assert_view(second, "ps", {0: "192.168.0.2:2002"})

    def test_job_deleted_under_its_members(self):
        """Nodes come back, and so do the watches that find new members."""
        member = self.make_discovery()
        member.register("ps", 0, "192.168.0.1:1001")
        self.assert_view(member, "ps", {0: "192.168.0.1:1001"})
        with contextlib.suppress(Exception):  # the member may be quicker than the deletion
            self.hand.delete(f"/monolith/{self.job_name}", recursive=True)
        self.eventually(lambda: self.hand.exists(self.path("ps.0")))
        newcomer = self.make_discovery()
        newcomer.register("ps", 1, "192.168.0.2:1001")
        both = {0: "192.168.0.1:1001", 1: "192.168.0.2:1001"}
        self.assert_view(newcomer, "ps", both)
        self.assert_view(member, "ps", both)

    def test_strange_nodes_are_ignored(self):
        discovery = self.make_discovery()
        for node in ("notes", "ps.x", ".1", "ps.-1"):
            self.hand.create(self.path(node), value=b"192.168.0.1:1")
        discovery.register("ps", 0, "192.168.0.1:1001")
        self.assert_view(discovery, "ps", {0: "192.168.0.1:1001"})

    def test_close(self):
        discovery = self.make_discovery()
        discovery.register("ps", 0, "192.168.0.1:1001")
        discovery.close()
        discovery.close()
        self.assertEqual(self.registration_threads(), [])
        self.assertIsNone(self.hand.exists(self.path("ps.0")))
        for call in (discovery.register, discovery.deregister):
            with self.assertRaisesRegex(RuntimeError, "This discovery is closed"):
                call("ps", 0, "192.168.0.1:1001")

    def test_what_is_closed_takes_nothing_from_others(self):
        closed, other = self.make_discovery(), self.make_discovery()
        closed.register("ps", 0, "192.168.0.1:1001")
        closed.close()
        other.register("ps", 0, "192.168.0.1:1001")
        with self.assertRaisesRegex(RuntimeError, "This discovery is closed"):
            closed.deregister("ps", 0, "192.168.0.1:1001")
        self.assert_view(other, "ps", {0: "192.168.0.1:1001"})
        self.assertIsNotNone(self.hand.exists(self.path("ps.0")))

    def test_malformed_registrations(self):
        discovery = self.make_discovery()
        for name, index, addr in (
            ("ps", 0, "192.168.0.1"),
            ("ps", 0, "192.168.0.1:65536"),
            ("ps", -1, "192.168.0.1:1"),
            ("ps", "0", "192.168.0.1:1"),
            ("p/s", 0, "192.168.0.1:1"),
            ("", 0, "192.168.0.1:1"),
        ):
            with (
                self.subTest(name=name, index=index, addr=addr),
                self.assertRaises(errors.ConfigError),
            ):
                discovery.register(name, index, addr)
        self.assertEqual(self.hand.get_children(f"/monolith/{self.job_name}"), [])

    def path(self, node):
        return f"/monolith/{self.job_name}/{node}"

    def registration_threads(self):
        return [t.name for t in threading.enumerate() if t.name.startswith("ZKRegistration")]


class ZKServiceDiscoveryTest(ZKCases, unittest.TestCase):
    hosts = "fake:2181"

    @pytest.fixture(autouse=True)
    def _server(self, fake_kazoo, eventually):
        self.eventually = eventually
        self.job_name = "test_model"
        self.server = fake_kazoo.FakeZooKeeper()
        self.clients = []

        def make_client(hosts, **kwargs):
            self.clients.append(self.server.client(hosts, **kwargs))
            return self.clients[-1]

        self.hand = self.server.client()
        self.hand.start()
        with mock.patch(f"{_MODULE}.MonolithKazooClient", make_client):
            yield

    def lose_and_regain_session(self, discovery):
        client = self.clients[0]
        listener = client.listeners[0]
        self.assertIsNone(listener(KazooState.SUSPENDED))
        client.lose_session()
        self.assertEqual(self.hand.get_children(f"/monolith/{self.job_name}"), [])
        client.connect()

    def test_listener_without_loss_does_nothing(self):
        discovery = mock.Mock()
        listener = service_discovery.ZKListener(discovery)
        for state in (KazooState.CONNECTED, KazooState.SUSPENDED, KazooState.CONNECTED):
            self.assertIsNone(listener(state))
        discovery.do_all_registrations.assert_not_called()
        listener(KazooState.LOST)
        discovery.do_all_registrations.assert_not_called()
        listener(KazooState.CONNECTED)
        listener(KazooState.CONNECTED)
        discovery.do_all_registrations.assert_called_once_with()

    def test_session_timeout_reaches_the_client(self):
        self.addCleanup(service_discovery.ZKServiceDiscovery("job", "a:1").close)
        self.addCleanup(
            service_discovery.ZKServiceDiscovery("job", "a:1", session_timeout_secs=3).close
        )
        self.assertEqual([client.kwargs for client in self.clients], [{}, {"timeout": 3}])

    def test_failed_start_is_raised_and_cleaned_up(self):
        client = mock.Mock()
        client.start.side_effect = KazooTimeoutError("Connection time-out")
        with (
            mock.patch(f"{_MODULE}.MonolithKazooClient", return_value=client),
            self.assertLogs("monolith.cluster.discovery_zookeeper", "ERROR"),
            self.assertRaises(KazooTimeoutError),
        ):
            service_discovery.ZKServiceDiscovery("job", "a:1")
        client.stop.assert_called_once_with()
        client.close.assert_called_once_with()

    def test_job_needs_a_name(self):
        for name in (None, "", "a/b"):
            with self.assertRaisesRegex(errors.ConfigError, "non-empty name without '/'"):
                service_discovery.ZKServiceDiscovery(name, "a:1")

    def test_registration_is_tried_again(self):
        discovery = self.make_discovery()
        with mock.patch.object(self.clients[0], "create") as flaky:
            flaky.side_effect = [ConnectionLoss, ConnectionLoss, mock.DEFAULT]
            discovery.register("ps", 0, "192.168.0.1:1001")
            self.assertEqual(flaky.call_count, 3)
            flaky.side_effect = ConnectionLoss
            with self.assertRaisesRegex(Exception, "Too many retry attempts"):
                discovery.register("ps", 1, "192.168.0.1:1002")
        self.assertEqual(self.registration_threads(), ["ZKRegistration-ps.0"])

    def test_predecessor_ends_between_create_and_set(self):
        discovery = self.make_discovery()
        self.hand.create(self.path("ps.0"), value=b"192.168.0.9:9", ephemeral=True)
        real_set = self.clients[0].set

        def end_then_set(path, value):
            self.hand.lose_session()
            self.hand.connect()
            real_set(path, value)

        with mock.patch.object(self.clients[0], "set", end_then_set):
            discovery.register("ps", 0, "192.168.0.1:1001")
        self.assert_view(discovery, "ps", {0: "192.168.0.1:1001"})

    def test_failed_repair_is_tried_again_soon(self):
        discovery = self.make_discovery()
        discovery.register("ps", 0, "192.168.0.1:1001")
        with mock.patch.object(self.clients[0], "create", side_effect=OSError("away")):
            with self.assertLogs("monolith.cluster.discovery_zookeeper", "WARNING") as logs:
                self.hand.delete(self.path("ps.0"))
                self.eventually(lambda: len(logs.output) >= 2)
            self.assertIn("could not repair ps.0", logs.output[0])
        self.eventually(lambda: self.hand.exists(self.path("ps.0")))


@pytest.mark.external
class RealZKServiceDiscoveryTest(ZKCases, unittest.TestCase):
    repair_sec = 5  # another process has its part in it

    @pytest.fixture(autouse=True)
    def _server(self, zookeeper_server, eventually):
        self.eventually = eventually
        self.hosts = zookeeper_server.hosts
        self.job_name = f"job-{uuid.uuid4().hex}"
        self.hand = KazooClient(self.hosts)
        self.hand.start()
        yield
        self.hand.stop()
        self.hand.close()

    def lose_and_regain_session(self, discovery):
        # ZooKeeper's own trick: whoever knows a session's id and password may end it.
        thief = KazooClient(self.hosts, client_id=discovery._client.client_id)
        thief.start()
        thief.stop()
        thief.close()


@pytest.fixture
def agent(consul_agent, monkeypatch):
    agent = consul_agent.ConsulAgent(stock=True)
    with consul_agent.serving(agent) as port:
        monkeypatch.setenv("CONSUL_HTTP_HOST", "127.0.0.1")
        monkeypatch.setenv("CONSUL_HTTP_PORT", str(port))
        monkeypatch.setenv("MONOLITH_CONSUL_LOOKUP", "health")
        yield agent
        heartbeat._stop_all()


def test_consul_over_http(agent, monkeypatch):
    """The same calls through a real client and a real server."""
    monkeypatch.setattr(discovery, "_RETRY_MAX_BACKOFF_SECS", 0.01)
    service = discovery.ConsulServiceDiscovery("job", retry_time_secs=0)
    service.register("ps", 0, "[fd00::1]:1001")
    service.register("ps", 1, "10.0.0.2:1002")
    service.register("ps", 1, "10.0.0.2:1003")
    assert service.query_all() == {"ps": {0: "[fd00::1]:1001", 1: "10.0.0.2:1003"}}
    assert sorted(agent.services) == ["job-1001", "job-1003"]
    discovery.deregister_all("job")
    assert agent.services == {}


def test_every_kind_has_a_type():
    assert {t.name: t.value for t in discovery.ServiceDiscoveryType} == {
        "PRIMUS": 1,
        "CONSUL": 2,
        "ZK": 3,
        "MLP": 4,
        "FILE": 5,
    }


def test_discovery_is_abstract():
    assert discovery.ServiceDiscovery.__abstractmethods__ == {"register", "deregister", "query"}


if __name__ == "__main__":
    unittest.main()
