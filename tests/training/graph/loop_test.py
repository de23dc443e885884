"""The training loop: the order of hooks, and every way it can end."""

import json
import logging
import math
import os
import pathlib
import signal

import numpy as np
import pytest
import tensorflow as tf
from support.terminal import Terminal

from monolith import data, errors
from monolith.tensor import prefetch
from monolith.training.graph.estimator import (
    GraphEstimator,
    GraphRunConfig,
    GraphSpec,
    NanLossError,
)
from monolith.training.hooks.interrupt import StopOnSignalHook
from monolith.training.hooks.progress import ProgressLine
from monolith.training.hooks.summaries import SummaryWriter
from monolith.training.hooks.watch import WatchHook

v1 = tf.compat.v1


def model_fn(features, mode):
    """The loss is the input, so a test decides what it is; the weight counts the steps."""
    weight = v1.get_variable("weight", initializer=0.0)
    loss = tf.reduce_sum(features)
    with tf.control_dependencies([loss]):
        count = weight.assign_add(1.0)
    with tf.control_dependencies([count]):
        train_op = v1.assign_add(v1.train.get_global_step(), 1)
    return GraphSpec(mode, loss=loss, train_op=train_op)


def input_fn_of(*losses):
    return lambda: tf.data.Dataset.from_tensor_slices(np.float32(losses))


class RecordingHook(v1.train.SessionRunHook):
    """Writes down when it is called."""

    def __init__(self, name, events):
        self.name = name
        self.events = events

    def begin(self):
        self.events.append(("begin", self.name))

    def after_create_session(self, session, coord):
        self.events.append(("after_create_session", self.name))

    def before_run(self, run_context):
        self.events.append(("before_run", self.name))

    def after_run(self, run_context, run_values):
        self.events.append(("after_run", self.name))

    def end(self, session):
        self.events.append(("end", self.name))


@pytest.fixture
def events(monkeypatch):
    """What is called, in order: recording hooks, and the hooks that the estimator makes itself."""
    from monolith.training.hooks import dataset_initializer, nan_loss

    recorded = []
    for hook_class, name in (
        (v1.train.CheckpointSaverHook, "saver"),
        (v1.train.StepCounterHook, "step counter"),
        (v1.train.SummarySaverHook, "summary saver"),
        (dataset_initializer.DatasetInitializerHook, "input"),
        (v1.train.StopAtStepHook, "stop at step"),
        (nan_loss.NanLossHook, "nan loss"),
        (v1.train.LoggingTensorHook, "log"),
    ):
        for phase in ("begin", "after_create_session", "before_run", "after_run", "end"):
            record(monkeypatch, hook_class, phase, name, recorded)
    return recorded


def record(monkeypatch, hook_class, phase, name, recorded):
    original = getattr(hook_class, phase)

    def method(self, *args):
        recorded.append((phase, name))
        return original(self, *args)

    monkeypatch.setattr(hook_class, phase, method)


def recording_model_fn(events):
    def with_hooks(features, mode):
        return model_fn(features, mode)._replace(
            training_chief_hooks=[RecordingHook("model's for the chief", events)],
            training_hooks=[RecordingHook("model's", events)],
        )

    return with_hooks


WORKER_HOOKS = ["input", "caller's", "stop at step", "nan loss", "log", "model's"]
CHIEF_HOOKS = ["saver", "model's for the chief", "step counter", "summary saver", *WORKER_HOOKS]


class TestHookOrder:
    def test_chief(self, events, tmp_path):
        estimator = GraphEstimator(recording_model_fn(events), tmp_path)
        hooks = [RecordingHook("caller's", events)]
        estimator.train(input_fn_of(1, 2, 3), hooks=hooks, steps=2)
        step = [(phase, name) for phase in ("before_run", "after_run") for name in CHIEF_HOOKS]
        assert events == [
            *[("begin", name) for name in CHIEF_HOOKS],
            *[("after_create_session", name) for name in CHIEF_HOOKS],
            *step,
            *step,
            *[("end", name) for name in CHIEF_HOOKS],
        ]

    def test_end_of_the_input(self, events, tmp_path):
        """The last run fails: nothing comes after it but the end."""
        estimator = GraphEstimator(recording_model_fn(events), tmp_path)
        estimator.train(input_fn_of(1), hooks=[RecordingHook("caller's", events)])
        hooks = [name for name in CHIEF_HOOKS if name != "stop at step"]
        assert events[-2 * len(hooks) :] == [
            *[("before_run", name) for name in hooks],
            *[("end", name) for name in hooks],
        ]

    def test_own_saver_hook_of_the_model(self, events, tmp_path):
        """It stays where the model put it, and there is no second one."""

        def with_saver(features, mode):
            return recording_model_fn(events)(features, mode)._replace(
                training_chief_hooks=[
                    RecordingHook("restorer", events),
                    v1.train.CheckpointSaverHook(str(tmp_path), save_steps=10),
                ]
            )

        GraphEstimator(with_saver, tmp_path).train(input_fn_of(1))
        begun = [name for phase, name in events if phase == "begin"]
        assert begun[:3] == ["restorer", "saver", "step counter"]
        assert begun.count("saver") == 1

    def test_what_is_switched_off(self, events, tmp_path):
        config = GraphRunConfig(
            tmp_path, save_summary_steps=None, log_step_count_steps=None, save_checkpoints_secs=None
        )
        GraphEstimator(recording_model_fn(events), config=config).train(input_fn_of(1))
        begun = [name for phase, name in events if phase == "begin"]
        assert begun == ["model's for the chief", "input", "nan loss", "model's"]

    @pytest.mark.parametrize("among", ["training_hooks", "train"])
    def test_where_a_hook_watches_nobody_else_does(self, events, tmp_path, among, caplog):
        hook = WatchHook([SummaryWriter(tmp_path)])

        def watched_model_fn(features, mode):
            spec = recording_model_fn(events)(features, mode)
            return spec if among == "train" else spec._replace(training_hooks=[hook])

        with caplog.at_level(logging.INFO):
            GraphEstimator(watched_model_fn, tmp_path).train(
                input_fn_of(1), hooks=[hook] if among == "train" else None
            )
        begun = [name for phase, name in events if phase == "begin"]
        assert not {"step counter", "log", "summary saver"} & set(begun)
        assert "loss = " not in caplog.text

    def test_a_hook_that_writes_no_summaries_leaves_them_to_the_loop(self, events, tmp_path):
        GraphEstimator(model_fn, tmp_path).train(input_fn_of(1), hooks=[WatchHook([])])
        begun = [name for phase, name in events if phase == "begin"]
        assert begun == ["saver", "summary saver", "input", "nan loss"]

    def test_worker(self, events, monkeypatch, tmp_path):
        """A worker waits for the chief to initialize, and has none of the chief's hooks."""
        servers = {
            name: tf.distribute.Server({"local": ["localhost:0"]})
            for name in ("chief", "worker", "ps")
        }
        cluster = {name: [server.target[len("grpc://") :]] for name, server in servers.items()}

        def make_config(task_type):
            task = {"type": task_type, "index": 0}
            monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
            session_config = v1.ConfigProto(
                cluster_def=tf.train.ClusterSpec(cluster).as_cluster_def(),
                share_cluster_devices_in_session=True,
                allow_soft_placement=True,
            )
            session_config.experimental.share_session_state_in_clusterspec_propagation = True
            return GraphRunConfig(tmp_path, session_config=session_config)

        chief = GraphEstimator(model_fn, config=make_config("chief")).train(input_fn_of(1))
        events.clear()
        worker = GraphEstimator(recording_model_fn(events), config=make_config("worker"))
        assert not worker.config.is_chief
        # The variables that the chief made are still on the server: the worker goes on there.
        worker.train(input_fn_of(1, 2), hooks=[RecordingHook("caller's", events)], steps=2)
        assert [name for phase, name in events if phase == "begin"] == WORKER_HOOKS
        # It saves nothing.
        assert chief.latest_checkpoint().endswith("model.ckpt-1")


class TestNanLoss:
    @pytest.fixture
    def estimator(self, tmp_path):
        config = GraphRunConfig(tmp_path, save_checkpoints_steps=2, save_summary_steps=1)
        return GraphEstimator(model_fn, config=config)

    def test_names_the_step_and_keeps_the_last_checkpoint(self, estimator):
        """The fourth step is one that would be saved, too."""
        events = []
        hooks = [RecordingHook("caller's", events)]
        with pytest.raises(NanLossError) as error:
            estimator.train(input_fn_of(1, 2, 3, math.nan, 5), hooks=hooks)
        checkpoint = os.path.join(estimator.model_dir, "model.ckpt-2")
        assert str(error.value) == (
            f"The loss is NaN at step 4, so training stops there and the last checkpoint is "
            f"{checkpoint}; look for inputs or labels that are not finite, or for logs and "
            "divisions of zero, or try a smaller learning rate or gradient clipping."
        )
        assert error.value.step == 4
        assert isinstance(error.value, v1.train.NanLossDuringTrainingError)
        assert estimator.latest_checkpoint() == checkpoint
        assert estimator.get_variable_value("weight") == 2
        # No hook acts on the step that failed, and none takes it for a normal end.
        assert events[-1] == ("before_run", "caller's")

    def test_gives_the_terminal_back(self, estimator):
        terminal = Terminal(80, 8)
        hook = WatchHook([ProgressLine(console=terminal.as_console())])
        with pytest.raises(NanLossError):
            estimator.train(input_fn_of(1, 2, math.nan), hooks=[hook])
        assert terminal.scrolling_rows == 8
        (line,) = terminal.lines
        assert line.startswith("step 1")

    def test_training_goes_on_from_there(self, estimator):
        with pytest.raises(NanLossError):
            estimator.train(input_fn_of(1, 2, 3, math.nan))
        estimator.train(input_fn_of(1, 1, 1))
        assert estimator.get_variable_value("global_step") == 5

    def test_steps_are_global(self, estimator):
        estimator.train(input_fn_of(1, 2, 3))
        with pytest.raises(NanLossError, match="NaN at step 5"):
            estimator.train(input_fn_of(1, math.nan))

    def test_without_any_checkpoint(self, tmp_path):
        config = GraphRunConfig(tmp_path, save_checkpoints_secs=None)
        with pytest.raises(NanLossError, match=r"NaN at step 1, .*and nothing was saved"):
            GraphEstimator(model_fn, config=config).train(input_fn_of(math.nan))

    def test_infinity_is_not_nan(self, estimator):
        estimator.train(input_fn_of(math.inf, 1))
        assert estimator.get_variable_value("global_step") == 2

    def test_loss_of_whole_numbers(self, tmp_path):
        def integer_model_fn(features, mode):
            spec = model_fn(features, mode)
            return spec._replace(loss=tf.cast(spec.loss, tf.int32))

        estimator = GraphEstimator(integer_model_fn, tmp_path).train(input_fn_of(1, 2))
        assert estimator.get_variable_value("global_step") == 2

    def test_other_errors_stay_what_they_are(self, tmp_path):
        def failing_model_fn(features, mode):
            spec = model_fn(features, mode)
            return spec._replace(loss=tf.debugging.check_numerics(spec.loss, "mine"))

        with pytest.raises(tf.errors.InvalidArgumentError, match="mine"):
            GraphEstimator(failing_model_fn, tmp_path).train(input_fn_of(math.inf))


class TestBadData:
    """The second file is broken, where the check of the first rows does not look."""

    @pytest.fixture
    def bad_csv(self, tmp_path):
        (tmp_path / "1.csv").write_text("x\n" + "1\n" * 64)
        (tmp_path / "2.csv").write_text("x\n" + "1\n" * 1500 + "two\n")
        return data.csv(str(tmp_path / "*.csv"), [data.Label("x")], batch_size=64)

    @staticmethod
    def model_fn(features, mode):
        loss = tf.reduce_sum(features["x"])
        with tf.control_dependencies([loss]):
            train_op = v1.assign_add(v1.train.get_global_step(), 1)
        return GraphSpec(mode, predictions=features["x"], loss=loss, train_op=train_op)

    def check(self, error, tmp_path):
        path = str(tmp_path / "2.csv")
        assert str(error.value).startswith(f"{path!r}, line 1502, column 'x' holds 'two'")
        assert "\n" not in str(error.value)
        assert isinstance(error.value.__cause__, tf.errors.OpError)

    def test_training(self, tmp_path, bad_csv):
        with pytest.raises(errors.DataError) as error:
            GraphEstimator(self.model_fn, tmp_path / "model").train(bad_csv)
        self.check(error, tmp_path)

    def test_training_behind_a_prefetch_queue(self, tmp_path, bad_csv):
        def prefetching_model_fn(features, mode):
            features, queue = prefetch.enqueue_dicts_with_queue_return(features)
            hooks = [prefetch.EnqueueHook(queue)]
            return self.model_fn(features, mode)._replace(training_hooks=hooks)

        with pytest.raises(errors.DataError) as error:
            GraphEstimator(prefetching_model_fn, tmp_path / "model").train(bad_csv)
        self.check(error, tmp_path)

    def test_evaluation_and_prediction(self, tmp_path, bad_csv):
        good = data.csv(str(tmp_path / "1.csv"), [data.Label("x")])
        estimator = GraphEstimator(self.model_fn, tmp_path / "model").train(good)
        with pytest.raises(errors.DataError) as error:
            estimator.evaluate(bad_csv)
        self.check(error, tmp_path)
        with pytest.raises(errors.DataError) as error:
            list(estimator.predict(bad_csv))
        self.check(error, tmp_path)

    def test_a_damaged_file_of_records(self, tmp_path):
        path = str(tmp_path / "clicks.tfrecord")
        feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0]))
        example = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
        with tf.io.TFRecordWriter(path) as writer:
            for _ in range(3000):
                writer.write(example.SerializeToString())
        reader = data.tfrecord(path, [data.Label("x")])
        content = bytearray(pathlib.Path(path).read_bytes())
        content[-7] ^= 1  # In the last record.
        pathlib.Path(path).write_bytes(content)
        with pytest.raises(errors.DataError) as error:
            GraphEstimator(self.model_fn, tmp_path / "model").train(reader)
        assert path in str(error.value)
        assert "\n" not in str(error.value)


class TestEmptyInput:
    MESSAGE = r"Nothing was trained: the input ended before its first batch\. Check that the files"

    def test_is_an_error(self, tmp_path):
        with pytest.raises(errors.ConfigError, match=self.MESSAGE):
            GraphEstimator(model_fn, tmp_path).train(input_fn_of())

    def test_is_an_error_when_training_goes_on(self, tmp_path):
        estimator = GraphEstimator(model_fn, tmp_path).train(input_fn_of(1))
        with pytest.raises(errors.ConfigError, match=self.MESSAGE):
            estimator.train(input_fn_of())

    def test_behind_a_prefetch_queue(self, tmp_path):
        def prefetching_model_fn(features, mode):
            features, queue = prefetch.enqueue_dicts_with_queue_return(features)
            return model_fn(features, mode)._replace(training_hooks=[prefetch.EnqueueHook(queue)])

        with pytest.raises(errors.ConfigError, match=self.MESSAGE):
            GraphEstimator(prefetching_model_fn, tmp_path).train(input_fn_of())

    def test_small_dataset_whose_only_batch_is_dropped(self, tmp_path):
        def input_fn():
            return tf.data.Dataset.range(3).map(float_of).batch(4, drop_remainder=True)

        def float_of(x):
            return tf.cast(x, tf.float32)

        with pytest.raises(errors.ConfigError, match="does not drop all of a small dataset"):
            GraphEstimator(model_fn, tmp_path).train(input_fn)

    def test_a_hook_that_stops_at_once_is_not_an_empty_input(self, tmp_path):
        class StopAtOnce(v1.train.SessionRunHook):
            def after_create_session(self, session, coord):
                coord.request_stop()

        estimator = GraphEstimator(model_fn, tmp_path).train(input_fn_of(1), hooks=[StopAtOnce()])
        assert estimator.get_variable_value("global_step") == 0


class SignalAtStep(v1.train.SessionRunHook):
    def __init__(self, number, at_step):
        self.number = number
        self.at_step = at_step
        self.step = 0

    def before_run(self, run_context):
        self.step += 1
        if self.step == self.at_step:
            signal.raise_signal(self.number)


class TestInterrupt:
    @pytest.fixture(autouse=True)
    def handled_sigint(self):
        """As in a program of its own, also if somebody started the tests with SIGINT ignored."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    @pytest.mark.parametrize(
        ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
    )
    def test_needs_no_hook(self, tmp_path, caplog, number, raised):
        """`tests/training/hooks/interrupt_test.py` has this in real processes."""
        before = signal.getsignal(number)
        estimator = GraphEstimator(model_fn, tmp_path)
        with caplog.at_level(logging.WARNING), pytest.raises(raised) as error:
            estimator.train(input_fn_of(*[1] * 10), hooks=[SignalAtStep(number, 3)])
        assert estimator.get_variable_value("global_step") == 3
        assert f"{number.name}: training has stopped at step 3, which is saved" in caplog.text
        assert signal.getsignal(number) is before
        if raised is SystemExit:
            assert error.value.code == 143

    def test_says_that_nothing_is_saved(self, tmp_path, caplog):
        config = GraphRunConfig(save_checkpoints_secs=None)
        estimator = GraphEstimator(model_fn, tmp_path, config)
        with caplog.at_level(logging.WARNING), pytest.raises(KeyboardInterrupt):
            estimator.train(input_fn_of(*[1] * 10), hooks=[SignalAtStep(signal.SIGINT, 3)])
        assert "SIGINT: training has stopped, and saves nothing" in caplog.text

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_ends_with_a_checkpoint(self, tmp_path, caplog, number):
        before = signal.getsignal(number)
        hook = StopOnSignalHook()
        estimator = GraphEstimator(model_fn, tmp_path)
        with caplog.at_level(logging.WARNING):
            estimator.train(input_fn_of(*[1] * 10), hooks=[hook, SignalAtStep(number, 3)])
        assert estimator.get_variable_value("global_step") == 3
        assert estimator.get_variable_value("weight") == 3
        assert hook.received == number
        lines = [r.getMessage() for r in caplog.records if "training stops" in r.getMessage()]
        assert lines == [
            f"{number.name}: training stops after this step and is saved; once more ends it at once"
        ]
        assert signal.getsignal(number) is before

    def test_a_second_one_raises(self, tmp_path):
        before = signal.getsignal(signal.SIGINT)
        twice = [SignalAtStep(signal.SIGINT, 3), SignalAtStep(signal.SIGINT, 3)]
        estimator = GraphEstimator(model_fn, tmp_path)
        with pytest.raises(KeyboardInterrupt):
            estimator.train(input_fn_of(*[1] * 10), hooks=[StopOnSignalHook(), *twice])
        assert signal.getsignal(signal.SIGINT) is before
        assert estimator.latest_checkpoint().endswith("model.ckpt-0")

    @pytest.mark.parametrize("among", ["training_hooks", "training_chief_hooks", "train"])
    def test_an_error_leaves_no_handler_behind(self, tmp_path, among):
        before = signal.getsignal(signal.SIGINT)
        hook = StopOnSignalHook()

        def model_fn_with_hook(features, mode):
            spec = model_fn(features, mode)
            return spec if among == "train" else spec._replace(**{among: [hook]})

        with pytest.raises(NanLossError):
            GraphEstimator(model_fn_with_hook, tmp_path).train(
                input_fn_of(math.nan), hooks=[hook] if among == "train" else None
            )
        assert signal.getsignal(signal.SIGINT) is before

    def test_the_hook_can_be_used_again(self, tmp_path):
        hook = StopOnSignalHook()
        estimator = GraphEstimator(model_fn, tmp_path)
        estimator.train(input_fn_of(1, 1, 1), hooks=[hook, SignalAtStep(signal.SIGINT, 1)])
        estimator.train(input_fn_of(1, 1, 1), hooks=[hook])
        assert estimator.get_variable_value("global_step") == 1 + 3
        assert hook.received is None
