"""MMoE: two tasks that share experts, each through a gate of its own.

Who clicks on a movie, and who watches it to the end? The second is rarer and related to the first:
both tasks learn from the same embeddings and experts, and each weighs the experts for itself.

Needs: the installed package. Run: `python examples/mmoe.py`.
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Only errors of TensorFlow.

import tensorflow as tf

import monolith as ml
from monolith.data import movies

WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))
TASKS = ["click", "finish"]


def make_data(held_out=None):
    """The better a movie fits, the more of those who clicked watch it to its end."""

    def add_finish(batch):
        fit = tf.squeeze(batch.pop("probability"), axis=1)
        stays = tf.random.uniform(tf.shape(fit), seed=1) < fit
        click = batch.pop("label")
        return {**batch, "click": click, "finish": click * tf.cast(stays, tf.float32)}

    return movies.dataset(WORLD, held_out=held_out, with_probability=True).map(add_finish)


class TwoTasks(ml.Model):
    """Four experts, two gates, two heads."""

    def __init__(self):
        super().__init__()
        self.embed = ml.Embedding(["user", "movie", "genres"], dim=16, optimizer=ml.Adagrad(0.1))
        self.experts = ml.MMoE(len(TASKS), num_experts=4, expert_units=[64, 32])
        self.logits = [ml.Dense(1, name=f"{task}_logits") for task in TASKS]

    def call(self, batch):
        towers = self.experts(self.embed(batch))
        return [
            ml.BinaryHead(task, logits(tower), batch.get(task))
            for task, logits, tower in zip(TASKS, self.logits, towers, strict=True)
        ]


def main() -> None:
    with tempfile.TemporaryDirectory() as model_dir:
        estimator = ml.Estimator(TwoTasks(), model_dir, optimizer=ml.Adagrad(0.02))
        metrics = estimator.train(make_data).evaluate(lambda: make_data(held_out=40_960))
    print(", ".join(f"AUC of {task} {metrics[f'{task}_auc']:.4f}" for task in TASKS))


if __name__ == "__main__":
    main()
