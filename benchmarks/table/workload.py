"""The ids that every contender gets, made once from a seed and handed over as files.

An id is a scrambled 64-bit number. Contenders that cannot store such ids (arrays: tf.Variable,
fbgemm, torch) get a place in [0, rows) for each instead, computed outside the measurement; that is
the hash trick at its best, without a single collision.

Only NumPy is imported: the peers' environments have nothing else in common.
"""

import dataclasses
import pathlib

import numpy as np

SEED = 20240607
ZIPF_EXPONENT = 1.05
BATCH = 4096
LARGE_BATCH = 65536
# How many steps one call into a graph does: enough that what Python does between two calls, up to
# a millisecond, does not hide the table.
STEPS_PER_CALL = {BATCH: 64, LARGE_BATCH: 16}
# The ids of a distribution are drawn in pieces of this size.
PIECE = STEPS_PER_CALL[BATCH] * BATCH
HOT_IDS = 512
# Enough different ids that the rows they touch fit in no cache.
MAX_PIECES = 8
INSERT_KEYS_PER_CALL = 16 * BATCH

LEARNING_RATE = 0.05
INITIAL_ACCUMULATOR = 0.1
INITIAL_VALUE = 0.01

OPERATIONS = ("lookup", "adagrad", "sgd")
DISTRIBUTIONS = ("zipf", "unique")


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing that is measured on a filled table.

    Attributes:
        operation: "lookup", "adagrad" (lookup and update), "sgd" (likewise), or a part of these
            that `time_split` knows.
        ids: "zipf", with duplicates in a batch, or "unique", uniform without duplicates; see also
            `Workload.ids`.
        batch: How many ids a step has.
        repeated: Whether the steps are repeated inside the graph, or called one by one.
    """

    operation: str
    ids: str
    batch: int = BATCH
    repeated: bool = True


def ids_of(ranks: np.ndarray) -> np.ndarray:
    """Returns the scrambled 64-bit ids of ranks: the splitmix64 finalizer, a bijection.

    >>> ids_of(np.array([0, 1])).dtype, len(set(ids_of(np.arange(1000))))
    (dtype('int64'), 1000)
    """
    with np.errstate(over="ignore"):
        z = (ranks.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).view(np.int64)


def gradients(batch: int, dim: int) -> np.ndarray:
    """Returns the gradients [batch, dim] of every step; their values do not matter."""
    return (0.01 * np.sin(np.arange(batch * dim) + 1.0)).astype(np.float32).reshape(batch, dim)


class Workload:
    """The ids for tables of one size, read from the directory that `write` filled.

    Attributes:
        fill_ranks: All ranks, int32 [rows], in the order in which they are inserted.
        ranks: By distribution, int32 [pieces, PIECE].
    """

    def __init__(self, directory: pathlib.Path, rows: int) -> None:
        self.rows = rows
        self.fill_ranks = np.load(directory / f"fill-{rows}.npy", mmap_mode="r")
        self.ranks = {
            name: np.load(directory / f"{name}-{rows}.npy", mmap_mode="r") for name in DISTRIBUTIONS
        }

    def ids(self, case: Case) -> np.ndarray:
        """Returns int64 [calls, steps, batch].

        Beside the two distributions there are two kinds that show where the time goes: "absent",
        ids that no table has, and "hot", so few different ids that their rows stay in the cache.
        """
        if case.ids == "absent":
            ranks = self.ranks["unique"].astype(np.int64) + self.rows
        elif case.ids == "hot":
            few = self.ranks["unique"][:1, :HOT_IDS]
            ranks = np.tile(few, (1, PIECE // HOT_IDS))
        else:
            ranks = self.ranks[case.ids]
        return _cut_into_calls(ids_of(ranks), case.batch)

    def places(self, case: Case) -> np.ndarray:
        """Returns the same as `ids`, as positions in an array of `rows` rows."""
        places = self.fill_ranks[self.ranks[case.ids]].astype(np.int64)
        return _cut_into_calls(places, case.batch)


def _cut_into_calls(keys: np.ndarray, batch: int) -> np.ndarray:
    """Returns [calls, steps, batch]; the last call begins from the front where keys run out."""
    steps = STEPS_PER_CALL[batch]
    return np.resize(keys, (-(-keys.size // (steps * batch)), steps, batch))


def write(directory: pathlib.Path, rows: int) -> None:
    """Makes the workload for tables of `rows` rows, unless the directory has it already."""
    if (directory / f"fill-{rows}.npy").exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng([SEED, rows])
    pieces = max(1, min(MAX_PIECES, rows // PIECE))

    # Inverse transform sampling: rank r has the weight (r + 1) ** -ZIPF_EXPONENT.
    cumulative = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    draws = rng.random((pieces, PIECE)) * cumulative[-1]
    zipf = np.minimum(np.searchsorted(cumulative, draws, side="right"), rows - 1)
    np.save(directory / f"zipf-{rows}.npy", zipf.astype(np.int32))

    # Batches cut from one permutation have no id twice, whatever the batch size.
    ranks = np.arange(rows, dtype=np.int32)
    unique = rng.permutation(ranks)[: pieces * PIECE]
    np.save(directory / f"unique-{rows}.npy", unique.reshape(pieces, PIECE))

    # Last: the file whose presence says that all are there.
    np.save(directory / f"fill-{rows}.npy", rng.permutation(ranks))
