"""Settings of a run, and its place in the cluster of TF_CONFIG."""

import json

import pytest
import tensorflow as tf

from monolith import errors
from monolith.graph import run_config
from monolith.graph.run_config import GraphRunConfig

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:2"], "ps": ["d:1", "e:1", "f:1"]}


@pytest.fixture
def tf_config(monkeypatch):
    def set_tf_config(task_type, index, cluster=CLUSTER):
        value = {"cluster": cluster, "task": {"type": task_type, "index": index}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(value))

    return set_tf_config


class TestSettings:
    def test_container(self):
        assert GraphRunConfig().container == ""
        assert GraphRunConfig(container="apart").replace(model_dir="m").container == "apart"

    def test_defaults(self):
        config = GraphRunConfig()
        assert config.model_dir is None
        assert config.session_config is None
        assert config.save_summary_steps == 100
        assert config.save_checkpoints_steps is None
        assert config.save_checkpoints_secs == 600
        assert config.log_step_count_steps == 100
        assert config.session_creation_timeout_secs == 7200
        assert config.device_fn is None
        assert config.keep_checkpoint_max == 5

    def test_servers_in_the_session(self):
        config = GraphRunConfig(num_local_servers=2)
        assert (config.num_local_servers, config.num_ps_replicas, config.master) == (2, 2, "")
        assert config.replace(num_local_servers=1).num_ps_replicas == 1
        with pytest.raises(errors.ConfigError, match="num_local_servers must not be negative"):
            GraphRunConfig(num_local_servers=-1)

    def test_steps_take_the_place_of_seconds(self):
        config = GraphRunConfig(save_checkpoints_steps=7)
        assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (7, None)

    def test_none_for_both_saves_nothing(self):
        config = GraphRunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None)
        assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, None)

    def test_none_for_steps_leaves_the_seconds_alone(self):
        assert GraphRunConfig(save_checkpoints_steps=None).save_checkpoints_secs == 600

    def test_both_intervals_are_refused(self):
        with pytest.raises(ValueError, match=r"both save_checkpoints_steps and .*got 1 and 2"):
            GraphRunConfig(save_checkpoints_steps=1, save_checkpoints_secs=2)

    @pytest.mark.parametrize(
        "name",
        [
            "save_summary_steps",
            "save_checkpoints_steps",
            "save_checkpoints_secs",
            "log_step_count_steps",
            "session_creation_timeout_secs",
        ],
    )
    def test_zero_is_refused(self, name):
        with pytest.raises(errors.ConfigError, match=f"{name} must be above 0, got 0"):
            GraphRunConfig(**{name: 0})

    def test_negative_number_of_checkpoints_is_refused(self):
        with pytest.raises(errors.ConfigError, match="must not be negative, got -1; None keeps"):
            GraphRunConfig(keep_checkpoint_max=-1)

    def test_paths_become_strings(self, tmp_path):
        assert GraphRunConfig(tmp_path).model_dir == str(tmp_path)

    def test_empty_model_dir_is_refused(self):
        with pytest.raises(errors.ConfigError, match="model_dir must not be empty"):
            GraphRunConfig("")


class TestReplace:
    def test_the_rest_stays(self):
        config = GraphRunConfig("a", save_checkpoints_steps=3, keep_checkpoint_max=2)
        replaced = config.replace(model_dir="b")
        assert (replaced.model_dir, config.model_dir) == ("b", "a")
        assert (replaced.save_checkpoints_steps, replaced.keep_checkpoint_max) == (3, 2)

    def test_the_place_in_the_cluster_stays(self, tf_config, monkeypatch):
        tf_config("worker", 1)
        config = GraphRunConfig()
        monkeypatch.delenv("TF_CONFIG")
        replaced = config.replace(model_dir="b")
        assert (replaced.master, replaced.task_id) == ("grpc://c:2", 1)

    def test_another_interval_takes_the_place_of_the_old_one(self):
        replaced = GraphRunConfig(save_checkpoints_steps=3).replace(save_checkpoints_secs=5)
        assert (replaced.save_checkpoints_steps, replaced.save_checkpoints_secs) == (None, 5)

    def test_unknown_setting_is_refused(self):
        with pytest.raises(errors.ConfigError, match=r"no setting 'model'; it has .*model_dir"):
            GraphRunConfig().replace(model="b")

    def test_values_are_checked(self):
        with pytest.raises(errors.ConfigError, match="save_summary_steps must be above 0"):
            GraphRunConfig().replace(save_summary_steps=0)


class TestTfConfig:
    def test_without_it_a_process_is_alone(self):
        config = GraphRunConfig()
        assert config.is_chief
        assert config.master == ""
        assert config.num_ps_replicas == 0
        assert config.cluster_spec.jobs == []

    def test_without_a_cluster_a_process_is_alone(self, monkeypatch):
        monkeypatch.setenv("TF_CONFIG", json.dumps({"task": {"type": "worker", "index": 3}}))
        config = GraphRunConfig()
        assert (config.is_chief, config.master, config.task_id) == (True, "", 0)

    @pytest.mark.parametrize(
        ("task_type", "index", "is_chief", "master"),
        [
            ("chief", 0, True, "grpc://a:1"),
            ("worker", 0, False, "grpc://b:1"),
            ("worker", 1, False, "grpc://c:2"),
            ("ps", 2, False, "grpc://f:1"),
            ("worker", "1", False, "grpc://c:2"),
        ],
    )
    def test_place_in_a_cluster(self, tf_config, task_type, index, is_chief, master):
        tf_config(task_type, index)
        config = GraphRunConfig()
        assert (config.task_type, config.task_id) == (task_type, int(index))
        assert (config.is_chief, config.master) == (is_chief, master)
        assert config.num_ps_replicas == 3
        assert config.cluster_spec.as_dict() == CLUSTER

    def test_servers_in_the_session_beside_a_cluster_are_refused(self, tf_config):
        tf_config("chief", 0)
        with pytest.raises(
            errors.ConfigError, match="num_local_servers is 2, but TF_CONFIG describes a cluster"
        ):
            GraphRunConfig(num_local_servers=2)

    def test_evaluator_is_outside_of_the_cluster(self, tf_config):
        tf_config("evaluator", 0)
        config = GraphRunConfig()
        assert (config.is_chief, config.master, config.task_type) == (False, "", "evaluator")

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("{", "TF_CONFIG must be JSON, got '{'"),
            ("[]", r"must be a dictionary with 'cluster' and 'task', got \[\]"),
            ('{"cluster": ["a:1"]}', r"from job names to lists of addresses, got \['a:1'\]"),
            ('{"cluster": {"chief": "a:1"}}', "lists of addresses, got {'chief': 'a:1'}"),
            ('{"cluster": {"chief": ["a:1"]}}', "must say what this process is"),
            (
                '{"cluster": {"chief": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
                r"this process is a 'ps', but its cluster has only \['chief'\]",
            ),
            (
                '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": 1}}',
                "'chief' number 1, but its cluster has 1 of them",
            ),
            (
                '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": "one"}}',
                "must be a number, got 'one'",
            ),
        ],
    )
    def test_what_is_wrong_is_named(self, monkeypatch, text, problem):
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(errors.ConfigError, match=problem):
            GraphRunConfig()


class TestDeviceFunction:
    def test_none_when_alone(self):
        assert run_config.make_device_fn(GraphRunConfig()) is None

    def test_own_function_wins(self, tf_config):
        tf_config("chief", 0)
        assert run_config.make_device_fn(GraphRunConfig(device_fn=str)) is str

    def test_variables_go_round_the_servers(self, tf_config):
        tf_config("worker", 1)
        device_fn = run_config.make_device_fn(GraphRunConfig())
        with tf.Graph().as_default() as graph, graph.device(device_fn):
            variables = [tf.compat.v1.get_variable(n, initializer=1.0) for n in "abcd"]
            devices = [variable.device for variable in variables]
            assert devices == [f"/job:ps/task:{i}" for i in (0, 1, 2, 0)]
            assert tf.constant(1).device == "/job:worker/task:1"
            # An op that names only a job of its own keeps the rest of its device.
            with tf.device("/device:GPU:0"):
                assert tf.constant(1).device == "/job:worker/task:1/device:GPU:0"


class TestSessionConfig:
    def test_alone(self):
        session_config = run_config.make_session_config(GraphRunConfig())
        assert session_config.allow_soft_placement
        assert not session_config.device_filters

    def test_own_config_wins(self, tf_config):
        tf_config("chief", 0)
        own = tf.compat.v1.ConfigProto(log_device_placement=True)
        assert run_config.make_session_config(GraphRunConfig(session_config=own)) == own

    def test_servers_in_the_session_are_cpu_devices_of_it(self):
        own = tf.compat.v1.ConfigProto(log_device_placement=True)
        config = GraphRunConfig(session_config=own, num_local_servers=2)
        session_config = run_config.make_session_config(config)
        assert session_config.device_count == {"CPU": 3}  # The worker's own, and two.
        assert session_config.log_device_placement
        assert not own.device_count

    @pytest.mark.parametrize(
        ("task_type", "filters"),
        [
            ("chief", ["/job:ps", "/job:chief"]),
            ("worker", ["/job:ps", "/job:chief", "/job:worker/task:0"]),
        ],
    )
    def test_does_not_wait_for_other_workers(self, tf_config, task_type, filters):
        tf_config(task_type, 0)
        session_config = run_config.make_session_config(GraphRunConfig())
        assert list(session_config.device_filters) == filters


@pytest.mark.parametrize("name", ["model_dir", "summary_dir"])
def test_path_with_a_nul_is_refused(name):
    with pytest.raises(errors.ConfigError, match=f"^`{name}` must not have a NUL character"):
        GraphRunConfig(**{name: "/models\0/movies"})


def test_summaries_are_beside_the_checkpoints_unless_told_otherwise():
    assert GraphRunConfig("/models").summary_dir == "/models"
    config = GraphRunConfig("/models", summary_dir="/logs")
    assert config.summary_dir == "/logs"
    assert config.replace(model_dir="/others").summary_dir == "/logs"
