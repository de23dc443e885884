"""Synchronous training: the cases of the original system, in one process and between real ones.

Covers monolith/training/tables/ranked.py.
"""

import copy
import json
import sys
from unittest import mock

import grpc
import pytest
import tensorflow as tf
from support import ranks, row_server, sync_tasks
from support.jobs import Job
from tensorflow_serving.apis import predict_pb2

from monolith import errors
from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.core import metrics
from monolith.graph import collectives
from monolith.native_training import cpu_training
from monolith.native_training.data.training_instance.python.parser_utils import advanced_parse
from monolith.serving.sync import client_ops
from monolith.training.estimator import Estimator, RunnerConfig
from monolith.training.tables import save

# What the original's tests of one process train: the task, the steps, the settings.
CASES = {
    "feature": ("FeatureTask", 2, {}),
    "float_feature": ("FloatFeatureTask", 2, {"embedding_prefetch_capacity": 1}),
    "sequence_feature": (
        "SequenceFeatureTask",
        2,
        {"hashtable_init_capacity": 100000, "enable_embedding_postpush": True},
    ),
    "non_feature": ("NonFeatureTask", 2, {}),
    "embedding_update": ("EmbeddingUpdateTask", 10, {}),
}
PIPELINED = {
    "enable_pipelined_fwda2a": True,
    "enable_pipelined_bwda2a": True,
    "enable_embedding_postpush": False,
}
SYNC_CASES = {
    "basic": (2, {}),
    "sparse_pipelining": (4, PIPELINED),
    "all_queues": (
        4,
        {**PIPELINED, "embedding_prefetch_capacity": 1, "enable_async_optimize": True},
    ),
}


@pytest.fixture
def alone(monkeypatch, graph_mode):
    """Makes this process the only rank."""
    monkeypatch.setattr(collectives, "_lib", collectives._Lib())
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "True")
    yield
    collectives.shutdown()


@pytest.mark.usefixtures("alone")
class TestCpuSyncTrain:
    @pytest.mark.parametrize("native", [True, False], ids=["native", "merged"])
    def test_cpu_training_feature(self, tmp_path, native):
        train(tmp_path, "feature", use_native_multi_hash_table=native)

    def test_cpu_training_float_feature(self, tmp_path):
        train(tmp_path, "float_feature")

    def test_cpu_training_sequence_feature(self, tmp_path):
        train(tmp_path, "sequence_feature")

    def test_cpu_training_non_feature(self, tmp_path):
        train(tmp_path, "non_feature")

    def test_embedding_update(self, tmp_path):
        train(tmp_path, "embedding_update")


def train(tmp_path, case, **settings):
    name, steps, own = CASES[case]
    estimator = sync_tasks.train(str(tmp_path), name, steps, {**own, **settings})
    assert estimator.get_variable_value("global_step") == steps


@pytest.mark.usefixtures("alone")
class TestDistributedSyncTrain:
    def test_basic(self, tmp_path):
        sync_train(tmp_path, "basic")

    def test_sparse_pipelining(self, tmp_path):
        sync_train(tmp_path, "sparse_pipelining")

    def test_all_queues(self, tmp_path):
        sync_train(tmp_path, "all_queues")

    def test_of_another_rank(self, tmp_path):
        config = make_config(tmp_path, index=1)
        with pytest.raises(
            AssertionError, match=r"consistent with hvd.rank\(\). It is 1, and this"
        ):
            cpu_training.distributed_sync_train(config, sync_tasks.FeatureTask.params())

    def test_needs_a_task(self, tmp_path):
        with pytest.raises(ValueError, match="only support NativeTask"):
            cpu_training.distributed_sync_train(make_config(tmp_path), NoTask())

    @pytest.mark.parametrize("native", [True, False], ids=["native", "merged"])
    def test_rows_are_sent_to_servers(self, tmp_path, native):
        server = client_ops.DummySyncServer("127.0.0.1:0")
        with tf.compat.v1.Session() as session:
            port = int(session.run(server.get_port())[0])
        sink = CountOfSentRows()
        metrics.set_sink(sink)
        backend = mock.Mock(get_sync_targets=mock.Mock(return_value=("m", [f"127.0.0.1:{port}"])))
        config = make_config(tmp_path, use_native_multi_hash_table=native, sync_interval_secs=0.05)
        try:
            train_with(backend, config, max_steps=5)
        finally:
            metrics.set_sink(None)
            with tf.compat.v1.Session() as session:
                session.run(server.shutdown())
        # Variables are for the servers of the dense part.
        parts = {call.args[0] for call in backend.get_sync_targets.mock_calls}
        assert parts == {"ps_0", "entry"}
        # The rows of the batch; some calls are about forms that this server does not take.
        assert {count for count, _ in sink.sent} <= {0, 4}
        assert (4, "OK") in sink.sent
        backend.start.assert_not_called()
        backend.stop.assert_not_called()

    @pytest.mark.parametrize("settings", [{}, {"sync_to": "file:{}"}], ids=["backend", "sync_to"])
    def test_a_server_that_does_not_answer_stops_no_step(self, tmp_path, settings):
        with SlowServer() as server:
            # It answers once the training has gone on without it.
            server.hold.clear()
            address = f"127.0.0.1:{server.port}"
            backend = None
            if settings:
                settings = {"sync_to": f"file:{tmp_path / 'place'}", "sync_model": "m"}
                FileServiceDiscovery(str(tmp_path / "place")).register("m", 0, address)
            else:
                backend = mock.Mock(get_sync_targets=lambda part: ("m", [address]))
            config = make_config(tmp_path / "model", sync_interval_secs=0.05, **settings)
            steps = StepsBesideCall(server)
            train_with(backend, config, hooks=[steps], endless=True)
            assert steps.count == StepsBesideCall.ENOUGH
            # One is for rows, and there is no more than one at a time; a step does not make one.
            assert steps.calls < StepsBesideCall.ENOUGH / 2

    def test_parts_that_are_not_those_of_ranks(self, tmp_path, monkeypatch):
        monkeypatch.setattr(collectives, "size", lambda: 5)
        with pytest.raises(errors.ConfigError, match="Of 5 ranks, rank 0 has no rows, so the part"):
            cpu_training.distributed_sync_train(make_config(tmp_path), NoTask(), sync_backend=1)
        config = make_config(tmp_path, sync_to="file:/servers")
        with pytest.raises(errors.ConfigError, match="Of 5 ranks, rank 0 has no rows, so the part"):
            cpu_training.distributed_sync_train(config, NoTask())

    def test_goes_back_after_all_of_its_steps(self, tmp_path):
        for restore_ckpt, expected in ((None, [0, 1, 2, 3]), ("model.ckpt-2", [2, 3])):
            config = RunnerConfig(
                is_local=True,
                model_dir=str(tmp_path),
                enable_sync_training=True,
                reorder_fids_in_data_pipeline=True,
                save_checkpoints_steps=2,
                restore_ckpt=restore_ckpt,
            )
            estimator = Estimator(sync_tasks.FeatureTask.params(), config)
            steps = NumbersOfSteps()
            estimator.train(max_steps=4, hooks=[steps])
            assert steps.done == expected
            assert estimator.compute_metrics(steps=1)["global_step"] == 4

    @pytest.mark.parametrize(
        ("files", "saved"),
        [
            # The end is saved in any case.
            ({"dump_2": ""}, [2, 5]),
            ({"stop_2": ""}, [2]),
            ({"limit_req_time": "1000"}, [1]),
            ({"limit_req_time": "1001"}, [5]),
        ],
        ids=["dump", "stop", "limit", "no_limit"],
    )
    def test_files_of_an_operator(self, tmp_path, files, saved):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        config = make_config(tmp_path, operator_files_steps=1)
        params = sync_tasks.TimedFeatureTask.params()
        cpu_training.distributed_sync_train(config, params)
        assert list_saved(tmp_path) == saved

    @pytest.mark.parametrize(("files", "saved"), [(["ONLINE"], True), ([], False)])
    def test_a_file_that_lets_variables_be_saved(self, tmp_path, files, saved):
        for name in files:
            (tmp_path / name).touch()
        config = make_config(tmp_path, operator_files_steps=1, dense_only_save_checkpoints_steps=2)
        cpu_training.distributed_sync_train(config, sync_tasks.FeatureTask.params())
        assert bool(list_saved(tmp_path / "dense_only")) == saved

    def test_deltas_are_of_one_process(self, tmp_path):
        params = sync_tasks.FeatureTask.params()
        params.train.incremental_save_steps = 2
        with pytest.raises(
            errors.ConfigError, match=r"`train.incremental_save_steps` is 2, but ran"
        ):
            save.check_rank_saves(make_config(tmp_path), params)

    def test_counts_of_ids_are_not_of_ranks(self, tmp_path):
        params = sync_tasks.FeatureTask.params()
        config = make_config(tmp_path, enable_model_ckpt_info=True)
        with pytest.raises(errors.ConfigError, match="`enable_model_ckpt_info` is True, but ranks"):
            save.check_rank_saves(config, params)
        # Beside servers the chief counts the rows of all of them.
        config.enable_partial_sync_training = True
        save.check_rank_saves(config, params)

    @pytest.mark.parametrize("text", ["0", "often"])
    def test_interval_of_the_environment(self, tmp_path, monkeypatch, text):
        monkeypatch.setenv("MONOLITH_ROOT_LOG_INTERVAL", text)
        with pytest.raises(errors.ConfigError, match="must be a number of steps above 0"):
            sync_train(tmp_path, "basic")


def list_saved(model_dir):
    """Returns the steps of all checkpoints."""
    return sorted(int(path.stem.split("-")[1]) for path in model_dir.glob("model.ckpt-*.index"))


def sync_train(tmp_path, case):
    sync_tasks.sync_train(str(tmp_path), {case: SYNC_CASES[case]})
    found = json.loads((tmp_path / "steps-0.json").read_text())
    assert found == {case: SYNC_CASES[case][0]}


class EndlessFeatureTask(sync_tasks.FeatureTask):
    """Its input has no end."""

    def create_input_fn(self, mode):
        return lambda: (
            tf.data.Dataset.from_tensors(self.make_features()).repeat().map(advanced_parse)
        )


def train_with(backend, config, max_steps=None, hooks=(), endless=False):
    params = (EndlessFeatureTask if endless else sync_tasks.FeatureTask).params()
    params.train.max_steps = max_steps
    cpu_training.distributed_sync_train(config, params, backend, hooks)


class SlowServer(row_server.RowServer):
    """Takes whatever rows there are, when it is let."""

    def Predict(self, request, context):
        self.calls += 1
        self.hold.wait(240)
        if "list_ids" in request.model_spec.signature_name:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "It does not list them.")
        return predict_pb2.PredictResponse()


class StepsBesideCall(tf.compat.v1.train.SessionRunHook):
    """Stops after some steps beside a call that the server holds, which it answers then.

    Attributes:
        count: How many steps there were since the call had come.
        calls: How many calls came meanwhile.
    """

    ENOUGH = 100

    def __init__(self, server):
        self._server = server
        self.count = 0
        self.calls = 0

    def after_run(self, run_context, run_values):
        # One that asks how the server is may come first, and is held as well.
        num_calls = self._server.calls + self._server.questions
        if not num_calls:
            return
        self.count += 1
        if self.count == self.ENOUGH:
            self.calls = num_calls
            self._server.hold.set()
            run_context.request_stop()


class NumbersOfSteps(tf.compat.v1.train.SessionRunHook):
    """Notes how many steps there had been before each.

    Attributes:
        done: The numbers.
    """

    def __init__(self):
        self.done = []

    def after_run(self, run_context, run_values):
        self.done.append(int(run_context.session.run(tf.compat.v1.train.get_global_step())) - 1)


class CountOfSentRows:
    """A sink of metrics."""

    def __init__(self):
        self.sent = []

    def emit(self, kind, name, value, tags):
        if name.endswith("parameter_sync_fid_count"):
            self.sent.append((value, tags["status"]))

    def flush(self):
        pass


class NoTask:
    """Params of something else."""

    def instantiate(self):
        return "no task"


def make_config(tmp_path, **settings):
    return cpu_training.DistributedCpuTrainingConfig(
        model_dir=str(tmp_path),
        enable_sync_training=True,
        reorder_fids_in_data_pipeline=True,
        **settings,
    )


def test_config_of_a_rank(alone):
    config = make_config("/models", num_ps=3, num_workers=7, index=4)
    cpu_training.init_sync_train_and_update_conf(config)
    assert (config.num_ps, config.num_workers, config.index) == (0, 1, 0)
    assert config.reorder_fids_in_data_pipeline
    assert not config.enable_variable_partition
    assert config.model_dir == "/models"
    config = make_config("/models", merge_sync_training_ckpt=False, uuid="job")
    cpu_training.init_sync_train_and_update_conf(config)
    assert config.model_dir == "/models/job/index-0000"


@pytest.fixture
def no_byteps(alone):
    """Has the environment ask for BytePS, which is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "_lib", collectives._Lib())
        patch.setenv("MONOLITH_WITH_BYTEPS", "1")
        patch.setitem(sys.modules, "byteps", None)
        yield


@pytest.mark.usefixtures("no_byteps")
class TestMissingLibrary:
    def test_config_stays(self, caplog):
        config = make_config("/models", num_ps=3)
        expected = copy.deepcopy(config)
        cpu_training.init_sync_train_and_update_conf(config)
        assert config == expected
        assert "byteps.tensorflow, which cannot be imported" in caplog.text

    def test_training_names_it(self, tmp_path):
        config = cpu_training.DistributedCpuTrainingConfig(
            model_dir=str(tmp_path), enable_sync_training=True
        )
        cpu_training.init_sync_train_and_update_conf(config)
        with pytest.raises(collectives.MissingLibraryError, match="MONOLITH_WITH_BYTEPS asks for"):
            cpu_training.distributed_sync_train(config, sync_tasks.FeatureTask.params())


@pytest.mark.parametrize(("is_sync", "kind"), [(True, "RAW"), (False, "PACKED")])
def test_tables_of_ranks_hold_their_rows_as_they_are(alone, is_sync, kind):
    config = cpu_training.CpuTrainingConfig(
        enable_sync_training=is_sync, reorder_fids_in_data_pipeline=is_sync
    )
    collectives.init()
    training = cpu_training.CpuTraining(config, sync_tasks.FeatureTask.params().instantiate())
    (instance,) = training.feature_configs.name_to_config.values()
    assert instance.table_config.entry_type == instance.table_config.EntryType.Value(kind)


def train_between_ranks(directory, size, cases, sync_cases):
    """Trains all cases in one job; returns the steps by case, of each rank."""
    with Job(directory / "logs") as job:
        arguments = (str(directory), cases, sync_cases)
        ranks.start(job, size, "train_everything", *arguments, module="support.sync_tasks")
        job.expect_success()
    return ranks.read_all(directory, "steps", size)


def check_steps(found, case):
    """Fails unless all ranks have done all steps; what is wrong with a step it says itself."""
    *_, expected, _ = {**CASES, **SYNC_CASES}[case]
    assert [steps[case] for steps in found] == [expected] * len(found)


@pytest.mark.distributed
def test_ranks_act_on_files_of_an_operator(tmp_path):
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "dump_1").touch()
    (tmp_path / "case" / "stop_3").touch()
    found = train_between_ranks(tmp_path, 2, {}, {"case": (5, {"operator_files_steps": 1})})
    # What the look at a step finds, ranks agree upon in the next one.
    assert found == [{"case": 4}] * 2
    assert list_saved(tmp_path / "case") == [2, 4]


@pytest.mark.slow
@pytest.mark.distributed
class TestCpuSyncTrainBetweenRanks:
    @pytest.fixture(scope="class", params=[2, 3])
    def steps(self, request, tmp_path_factory):
        return train_between_ranks(tmp_path_factory.mktemp("ranks"), request.param, CASES, {})

    def test_cpu_training_feature(self, steps):
        check_steps(steps, "feature")

    def test_cpu_training_float_feature(self, steps):
        check_steps(steps, "float_feature")

    def test_cpu_training_sequence_feature(self, steps):
        check_steps(steps, "sequence_feature")

    def test_cpu_training_non_feature(self, steps):
        check_steps(steps, "non_feature")

    def test_embedding_update(self, steps):
        check_steps(steps, "embedding_update")


@pytest.mark.slow
@pytest.mark.distributed
class TestDistributedSyncTrainBetweenRanks:
    @pytest.fixture(scope="class", params=[2, 3])
    def steps(self, request, tmp_path_factory):
        return train_between_ranks(tmp_path_factory.mktemp("ranks"), request.param, {}, SYNC_CASES)

    def test_basic(self, steps):
        check_steps(steps, "basic")

    def test_sparse_pipelining(self, steps):
        check_steps(steps, "sparse_pipelining")

    def test_all_queues(self, steps):
        check_steps(steps, "all_queues")
