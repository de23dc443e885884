"""Servers and helpers for the tests of `monolith.cluster`."""

import contextlib
import importlib.util
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import pytest
from support import waiting

_HERE = pathlib.Path(__file__).parent
_JAVA = shutil.which("java")
_ZOOKEEPER_JAR = pathlib.Path("/usr/share/java/zookeeper.jar")
_LOGGER_JAR = pathlib.Path("/usr/share/java/slf4j-simple.jar")
_START_SEC = 30


def _load(name):
    """Imports a module that lies beside this file; tests are no package."""
    full_name = f"monolith_cluster_tests_{name}"
    if full_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(full_name, _HERE / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[full_name] = module
        spec.loader.exec_module(module)
    return sys.modules[full_name]


@pytest.fixture(scope="session")
def fake_kazoo():
    """The module with a ZooKeeper in memory."""
    return _load("fake_kazoo")


@pytest.fixture(scope="session")
def consul_agent():
    """The module with a Consul agent that listens on a real socket."""
    return _load("consul_agent")


@pytest.fixture(scope="session")
def eventually():
    """Waits until a function returns something true, and returns that."""

    return waiting.wait_for


class ZooKeeperServer:
    """A real ZooKeeper server on loopback, in a process of its own.

    Attributes:
        hosts: Where it listens, as clients take it.
        tick_sec: Its unit of time: sessions end with this precision.
    """

    tick_sec = 0.2

    def __init__(self, directory, host="127.0.0.1"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as skt:
            skt.bind((host, 0))
            self.port = skt.getsockname()[1]
        self.host = host
        self.hosts = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._directory = pathlib.Path(directory)
        self._process = None
        (self._directory / "zoo.cfg").write_text(
            f"tickTime={int(self.tick_sec * 1000)}\n"
            f"dataDir={self._directory}/data\n"
            f"clientPort={self.port}\n"
            f"clientPortAddress={host}\n"
            "maxClientCnxns=0\n"
            "admin.enableServer=false\n"
            "minSessionTimeout=400\n"
            "maxSessionTimeout=20000\n"
        )

    def start(self):
        """Starts it and waits until it serves; what it knew before, it still knows."""
        # The kernel ends it even if this process is killed.
        guard = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        java = [_JAVA, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        class_path = ["-cp", f"{_ZOOKEEPER_JAR}:{_LOGGER_JAR}"]
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        log_path = self._directory / "log"
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                [*guard, *java, *class_path, main, str(self._directory / "zoo.cfg")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline_sec = time.monotonic() + _START_SEC
        while True:
            with contextlib.suppress(OSError):
                if self._is_serving():
                    return
            assert self._process.poll() is None, f"ended: {log_path.read_text()[-2000:]}"
            assert time.monotonic() < deadline_sec, f"silent: {log_path.read_text()[-2000:]}"
            time.sleep(0.05)

    def _is_serving(self):
        # It listens a moment before it serves; a client that comes in between waits for long.
        with socket.create_connection((self.host, self.port), timeout=1) as skt:
            skt.sendall(b"srvr")
            return b"Mode: standalone" in b"".join(iter(lambda: skt.recv(4096), b""))

    def stop(self):
        """Kills it, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def make_zookeeper_server(tmp_path_factory):
    """Makes servers that are gone when the tests are over; skips where ZooKeeper is missing."""
    if _JAVA is None or not _ZOOKEEPER_JAR.exists():
        pytest.skip("needs a real ZooKeeper: apt install zookeeper")
    with contextlib.ExitStack() as stack:

        def make(host="127.0.0.1"):
            server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), host)
            stack.callback(server.stop)
            server.start()
            return server

        yield make


@pytest.fixture(scope="session")
def zookeeper_server(make_zookeeper_server):
    """One running server for all tests that do not stop it; each uses a job name of its own."""
    return make_zookeeper_server()
