"""The model that all contenders fit, and the examples they fit it to.

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

MOVIES = 100_000
SPEED_BATCHES = 400
ZIPF = 1.05

# How many ids the 26 slots of the Criteo Kaggle data have.
CRITEO = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)

# For the quality: a world that so many examples teach something about, and those it is asked for.
TAUGHT_USERS, TAUGHT_MOVIES = 10_000, 2_000
TAUGHT_BATCHES, ASKED_BATCHES = 1_200, 200
EPOCHS = 2

# Steps that one call of the train function makes: as Keras does it by default, and many.
WAYS = {"fit": 1, "fit, 50 steps per execution": 50}


class Feature(NamedTuple):
    """A column of ids.

    Attributes:
        name: Its name.
        kind: Features of one kind have the same rows.
        rows: How many ids there are of the kind.
        length: How many ids an example has; 0 is one, without a dimension of its own.
    """

    name: str
    kind: str
    rows: int
    length: int = 0


def make_features(shape: str, most: int) -> list[Feature]:
    """Returns the columns of a model with at most so many ids of a kind."""
    if shape == SLOTS:
        return [Feature(f"c{i}", f"c{i}", min(rows, most)) for i, rows in enumerate(CRITEO)]
    features = [Feature("user", "user", most), Feature("movie", "movie", min(MOVIES, most))]
    if shape == HISTORY:
        features.append(Feature("history", "movie", min(MOVIES, most), 50))
    return features


PAIR, HISTORY, SLOTS = "user, movie", "user, movie, 50 movies", "26 slots"
# The first one is the network and little else; it has no bar.
SHAPES = (PAIR, HISTORY, SLOTS)


class Batches(NamedTuple):
    """Examples in batches.

    Attributes:
        numbers: By feature, which id it is, from 0: `[batches, BATCH]`, or with its length behind.
        ids: The same as 64-bit ids.
        labels: 0 or 1, `[batches, BATCH]`.
    """

    numbers: dict[str, np.ndarray]
    ids: dict[str, np.ndarray]
    labels: np.ndarray

    def part(self, start: int, end: int) -> "Batches":
        return Batches(
            {name: array[start:end] for name, array in self.numbers.items()},
            {name: array[start:end] for name, array in self.ids.items()},
            self.labels[start:end],
        )


def draw_zipf(rng: np.random.Generator, rows: int, shape: tuple[int, ...]) -> np.ndarray:
    """Draws numbers from 0 to `rows`, the first ones most often."""
    # By the inverse of the distribution.
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF
    ends = np.cumsum(weights) / weights.sum()
    return np.searchsorted(ends[:-1], rng.random(shape))


def make_slots(features: list[Feature], num_batches: int) -> Batches:
    """Draws ids of each slot, a few of them often; labels mean nothing."""
    rng = np.random.default_rng(1)
    shape = (num_batches, BATCH)
    numbers, ids = {}, {}
    for feature in features:
        numbers[feature.name] = draw_zipf(rng, feature.rows, shape)
        known = rng.integers(-(2**63), 2**63, feature.rows)
        ids[feature.name] = known[numbers[feature.name]]
    return Batches(numbers, ids, rng.integers(0, 2, shape).astype(np.float32))


def save(batches: Batches, path: pathlib.Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {f"number {name}": array for name, array in batches.numbers.items()}
    arrays |= {f"id {name}": array for name, array in batches.ids.items()}
    np.savez(path, labels=batches.labels, **arrays)


def load(path: str) -> Batches:
    with np.load(path) as arrays:
        numbers, ids = (
            {
                name.removeprefix(prefix): arrays[name]
                for name in arrays.files
                if name.startswith(prefix)
            }
            for prefix in ("number ", "id ")
        )
        return Batches(numbers, ids, arrays["labels"])


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Returns how often an example with label 1 has the higher score; ties count half."""
    labels, scores = labels.ravel() > 0.5, scores.ravel()
    _, ranks, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middles = np.cumsum(counts) - (counts - 1) / 2
    positives = int(labels.sum())
    above = middles[ranks][labels].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (labels.size - positives)))
