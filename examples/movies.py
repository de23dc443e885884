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

import monolith as ml
from monolith.data import movies

WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))
HELD_OUT = 40_960


class Ranking(ml.Model):
    """Embeddings of user, movie and genres, side by side, into a network."""

    def __init__(self):
        super().__init__()
        self.embed = ml.Embedding(["user", "movie", "genres"], dim=32, optimizer=ml.Adagrad(0.05))
        self.mlp = ml.MLP([256, 64, 1])

    def call(self, batch):
        return ml.BinaryHead("click", self.mlp(self.embed(batch)), batch.get("label"))


def main() -> None:
    with tempfile.TemporaryDirectory() as model_dir:
        ranking = ml.Estimator(Ranking(), model_dir, optimizer=ml.Adagrad(0.02))
        ranking.train(lambda: movies.dataset(WORLD))
        metrics = ranking.evaluate(lambda: movies.dataset(WORLD, held_out=HELD_OUT))
    best = movies.best_auc(WORLD.held_out(HELD_OUT).probability)
    print(f"AUC {metrics['click_auc']:.4f}; no model can exceed {best:.4f}")


if __name__ == "__main__":
    main()
