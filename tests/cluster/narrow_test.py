"""Narrowed processes, asked from several addresses of this machine."""

import contextlib
import json
import logging
import os
import pathlib
import socket
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf

from monolith import errors
from monolith.cluster import narrow, net

ANOTHER_LOOPBACK = "127.0.0.2"  # All of 127.0.0.0/8 is this machine.


def find_interface_ipv4() -> str | None:
    """Returns the address of this machine by which it would reach others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # Sends nothing.
        except OSError:
            return None
        ip = probe.getsockname()[0]
    return None if ip.startswith("127.") else ip


def find_ipv6() -> list[str]:
    """Returns the IPv6 addresses of this machine that need no scope: loopback, global."""
    with contextlib.suppress(OSError):
        lines = pathlib.Path("/proc/net/if_inet6").read_text().splitlines()
        fields = [line.split() for line in lines]
        usable = [f[0] for f in fields if f[3] in ("00", "10")]
        return sorted(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(text)) for text in usable)
    return []


INTERFACE = find_interface_ipv4()
IPV6 = find_ipv6()
ALL = [ip for ip in ("127.0.0.1", ANOTHER_LOOPBACK, INTERFACE, *IPV6) if ip]
# pytest-xdist takes what is behind the last "::" for the name of a test, which must not be in an
# address: the tests of a class share their servers.
IDS = [ip.replace(":", "_") for ip in ALL]


def is_reached(ip: str, port: int) -> bool:
    family = socket.AF_INET6 if net.is_ipv6_address(ip) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        try:
            client.connect((ip, port))
        except ConnectionRefusedError:
            return False
    return True


def run(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.stdout + result.stderr


# One process for all: the library reads the variable whenever a socket is bound.
SERVERS = """
    import json, os, sys
    import tensorflow as tf
    from monolith.cluster import narrow, servers
    from monolith.cluster.discovery import FileServiceDiscovery
    from monolith.training.config.job import DistributedCpuTrainingConfig
    from monolith.training.distributed import start

    found, announced = {}, {}
    for address in json.loads(sys.argv[1]):
        os.environ[narrow.LISTEN_ADDRESS] = address
        server = servers.start_server({"local": ["localhost:0"]})
        with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
            assert session.run(tf.constant(7)) == 7  # The process reaches itself all the same.
        found[address] = int(server.target.rpartition(":")[2])
        if address:
            discovery = FileServiceDiscovery("discovery")
            _, announced[address] = start.start_server(DistributedCpuTrainingConfig(), discovery)
            discovery.close()
    print(json.dumps({**found, "announced": announced}), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    """Starts one server of TensorFlow for each address of the machine, and one for all of them."""
    log_path = tmp_path_factory.mktemp("servers") / "log"
    with open(log_path, "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SERVERS), json.dumps([*ALL, ""])],
            env={**os.environ, **narrow.get_environment("127.0.0.1")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=log_path.parent,
        )
    try:
        answer = process.stdout.readline()
        assert answer, log_path.read_text()
        yield {**json.loads(answer), "log": log_path.read_text()}
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


@pytest.mark.distributed
class TestServers:
    @pytest.mark.parametrize("address", ALL, ids=IDS)
    def test_a_server_is_reached_by_its_address_and_by_no_other(self, ports, address):
        assert {ip for ip in ALL if is_reached(ip, ports[address])} == {address}

    @pytest.mark.parametrize("address", ALL, ids=IDS)
    def test_it_works_for_others(self, ports, address):
        target = f"grpc://{net.concat_ip_and_port(address, ports[address])}"
        with tf.Graph().as_default(), tf.compat.v1.Session(target) as session:
            assert session.run(tf.constant(7) + 1) == 8

    @pytest.mark.parametrize("address", ALL, ids=IDS)
    def test_a_member_announces_the_address_that_it_was_narrowed_to(self, ports, address):
        ip, port = net.parse_address(ports["announced"][address])
        assert ip == address
        assert is_reached(ip, port)

    def test_without_the_variable_a_server_is_reached_by_all_addresses(self, ports):
        assert {ip for ip in ALL if is_reached(ip, ports[""])} == set(ALL)

    def test_the_log_says_where_it_listens(self, ports):
        assert f"listens on port {ports['127.0.0.1']} of 127.0.0.1 until" in ports["log"]
        assert f"listens on port {ports['']} of all interfaces until" in ports["log"]

    def test_the_machine_has_what_these_tests_are_about(self):
        if INTERFACE is None:
            pytest.skip("this machine has no address but loopback")
        if not IPV6:
            pytest.skip("this machine has no IPv6")


class TestSockets:
    def test_a_socket_for_both_families_takes_an_ipv4_address(self):
        code = """
            import socket
            server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
            print(server.getsockname()[0])
        """
        assert run(code, **narrow.get_environment("127.0.0.2")) == "::ffff:127.0.0.2\n"

    def test_a_socket_that_was_never_bound_is_narrowed_when_it_listens(self):
        code = """
            import socket
            server = socket.socket()
            server.listen()
            print(server.getsockname()[0])
        """
        assert run(code, **narrow.get_environment("127.0.0.2")) == "127.0.0.2\n"

    def test_others_are_left_alone(self):
        code = """
            import socket
            named = socket.create_server(("127.0.0.3", 0))
            client = socket.create_connection(named.getsockname())
            datagrams = socket.socket(type=socket.SOCK_DGRAM)
            datagrams.bind(("0.0.0.0", 0))
            print(*(skt.getsockname()[0] for skt in (named, client, datagrams)))
            local = socket.socket(socket.AF_UNIX)
            local.bind("socket")
            local.listen()
            first, second = socket.socketpair()
        """
        answer = run(code, **narrow.get_environment("127.0.0.2"))
        assert answer == "127.0.0.3 127.0.0.1 0.0.0.0\n"

    @pytest.mark.parametrize(
        ("address", "why"),
        [
            pytest.param("nonsense", "'nonsense', which is no IP address", id="no_address"),
            pytest.param("0.0.0.0", "'0.0.0.0', which is all interfaces", id="wildcard"),
            pytest.param("::", "'::', which is all interfaces", id="wildcard_ipv6"),
            pytest.param("::1", "'::1', which a socket for IPv4 alone", id="other_family"),
            pytest.param("192.0.2.77", "", id="of_another_machine"),
        ],
    )
    def test_an_address_that_cannot_be_had_opens_nothing(self, address, why):
        environment = {**narrow.get_environment("127.0.0.1"), narrow.LISTEN_ADDRESS: address}
        output = run("import socket; socket.create_server(('0.0.0.0', 0))", **environment)
        assert why in output
        assert "OSError: [Errno 99]" in output

    def test_a_socket_for_ipv6_alone_does_not_become_one_for_ipv4(self):
        code = "import socket; socket.create_server(('::', 0), family=socket.AF_INET6)"
        output = run(code, **narrow.get_environment("127.0.0.1"))
        assert "'127.0.0.1', which a socket for IPv6 alone cannot have" in output
        assert "OSError: [Errno 99]" in output

    def test_children_are_narrowed_and_programs_without_python_work(self):
        code = """
            import subprocess, sys
            code = "import socket; print(socket.create_server(('', 0)).getsockname()[0])"
            subprocess.run(["sh", "-c", f'echo sh; "{sys.executable}" -c "{code}"'])
        """
        assert run(code, **narrow.get_environment("127.0.0.2")) == "sh\n127.0.0.2\n"


class TestGetEnvironment:
    @pytest.mark.parametrize(
        ("address", "expected"),
        [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.2:2222", "127.0.0.2"),
            ("localhost", "127.0.0.1"),
            ("localhost:2222", "127.0.0.1"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
        ],
    )
    def test_forms_of_an_address(self, address, expected):
        assert narrow.get_environment(address)[narrow.LISTEN_ADDRESS] == expected

    @pytest.mark.skipif(not IPV6, reason="this machine has no IPv6")
    @pytest.mark.parametrize("form", ["{}", "[{}]", "[{}]:2222"])
    def test_forms_of_an_ipv6_address(self, form):
        for ip in IPV6:
            environment = narrow.get_environment(form.format(ip))
            assert environment[narrow.LISTEN_ADDRESS] == ip

    @pytest.mark.parametrize(
        ("address", "why"),
        [
            ("192.0.2.77", "192.0.2.77 is no address of this machine"),
            ("192.0.2.77:2222", "192.0.2.77 is no address of this machine"),
            ("2001:db8::77", "2001:db8::77 is no address of this machine"),
            ("0.0.0.0:2222", "0.0.0.0 is no address of this machine"),
            ("::", ":: is no address of this machine"),
            ("no such host", "neither an IP address nor a name that resolves"),
            ("no-such-host.invalid:1", "neither an IP address nor a name that resolves"),
            (f"{'a' * 70}.example:1", "neither an IP address nor a name that resolves"),
            ("", "names no host"),
            ("  ", "names no host"),
            ("[]", "names no host"),
            ("127.0.0.1\0", "names no host"),
            (":2222", "Invalid addr"),
            ("127.0.0.1:99999", "Invalid addr"),
            ("127.0.0.1:http", "Invalid addr"),
        ],
    )
    def test_what_is_no_address_of_this_machine_is_refused(self, address, why):
        with pytest.raises(errors.ConfigError, match=why):
            narrow.get_environment(address)

    @pytest.mark.parametrize("before", ["libfirst.so", "libfirst.so libfirst.so:", ":libfirst.so:"])
    def test_what_is_preloaded_already_comes_first(self, monkeypatch, before):
        monkeypatch.setenv("LD_PRELOAD", before)
        preloaded = narrow.get_environment("127.0.0.1")["LD_PRELOAD"].split(":")
        assert set(preloaded[:-1]) == {"libfirst.so"}
        assert preloaded[-1].endswith("/libmonolith_narrow.so")
        monkeypatch.setenv("LD_PRELOAD", ":".join(preloaded))
        assert narrow.get_environment("127.0.0.1")["LD_PRELOAD"].split(":") == preloaded

    @pytest.mark.parametrize(
        ("directory", "has_library", "why"),
        [
            ("native", False, "libmonolith_narrow.so is missing from"),
            ("with space", True, "has a space or a colon in its path"),
        ],
    )
    def test_without_the_library_there_is_one_warning(
        self, monkeypatch, tmp_path, caplog, directory, has_library, why
    ):
        place = tmp_path / directory
        place.mkdir()
        if has_library:
            (place / "libmonolith_narrow.so").touch()
        monkeypatch.setattr(narrow.native, "__path__", [str(place)])
        narrow._find_library.cache_clear()
        try:
            with caplog.at_level(logging.WARNING, logger=narrow.__name__):
                assert narrow.get_environment("127.0.0.1") == {}
                assert narrow.get_environment("127.0.0.1") == {}
            with pytest.raises(errors.ConfigError, match="no address of this machine"):
                narrow.get_environment("192.0.2.77")
        finally:
            narrow._find_library.cache_clear()
        (record,) = caplog.records
        assert why in record.getMessage()
        assert "listen on all interfaces" in record.getMessage()


def test_a_process_knows_whether_it_is_narrowed():
    code = "from monolith.cluster import narrow; print(narrow.get_listen_address())"
    assert run(code, **narrow.get_environment("127.0.0.2:1")) == "127.0.0.2\n"
    assert run(code, MONOLITH_LISTEN_ADDRESS="127.0.0.2") == "None\n"  # Nothing is preloaded.


class TestCommand:
    def test_prints_what_env_takes(self):
        output = run("""
            import subprocess, sys
            command = [sys.executable, "-m", "monolith.cluster.narrow", "127.0.0.2:1"]
            lines = subprocess.check_output(command, text=True).split()
            code = "import socket; print(socket.create_server(('', 0)).getsockname()[0])"
            subprocess.run(["env", *lines, sys.executable, "-c", code])
        """)
        assert output == "127.0.0.2\n"

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            ([], "usage"),
            (["127.0.0.1", "127.0.0.2"], "usage"),
            (["192.0.2.77"], "monolith: .* is no address of this machine"),
        ],
    )
    def test_ends_with_a_sentence(self, arguments, why):
        with pytest.raises(SystemExit, match=why):
            narrow.main(arguments)

    def test_prints_nothing_without_the_library(self, monkeypatch, capsys):
        monkeypatch.setattr(narrow, "_find_library", lambda: None)
        with pytest.raises(SystemExit) as raised:
            narrow.main(["127.0.0.1"])
        assert raised.value.code == 1
        assert capsys.readouterr().out == ""


def test_numbers_of_requests_are_not_drawn_from_32_bits():
    # TensorFlow draws one for each step, in a new thread, from a seed of 32 bits.
    code = """
        import ctypes

        class Info(ctypes.Structure):
            _fields_ = [(n, ctypes.c_void_p) for n in ("file", "base", "name", "address")]

        # As TensorFlow is loaded, what its calls find is what anybody finds first.
        import tensorflow as tf

        found = ctypes.CDLL(None)._ZN3tsl6random16ThreadLocalNew64Ev
        info = Info()
        assert ctypes.CDLL(None).dladdr(found, ctypes.byref(info))
        print(ctypes.string_at(info.file).decode())
        found.restype = ctypes.c_uint64
        print(len({found() for _ in range(1000)}))
        server = tf.distribute.Server.create_local_server()
        with tf.Graph().as_default(), tf.compat.v1.Session(server.target) as session:
            print("answer", session.run(tf.constant(7)))
    """
    environment = narrow.get_environment("127.0.0.1")
    output = run(code, **environment)
    assert "libmonolith_narrow.so\n1000\n" in output
    assert "answer 7" in output
