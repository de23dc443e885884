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

from monolith import layers
from monolith.data import movies
from monolith.embedding import entry
from monolith.model import ranking
from monolith.training import estimator

BATCH_SIZE = 512
HELD_OUT = 40_960
FEATURES = ["user", "movie", "genres"]
WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))


class DeepFm(ranking.MonolithModel):
    """Weights, pairs and a network, added up."""

    def input_fn(self, mode):
        held_out = HELD_OUT if mode == estimator.ModeKeys.EVAL else None
        return movies.dataset(WORLD, batch_size=BATCH_SIZE, held_out=held_out)

    def model_fn(self, features, mode):
        for name in FEATURES:
            self.create_embedding_feature_column(name)
        weights = self.lookup_embedding_slice(
            FEATURES,
            slice_name="weight",
            slice_dim=1,
            initializer=entry.ZerosInitializer(),
            optimizer=entry.FtrlOptimizer(0.2, initial_accumulator_value=0.1),
            out_type="add_n",
        )
        vectors = self.lookup_embedding_slice(
            FEATURES,
            slice_name="vector",
            slice_dim=16,
            optimizer=entry.AdagradOptimizer(0.1, initial_accumulator_value=0.1),
        )
        deep = layers.MLP([128, 64, 1], name="deep")(tf.concat(vectors, axis=1))
        logits = weights + layers.FM()(vectors) + deep
        loss, click = ranking.get_sigmoid_loss_and_pred(
            "click", logits, features["label"], BATCH_SIZE, mode=mode
        )
        optimizer = tf.compat.v1.train.AdagradOptimizer(0.02)
        return estimator.EstimatorSpec(features["label"], click, "click", loss, optimizer)


def main() -> None:
    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.logging.set_verbosity("ERROR")
    with tempfile.TemporaryDirectory() as model_dir:
        config = estimator.RunConfig(is_local=True, model_dir=model_dir)
        ranking = estimator.Estimator(DeepFm(), config)
        ranking.train()
        metrics = ranking.evaluate()
    best = movies.best_auc(WORLD.held_out(HELD_OUT).probability)
    print(f"AUC {metrics['click_auc']:.4f}; no model can exceed {best:.4f}")


if __name__ == "__main__":
    main()
