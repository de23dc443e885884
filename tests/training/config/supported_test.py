"""Every setting is read by somebody, or refused by name when it is set."""

import ast
import dataclasses
import enum
import pathlib
import re

import pytest

import monolith
from monolith import errors
from monolith.training.config import supported
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.config.run import RunConfig
from monolith.training.runner import RunnerConfig

PACKAGE = pathlib.Path(monolith.__file__).parent
FIELDS = {field.name: field for field in dataclasses.fields(RunnerConfig)}

# What configs and the flags made from them are called where they are read.
CONFIG_NAMES = {"FLAGS", "conf", "config", "runner_conf"}
# These hold another config, with fields of the same names, in variables of the same names.
OTHER_CONFIGS = ("graph", "training/graph")


def find_reads(source):
    """Returns the fields that a module reads of anything that is called like a config."""
    reads = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        base = node.value
        name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
        if name.lstrip("_") in CONFIG_NAMES:
            reads.add(node.attr)
    return reads


def find_unread(config_class, reads):
    names = {field.name for field in dataclasses.fields(config_class)}
    return sorted(names - reads - set(supported.REFUSED))


@pytest.fixture(scope="module")
def reads():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        folder = path.relative_to(PACKAGE).parent.as_posix()
        if folder not in OTHER_CONFIGS and folder != "training/config":
            found |= find_reads(path.read_text())
    return found


def test_every_setting_is_read_or_refused(reads):
    assert find_unread(RunnerConfig, reads) == []


def test_setting_that_nobody_reads_is_found(reads):
    @dataclasses.dataclass
    class WithOneMore(RunnerConfig):
        enable_quantum_training: bool = False

    assert find_unread(WithOneMore, reads) == ["enable_quantum_training"]


def test_only_reads_of_a_config_count():
    source = """
self._config.read = config.written
config.assigned = 1
context.config.nested
task.elsewhere
"""
    assert find_reads(source) == {"written", "nested"}


def test_every_setting_of_a_run_config_is_handed_on(reads):
    own = {field.name for field in dataclasses.fields(RunConfig)} - set(FIELDS)
    assert own == {"enable_local_profiling", "enable_parameter_sync", "sync"}
    assert "enable_local_profiling" in reads
    assert RunConfig(enable_parameter_sync=True).to_runner_config().enable_realtime_training


def test_only_settings_that_exist_are_refused():
    assert set(supported.REFUSED) <= set(FIELDS)


def set_to_another_value(name):
    """Returns a config in which one field is not at its default."""
    field = FIELDS[name]
    value = {"zk_watch_address_family": "ipv6"}.get(name)
    if value is None and "bool" in str(field.type):
        value = not field.default
    elif value is None and "str" in str(field.type):
        value = "something"
    elif value is None:
        value = (field.default or 0) + 3
    return RunnerConfig(is_local=True, **{name: value})


@pytest.mark.parametrize("name", sorted(supported.REFUSED))
def test_refused_setting_is_refused_in_one_sentence(name):
    with pytest.raises(errors.ConfigError) as caught:
        supported.check_settings(set_to_another_value(name))
    message = str(caught.value)
    assert message.startswith(f"`{name}` is ")
    default = FIELDS[name].default
    assert message.endswith(f"leave it at {default!r}.")
    assert not isinstance(default, enum.Enum)
    assert re.findall(r"\.(?= |$)", message) == ["."]
    assert supported.REFUSED[name] in message


@pytest.mark.parametrize("name", sorted(set(FIELDS) - set(supported.REFUSED)))
def test_other_settings_are_not_refused(name):
    config = RunnerConfig(is_local=True)
    default = FIELDS[name].default
    setattr(config, name, not default if isinstance(default, bool) else default)
    if name in (*supported._ONLY_IN_SYNC, "enable_sync_training"):
        config.enable_sync_training = config.reorder_fids_in_data_pipeline = True
    if name == "enable_partial_sync_training":
        config.enable_sync_training, config.num_ps = True, 1
    supported.check_settings(config)


@pytest.mark.parametrize("name", supported._ONLY_IN_SYNC)
def test_settings_of_ranks_are_for_ranks(name):
    with pytest.raises(errors.ConfigError, match=f"^`{name}` is True, which is for ranks"):
        supported.check_settings(RunnerConfig(**{name: True}))


def test_files_of_an_operator_are_for_ranks():
    config = RunnerConfig(operator_files_steps=5)
    with pytest.raises(errors.ConfigError, match=r"^`operator_files_steps` is 5, but it is for"):
        supported.check_settings(config)
    config.enable_sync_training = config.reorder_fids_in_data_pipeline = True
    supported.check_settings(config)
    config.operator_files_steps = 0
    with pytest.raises(errors.ConfigError, match=r"^`operator_files_steps` is 0, but it must be a"):
        supported.check_settings(config)


def test_a_synchronous_job_is_one_everywhere():
    config = RunnerConfig(enable_sync_training=True)
    with pytest.raises(errors.ConfigError, match=r"`reorder_fids_in_data_pipeline` is False"):
        supported.check_settings(config)
    with pytest.raises(errors.ConfigError, match="call `distributed_sync_train` in each"):
        supported.check_local(config)
    supported.check_ranks(config)
    config.reorder_fids_in_data_pipeline = True
    config.enable_fused_layout = True
    supported.check_settings(config)
    config.enable_realtime_training = True
    with pytest.raises(errors.ConfigError, match=r"`enable_realtime_training` are both True"):
        supported.check_settings(config)
    config.enable_realtime_training = False
    config.sync_to = "file:/servers"
    supported.check_settings(config)
    config.num_ps = 2
    with pytest.raises(errors.ConfigError, match=r"^`num_ps` is 2, but in a synchronous job"):
        supported.check_ranks(config)
    config.num_ps, config.enable_dynamic_sharding = 0, True
    with pytest.raises(errors.ConfigError, match=r"^`enable_dynamic_sharding` is True, but ranks"):
        supported.check_ranks(config)
    with pytest.raises(errors.ConfigError, match=r"^`enable_sync_training` is False"):
        supported.check_ranks(RunnerConfig())


@pytest.mark.parametrize("mode", ["eval", "predict"])
def test_ranks_only_train(mode):
    config = RunnerConfig(enable_sync_training=True, mode=mode)
    with pytest.raises(errors.ConfigError, match=rf"and `mode` is '{mode}', but ranks do steps to"):
        supported.check_ranks(config)


def test_ranks_write_no_features():
    config = RunnerConfig(enable_sync_training=True, only_feature_engineering=True)
    with pytest.raises(errors.ConfigError, match=r"`only_feature_engineering` are both True, but"):
        supported.check_ranks(config)


@pytest.mark.parametrize("name", ["num_extra_ps", "num_redundant_ps"])
def test_ranks_have_no_spare_servers(name):
    config = RunnerConfig(enable_sync_training=True, **{name: 2})
    with pytest.raises(errors.ConfigError, match=rf"^`{name}` is 2, but in a synchronous job"):
        supported.check_ranks(config)


def test_ranks_have_no_member_to_ask_for_metrics():
    config = RunnerConfig(enable_sync_training=True, metrics_port=0)
    with pytest.raises(errors.ConfigError, match=r"^`metrics_port` is 0, but a synchronous"):
        supported.check_ranks(config)


def test_partial_sync_training_is_for_workers_beside_servers():
    config = RunnerConfig(enable_partial_sync_training=True)
    with pytest.raises(errors.ConfigError, match="`enable_sync_training` is False, but it says"):
        supported.check_settings(config)
    config.enable_sync_training = True
    with pytest.raises(errors.ConfigError, match="`num_ps` is 0, but it is for tables on"):
        supported.check_settings(config)
    config.num_ps = 2
    supported.check_settings(config)
    supported.refuse_ranks(config)
    for name in ("partial_recovery", "enable_dynamic_sharding", "enable_realtime_training"):
        setattr(config, name, True)
        with pytest.raises(errors.ConfigError, match=f"`{name}` are both True, which workers"):
            supported.check_settings(config)
        setattr(config, name, False)
    config.sync_to = "file:/servers"
    with pytest.raises(errors.ConfigError, match=r"`sync_to` is 'file:/servers', but such a job"):
        supported.check_settings(config)
    config.sync_to, config.mode = None, "eval"
    with pytest.raises(errors.ConfigError, match="`mode` is 'eval', but workers do steps"):
        supported.check_settings(config)
    with pytest.raises(errors.ConfigError, match=r"^`enable_partial_sync_training` is True, but"):
        supported.check_local(config)


@pytest.mark.parametrize(
    "config", [RunConfig().to_runner_config(), RunnerConfig(), CpuTrainingConfig()]
)
def test_defaults_are_not_refused(config):
    supported.check_settings(config)
    supported.check_local(config)


def test_saying_no_to_what_is_not_there_is_not_refused():
    supported.check_settings(RunnerConfig(use_dataservice=False, kafka_topics=""))


def test_settings_of_kafka_belong_together():
    config = RunnerConfig(kafka_topics="clicks", kafka_group_id="ads", kafka_servers="host:1")
    supported.check_settings(config)
    config.kafka_group_id = None
    with pytest.raises(errors.ConfigError, match=r"^`kafka_group_id` is not set, but input from"):
        supported.check_settings(config)


@pytest.mark.parametrize("name", ["model_dir", "restore_dir", "warmup_file", "restore_ckpt"])
def test_nul_in_a_path_is_refused(name):
    with pytest.raises(errors.ConfigError, match=f"^`{name}` must not have a NUL character"):
        supported.check_settings(RunnerConfig(**{name: "/models\0/movies"}))


@pytest.mark.parametrize("name", ["num_extra_ps", "num_redundant_ps"])
def test_local_job_has_no_spare_servers(name):
    config = RunnerConfig(is_local=True, **{name: 2})
    supported.check_settings(config)
    with pytest.raises(errors.ConfigError, match=rf"^`{name}` is 2, but a local job"):
        supported.check_local(config)


def test_local_job_has_no_member_to_ask_for_metrics():
    config = RunnerConfig(is_local=True, metrics_port=0)
    supported.check_settings(config)
    with pytest.raises(errors.ConfigError, match=r"^`metrics_port` is 0, but a local job has no"):
        supported.check_local(config)


def test_local_job_has_one_worker():
    with pytest.raises(errors.ConfigError, match=r"^`num_workers` is 3, but a local job is one"):
        supported.check_local(CpuTrainingConfig(num_workers=3))


def test_local_job_does_not_share_files():
    config = RunnerConfig(is_local=True, enable_dynamic_sharding=True)
    supported.check_settings(config)
    with pytest.raises(errors.ConfigError, match=r"^`enable_dynamic_sharding` is True, but a loc"):
        supported.check_local(config)
