"""The port on which a member tells its metrics."""

import socket
import urllib.error
import urllib.request

import pytest

from monolith import errors
from monolith.cluster import members
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import exporter


@pytest.fixture
def member(tmp_path):
    joined = members.Membership(str(tmp_path), "worker", 1, "127.0.0.1:1", details={"steps": 3})
    joined.join()
    yield joined
    joined.leave(members.MemberState.FINISHED)


def make_config(**settings):
    return DistributedCpuTrainingConfig(server_type="worker", index=1, **settings)


def enter(config, member):
    with exporter.serving(config, member):
        pass


def read(port, host="127.0.0.1"):
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=20) as answer:
        return answer.read().decode()


def test_off_by_default(member):
    with exporter.serving(make_config(), member) as port:
        assert port is None
        assert exporter.METRICS not in member.record.details


def test_tells_what_the_record_says_at_that_moment(member):
    with exporter.serving(make_config(metrics_port=0), member) as port:
        assert member.record.details[exporter.METRICS] == f"127.0.0.1:{port}"
        assert "\nmonolith_training_steps_total 3.0\n" in read(port)
        member.note({"steps": 4, "steps_behind": 1.5, "examples": None})
        member.update(members.MemberState.WAITING)
        text = read(port)
        assert "\nmonolith_training_steps_total 4.0\n" in text
        assert "\nmonolith_training_steps_behind 1.5\n" in text
        assert '\nmonolith_training_state{state="waiting"} 1.0\n' in text
        assert "monolith_training_examples" not in text
    assert exporter.METRICS not in member.record.details
    with pytest.raises(urllib.error.URLError):
        read(port)


def test_only_this_machine_is_answered_unless_told_otherwise(member):
    config = make_config(metrics_port=0)
    with exporter.serving(config, member) as port, pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=20)
    with exporter.serving(make_config(metrics_port=0, metrics_host="0.0.0.0"), member) as port:
        assert "monolith_training" in read(port, "127.0.0.2")


def test_port_that_is_taken(member):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(errors.ConfigError) as caught:
            enter(make_config(metrics_port=port), member)
    assert str(caught.value) == (
        f"Worker 1 cannot tell its metrics at 127.0.0.1:{port} (Address already in use); set "
        "`metrics_port` to another port, or to 0 for any that is free, and `metrics_host` to an "
        "address of this machine."
    )


@pytest.mark.parametrize("port", [-1, 65536])
def test_port_that_is_none(member, port):
    with pytest.raises(errors.ConfigError, match=rf"must be in 0..65535, .* got {port}\."):
        enter(make_config(metrics_port=port), member)


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", ""])
def test_host_that_is_not_here(member, host):
    config = make_config(metrics_port=0, metrics_host=host)
    with pytest.raises(errors.ConfigError, match="`metrics_host` to an address of this machine"):
        enter(config, member)
