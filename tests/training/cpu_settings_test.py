"""Settings of a local job that reach its sessions, its summaries and its filters."""

import os
import stat
import tempfile
import time

import pytest
import tensorflow as tf
from absl.testing import flagsaver
from support import warm

from monolith import errors
from monolith.native_training import cpu_training, entry, feature, native_task
from monolith.training.config.job import CpuTrainingConfig, DistributedCpuTrainingConfig
from monolith.training.graph.estimator import GraphSpec, ModeKeys
from monolith.training.tables import create

pytestmark = pytest.mark.usefixtures("graph_mode")


class SumTask(native_task.NativeTask):
    """Sums the embeddings of one feature, after it has waited for a while."""

    @classmethod
    def params(cls):
        p = super().params()
        p.define("wait_sec", 0.0, "How long each step takes.")
        return p

    def create_input_fn(self, mode):
        ids = tf.ragged.constant([[1], [2]], dtype=tf.int64, ragged_rank=1)
        return lambda: tf.data.Dataset.from_tensors({"feature": ids}).repeat(3)

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(
                feature.FeatureSlotConfig(
                    name="slot", default_vec_initializer=entry.ZerosInitializer()
                )
            )
            vector = slot.add_feature_slice(2)
            column = feature.FeatureColumnV1(slot, "feature")
            loss = tf.reduce_sum(column.embedding_lookup(vector))
            rows = column.get_all_embeddings_concat()
            update = self.ctx.apply_embedding_gradients(
                zip(tf.gradients(loss, [rows]), [rows], strict=True)
            )
            wait = tf.numpy_function(lambda: time.sleep(self.p.wait_sec) or 0, [], tf.int64)
            with tf.control_dependencies([update, wait]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            metrics = {"mean": tf.compat.v1.metrics.mean(loss)}
            return GraphSpec(mode, loss=loss, train_op=step, eval_metric_ops=metrics)

        return model_fn


def train(model_dir, params=None, **settings):
    return cpu_training.local_train_internal(
        params or SumTask.params(),
        DistributedCpuTrainingConfig(**settings),
        os.fspath(model_dir),
        steps=None,
    )


def read_tags(directory):
    return {
        value.tag
        for events in directory.glob("events.out.tfevents.*")
        for event in tf.compat.v1.train.summary_iterator(os.fspath(events))
        for value in event.summary.value
    }


def test_summaries_go_where_they_are_told(tmp_path):
    logs = tmp_path / "logs"
    estimator = train(tmp_path / "model", tensorboard_log_path=os.fspath(logs))
    assert "loss" in read_tags(logs)
    # The saver notes there when it saved.
    assert read_tags(tmp_path / "model") == set()
    assert (tmp_path / "model" / "checkpoint").exists()
    training = cpu_training.CpuTraining(CpuTrainingConfig(), SumTask.params().instantiate())
    estimator.evaluate(training.create_input_fn(ModeKeys.EVAL))
    assert "mean" in read_tags(logs / "eval")


def test_step_that_takes_too_long_ends_the_job(tmp_path):
    params = SumTask.params().set(wait_sec=3.0)
    with pytest.raises(tf.errors.DeadlineExceededError):
        train(tmp_path, params, operation_timeout_in_ms=1000)


def test_wait_for_the_session_is_handed_on(tmp_path):
    assert train(tmp_path).config.session_creation_timeout_secs == 7200
    estimator = train(tmp_path, session_creation_timeout_secs=77)
    assert estimator.config.session_creation_timeout_secs == 77


THREADS = """
import os, sys, threading
import tensorflow as tf
from monolith.training import cpu
from monolith.training.config.job import DistributedCpuTrainingConfig

tf.compat.v1.disable_eager_execution()
with tf.compat.v1.Session() as session:
    session.run(tf.constant(1) + 1)
settings = eval(sys.argv[1])
barrier = threading.Barrier(2)

def meet():
    try:
        barrier.wait(timeout=5)
        return True
    except threading.BrokenBarrierError:
        return False

config = cpu.make_local_run_config(DistributedCpuTrainingConfig(**settings), "model")
with tf.compat.v1.Session(config=config.session_config) as session:
    ops = [tf.numpy_function(meet, [], tf.bool) for _ in range(2)]
    print(all(session.run(ops)))
"""


@pytest.mark.parametrize(("threads", "side_by_side"), [(1, "False"), (4, "True")])
def test_threads_that_run_ops_side_by_side(threads, side_by_side):
    """Two ops wait for each other; in a process of its own, which had other sessions before."""
    settings = {"inter_op_parallelism_threads": threads}
    done = warm.run(["-c", THREADS, repr(settings)])
    assert done.stdout.strip() == side_by_side, done.stderr


COUNT_THREADS = """
import os, sys
import tensorflow as tf
from monolith.training import cpu
from monolith.training.config.job import DistributedCpuTrainingConfig

tf.compat.v1.disable_eager_execution()
config = DistributedCpuTrainingConfig(intra_op_parallelism_threads=int(sys.argv[1]))
session_config = cpu.make_local_run_config(config, "model").session_config
with tf.compat.v1.Session(config=session_config) as session:
    session.run(tf.matmul(tf.ones([500, 500]), tf.ones([500, 500])))
    print(len(os.listdir("/proc/self/task")))
"""


def test_threads_of_one_op():
    few, many = (
        int(warm.run(["-c", COUNT_THREADS, threads], check=True).stdout) for threads in ("3", "9")
    )
    assert many - few == 9 - 3


def test_default_threads_are_the_choice_of_tensorflow():
    def make_session_config(config):
        return cpu_training.make_local_run_config(config, "model").session_config

    assert make_session_config(DistributedCpuTrainingConfig()) == make_session_config(
        CpuTrainingConfig()
    )
    made = make_session_config(DistributedCpuTrainingConfig(intra_op_parallelism_threads=3))
    assert made.intra_op_parallelism_threads == 3


@pytest.mark.parametrize("equal", [True, False])
def test_equal_probability_reaches_the_filter(equal):
    config = CpuTrainingConfig(filter_type="probabilistic_filter", filter_equal_probability=equal)
    with tf.Graph().as_default():
        (made,) = create.create_hash_filters(config, {1: 3})
        assert made.op.get_attr("equal_probability") is equal


@pytest.mark.parametrize(("setting", "value"), [("num_workers", 2), ("use_dataservice", True)])
def test_refused_settings_leave_the_model_alone(tmp_path, setting, value):
    with pytest.raises(errors.ConfigError, match=f"^`{setting}` is {value}"):
        train(tmp_path / "model", **{setting: value})
    assert not (tmp_path / "model").exists()


def test_refused_settings_do_not_remove_the_model(tmp_path):
    (tmp_path / "model").mkdir()
    with (
        flagsaver.flagsaver(dataset_use_dataservice=True),
        pytest.raises(errors.ConfigError, match=r"^`use_dataservice` is True"),
    ):
        cpu_training.local_train(SumTask.params(), model_dir=os.fspath(tmp_path / "model"))
    assert (tmp_path / "model").exists()


def test_features_alone_are_no_training(tmp_path):
    with pytest.raises(errors.ConfigError, match="local_feature_engineering_internal"):
        train(tmp_path, only_feature_engineering=True)


@pytest.mark.parametrize("remove", [True, False])
def test_default_model_dir_is_private(tmp_path, monkeypatch, remove):
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    for _ in range(2):
        estimator = cpu_training.local_train(
            SumTask.params().set(name="movies"), steps=1, remove_model_dir_if_exists=remove
        )
        assert estimator.model_dir == os.fspath(tmp_path / "somebody" / "movies")
        assert stat.S_IMODE(os.stat(estimator.model_dir).st_mode) == 0o700


def test_default_model_dir_of_somebody_else_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    (tmp_path / "elsewhere" / "movies").mkdir(parents=True)
    (tmp_path / "somebody").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(errors.ConfigError, match="set model_dir"):
        cpu_training.local_train(SumTask.params().set(name="movies"), steps=1)
    assert os.listdir(tmp_path / "elsewhere") == ["movies"]


def test_path_with_a_nul_is_refused(tmp_path):
    with pytest.raises(errors.ConfigError, match=r"^`model_dir` must not have a NUL character"):
        cpu_training.local_train(SumTask.params(), model_dir=f"{tmp_path}/a\0b", steps=1)
    assert not os.listdir(tmp_path)
