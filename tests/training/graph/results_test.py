"""Metrics and predictions, as an evaluation and a prediction give them."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.spec import GraphSpec
from monolith.training.graph import results


@pytest.mark.usefixtures("graph_mode")
class TestMakeEvalOps:
    def test_metrics_are_means_over_the_batches(self):
        tf.compat.v1.train.get_or_create_global_step()
        fed = tf.compat.v1.placeholder(tf.float32, [None])
        spec = GraphSpec(
            ModeKeys.EVAL,
            loss=tf.reduce_sum(fed),
            eval_metric_ops={"mean": tf.compat.v1.metrics.mean(fed)},
        )
        values, update = results.make_eval_ops(spec)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.local_variables_initializer())
            session.run(tf.compat.v1.global_variables_initializer())
            for batch in ([1.0, 2.0], [6.0]):
                session.run(update, {fed: batch})
            # The loss is a mean of 3 and 6, one number per batch; the metric counts examples.
            assert session.run(values) == {"mean": 3.0, "loss": 4.5, "global_step": 0}

    def test_model_without_loss(self):
        with pytest.raises(errors.ConfigError, match="must give a loss; got None"):
            results.make_eval_ops(GraphSpec(ModeKeys.PREDICT, predictions=tf.constant(0.0)))

    @pytest.mark.parametrize("name", ["loss", "global_step"])
    def test_metric_with_a_name_that_is_taken(self, name):
        metric = tf.compat.v1.metrics.mean(tf.constant(1.0))
        spec = GraphSpec(ModeKeys.EVAL, loss=tf.constant(1.0), eval_metric_ops={name: metric})
        with pytest.raises(errors.ConfigError, match=f"may not be called '{name}'"):
            results.make_eval_ops(spec)


@pytest.mark.parametrize(("name", "directory"), [(None, "eval"), ("day1", "eval_day1")])
def test_summary_holds_single_numbers(tmp_path, name, directory):
    metrics = {"auc": np.float32(0.75), "many": np.zeros(3), "one": np.ones([1]), "global_step": 7}
    results.write_eval_summary(str(tmp_path), name, metrics)
    (path,) = (tmp_path / directory).iterdir()
    written = {
        (event.step, value.tag, value.simple_value)
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert written == {(7, "auc", 0.75), (7, "one", 1.0)}


def test_summaries_of_the_same_second_are_all_there(tmp_path):
    for step in range(5):
        results.write_eval_summary(str(tmp_path), None, {"auc": 0.5, "global_step": step})
    steps = [
        event.step
        for path in (tmp_path / "eval").iterdir()
        for event in tf.compat.v1.train.summary_iterator(str(path))
        if event.summary.value
    ]
    assert sorted(steps) == [0, 1, 2, 3, 4]


def test_evaluation_of_a_model_that_cannot_be_written_to(tmp_path, caplog):
    (tmp_path / "eval").touch()
    with caplog.at_level("INFO"):
        results.write_eval_summary(str(tmp_path), None, {"auc": 0.75, "global_step": 7})
    assert f"Nothing can be written to {tmp_path}/eval" in caplog.text
    assert "auc = 0.75" in caplog.text


class TestSelectPredictions:
    PREDICTIONS = {"click": 1, "like": 2}

    def test_all(self):
        assert results.select_predictions(self.PREDICTIONS, None) is self.PREDICTIONS

    @pytest.mark.parametrize("keys", ["like", ["like"], ("like",)])
    def test_some(self, keys):
        assert results.select_predictions(self.PREDICTIONS, keys) == {"like": 2}

    @pytest.mark.parametrize("keys", ["share", ["like", "share"], []])
    def test_unknown(self, keys):
        with pytest.raises(errors.ConfigError, match=r"some of \['click', 'like'\]"):
            results.select_predictions(self.PREDICTIONS, keys)

    def test_predictions_without_names(self):
        with pytest.raises(errors.ConfigError, match="need predictions by name"):
            results.select_predictions(3, "like")


class TestSplitBatch:
    def test_rows_by_name(self):
        batch = {"a": np.array([1, 2]), "b": np.array([[3, 4], [5, 6]])}
        rows = list(results.split_batch(batch))
        assert [row["a"] for row in rows] == [1, 2]
        assert [row["b"].tolist() for row in rows] == [[3, 4], [5, 6]]

    def test_rows_of_one_array(self):
        assert [row.tolist() for row in results.split_batch(np.array([[1], [2]]))] == [[1], [2]]

    def test_empty_batch(self):
        assert list(results.split_batch({"a": np.zeros([0, 2])})) == []

    @pytest.mark.parametrize(
        "batch", [{"a": np.zeros(2), "b": np.zeros(3)}, {"a": np.float32(1)}, np.float32(1)]
    )
    def test_batch_without_a_row_per_example(self, batch):
        with pytest.raises(errors.ConfigError, match="one row for each example"):
            list(results.split_batch(batch))
