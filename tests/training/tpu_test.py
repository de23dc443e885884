"""The runner of TPU tasks: what works without a TPU works, and the rest says why it does not.

Covers monolith/training/base_runner.py.
"""

import itertools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver
from support import tpu_tasks

from monolith import errors, tpu_runner
from monolith.training import base_runner, tpu
from monolith.training.graph.estimator import GraphEstimator, GraphRunConfig

FLAGS = flags.FLAGS


@pytest.fixture(autouse=True)
def parsed():
    if not FLAGS.is_parsed():
        FLAGS.mark_as_parsed()
    with flagsaver.flagsaver():
        yield


@pytest.fixture
def clicks(tmp_path):
    tpu_tasks.write_examples(tmp_path / "examples.tfrecord")
    tpu_tasks.Clicks.losses.clear()
    params = tpu_tasks.ClicksParams().task()
    params.train.set(file_pattern=str(tmp_path / "examples.tfrecord"), max_steps=30)
    return params


def test_old_path():
    assert tpu_runner is tpu
    assert issubclass(tpu.TPURunner, base_runner.BaseRunner)


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("tf_version", "nightly"),
        ("tpu", None),
        ("gcp_project", None),
        ("tpu_zone", None),
        ("task", None),
        ("mode", "train"),
        ("save_checkpoints_steps", None),
        ("iterations_per_loop", 10000),
        ("pipeline_execution", False),
        ("enable_tpu_version_config", True),
        ("host_call_every_n_steps", 500),
        ("enable_stopping_signals", False),
        ("cpu_test", False),
        ("partition_strategy", "mod"),
        ("overwrite_end_date", ""),
    ],
)
def test_flags(name, default):
    assert FLAGS[name].default == default


class TestCpu:
    def test_it_trains(self, clicks):
        FLAGS.cpu_test = True
        tpu.TPURunner(clicks).run()
        losses = tpu_tasks.Clicks.losses
        assert len(losses) == 30
        # A model that knows its users beats one that does not, whose loss is ln 2.
        assert np.mean(losses[-4:]) < 0.5 < np.mean(losses[:2])

    def test_quotients_and_remainders(self, clicks):
        FLAGS.cpu_test = True
        clicks.set(qr_multi_hashing=True, qr_hashing_threshold=50)
        tpu.TPURunner(clicks).run()
        assert len(tpu_tasks.Clicks.losses) == 30
        assert all(np.isfinite(tpu_tasks.Clicks.losses))

    def test_a_task_without_embeddings(self):
        FLAGS.cpu_test = True
        params = tpu_tasks.Line.params().set(name="line")
        runner = tpu.TPURunner(params)
        runner.run()
        assert tpu_tasks.Line.trained[-1] == 4

    def test_it_evaluates_what_it_has_trained(self, clicks, tmp_path):
        FLAGS.cpu_test = True
        FLAGS.model_dir = str(tmp_path / "model")
        clicks.set(**{"input.eval_examples": tpu_tasks.NUM_EXAMPLES})
        clicks.train.save_checkpoints_steps = 15
        tpu.TPURunner(clicks).run()
        assert tf.train.latest_checkpoint(FLAGS.model_dir).endswith("-30")
        FLAGS.mode = "eval"
        tpu.TPURunner(clicks).run()
        # That of the four batches it was trained on last, which are all that there are.
        losses = read_losses(FLAGS.model_dir)
        assert losses.keys() == {30}
        assert losses[30] < np.mean(tpu_tasks.Clicks.losses[:4])

    def test_one_checkpoint_after_another(self, clicks, tmp_path, monkeypatch):
        FLAGS.cpu_test = True
        FLAGS.model_dir = model_dir = str(tmp_path / "model")
        clicks.set(**{"input.eval_examples": tpu_tasks.NUM_EXAMPLES})
        clicks.train.save_checkpoints_steps = 15
        tpu.TPURunner(clicks).run()
        paths = [f"{model_dir}/model.ckpt-{step}" for step in (15, 30)]
        monkeypatch.setattr(tf.train, "checkpoints_iterator", lambda *_, **__: iter(paths))
        FLAGS.mode = "eval"
        tpu.TPURunner(clicks).run()
        losses = read_losses(model_dir)
        assert losses[30] < losses[15] < np.log(2)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"train.file_pattern": None}, "`train.file_pattern` is not set"),
            ({"mode": "eval"}, "--mode=eval needs --model_dir"),
            ({"mode": "eval", "model_dir": "m"}, "the task needs `input.eval_examples`"),
            (
                {"mode": "eval", "model_dir": "m", "input.eval_examples": 100},
                "`input.eval_examples` is 100, which is less than a batch of 128",
            ),
        ],
    )
    def test_settings_that_are_missing(self, clicks, tmp_path, monkeypatch, changes, message):
        monkeypatch.chdir(tmp_path)
        FLAGS.cpu_test = True
        for name, value in changes.items():
            if "." in name:
                clicks.set(**{name: value})
            else:
                setattr(FLAGS, name, value)
        with pytest.raises(errors.ConfigError, match=message):
            tpu.TPURunner(clicks).run()

    def test_tables_that_nobody_would_look_up(self, clicks):
        runner = tpu.TPURunner(clicks)
        with pytest.raises(errors.ConfigError, match=r"Tables \['t'\] are for an accelerator"):
            runner.create_tpu_estimator_on_cpu(lambda features: None, {"f": 1}, {"t": 1})


class TestTpu:
    @pytest.mark.parametrize("mode", ["train", "eval"])
    @pytest.mark.parametrize(("name", "called"), [("my-tpu", "TPU 'my-tpu'"), (None, "a TPU")])
    def test_there_is_no_way_to_one(self, clicks, mode, name, called):
        FLAGS.mode = mode
        FLAGS.tpu = name
        message = f"no estimator for TPUs any more, so {called} cannot be used to {mode};"
        with pytest.raises(errors.ConfigError, match=message):
            tpu.TPURunner(clicks).run()

    def test_not_both_at_once(self, clicks):
        FLAGS.mode = "train_and_eval"
        with pytest.raises(TypeError, match="train_and_eval has not been supported"):
            tpu.TPURunner(clicks).run()

    @pytest.mark.parametrize("mode", ["evaluate", ""])
    def test_no_mode(self, clicks, mode):
        FLAGS.cpu_test = True
        FLAGS.mode = mode  # Nobody checks it, as where another module has made the flag a text.
        with pytest.raises(tpu.UnsupportedModeError, match=f"--mode is '{mode}', which .+ 'eval'."):
            tpu.TPURunner(clicks).run()

    def test_settings_of_the_task(self, clicks):
        FLAGS.save_checkpoints_steps = 5
        FLAGS.overwrite_end_date = "20260131"
        runner = tpu.TPURunner(clicks)
        assert clicks.accelerator == "tpu"
        assert clicks.train.end_date == "20260131"
        assert runner._save_checkpoints_steps == 5
        clicks.train.save_checkpoints_steps = 7
        assert tpu.TPURunner(clicks)._save_checkpoints_steps == 7
        line = tpu_tasks.Line.params().set(name="line")
        tpu.TPURunner(line)  # Has no end_date to overwrite.

    def test_params(self, clicks):
        FLAGS.model_dir = "clicks"
        assert tpu.TPURunner(clicks)._create_params(16) == {
            "model_dir": "clicks",
            "enable_host_call": False,
            "num_replicas": 16,
            "accelerator": "tpu",
            "host_call_every_n_steps": 500,
            "enable_stopping_signals": False,
            "cpu_test": False,
        }


def read_losses(model_dir):
    """Returns the loss of each step that was evaluated."""
    values = {}
    for path in tf.io.gfile.glob(f"{model_dir}/eval/events*"):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == "loss" and value.HasField("simple_value"):
                    values[event.step] = value.simple_value
    return values


class TestEvaluation:
    @pytest.fixture
    def model_dir(self, tmp_path):
        """A directory with checkpoints of steps 4, 8 and 12, whose loss is their step."""
        model_dir = str(tmp_path / "model")
        task = tpu_tasks.Line.params().set(name="line").instantiate()
        estimator = GraphEstimator(
            task.create_model_fn(), model_dir, GraphRunConfig(keep_checkpoint_max=None)
        )
        for _ in range(3):
            estimator.train(task.create_input_fn("train"))
        return model_dir

    @pytest.fixture
    def runner(self, model_dir):
        FLAGS.cpu_test = True
        FLAGS.mode = "eval"
        FLAGS.model_dir = model_dir
        params = tpu_tasks.Line.params().set(name="line")
        params.set(**{"train.max_steps": 12, "input.eval_examples": 300})
        return tpu.TPURunner(params)

    def test_each_checkpoint_until_the_last(self, runner, model_dir, monkeypatch):
        paths = [f"{model_dir}/model.ckpt-{step}" for step in (4, 8, 12, 8)]
        monkeypatch.setattr(tf.train, "checkpoints_iterator", lambda *_, **__: iter(paths))
        steps = []
        evaluate = GraphEstimator.evaluate

        def note(self, *args, **kwargs):
            steps.append(kwargs["steps"])
            return evaluate(self, *args, **kwargs)

        monkeypatch.setattr(GraphEstimator, "evaluate", note)
        runner.run()
        assert read_losses(model_dir) == {4: 4.0, 8: 8.0, 12: 12.0}
        assert steps == [300 // 128] * 3

    def test_by_tensorflows_iterator(self, runner, model_dir):
        runner.run()  # Begins with the newest, which is the last.
        assert read_losses(model_dir) == {12: 12.0}

    def test_a_checkpoint_that_is_gone_is_skipped(self, runner, model_dir, monkeypatch):
        paths = [f"{model_dir}/model.ckpt-{step}" for step in (4, 12)]
        monkeypatch.setattr(tf.train, "checkpoints_iterator", lambda *_, **__: iter(paths))
        calls = itertools.count()
        evaluate = GraphEstimator.evaluate

        def lose_first(self, *args, **kwargs):
            if next(calls) == 0:
                raise tf.errors.NotFoundError(None, None, "deleted")
            return evaluate(self, *args, **kwargs)

        monkeypatch.setattr(GraphEstimator, "evaluate", lose_first)
        runner.run()
        assert read_losses(model_dir) == {12: 12.0}

    def test_global_step(self, runner):
        assert runner._load_global_step() == 12


class TestMain:
    def test_task_by_name(self, clicks, monkeypatch):
        FLAGS.task = "support.tpu_tasks.ClicksParams"
        runner = mock.Mock()
        monkeypatch.setattr(tpu, "TPURunner", runner)
        tpu.main([])
        (params,) = runner.call_args[0]
        assert params.cls is tpu_tasks.Clicks
        runner.return_value.run.assert_called_once_with()

    def test_what_a_user_can_put_right_is_one_sentence(self, clicks, capsys):
        FLAGS.task = "support.tpu_tasks.ClicksParams"
        assert tpu.run_program([]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: TensorFlow ")
        FLAGS.mode = "train_and_eval"
        assert tpu.run_program([]) == 1
        assert capsys.readouterr().err == "error: train_and_eval has not been supported.\n"

    @pytest.mark.parametrize(
        ("task", "message"),
        [
            ("support.tpu_tasks.Clicks", "no task is registered under that name; put"),
            ("support.no_tasks.Clicks", "no module 'support.no_tasks' to import it from; start in"),
            ("nowhere.tasks.Clicks", "no module 'nowhere' to import it from"),
        ],
    )
    def test_a_task_that_is_not_there(self, capsys, task, message):
        FLAGS.task = task
        assert tpu.run_program([]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --task is '{task}', ")
        assert message in line
        with pytest.raises(LookupError):
            tpu.main([])

    def test_a_task_whose_module_lacks_something(self, tmp_path, monkeypatch):
        (tmp_path / "module_of_task.py").write_text("import a_module_that_is_missing\n")
        monkeypatch.syspath_prepend(tmp_path)
        FLAGS.task = "module_of_task.Clicks"
        with pytest.raises(ModuleNotFoundError, match="a_module_that_is_missing"):
            tpu.main([])

    def test_no_task(self):
        with pytest.raises(errors.ConfigError, match="--task must name a registered task"):
            tpu.main([])
