"""DCN v2: explicit feature crosses beside a deep network.

The cross network multiplies features with each other, layer by layer; the deep network finds what
products cannot say. Here they run in parallel, and a last layer weighs both.

Needs: the installed package. Run: `python examples/dcn.py`.
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Only errors of TensorFlow.

import tensorflow as tf

import monolith as ml
from monolith.data import movies

WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))
HELD_OUT = 40_960


class CrossModel(ml.Model):
    """Two crosses of rank 16, and two dense layers."""

    def __init__(self):
        super().__init__()
        self.embed = ml.Embedding(["user", "movie", "genres"], dim=16, optimizer=ml.Adagrad(0.1))
        self.cross = ml.CrossNet(num_layers=2, projection_dim=16)
        self.deep = ml.MLP([128, 64], output_activation="relu")
        self.logits = ml.Dense(1)

    def call(self, batch):
        embeddings = self.embed(batch)
        both = tf.concat([self.cross(embeddings), self.deep(embeddings)], axis=1)
        return ml.BinaryHead("click", self.logits(both), batch.get("label"))


def main() -> None:
    with tempfile.TemporaryDirectory() as model_dir:
        ranking = ml.Estimator(CrossModel(), model_dir, optimizer=ml.Adagrad(0.02))
        ranking.train(lambda: movies.dataset(WORLD))
        metrics = ranking.evaluate(lambda: movies.dataset(WORLD, held_out=HELD_OUT))
    best = movies.best_auc(WORLD.held_out(HELD_OUT).probability)
    print(f"AUC {metrics['click_auc']:.4f}; no model can exceed {best:.4f}")


if __name__ == "__main__":
    main()
