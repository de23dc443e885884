"""The Consul client, with the seed's mocks and with a real HTTP server."""

import json
import subprocess
import sys
import textwrap
import threading
import time
import unittest
from http.client import OK
from unittest import mock

import pytest

from monolith import errors
from monolith.cluster import consul, heartbeat
from monolith.native_training import consul as historical_consul

pytestmark = pytest.mark.usefixtures("_no_consul_settings")


@pytest.fixture
def _no_consul_settings(monkeypatch):
    for name in ("CONSUL_HTTP_HOST", "TCE_HOST_IP", "CONSUL_HTTP_PORT", "MONOLITH_CONSUL_LOOKUP"):
        monkeypatch.delenv(name, raising=False)
    yield
    heartbeat._stop_all()


@pytest.mark.usefixtures("_no_consul_settings")
class ConsulTest(unittest.TestCase):
    @mock.patch("monolith.native_training.consul.HTTPConnection")
    def test_lookup(self, connection):
        answer = [{"Host": "10.0.0.1", "Port": 80, "Tags": {"index": "0"}}]
        response = connection.return_value.getresponse.return_value
        response.status = OK
        response.read.return_value = json.dumps(answer)
        client = historical_consul.Client()
        self.assertEqual(client.lookup("test_name"), answer)
        connection.assert_called_once_with("127.0.0.1", 2280, timeout=3)
        connection.return_value.request.assert_called_once_with(
            "GET", "/v1/lookup/name?name=test_name&addr-family=dual-stack"
        )
        connection.return_value.close.assert_called_once_with()

    @mock.patch("monolith.native_training.consul.HTTPConnection")
    def test_register(self, connection):
        connection.return_value.getresponse.return_value.status = OK
        client = historical_consul.Client()
        client.register("test_name", 12345, tags={"k": "v"})
        method, path, body, _ = connection.return_value.request.call_args_list[0].args
        self.assertEqual((method, path), ("PUT", "/v1/agent/service/register"))
        self.assertEqual(
            json.loads(body),
            {
                "id": "test_name-12345",
                "name": "test_name",
                "port": 12345,
                "check": {"ttl": "60s"},
                "tags": ["k:v"],
            },
        )
        self.assertEqual(connection.call_args_list[0].kwargs, {"timeout": 15})

    @mock.patch("monolith.native_training.consul.HTTPConnection")
    def test_deregister(self, connection):
        connection.return_value.getresponse.return_value.status = OK
        client = historical_consul.Client()
        client.deregister("test_name", 12345)
        connection.return_value.request.assert_called_once_with(
            "PUT", "/v1/agent/service/deregister/test_name-12345"
        )


class TestWhereTheAgentIs:
    @pytest.mark.parametrize(
        ("environment", "address"),
        [
            ({}, "127.0.0.1:2280"),
            ({"CONSUL_HTTP_HOST": "a", "TCE_HOST_IP": "b"}, "a:2280"),
            ({"TCE_HOST_IP": "b", "CONSUL_HTTP_PORT": "99"}, "b:99"),
            ({"TCE_HOST_IP": "fd00::1"}, "[fd00::1]:2280"),
            ({"CONSUL_HTTP_HOST": "/run/consul.sock"}, "/run/consul.sock"),
        ],
    )
    def test_environment_decides(self, environment, address, monkeypatch, tmp_path):
        monkeypatch.setattr(consul, "_DEFAULT_SOCKET", str(tmp_path / "missing.sock"))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        assert consul.Client().address == address

    def test_default_socket_where_there_is_one(self, monkeypatch, tmp_path):
        socket_path = tmp_path / "consul.sock"
        socket_path.touch()
        monkeypatch.setattr(consul, "_DEFAULT_SOCKET", str(socket_path))
        assert consul.Client().address == str(socket_path)
        monkeypatch.setenv("TCE_HOST_IP", "10.0.0.1")
        assert consul.Client().address == "10.0.0.1:2280"

    @pytest.mark.parametrize("port", ["http", "0", "70000", "-1"])
    def test_bad_port(self, port, monkeypatch):
        monkeypatch.setenv("CONSUL_HTTP_PORT", port)
        with pytest.raises(errors.ConfigError, match=f"CONSUL_HTTP_PORT .*, got '{port}'"):
            consul.Client()

    def test_bad_lookup_api(self, monkeypatch):
        with pytest.raises(errors.ConfigError, match="must be 'name' or 'health', got 'dns'"):
            consul.Client(lookup_api="dns")
        monkeypatch.setenv("MONOLITH_CONSUL_LOOKUP", "catalog")
        with pytest.raises(errors.ConfigError, match="got 'catalog'"):
            consul.Client()


@pytest.fixture(params=["tcp", "unix"])
def serve(request, consul_agent, monkeypatch, tmp_path_factory):
    """Serves an agent over the transport of the parameter, and points the environment at it."""
    managers = []

    def start(agent):
        if request.param == "tcp":
            manager = consul_agent.serving(agent)
            port = manager.__enter__()
            monkeypatch.setenv("CONSUL_HTTP_HOST", "127.0.0.1")
            monkeypatch.setenv("CONSUL_HTTP_PORT", str(port))
        else:
            # Not `tmp_path`, which is long: a Unix socket's path has fewer than 108 characters.
            socket_path = tmp_path_factory.mktemp("consul") / "s"
            manager = consul_agent.serving(agent, socket_path)
            manager.__enter__()
            monkeypatch.setenv("CONSUL_HTTP_HOST", str(socket_path))
        managers.append(manager)
        return agent

    yield start
    heartbeat._stop_all()
    for manager in reversed(managers):
        manager.__exit__(None, None, None)


@pytest.mark.parametrize("stock", [False, True], ids=["historical", "stock"])
class TestRealServer:
    """Both kinds of agents, over both transports."""

    @pytest.fixture
    def agent(self, serve, consul_agent, stock, monkeypatch):
        if stock:
            monkeypatch.setenv("MONOLITH_CONSUL_LOOKUP", "health")
        return serve(consul_agent.ConsulAgent(stock=stock))

    def test_register_lookup_deregister(self, agent, stock, eventually):
        client = consul.Client()
        assert client.lookup("job") == []
        client.register("job", 1001, tags={"index": 0, "name": "ps", "ip": "::1"})
        assert agent.services["job-1001"]["tags"] == ["index:0", "name:ps", "ip:::1"]
        found = eventually(lambda: client.lookup("job"))
        assert found == [
            {
                "Host": "10.0.0.9" if stock else "127.0.0.1",
                "Port": 1001,
                "Tags": {"index": "0", "name": "ps", "ip": "::1"},
            }
        ]
        client.deregister("job", 1001)
        assert client.lookup("job") == []
        assert agent.services == {}

    def test_heartbeat_goes_on_until_deregistration(self, agent, stock, monkeypatch, eventually):
        monkeypatch.setattr(consul, "_HEARTBEAT_PERIOD_SEC", 0.01)
        client = consul.Client()
        client.register("job", 1001)
        beat = ("PUT" if stock else "GET", "/v1/agent/check/pass/service:job-1001")
        eventually(lambda: agent.count(*beat) >= 3)
        assert heartbeat_threads() == ["ConsulHealthCheck-job-1001"]
        # Whoever deregisters, it ends.
        consul.Client().deregister("job", 1001)
        assert heartbeat_threads() == []
        beats = agent.count(*beat)
        time.sleep(0.05)
        assert agent.count(*beat) == beats

    def test_registering_again_keeps_one_heartbeat(self, agent):
        client = consul.Client()
        client.register("job", 1001)
        client.register("job", 1001, tags={"a": "b"})
        assert heartbeat_threads() == ["ConsulHealthCheck-job-1001"]
        assert agent.services["job-1001"]["tags"] == ["a:b"]

    def test_check_script(self, agent, stock):
        client = consul.Client()
        client.register("job", 1001, check_script="true")
        command = {"args": ["sh", "-c", "true"]} if stock else {"script": "true"}
        assert agent.services["job-1001"]["check"] == {"interval": "30s", **command}
        assert heartbeat_threads() == []
        assert "tags" not in agent.services["job-1001"]

    def test_heartbeat_survives_a_failing_agent(
        self, agent, stock, monkeypatch, eventually, consul_agent, caplog
    ):
        monkeypatch.setattr(consul, "_HEARTBEAT_PERIOD_SEC", 0.01)
        monkeypatch.setattr(consul, "_HEARTBEAT_RETRY_SEC", 0.01)
        client = consul.Client()
        client.register("job", 1001)
        beat = ("PUT" if stock else "GET", "/v1/agent/check/pass/service:job-1001")
        eventually(lambda: "job-1001" in agent.passing)
        agent.answer = lambda handler: consul_agent.respond(handler, 500, b"no leader")
        agent.passing.clear()
        before = agent.count(*beat)
        eventually(lambda: agent.count(*beat) > before + 3)
        agent.answer = None
        eventually(lambda: "job-1001" in agent.passing)
        # Once, not once per heartbeat.
        assert caplog.text.count("status 500, no leader") == 1


class TestFaults:
    @pytest.fixture
    def agent(self, serve, consul_agent):
        return serve(consul_agent.ConsulAgent())

    def test_refused_lookup_is_empty_and_logged(self, agent, consul_agent, caplog):
        agent.answer = lambda handler: consul_agent.respond(handler, 500, b"no cluster leader")
        client = consul.Client()
        assert client.lookup("job") == []
        assert client.address in caplog.text
        assert "answered 500 to the lookup of 'job': no cluster leader" in caplog.text

    @pytest.mark.parametrize("body", [b"<html>", b"{}", b"[1]", b"\xff\xfe", b""])
    def test_garbage_is_an_error_that_says_so(self, agent, consul_agent, body):
        agent.answer = lambda handler: consul_agent.respond(handler, 200, body)
        with pytest.raises(consul.ConsulException, match="lookup of 'job' with something other"):
            consul.Client().lookup("job")

    def test_health_garbage(self, agent, consul_agent):
        agent.answer = lambda handler: consul_agent.respond(handler, 200, b'[{"Service": 1}]')
        with pytest.raises(consul.ConsulException, match="MONOLITH_CONSUL_LOOKUP fits the agent"):
            consul.Client(lookup_api="health").lookup("job")

    def test_null_means_nobody(self, agent, consul_agent):
        agent.answer = lambda handler: consul_agent.respond(handler, 200, b"null")
        assert consul.Client().lookup("job") == []

    def test_not_http_at_all(self, agent):
        agent.answer = lambda handler: handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        with pytest.raises(consul.ConsulException, match="does not speak HTTP as Consul does"):
            consul.Client().lookup("job")

    def test_hanging_agent_costs_the_timeout(self, agent):
        release = threading.Event()
        agent.answer = lambda handler: release.wait()
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            consul.Client().lookup("job", timeout=0.2)
        assert time.monotonic() - start >= 0.2
        release.set()

    def test_dropped_connection_is_an_oserror(self, agent):
        agent.answer = lambda handler: handler.connection.close()
        with pytest.raises(OSError, match=r"."):
            consul.Client().lookup("job")

    def test_refused_registration(self, agent, consul_agent):
        agent.answer = lambda handler: consul_agent.respond(handler, 400, b"Invalid check")
        with pytest.raises(consul.ConsulException, match=r"^Invalid check$"):
            consul.Client().register("job", 1001)
        assert heartbeat_threads() == []

    def test_refused_deregistration(self, agent):
        with pytest.raises(consul.ConsulException, match="Unknown service ID job-1001"):
            consul.Client().deregister("job", 1001)

    @pytest.mark.parametrize("port", [0, -1, 70000, "http"])
    def test_port_out_of_range(self, agent, port):
        with pytest.raises(errors.ConfigError, match="must be a number from 1 to 65535"):
            consul.Client().register("job", port)
        assert agent.requests == []


def test_no_agent_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("CONSUL_HTTP_HOST", str(tmp_path / "missing.sock"))
    with pytest.raises(FileNotFoundError):
        consul.Client().lookup("job")


class TestCache:
    @pytest.fixture
    def client(self):
        return consul.Client()

    @pytest.fixture
    def asked(self, client, monkeypatch):
        """What the agent was asked, with its answers to come."""
        asked = []

        def lookup(name, timeout):
            asked.append((name, timeout))
            return [{"Port": len(asked)}] if name != "nobody" else []

        monkeypatch.setattr(client, "_lookup", lookup)
        return asked

    @pytest.fixture
    def clock(self, monkeypatch):
        now = [1000.0]
        monkeypatch.setattr(consul.time, "monotonic", lambda: now[0])
        return now

    def test_fresh_answers_are_kept(self, client, asked, clock):
        assert client.lookup("a", cachetime=10) == [{"Port": 1}]
        clock[0] += 10
        assert client.lookup("a", cachetime=10) == [{"Port": 1}]
        clock[0] += 1
        assert client.lookup("a", cachetime=10) == [{"Port": 2}]
        assert client.lookup("b", cachetime=10) == [{"Port": 3}]
        # The first question about a name may take longer.
        assert asked == [("a", 30), ("a", 3), ("b", 30)]

    def test_without_cachetime_the_agent_is_asked(self, client, asked, clock):
        client.lookup("a")
        client.lookup("a", timeout=7)
        assert asked == [("a", 3), ("a", 7)]
        # Those answers are good for a caller who takes older ones.
        assert client.lookup("a", cachetime=10) == [{"Port": 2}]

    def test_empty_answers_are_not_kept(self, client, asked, clock):
        assert client.lookup("nobody", cachetime=10) == []
        assert client.lookup("nobody", cachetime=10) == []
        assert len(asked) == 2

    def test_callers_cannot_change_the_cache(self, client, asked, clock):
        client.lookup("a", cachetime=10).clear()
        assert client.lookup("a", cachetime=10) == [{"Port": 1}]

    def test_slow_name_does_not_hold_up_others(self, client, monkeypatch):
        release, entered = threading.Event(), threading.Event()

        def lookup(name, timeout):
            if name == "slow":
                entered.set()
                release.wait(20)
            return [{"Port": 1}]

        monkeypatch.setattr(client, "_lookup", lookup)
        thread = threading.Thread(target=client.lookup, args=("slow",), kwargs={"cachetime": 1})
        thread.start()
        assert entered.wait(20)
        assert client.lookup("quick", cachetime=1) == [{"Port": 1}]
        release.set()
        thread.join()


def test_interpreter_exits_while_the_agent_hangs(consul_agent, eventually):
    """A process that registered and forgot about it ends at once."""
    release = threading.Event()
    agent = consul_agent.ConsulAgent()
    with consul_agent.serving(agent) as port:
        program = textwrap.dedent(
            f"""
            import os, sys, time
            os.environ.update(CONSUL_HTTP_HOST="127.0.0.1", CONSUL_HTTP_PORT="{port}")
            from monolith.cluster import consul
            consul._HEARTBEAT_PERIOD_SEC = 0.01
            consul.Client().register("job", 1001)
            print("registered", flush=True)
            sys.stdin.readline()
            """
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            # From now on the agent does not answer, so the heartbeat hangs.
            assert process.stdout.readline() == "registered\n"
            agent.answer = lambda handler: release.wait()
            beats = len(agent.requests)
            eventually(lambda: len(agent.requests) > beats)
            process.communicate("go\n", timeout=60)
            assert process.returncode == 0
        finally:
            release.set()
            process.kill()
            process.wait()


def heartbeat_threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("ConsulHealthCheck")]


if __name__ == "__main__":
    unittest.main()
