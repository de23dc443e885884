"""RunnerConfig: flags, restore, and the discovery it asks for."""

import contextlib
import dataclasses
import enum
import importlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import unittest

import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver
from google.protobuf import text_format
from kazoo.handlers.threading import KazooTimeoutError
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.training import checkpoint_management as old_checkpoint_management
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from monolith import errors, native_training
from monolith.cluster import discovery as discovery_lib
from monolith.cluster.discovery import (
    ConsulServiceDiscovery,
    FileServiceDiscovery,
    MLPServiceDiscovery,
    ServiceDiscoveryType,
    TfConfigServiceDiscovery,
)
from monolith.core.flags import extract_help_info
from monolith.training import restore_override, runner
from monolith.training.config import supported
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.runner import (
    RunnerConfig,
    get_discovery,
    monolith_discovery,
    prepare_process,
)

FLAGS = flags.FLAGS

# From the specification of the original, field by field.
OWN_DEFAULTS = {
    "task": None,
    "tf_config": None,
    "deep_insight_name": None,
    "discovery_type": ServiceDiscoveryType.CONSUL,
    "zk_server": None,
    "zk_watch_address_family": "ipv4",
    "is_local": False,
    "enable_fid_dedup": False,
    "bzid": None,
    "ps_replica_num": None,
    "tf_grpc_worker_cache_threads": 16,
    "monolith_grpc_worker_service_handler_multiplier": 1.0,
    "params_override": None,
    "base_name": None,
    "data_type": None,
    "feature_list": None,
    "lagrangex_header": False,
    "sort_id": True,
    "kafka_dump": False,
    "kafka_dump_prefix": False,
    "restore_dir": None,
    "restore_ckpt": None,
    "deep_insight_target": None,
    "deep_insight_sample_ratio": None,
    "unified_serving": False,
    "use_estimator": False,
    "kafka_topics": None,
    "kafka_group_id": None,
    "kafka_servers": None,
    "input_path": None,
    "is_hourly": False,
    "wildcard": None,
    "start_date": None,
    "end_date": None,
    "start_hour": None,
    "end_hour": None,
    "enable_dynamic_sharding": False,
    "max_task_num_per_worker": 1,
    "disable_native_metrics": True,
}
TF_CONFIG = {
    "cluster": {
        "chief": ["host0:2222"],
        "ps": ["host1:2222", "host2:2222"],
        "worker": ["host3:2222", "host4:2222", "host5:2222"],
    },
    "task": {"type": "worker", "index": 1},
}


@pytest.fixture(autouse=True)
def _clean_process(monkeypatch, tmp_path):
    """No patches, flags or variables from elsewhere, and none left behind."""
    current = checkpoint_management.get_checkpoint_state
    original = getattr(current, restore_override._ORIGINAL, current)
    for module in (
        checkpoint_management,
        old_checkpoint_management,
        tf.train,
        tf.compat.v1.train,
    ):
        monkeypatch.setattr(module, "get_checkpoint_state", original)
    monkeypatch.setattr(os.path, "isabs", restore_override._ORIGINAL_ISABS)
    # Another test may have imported the historical path.
    monkeypatch.setattr(runner, "_prepares_when_made", False)
    for name in list(os.environ):
        if name.startswith(("MLP_", "MPI_", "OMPI_", "CONSUL_", "TCE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TEST_TMPDIR", str(tmp_path))
    with flagsaver.flagsaver():
        yield


def make_conf(**settings):
    return RunnerConfig(**{"is_local": False, **settings})


def write_checkpoint_file(directory, steps):
    os.makedirs(directory)
    paths = [os.path.join(directory, f"model.ckpt-{step}") for step in steps]
    state = CheckpointState(model_checkpoint_path=paths[-1], all_model_checkpoint_paths=paths)
    pathlib.Path(directory, "checkpoint").write_text(text_format.MessageToString(state))


@contextlib.contextmanager
def refusing_port():
    """A port of this machine that is taken, so that nobody else listens there, but refuses."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


class RunnerUtilsTest(unittest.TestCase):
    def test_get_discovery_local(self):
        conf = RunnerConfig(is_local=True)
        discovery = get_discovery(conf)
        self.assertIsNone(discovery)
        conf.is_local = False
        self.assertIsNone(discovery)
        # The original stopped here; the config is asked anew each time.
        self.assertIsInstance(get_discovery(conf, psm="test"), ConsulServiceDiscovery)

    def test_get_discovery_primus(self):
        conf = make_conf(
            discovery_type=ServiceDiscoveryType.PRIMUS, tf_config=json.dumps(TF_CONFIG)
        )
        discovery = get_discovery(conf)
        self.assertIsInstance(discovery, TfConfigServiceDiscovery)
        # The second worker after a chief is number 2 of all.
        self.assertEqual(conf.server_type, "worker")
        self.assertEqual(conf.index, 2)
        self.assertEqual(discovery.addr, "host4:2222")

    def test_get_discovery_consul(self):
        conf = make_conf(discovery_type=ServiceDiscoveryType.CONSUL)
        self.assertIsInstance(get_discovery(conf, psm="test.psm"), ConsulServiceDiscovery)

    def test_get_discovery_zk(self):
        class ImpatientClient(discovery_lib.MonolithKazooClient):
            def start(self, timeout=15):
                super().start(timeout=0.3)

        with refusing_port() as port, pytest.MonkeyPatch.context() as patch:
            patch.setattr(discovery_lib, "MonolithKazooClient", ImpatientClient)
            conf = make_conf(
                discovery_type=ServiceDiscoveryType.ZK,
                deep_insight_name="test_get_discovery_zk",
                zk_server=f"127.0.0.1:{port}",
            )
            with self.assertRaises(KazooTimeoutError):
                get_discovery(conf)

    def test_copy_ckpt(self):
        runner.prepare_when_made()  # As importing `monolith.native_training.runner_utils` does.
        restore_dir = os.path.join(os.environ["TEST_TMPDIR"], "test_copy_ckpt", "restore_dir")
        model_dir = os.path.join(os.environ["TEST_TMPDIR"], "test_copy_ckpt", "model_dir")
        write_checkpoint_file(restore_dir, steps=(10, 20, 30))
        RunnerConfig(
            is_local=False,
            server_type="worker",
            index=0,
            restore_dir=restore_dir,
            model_dir=model_dir,
            restore_ckpt="model.ckpt-30",
        )
        self.assertTrue(tf.io.gfile.exists(os.path.join(model_dir, "monolith_checkpoint")))
        self.assertTrue(tf.io.gfile.exists(os.path.join(model_dir, "restore_ckpt")))
        state = tf.train.get_checkpoint_state(model_dir)
        self.assertEqual(os.path.basename(state.model_checkpoint_path), "model.ckpt-30")
        # What the chief has prepared is there, so another worker does not wait.
        worker = RunnerConfig(
            is_local=False,
            server_type="worker",
            index=2,
            restore_dir=restore_dir,
            model_dir=model_dir,
            restore_ckpt="model.ckpt-30",
        )
        self.assertEqual(worker.index, 2)


# Fields and flags.


def test_fields_and_defaults():
    inherited = dataclasses.asdict(DistributedCpuTrainingConfig())
    assert dataclasses.asdict(RunnerConfig()) == {**inherited, **OWN_DEFAULTS}
    assert not set(inherited) & set(OWN_DEFAULTS)


def test_container_type():
    assert {member.name: member.value for member in runner.ContainerType} == {
        "DOCKER": 1,
        "NATIVE": 2,
    }


def test_every_documented_field_is_a_flag_with_its_default():
    help_info = extract_help_info(RunnerConfig)
    for field in dataclasses.fields(RunnerConfig):
        if field.name in ("profile_save_steps_interval", "device_fn", "reload_alias_map"):
            assert field.name not in FLAGS
        elif field.name != "use_dataservice":
            flag = FLAGS[field.name]
            default = field.default
            if field.name == "discovery_type":
                default = "consul"
            assert flag.default == default, field.name
            assert flag.help.endswith(help_info[field.name])
    assert FLAGS["discovery_type"].parser.enum_values == ["primus", "consul", "zk", "mlp", "file"]


def test_command_line_fills_in_what_the_code_left_out():
    with flagsaver.flagsaver(
        num_ps=3, discovery_type="zk", model_dir="/flag", partial_recovery=True
    ):
        config = RunnerConfig(model_dir="/code")
    assert config.num_ps == 3
    assert config.discovery_type is ServiceDiscoveryType.ZK
    assert config.partial_recovery is True
    assert config.model_dir == "/code"


def test_data_service_flag_reaches_the_config():
    with flagsaver.flagsaver(dataset_use_dataservice=True):
        assert RunnerConfig(is_local=True).use_dataservice is True


def test_flags_that_fail_are_logged(monkeypatch, caplog):
    def fail(config):
        raise AttributeError("no such flag")

    monkeypatch.setattr(runner.dataclass_flags, "update", fail)
    assert RunnerConfig(num_ps=2).num_ps == 2
    assert "The flags were not applied to the config." in caplog.text


# What making a config does not do, and preparing the process does.


def test_making_a_config_has_no_effects(tmp_path, monkeypatch):
    def fail():
        raise AssertionError("the process was changed")

    monkeypatch.setattr(runner.mlp, "mlp_pass", fail)
    monkeypatch.setattr(runner.mlp, "add_mpi_exception_hook", fail)
    write_checkpoint_file(str(tmp_path / "restore"), steps=(1,))
    environment = dict(os.environ)
    flag_values = {name: FLAGS[name].value for name in FLAGS}
    get_checkpoint_state, isabs = tf.train.get_checkpoint_state, os.path.isabs
    settings = {
        "restore_dir": str(tmp_path / "restore"),
        "restore_ckpt": "model.ckpt-1",
        "model_dir": str(tmp_path / "model"),
        "kafka_topics": "a,b",
        "kafka_group_id": "group",
        "kafka_servers": "h:1",
    }
    RunnerConfig(is_local=True, **settings)
    RunnerConfig(index=1, **settings)  # Nor does it wait for the chief.
    assert os.listdir(tmp_path) == ["restore"]
    assert dict(os.environ) == environment
    assert {name: FLAGS[name].value for name in FLAGS} == flag_values
    assert tf.train.get_checkpoint_state is get_checkpoint_state
    assert os.path.isabs is isabs


def test_mlp_and_mpi_are_set_up(monkeypatch):
    calls = []
    monkeypatch.setattr(runner.mlp, "mlp_pass", lambda: calls.append("mlp_pass"))
    monkeypatch.setattr(runner.mlp, "add_mpi_exception_hook", lambda: calls.append("hook"))
    prepare_process(RunnerConfig())
    assert calls == ["mlp_pass", "hook"]


@pytest.mark.parametrize(
    ("settings", "index"),
    [
        pytest.param({}, 5, id="rank"),
        pytest.param({"index": 2}, 2, id="index_given"),
        pytest.param({"server_type": "ps"}, 0, id="ps"),
        pytest.param({"enable_gpu_training": False}, 0, id="no_gpu"),
        pytest.param({"enable_partial_sync_training": False}, 0, id="not_partial"),
    ],
)
def test_gpu_worker_takes_its_index_from_mpi(monkeypatch, settings, index):
    monkeypatch.setattr(runner.mlp, "add_mpi_exception_hook", lambda: None)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    config = RunnerConfig(
        **{"enable_gpu_training": True, "enable_partial_sync_training": True, **settings}
    )
    assert config.index == index


def test_gpu_worker_outside_mpi_keeps_its_index():
    config = RunnerConfig(enable_gpu_training=True, enable_partial_sync_training=True)
    assert config.index == 0


def test_kafka_settings_reach_the_flags():
    config = RunnerConfig(kafka_topics="a,b", kafka_group_id="group", kafka_servers="h:1,h:2")
    prepare_process(config)
    assert FLAGS["kafka_topics"].value == ["a", "b"]
    assert FLAGS["kafka_group_id"].value == "group"
    assert FLAGS["kafka_servers"].value == "h:1,h:2"
    assert config.kafka_topics == "a,b"
    # A second config in the process takes them over.
    config = RunnerConfig()
    assert config.kafka_topics == ["a", "b"]
    prepare_process(config)
    assert FLAGS["kafka_topics"].value == ["a", "b"]


def test_what_records_are_reaches_the_flags():
    prepare_process(RunnerConfig(data_type="example", sort_id=False))
    assert FLAGS["data_type"].value == "example"
    assert FLAGS["sort_id"].value is False


def test_without_settings_of_the_input_the_flags_stay():
    prepare_process(RunnerConfig())
    assert FLAGS["data_type"].value is None
    assert FLAGS["sort_id"].value is True
    assert FLAGS["kafka_topics"].value is None
    assert FLAGS["kafka_group_id"].value is None
    assert FLAGS["kafka_servers"].value is None


def test_address_family_is_checked():
    assert RunnerConfig(zk_watch_address_family="ipv6").zk_watch_address_family == "ipv6"
    with pytest.raises(AssertionError, match="must be 'ipv4' or 'ipv6', got 'IPv4'"):
        RunnerConfig(zk_watch_address_family="IPv4")


def test_restore_ckpt_is_of_one_job():
    prepare_process(RunnerConfig(restore_ckpt="model.ckpt-1"))
    assert FLAGS["restore_ckpt"].value is None
    assert RunnerConfig().restore_ckpt is None


def test_restore_ckpt_sets_the_flag_of_a_historical_program_unless_it_is_set(monkeypatch):
    monkeypatch.setattr(runner, "_prepares_when_made", True)
    prepare_process(RunnerConfig(restore_ckpt="model.ckpt-1"))
    assert FLAGS["restore_ckpt"].value == "model.ckpt-1"
    with flagsaver.flagsaver(restore_ckpt="model.ckpt-2"):
        config = RunnerConfig(restore_ckpt="model.ckpt-3")
        prepare_process(config)
        assert FLAGS["restore_ckpt"].value == "model.ckpt-2"
        assert config.restore_ckpt == "model.ckpt-3"


def test_only_a_config_that_restores_patches_the_process(tmp_path):
    original = checkpoint_management.get_checkpoint_state
    prepare_process(RunnerConfig(model_dir=str(tmp_path)))
    assert tf.train.get_checkpoint_state is original
    assert os.path.isabs is not runner.isabs
    prepare_process(RunnerConfig(model_dir=str(tmp_path), restore_ckpt="model.ckpt-1"))
    assert tf.train.get_checkpoint_state is original
    write_checkpoint_file(str(tmp_path / "restore"), steps=(1,))
    settings = {"restore_dir": str(tmp_path / "restore"), "model_dir": str(tmp_path / "model")}
    prepare_process(RunnerConfig(**settings))
    assert tf.train.get_checkpoint_state is not original
    assert os.path.isabs is runner.isabs


def test_restore_dir_needs_a_model_dir(tmp_path):
    with pytest.raises(errors.ConfigError, match="needs model_dir"):
        prepare_process(RunnerConfig(restore_dir=str(tmp_path)))


def test_local_job_is_its_own_chief(tmp_path):
    write_checkpoint_file(str(tmp_path / "restore"), steps=(1,))
    settings = {"restore_dir": str(tmp_path / "restore"), "model_dir": str(tmp_path / "model")}
    prepare_process(RunnerConfig(is_local=True, index=7, **settings))
    assert (tmp_path / "model" / "checkpoint").exists()


@pytest.mark.parametrize("member", [{"index": 1}, {"server_type": "ps", "index": 0}])
def test_others_wait_until_the_chief_is_done(tmp_path, monkeypatch, member):
    monkeypatch.setattr(restore_override, "_RESTORE_POLL_SEC", 0.01)
    write_checkpoint_file(str(tmp_path / "restore"), steps=(1,))
    settings = {"restore_dir": str(tmp_path / "restore"), "model_dir": str(tmp_path / "model")}
    waiter = threading.Thread(target=prepare_process, args=[RunnerConfig(**settings, **member)])
    waiter.start()
    try:
        waiter.join(timeout=0.1)
        assert waiter.is_alive()
    finally:
        prepare_process(RunnerConfig(**settings))
        waiter.join(timeout=30)
    assert not waiter.is_alive()


# Discovery.


@pytest.mark.parametrize(
    ("tf_config", "message"),
    [
        (None, "needs tf_config as JSON, got None"),
        ("", "needs tf_config as JSON, got ''"),
        ('{"cluster": ', "needs tf_config as JSON"),
        ("[1]", "must be a JSON object"),
    ],
)
def test_malformed_tf_config(tf_config, message):
    conf = make_conf(discovery_type=ServiceDiscoveryType.PRIMUS, tf_config=tf_config)
    with pytest.raises(errors.ConfigError, match=message):
        get_discovery(conf)


@pytest.mark.parametrize("missing", ["cluster", "task"])
def test_tf_config_with_a_missing_key(missing):
    tf_config = {key: value for key, value in TF_CONFIG.items() if key != missing}
    conf = make_conf(discovery_type=ServiceDiscoveryType.PRIMUS, tf_config=json.dumps(tf_config))
    with pytest.raises(ValueError, match=missing):
        get_discovery(conf)


def test_chief_of_tf_config_is_worker_0():
    tf_config = {**TF_CONFIG, "task": {"type": "chief", "index": 0}}
    conf = make_conf(
        discovery_type=ServiceDiscoveryType.PRIMUS, tf_config=json.dumps(tf_config), index=9
    )
    get_discovery(conf)
    assert (conf.server_type, conf.index) == ("worker", 0)


@pytest.mark.parametrize("psm", [None, ""])
def test_consul_needs_a_service_id(psm):
    conf = make_conf(discovery_type=ServiceDiscoveryType.CONSUL)
    with pytest.raises(errors.ConfigError, match=r"Consul discovery needs .* set uuid"):
        get_discovery(conf, psm)


def test_mlp_discovery(monkeypatch):
    monkeypatch.setenv("MLP_ROLE", "worker")
    monkeypatch.setenv("MLP_ROLE_INDEX", "0")
    monkeypatch.setenv("MLP_WORKER_NUM", "1")
    monkeypatch.setenv("MLP_PORT", "2222")
    with monolith_discovery(make_conf(discovery_type=ServiceDiscoveryType.MLP)) as discovery:
        assert isinstance(discovery, MLPServiceDiscovery)


def test_file_discovery_lies_in_the_model_dir(tmp_path):
    conf = make_conf(
        discovery_type=ServiceDiscoveryType.FILE, model_dir=str(tmp_path), uuid="run-1"
    )
    with monolith_discovery(conf) as discovery:
        assert isinstance(discovery, FileServiceDiscovery)
        discovery.register("ps", 0, "127.0.0.1:2222")
        with monolith_discovery(conf) as other:
            assert other.query("ps") == {0: "127.0.0.1:2222"}
        assert (tmp_path / "discovery_dir" / "run-1" / "ps" / "0").exists()
    assert not (tmp_path / "discovery_dir" / "run-1" / "ps" / "0").exists()


@pytest.mark.parametrize("model_dir", ["", "hdfs://cluster/model"])
def test_file_discovery_needs_a_directory_on_a_disk(model_dir):
    conf = make_conf(discovery_type=ServiceDiscoveryType.FILE, model_dir=model_dir)
    with pytest.raises(errors.ConfigError, match="File discovery keeps its files in model_dir"):
        get_discovery(conf)


class ClosableDiscovery(TfConfigServiceDiscovery):
    num_closed = 0

    def close(self):
        self.num_closed += 1


def test_discovery_is_closed_whatever_happens(monkeypatch, caplog):
    caplog.set_level("INFO")
    psms = []
    discovery = ClosableDiscovery(TF_CONFIG)

    def get(conf, psm):
        psms.append(psm)
        return discovery

    monkeypatch.setattr(runner, "get_discovery", get)

    def fail_inside():
        with monolith_discovery(make_conf(uuid="u-1")) as yielded:
            assert yielded is discovery
            assert discovery.num_closed == 0
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert discovery.num_closed == 1
    assert psms == ["u-1"]
    assert "Entering discovery ClosableDiscovery." in caplog.text
    assert "Left discovery ClosableDiscovery." in caplog.text


def test_local_job_has_no_discovery():
    with monolith_discovery(RunnerConfig(is_local=True)) as discovery:
        assert discovery is None


# The guide.

GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "cluster.md"


def test_guide_lists_every_setting_with_its_default_and_meaning():
    help_info = extract_help_info(RunnerConfig)
    rows = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| (.*) \|$", GUIDE.read_text(), re.MULTILINE)
    documented = {name: (default, text) for name, default, text in rows}
    fields = {field.name: field for field in dataclasses.fields(RunnerConfig)}
    assert len(rows) == len(documented)
    assert set(documented) == set(fields)
    for name, (default, text) in documented.items():
        value = fields[name].default
        expected = value.name.lower() if isinstance(value, enum.Enum) else repr(value)
        assert default == expected.replace("'", '"'), name
        assert text.startswith(help_info.get(name, "")), name
        assert text.endswith(" Refused.") == (name in supported.REFUSED), name


def test_guide_shows_how_a_setting_is_refused():
    with pytest.raises(errors.ConfigError) as caught:
        supported.check_settings(RunnerConfig(enable_gpu_training=True))
    assert f"```\n{caught.value}\n```" in GUIDE.read_text()


def test_example_of_the_guide_runs(tmp_path):
    example = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)[1]
    assert "/shared/model" in example
    names = {}
    with contextlib.closing(FileServiceDiscovery(f"{tmp_path}/discovery_dir/run-1")) as servers:
        servers.register("ps", 0, "10.0.0.1:2222")
        servers.register("ps", 1, "10.0.0.2:2222")
        exec(example.replace("/shared/model", str(tmp_path)), names)
    assert names["cluster"] == {
        "chief": ["10.0.0.5:4711"],
        "worker": ["0.0.0.0:1", "0.0.0.0:2"],
        "ps": ["10.0.0.1:2222", "10.0.0.2:2222"],
    }
    assert list(names["session_config"].device_filters) == ["/job:ps", "/job:chief"]


# The historical path.


def test_functions_for_historical_imports_belong_to_known_paths():
    assert set(native_training.ON_HISTORICAL_IMPORT) <= set(native_training.HISTORICAL_PATHS)
    for old_path, function in native_training.ON_HISTORICAL_IMPORT.items():
        home = importlib.import_module(native_training.HISTORICAL_PATHS[old_path])
        assert callable(getattr(home, function))


def test_only_the_historical_path_patches_the_process(tmp_path):
    """In a process of its own, since an import cannot be taken back."""
    program = """
import os
import posixpath
import sys
import tensorflow as tf
isabs, get_state = os.path.isabs, tf.train.get_checkpoint_state

import monolith
import monolith.training.runner as home
from monolith.native_training import cluster_manager
settings = {"is_local": True, "restore_dir": sys.argv[1], "model_dir": sys.argv[2]}
home.RunnerConfig(**settings)
assert os.path.isabs is isabs and tf.train.get_checkpoint_state is get_state
assert not os.path.exists(sys.argv[2])

from monolith.native_training import runner_utils
assert runner_utils is home
assert os.path.isabs is home.isabs and os.path.isabs("hdfs:/a")
patched = tf.train.get_checkpoint_state
assert patched is not get_state
from tensorflow.python.training import checkpoint_management
assert checkpoint_management.get_checkpoint_state is patched
home.RunnerConfig(**settings)
assert os.path.exists(os.path.join(sys.argv[2], "monolith_checkpoint"))

import importlib
del sys.modules["monolith.native_training.runner_utils"]
assert importlib.import_module("monolith.native_training.runner_utils") is home
assert tf.train.get_checkpoint_state is patched and os.path.isabs is home.isabs
import monolith.training.restore_override as restore_override
importlib.reload(restore_override)
assert os.path.isabs("/a") and not os.path.isabs("a")
print("fine")
"""
    restore_dir, model_dir = str(tmp_path / "restore"), str(tmp_path / "model")
    write_checkpoint_file(restore_dir, steps=(1,))
    done = subprocess.run(
        [sys.executable, "-c", program, restore_dir, model_dir],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "fine\n", done.stderr


if __name__ == "__main__":
    tf.compat.v1.disable_eager_execution()
    unittest.main()
