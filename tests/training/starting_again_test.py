"""`ml.Estimator` starts again: from an older checkpoint, or with other rows, names, or layers."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from absl import flags

import monolith as ml
from monolith.checkpoint import delta_chain
from monolith.embedding.tables import registry
from monolith.training.estimator import Estimator

USERS = np.array([1, 2, 3, 4] * 10)


def read():
    columns = {"user": USERS, "movie": USERS + 5, "click": (USERS % 2).astype(np.float32)}
    return tf.data.Dataset.from_tensor_slices(columns).batch(4)


class Clicks(ml.Model):
    """Embeddings go straight into the head, so that rows alone make the prediction."""

    def __init__(self, dim=2, movie_dim=2, optimizer=None, second=False, tower=None):
        super().__init__()
        optimizer = optimizer or ml.Adagrad(0.5)
        self.user = ml.Embedding("user", dim=dim, optimizer=optimizer)
        self.movie = ml.Embedding("movie", dim=movie_dim, optimizer=ml.Adagrad(0.5))
        self.second = ml.Embedding("user", dim=2, optimizer=ml.SGD(0.5)) if second else None
        self.mlp = ml.MLP([4, 1], name=tower) if tower else None

    def call(self, batch):
        parts = [self.user(batch), self.movie(batch)]
        if self.second is not None:
            parts.append(self.second(batch))
        logits = tf.reduce_sum(tf.concat(parts, -1), -1, keepdims=True)
        if self.mlp is not None:
            logits += self.mlp(logits)
        return ml.BinaryHead("click", logits, batch.get("click"))


def make(model=None, model_dir="model", **settings):
    config = ml.RunConfig(save_checkpoints_steps=5, **settings)
    return ml.Estimator(model or Clicks(), model_dir, progress=False, config=config)


def get_step(estimator):
    return estimator.evaluate(read)["global_step"]


def predict(estimator):
    return [row["click"] for row in estimator.predict(read)][:4]


@pytest.fixture
def trained():
    """A model with the checkpoints 5 and 10."""
    return make().train(read)


@pytest.mark.usefixtures("trained")
class TestRestoreCkpt:
    """In a program that parses no command line."""

    @pytest.fixture(autouse=True)
    def _plain_program(self):
        flags.FLAGS.unparse_flags()

    def test_evaluation_prediction_and_export_use_it_and_change_nothing(self):
        newest = predict(make())
        older = make(restore_ckpt="model.ckpt-5")
        before = sorted(os.listdir("model"))
        for _ in range(2):
            assert get_step(older) == 5
        predictions = predict(older)
        assert predictions != newest
        assert "restore_ckpt" not in os.listdir("model")
        assert set(os.listdir("model")) - set(before) <= {"eval"}
        exported = ml.load(older.export())
        outputs = exported({"user": USERS[:4], "movie": USERS[:4] + 5})
        np.testing.assert_allclose(np.ravel(outputs["click"]), predictions, rtol=1e-5)
        assert get_step(make()) == 10

    def test_training_goes_back_once(self):
        older = make(restore_ckpt="model.ckpt-5")
        older.train(read, steps=2)
        assert older.latest_checkpoint() == "model/model.ckpt-7"
        # The same program once more, after it was killed.
        make(restore_ckpt="model.ckpt-5").train(read, steps=2)
        assert older.latest_checkpoint() == "model/model.ckpt-9"

    def test_max_steps_count_from_there(self):
        make(restore_ckpt="model.ckpt-5").train(read, max_steps=8)
        assert make().latest_checkpoint() == "model/model.ckpt-8"

    def test_no_other_job_of_the_process_knows(self):
        assert get_step(make(restore_ckpt="model.ckpt-5")) == 5
        make(restore_ckpt="model.ckpt-5").train(read, steps=1)
        assert flags.FLAGS["restore_ckpt"].value is None
        # Its newest is now 6.
        assert get_step(make(model_dir="other", restore_dir="model")) == 6
        make(model_dir="third", restore_dir="model").train(read, steps=1)
        assert get_step(make(model_dir="third")) == 7

    def test_together_with_a_directory_it_chooses_there(self):
        settings = {"restore_dir": "model", "restore_ckpt": "model.ckpt-5"}
        other = make(model_dir="other", **settings).train(read, steps=1)
        assert other.latest_checkpoint() == "other/model.ckpt-6"
        # What the new model has learned since is what counts.
        assert get_step(make(model_dir="other", **settings)) == 6

    @pytest.mark.parametrize("act", ["train", "evaluate"])
    def test_one_that_is_not_there_is_refused(self, act):
        with pytest.raises(
            ml.errors.ConfigError, match=r"'model.ckpt-7', .* has model.ckpt-5, mod"
        ):
            getattr(make(restore_ckpt="model.ckpt-7"), act)(read)
        assert get_step(make()) == 10

    def test_after_training_the_last_checkpoint_counts(self):
        older = make(restore_ckpt="model.ckpt-5")
        with tf.Graph().as_default():
            # The one below, which is the same for all calls.
            inner = Estimator(older._make_task(read), older.config)
            assert inner.compute_metrics()["global_step"] == 5
            inner.train(steps=1)
            assert inner.compute_metrics()["global_step"] == 6


CHANGES = [
    pytest.param({"dim": 3}, "dim 3 (adagrad)", False, id="dim"),
    pytest.param({"optimizer": ml.Adam(0.1)}, "dim 2 (adam)", True, id="optimizer"),
    pytest.param({"second": True}, "dim 2 (adagrad) + 2 (sgd)", False, id="second_embedding"),
]


@pytest.mark.parametrize(("changed", "now", "keeps_weights"), CHANGES)
class TestOtherRows:
    def test_refused_in_one_sentence(self, trained, changed, now, keeps_weights):
        before = predict(trained)
        estimator = make(Clicks(**changed))
        for act in (estimator.train, estimator.evaluate, predict_with(estimator)):
            with pytest.raises(ml.errors.ConfigError) as caught:
                act(read)
            message = str(caught.value)
            assert f"table 'user' has {now}, in the checkpoint dim 2 (adagrad)" in message
            assert "train with restore_what_fits=True" in message
            assert ("keeps the weights of 'user'" in message) == keeps_weights
            assert ("starts 'user' with no rows" in message) != keeps_weights
            assert "'movie'" not in message
        assert predict(make()) == before

    @pytest.mark.parametrize("num_ps", [0, 2])
    def test_what_fits_goes_on(self, trained, caplog, changed, now, keeps_weights, num_ps):
        rows = Rows()
        estimator = make(Clicks(**changed), num_ps=num_ps)
        estimator.train(read, steps=1, restore_what_fits=True, hooks=[rows])
        assert rows.counts == {"movie": 4, "user": 4 if keeps_weights else 0}
        (warning,) = [r.getMessage() for r in caplog.records if "table 'user'" in r.getMessage()]
        kept = "keeps its weights" if keeps_weights else "starts without rows"
        assert f"has {now}, in the checkpoint dim 2 (adagrad), and {kept}" in warning
        assert get_step(estimator) == 11
        # Said once: the checkpoint has the new rows now.
        make(Clicks(**changed), num_ps=num_ps).train(read, steps=1)

    def test_evaluation_never_leaves_rows_out(self, trained, changed, now, keeps_weights):
        estimator = make(Clicks(**changed))
        estimator.train(read, steps=1, restore_what_fits=True)
        with pytest.raises(ml.errors.ConfigError, match="table 'user' has dim 2"):
            make().evaluate(read)


def predict_with(estimator):
    return lambda data: list(estimator.predict(data))


class Rows(tf.compat.v1.train.SessionRunHook):
    """Counts the rows of each table that a training finds when it starts."""

    def begin(self):
        self._sizes = {}
        self._names = {}
        for known in registry.get_tables():
            self._sizes[known.name] = known.table.sizes()
            self._names[known.name] = known.config.table_names

    def after_create_session(self, session, coord):
        self.counts = {}
        for name, sizes in session.run(self._sizes).items():
            for table, size in zip(self._names[name], sizes, strict=True):
                self.counts[table] = self.counts.get(table, 0) + int(size)


def test_weights_stay_when_only_the_optimizer_changes(trained):
    before = predict(trained)

    class Frozen(Clicks):  # Steps of size 0: what it predicts is what was restored.
        def __init__(self):
            super().__init__(optimizer=ml.SGD(0.0))
            self.movie = ml.Embedding("movie", dim=2, optimizer=ml.Adagrad(0.0))

    frozen = make(Frozen())
    frozen.train(read, steps=1, restore_what_fits=True)
    np.testing.assert_allclose(predict(frozen), before, rtol=1e-6)


def test_tables_of_their_own(caplog):
    """Of which those with equal settings are merged."""
    settings = {"use_native_multi_hash_table": False}
    make(**settings).train(read)
    changed = make(Clicks(dim=3, movie_dim=3), **settings)
    with pytest.raises(ml.errors.ConfigError, match=r"dim 3 \(adagrad\), in the checkpoint dim 2"):
        changed.train(read)
    changed.train(read, steps=1, restore_what_fits=True)
    assert "starts without rows" in caplog.text
    assert get_step(changed) == 11
    # Tables that are merged no more have other names.
    other = make(Clicks(dim=3, movie_dim=2), **settings)
    with pytest.raises(ml.errors.ConfigError, match="is not in the checkpoint"):
        other.train(read)
    other.train(read, steps=1, restore_what_fits=True)
    assert get_step(other) == 12


class TestClearNn:
    def test_acts_in_training_only(self):
        make(Clicks(tower="mlp")).train(read)
        before = predict(make(Clicks(tower="mlp")))
        cleared = make(Clicks(tower="mlp"), clear_nn=True, continue_training=True)
        assert get_step(cleared) == 10
        assert predict(cleared) == before
        assert not os.path.exists("model/clear_nn")
        kernel = cleared.get_variable_value("mlp/dense_0/bias")
        assert kernel.any()
        seen = []

        class Watch(tf.compat.v1.train.SessionRunHook):
            def after_create_session(self, session, coord):
                graph = session.graph
                (bias,) = [
                    v
                    for v in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
                    if v.op.name == "mlp/dense_0/bias"
                ]
                seen.append(session.run(bias))

        cleared.train(read, steps=1, hooks=[Watch()])
        assert os.path.exists("model/clear_nn")
        assert not seen[0].any()
        assert get_step(cleared) == 11
        # Once.
        make(Clicks(tower="mlp"), clear_nn=True).train(read, steps=1, hooks=[Watch()])
        assert seen[1].any()


class TestPartialAliasMap:
    @pytest.fixture
    def aliases(self):
        """Of weights, without the state of their optimizer."""
        names = make(Clicks(tower="mlp")).train(read).get_variable_names()
        mlp = [name for name in names if name.startswith("mlp/") and "Adagrad" not in name]
        return {name.replace("mlp/", "tower/"): name for name in mlp}

    def test_refused_in_one_sentence(self, aliases):
        renamed = make(Clicks(tower="tower"), reload_alias_map=aliases)
        with pytest.raises(ml.errors.ConfigError) as caught:
            renamed.train(read)
        assert "it has no variable 'tower/dense_0/kernel/Adagrad', which the map" in str(
            caught.value
        )
        # Without optimizer, nothing is missing.
        assert get_step(renamed) == 10

    def test_what_it_does_not_explain_starts_anew(self, aliases, caplog):
        before = make().get_variable_value("mlp/dense_0/kernel")
        del aliases["tower/dense_1/bias"]
        partial = ml.Estimator(
            Clicks(tower="tower"),
            "model",
            ml.SGD(0.0),
            progress=False,
            config=ml.RunConfig(reload_alias_map=aliases),
        )
        partial.train(read, steps=1, restore_what_fits=True)
        np.testing.assert_array_equal(partial.get_variable_value("tower/dense_0/kernel"), before)
        assert "these start anew: it has no variable 'tower/dense_1/bias'" in caplog.text
        assert get_step(partial) == 11


class TestWhatIsSavedAndRestored:
    @pytest.mark.parametrize("num_ps", [0, 2])
    def test_only_what_has_changed(self, num_ps):
        config = ml.RunConfig(incremental_save_steps=2, num_ps=num_ps)
        estimator = KilledEstimator(Clicks(), "model", progress=False, config=config)
        estimator.step = 7
        with pytest.raises(Killed):
            estimator.train(read)
        newest = estimator.latest_checkpoint()
        # The first one is full, or nobody would know what has changed since.
        assert newest == "model/model.ckpt-2"
        assert [delta.step for delta in delta_chain.read(newest)] == [4, 6]
        assert make(num_ps=num_ps).train(read, steps=1).latest_checkpoint() == "model/model.ckpt-7"

    def test_an_older_checkpoint_if_the_newest_is_damaged(self, trained):
        os.truncate(f"{trained.latest_checkpoint()}.index", 1)
        with pytest.raises(tf.errors.DataLossError):
            make().train(read)
        older = make(fall_back_to_older_checkpoint=True).train(read, steps=1)
        assert older.latest_checkpoint() == "model/model.ckpt-6"

    def test_a_list_that_is_missing(self, trained):
        os.remove("model/checkpoint")
        with pytest.raises(tf.errors.DataLossError, match="set `rebuild_checkpoint_list` to go on"):
            make().train(read)
        rebuilt = make(rebuild_checkpoint_list=True).train(read, steps=1)
        assert rebuilt.latest_checkpoint() == "model/model.ckpt-11"


class Killed(Exception):
    """Of the test alone."""


class KilledEstimator(ml.Estimator):
    """Whose process ends at a step."""

    step = 0

    def _make_watch(self, steps, max_steps):
        return KillHook(self.step)


class KillHook(tf.compat.v1.train.SessionRunHook):
    def __init__(self, step):
        self._step = step

    def begin(self):
        self._global_step = tf.compat.v1.train.get_global_step().read_value()

    def after_run(self, run_context, run_values):
        if run_context.session.run(self._global_step) >= self._step:
            raise Killed


class TestEpochsOfATrainingThatWasKilled:
    """Ten steps in an epoch, a checkpoint every three."""

    def start(self, kind=ml.Estimator, **settings):
        config = ml.RunConfig(save_checkpoints_steps=3, **settings)
        return kind(Clicks(), "model", progress=False, config=config)

    def kill(self, step, epochs, **settings):
        estimator = self.start(KilledEstimator, **settings)
        estimator.step = step
        with pytest.raises(Killed):
            estimator.train_and_evaluate(read, read, epochs=epochs)

    def go_on(self, epochs, data=read, **settings):
        history = self.start(**settings).train_and_evaluate(data, read, epochs=epochs)
        return [metrics["global_step"] for metrics in history]

    @pytest.mark.parametrize("num_ps", [0, 2])
    def test_those_that_are_left_are_trained(self, num_ps):
        self.kill(17, epochs=3, num_ps=num_ps)
        assert self.go_on(epochs=3, num_ps=num_ps) == [20, 30]

    def test_one_that_was_over_is_not_trained_again(self):
        self.kill(12, epochs=2)
        assert get_step(make()) == 10
        assert self.go_on(epochs=2) == [20]
        # All is done, so that they are others.
        assert self.go_on(epochs=1) == [30]

    def test_another_number_of_them_counts_from_the_first(self):
        self.kill(17, epochs=2)
        assert self.go_on(epochs=3) == [20, 30]

    def test_train_finishes_one_and_other_data_has_its_own(self):
        self.kill(17, epochs=3)
        assert get_step(self.start().train(read, steps=1)) == 17
        assert self.go_on(epochs=2, data=lambda: read().take(5)) == [22, 27]


def test_an_export_changes_no_op_that_has_run(tmp_path):
    """In a process of its own, which shows TensorFlow's warnings."""
    program = """
import numpy as np, tensorflow as tf, monolith as ml
class Clicks(ml.Model):
    def __init__(self):
        super().__init__()
        self.user = ml.Embedding("user", dim=1)
    def call(self, batch):
        return ml.BinaryHead("click", self.user(batch), batch.get("click"))
def read():
    return tf.data.Dataset.from_tensors({"user": np.arange(4), "click": np.ones(4, np.float32)})
estimator = ml.Estimator(Clicks(), "model", progress=False).train(read)
ml.load(estimator.export())
print("exported")
"""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    environment["PYTHONPATH"] = str(pathlib.Path(ml.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.endswith("exported\n"), done.stderr
    assert "after it was run by a session" not in done.stderr
