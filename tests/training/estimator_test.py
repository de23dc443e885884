"""The user's estimator, for real: train, evaluate, predict, go on, export; and its settings.

Covers monolith/training/config/run.py and monolith/training/estimator_arguments.py.
"""

import dataclasses
import json
import os
import pathlib
import stat

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from tensorflow.python.eager import context

from monolith import errors, layers
from monolith.cluster.discovery import ServiceDiscoveryType
from monolith.embedding import entry
from monolith.graph.mode_keys import ModeKeys
from monolith.model import ranking
from monolith.native_training import estimator as historical_estimator
from monolith.training import estimator
from monolith.training.estimator import Estimator, EstimatorSpec, RunConfig
from monolith.training.runner import RunnerConfig

FLAGS = flags.FLAGS

pytestmark = pytest.mark.usefixtures("graph_mode")

BATCH_SIZE = 32
NUM_BATCHES = 12
NUM_USERS, NUM_MOVIES = 8, 6


def make_data() -> dict[str, np.ndarray]:
    """Users like every second movie, each starting with one or the other: no id alone tells."""
    rng = np.random.default_rng(0)
    users = rng.integers(0, NUM_USERS, BATCH_SIZE * NUM_BATCHES)
    movies = rng.integers(0, NUM_MOVIES, BATCH_SIZE * NUM_BATCHES)
    return {
        "user": users[:, None],
        "movie": movies[:, None] + 1000,
        "label": ((users + movies) % 2).astype(np.float32),
    }


def to_ragged(batch):
    ragged = {name: tf.RaggedTensor.from_tensor(batch[name]) for name in ("user", "movie")}
    return {**batch, **ragged}


class Movies(ranking.MonolithModel):
    """Two heads: whether a user likes a movie, and the same as a number."""

    def input_fn(self, mode):
        dataset = tf.data.Dataset.from_tensor_slices(make_data()).batch(BATCH_SIZE)
        dataset = dataset.map(to_ragged)
        return dataset.repeat() if mode == ModeKeys.TRAIN else dataset

    def model_fn(self, features, mode):
        for name in ("user", "movie"):
            self.create_embedding_feature_column(name)
        adagrad = entry.AdagradOptimizer(learning_rate=0.2, initial_accumulator_value=0.1)
        user, movie = self.lookup_embedding_slice(["user", "movie"], "vec", 8, optimizer=adagrad)
        tower = layers.MLP([16, 1])(tf.concat([user, movie, user * movie], axis=1))
        label = features.get("label")
        loss, like = ranking.get_sigmoid_loss_and_pred("like", tower, label, None, mode=mode)
        score = tf.reshape(tower, [-1])
        if loss is not None:
            loss += 0.1 * tf.reduce_sum(tf.square(score - label))
        return EstimatorSpec(
            label={"like": label, "score": label},
            pred={"like": like, "score": score},
            loss=loss,
            optimizer=tf.compat.v1.train.AdamOptimizer(0.05),
            classification={"like": True, "score": False},
        )

    def serving_input_receiver_fn(self):
        examples = tf.compat.v1.placeholder(tf.string, [None], name="instances")
        spec = {name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in IDS}
        features = tf.io.parse_example(examples, spec)
        return estimator.ServingInputReceiver(features, {"instances": examples})


IDS = ("user", "movie")


def make_estimator(tmp_path: pathlib.Path, made=None, **settings) -> Estimator:
    settings = {"is_local": True, "model_dir": str(tmp_path / "model"), **settings}
    return Estimator(Movies() if made is None else made, RunConfig(**settings))


def auc(label, pred):
    positive, negative = pred[label == 1], pred[label == 0]
    return float(np.mean((np.sign(positive[:, None] - negative[None, :]) + 1) / 2))


def list_files(directory: pathlib.Path) -> dict[str, int]:
    return {
        str(path.relative_to(directory)): path.stat().st_mtime_ns
        for path in directory.rglob("model.ckpt*")
    }


class TestLocal:
    @pytest.mark.parametrize(
        ("num_ps", "use_native_multi_hash_table"),
        [(0, False), (2, True)],
        ids=["one_process_separate_tables", "two_servers_native_tables"],
    )
    def test_train_evaluate_predict(
        self, tmp_path, capfd, caplog, num_ps, use_native_multi_hash_table
    ):
        est = make_estimator(
            tmp_path,
            num_ps=num_ps,
            use_native_multi_hash_table=use_native_multi_hash_table,
            save_checkpoints_steps=100,
        )
        assert est.train(steps=10) is est
        first = est.evaluate(steps=10)
        assert first["global_step"] == 10
        assert first.keys() == {"like_auc", "score_mse", "loss", "global_step"}
        assert f"evaluation, step 10: like_auc = {first['like_auc']:.6g}" in capfd.readouterr().err

        early = [prediction["score"] for prediction in est.predict()]

        # Goes on where it was, to a model that has learnt.
        est.train(max_steps=80)
        assert "lacks the variables" not in caplog.text
        files = list_files(tmp_path / "model")
        assert est.latest_checkpoint() == str(tmp_path / "model" / "model.ckpt-80")
        metrics = est.evaluate()
        assert metrics["global_step"] == 80
        assert metrics["like_auc"] > 0.95
        assert metrics["loss"] < first["loss"]

        # What it predicts is what it was measured by.
        predictions = list(est.predict(checkpoint_path=est.latest_checkpoint()))
        label = make_data()["label"]
        like = np.array([prediction["like"] for prediction in predictions])
        score = np.array([prediction["score"] for prediction in predictions])
        assert metrics["like_auc"] == pytest.approx(auc(label, like), abs=2e-3)
        assert metrics["score_mse"] == pytest.approx(np.mean(np.square(score - label)), rel=1e-4)
        np.testing.assert_allclose(like, 1 / (1 + np.exp(-score)), rtol=1e-5)
        assert list_files(tmp_path / "model") == files  # Nobody but training writes the model.
        # An older checkpoint is all of it: its variables and its rows.
        older = est.predict(checkpoint_path=str(tmp_path / "model" / "model.ckpt-10"))
        assert [prediction["score"] for prediction in older] == early
        with pytest.raises(errors.ConfigError, match=r"model\.ckpt-9' is no checkpoint.*ckpt-80'"):
            est.predict(checkpoint_path=str(tmp_path / "model" / "model.ckpt-9"))

    def test_second_estimator_uses_what_the_first_saved(self, tmp_path):
        make_estimator(tmp_path, num_ps=2).train(steps=20)
        other = make_estimator(tmp_path, num_ps=2)
        assert other.evaluate(steps=1)["global_step"] == 20
        assert other.train(max_steps=20).latest_checkpoint().endswith("model.ckpt-20")
        kernel = other.get_variable_value("mlp/dense_0/kernel")
        assert kernel.shape == (24, 16)
        assert "mlp/dense_0/kernel" in other.get_variable_names()

    def test_evaluation_does_not_need_the_servers_of_training(self, tmp_path):
        metrics = make_estimator(tmp_path, num_ps=2).train(steps=20).evaluate()
        assert make_estimator(tmp_path).evaluate() == metrics
        assert make_estimator(tmp_path, num_ps=3).evaluate() == metrics

    def test_model_without_embeddings(self, tmp_path):
        class Regression(ranking.MonolithModel):
            def input_fn(self, mode):
                batch = {"x": [[1.0], [2.0]], "y": [3.0, 5.0]}
                return tf.data.Dataset.from_tensors(batch).repeat(200)

            def model_fn(self, features, mode):
                pred = tf.reshape(layers.Dense(1)(features["x"]), [-1])
                loss = tf.reduce_mean(tf.square(pred - features["y"]))
                optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.2)
                label = features["y"]
                return EstimatorSpec(label, pred, "y", loss, optimizer, classification=False)

        est = make_estimator(tmp_path, Regression()).train()
        assert est.evaluate(steps=1) == {
            "y_mse": pytest.approx(0, abs=0.01),
            "loss": pytest.approx(0, abs=0.01),
            "global_step": 200,
        }

    def test_predict_is_a_generator(self, tmp_path):
        est = make_estimator(tmp_path).train(steps=1)
        predictions = est.predict(predict_keys="like", yield_single_examples=False)
        assert next(predictions)["like"].shape == (BATCH_SIZE,)
        predictions.close()

    def test_metrics_of_training(self, tmp_path, capfd):
        made = Movies()
        settings = {"disable_native_metrics": False, "log_step_count_steps": 4}
        make_estimator(tmp_path, made, **settings).train(steps=6)
        lines = [line for line in capfd.readouterr().err.splitlines() if "training, step" in line]
        assert [line.split(":")[0] for line in lines] == ["training, step 4", "training, step 6"]
        assert "like_auc = " in lines[0]
        assert "score_mse = " in lines[0]
        # The user's model stays as it was; training had a copy.
        assert made.fc_dict == {}
        assert made.p.train.steps is None
        assert made.p.disable_native_metrics is None

    def test_hooks_see_the_session(self, tmp_path, capfd):
        class Counter(tf.compat.v1.train.SessionRunHook):
            num_runs = 0

            def after_run(self, run_context, run_values):
                self.num_runs += 1

        # With params in the place of a model.
        est, counter = make_estimator(tmp_path, Movies.params()), Counter()
        est.train(steps=3, hooks=[counter])
        assert counter.num_runs == 3
        capfd.readouterr()
        est.compute_metrics(steps=2, hooks=[counter])
        assert counter.num_runs == 5
        assert "evaluation" not in capfd.readouterr().err

    def test_how_rows_travel_and_where_the_controller_listens(self, tmp_path):
        settings = {"is_local": True, "model_dir": str(tmp_path)}
        train = Estimator(Movies.params(), RunConfig(**settings))._model.train
        assert (train.controller_host, train.transfer_float16) == ("127.0.0.1", False)
        settings |= {"controller_host": "127.0.0.2", "transfer_float16": True}
        train = Estimator(Movies.params(), RunConfig(**settings))._model.train
        assert (train.controller_host, train.transfer_float16) == ("127.0.0.2", True)

    def test_what_is_saved_and_restored(self, tmp_path):
        own = Movies.params()
        own.train.incremental_save_secs = 60
        settings = {"is_local": True, "model_dir": str(tmp_path)}
        train = Estimator(own, RunConfig(**settings)).model.train
        assert (train.incremental_save_steps, train.incremental_save_secs) == (None, 60)
        assert not train.fall_back_to_older_checkpoint
        assert not train.rebuild_checkpoint_list
        settings |= {
            "incremental_save_steps": 5,
            "fall_back_to_older_checkpoint": True,
            "rebuild_checkpoint_list": True,
        }
        train = Estimator(own, RunConfig(**settings)).model.train
        assert (train.incremental_save_steps, train.incremental_save_secs) == (5, None)
        assert train.fall_back_to_older_checkpoint
        assert train.rebuild_checkpoint_list
        settings["incremental_save_secs"] = 60
        with pytest.raises(errors.ConfigError, match=r"^`incremental_save_steps` is 5 and `incr"):
            Estimator(own, RunConfig(**settings))

    def test_params_override(self, tmp_path):
        conf = RunnerConfig(
            is_local=True,
            model_dir=str(tmp_path / "model"),
            params_override='{"clip_norm": 7.0, "train.repeat": true}',
        )
        est = Estimator(Movies(), conf)
        assert est._model.clip_norm == 7.0
        assert est._model.train.repeat is True

    def test_default_model_dir(self, tmp_path, monkeypatch):
        monkeypatch.setattr("getpass.getuser", lambda: "somebody")
        est = Estimator(Movies(), RunConfig(is_local=True))
        # The fixture sends temporary files below `tmp_path`.
        assert est.model_dir == str(tmp_path / "somebody" / est._model.name)
        est.train(steps=1)
        assert stat.S_IMODE(os.stat(est.model_dir).st_mode) == 0o700
        assert est.latest_checkpoint() is not None

    def test_default_model_dir_of_somebody_else(self, tmp_path, monkeypatch):
        monkeypatch.setattr("getpass.getuser", lambda: "somebody")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "somebody").symlink_to(tmp_path / "elsewhere")
        est = Estimator(Movies(), RunConfig(is_local=True))
        for use in (est.train, est.evaluate, est.predict, est.latest_checkpoint):
            with pytest.raises(errors.ConfigError, match="set model_dir"):
                use()
        assert not os.listdir(tmp_path / "elsewhere")

    def test_starts_from_another_model(self, tmp_path):
        make_estimator(tmp_path).train(steps=2)
        settings = {
            "model_dir": str(tmp_path / "other"),
            "restore_dir": str(tmp_path / "model"),
        }
        config = RunConfig(is_local=True, **settings)
        assert not (tmp_path / "other").exists()
        other = Estimator(Movies(), config).train(steps=1)
        assert other.get_variable_value("global_step") == 3

    def test_only_feature_engineering(self, tmp_path):
        class Short(Movies):
            def input_fn(self, mode):
                return super().input_fn(ModeKeys.EVAL)

        settings = {"model_dir": str(tmp_path), "only_feature_engineering": True}
        est = Estimator(Short(), RunnerConfig(is_local=True, **settings)).train()
        assert len(list((tmp_path / "features").glob("chief_*.pb"))) == 1
        assert est.latest_checkpoint() is None


def test_export_and_import(tmp_path):
    est = make_estimator(tmp_path).train(steps=100)
    expected = np.array([prediction["like"] for prediction in est.predict()])
    est.export_saved_model()
    data = make_data()
    examples = []
    for user, movie in zip(data["user"], data["movie"], strict=True):
        ids = {"user": user, "movie": movie}
        feature = {
            name: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
            for name, value in ids.items()
        }
        example = tf.train.Example(features=tf.train.Features(feature=feature))
        examples.append(example.SerializeToString())
    directory = os.path.join(est.model_dir, "exported_models")
    with estimator.import_saved_model(directory, output_name="like") as infer:
        # Rows of a served model are rounded to 16 bits.
        np.testing.assert_allclose(infer(examples)["like"], expected, atol=1e-2)


class TestErrors:
    def test_export_without_receiver(self, tmp_path):
        plain = type("Plain", (Movies,), {})
        plain.serving_input_receiver_fn = ranking.MonolithModel.serving_input_receiver_fn
        with pytest.raises(errors.ConfigError, match="Plain has no serving_input_receiver_fn"):
            make_estimator(tmp_path, plain()).export_saved_model()

    @pytest.mark.parametrize("method", ["train", "evaluate", "predict"])
    def test_eager_mode(self, tmp_path, method):
        est = make_estimator(tmp_path)
        with context.eager_mode(), pytest.raises(OSError, match="disable_eager_execution"):
            getattr(est, method)()

    def test_feature_that_the_input_does_not_have(self, tmp_path):
        class Typo(Movies):
            def model_fn(self, features, mode):
                self.create_embedding_feature_column("usr")
                self.lookup_embedding_slice(["usr"], "vec", 8)
                return super().model_fn(features, mode)

        with pytest.raises(errors.ConfigError, match=r"'usr', which the input does not have"):
            make_estimator(tmp_path, Typo()).train(steps=1)

    def test_dense_ids(self, tmp_path):
        class Dense(Movies):
            def input_fn(self, mode):
                return tf.data.Dataset.from_tensor_slices(make_data()).batch(BATCH_SIZE)

        with pytest.raises(errors.ConfigError, match=r"Feature 'user' .* tf.RaggedTensor.from_ten"):
            make_estimator(tmp_path, Dense()).train(steps=1)

    def test_model_dir_that_cannot_be_written(self, tmp_path):
        (tmp_path / "model").touch()
        with pytest.raises(
            errors.ConfigError,
            match=rf"^Nothing can be written to {tmp_path}/model: .*set model_dir",
        ):
            make_estimator(tmp_path).train(steps=1)

    def test_label_of_the_wrong_shape(self, tmp_path):
        class Wrong(Movies):
            def model_fn(self, features, mode):
                spec = super().model_fn(features, mode)
                label = tf.stack([spec.label["like"]] * 2, axis=1)
                return spec._replace(label={**spec.label, "like": label})

        with pytest.raises(errors.ConfigError, match="label of head 'like' has the shape"):
            make_estimator(tmp_path, Wrong()).train(steps=1)

    def test_missing_optimizer(self, tmp_path):
        class Without(Movies):
            def model_fn(self, features, mode):
                return super().model_fn(features, mode)._replace(optimizer=None)

        with pytest.raises(errors.ConfigError, match="dense_optimizer not found!"):
            make_estimator(tmp_path, Without()).train(steps=1)

    @pytest.mark.parametrize("method", ["evaluate", "predict"])
    def test_what_was_not_trained(self, tmp_path, method):
        """The call says so, not the first prediction that somebody asks for."""
        est = make_estimator(tmp_path)
        with pytest.raises(errors.ConfigError) as error:
            getattr(est, method)()
        assert str(error.value) == (
            f"There is no checkpoint in {tmp_path / 'model'}; train first, or set model_dir to "
            "where the model was trained."
        )
        assert not (tmp_path / "model").exists()
        # A checkpoint of another directory will do.
        other = make_estimator(tmp_path, model_dir=str(tmp_path / "other")).train(steps=1)
        if method == "predict":
            next(est.predict(checkpoint_path=other.latest_checkpoint()))

    def test_unknown_head(self, tmp_path):
        est = make_estimator(tmp_path).train(steps=1)
        with pytest.raises(errors.ConfigError, match=r"some of \['like', 'score'\].* \['click'\]"):
            next(est.predict(predict_keys=["click"]))

    @pytest.mark.parametrize("hooks", [["hook"], "hook", 3])
    def test_hooks_of_another_type(self, tmp_path, hooks):
        with pytest.raises(AssertionError, match="hooks must be a list of hooks"):
            make_estimator(tmp_path).train(hooks=hooks)

    def test_both_limits(self, tmp_path):
        with pytest.raises(errors.ConfigError, match="Can not provide both steps and max_steps"):
            make_estimator(tmp_path).train(steps=1, max_steps=1)

    def test_job_of_several_processes_that_cannot_meet(self, tmp_path):
        est = Estimator(Movies(), RunnerConfig(model_dir=str(tmp_path)))
        with pytest.raises(errors.ConfigError, match="Consul discovery needs the id of the job"):
            est.train(steps=1)
        with pytest.raises(errors.ConfigError, match="There is no checkpoint in"):
            est.evaluate()

    def test_what_several_processes_have_trained_is_used_in_this_one(self, tmp_path):
        local = make_estimator(tmp_path, num_ps=2).train(steps=20)
        settings = {"num_ps": 3, "num_workers": 2, "num_redundant_ps": 1}
        member = Estimator(Movies(), RunnerConfig(model_dir=local.model_dir, **settings))
        assert member.evaluate() == pytest.approx(local.evaluate(), rel=1e-5)
        first, second = next(member.predict()), next(local.predict())
        assert first.keys() == second.keys()

    @pytest.mark.parametrize(
        ("model_", "message"),
        [(Movies, "needs a model, an instance"), (None, "needs a model, an instance")],
    )
    def test_model_of_another_kind(self, model_, message):
        with pytest.raises(errors.ConfigError, match=message):
            Estimator(model_, RunConfig(is_local=True))

    def test_settings_of_another_kind(self):
        with pytest.raises(errors.ConfigError, match="must be a RunConfig or a RunnerConfig"):
            Estimator(Movies(), {"is_local": True})

    def test_warm_start(self):
        with pytest.raises(errors.ConfigError, match="set restore_dir of the RunConfig"):
            Estimator(Movies(), RunConfig(is_local=True), warm_start_from="model")

    @pytest.mark.parametrize("text", ["clip_norm=7", "[1]"])
    def test_override_that_is_no_object(self, text):
        conf = RunnerConfig(is_local=True, params_override=text)
        with pytest.raises(errors.ConfigError, match="params_override must be a JSON object"):
            Estimator(Movies(), conf)

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"enable_model_dump": True}, errors.ConfigError, "a dump of the model"),
            ({"kafka_topics": "clicks"}, errors.ConfigError, "`kafka_group_id` is not set"),
            ({"enable_parameter_sync": True}, AssertionError, "Business id cannot be none"),
            (
                {"enable_parameter_sync": True, "bzid": "a"},
                AssertionError,
                "Base name cannot be none",
            ),
            ({"num_workers": 2}, errors.ConfigError, "a local job is one process"),
            ({"model_dir": "a\0b"}, errors.ConfigError, "`model_dir` must not have a NUL"),
        ],
    )
    def test_parts_that_are_not_there(self, settings, error, message):
        with pytest.raises(error, match=message):
            Estimator(Movies(), RunConfig(is_local=True, num_ps=1, **settings))


class TestRunConfig:
    def test_historical_path(self):
        assert historical_estimator is estimator

    def test_defaults(self):
        config = RunConfig()
        assert (config.is_local, config.num_ps, config.num_workers) == (False, 0, 1)
        assert (config.max_retry_times, config.retry_wait_in_secs) == (6, 5)
        assert (config.checkpoints_max_to_keep, config.warmup_file) == (10, "./warmup_file")
        assert config.disable_native_metrics is True
        # Ours.
        assert config.enable_dynamic_sharding is False
        assert len([f for f in dataclasses.fields(config) if f.name.startswith("sync_")]) == 7
        assert config.sync is False
        assert len(dataclasses.fields(config)) == 37 + 1 + 7 + 1 + 6 + 4

    def test_no_counts_where_it_is_not_the_same_as_nothing(self):
        assert RunConfig().to_runner_config().partial_recovery is None
        FLAGS["partial_recovery"].value = True
        assert RunConfig().to_runner_config().partial_recovery is True
        assert RunConfig(partial_recovery=False).to_runner_config().partial_recovery is False

    def test_json(self):
        config = RunConfig(num_ps=3, reload_alias_map={"new": "old"})
        assert json.loads(config.to_json())["num_ps"] == 3
        assert RunConfig.from_json(config.to_json()) == config

    @pytest.mark.parametrize("text", ["{", "[]", '{"nm_ps": 3}'])
    def test_bad_json(self, text):
        with pytest.raises(errors.ConfigError, match="RunConfig"):
            RunConfig.from_json(text)

    def test_what_it_says_counts_and_what_it_leaves_open_comes_from_the_command_line(self):
        FLAGS["num_ps"].value = 5
        FLAGS["num_workers"].value = 7
        config = RunConfig(num_ps=3).to_runner_config()
        assert (config.num_ps, config.num_workers) == (3, 7)

    def test_lookups_ahead_and_updates_behind(self):
        config = RunConfig().to_runner_config()
        assert config.embedding_prefetch_capacity == 1
        assert config.enable_embedding_postpush is True
        assert config.discovery_type == ServiceDiscoveryType.ZK
        assert (config.max_retry_times, config.retry_wait_in_secs) == (6, 5)
        assert config.partial_recovery is None

    @pytest.mark.parametrize("capacity", [0, 3])
    def test_lookups_as_far_ahead_as_it_says(self, capacity):
        config = RunConfig(embedding_prefetch_capacity=capacity).to_runner_config()
        assert config.embedding_prefetch_capacity == capacity

    def test_how_members_are_reached(self):
        settings = {
            "metrics_port": 0,
            "metrics_host": "0.0.0.0",
            "controller_host": "127.0.0.2",
            "transfer_float16": True,
            "enable_variable_prefetch": True,
        }
        config = RunConfig(**settings).to_runner_config()
        assert {name: getattr(config, name) for name in settings} == settings

    def test_ranks_do_not_exchange_rows_as_float16(self):
        with pytest.raises(errors.ConfigError, match=r"^`sync` and `transfer_float16`"):
            RunConfig(sync=True, transfer_float16=True).to_runner_config()

    def test_gpu_job_keeps_its_queues(self):
        FLAGS["enable_gpu_training"].value = True
        config = RunConfig().to_runner_config()
        assert config.embedding_prefetch_capacity == 0
        assert config.enable_embedding_postpush is False

    def test_parameter_sync_is_realtime_training(self):
        assert RunConfig(enable_parameter_sync=True).to_runner_config().enable_realtime_training
