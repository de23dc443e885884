"""A job to try the manifests with: the model of examples/movies.py, on a synthetic stream.

`monolith train movies:make_job --ps 2 --workers 3 --model-dir DIR` trains it on one machine, from
this directory. Put a module of your own in its place.
"""

import monolith as ml
from monolith.data import movies

WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))


class Ranking(ml.Model):
    """Embeddings of user, movie and genres, side by side, into a network."""

    def __init__(self):
        super().__init__()
        self.embed = ml.Embedding(["user", "movie", "genres"], dim=32, optimizer=ml.Adagrad(0.05))
        self.mlp = ml.MLP([256, 64, 1])

    def call(self, batch):
        return ml.BinaryHead("click", self.mlp(self.embed(batch)), batch.get("label"))


def read():
    """Returns the whole stream; each worker gets its part of it."""
    return movies.dataset(WORLD)


def make_job(model_dir):
    """Returns what is trained, and with which data."""
    return ml.Estimator(Ranking(), model_dir, optimizer=ml.Adagrad(0.02)), read
