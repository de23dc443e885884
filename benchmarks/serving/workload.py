"""The model that is served, which is the demo's, and what it is asked.

`python -m benchmarks.serving.workload DIRECTORY` trains and exports it.
"""

import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

MODEL = "ranking"
BATCHES = (1, 32, 256)
# Requests of each size, so that no two that follow each other ask for the same rows.
REQUESTS = 64

USERS = 100_000
MOVIES = 20_000
BATCH = 512
STEPS = 400
FEATURES = ("user", "movie", "genres")


def export(directory: pathlib.Path) -> None:
    """Trains the model on a stream of movies, and writes it with all its rows."""
    import monolith as ml
    from monolith.data import movies

    class Ranking(ml.Model):
        """Embeddings of user, movie and genres, and a small network."""

        def __init__(self) -> None:
            super().__init__()
            self.embed = ml.Embedding(list(FEATURES), dim=32, optimizer=ml.Adagrad(0.1))
            self.mlp = ml.MLP([256, 64, 1])

        def call(self, batch: Mapping[str, Any]) -> Any:
            return ml.BinaryHead("click", self.mlp(self.embed(batch)), batch.get("label"))

    world = _make_world()
    estimator = ml.Estimator(
        Ranking(), str(directory / "model"), optimizer=ml.Adagrad(0.02), progress=False
    )
    estimator.train(lambda: movies.dataset(world, batch_size=BATCH))
    estimator.export(directory / "exported")


def make_inputs(batch: int) -> Iterator[dict[str, np.ndarray]]:
    """Yields the inputs of REQUESTS requests, each of so many examples of the stream."""
    world = _make_world()
    for number in range(REQUESTS):
        columns = world.features(world.examples(number * batch, (number + 1) * batch))
        inputs = {}
        for name in FEATURES:
            inputs[name] = np.asarray(columns[name].values)
            inputs[f"{name}_lengths"] = np.asarray(columns[name].lengths, np.int64)
        yield inputs


def _make_world() -> Any:
    from monolith.data import movies

    config = movies.WorldConfig(num_users=USERS, num_movies=MOVIES, num_examples=BATCH * STEPS)
    return movies.World(config)


if __name__ == "__main__":
    export(pathlib.Path(sys.argv[1]))
