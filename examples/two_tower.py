"""Two towers: users and movies become vectors, and who fits whom is a dot product.

A movie's vector does not depend on the user. So all of them can be computed ahead and searched for
those nearest to a user: the way to find a few hundred candidates among millions.

Needs: the installed package. Run: `python examples/two_tower.py`.
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # Only errors of TensorFlow.

import numpy as np
import tensorflow as tf

import monolith as ml
from monolith.data import movies

WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))
USER = 7  # Who gets recommendations at the end.


class TwoTowers(ml.Model):
    """A network and a bias for each side."""

    def __init__(self):
        super().__init__()
        self.user_rows = ml.Embedding("user", dim=16, optimizer=ml.Adagrad(0.05))
        self.movie_rows = ml.Embedding(["movie", "genres"], dim=16, optimizer=ml.Adagrad(0.05))
        self.user_tower = ml.MLP([64, 17], name="user_tower")
        self.movie_tower = ml.MLP([64, 17], name="movie_tower")

    def call(self, batch):
        user = self.user_tower(self.user_rows(batch))
        movie = self.movie_tower(self.movie_rows(batch))
        # The last number of each vector is a bias.
        fit = tf.reduce_sum(user[:, :16] * movie[:, :16], axis=1)
        logits = fit + user[:, 16] + movie[:, 16]
        return ml.BinaryHead("click", logits, batch.get("label"))


def pair_with_all_movies():
    """The user beside every movie."""
    genres = [[WORLD.genre_ids[g] for g in row if g >= 0] for row in WORLD.movie_genres]
    user = np.full(len(genres), WORLD.user_ids[USER])
    columns = {"user": user, "movie": WORLD.movie_ids, "genres": tf.ragged.constant(genres)}
    return tf.data.Dataset.from_tensors(columns)


def main() -> None:
    with tempfile.TemporaryDirectory() as model_dir:
        towers = ml.Estimator(TwoTowers(), model_dir, optimizer=ml.Adagrad(0.02))
        towers.train(lambda: movies.dataset(WORLD))
        metrics = towers.evaluate(lambda: movies.dataset(WORLD, held_out=40_960))
        scores = [p["click"] for p in towers.predict(pair_with_all_movies)]
    for movie in np.argsort(scores)[:-4:-1]:
        print(f"user {USER} may like {WORLD.titles[movie]} ({', '.join(WORLD.genres(movie))})")
    print(f"AUC {metrics['click_auc']:.4f}")


if __name__ == "__main__":
    main()
