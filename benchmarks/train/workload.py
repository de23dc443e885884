"""The model that all contenders train, and the batches they train it on.

Works in every environment: only NumPy.
"""

import pathlib
from typing import NamedTuple

import numpy as np

BATCH = 512
DIM = 32
HIDDEN = (256, 64)
LEARNING_RATE = 0.05
INITIAL_ACCUMULATOR = 0.1

USERS = 1_000_000
MOVIES = 100_000
BATCHES = 400

# Steps that a peer runs inside one call, so that Python costs it next to nothing.
STEPS_PER_CALL = 50


class Batches(NamedTuple):
    """Arrays `[batches, BATCH]`: numbers of users and movies from 0, their ids, and labels."""

    users: np.ndarray
    movies: np.ndarray
    user_ids: np.ndarray
    movie_ids: np.ndarray
    labels: np.ndarray


def save(batches: Batches, path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **batches._asdict())


def load(path: pathlib.Path) -> Batches:
    with np.load(path) as arrays:
        return Batches(**arrays)
