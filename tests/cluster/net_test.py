"""Addresses and liveness checks, against mocked and real sockets."""

import contextlib
import os
import random
import resource
import socket as real_socket
import threading
import time
import unittest
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import errors
from monolith.cluster import net
from monolith.native_training import net_utils

_FAILED_TIME = 0
_DEAD_SET = set()
_STATE_LOCK = threading.Lock()


class socket:
    """Connects as slowly as chance decides, and fails if that is slower than the timeout."""

    def __init__(self, *args, **kwargs):
        self._timeout = None

    def settimeout(self, timeout):
        self._timeout = timeout

    def connect(self, address):
        global _FAILED_TIME
        with _STATE_LOCK:
            duration = random.random() * 2 * self._timeout
        time.sleep(min(duration, self._timeout))
        if duration > self._timeout:
            with _STATE_LOCK:
                _FAILED_TIME += 1
                _DEAD_SET.add("{}:{}".format(*address))
            raise TimeoutError("timed out")

    def close(self):
        pass


class NetUtilsTest(unittest.TestCase):
    def setUp(self):
        global _FAILED_TIME
        _FAILED_TIME = 0
        _DEAD_SET.clear()

    @mock.patch("monolith.native_training.net_utils.socket.socket", new=socket)
    def test_basic(self):
        addrs = {f"127.0.0.1:{2000 + i}" for i in range(5)}
        failures = set()
        # Chance decides who is dead; all outcomes must add up.
        for seed in range(3):
            self.setUp()
            random.seed(seed)
            checker = net_utils.NodeAliveChecker(list(addrs), timeout=0.05)
            self.assertEqual(set(checker.get_addrs()), addrs)
            alive, dead = checker.get_alive_nodes(), checker.get_dead_nodes()
            self.assertEqual(len(alive), 5 - _FAILED_TIME)
            self.assertEqual(len(dead), _FAILED_TIME)
            self.assertEqual(set(alive), addrs - _DEAD_SET)
            self.assertEqual(set(dead), _DEAD_SET)
            self.assertEqual(checker.all_nodes_alive(), _FAILED_TIME == 0)
            failures.add(_FAILED_TIME)
        self.assertGreater(max(failures), 0)
        self.assertLess(min(failures), 5)

    def test_concat_ip_and_port(self):
        self.assertEqual(net_utils.concat_ip_and_port("127.0.0.1", 10), "127.0.0.1:10")
        self.assertEqual(net_utils.concat_ip_and_port("localhost", 10), "localhost:10")
        self.assertEqual(net_utils.concat_ip_and_port("::1", 10), "[::1]:10")

    def test_get_local_server_addr(self):
        self.assertIsNotNone(net_utils.get_local_server_addr(10))


@contextlib.contextmanager
def listening(host, count=1):
    family = real_socket.AF_INET6 if ":" in host else real_socket.AF_INET
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            skt = stack.enter_context(real_socket.socket(family))
            skt.bind((host, 0))
            skt.listen(8)
            ports.append(skt.getsockname()[1])
        yield [net.concat_ip_and_port(host, port) for port in ports]


@pytest.fixture
def closed_addr():
    """An address where nobody listens; the port stays taken, so that nobody begins to."""
    with real_socket.socket() as skt:
        skt.bind(("127.0.0.1", 0))
        yield net.concat_ip_and_port(*skt.getsockname())


class TestRealSockets:
    def test_tells_alive_from_dead(self, closed_addr, capsys):
        with listening("127.0.0.1", 3) as addrs:
            checker = net.NodeAliveChecker([*addrs, closed_addr])
        assert sorted(checker.get_alive_nodes()) == sorted(addrs)
        assert checker.get_dead_nodes() == [closed_addr]
        assert not checker.all_nodes_alive()
        assert f"cannot connect to {closed_addr}, because " in capsys.readouterr().out

    def test_all_alive(self, capsys):
        with listening("127.0.0.1", 3) as addrs:
            checker = net.NodeAliveChecker(addrs)
            assert checker.get_addrs() is addrs
        assert checker.all_nodes_alive()
        assert capsys.readouterr().out == ""

    def test_ipv6(self):
        with listening("::1") as addrs:
            assert addrs[0].startswith("[::1]:")
            assert net.NodeAliveChecker(addrs).all_nodes_alive()

    def test_nobody_to_check(self):
        assert net.NodeAliveChecker([]).all_nodes_alive()

    @pytest.mark.parametrize(
        "addr", ["nonsense", "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:http", "127.0.0.1:70000"]
    )
    def test_malformed_address_is_dead(self, addr, capsys):
        checker = net.NodeAliveChecker([addr])
        assert checker.get_dead_nodes() == [addr]
        assert f"cannot connect to {addr}, because Invalid addr: {addr}" in capsys.readouterr().out

    def test_thousand_real_connections(self, closed_addr):
        with listening("127.0.0.1", 20) as alive:
            port = net.parse_address(closed_addr)[1]
            dead = [f"127.0.{i // 250}.{i % 250 + 2}:{port}" for i in range(980)]
            checker = net.NodeAliveChecker(alive + dead)
        assert sorted(checker.get_alive_nodes()) == sorted(alive)
        assert sorted(checker.get_dead_nodes()) == sorted(dead)


class SilentNetwork:
    """Answers nobody: a check waits until `wanted` of them wait at once, then times out."""

    def __init__(self):
        self.wanted = 1
        self.most_at_once = 0
        self._at_once = 0
        self._changed = threading.Condition()

    def socket(self, *args):
        return mock.Mock(connect=self._connect)

    def _connect(self, address):
        with self._changed:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self.most_at_once >= self.wanted, 60):
                self.wanted = 0  # It never gets there; nobody else need wait.
            self._at_once -= 1
        raise TimeoutError("timed out")


class TestManyAddresses:
    """A thousand silent addresses are asked at once, so that all cost about one timeout."""

    @pytest.fixture
    def network(self, monkeypatch):
        network = SilentNetwork()
        monkeypatch.setattr(net.socket, "socket", network.socket)
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        monkeypatch.setattr(net.resource, "getrlimit", lambda _: unlimited)
        return network

    def test_thousand_are_asked_at_once(self, network):
        addrs = [f"10.0.{i // 250}.{i % 250}:2222" for i in range(1000)]
        threads_before = threading.active_count()
        network.wanted = 1000
        checker = net.NodeAliveChecker(addrs)
        assert network.most_at_once == 1000
        assert sorted(checker.get_dead_nodes()) == sorted(addrs)
        assert threading.active_count() == threads_before

    def test_threads_are_bounded(self, network, monkeypatch):
        monkeypatch.setattr(net, "_MAX_CHECK_THREADS", 20)
        network.wanted = 20
        checker = net.NodeAliveChecker([f"10.0.0.{i}:2222" for i in range(60)])
        assert len(checker.get_dead_nodes()) == 60
        assert network.most_at_once == 20

    def test_files_left_to_others(self, network, monkeypatch):
        free = 40
        limit = len(os.listdir("/proc/self/fd")) + free
        monkeypatch.setattr(net.resource, "getrlimit", lambda _: (limit, limit))
        network.wanted = 11  # More than the ten that `num_thread` asks for.
        net.NodeAliveChecker([f"10.0.0.{i}:2222" for i in range(60)])
        assert 11 <= network.most_at_once <= free * 3 // 4

    def test_a_container_without_threads_still_checks(self, monkeypatch, closed_addr):
        def refuse(self):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        with listening("127.0.0.1") as addrs:
            checker = net.NodeAliveChecker([*addrs, closed_addr])
        assert checker.get_alive_nodes() == addrs
        assert checker.get_dead_nodes() == [closed_addr]


@pytest.mark.parametrize("kwargs", [{"timeout": 0}, {"timeout": -1}, {"num_thread": 0}])
def test_senseless_settings_are_rejected(kwargs):
    with pytest.raises(errors.ConfigError, match="must be positive"):
        net.NodeAliveChecker(["127.0.0.1:1"], **kwargs)


@pytest.mark.parametrize(
    ("ip", "expected"),
    [("::1", True), ("fd00::1", True), ("127.0.0.1", False), ("localhost", False), ("", False)],
)
def test_is_ipv6_address(ip, expected):
    assert net.is_ipv6_address(ip) is expected


@given(
    host=st.one_of(
        st.ip_addresses().map(str), st.sampled_from(["localhost", "ps-0.example", "a_b"])
    ),
    port=st.integers(0, 65535),
)
def test_parse_is_the_inverse_of_concat(host, port):
    assert net.parse_address(net.concat_ip_and_port(host, port)) == (host, port)


@pytest.mark.parametrize(
    ("addr", "reason"),
    [
        ("", "Expected host:port"),
        ("host", "Expected host:port"),
        (":80", "Expected host:port"),
        ("[]:80", "Expected host:port"),
        ("[host]:80", "Expected host:port"),
        ("host:", "from 0 to 65535, got ''"),
        ("host:-1", "got '-1'"),
        ("host: 80", "got ' 80'"),
        ("host:65536", "got '65536'"),
        ("host:80x", "got '80x'"),
    ],
)
def test_malformed_addresses_are_explained(addr, reason):
    with pytest.raises(ValueError, match=r"^Invalid addr: ") as info:
        net.parse_address(addr)
    assert reason in str(info.value)


class TestLocalAddress:
    def test_first_address_of_the_host_name(self):
        name = real_socket.gethostname()
        assert net.get_local_ip() == real_socket.getaddrinfo(name, None)[0][4][0]
        assert net.get_local_server_addr(80) == net.concat_ip_and_port(net.get_local_ip(), 80)

    def test_ipv6_where_there_is_no_other(self, monkeypatch):
        def getaddrinfo(host, port, family=0):
            if family != real_socket.AF_INET6:
                raise real_socket.gaierror(-2, "Name or service not known")
            return [(family, real_socket.SOCK_STREAM, 6, "", ("fd00::7", 0, 0, 0))]

        monkeypatch.setattr(net.socket, "getaddrinfo", getaddrinfo)
        assert net.get_local_ip() == "fd00::7"
        assert not net.is_ipv4_supported()
        assert net.get_local_server_addr(80) == "[fd00::7]:80"

    def test_unknown_host_name_is_named(self, monkeypatch):
        def getaddrinfo(*args, **kwargs):
            raise real_socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(net.socket, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr(net.socket, "gethostname", lambda: "lost-host")
        with pytest.raises(real_socket.gaierror, match="'lost-host', resolves to no address"):
            net.get_local_ip()

    def test_is_ipv4_supported(self, monkeypatch):
        monkeypatch.setattr(net, "get_local_ip", lambda: "10.0.0.1")
        assert net.is_ipv4_supported()


def test_address_family():
    assert net.AddressFamily.IPV4 == "ipv4"
    assert net.AddressFamily.IPV6 == "ipv6"


if __name__ == "__main__":
    unittest.main()


class TestCutConnections:
    def test_calls_over_them_fail_at_once(self):
        with real_socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            clients = [real_socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
            accepted = [server.accept()[0] for _ in range(2)]
            other_server = real_socket.create_server(("127.0.0.1", 0))
            other = real_socket.create_connection(other_server.getsockname())
            assert net.cut_connections(f"127.0.0.1:{port}") == 2
            for client in clients:
                assert client.recv(1) == b""
            # Nobody else was cut, and those that listen still do.
            real_socket.create_connection(("127.0.0.1", port)).close()
            other.sendall(b"x")
            for skt in (*clients, *accepted, other, other_server):
                skt.close()

    def test_by_name_and_as_ipv6_socket(self):
        with real_socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with real_socket.socket(real_socket.AF_INET6) as client:
                client.connect(("::ffff:127.0.0.1", port))
                assert net.cut_connections(f"localhost:{port}") == 1
                assert client.recv(1) == b""

    def test_nobody_is_connected_and_no_file_stays_open(self):
        before = len(os.listdir("/proc/self/fd"))
        assert net.cut_connections("127.0.0.1:1") == 0
        assert len(os.listdir("/proc/self/fd")) == before

    def test_host_that_does_not_resolve(self):
        assert net.cut_connections("no.such.host.invalid:80") == 0
