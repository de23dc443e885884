"""How ranks divide the batches, and the least that they must send each other.

Works in every environment: only NumPy.
"""

import numpy as np

from benchmarks.distributed import workload

RANKS = (1, 2, 3)

_ID_BYTES = 8
_FLOAT_BYTES = 4


def count_examples(num_ranks: int) -> int:
    """Returns how many examples a rank has in a step; together at most `workload.BATCH`."""
    return workload.BATCH // num_ranks


def take(batches: workload.Batches, rank: int, num_ranks: int) -> workload.Batches:
    """Returns a rank's part of every batch."""
    count = count_examples(num_ranks)
    part = slice(rank * count, (rank + 1) * count)
    return workload.Batches(*(array[:, part] for array in batches))


def count_least_bytes(batches: workload.Batches, model: workload.Model, num_ranks: int) -> float:
    """Returns the bytes that all ranks send in a step, if nothing is sent that need not be.

    That is each distinct id of a rank and a feature whose row another rank has, the row, and its
    gradient. Which rank that is follows from the id: its remainder.
    """
    distinct_elsewhere = 0
    for rank in range(num_ranks):
        part = take(batches, rank, num_ranks)
        ids_of = [part.get_numbers(feature) for feature in range(model.features)]
        if model.history:
            seen = part.draw_history(model.history)
            ids_of[workload.MOVIE] = np.concatenate([ids_of[workload.MOVIE][..., None], seen], 2)
        for of_table in ids_of:
            for ids in of_table:
                distinct_elsewhere += int(np.sum(np.unique(ids) % num_ranks != rank))
    per_id = _ID_BYTES + 2 * model.dim * _FLOAT_BYTES
    return distinct_elsewhere * per_id / len(batches.labels)
