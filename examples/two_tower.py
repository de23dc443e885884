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

from monolith import layers
from monolith.data import movies
from monolith.embedding import entry
from monolith.model import ranking
from monolith.training import estimator

BATCH_SIZE = 512
WORLD = movies.World(movies.WorldConfig(num_users=1_000, num_movies=200, num_examples=200_000))
USER = 7  # Who gets recommendations at the end.


class TwoTowers(ranking.MonolithModel):
    """A network and a bias for each side."""

    def input_fn(self, mode):
        if mode == estimator.ModeKeys.PREDICT:  # The user beside every movie.
            all_movies = np.arange(200)
            pairs = movies.Examples(np.full(200, USER), all_movies, all_movies, all_movies)
            columns = WORLD.features(pairs)
            ragged = {
                name: tf.RaggedTensor.from_row_lengths(columns[name].values, columns[name].lengths)
                for name in ("user", "movie", "genres")
            }
            return tf.data.Dataset.from_tensors(ragged)
        held_out = 40_960 if mode == estimator.ModeKeys.EVAL else None
        return movies.dataset(WORLD, batch_size=BATCH_SIZE, held_out=held_out)

    def model_fn(self, features, mode):
        for name in ("user", "movie", "genres"):
            self.create_embedding_feature_column(name)
        adagrad = entry.AdagradOptimizer(0.1, initial_accumulator_value=0.1)
        user = self.lookup_embedding_slice(["user"], "vector", 16, optimizer=adagrad)
        movie = self.lookup_embedding_slice(["movie", "genres"], "vector", 16, optimizer=adagrad)
        user = layers.MLP([64, 17], name="user_tower")(user[0])
        movie = layers.MLP([64, 17], name="movie_tower")(tf.concat(movie, axis=1))
        if mode == estimator.ModeKeys.PREDICT:
            return estimator.EstimatorSpec(None, {"user": user, "movie": movie})
        # The last number of each vector is a bias.
        fit = tf.reduce_sum(user[:, :16] * movie[:, :16], axis=1)
        loss, click = ranking.get_sigmoid_loss_and_pred(
            "click", fit + user[:, 16] + movie[:, 16], features["label"], BATCH_SIZE
        )
        optimizer = tf.compat.v1.train.AdagradOptimizer(0.02)
        return estimator.EstimatorSpec(features["label"], click, "click", loss, optimizer)


def main() -> None:
    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.logging.set_verbosity("ERROR")
    with tempfile.TemporaryDirectory() as model_dir:
        towers = estimator.Estimator(
            TwoTowers(), estimator.RunConfig(is_local=True, model_dir=model_dir)
        )
        metrics = towers.train().evaluate()
        vectors = list(towers.predict())
    scores = [v["user"][:16] @ v["movie"][:16] + v["movie"][16] for v in vectors]
    for movie in np.argsort(scores)[:-4:-1]:
        print(f"user {USER} may like {WORLD.titles[movie]} ({', '.join(WORLD.genres(movie))})")
    print(f"AUC {metrics['click_auc']:.4f}")


if __name__ == "__main__":
    main()
