"""Ranks movies for users: who clicks on what, learned from ids alone.

A user, a movie and its genres each have an embedding of 32 numbers, and a small network says how
likely a click is. The data is a synthetic stream in which movies appear and fade, with known
probabilities, so the best possible AUC is known as well. `monolith demo` trains the same model for
longer, on parameter servers, and recommends movies.

Needs: the installed package. Run: `python examples/movies.py`.
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
WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))


class MovieModel(ranking.MonolithModel):
    """Embeddings of user, movie and genres, side by side, into a network."""

    def input_fn(self, mode):
        held_out = HELD_OUT if mode == estimator.ModeKeys.EVAL else None
        return movies.dataset(WORLD, batch_size=BATCH_SIZE, held_out=held_out)

    def model_fn(self, features, mode):
        names = ["user", "movie", "genres"]
        for name in names:
            self.create_embedding_feature_column(name)
        embeddings = self.lookup_embedding_slice(
            names,
            slice_name="vector",
            slice_dim=32,
            optimizer=entry.AdagradOptimizer(0.1, initial_accumulator_value=0.1),
            out_type="concat",
        )
        logits = layers.MLP([256, 64, 1])(embeddings)
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
        ranking = estimator.Estimator(MovieModel(), config)
        ranking.train()
        metrics = ranking.evaluate()
    best = movies.best_auc(WORLD.held_out(HELD_OUT).probability)
    print(f"AUC {metrics['click_auc']:.4f}; no model can exceed {best:.4f}")


if __name__ == "__main__":
    main()
