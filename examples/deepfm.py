"""DeepFM: a factorization machine and a deep network that share their embeddings.

Each id has two parts in one row: a weight of its own, and a vector. The factorization machine adds
up the weights and the products of all pairs of vectors; the network sees the vectors side by side.
Weights and vectors have different optimizers, FTRL and Adagrad.

Needs: the installed package. Run: `python examples/deepfm.py`.
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Only errors of TensorFlow.

import tensorflow as tf

import monolith as ml
from monolith.data import movies
from monolith.embedding import entry

WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))
HELD_OUT = 40_960
FEATURES = ["user", "movie", "genres"]


class DeepFM(ml.Model):
    """Weights, pairs and a network, added up."""

    def __init__(self):
        super().__init__()
        self.weights = ml.Embedding(
            FEATURES, dim=1, optimizer=ml.FTRL(0.2), initializer=entry.ZerosInitializer()
        )
        self.vectors = ml.Embedding(FEATURES, dim=16, optimizer=ml.Adagrad(0.05), output="stack")
        self.pairs = ml.FM()
        self.deep = ml.MLP([128, 64, 1])

    def call(self, batch):
        vectors = self.vectors(batch)  # [batch, features, dim]
        flat = tf.reshape(vectors, [-1, len(FEATURES) * 16])
        wide = tf.reduce_sum(self.weights(batch), axis=1, keepdims=True)
        logits = wide + self.pairs(vectors) + self.deep(flat)
        return ml.BinaryHead("click", logits, batch.get("label"))


def main() -> None:
    with tempfile.TemporaryDirectory() as model_dir:
        ranking = ml.Estimator(DeepFM(), model_dir, optimizer=ml.Adagrad(0.02))
        ranking.train(lambda: movies.dataset(WORLD))
        metrics = ranking.evaluate(lambda: movies.dataset(WORLD, held_out=HELD_OUT))
    best = movies.best_auc(WORLD.held_out(HELD_OUT).probability)
    print(f"AUC {metrics['click_auc']:.4f}; no model can exceed {best:.4f}")


if __name__ == "__main__":
    main()
