"""The model of `monolith demo`: which movies a user will click on, learned from ids alone.

`examples/movies.py` is the same model as a program to copy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import layers
from monolith.data import movies
from monolith.embedding import entry
from monolith.model.ranking import MonolithModel, get_sigmoid_loss_and_pred
from monolith.training.estimator import EstimatorSpec, ModeKeys, ServingInputReceiver

BATCH_SIZE = 512
FEATURES = ("user", "movie", "genres")
HEAD = "click"

# Gradients of a mean loss are small; Adagrad has to start with a sum of squares to match.
_ACCUMULATOR = 1e-6


class MovieModel(MonolithModel):
    """Embeddings of user, movie and genres, side by side, into a small network.

    Args:
        world: Whose users and movies.
        start: Example of the stream to begin with.
        stop: Where in the stream to end.
        held_out: Number of examples to evaluate on.
        pairs: Numbers of users and movies to predict for, `[pairs, 2]`.
    """

    def __init__(
        self,
        world: movies.World,
        *,
        start: int = 0,
        stop: int | None = None,
        held_out: int = BATCH_SIZE,
        pairs: Sequence[tuple[int, int]] = (),
    ) -> None:
        super().__init__()
        self._world = world
        self._start = start
        self._stop = stop
        self._held_out = held_out
        self._pairs = np.asarray(pairs, np.int64).reshape(-1, 2)

    def input_fn(self, mode: str) -> tf.data.Dataset:
        if mode == ModeKeys.PREDICT:
            return self._make_candidates()
        if mode == ModeKeys.EVAL:
            return movies.dataset(self._world, batch_size=BATCH_SIZE, held_out=self._held_out)
        return movies.dataset(
            self._world, batch_size=BATCH_SIZE, start=self._start, stop=self._stop
        )

    def model_fn(self, features: Any, mode: str) -> EstimatorSpec:
        for name in FEATURES:
            self.create_embedding_feature_column(name)
        embeddings = self.lookup_embedding_slice(
            FEATURES,
            slice_name="vector",
            slice_dim=32,
            optimizer=entry.AdagradOptimizer(0.1, initial_accumulator_value=_ACCUMULATOR),
            out_type="concat",
        )
        logits = layers.MLP([256, 64, 1])(embeddings)
        label = features.get("label")
        loss, click = get_sigmoid_loss_and_pred(HEAD, logits, label, None, mode=mode)
        if loss is not None:
            loss /= BATCH_SIZE  # The mean, which is easier to read than the sum.
        optimizer = tf.compat.v1.train.AdagradOptimizer(0.02, _ACCUMULATOR)
        return EstimatorSpec(label, click, HEAD, loss, optimizer)

    def serving_input_receiver_fn(self) -> ServingInputReceiver:
        """Returns what the exported model is asked: numbers of users and movies, for their ids."""
        user = tf.compat.v1.placeholder(tf.int64, [None], name="user")
        movie = tf.compat.v1.placeholder(tf.int64, [None], name="movie")
        genres = tf.gather(self._world.movie_genres, movie)
        features = {
            "user": to_ragged(tf.gather(self._world.user_ids, user)),
            "movie": to_ragged(tf.gather(self._world.movie_ids, movie)),
            "genres": tf.ragged.boolean_mask(
                tf.gather(self._world.genre_ids, tf.maximum(genres, 0)), genres >= 0
            ),
        }
        return ServingInputReceiver(features, {"user": user, "movie": movie})

    def _make_candidates(self) -> tf.data.Dataset:
        nothing = np.zeros(len(self._pairs), np.float32)
        pairs = movies.Examples(self._pairs[:, 0], self._pairs[:, 1], nothing, nothing)
        columns: Any = self._world.features(pairs)
        ids = {
            name: tf.RaggedTensor.from_row_lengths(columns[name].values, columns[name].lengths)
            for name in FEATURES
        }
        return tf.data.Dataset.from_tensors(ids)


def to_ragged(ids: tf.Tensor) -> tf.RaggedTensor:
    """Returns ids `[n]` as rows of one id each."""
    return tf.RaggedTensor.from_tensor(ids[:, tf.newaxis])
