"""The models that all contenders train, the batches they train on, and what they start with.

Works in every environment: only NumPy. Batches are a file with a record for each, so that every
library reads them as its users would; initial rows and weights come from seeds, so that all begin
with the same numbers and must reach the same loss.
"""

import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.keras.workload import CRITEO, draw_zipf
from benchmarks.table.workload import ids_of

BATCH = 4096
BATCHES = 100
DIM = 16
NUMBERS = 13
SLOTS = len(CRITEO)
WIDTH = SLOTS * DIM + NUMBERS
HIDDEN = (256, 64)
LEARNING_RATE = 0.05
INITIAL_ACCUMULATOR = 0.1
INITIAL_RANGE = 0.05

# Two crosses of rank 64 beside the layers, as the authors of DCN v2 propose for little cost.
CROSSES, CROSS_RANK = 2, 64
MLP, DCN = "256-64-1", "DCN-v2"
NETWORKS = (MLP, DCN)

# After so many steps from the same start the losses are compared.
COMPARED_STEPS = 50
ROWS_PER_PIECE = 1 << 19

_IDS = (SLOTS, BATCH)
RECORD_BYTES = SLOTS * BATCH * 8 + (NUMBERS + 1) * BATCH * 4


class Batch(NamedTuple):
    """One batch.

    Attributes:
        keys: Ids, or places in arrays, int64 `[SLOTS, BATCH]`.
        numbers: float32 `[BATCH, NUMBERS]`.
        labels: 0 or 1, float32 `[BATCH]`.
    """

    keys: np.ndarray
    numbers: np.ndarray
    labels: np.ndarray


def make_cardinalities(most: int) -> list[int]:
    """Returns how many ids each slot has.

    >>> make_cardinalities(1000)[:4]
    [1000, 583, 1000, 1000]
    """
    return [min(rows, most) for rows in CRITEO]


def write(directory: pathlib.Path, most: int) -> None:
    """Makes the batches for slots of at most so many ids, unless the directory has them."""
    if (directory / "ids.bin").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([20240607, most])
    shape = (BATCHES, BATCH)
    places = np.empty((BATCHES, *_IDS), np.int64)
    logits = np.zeros(shape)
    for slot, rows in enumerate(make_cardinalities(most)):
        ranks = draw_zipf(rng, rows, shape)
        # An array has no order of its ids, either: frequent ones are not neighbours.
        places[:, slot] = rng.permutation(rows)[ranks]
        # What a slot says about the label, so that there is something to learn.
        logits += (ids_of(ranks) % 1000 - 499.5) / 1500
    numbers = rng.random((*shape, NUMBERS), np.float32)
    logits += (numbers @ np.linspace(-1, 1, NUMBERS)).astype(np.float64)
    labels = (rng.random(shape) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    for name, keys in (("places", places), ("ids", ids_of(places))):
        with (directory / f"{name}.bin").open("wb") as file:
            for batch in range(BATCHES):
                for part in (keys[batch], numbers[batch], labels[batch]):
                    file.write(part.tobytes())


def path_of(directory: str, hashed: bool) -> str:
    """Returns the file of batches with 64-bit ids, or with places in arrays."""
    return str(pathlib.Path(directory) / ("ids.bin" if hashed else "places.bin"))


def read(path: str) -> list[Batch]:
    """Returns all batches of a file."""
    batches = []
    for record in np.fromfile(path, np.uint8).reshape(BATCHES, RECORD_BYTES):
        keys, floats = np.split(record, [SLOTS * BATCH * 8])
        numbers, labels = np.split(floats.view(np.float32), [NUMBERS * BATCH])
        batches.append(
            Batch(keys.view(np.int64).reshape(_IDS), numbers.reshape(BATCH, NUMBERS), labels)
        )
    return batches


def initial_rows(slot: int, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields places and what their rows start with, float32 `[n, DIM]`, piece by piece."""
    rng = np.random.default_rng([slot, rows])
    for start in range(0, rows, ROWS_PER_PIECE):
        places = np.arange(start, min(start + ROWS_PER_PIECE, rows))
        values = rng.random((len(places), DIM), np.float32)
        yield places, (2 * values - 1) * np.float32(INITIAL_RANGE)


def initial_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns what a variable of the network starts with: zeros for a bias, Glorot's range else.

    >>> initial_weight("hidden_0", (4, 2)).shape, initial_weight("hidden_0", (2,)).tolist()
    ((4, 2), [0.0, 0.0])
    """
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    limit = np.sqrt(6 / sum(shape))
    seed = list(name.encode())
    return np.random.default_rng(seed).uniform(-limit, limit, shape).astype(np.float32)


def layer_names(network: str) -> list[str]:
    """Returns the names of the layers in the order in which every contender makes them."""
    hidden = [f"hidden_{i}" for i in range(len(HIDDEN))]
    if network == MLP:
        return [*hidden, "logits"]
    return [*(f"cross_{i}_{part}" for i in range(CROSSES) for part in "vu"), *hidden, "logits"]
