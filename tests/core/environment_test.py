"""The process environment, as ZooKeeper and Consul code reads it."""

import logging

import pytest

from monolith.core import environment


@pytest.mark.parametrize("value", [None, ""])
def test_no_zookeeper_credentials(monkeypatch, value):
    monkeypatch.delenv("ZK_AUTH", raising=False)
    if value is not None:
        monkeypatch.setenv("ZK_AUTH", value)
    assert environment.get_zk_auth_data() is None


def test_zookeeper_credentials_are_returned_and_not_shown(monkeypatch, caplog, capfd):
    monkeypatch.setenv("ZK_AUTH", "user:secret")
    with caplog.at_level(logging.DEBUG):
        assert environment.get_zk_auth_data() == [("digest", "user:secret")]
    captured = capfd.readouterr()
    assert "secret" not in caplog.text + captured.out + captured.err


def test_service_name_is_the_uuid():
    assert environment.generate_psm_from_uuid("a.b.c") == "a.b.c"


def test_set_up_calls_do_nothing(monkeypatch):
    before = dict(environment.os.environ)
    assert environment.setup_hdfs_env() is None
    assert environment.setup_host_ip() is None
    assert dict(environment.os.environ) == before
