"""The helpers for tests, themselves tested."""

import pathlib

import pytest
import tensorflow as tf

from monolith import testing
from monolith.graph import devices
from monolith.native_training import test_utils


def test_historical_path_gives_the_same_module():
    assert test_utils is testing


class TestGenerateTestHashTableConfig:
    def test_defaults(self):
        config = testing.generate_test_hash_table_config()
        assert config.table_config.WhichOneof("type") == "cuckoo"
        (segment,) = config.table_config.entry_config.segments
        assert segment.dim_size == 2
        assert segment.init_config.WhichOneof("type") == "zeros"
        assert segment.opt_config.WhichOneof("type") == "sgd"
        assert not segment.opt_config.stochastic_rounding_float16
        assert segment.comp_config.WhichOneof("type") == "fp32"
        assert config.learning_rate_fns == [1.0]

    def test_arguments(self):
        config = testing.generate_test_hash_table_config(dim=5, use_float16=True, learning_rate=0.5)
        (segment,) = config.table_config.entry_config.segments
        assert segment.dim_size == 5
        assert segment.opt_config.stochastic_rounding_float16
        assert config.learning_rate_fns == [0.5]


@pytest.mark.usefixtures("graph_mode")
def test_ps_cluster_keeps_variables_between_sessions():
    servers, config = testing.create_test_ps_cluster(2)
    assert len(servers) == 2
    (job,) = config.cluster_def.job
    assert job.name == devices.PS_JOB_NAME
    assert {i: "grpc://" + address for i, address in job.tasks.items()} == {
        i: server.target for i, server in enumerate(servers)
    }
    values = []
    for i in range(2):
        with tf.device(devices.ps_device(i)):
            values.append(tf.compat.v1.get_variable(f"v{i}", initializer=float(i)))
    with tf.compat.v1.Session(servers[0].target, config=config) as session:
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(tf.compat.v1.assign_add(values[1], 5.0))
    with tf.compat.v1.Session(servers[0].target, config=config) as session:
        assert session.run(values) == [0.0, 6.0]


class TestProfileIt:
    def test_writes_below_the_test_directory_and_passes_the_result(self, tmp_path):
        @testing.profile_it
        def add(a, b):
            """Adds."""
            return float(tf.constant(a) + tf.constant(b))

        assert add.__name__ == "add"
        assert add(1.0, b=2.0) == 3.0
        assert list((tmp_path / "tests_profile").rglob("*.xplane.pb"))

    def test_writes_to_a_given_directory_even_when_the_function_fails(self, tmp_path):
        directory = tmp_path / "elsewhere"

        @testing.profile_it(log_dir=str(directory))
        def fail():
            raise KeyError("no")

        for _ in range(2):  # The profiler was stopped, or it could not start again.
            with pytest.raises(KeyError):
                fail()
        assert list(pathlib.Path(directory).rglob("*.xplane.pb"))
        assert not (tmp_path / "tests_profile").exists()
