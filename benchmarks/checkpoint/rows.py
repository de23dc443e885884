"""The rows that every contender saves, made from a seed.

Only NumPy is imported: the environments have nothing else in common.
"""

from collections.abc import Iterator

import numpy as np

from benchmarks.table import workload

DIM = 16
UPDATE_TIME_SEC = 1_700_000_000
ROWS_PER_CALL = 1 << 16
SAMPLE_ROWS = 10_000


def batches(rows: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields ids [n], values and Adagrad accumulators [n, DIM] until there were `rows` rows."""
    rng = np.random.default_rng([workload.SEED, rows])
    for first in range(0, rows, ROWS_PER_CALL):
        ids = workload.ids_of(np.arange(first, min(first + ROWS_PER_CALL, rows)))
        values = rng.standard_normal((len(ids), DIM), np.float32)
        yield ids, values, workload.INITIAL_ACCUMULATOR + values**2


def sample(rows: int) -> np.ndarray:
    """Returns some ids that the table has."""
    rng = np.random.default_rng(workload.SEED)
    return workload.ids_of(rng.choice(rows, min(rows, SAMPLE_ROWS), replace=False))
