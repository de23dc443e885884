"""Where the time of our table's ops goes, found by leaving things out.

A step is measured on ids that need more and more of the machinery; what a part costs is the
difference between two of them, so the parts add up to the whole.
"""

from benchmarks.table import workload

# What is measured: operation and ids.
EMPTY = ("lookup nothing", "unique")  # An op without ids: TensorFlow's own costs.
SMALL = ("lookup in an empty table", "unique")  # All memory is in the cache.
ABSENT = ("lookup only", "absent")  # A bucket, no row.
LOOKUP = ("lookup only", "unique")  # A bucket and a row.
HOT_LOOKUP = ("lookup only", "hot")
HOT_UPDATE = ("adagrad only", "hot")  # Beside the line above: the arithmetic.
UPDATE = ("adagrad only", "unique")

CASES = [
    workload.Case(operation, ids)
    for operation, ids in (EMPTY, SMALL, ABSENT, LOOKUP, HOT_LOOKUP, HOT_UPDATE, UPDATE)
]


def split(nanoseconds: dict[workload.Case, float]) -> list[tuple[str, float, float]]:
    """Returns the parts, each with its share of a lookup and of an Adagrad update.

    Args:
        nanoseconds: Per key, for each of `CASES`.
    """

    def of(case: tuple[str, str]) -> float:
        return nanoseconds[workload.Case(*case)]

    arithmetic = of(HOT_UPDATE) - of(HOT_LOOKUP)
    return [
        ("TensorFlow (op, graph)", of(EMPTY), of(EMPTY)),
        ("hash, order, copy", of(SMALL) - of(EMPTY), of(SMALL) - of(EMPTY)),
        ("bucket", of(ABSENT) - of(SMALL), of(ABSENT) - of(SMALL)),
        ("row", of(LOOKUP) - of(ABSENT), of(UPDATE) - of(ABSENT) - arithmetic),
        ("optimizer", 0.0, arithmetic),
        ("all", of(LOOKUP), of(UPDATE)),
    ]
