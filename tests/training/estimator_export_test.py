"""Trained models, exported and served by another process, predict what the estimator predicts."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from monolith import errors, layers
from monolith.embedding import entry
from monolith.graph import collectives
from monolith.graph.export_mode import ExportMode
from monolith.graph.mode_keys import ModeKeys
from monolith.model import ranking
from monolith.training.estimator import (
    Estimator,
    EstimatorSpec,
    RunConfig,
    RunnerConfig,
    ServingInputReceiver,
    import_saved_model,
)

pytestmark = pytest.mark.usefixtures("graph_mode")

IDS = ("user", "movie")
NUM_EXAMPLES, BATCH_SIZE = 96, 32

# Run by a process that knows nothing but directories and requests.
SERVE = """
import json, sys
from monolith.training.estimator import import_saved_model
requests = [bytes.fromhex(line) for line in json.load(open(sys.argv[1]))]
results = []
for path in sys.argv[2:]:
    with import_saved_model(path) as infer:
        results.append(infer(requests)["output"].tolist())
print(json.dumps(results))
"""


def make_data() -> dict[str, np.ndarray]:
    """Zero to three movies for each user, and ids that no 32 bits can hold."""
    rng = np.random.default_rng(0)
    users = rng.integers(0, 8, NUM_EXAMPLES) + (1 << 48)
    movies = rng.integers(0, 6, [NUM_EXAMPLES, 3])
    return {
        "user": users[:, None],
        "movie": movies,
        "num_movies": rng.integers(0, 4, NUM_EXAMPLES),
        "label": ((users + movies[:, 0]) % 2).astype(np.float32),
    }


def to_features(batch):
    movies = tf.RaggedTensor.from_tensor(batch["movie"], lengths=batch["num_movies"])
    return {
        "user": tf.RaggedTensor.from_tensor(batch["user"]),
        "movie": movies,
        "label": batch["label"],
    }


class Likes(ranking.MonolithModel):
    """Served rows are not rounded, so predictions are the same."""

    def input_fn(self, mode):
        dataset = tf.data.Dataset.from_tensor_slices(make_data()).batch(BATCH_SIZE)
        dataset = dataset.map(to_features)
        return dataset.repeat() if mode == ModeKeys.TRAIN else dataset

    def model_fn(self, features, mode):
        for name in IDS:
            self.create_embedding_feature_column(name)
        user, movie = self.lookup_embedding_slice(
            IDS,
            "vec",
            8,
            initializer=entry.RandomUniformInitializer(-0.5, 0.5),
            optimizer=entry.AdagradOptimizer(learning_rate=0.2, initial_accumulator_value=0.1),
            compressor=entry.Fp32Compressor(),
        )
        # As wide as to be split over several servers.
        tower = layers.MLP([2048, 1])(tf.concat([user, movie, user * movie], axis=1))
        label = features.get("label")
        loss, like = ranking.get_sigmoid_loss_and_pred("like", tower, label, None, mode=mode)
        optimizer = tf.compat.v1.train.AdamOptimizer(0.001)
        return EstimatorSpec(label, like, head_name="like", loss=loss, optimizer=optimizer)

    def serving_input_receiver_fn(self):
        examples = tf.compat.v1.placeholder(tf.string, [None], name="instances")
        spec = {name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in IDS}
        features = tf.io.parse_example(examples, spec)
        return ServingInputReceiver(features, {"instances": examples})


def make_requests() -> list[bytes]:
    data = make_data()
    requests = []
    for user, movies, size in zip(data["user"], data["movie"], data["num_movies"], strict=True):
        example = tf.train.Example()
        example.features.feature["user"].int64_list.value.extend(user)
        example.features.feature["movie"].int64_list.value.extend(movies[:size])
        requests.append(example.SerializeToString())
    return requests


def make_estimator(model_dir: pathlib.Path, made=None, **settings) -> Estimator:
    settings = {"is_local": True, "model_dir": str(model_dir), **settings}
    return Estimator(Likes() if made is None else made, RunConfig(**settings))


def test_another_process_predicts_the_same(tmp_path):
    kinds = [
        {"num_ps": 0, "use_native_multi_hash_table": True},
        {"num_ps": 2, "use_native_multi_hash_table": False},
    ]
    expected, directories = [], []
    for i, kind in enumerate(kinds):
        likes = Likes()
        # With the rows in the checkpoint, or copied into the model.
        likes.p.serving.shared_embedding = i == 0
        est = make_estimator(tmp_path / f"model_{i}", likes, **kind).train(steps=20)
        expected.append(list(est.predict()))
        assert np.std(expected[-1]) > 0.01
        directories.append(os.fsdecode(est.export_saved_model()))
        assert os.path.dirname(directories[-1]) == str(tmp_path / f"model_{i}/exported_models")
    requests = tmp_path / "requests.json"
    requests.write_text(json.dumps([request.hex() for request in make_requests()]))
    process = subprocess.run(
        [sys.executable, "-c", SERVE, str(requests), *directories],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout.splitlines()[-1])
    np.testing.assert_allclose(results, expected, rtol=1e-5)


@pytest.mark.parametrize(("trained_on", "exported_on"), [(2, 0), (0, 2)])
def test_other_number_of_servers_than_in_training(tmp_path, trained_on, exported_on):
    make_estimator(tmp_path, num_ps=trained_on).train(steps=20)
    est = make_estimator(tmp_path, num_ps=exported_on)
    with import_saved_model(os.fsdecode(est.export_saved_model())) as infer:
        served = infer(make_requests())["output"]
    np.testing.assert_allclose(served, list(est.predict()), rtol=1e-5)


@pytest.mark.parametrize("trains_fused", [True, False])
def test_fused_layouts(tmp_path, trains_fused):
    """A model that trains with fused layouts is served as another, and serves with them."""
    settings = {"num_ps": 2, "enable_fused_layout": trains_fused}
    est = make_estimator(tmp_path, **settings).train(steps=20)
    expected = list(est.predict())
    assert np.std(expected) > 0.01
    for serves_fused in (False, True):
        export_dir = est.export_saved_model(enable_fused_layout=serves_fused)
        with import_saved_model(os.fsdecode(export_dir)) as infer:
            served = infer(make_requests())["output"]
        np.testing.assert_allclose(served, expected, rtol=1e-5)
        graph = pathlib.Path(os.fsdecode(export_dir), "saved_model.pb").read_bytes()
        assert (b"MonolithEmbeddingToLayout" in graph) == serves_fused


def test_every_checkpoint_is_exported(tmp_path):
    likes = Likes()
    likes.p.serving.export_when_saving = True
    likes.p.serving.export_mode = likes.p.serving.export_mode.STANDALONE
    likes.p.serving.export_dir_base = str(tmp_path / "elsewhere")
    settings = {"num_ps": 2, "save_checkpoints_steps": 2, "checkpoints_max_to_keep": 2}
    est = make_estimator(tmp_path / "model", likes, **settings).train(steps=6)
    state = (tmp_path / "elsewhere" / "ExportSaverListenerState").read_text()
    assert [line for line in state.splitlines() if "step" in line] == [
        "  global_step: 4",
        "  global_step: 6",
    ]
    versions = [name for name in os.listdir(tmp_path / "elsewhere") if name.isdigit()]
    assert len(versions) == 2
    assert "TF_CONFIG" not in os.environ
    with import_saved_model(str(tmp_path / "elsewhere")) as infer:
        served = infer(make_requests())["output"]
    np.testing.assert_allclose(served, list(est.predict()), rtol=1e-5)


class Regression(ranking.MonolithModel):
    def input_fn(self, mode):
        batch = {"x": [[1.0], [2.0]], "y": [3.0, 5.0]}
        return tf.data.Dataset.from_tensors(batch).repeat(5)

    def model_fn(self, features, mode):
        pred = tf.reshape(layers.Dense(1)(features["x"]), [-1])
        label = features.get("y")
        loss = None if label is None else tf.reduce_mean(tf.square(pred - label))
        optimizer = tf.compat.v1.train.AdamOptimizer(0.5)
        return EstimatorSpec(label, pred, "y", loss, optimizer, classification=False)

    def serving_input_receiver_fn(self):
        x = tf.compat.v1.placeholder(tf.float32, [None, 1])
        return ServingInputReceiver({"x": x}, {"x": x})


def test_model_without_embeddings(tmp_path, caplog):
    regression = Regression()
    regression.p.serving.export_when_saving = True
    est = make_estimator(tmp_path / "model", regression).train()
    assert "`serving.export_when_saving` has no effect on Regression" in caplog.text
    predicted = list(est.predict())[:2]
    with import_saved_model(est.export_saved_model()) as infer:
        np.testing.assert_allclose(infer([[1.0], [2.0]])["output"], predicted, rtol=1e-6)


def test_ranks_export_a_model_without_embeddings_when_they_save(tmp_path):
    regression = Regression()
    regression.p.serving.set(export_when_saving=True, export_mode=ExportMode.STANDALONE)
    settings = {"enable_sync_training": True, "reorder_fids_in_data_pipeline": True}
    est = Estimator(regression, RunnerConfig(is_local=True, model_dir=str(tmp_path), **settings))
    try:
        est.train()
        predicted = list(est.predict())[:2]
    finally:
        collectives.shutdown()
    (version,) = (tmp_path / "exported_models").glob("[0-9]*")
    with import_saved_model(str(version)) as infer:
        np.testing.assert_allclose(infer([[1.0], [2.0]])["output"], predicted, rtol=1e-6)


def test_rows_are_rounded_as_the_compressor_says(tmp_path):
    """The default keeps 16 bits of each number."""

    class Rounded(Likes):
        def model_fn(self, features, mode):
            self.create_embedding_feature_column("user")
            (user,) = self.lookup_embedding_slice(["user"], "vec", 4)
            pred = tf.reduce_sum(user, axis=1)
            loss = None if mode == ModeKeys.PREDICT else tf.reduce_sum(pred)
            optimizer = tf.compat.v1.train.AdamOptimizer(0.01)
            return EstimatorSpec(pred, pred, "head", loss, optimizer, classification=False)

    est = make_estimator(tmp_path / "model", Rounded()).train(steps=3)
    est.export_saved_model()
    with import_saved_model(str(tmp_path / "model" / "exported_models")) as infer:
        served = infer(make_requests())["output"]
    predicted = np.array(list(est.predict()))
    # Four numbers, each below 1/8 and rounded to 11 bits, so to within 2^-15.
    assert np.abs(predicted).max() < 1 / 8 * 4
    np.testing.assert_allclose(served, predicted, atol=4 * 2**-15)
    assert (served != predicted).any()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> pathlib.Path:
    """Directory of a trained `Likes`."""
    directory = tmp_path_factory.mktemp("trained") / "model"
    with context.graph_mode():
        make_estimator(directory).train(steps=1)
    return directory


class TestErrors:
    def test_no_checkpoint(self, tmp_path):
        est = make_estimator(tmp_path / "model")
        with pytest.raises(
            errors.ConfigError, match=r"/model holds no checkpoint; train the model"
        ):
            est.export_saved_model()

    @pytest.mark.parametrize(
        ("removed", "message"),
        [
            ("movie", r"uses feature 'movie', .* what serving_input_receiver_fn gives"),
            (None, r"Feature 'movie' .*serving_input_receiver_fn must give its ids as a ragged"),
        ],
        ids=["missing", "dense"],
    )
    def test_receiver_that_does_not_fit_the_model(self, trained, removed, message):
        class Wrong(Likes):
            def serving_input_receiver_fn(self):
                receiver = super().serving_input_receiver_fn()
                movie = receiver.features.pop("movie")
                if removed is None:
                    receiver.features["movie"] = movie.to_tensor()
                return receiver

        with pytest.raises(errors.ConfigError, match=message):
            make_estimator(trained, Wrong()).export_saved_model()
        assert not os.path.exists(trained / "exported_models")

    def test_label_in_mode_predict(self, trained):
        class Wrong(Likes):
            def model_fn(self, features, mode):
                spec = super().model_fn(features, mode)
                return spec._replace(pred=spec.pred + 0 * features["label"])

        with pytest.raises(errors.ConfigError, match=r"'label', .* what serving_input_receiver_fn"):
            make_estimator(trained, Wrong()).export_saved_model()

    def test_directory_that_cannot_be_written(self, trained, tmp_path):
        likes = Likes()
        (tmp_path / "file").write_text("")
        likes.p.serving.export_dir_base = str(tmp_path / "file" / "exported_models")
        with pytest.raises(errors.ConfigError, match=r"cannot be exported to .* may write to\."):
            make_estimator(trained, likes).export_saved_model()

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ("dense_only", "`dense_only` exports a part of a model"),
        ],
    )
    def test_what_is_not_supported(self, tmp_path, option, message):
        with pytest.raises(errors.ConfigError, match=message):
            make_estimator(tmp_path / "model").export_saved_model(**{option: True})
