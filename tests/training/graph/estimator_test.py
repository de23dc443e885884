"""The estimator: training, evaluation, prediction, export, and how each of them ends.

Covers monolith/training/graph/build.py.
"""

import json
import os
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.training.graph import estimator as graph_estimator
from monolith.training.graph.estimator import (
    GraphEstimator,
    GraphRunConfig,
    GraphSpec,
    ModeKeys,
    PredictOutput,
    ServingInputReceiver,
)

v1 = tf.compat.v1

LEARNING_RATE = 0.1


def linear_model_fn(features, labels, mode, config, params):
    """A weight times x; the loss is the sum of the products, so its gradient is the sum of x."""
    weight = v1.get_variable("weight", initializer=1.0)
    prediction = weight * features["x"]
    if mode == ModeKeys.PREDICT:
        return GraphSpec(mode, predictions={"y": prediction, "x": features["x"]})
    loss = tf.reduce_sum(prediction)
    if mode == ModeKeys.EVAL:
        metrics = {"mean_y": v1.metrics.mean(prediction)}
        return GraphSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = v1.train.GradientDescentOptimizer(params.get("learning_rate", LEARNING_RATE))
    return GraphSpec(mode, loss=loss, train_op=optimizer.minimize(loss, v1.train.get_global_step()))


def make_input_fn(*batches):
    """An input of `{"x": batch}`; it ends after the last batch."""

    def input_fn():
        return tf.data.Dataset.from_generator(
            lambda: ({"x": np.float32(batch)} for batch in batches),
            output_signature={"x": tf.TensorSpec([None], tf.float32)},
        )

    return input_fn


def read_events(directory):
    """Returns `(step, tag, value)` of the summaries of a directory."""
    return [
        (event.step, value.tag, value.simple_value)
        for path in tf.io.gfile.glob(os.path.join(directory, "events*"))
        for event in v1.train.summary_iterator(path)
        for value in event.summary.value
    ]


@pytest.fixture
def estimator(tmp_path):
    return GraphEstimator(linear_model_fn, tmp_path / "model")


@pytest.fixture(scope="module")
def trained_dir(tmp_path_factory):
    """A model after one step with x = [1, 2]: the weight is 1 - 0.1 * 3."""
    model_dir = tmp_path_factory.mktemp("trained") / "model"
    GraphEstimator(linear_model_fn, model_dir).train(make_input_fn([1, 2]))
    return model_dir


@pytest.fixture
def trained(estimator, trained_dir):
    """An estimator with a copy of that model."""
    shutil.copytree(trained_dir, estimator.model_dir)
    return estimator


class TestConstruction:
    def test_model_dir_of_the_config(self):
        assert GraphEstimator(linear_model_fn, config=GraphRunConfig("a")).model_dir == "a"
        assert GraphEstimator(linear_model_fn, "a", GraphRunConfig("a")).model_dir == "a"

    def test_two_directories_are_refused(self):
        with pytest.raises(ValueError, match="different values: 'b' and 'a'"):
            GraphEstimator(linear_model_fn, "b", GraphRunConfig("a"))

    def test_a_temporary_directory_is_announced(self, caplog, tmp_path):
        estimator = GraphEstimator(linear_model_fn)
        assert os.path.isdir(estimator.model_dir)
        assert f"the model goes to {estimator.model_dir}" in caplog.text

    def test_config_that_model_fn_gets_has_the_directory(self, tmp_path):
        seen = []

        def model_fn(features, mode, config):
            seen.append(config)
            return linear_model_fn(features, None, mode, config, {})

        estimator = GraphEstimator(model_fn, tmp_path, GraphRunConfig(save_summary_steps=7))
        estimator.train(make_input_fn([1]))
        assert (seen[0].model_dir, seen[0].save_summary_steps) == (str(tmp_path), 7)
        assert seen[0] is estimator.config is estimator._config

    def test_params_that_nobody_takes_are_refused(self):
        with pytest.raises(ValueError, match="no argument `params`, but params were given"):
            GraphEstimator(lambda features, mode: None, params={"a": 1})

    def test_model_fn_with_an_unknown_argument_is_refused(self):
        with pytest.raises(ValueError, match="needs feature, which nobody gives; it may take feat"):
            GraphEstimator(lambda feature, mode: None)

    def test_export_has_the_familiar_names(self):
        assert graph_estimator.export.ServingInputReceiver is ServingInputReceiver
        assert graph_estimator.export.PredictOutput is PredictOutput


class TestTrain:
    def test_returns_the_estimator(self, estimator):
        assert estimator.train(make_input_fn([1])) is estimator

    def test_ends_with_the_input(self, estimator):
        estimator.train(make_input_fn([1, 2], [3]))
        assert estimator.get_variable_value("global_step") == 2
        # 1 - 0.1 * (1 + 2) - 0.1 * 3
        np.testing.assert_allclose(estimator.get_variable_value("weight"), 0.4, rtol=1e-6)

    def test_continues_from_the_checkpoint(self, trained):
        trained.train(make_input_fn([4]))
        assert trained.get_variable_value("global_step") == 2
        np.testing.assert_allclose(trained.get_variable_value("weight"), 0.3, rtol=1e-6)

    def test_steps_are_counted_from_the_start(self, trained):
        trained.train(make_input_fn(*[[1]] * 10), steps=3)
        assert trained.get_variable_value("global_step") == 1 + 3

    def test_max_steps_are_counted_from_zero(self, trained):
        trained.train(make_input_fn(*[[1]] * 10), max_steps=3)
        assert trained.get_variable_value("global_step") == 3

    def test_nothing_is_built_when_max_steps_are_reached(self, trained, caplog):
        def input_fn():
            raise AssertionError

        with caplog.at_level("INFO", logger="monolith"):
            assert trained.train(input_fn, max_steps=1) is trained
        assert "nothing to train: the last checkpoint has step 1, max_steps is 1" in caplog.text

    def test_both_limits_are_refused(self, estimator):
        with pytest.raises(ValueError, match=r"^Can not provide both steps and max_steps\.$"):
            estimator.train(make_input_fn([1]), steps=1, max_steps=1)

    @pytest.mark.parametrize("name", ["steps", "max_steps"])
    def test_zero_steps_are_refused(self, estimator, name):
        with pytest.raises(ValueError, match=f"Must specify {name} > 0, given: 0"):
            estimator.train(make_input_fn([1]), **{name: 0})

    def test_hooks_must_be_hooks(self, estimator):
        with pytest.raises(ValueError, match=r"hooks must be hooks, .*got 'hook'"):
            estimator.train(make_input_fn([1]), hooks=["hook"])

    def test_params_reach_both_functions(self, tmp_path):
        def input_fn(params, mode, config):
            assert (mode, config.model_dir) == ("train", str(tmp_path))
            return make_input_fn([params["x"]])()

        estimator = GraphEstimator(linear_model_fn, tmp_path, params={"learning_rate": 0.5, "x": 4})
        weight = estimator.train(input_fn).get_variable_value("weight")
        assert weight == pytest.approx(1 - 0.5 * 4)

    def test_tensors_can_be_the_input(self, estimator):
        estimator.train(lambda: {"x": tf.constant([1.0])}, steps=2)
        assert estimator.get_variable_value("weight") == pytest.approx(0.8)

    def test_labels_come_as_the_second_of_a_pair(self, tmp_path):
        def model_fn(features, labels, mode):
            loss = tf.reduce_sum(v1.get_variable("w", initializer=0.0) * features * labels)
            step = v1.train.get_global_step()
            train_op = v1.train.GradientDescentOptimizer(1.0).minimize(loss, step)
            return GraphSpec(mode, loss=loss, train_op=train_op)

        estimator = GraphEstimator(model_fn, tmp_path)
        estimator.train(lambda: tf.data.Dataset.from_tensors(([1.0, 2.0], [3.0, 4.0])))
        assert estimator.get_variable_value("w") == -(1 * 3 + 2 * 4)

    def test_a_dataset_may_use_tables(self, estimator):
        """They are initialized before the input is; that is why it is initialized by a hook."""

        def input_fn():
            keys, values = tf.constant(["a", "b"]), tf.constant([2.0, 3.0])
            table = tf.lookup.StaticHashTable(
                tf.lookup.KeyValueTensorInitializer(keys, values), default_value=0.0
            )
            dataset = tf.data.Dataset.from_tensors(tf.constant(["a", "b", "c"]))
            return dataset.map(lambda x: {"x": table.lookup(x)})

        estimator.train(input_fn)
        assert estimator.get_variable_value("weight") == pytest.approx(1 - 0.1 * (2 + 3))

    def test_loss_summary(self, trained):
        losses = [(s, v) for s, tag, v in read_events(trained.model_dir) if tag == "loss"]
        assert losses == [(1, 3.0)]  # weight 1, x = [1, 2]

    def test_loss_of_one_element_is_fine(self, tmp_path):
        def model_fn(features, mode):
            spec = linear_model_fn(features, None, ModeKeys.TRAIN, None, {})
            return spec._replace(loss=tf.reshape(spec.loss, [1, 1]))

        GraphEstimator(model_fn, tmp_path).train(make_input_fn([1]))

    def test_warm_start(self, trained, tmp_path):
        warm = GraphEstimator(linear_model_fn, tmp_path / "b", warm_start_from=trained.model_dir)
        warm.train(make_input_fn([1]))
        assert warm.get_variable_value("weight") == pytest.approx(0.7 - 0.1)
        assert warm.get_variable_value("global_step") == 1

    def test_seed(self, tmp_path):
        def model_fn(features, mode):
            v1.get_variable("noise", [3])
            return linear_model_fn(features, None, mode, None, {})

        def train(name, seed):
            config = GraphRunConfig(tmp_path / name, tf_random_seed=seed)
            estimator = GraphEstimator(model_fn, config=config).train(make_input_fn([1]))
            return estimator.get_variable_value("noise")

        np.testing.assert_array_equal(train("a", 1), train("b", 1))
        assert not np.array_equal(train("c", 1), train("d", 2))

    def test_evaluation_through_train_keeps_its_spec(self, tmp_path):
        """A task in mode EVAL is run by `train` too, and its spec says so."""

        def model_fn(features, mode):
            loss = tf.reduce_sum(features["x"])
            with tf.control_dependencies([loss]):
                train_op = v1.assign_add(v1.train.get_global_step(), 1)
            return GraphSpec(ModeKeys.EVAL, loss=loss, train_op=train_op)

        estimator = GraphEstimator(model_fn, tmp_path).train(make_input_fn([1], [2]))
        assert estimator.get_variable_value("global_step") == 2


class TestCheckpoints:
    def test_model_of_the_start_and_the_end_are_saved(self, trained):
        state = tf.train.get_checkpoint_state(trained.model_dir)
        names = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
        assert names == ["model.ckpt-0", "model.ckpt-1"]
        assert trained.latest_checkpoint() == os.path.join(trained.model_dir, "model.ckpt-1")

    def test_interval_and_number(self, tmp_path):
        config = GraphRunConfig(tmp_path, save_checkpoints_steps=2, keep_checkpoint_max=2)
        estimator = GraphEstimator(linear_model_fn, config=config)
        estimator.train(make_input_fn(*[[1]] * 7))
        state = tf.train.get_checkpoint_state(str(tmp_path))
        names = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
        assert names == ["model.ckpt-6", "model.ckpt-7"]

    def test_nothing_is_saved_when_not_asked_for(self, tmp_path):
        config = GraphRunConfig(tmp_path, save_checkpoints_secs=None)
        estimator = GraphEstimator(linear_model_fn, config=config).train(make_input_fn([1]))
        assert estimator.latest_checkpoint() is None

    @pytest.mark.parametrize("among", ["training_hooks", "training_chief_hooks", "train"])
    def test_a_saver_hook_of_the_model_replaces_the_default_one(self, tmp_path, among):
        own = v1.train.CheckpointSaverHook(str(tmp_path / "own"), save_steps=100)

        def model_fn(features, mode, config):
            spec = linear_model_fn(features, None, mode, config, {})
            return spec if among == "train" else spec._replace(**{among: [own]})

        estimator = GraphEstimator(model_fn, tmp_path / "model")
        estimator.train(make_input_fn([1]), hooks=[own] if among == "train" else None)
        assert estimator.latest_checkpoint() is None
        assert tf.train.latest_checkpoint(str(tmp_path / "own")).endswith("model.ckpt-1")

    def test_the_saver_in_the_graph_restores(self, trained, tmp_path):
        """One that a model function puts into SAVERS; here it leaves out the weight."""

        def model_fn(features, mode, config):
            spec = linear_model_fn(features, None, mode, config, {})
            saver = v1.train.Saver([v1.train.get_global_step()])
            v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
            ready = tf.constant([], tf.string)
            scaffold = v1.train.Scaffold(
                ready_op=ready,
                ready_for_local_init_op=ready,
                local_init_op=tf.group(
                    *[v.initializer for v in v1.global_variables() if v.name == "weight:0"]
                ),
            )
            return spec._replace(scaffold=scaffold)

        estimator = GraphEstimator(model_fn, trained.model_dir).train(make_input_fn([1]))
        assert estimator.get_variable_names() == ["global_step"]
        assert estimator.get_variable_value("global_step") == 2

    def test_variables(self, trained):
        assert trained.get_variable_names() == ["global_step", "weight"]
        with pytest.raises(ValueError, match=r"no variable 'wait'; it has global_step, weight"):
            trained.get_variable_value("wait")

    @pytest.mark.parametrize("name", ["get_variable_names", "get_variable_value"])
    def test_without_a_checkpoint(self, estimator, name):
        arguments = ["weight"] if name == "get_variable_value" else []
        with pytest.raises(
            ValueError, match=f"Couldn't find trained model at {estimator.model_dir}"
        ):
            getattr(estimator, name)(*arguments)


class TestEvaluate:
    def test_metrics_over_the_whole_input(self, trained):
        result = trained.evaluate(make_input_fn([1, 2], [6]))
        # The weight is 0.7: the losses of the batches are 2.1 and 4.2, the predictions' mean 2.1.
        assert result == {
            "mean_y": pytest.approx(0.7 * 3),
            "loss": pytest.approx((2.1 + 4.2) / 2),
            "global_step": 1,
        }

    def test_steps(self, trained):
        result = trained.evaluate(make_input_fn([1, 2], [6]), steps=1)
        assert result["loss"] == pytest.approx(2.1)

    @pytest.mark.parametrize(("name", "directory"), [(None, "eval"), ("test", "eval_test")])
    def test_summary(self, trained, name, directory):
        trained.evaluate(make_input_fn([1, 2]), name=name)
        events = read_events(os.path.join(trained.model_dir, directory))
        assert sorted(events) == [
            (1, "loss", pytest.approx(2.1)),
            (1, "mean_y", pytest.approx(1.05)),
        ]

    def test_an_older_checkpoint(self, trained):
        path = os.path.join(trained.model_dir, "model.ckpt-0")
        result = trained.evaluate(make_input_fn([1]), checkpoint_path=path)
        assert (result["loss"], result["global_step"]) == (1.0, 0)

    def test_a_model_without_checkpoint_is_initialized(self, estimator, caplog):
        assert estimator.evaluate(make_input_fn([5]))["loss"] == 5.0
        assert f"{estimator.model_dir} holds no checkpoint" in caplog.text

    def test_training_is_not_changed(self, trained):
        trained.evaluate(make_input_fn([1]))
        assert trained.latest_checkpoint().endswith("model.ckpt-1")

    def test_hooks_of_the_caller_come_before_those_of_the_model(self, trained):
        order = []

        class Hook(v1.train.SessionRunHook):
            def __init__(self, name):
                self.name = name

            def before_run(self, run_context):
                order.append(self.name)

        def model_fn(features, mode):
            spec = linear_model_fn(features, None, mode, None, {})
            return spec._replace(evaluation_hooks=[Hook("model")])

        estimator = GraphEstimator(model_fn, trained.model_dir)
        estimator.evaluate(make_input_fn([1]), steps=1, hooks=[Hook("caller")])
        assert order == ["caller", "model"]

    def test_an_empty_input_is_an_error(self, trained):
        with pytest.raises(errors.ConfigError, match="Nothing was evaluated: the input ended"):
            trained.evaluate(make_input_fn())

    def test_zero_steps_are_refused(self, trained):
        with pytest.raises(ValueError, match="Must specify steps > 0, given: 0"):
            trained.evaluate(make_input_fn([1]), steps=0)

    @pytest.mark.parametrize("name", ["loss", "global_step"])
    def test_names_that_are_taken(self, tmp_path, name):
        def model_fn(features, mode):
            loss = tf.constant(1.0)
            return GraphSpec(mode, loss=loss, eval_metric_ops={name: v1.metrics.mean(loss)})

        with pytest.raises(ValueError, match=f"may not be called '{name}'"):
            GraphEstimator(model_fn, tmp_path).evaluate(make_input_fn([1]))


class TestPredict:
    def test_rows(self, trained):
        rows = list(trained.predict(make_input_fn([1, 2], [3])))
        assert [row["x"] for row in rows] == [1, 2, 3]
        np.testing.assert_allclose([row["y"] for row in rows], [0.7, 1.4, 2.1], rtol=1e-6)

    def test_nothing_happens_until_it_is_iterated(self, trained):
        calls = []

        def input_fn():
            calls.append(1)
            return make_input_fn([1])()

        predictions = trained.predict(input_fn)
        assert isinstance(predictions, types.GeneratorType)
        assert calls == []
        next(predictions)
        assert calls == [1]
        predictions.close()

    def test_batches(self, trained):
        batches = list(trained.predict(make_input_fn([1, 2], [3]), yield_single_examples=False))
        assert [batch["x"].tolist() for batch in batches] == [[1, 2], [3]]

    @pytest.mark.parametrize("keys", ["x", ["x"], ("x",)])
    def test_some_of_the_predictions(self, trained, keys):
        assert list(trained.predict(make_input_fn([1]), predict_keys=keys)) == [{"x": 1}]

    @pytest.mark.parametrize("keys", [["z"], ["x", "z"], []])
    def test_unknown_predictions(self, trained, keys):
        with pytest.raises(ValueError, match=r"must be some of \['x', 'y'\], .*got \["):
            next(trained.predict(make_input_fn([1]), predict_keys=keys))

    def test_a_single_tensor(self, tmp_path):
        def model_fn(features, mode):
            return GraphSpec(mode, predictions=features["x"] * 2)

        estimator = GraphEstimator(model_fn, tmp_path)
        assert list(estimator.predict(make_input_fn([1, 2]))) == [2, 4]
        with pytest.raises(ValueError, match=r"predict_keys \['x'\] need predictions by name"):
            next(estimator.predict(make_input_fn([1]), predict_keys="x"))

    def test_predictions_without_rows(self, tmp_path):
        def model_fn(features, mode):
            x = features["x"]
            return GraphSpec(mode, predictions={"x": x, "sum": tf.reduce_sum(x)})

        estimator = GraphEstimator(model_fn, tmp_path)
        with pytest.raises(ValueError, match=r"got the shapes {'x': \(2,\), 'sum': \(\)}; leave"):
            next(estimator.predict(make_input_fn([1, 2])))
        (batch,) = estimator.predict(make_input_fn([1, 2]), yield_single_examples=False)
        assert batch["sum"] == 3

    def test_a_model_without_checkpoint_is_initialized(self, estimator):
        assert [row["y"] for row in estimator.predict(make_input_fn([5]))] == [5]

    def test_an_older_checkpoint(self, trained):
        path = os.path.join(trained.model_dir, "model.ckpt-0")
        (row,) = trained.predict(make_input_fn([5]), checkpoint_path=path)
        assert row["y"] == 5

    def test_an_empty_input_gives_nothing(self, trained):
        assert list(trained.predict(make_input_fn())) == []

    def test_the_caller_keeps_its_default_graph(self, trained):
        with tf.Graph().as_default() as graph:
            for _ in trained.predict(make_input_fn([1, 2], [3])):
                assert v1.get_default_graph() is graph
        predictions = trained.predict(make_input_fn([1, 2], [3]))
        next(predictions)
        assert tf.executing_eagerly()
        predictions.close()

    def test_two_predictions_in_turn(self, trained):
        first = trained.predict(make_input_fn([1], [2]))
        second = trained.predict(make_input_fn([3], [4]))
        values = [row["x"] for pair in zip(first, second, strict=True) for row in pair]
        assert values == [1, 3, 2, 4]

    def test_hooks(self, tmp_path):
        order = []

        class Hook(v1.train.SessionRunHook):
            def __init__(self, name):
                self.name = name

            def after_create_session(self, session, coord):
                order.append(self.name)

            def end(self, session):
                order.append(f"end of {self.name}")

        def model_fn(features, mode):
            return GraphSpec(mode, predictions=features["x"], prediction_hooks=[Hook("model's")])

        estimator = GraphEstimator(model_fn, tmp_path)
        assert list(estimator.predict(make_input_fn([1]), hooks=[Hook("caller's")])) == [1]
        assert order == ["caller's", "model's", "end of caller's", "end of model's"]


class TestExport:
    @staticmethod
    def receiver_fn():
        x = v1.placeholder(tf.float32, [None], name="x")
        return ServingInputReceiver({"x": x}, {"inputs": x})

    def serve(self, path, name="serving_default"):
        loaded = tf.saved_model.load(path)
        return loaded, loaded.signatures[name]

    def test_round_trip(self, trained, tmp_path):
        path = trained.export_saved_model(tmp_path / "export", self.receiver_fn)
        assert isinstance(path, bytes)
        base, version = os.path.split(path.decode())
        assert base == str(tmp_path / "export")
        assert version.isdigit()
        assert os.listdir(base) == [version]  # nothing temporary is left
        _, predict = self.serve(path.decode())
        result = predict(inputs=tf.constant([2.0]))
        assert sorted(result) == ["x", "y"]
        np.testing.assert_allclose(result["y"], [1.4], rtol=1e-6)

    def test_each_export_is_a_version_of_its_own(self, trained, tmp_path):
        paths = {trained.export_saved_model(tmp_path, self.receiver_fn) for _ in range(2)}
        assert len(paths) == 2

    def test_a_bare_prediction_is_called_output(self, trained, tmp_path):
        def model_fn(features, mode):
            weight = v1.get_variable("weight", initializer=1.0)
            return GraphSpec(mode, predictions=weight * features["feature"])

        def receiver_fn():
            x = v1.placeholder(tf.float32, [None])
            return ServingInputReceiver(x, x)

        estimator = GraphEstimator(model_fn, trained.model_dir)
        _, predict = self.serve(estimator.export_saved_model(tmp_path, receiver_fn).decode())
        np.testing.assert_allclose(predict(input=tf.constant([2.0]))["output"], [1.4], rtol=1e-6)

    def test_several_outputs(self, trained, tmp_path):
        def model_fn(features, mode):
            x = features["x"]
            outputs = {"serving_default": PredictOutput(x), "twice": PredictOutput({"t": 2 * x})}
            return GraphSpec(mode, predictions=x, export_outputs=outputs)

        path = GraphEstimator(model_fn, trained.model_dir).export_saved_model(
            tmp_path, self.receiver_fn
        )
        loaded, predict = self.serve(path.decode(), "twice")
        assert sorted(loaded.signatures) == ["serving_default", "twice"]
        np.testing.assert_array_equal(predict(inputs=tf.constant([2.0]))["t"], [4])

    def test_main_op_restores_what_is_no_variable(self, trained, tmp_path):
        checkpoints = []

        def model_fn(features, mode):
            restored = v1.get_local_variable("restored", initializer=0.0)
            return GraphSpec(mode, predictions=features["x"] + restored)

        def main_op_fn(checkpoint):
            checkpoints.append(checkpoint)
            (restored,) = v1.local_variables()
            with tf.control_dependencies([restored.initializer]):
                return restored.assign(10.0).op

        path = GraphEstimator(model_fn, trained.model_dir).export_saved_model(
            tmp_path, self.receiver_fn, main_op_fn=main_op_fn
        )
        assert checkpoints == [trained.latest_checkpoint()]
        with tf.Graph().as_default(), v1.Session() as session:
            meta_graph = v1.saved_model.load(session, ["serve"], path.decode())
            signature = meta_graph.signature_def["serving_default"]
            fetched = session.run(
                signature.outputs["output"].name, {signature.inputs["inputs"].name: [1.0]}
            )
        assert fetched == [11]

    def test_extra_assets(self, trained, tmp_path):
        (tmp_path / "requests").write_text("warm")
        path = trained.export_saved_model(
            tmp_path / "export",
            self.receiver_fn,
            assets_extra={"a/tf_serving_warmup_requests": str(tmp_path / "requests")},
        )
        copied = os.path.join(path.decode(), "assets.extra/a/tf_serving_warmup_requests")
        with open(copied) as file:
            assert file.read() == "warm"

    def test_without_a_checkpoint(self, estimator, tmp_path):
        with pytest.raises(ValueError, match="Couldn't find trained model"):
            estimator.export_saved_model(tmp_path / "export", self.receiver_fn)
        assert not os.path.exists(tmp_path / "export")

    def test_missing_variable(self, trained, tmp_path):
        def model_fn(features, mode):
            other = v1.get_variable("other", initializer=1.0)
            return GraphSpec(mode, predictions=features["x"] * other)

        estimator = GraphEstimator(model_fn, trained.model_dir)
        message = r"^Could not load all requested variables from checkpoint\. .*other"
        with pytest.raises(ValueError, match=message):
            estimator.export_saved_model(tmp_path / "export", self.receiver_fn)
        assert not os.path.exists(tmp_path / "export")


class TestBadFunctions:
    def test_model_fn_must_return_a_spec(self, tmp_path):
        def model_fn(features, mode):
            return features

        with pytest.raises(ValueError, match=r"model_fn must return an GraphSpec, got"):
            GraphEstimator(model_fn, tmp_path).train(make_input_fn([1]))

    def test_labels_that_nobody_takes(self, tmp_path):
        def model_fn(features, mode):
            raise AssertionError

        estimator = GraphEstimator(model_fn, tmp_path)
        with pytest.raises(ValueError, match="The input gives labels, but the model function"):
            estimator.train(lambda: tf.data.Dataset.from_tensors((1.0, 2.0)))

    def test_input_of_three_parts(self, estimator):
        with pytest.raises(ValueError, match=r"got 3 parts\. Put several features into a dict"):
            estimator.train(lambda: tf.data.Dataset.from_tensors((1, 2, 3)))

    def test_input_of_nothing(self, estimator):
        with pytest.raises(ValueError, match=r"returns nothing; return a tf\.data\.Dataset"):
            estimator.train(lambda: None)

    def test_input_fn_with_an_unknown_argument(self, estimator):
        with pytest.raises(ValueError, match="needs path, which nobody gives; it may take mode"):
            estimator.train(lambda path: None)


@pytest.fixture(scope="module")
def servers():
    """A chief and two parameter servers in this process, at free ports."""
    config = v1.ConfigProto(inter_op_parallelism_threads=2, intra_op_parallelism_threads=1)
    made = {
        name: tf.distribute.Server({"local": ["localhost:0"]}, config=config)
        for name in ("chief", "ps0", "ps1")
    }
    return {name: server.target.removeprefix("grpc://") for name, server in made.items()}


class TestCluster:
    """TF_CONFIG with servers that run in this process."""

    @pytest.fixture
    def config(self, servers, monkeypatch, tmp_path):
        cluster = {"chief": [servers["chief"]], "ps": [servers["ps0"], servers["ps1"]]}
        tf_config = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
        session_config = v1.ConfigProto(
            cluster_def=tf.train.ClusterSpec(cluster).as_cluster_def(),
            allow_soft_placement=True,
            share_cluster_devices_in_session=True,
        )
        session_config.experimental.share_session_state_in_clusterspec_propagation = True
        return GraphRunConfig(tmp_path / "model", session_config=session_config)

    def test_train_evaluate_predict(self, config):
        devices = []

        def model_fn(features, mode, config):
            v1.get_variable("second", initializer=1.0)
            spec = linear_model_fn(features, None, mode, config, {})
            devices.append({v.op.name: v.device for v in v1.global_variables()})
            return spec

        estimator = GraphEstimator(model_fn, config=config)
        estimator.train(make_input_fn([1, 2], [3]))
        # The servers take turns: the global step, then the variables of the model.
        assert devices[0] == {
            "global_step": "/job:ps/task:0",
            "second": "/job:ps/task:1",
            "weight": "/job:ps/task:0",
        }
        assert estimator.get_variable_value("weight") == pytest.approx(0.4)
        # Sharded: one file for each server.
        files = tf.io.gfile.glob(f"{estimator.latest_checkpoint()}.data-*")
        assert sorted(f[-5:] for f in files) == ["00002", "00002"]
        assert estimator.evaluate(make_input_fn([10]))["loss"] == pytest.approx(4)
        assert [r["y"] for r in estimator.predict(make_input_fn([10]))] == [pytest.approx(4)]

    def test_exported_model_knows_nothing_of_the_cluster(self, config, monkeypatch, tmp_path):
        estimator = GraphEstimator(linear_model_fn, config=config).train(make_input_fn([1, 2]))
        path = estimator.export_saved_model(tmp_path / "export", TestExport.receiver_fn)
        monkeypatch.delenv("TF_CONFIG")
        predict = tf.saved_model.load(path.decode()).signatures["serving_default"]
        np.testing.assert_allclose(predict(inputs=tf.constant([10.0]))["y"], [7], rtol=1e-6)
