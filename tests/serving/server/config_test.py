"""What a server is told."""

import pytest

from monolith import errors
from monolith.serving.server import config
from monolith.serving.server.config import (
    Batching,
    Limits,
    Loading,
    ModelConfig,
    Security,
    ServerConfig,
    VersionPolicy,
)

MODEL = ModelConfig(name="m", base_path="models")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("latest", VersionPolicy(count=1)),
        ("latest:3", VersionPolicy(count=3)),
        ("all", VersionPolicy(count=None)),
        ("7", VersionPolicy(count=None, versions=frozenset([7]))),
        ("3, 5", VersionPolicy(count=None, versions=frozenset([3, 5]))),
    ],
)
def test_policies(text, policy):
    assert config.parse_policy(text) == policy


@pytest.mark.parametrize("text", ["", "newest", "latest:", "latest:x", "latest:0", "3,", "-1"])
def test_bad_policies(text):
    if text == "latest:":  # As in a shell script whose variable is empty.
        assert config.parse_policy(text).count == 1
        return
    with pytest.raises(errors.ConfigError):
        config.parse_policy(text)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(name="", base_path="x"), "cannot be the name"),
        (lambda: ModelConfig(name="a/b", base_path="x"), "no slash"),
        (lambda: ModelConfig(name="a b", base_path="x"), "cannot be the name"),
        (lambda: ModelConfig(name="a", base_path=""), "needs the directory"),
        (lambda: Batching(max_rows=0), "`max_rows` must be positive, got 0"),
        (lambda: Batching(parallel=0), "`parallel` must be positive"),
        (lambda: Batching(max_delay_ms=-1), "max_delay_ms"),
        (lambda: Batching(max_delay_ms=float("nan")), "max_delay_ms"),
        (lambda: Limits(max_request_bytes=0), "max_request_bytes"),
        (lambda: Limits(max_concurrent=-1), "max_concurrent"),
        (lambda: Loading(poll_sec=0), "poll_sec"),
        (lambda: Loading(max_retries=-1), "max_retries"),
        (lambda: Security(certificate="c"), "both a certificate and its key"),
        (lambda: Security(client_authority="a"), "only over TLS"),
        (lambda: ServerConfig(models=(MODEL, MODEL)), "name of its own"),
        (lambda: ServerConfig(models=(MODEL,), port=None, rest_port=None), "a port"),
        (lambda: ServerConfig(models=(MODEL,), port=70000), "from 0 to 65535"),
        (lambda: ServerConfig(models=(MODEL,), port=99, rest_port=99), "cannot share port 99"),
        (lambda: ServerConfig(models=(MODEL,), grace_sec=-1), "grace_sec"),
        (lambda: VersionPolicy(count=None, versions=frozenset()), "Versions are numbers"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(errors.ConfigError, match=message):
        make()


def test_two_ports_that_are_chosen_later():
    assert ServerConfig(models=(MODEL,), port=0, rest_port=0).is_loopback
    assert not ServerConfig(models=(MODEL,), host="0.0.0.0").is_loopback


def test_a_file_of_tensorflow_serving(tmp_path):
    path = tmp_path / "models.config"
    path.write_text(
        """
        model_config_list {
          config { name: "a" base_path: "/models/a" model_platform: "tensorflow" }
          config {
            name: "b" base_path: "/models/b"
            model_version_policy { specific { versions: 3 versions: 5 } }
            version_labels { key: "stable" value: 3 }
          }
          config { name: "c" base_path: "/c" model_version_policy { latest { num_versions: 2 } } }
          config { name: "d:ps_0" base_path: "/d" model_version_policy { all {} } }
        }
        """
    )
    a, b, c, d = config.read_models(str(path))
    assert a == ModelConfig(name="a", base_path="/models/a")
    assert (b.policy.versions, b.labels) == ({3, 5}, {"stable": 3})
    assert c.policy.count == 2
    assert (d.name, d.policy) == ("d:ps_0", VersionPolicy(count=None))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model_config_list {", "cannot be read as a ModelServerConfig"),
        ("\xff", "cannot be read"),
        ('model_config_list { config { name: "a" base_path: "b" model_platform: "x" } }', "'x'"),
        ('custom_model_config { type_url: "x" }', "not supported"),
        ('model_config_list { config { base_path: "b" } }', "cannot be the name"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "models.config"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(errors.ConfigError, match=message):
        config.read_models(str(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(errors.ConfigError, match="cannot be read"):
        config.read_models(str(tmp_path / "nothing"))
