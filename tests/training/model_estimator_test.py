"""`ml.Estimator`: from a model and data to checkpoints, metrics, predictions, an exported model.

Covers monolith/training/model_arguments.py.
"""

import glob
import os
import re

import numpy as np
import pytest
import tensorflow as tf
from support.serving import serving

import monolith as ml
from monolith.data import record_datasets
from monolith.data.framing import Framing
from monolith.serving import remote
from monolith.serving.server.config import ModelConfig
from monolith.training.model_arguments import check_topics

USERS = np.array([1, 2, 3, 4] * 4)
CLICKS = (USERS % 2).astype(np.float32)


class Clicks(ml.Model):
    """A bias for each user: what it learns can be computed by hand."""

    def __init__(self):
        super().__init__()
        self.embed = ml.Embedding("user", dim=1)

    def call(self, batch):
        return ml.BinaryHead("click", self.embed(batch), batch.get("click"))


class Ranking(ml.Model):
    def __init__(self, features=("user", "genres")):
        super().__init__()
        self.embed = ml.Embedding(list(features), dim=4, optimizer=ml.Adagrad(0.5))
        self.mlp = ml.MLP([8, 1])

    def call(self, batch):
        return ml.BinaryHead("click", self.mlp(self.embed(batch)), batch.get("click"))


def read_clicks(batch_size=4):
    columns = {"user": USERS, "click": CLICKS}
    return tf.data.Dataset.from_tensor_slices(columns).batch(batch_size)


def read_ids(ids):
    return tf.data.Dataset.from_tensor_slices({"user": ids}).batch(1)


def read_genres():
    genres = tf.RaggedTensor.from_row_lengths(np.tile([7, 8, 9], 8), [1, 2] * 8)
    columns = {"user": USERS, "genres": genres, "click": CLICKS}
    return tf.data.Dataset.from_tensor_slices(columns).batch(8)


EAGER_DATA, EAGER_IDS = read_clicks(), tf.constant([1])


@pytest.fixture
def estimator():
    return ml.Estimator(Clicks(), "clicks", ml.SGD(1.0), progress=False)


def get_step(estimator):
    return int(estimator.get_variable_value("global_step"))


class TestTrain:
    def test_a_program_stays_eager(self, estimator):
        estimator.train(read_clicks)
        assert tf.executing_eagerly()
        assert float(tf.constant(1.0) + 1.0) == 2.0

    @pytest.mark.parametrize("epochs", [1, 3])
    def test_epochs_read_the_data_so_often(self, estimator, epochs):
        estimator.train(read_clicks, epochs=epochs)
        assert get_step(estimator) == 4 * epochs

    def test_epochs_build_one_graph(self, estimator):
        built = []

        def data():
            built.append(tf.compat.v1.get_default_graph())
            return read_clicks()

        estimator.train(data, epochs=1)
        once = len(built)
        estimator.train(data, epochs=5)
        assert len(built) == 2 * once

    def test_steps_end_it_earlier(self, estimator):
        estimator.train(read_clicks, steps=3)
        assert get_step(estimator) == 3

    def test_it_goes_on_where_it_was_stopped(self, estimator):
        seen = []

        class Watch(tf.compat.v1.train.SessionRunHook):
            def before_run(self, run_context):
                graph = tf.compat.v1.get_default_graph()
                (ids,) = graph.get_collection("dequeued_sparse_features")
                return tf.compat.v1.train.SessionRunArgs(ids)

            def after_run(self, run_context, run_values):
                seen.append(run_values.results.tolist())

        def data():
            return tf.data.Dataset.from_tensor_slices(
                {"user": np.arange(8), "click": np.zeros(8, np.float32)}
            ).batch(2)

        for _ in range(2):
            ml.Estimator(Clicks(), "clicks", progress=False).train(data, steps=2, hooks=[Watch()])
        assert seen == [[0, 1], [2, 3], [4, 5], [6, 7]]

    def test_it_goes_back_to_a_checkpoint_once(self):
        config = ml.RunConfig(save_checkpoints_steps=1, checkpoints_max_to_keep=9)
        ml.Estimator(Clicks(), "clicks", config=config, progress=False).train(read_clicks)
        config = ml.RunConfig(restore_ckpt="model.ckpt-2")
        back = ml.Estimator(Clicks(), "clicks", config=config, progress=False)
        assert back.train(read_clicks, steps=1).evaluate(read_clicks)["global_step"] == 3
        assert back.train(read_clicks, steps=1).evaluate(read_clicks)["global_step"] == 4

    def test_max_steps_counts_from_the_first_step_ever(self, estimator):
        for _ in range(2):
            estimator.train(read_clicks, max_steps=3)
        assert get_step(estimator) == 3

    @pytest.mark.parametrize("batch_size", [4, 8, 16])
    def test_the_loss_is_a_mean_so_the_batch_size_does_not_scale_the_step(self, batch_size):
        model_dir = f"clicks{batch_size}"
        estimator = ml.Estimator(Zeros(), model_dir, ml.SGD(1.0), progress=False)
        estimator.train(lambda: read_clicks(batch_size), steps=1)
        # A quarter of each batch is user 1, whose logit is 0: its gradient is (0.5 - 1) / 4.
        first = next(estimator.predict(read_clicks))["click"]
        assert first == pytest.approx(1 / (1 + np.exp(-0.125)), abs=1e-5)

    def test_clip_norm_limits_all_gradients_together(self):
        estimator = ml.Estimator(Zeros(), "clipped", ml.SGD(1.0), clip_norm=0.1, progress=False)
        estimator.train(read_clicks, steps=1)
        # Four gradients of 0.125 have the norm 0.25, which becomes 0.1: each is 0.05.
        first = next(estimator.predict(read_clicks))["click"]
        assert first == pytest.approx(1 / (1 + np.exp(-0.05)), abs=1e-5)

    def test_servers_in_the_process(self):
        config = ml.RunConfig(num_ps=2)
        estimator = ml.Estimator(Ranking(), "ranking", ml.Adagrad(0.5), config=config)
        metrics = estimator.train(read_genres, epochs=20).evaluate(read_genres)
        assert metrics["click_auc"] > 0.99


class TestReports:
    def read_steps(self, tag="loss"):
        steps = []
        for path in sorted(glob.glob("clicks/events*")):
            for event in tf.compat.v1.train.summary_iterator(path):
                steps += [event.step for value in event.summary.value if value.tag == tag]
        return steps

    @pytest.mark.parametrize(("every", "steps"), [(None, [1, 2, 3, 4, 5, 6, 7, 8]), (3, [3, 6, 8])])
    def test_summaries_every_so_many_steps(self, every, steps):
        config = ml.RunConfig(save_summary_steps=every)
        estimator = ml.Estimator(Clicks(), "clicks", config=config, progress=False)
        estimator.train(read_clicks, epochs=2)
        assert self.read_steps() == steps

    @pytest.mark.parametrize(("every", "steps"), [(None, ["8"]), (3, ["3", "6", "8"])])
    def test_log_lines_every_so_many_steps(self, capfd, every, steps):
        config = ml.RunConfig(log_step_count_steps=every)
        ml.Estimator(Clicks(), "clicks", config=config).train(read_clicks, epochs=2)
        assert re.findall(r"^step (\d+), .*loss ", capfd.readouterr().err, re.MULTILINE) == steps

    @pytest.mark.parametrize(
        ("settings", "progress", "message"),
        [
            ({}, False, r"^`log_step_count_steps` is 3, but `progress` is False"),
            ({"num_ps": 1, "num_workers": 2}, True, r"^`log_step_count_steps` is 3, but a job of"),
        ],
    )
    def test_log_lines_that_nobody_would_print(self, settings, progress, message):
        config = ml.RunConfig(log_step_count_steps=3, **settings)
        with pytest.raises(ml.errors.ConfigError, match=message):
            ml.Estimator(Clicks(), "clicks", config=config, progress=progress)


class Zeros(Clicks):
    def __init__(self):
        ml.Model.__init__(self)
        self.embed = ml.Embedding("user", dim=1, initializer="zeros")


class TestEvaluate:
    def test_metrics(self, estimator):
        metrics = estimator.train(read_clicks, epochs=10).evaluate(read_clicks)
        assert metrics["click_auc"] == pytest.approx(1.0, abs=1e-3)
        assert metrics["global_step"] == 40
        assert metrics["loss"] < np.log(2)

    def test_in_turns_with_training(self, estimator):
        history = estimator.train_and_evaluate(read_clicks, read_clicks, epochs=3)
        assert [metrics["global_step"] for metrics in history] == [4, 8, 12]
        losses = [metrics["loss"] for metrics in history]
        assert losses == sorted(losses, reverse=True)

    def test_in_turns_every_so_many_steps(self, estimator):
        history = estimator.train_and_evaluate(read_clicks, read_clicks, epochs=2, every_steps=3)
        assert [metrics["global_step"] for metrics in history] == [3, 6, 8]

    @pytest.mark.parametrize(
        ("settings", "saved"),
        [
            ({"save_checkpoints_secs": 600}, [3, 6, 8]),
            # The pace counts from the last save, whatever that was for.
            ({"save_checkpoints_steps": 2}, [2, 3, 5, 6, 8]),
            ({"save_checkpoints_steps": 600}, [3, 6, 8]),
        ],
    )
    def test_in_turns_beside_saves_of_its_own_pace(self, settings, saved):
        config = ml.RunConfig(**settings)
        estimator = ml.Estimator(Clicks(), "clicks", config=config, progress=False)
        history = estimator.train_and_evaluate(read_clicks, read_clicks, epochs=2, every_steps=3)
        assert [metrics["global_step"] for metrics in history] == [3, 6, 8]
        assert sorted(int(path.split("-")[1][:-6]) for path in glob.glob("clicks/*.index")) == saved

    def test_in_turns_without_embeddings(self):
        class Dense(Clicks):
            def call(self, batch):
                logits = self.mlp(tf.cast(batch["user"], tf.float32)[:, None])
                return ml.BinaryHead("click", logits, batch.get("click"))

            def __init__(self):
                super().__init__()
                self.mlp = ml.MLP([1])

        config = ml.RunConfig(save_checkpoints_secs=600)
        estimator = ml.Estimator(Dense(), "clicks", config=config, progress=False)
        history = estimator.train_and_evaluate(read_clicks, read_clicks, every_steps=3)
        assert [metrics["global_step"] for metrics in history] == [3, 4]

    def test_without_labels(self, estimator):
        estimator.train(read_clicks)
        with pytest.raises(ml.errors.ConfigError, match="No head of Clicks has labels"):
            estimator.evaluate(lambda: read_clicks().map(lambda batch: {"user": batch["user"]}))

    def test_before_training(self, estimator):
        with pytest.raises(ml.errors.ConfigError, match="no checkpoint in clicks"):
            estimator.evaluate(read_clicks)


class TestPredict:
    def test_gives_a_dict_by_head(self, estimator):
        estimator.train(read_clicks, epochs=10)
        predictions = list(estimator.predict(read_clicks))
        assert [round(float(p["click"])) for p in predictions] == CLICKS.tolist()

    def test_needs_no_labels(self, estimator):
        estimator.train(read_clicks)
        without = estimator.predict(lambda: tf.data.Dataset.from_tensors({"user": USERS}))
        with_labels = estimator.predict(read_clicks)
        expected = [p["click"] for p in with_labels]
        np.testing.assert_allclose([p["click"] for p in without], expected, rtol=1e-6)

    def test_before_training(self, estimator):
        with pytest.raises(ml.errors.ConfigError, match="no checkpoint in clicks"):
            estimator.predict(read_clicks)


class TestExport:
    @pytest.mark.parametrize("num_ps", [0, 2])
    def test_an_exported_model_predicts_the_same(self, num_ps):
        config = ml.RunConfig(num_ps=num_ps)
        estimator = ml.Estimator(Ranking(), "ranking", config=config, progress=False)
        path = estimator.train(read_genres).export()
        assert os.path.dirname(path) == os.path.join("ranking", "exported_models")
        batch = next(iter(read_genres()))
        with ml.load(path) as served:
            assert served.inputs == ["genres", "user"]
            got = served(user=batch["user"], genres=batch["genres"])["click"]
            lists = served({"user": USERS[:8], "genres": batch["genres"].to_list()})["click"]
        expected = [p["click"] for p in estimator.predict(read_genres)][:8]
        np.testing.assert_allclose(got, expected, rtol=1e-5)
        np.testing.assert_array_equal(got, lists)

    def test_a_moved_model_works_without_its_checkpoint(self, estimator, tmp_path):
        path = estimator.train(read_clicks).export(tmp_path / "versions")
        os.rename(path, tmp_path / "moved")
        tf.io.gfile.rmtree("clicks")
        with ml.load(tmp_path / "moved") as served:
            assert served(user=[1])["click"].shape == (1,)

    @pytest.mark.parametrize("num_ps", [0, 2])
    def test_in_parts(self, num_ps, tmp_path):
        config = ml.RunConfig(num_ps=num_ps)
        estimator = ml.Estimator(Ranking(), "ranking", config=config, progress=False)
        dirs = estimator.train(read_genres).export_parts(tmp_path / "parts")
        names = [f"ps_{i}" for i in range(num_ps or 1)]
        assert sorted(dirs) == ["entry", *names]
        assert os.path.dirname(dirs["entry"]) == str(tmp_path / "parts" / "entry")
        expected = [p["click"] for p in estimator.predict(read_genres)][:8]
        models = tuple(ModelConfig(name=n, base_path=str(tmp_path / "parts" / n)) for n in names)
        batch = next(iter(read_genres()))
        with serving(tmp_path, models=models, rest_port=None) as (server, _):
            places = {name: [f"127.0.0.1:{server.port}"] for name in names}
            client = remote.connect(places, remote.RemoteConfig(timeout_ms=30_000))
            try:
                with ml.load(dirs["entry"]) as served:
                    got = served(user=batch["user"], genres=batch["genres"])["click"]
            finally:
                remote.disconnect(client)
        np.testing.assert_allclose(got, expected, rtol=1e-2)
        assert list(estimator.export_parts(dense_only=True)) == ["entry"]

    def test_before_any_data(self, estimator):
        with pytest.raises(ml.errors.ConfigError, match=r"give export\(data=...\)"):
            estimator.export()
        with pytest.raises(ml.errors.ConfigError, match=r"give export_parts\(data=...\)"):
            estimator.export_parts()

    def test_in_another_program(self, estimator):
        estimator.train(read_clicks)
        path = ml.Estimator(Clicks(), "clicks").export(data=read_clicks)
        with ml.load(path) as served:
            assert served.inputs == ["user"]

    def test_before_training(self, estimator):
        with pytest.raises(ml.errors.ConfigError, match="checkpoint"):
            estimator.export(data=read_clicks)


def test_a_table_that_gets_a_second_feature_keeps_its_rows():
    class Shared(Clicks):
        def __init__(self, features):
            ml.Model.__init__(self)
            self.embed = ml.Embedding(
                features, dim=1, table="people", output="dict", initializer="zeros"
            )

        def call(self, batch):
            rows = self.embed(batch)
            return ml.BinaryHead("click", rows["user"], batch.get("click"))

    ml.Estimator(Shared(["user"]), "m", ml.SGD(1.0), progress=False).train(read_clicks)
    both = ml.Estimator(Shared(["user", "friend"]), "m", ml.SGD(1.0), progress=False)

    def data():
        return read_clicks().map(lambda batch: {**batch, "friend": batch["user"]})

    first = next(ml.Estimator(Shared(["user"]), "m", ml.SGD(1.0)).predict(read_clicks))["click"]
    assert next(both.predict(data))["click"] == pytest.approx(first)
    assert first > 0.55


class Dropping(Zeros):
    """Remembers whether it was trained when it was built."""

    def __init__(self):
        super().__init__()
        self.dropout = ml.Dropout(0.9)
        self.seen = []

    def call(self, batch):
        self.seen.append(batch.training)
        logits = self.dropout(self.embed(batch), training=batch.training)
        return ml.BinaryHead("click", logits, batch.get("click"))


class TestDropout:
    def test_trains_otherwise_and_predicts_as_a_model_without(self):
        model = Dropping()
        dropping = ml.Estimator(model, "dropping", ml.SGD(1.0), progress=False)
        dropping.train(lambda: read_clicks(16), steps=1)
        without = ml.Estimator(Zeros(), "dropping", ml.SGD(1.0), progress=False)
        metrics = dropping.evaluate(read_clicks)
        assert metrics == dropping.evaluate(read_clicks) == without.evaluate(read_clicks)
        predictions = [p["click"] for p in dropping.predict(read_clicks)]
        assert predictions == [p["click"] for p in without.predict(read_clicks)]
        # Each of the 4 examples of user 1 moves its logit by 0.5 / 16 / (1 - 0.9), or not at all.
        logit = np.log(predictions[0] / (1 - predictions[0]))
        assert logit / 0.3125 == pytest.approx(round(logit / 0.3125), abs=1e-4)

    def test_a_model_learns_whether_it_trains(self):
        model = Dropping()
        estimator = ml.Estimator(model, "dropping", progress=False)
        estimator.train(read_clicks, steps=1)
        assert set(model.seen) == {True}
        model.seen.clear()
        estimator.evaluate(read_clicks)
        next(estimator.predict(read_clicks))
        with ml.load(estimator.export()) as served:
            assert served(user=[1])["click"].shape == (1,)
        assert set(model.seen) == {False}

    def test_what_only_training_reads_is_not_wanted_elsewhere(self):
        class Weighted(Clicks):
            def call(self, batch):
                weights = batch["weight"] if batch.training else None
                rows = self.embed(batch)
                return ml.BinaryHead("click", rows, batch.get("click"), weights=weights)

        def weighted():
            return read_clicks().map(lambda batch: {**batch, "weight": batch["click"] + 1})

        estimator = ml.Estimator(Weighted(), "weighted", progress=False).train(weighted, steps=1)
        assert "click_auc" in estimator.evaluate(read_clicks)


class TestClasses:
    """What a user watches, one of three genres, as the library reads it from a file."""

    class Genre(ml.Model):
        def __init__(self):
            super().__init__()
            self.embed = ml.Embedding("user", dim=3, optimizer=ml.SGD(10.0))

        def call(self, batch):
            return ml.SoftmaxHead("genre", self.embed(batch), batch.get("genre"))

    def make_data(self, tmp_path, first=0):
        lines = [f"{user},{first + user % 3}" for user in range(9)]
        path = tmp_path / f"from_{first}.csv"
        path.write_text("\n".join(["user,genre", *lines]))
        return ml.data.csv(str(path), [ml.data.Ids("user"), ml.data.Label("genre")])

    def test_are_learned_from_a_file(self, tmp_path):
        data = self.make_data(tmp_path)
        estimator = ml.Estimator(self.Genre(), "genre", progress=False)
        metrics = estimator.train(data, epochs=2).evaluate(data)
        assert metrics["genre_accuracy"] == 1
        assert [p["genre"] for p in estimator.predict(data)] == [0, 1, 2] * 3

    def test_those_that_are_not_there_are_a_sentence(self, tmp_path):
        estimator = ml.Estimator(self.Genre(), "genre", progress=False)
        with pytest.raises(ml.errors.DataError, match=r"^The labels of head genre must be classes"):
            estimator.train(self.make_data(tmp_path, first=1))


class TestSeveralHeads:
    def test_outputs_beside_them(self):
        class Vectors(Ranking):
            def call(self, batch):
                rows = self.embed(batch)
                head = ml.BinaryHead("click", self.mlp(rows), batch.get("click"))
                return [head, ml.Output("vector", rows)]

        estimator = ml.Estimator(Vectors(), "vectors", progress=False).train(read_genres)
        assert next(estimator.predict(read_genres))["vector"].shape == (8,)
        assert "vector_mse" not in estimator.evaluate(read_genres)
        with ml.load(estimator.export()) as served:
            assert served(user=[1], genres=[[7]])["vector"].shape == (1, 8)

    def test_each_has_its_metric(self):
        class Both(Ranking):
            def call(self, batch):
                rows = self.embed(batch)
                return [
                    ml.BinaryHead("click", self.mlp(rows), batch.get("click")),
                    ml.RegressionHead("user", tf.reduce_sum(rows, 1), batch.get("number")),
                ]

        def data():
            return read_genres().map(
                lambda batch: {**batch, "number": tf.cast(batch["user"], tf.float32)}
            )

        estimator = ml.Estimator(Both(), "both", ml.Adagrad(0.1), progress=False)
        metrics = estimator.train(data, epochs=2).evaluate(data)
        assert {"click_auc", "user_mse", "loss"} <= metrics.keys()
        assert set(next(estimator.predict(data))) == {"click", "user"}


class TestBadInput:
    @pytest.mark.parametrize(
        ("model", "message"),
        [(Clicks, r"an instance, as in Ranking\(\)"), ("clicks", "needs an ml.Model")],
    )
    def test_model(self, model, message):
        with pytest.raises(ml.errors.ConfigError, match=message):
            ml.Estimator(model)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"clip_norm": 0}, "`clip_norm` must be positive"),
            ({"optimizer": "adagrad"}, "must be one such as ml.Adagrad"),
            ({"optimizer": ml.AMSGrad(0.1)}, "AMSGrad is for rows only"),
            ({"config": {}}, "`config` must be an ml.RunConfig"),
            ({"config": ml.RunConfig(model_dir="other")}, "There are two model directories"),
            (
                {"config": ml.RunConfig(save_summary_steps=0)},
                "`save_summary_steps` must be a positive int, got 0",
            ),
            (
                {"config": ml.RunConfig(num_ps=2, num_workers=0)},
                "`num_workers` must be a positive int, got 0",
            ),
            (
                {"config": ml.RunConfig(num_ps=0, num_workers=2)},
                "`num_ps` must be a positive int, got 0",
            ),
        ],
    )
    def test_settings(self, settings, message):
        with pytest.raises(ml.errors.ConfigError, match=message):
            ml.Estimator(Clicks(), "clicks", **settings)

    def test_a_keras_optimizer_is_refused_with_its_replacement(self):
        import keras

        with pytest.raises(ml.errors.ConfigError, match=r"use ml\.Adagrad\(0\.02"):
            ml.Estimator(Clicks(), optimizer=keras.optimizers.Adagrad(0.02))

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (read_clicks(), r"give the function that makes it, as in train\(make_dataset"),
            (lambda: EAGER_DATA, "was made before an Estimator asked for it"),
            (lambda: read_ids(EAGER_IDS), "or a tensor that it reads, was made"),
            ("day1.csv", "or a reader such as ml.data.csv"),
            (lambda: None, "returned None"),
        ],
    )
    def test_data(self, estimator, data, message):
        with pytest.raises(ml.errors.ConfigError, match=message):
            estimator.train(data)

    @pytest.mark.parametrize(
        "settings",
        [{"epochs": 0}, {"epochs": 1.5}, {"steps": 0}, {"steps": 1.5}, {"max_steps": 1.5}],
    )
    def test_limits(self, estimator, settings):
        with pytest.raises(ml.errors.ConfigError):
            estimator.train(read_clicks, **settings)

    def test_two_limits(self, estimator):
        with pytest.raises(ml.errors.ConfigError, match="`steps` or `max_steps`, not both"):
            estimator.train(read_clicks, steps=1, max_steps=2)

    @pytest.mark.parametrize("settings", [{}, {"num_ps": 1, "num_workers": 2}])
    def test_hooks_that_are_none(self, settings):
        """Said once, before any process is started."""
        estimator = ml.Estimator(Clicks(), "clicks", config=ml.RunConfig(**settings))
        with pytest.raises(ml.errors.ConfigError, match=r"^`hooks` must be a list of tf\.compat"):
            estimator.train(read_clicks, hooks=[object()])

    @pytest.mark.parametrize("settings", [{}, {"num_ps": 1, "num_workers": 2}])
    @pytest.mark.parametrize("name", ["kafka_topics", "kafka_group_id", "kafka_servers"])
    def test_topics_of_the_settings_beside_other_data(self, name, settings):
        config = ml.RunConfig(**{name: "clicks"}, **settings)
        estimator = ml.Estimator(Clicks(), "clicks", config=config)
        with pytest.raises(
            ml.errors.ConfigError, match=rf"^`{name}` is 'clicks', .* ml\.data\.kafka"
        ):
            estimator.train(read_clicks, epochs=2)
        assert not os.path.exists("clicks/checkpoint")

    def test_a_pb_dataset_may_follow_topics_of_the_settings(self, tmp_path):
        path = tmp_path / "records"
        path.write_bytes(Framing(has_sort_id=False).make_record(b"1"))

        def data():
            records = record_datasets.PBDataset(
                str(path), input_pb_type=record_datasets.PbType.PLAINTEXT, has_sort_id=False
            )
            return records.batch(1).map(lambda text: {"user": tf.strings.to_number(text, tf.int64)})

        config = ml.RunConfig(kafka_topics="clicks", kafka_group_id="a", kafka_servers="b:9092")
        check_topics(config, lambda: data().repeat(2))
        with pytest.raises(ml.errors.ConfigError, match=r"^`kafka_topics` is 'clicks'"):
            check_topics(config, read_clicks)

    def test_labels_that_are_not_binary(self, estimator):
        def data():
            return read_clicks().map(lambda batch: {**batch, "click": batch["click"] + 1})

        with pytest.raises(ml.errors.DataError, match=r"must be 0 or 1, .*, got [12]"):
            estimator.train(data)


class TestCheckpoint:
    def test_variables(self, estimator):
        estimator.train(read_clicks)
        assert estimator.get_variable_names() == ["global_step"]
        with pytest.raises(ml.errors.ConfigError, match=r"no variable 'nope'; get_variable_names"):
            estimator.get_variable_value("nope")

    @pytest.mark.parametrize("suffix", ["index", "data-00000-of-00001"])
    @pytest.mark.parametrize(
        "use",
        [
            lambda estimator: estimator.train(read_clicks),
            lambda estimator: estimator.evaluate(read_clicks),
            lambda estimator: list(estimator.predict(read_clicks)),
            lambda estimator: estimator.export(),
            lambda estimator: estimator.get_variable_value("global_step"),
        ],
        ids=["train", "evaluate", "predict", "export", "get_variable_value"],
    )
    def test_a_file_that_was_cut_short_is_named(self, estimator, use, suffix):
        estimator.train(read_clicks)
        path = f"{estimator.latest_checkpoint()}.{suffix}"
        os.truncate(path, 1)
        with pytest.raises(tf.errors.DataLossError, match=re.escape(path)):
            use(estimator)


def test_default_directory_is_of_this_user_alone(estimator):
    path = ml.Estimator(Clicks()).model_dir
    assert os.path.basename(path) == "clicks"
    assert os.stat(os.path.dirname(path)).st_mode & 0o077 == 0
