"""Ranks from Open MPI's environment variables."""

import json
import logging
import sys
from unittest import mock

import pytest
import tensorflow as tf
from absl import flags

from monolith import errors
from monolith.graph import collectives, devices, mpi
from monolith.graph.rank_place import Place

FLAGS = flags.FLAGS

VARIABLES = {
    "OMPI_COMM_WORLD_RANK": mpi.get_mpi_rank,
    "OMPI_COMM_WORLD_LOCAL_RANK": mpi.get_mpi_local_rank,
    "OMPI_COMM_WORLD_SIZE": mpi.get_mpi_size,
    "OMPI_COMM_WORLD_LOCAL_SIZE": mpi.get_mpi_local_size,
}


@pytest.fixture(autouse=True)
def no_mpi(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("MONOLITH_FORCE_GPU_COMPATIBLE", raising=False)
    monkeypatch.delenv("MONOLITH_RANK", raising=False)
    monkeypatch.setattr(mpi, "_reported_missing", set())


@pytest.fixture
def sync_flag(monkeypatch):
    """A parsed `--enable_sync_training`, apart from the flags of the process."""
    values = flags.FlagValues()
    flags.DEFINE_bool("enable_sync_training", False, "For this test.", flag_values=values)
    values.mark_as_parsed()
    monkeypatch.setattr(mpi, "FLAGS", values)
    return values


def test_alone_is_rank_0_of_1():
    assert [read() for read in VARIABLES.values()] == [0, 0, 1, 1]


@pytest.mark.parametrize("name", VARIABLES)
def test_each_value_has_its_variable(monkeypatch, name):
    monkeypatch.setenv(name, "7")
    assert VARIABLES[name]() == 7
    assert [read() for other, read in VARIABLES.items() if other != name].count(7) == 0


@pytest.mark.parametrize("name", VARIABLES)
def test_default_is_reported_once(caplog, name):
    with caplog.at_level(logging.WARNING, logger="monolith.graph.mpi"):
        VARIABLES[name]()
        VARIABLES[name]()
    assert caplog.text.count(f"{name} is not set") == 1


def test_ranks_that_have_met_know_their_places(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, "7")
    monkeypatch.setattr(collectives, "_lib", collectives._Lib())
    collectives.init(Place())
    try:
        assert [read() for read in VARIABLES.values()] == [0, 0, 1, 1]
    finally:
        collectives.shutdown()


class TestMonolithRun:
    @pytest.fixture(autouse=True)
    def rank(self, monkeypatch):
        numbers = {"RANK": 3, "SIZE": 6, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}
        for name, number in numbers.items():
            monkeypatch.setenv(f"MONOLITH_{name}", str(number))
        monkeypatch.setenv("MONOLITH_RANKS_ADDRESS", "127.0.0.1:1")

    def test_its_ranks_know_their_places(self):
        found = [mpi.get_mpi_rank(), mpi.get_mpi_size()]
        assert [*found, mpi.get_mpi_local_rank(), mpi.get_mpi_local_size()] == [3, 6, 1, 2]

    @pytest.mark.parametrize("flag", [False, True])
    def test_its_ranks_train_together(self, sync_flag, monkeypatch, flag):
        monkeypatch.setattr(collectives, "_lib", collectives._Lib())
        sync_flag.enable_sync_training = flag
        assert mpi.enable_sync_training() is flag
        assert len(mpi.get_sync_run_hooks(True)) == flag


def test_workers_of_a_job_with_servers_are_no_ranks(sync_flag, monkeypatch):
    sync_flag.enable_sync_training = True
    cluster = {"ps": ["h:1"], "chief": ["h:2"], "worker": ["h:3"]}
    config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert mpi.get_mpi_size() == 1
    assert not mpi.enable_sync_training()


def test_bad_value_is_named(monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "first")
    with pytest.raises(errors.ConfigError, match=r"OMPI_COMM_WORLD_RANK.*'first'"):
        mpi.get_mpi_rank()


class TestEnableSyncTraining:
    @pytest.mark.parametrize(
        ("flag", "local_rank", "expected"),
        [(True, "0", True), (True, None, False), (False, "0", False)],
    )
    def test_needs_flag_and_mpi(self, sync_flag, monkeypatch, flag, local_rank, expected):
        sync_flag.enable_sync_training = flag
        if local_rank is not None:
            monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", local_rank)
        assert mpi.enable_sync_training() is expected

    def test_false_where_the_flag_is_unknown(self, monkeypatch):
        monkeypatch.setattr(mpi, "FLAGS", flags.FlagValues())
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
        assert mpi.enable_sync_training() is False

    def test_false_before_flags_are_parsed(self, monkeypatch):
        values = flags.FlagValues()
        flags.DEFINE_bool("enable_sync_training", True, "For this test.", flag_values=values)
        monkeypatch.setattr(mpi, "FLAGS", values)
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
        assert mpi.enable_sync_training() is False


class TestSessionConfig:
    def test_memory_grows(self):
        config = tf.compat.v1.ConfigProto()
        mpi.update_session_config_for_gpu(config)
        assert config.gpu_options.allow_growth
        assert config.gpu_options.visible_device_list == ""
        assert not config.gpu_options.force_gpu_compatible

    @pytest.mark.parametrize(("setting", "compatible"), [(None, True), ("1", True), ("0", False)])
    def test_each_rank_has_its_gpu(self, sync_flag, monkeypatch, setting, compatible):
        sync_flag.enable_sync_training = True
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2")
        if setting is not None:
            monkeypatch.setenv("MONOLITH_FORCE_GPU_COMPATIBLE", setting)
        config = tf.compat.v1.ConfigProto()
        mpi.update_session_config_for_gpu(config)
        assert config.gpu_options.allow_growth
        assert config.gpu_options.visible_device_list == "2"
        assert config.gpu_options.force_gpu_compatible is compatible


class TestSyncRunHooks:
    @pytest.mark.parametrize("is_full_sync", [False, True])
    def test_none_outside_of_synchronous_training(self, is_full_sync):
        assert mpi.get_sync_run_hooks(is_full_sync) == []

    def test_rank_0_is_broadcast(self, sync_flag, monkeypatch):
        """With a stand-in for Horovod, which does not build against this TensorFlow."""
        sync_flag.enable_sync_training = True
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
        library = mock.Mock()
        monkeypatch.setitem(sys.modules, "horovod", mock.Mock(tensorflow=library))
        monkeypatch.setitem(sys.modules, "horovod.tensorflow", library)
        (hook,) = mpi.get_sync_run_hooks(True)
        assert hook is library.BroadcastGlobalVariablesHook.return_value
        library.BroadcastGlobalVariablesHook.assert_called_once_with(0, device="")

    def test_missing_library_is_named(self, sync_flag, monkeypatch):
        sync_flag.enable_sync_training = True
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
        monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "1")
        monkeypatch.setitem(sys.modules, "byteps", None)
        with pytest.raises(
            errors.ConfigError, match=r"byteps\.tensorflow, which cannot be imported"
        ):
            mpi.get_sync_run_hooks()


class TestGpu:
    @pytest.fixture
    def gpus(self, monkeypatch):
        """What TensorFlow finds; there is no GPU where these tests run."""
        found = []
        monkeypatch.setattr(tf.config, "list_physical_devices", {"GPU": found}.__getitem__)
        return found

    @pytest.fixture(autouse=True)
    def own_process(self, monkeypatch):
        monkeypatch.delenv("TF_CONFIG", raising=False)
        yield
        devices.disable_gpu_training()

    def test_this_machine(self):
        has_gpu = bool(tf.config.list_physical_devices("GPU"))
        assert mpi.try_init_cuda() is has_gpu
        devices.enable_gpu_training()
        device = mpi.get_device_str()
        assert device == ("/device:GPU:0" if has_gpu else "/device:CPU:0")
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            with tf.device(device):
                three = tf.constant(1) + 2
            assert session.run(three) == 3

    def test_without_one_there_is_a_warning(self, gpus, caplog):
        with caplog.at_level(logging.WARNING, logger="monolith.graph.mpi"):
            assert mpi.try_init_cuda() is False
        assert "finds no GPU" in caplog.text
        assert "on the CPU" in caplog.text

    def test_with_one_there_is_none(self, gpus, caplog):
        gpus.append(tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU"))
        with caplog.at_level(logging.WARNING, logger="monolith.graph.mpi"):
            assert mpi.try_init_cuda() is True
        assert not caplog.text

    @pytest.mark.parametrize("has_gpu", [False, True])
    @pytest.mark.parametrize("is_allowed", [False, True])
    @pytest.mark.parametrize("force_on_cpu", [False, True])
    def test_device_needs_a_gpu_and_leave_to_use_it(self, gpus, has_gpu, is_allowed, force_on_cpu):
        if has_gpu:
            gpus.append(tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU"))
        if is_allowed:
            devices.enable_gpu_training()
        is_on_gpu = has_gpu and is_allowed and not force_on_cpu
        expected = "/device:GPU:0" if is_on_gpu else "/device:CPU:0"
        assert mpi.get_device_str(force_on_cpu) == expected

    @pytest.mark.parametrize(
        ("rank", "task"), [("0", "chief/replica:0/task:0"), ("2", "worker/replica:0/task:1")]
    )
    def test_beside_servers_it_names_the_worker(self, gpus, monkeypatch, rank, task):
        cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster}))
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        assert mpi.get_device_str() == f"/job:{task}/device:CPU:0"
