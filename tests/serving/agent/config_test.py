"""Settings of the agent, from files, arguments and the environment.

Covers monolith/serving/agent/naming.py and monolith/serving/agent/data_def.py.
"""

import pytest

from monolith import agent_service, errors
from monolith.agent_service import data_def as historical_data
from monolith.agent_service import utils
from monolith.serving.agent import config, data_def, naming
from monolith.serving.agent.config import AgentConfig, DeployType
from monolith.serving.agent.data_def import ReplicaMeta


def test_historical_paths():
    assert utils is config
    assert historical_data is data_def
    assert agent_service.__name__ == "monolith.agent_service"


class TestFile:
    def test_all_forms_of_lines(self, tmp_path):
        (tmp_path / "more.conf").write_text("zk_servers\t127.0.0.1:2181\n")
        path = tmp_path / "agent.conf"
        path.write_text(
            "# Where.\n\ninclude more.conf\nbzid = ads\nbase_name ranking\nserver_type unified\n"
            "agent_version 3\nnum_ps 2 * 100 + 1\ndc_aware yes\nbase_path none\n"
            "layout_filters entry; True\nlayout_filters ps_{i}; i % 2 == 0\n"
        )
        settings = AgentConfig.from_file(str(path))
        assert settings.deploy_type is DeployType.UNIFIED
        assert (settings.bzid, settings.base_name, settings.base_path) == ("ads", "ranking", None)
        assert (settings.num_ps, settings.dc_aware) == (201, True)
        assert settings.zk_servers == "127.0.0.1:2181"
        assert settings.layout_filters == ["entry; True", "ps_{i}; i % 2 == 0"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("enable_batching true", "sets enable_batching, which serving with this package"),
            ("fetch_ps_timeout_ms 200", "sets fetch_ps_timeout_ms, which serving with this"),
            ("bzid", "line 1, has no value for 'bzid'"),
            ("num_ps __import__('os')", "`num_ps` cannot be"),
            ("dc_aware perhaps", "`dc_aware` cannot be 'perhaps'"),
            ("deploy_type other", "`deploy_type` must be entry, ps"),
            ("agent_version 2", "must be 1 or 3"),
            ("include missing.conf", "missing.conf cannot be read"),
        ],
    )
    def test_lines_that_make_no_sense(self, tmp_path, text, message):
        path = tmp_path / "agent.conf"
        path.write_text(f"{text}\n")
        with pytest.raises(errors.ConfigError, match=message):
            AgentConfig.from_file(str(path))


class TestEnvironment:
    def test_replica(self, monkeypatch):
        assert AgentConfig().replica_id == -1
        monkeypatch.setenv("MY_POD_NAME", "pod-1")
        assert AgentConfig().replica_id == config.get_replica_id_from_pod() > 0
        monkeypatch.setenv("REPLICA_ID", "3")
        assert AgentConfig().replica_id == 3
        assert AgentConfig(replica_id=1).replica_id == 1

    def test_shards(self, monkeypatch):
        assert AgentConfig().num_shard == 1
        monkeypatch.setenv(config.HOST_SHARD_ENV, "4")
        assert AgentConfig().num_shard == 4
        with pytest.raises(errors.ConfigError, match="`num_shard` is 2, but"):
            AgentConfig(num_shard=2)
        monkeypatch.setenv("SHARD_ID", "2")
        assert AgentConfig().shard_id == 2

    def test_paths(self, monkeypatch):
        settings = AgentConfig(bzid="ads", base_name="m", layout_pattern="mixed")
        assert settings.layout_path == "/ads/layouts/mixed"
        assert AgentConfig(layout_pattern="/x/y").layout_path == "/x/y"
        monkeypatch.setenv("TCE_INTERNAL_IDC", "lf")
        monkeypatch.setenv("TCE_CLUSTER", "default")
        monkeypatch.setenv("TCE_PSM", "data.ads")
        monkeypatch.setenv("MY_POD_NAME", "pod")
        settings.dc_aware = True
        assert settings.path_prefix == "/ads/service/m/lf:default"
        assert settings.container_cluster == "data.ads;lf;default"
        assert settings.container_id == "pod"

    def test_ports_and_addresses(self, monkeypatch):
        assert 0 < config.find_free_port() < 65536
        monkeypatch.setenv("MY_HOST_IP", "10.0.0.9")
        assert config.get_local_ip() == "10.0.0.9"


class TestNaming:
    def test_path_with_a_location(self):
        path = naming.ZKPath("/ads/service/m/lf:default/ps:3/0")
        assert (path.location, path.task, path.replica_id) == ("lf:default", "ps:3", "0")
        assert path.ship_in("lf", None)
        assert not path.ship_in("hl", None)

    @pytest.mark.parametrize("text", ["", "/ads", "/ads/other/m/ps:0/0"])
    def test_other_paths(self, text):
        assert naming.ZKPath(text).task is None

    def test_part_without_a_replica(self):
        assert naming.ZKPath("/ads/service/m/ps:3").replica_id is None

    @pytest.mark.parametrize("pattern", ["ps_[a-b]", "ps_[]", "ps_[3-]"])
    def test_bad_ranges(self, pattern):
        with pytest.raises(errors.ConfigError, match="A range is written as"):
            naming.expand_pattern(pattern)

    def test_model_config(self):
        made = naming.gen_model_config("ps_0", "/m/ps_0", "latest", 2, version_labels={"a": 3})
        assert made.model_version_policy.latest.num_versions == 2
        assert dict(made.version_labels) == {"a": 3}
        specific = naming.gen_model_config("m", "/m", "specific", [1, 4])
        assert list(specific.model_version_policy.specific.versions) == [1, 4]
        once = naming.gen_model_config("m", "/m", "latest_once")
        assert once.model_version_policy.latest.num_versions == 1
        every = naming.gen_model_config("m", "/m", "all")
        assert every.model_version_policy.WhichOneof("policy_choice") == "all"
        with pytest.raises(ValueError, match="latest_once, all or specific, got 'oldest'"):
            naming.gen_model_config("m", "/m", "oldest")

    def test_specs_and_states(self):
        spec = naming.gen_model_spec("m", 3, "lookup")
        assert (spec.version.value, spec.signature_name) == (3, "lookup")
        assert naming.gen_model_spec("m", "canary").version_label == "canary"
        state = naming.gen_model_version_status(3, data_def.AVAILABLE, 5, "why")
        assert (state.version, state.state, state.status.error_message) == (3, 30, "why")


class TestReplicaMeta:
    def test_address(self):
        meta = ReplicaMeta(address="0.0.0.0:1", address_ipv6="[fd00::1]:1")
        assert meta.get_address() == "[fd00::1]:1"
        assert ReplicaMeta(address="10.0.0.1:1").get_address(address_family="ipv6") == "10.0.0.1:1"
        assert ReplicaMeta(address_ipv6="[::]:1").get_address() is None
        assert ReplicaMeta(archon_address="m:1").get_address(use_archon=True) == "m:1"
        with pytest.raises(errors.ConfigError, match="must be 'ipv4' or 'ipv6', got 'x'"):
            meta.get_address(address_family="x")

    @pytest.mark.parametrize("data", [b"", b"[]", b"3", b"\xff"])
    def test_what_is_no_replica(self, data):
        with pytest.raises(errors.DataError, match="says nothing of a replica"):
            ReplicaMeta.deserialize(data)

    def test_fields_of_later_versions_are_passed_over(self):
        assert ReplicaMeta.deserialize(b'{"task": 3, "later": 1}') == ReplicaMeta(task=3)
