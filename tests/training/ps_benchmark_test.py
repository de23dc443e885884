"""Choosing the fastest parameter servers, on servers that run in this process."""

import os

import pytest
import tensorflow as tf

from monolith.graph.mode_keys import ModeKeys
from monolith.native_training import cpu_training, ps_benchmark, utils


def make_params(**kwargs):
    params = ps_benchmark.PsBenchMarkTask.params()
    params.bm_config = ps_benchmark.BenchmarkConfig(
        ps_list=["ps0", "ps1"],
        num_ps_required=1,
        num_workers=1,
        index=0,
        benchmark_secs=1.0,
        **kwargs,
    )
    return params


@pytest.mark.usefixtures("graph_mode")
class PsBenchmarkTest(tf.test.TestCase):
    def testBasic(self):
        params = make_params()
        ps_list = params.bm_config.ps_list
        model_dir = os.path.join(utils.get_test_tmp_dir(), "testBasic")
        cpu_training.local_train(params, num_ps=2, model_dir=model_dir)
        self.assertEqual(len(params.bm_config.ps_list), 1)
        self.assertIn(ps_list[0], ["ps0", "ps1"])
        # Workers that hold the list see the choice.
        self.assertIs(params.bm_config.ps_list, ps_list)
        # The benchmark leaves nothing behind that a training could restore.
        self.assertIsNone(tf.train.latest_checkpoint(model_dir))

    def testSkipBenchmark(self):
        params = make_params(ps_str_overridden="overridden")
        model_dir = os.path.join(utils.get_test_tmp_dir(), "testSkipBenchmark")
        cpu_training.local_train(params, num_ps=2, model_dir=model_dir)
        self.assertEqual(params.bm_config.ps_list[0], "overridden")


@pytest.mark.usefixtures("graph_mode")
@pytest.mark.parametrize(
    ("ps_list", "throughputs", "required", "chosen"),
    [
        pytest.param(["a:1", "b:1", "c:1"], [1.0, 3.0, 2.0], 2, ["b:1", "c:1"], id="fastest_first"),
        # Alone a:1 is slower than b:1; with a:2 beside it, its machine does more: 2 + 2 > 3.
        pytest.param(
            ["a:1", "b:1", "a:2"], [2.0, 3.0, 2.0], 2, ["a:1", "a:2"], id="machines_are_summed_up"
        ),
        pytest.param(["a:1"], [1.0], 3, ["a:1"], id="fewer_than_required"),
    ],
)
def test_chief_chooses_by_throughput(ps_list, throughputs, required, chosen):
    config = ps_benchmark.BenchmarkConfig(ps_list, required, num_workers=1, index=0)
    hook = ps_benchmark._BenchmarkWorkerHook(config, tf.constant(throughputs))
    step = tf.constant(1)
    with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
        session.run(step)
        assert session.should_stop()
    assert config.ps_list == chosen


@pytest.mark.usefixtures("graph_mode")
def test_prediction_is_zero_and_measures_nothing():
    task = make_params().instantiate()
    model_fn = task.create_model_fn()
    features = tf.compat.v1.data.make_one_shot_iterator(
        task.create_input_fn(ModeKeys.PREDICT)()
    ).get_next()
    spec = model_fn(features, mode=ModeKeys.PREDICT, config=None)
    assert spec.mode == ModeKeys.PREDICT
    assert (spec.loss, spec.train_op, spec.training_hooks) == (None, None, ())
    assert tf.compat.v1.global_variables() == []  # Nothing waits on a parameter server.
    with tf.compat.v1.Session() as session:
        assert session.run(spec.predictions) == 0.0


@pytest.mark.usefixtures("graph_mode")
def test_measured_throughput_is_rounds_per_second(monkeypatch):
    monkeypatch.setattr(ps_benchmark.devices, "ps_device", lambda index: "/device:CPU:0")
    throughput = ps_benchmark._measure(0, tf.constant([0.5, 0.5]), benchmark_secs=0.2)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        start = session.run(tf.timestamp())
        measured = session.run(throughput)
        elapsed = session.run(tf.timestamp()) - start
    assert elapsed >= 0.2
    # A round takes between a microsecond and a tenth of a second on any machine.
    assert 10 < measured < 1e6


@pytest.mark.usefixtures("graph_mode")
def test_saver_hook_saves_nothing(tmp_path):
    hook = ps_benchmark._DummyCheckpointSaverHook(os.fspath(tmp_path))
    tf.compat.v1.train.get_or_create_global_step()
    with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
        session.run(tf.compat.v1.train.get_global_step())
        assert hook._save(session.raw_session(), 1) is False
    assert list(tmp_path.iterdir()) == []
    assert hook._checkpoint_dir == os.fspath(tmp_path)


def test_saver_hook_is_below_home_by_default(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", os.fspath(tmp_path))
    assert ps_benchmark._DummyCheckpointSaverHook()._checkpoint_dir == str(tmp_path / "tmp")
