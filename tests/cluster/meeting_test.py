"""Where members meet, from one word."""

import json
import os
import socket

import pytest
from kazoo.retry import RetryFailedError

from monolith import errors
from monolith.cluster import discovery, meeting


def test_files_are_in_the_model_directory_unless_named(tmp_path):
    with meeting.open_discovery("file", str(tmp_path / "model")) as found:
        found.register("ps", 0, "127.0.0.1:1")
        assert (tmp_path / "model" / "discovery_dir" / "job" / "ps" / "0").exists()
    with meeting.open_discovery(f"file://{tmp_path}/here", "hdfs://models/a") as found:
        found.register("ps", 0, "127.0.0.1:1")
        assert os.listdir(tmp_path / "here" / "ps") == ["0"]


def test_consul_and_its_name():
    with meeting.open_discovery("consul", "/models/ads/") as found:
        assert isinstance(found, discovery.ConsulServiceDiscovery)
        assert found._consul_id.endswith("ads")
    with meeting.open_discovery("consul://other", "/models/ads") as found:
        assert found._consul_id.endswith("other")


def test_tf_config(monkeypatch):
    task = {"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    with meeting.open_discovery("tf_config", "/models/ads") as found:
        assert found.addr == "a:1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "reads the variable TF_CONFIG, which is not set"),
        ("{", "TF_CONFIG must be JSON, got '{'"),
        ("[]", "TF_CONFIG must be a dictionary"),
        ("{}", "must have a dictionary under 'cluster'"),
    ],
)
def test_tf_config_that_says_nothing(monkeypatch, text, message):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(errors.ConfigError, match=message), meeting.open_discovery("tf_config", "a"):
        pass


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("zookeeper", "--discovery must be file, file:///DIRECTORY, zk://"),
        ("zk://", "--discovery must be"),
        ("", "--discovery must be"),
        ("file", "Members cannot meet in files of 'hdfs://models/a'"),
        ("file://shared/a", "--discovery file://shared/a names no absolute directory; write it"),
    ],
)
def test_words_that_mean_nothing(where, message):
    with (
        pytest.raises(errors.ConfigError, match=message),
        meeting.open_discovery(where, "hdfs://models/a"),
    ):
        pass


def test_a_server_that_does_not_answer(monkeypatch):
    def refuse(job, servers):
        raise ConnectionError(f"nobody at {servers} for {job}.")

    monkeypatch.setattr(meeting, "ZKServiceDiscovery", refuse)
    with (
        pytest.raises(
            errors.ConfigError,
            match=r"cannot meet at 'zk://a:1,b:2/x/' \(nobody at a:1,b:2 for x\); see whether",
        ),
        meeting.open_discovery("zk://a:1,b:2/x/", "m"),
    ):
        pass


class TestPlacesThatCannotBeUsed:
    """What opens all the same, and shows only when it is used."""

    @pytest.mark.parametrize(
        "use",
        [lambda found: found.find("ps", 0), lambda found: found.register("ps", 0, "127.0.0.1:1")],
    )
    def test_a_file_in_place_of_a_directory(self, tmp_path, use):
        (tmp_path / "file").touch()
        found = discovery.FileServiceDiscovery(str(tmp_path / "file"))
        with pytest.raises(errors.ConfigError) as caught, meeting.explaining(found):
            use(found)
        assert str(caught.value).startswith(
            f"The members cannot meet at {tmp_path}/file, a directory that all members must share ("
        )

    def test_consul_that_nobody_is(self, monkeypatch):
        monkeypatch.setattr(discovery, "_RETRY_MAX_BACKOFF_SECS", 0)
        monkeypatch.setenv("CONSUL_HTTP_HOST", "127.0.0.1")
        with socket.socket() as bound:  # It does not listen.
            bound.bind(("127.0.0.1", 0))
            port = bound.getsockname()[1]
            monkeypatch.setenv("CONSUL_HTTP_PORT", str(port))
            message = (
                rf"cannot meet at Consul at 127.0.0.1:{port}, service 'ads' \(.*refused\); see"
            )
            found = discovery.ConsulServiceDiscovery("ads")
            with pytest.raises(errors.ConfigError, match=message), meeting.explaining(found):
                found.register("ps", 0, "127.0.0.1:1")

    def test_zookeeper_that_does_not_take_it(self, tmp_path):
        found = discovery.FileServiceDiscovery(str(tmp_path))
        with pytest.raises(errors.ConfigError, match="too often"), meeting.explaining(found):
            raise RetryFailedError("too often")

    @pytest.mark.parametrize("error", [errors.ConfigError("Wrong index."), ValueError("a bug")])
    def test_other_errors_stay_as_they_are(self, tmp_path, error):
        found = discovery.FileServiceDiscovery(str(tmp_path))
        with pytest.raises(type(error)) as caught, meeting.explaining(found):
            raise error
        assert caught.value is error


def test_a_local_cluster_waits_for_its_members(tmp_path, monkeypatch):
    monkeypatch.setattr(meeting, "_PATIENCE_SEC", 0.2)
    sizes = {"ps": 1, "worker": 2}
    found = meeting.LocalDiscovery(str(tmp_path), sizes)
    assert found.query("ps") == {}
    monkeypatch.setattr(meeting, "_PATIENCE_SEC", 60)
    found.register("ps", 0, "127.0.0.1:1")
    found.register("worker", 0, "127.0.0.1:2")
    assert found.query("ps") == {0: "127.0.0.1:1"}
    assert found.query("worker") == {0: "127.0.0.1:2"}
    found.close()
