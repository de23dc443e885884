"""MMoE: two tasks that share experts, each through a gate of its own.

Who clicks on a movie, and who watches it to the end? The second is rarer and related to the first:
both tasks learn from the same embeddings and experts, and each weighs the experts for itself.

Needs: the installed package. Run: `python examples/mmoe.py`.
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Only errors of TensorFlow.

import tensorflow as tf

from monolith import layers
from monolith.data import movies
from monolith.embedding import entry
from monolith.model import ranking
from monolith.training import estimator

BATCH_SIZE = 512
TASKS = ["click", "finish"]
WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))


def add_finish(batch):
    """The better a movie fits, the more of those who clicked watch it to its end."""
    fit = tf.squeeze(batch.pop("probability"), axis=1)
    stays = tf.random.uniform([BATCH_SIZE], seed=1) < fit
    return {**batch, "finish": batch["label"] * tf.cast(stays, tf.float32)}


class TwoTasks(ranking.MonolithModel):
    """Four experts, two gates, two heads."""

    def input_fn(self, mode):
        held_out = 40_960 if mode == estimator.ModeKeys.EVAL else None
        return movies.dataset(
            WORLD, batch_size=BATCH_SIZE, held_out=held_out, with_probability=True
        ).map(add_finish)

    def model_fn(self, features, mode):
        for name in ("user", "movie", "genres"):
            self.create_embedding_feature_column(name)
        adagrad = entry.AdagradOptimizer(0.1, initial_accumulator_value=0.1)
        embeddings = self.lookup_embedding_slice(
            ["user", "movie", "genres"], "vector", 16, optimizer=adagrad, out_type="concat"
        )
        towers = layers.MMoE(len(TASKS), num_experts=4, expert_units=[64, 32])(embeddings)
        labels = {"click": features["label"], "finish": features["finish"]}
        losses, preds = [], {}
        for task, tower in zip(TASKS, towers, strict=True):
            logits = layers.Dense(1, name=f"{task}_logits")(tower)
            loss, preds[task] = ranking.get_sigmoid_loss_and_pred(
                task, logits, labels[task], BATCH_SIZE, mode=mode
            )
            losses.append(loss)
        optimizer = tf.compat.v1.train.AdagradOptimizer(0.02)
        return estimator.EstimatorSpec(labels, preds, TASKS, sum(losses), optimizer)


def main() -> None:
    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.logging.set_verbosity("ERROR")
    with tempfile.TemporaryDirectory() as model_dir:
        config = estimator.RunConfig(is_local=True, model_dir=model_dir)
        metrics = estimator.Estimator(TwoTasks(), config).train().evaluate()
    print(", ".join(f"AUC of {task} {metrics[f'{task}_auc']:.4f}" for task in TASKS))


if __name__ == "__main__":
    main()
