"""The models that all contenders train, the batches they train on, and the jobs that do it.

Works in every environment: only NumPy.
"""

import pathlib
from typing import NamedTuple

import numpy as np

BATCH = 4096
HIDDEN = (256, 64)
LEARNING_RATE = 0.05
INITIAL_ACCUMULATOR = 0.1

USERS = 1_000_000
# Of movies, and of every feature beyond users and movies.
OTHERS = 100_000
BATCHES = 100

# Steps that a peer runs inside one call, so that Python costs it next to nothing.
STEPS_PER_CALL = 10


class Model(NamedTuple):
    """Features, a table each, and a network of `HIDDEN` above them.

    Attributes:
        features: How many have one id in each example.
        dim: Width of all rows.
        history: How many ids one more feature has, the movies that a user has seen. They use the
            rows of the movies, and their mean is taken. 0: there is none.
    """

    features: int
    dim: int
    history: int = 0

    def __str__(self) -> str:
        history = f" and {self.history} movies" if self.history else ""
        return f"{self.features} features{history} of dim {self.dim}"

    def count_rows(self, feature: int) -> int:
        """Returns how many different ids a feature has."""
        return USERS if feature == 0 else OTHERS

    def count_batches(self) -> int:
        """Returns how many of the batches all contenders take: ids are constants in our graph."""
        return max(10, BATCHES * 20 // max(20, self.features + self.history))


# The number of the feature whose rows a history uses.
MOVIE = 1

# The demo's model, one as wide as models for advertisements are, and one that knows what a user has
# seen, where the network is not most of a step.
MODELS = (Model(2, 32), Model(20, 8), Model(2, 32, 50))


class Shape(NamedTuple):
    """How many processes of each kind a job has; no server means one process."""

    servers: int
    workers: int

    def __str__(self) -> str:
        return f"{self.servers} + {self.workers}" if self.servers else "in-process"

    def choose_threads(self, cores: int) -> int:
        """Returns how many threads an op gets, in every contender: workers share the cores."""
        return max(1, cores // self.workers)


ONE_PROCESS = Shape(0, 1)
SHAPES = (Shape(1, 1), Shape(2, 1), Shape(2, 2))


class Batches(NamedTuple):
    """Numbers of users and movies from 0, int64 `[batches, BATCH]`, and labels, float32."""

    users: np.ndarray
    movies: np.ndarray
    labels: np.ndarray

    def get_numbers(self, feature: int) -> np.ndarray:
        """Returns what a feature has in each example: users, movies, then mixtures of both."""
        if feature == 0:
            return self.users
        if feature == 1:
            return self.movies
        return (self.users * (2 * feature + 1) + self.movies) % OTHERS

    def draw_history(self, length: int) -> np.ndarray:
        """Returns movies for each example, as popular as they are: `[batches, BATCH, length]`.

        Every process draws the same ones.
        """
        rng = np.random.default_rng(length)
        return rng.choice(self.movies.ravel(), (*self.movies.shape, length))


def save(batches: Batches, path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **batches._asdict())


def load(path: pathlib.Path, model: Model) -> Batches:
    with np.load(path) as arrays:
        return Batches(**{name: arrays[name][: model.count_batches()] for name in arrays.files})
