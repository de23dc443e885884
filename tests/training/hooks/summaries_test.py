"""Summaries of a training, read back from the files that TensorBoard reads."""

import glob
import itertools
import logging
import os

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from monolith import layers
from monolith.embedding import entry
from monolith.graph import metadata
from monolith.graph.mode_keys import ModeKeys
from monolith.model import ranking
from monolith.model.heads import TRAINED_HEADS, Head
from monolith.optimizer.learning_rate import PolynomialDecay
from monolith.training.estimator import Estimator, EstimatorSpec, RunConfig
from monolith.training.hooks import evaluation, summaries, watch

v1 = tf.compat.v1


def read(directory) -> dict[str, dict[int, float]]:
    """Returns the points of each tag by their step, as the files have them."""
    points: dict[str, dict[int, float]] = {}
    for path in sorted(glob.glob(os.path.join(directory, "events*"))):
        for event in v1.train.summary_iterator(path):
            for value in event.summary.value:
                points.setdefault(value.tag, {})[event.step] = value.simple_value
    return points


def train(
    directory, steps, *, clock=None, step_sec=0.0, start=0, every_steps=None, **settings
) -> None:
    """Trains a model with a head for some steps, of a clock that these move."""
    with tf.Graph().as_default():
        step = v1.train.get_or_create_global_step()
        pred = tf.constant([0.1, 0.9]) + 0.0 * tf.cast(step, tf.float32)
        loss = tf.cast(step, tf.float32)
        v1.add_to_collection(v1.GraphKeys.LOSSES, loss)
        head = Head("click", pred, tf.constant([0.0, 1.0]), True)
        metadata.get_meta(TRAINED_HEADS, list).append(head)
        with tf.control_dependencies([loss, pred]):
            train_op = v1.assign_add(step, 1)
        if clock is not None:
            settings["clock"] = lambda: clock[0]
        writer = summaries.SummaryWriter(directory, every_steps=every_steps)
        hook = watch.WatchHook([writer], **settings)
        scaffold = v1.train.Scaffold(init_op=step.assign(start))
        creator = v1.train.ChiefSessionCreator(scaffold)
        with v1.train.MonitoredSession(creator, hooks=[hook]) as session:
            for _ in range(steps):
                if clock is not None:
                    clock[0] += step_sec
                session.run(train_op)


def test_tags_and_values(tmp_path):
    schedule = PolynomialDecay(0.1, decay_steps=4, end_learning_rate=0.5)
    train(tmp_path, 4, learning_rates={"dense": schedule}, clock=[0.0], step_sec=0.5)
    points = read(tmp_path)
    assert points.keys() == {
        "loss", "click_auc", "examples_per_sec", "memory/process_mb", "learning_rate/dense",
    }  # fmt: skip
    assert points["loss"] == {1: 0, 2: 0.5, 3: 1, 4: 1.5}
    assert points["click_auc"] == {1: 1, 2: 1, 3: 1, 4: 1}
    assert points["examples_per_sec"] == {2: 4, 3: 4, 4: 4}
    np.testing.assert_allclose(list(points["learning_rate/dense"].values()), [0.2, 0.3, 0.4, 0.5])
    # TensorFlow alone takes more than 100 MB.
    assert all(100 < value < 100_000 for value in points["memory/process_mb"].values())


def test_a_short_training_has_a_curve(tmp_path):
    train(tmp_path, 150)
    steps = list(read(tmp_path)["loss"])
    assert 30 <= len(steps) <= 60
    assert steps[:10] == list(range(1, 11))
    assert steps[-1] == 150
    assert max(np.diff(steps)) <= 20


def list_points(steps: int, step_sec: float) -> list[int]:
    """Returns the steps after which there is a point, where only that takes no time."""
    writer = summaries.SummaryWriter("unused")
    writer.start(0)
    points: list[int] = []
    next_step, next_sec = writer.plan(0, 0.0)
    for step in range(1, steps + 1):
        if step >= next_step or step * step_sec >= next_sec:
            points.append(step)
            next_step, next_sec = writer.plan(step, step * step_sec)
    return points


def test_points_become_rare_in_steps():
    points = list_points(20_000, 0.001)
    assert len(points) < 150
    # A tenth of the steps so far lies between two.
    assert all(later - point <= max(1, point / 10) for point, later in itertools.pairwise(points))


def test_points_do_not_become_rare_in_time():
    points = list_points(20_000, 0.1)
    assert max(np.diff(points)) == 300  # 30 s.
    assert len(points) < 150
    assert max(np.diff(list_points(400, 10.0))) == 3
    assert max(np.diff(list_points(400, 60.0))) == 1


def test_points_every_so_many_steps(tmp_path):
    train(tmp_path, 10, every_steps=4)
    assert list(read(tmp_path)["loss"]) == [4, 8, 10]


def test_what_was_lost_goes_away(tmp_path):
    """A training that was killed at step 20 goes on from its checkpoint of step 10."""
    train(tmp_path, 20)
    first = read(tmp_path)["loss"]
    assert max(first) == 20
    train(tmp_path, 5, start=10)
    accumulator = event_accumulator.EventAccumulator(str(tmp_path))
    accumulator.Reload()
    steps = [scalar.step for scalar in accumulator.Scalars("loss")]
    assert steps == [*[s for s in first if s <= 10], 11, 12, 13, 14, 15]


def test_a_directory_that_cannot_be_written_does_not_stop_a_training(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        train(tmp_path / "file" / "logs", 5)
    lines = [r.getMessage() for r in caplog.records if "no more summaries" in r.getMessage()]
    assert len(lines) == 1


def test_process_bytes_grow_with_what_is_allocated():
    before = summaries.read_process_bytes()
    held = np.ones(64 << 20, np.uint8)
    assert summaries.read_process_bytes() - before > 60 << 20
    del held


class Movies(ranking.MonolithModel):
    """Who clicks is known by the user."""

    def input_fn(self, mode):
        ids = tf.RaggedTensor.from_tensor(np.arange(32, dtype=np.int64)[:, None] % 8)
        label = np.float32(np.arange(32) % 2)
        dataset = tf.data.Dataset.from_tensors({"user": ids, "label": label})
        return dataset.repeat(150 if mode == ModeKeys.TRAIN else 2)

    def model_fn(self, features, mode):
        self.create_embedding_feature_column("user")
        user = self.lookup_embedding_slice(
            ["user"], "vec", 4, optimizer=entry.AdagradOptimizer(0.1), out_type="concat"
        )
        loss, pred = ranking.get_sigmoid_loss_and_pred(
            "click", layers.Dense(1)(user), features["label"], None, mode=mode
        )
        v1.summary.scalar("mine", tf.constant(7.0))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        return EstimatorSpec(features["label"], pred, "click", loss, optimizer)


@pytest.mark.usefixtures("graph_mode")
@pytest.mark.parametrize("num_ps", [0, 2])
def test_training_and_evaluation_in_one_chart(tmp_path, capfd, num_ps):
    config = RunConfig(is_local=True, model_dir=str(tmp_path), num_ps=num_ps)
    estimator = Estimator(Movies(), config)
    estimator.train(hooks=[watch.WatchHook([summaries.SummaryWriter(tmp_path)])])
    metrics = estimator.compute_metrics(hooks=[evaluation.EvaluationHook()])
    trained, evaluated = read(tmp_path), read(tmp_path / "eval")
    assert trained.keys() >= evaluated.keys() == {"loss", "click_auc"}
    assert evaluated["click_auc"] == {150: pytest.approx(metrics["click_auc"])}
    assert len(trained["click_auc"]) >= 30
    # What was learned is seen in both: 32 times log(2) at the beginning.
    assert trained["loss"][1] == pytest.approx(32 * np.log(2), rel=0.1)
    assert evaluated["loss"][150] < trained["loss"][150] < 10
    # Servers get the updates of a step during the next one.
    rows = list(trained["rows/user"].values())
    assert set(rows[2 if num_ps else 0 :]) == {8}
    assert trained["admitted/user"] == trained["rows/user"]
    assert set(trained["expired/user"].values()) == {0}
    assert set(trained["held_back/user"].values()) == {0}
    assert 0 < trained["table_mb/user"][150] < 10
    # Those of the model are written beside it, and the loss by one of them only.
    assert set(trained["mine"]) == {0, 100} or set(trained["mine"]) == {1, 101}
    assert "global_step/sec" not in trained
    assert "evaluated 64 examples in " in capfd.readouterr().err
