"""Where the time of our table's ops goes, found by leaving things out.

A step is measured on ids that need more and more of the machinery; what a part costs is the
difference between two of them, so the parts add up to the whole.
"""

from benchmarks.table import workload

# What is measured: operation and ids.
EMPTY = ("lookup nothing", "unique")  # An op without ids: TensorFlow's own costs.
HOT = ("lookup only", "hot")  # Bucket and row in the cache: the work itself.
SMALL = ("lookup in an empty table", "unique")  # No row, the few buckets in the cache,
ABSENT = ("lookup only", "absent")  # and with a bucket from memory.
LOOKUP = ("lookup only", "unique")  # Bucket and row from memory.
HOT_UPDATE = ("adagrad only", "hot")
UPDATE = ("adagrad only", "unique")

CASES = [
    workload.Case(operation, ids)
    for operation, ids in (EMPTY, HOT, SMALL, ABSENT, LOOKUP, HOT_UPDATE, UPDATE)
]


def split(nanoseconds: dict[workload.Case, float]) -> list[tuple[str, float, float]]:
    """Returns the parts, each with its share of a lookup and of an Adagrad update.

    Args:
        nanoseconds: Per key, for each of `CASES`.
    """

    def of(case: tuple[str, str]) -> float:
        return nanoseconds[workload.Case(*case)]

    bucket = of(ABSENT) - of(SMALL)
    return [
        ("TensorFlow (op, graph)", of(EMPTY), of(EMPTY)),
        ("hash, order, find, copy", of(HOT) - of(EMPTY), of(HOT) - of(EMPTY)),
        ("optimizer", 0.0, of(HOT_UPDATE) - of(HOT)),
        ("bucket from memory", bucket, bucket),
        ("row from memory", of(LOOKUP) - of(HOT) - bucket, of(UPDATE) - of(HOT_UPDATE) - bucket),
        ("all", of(LOOKUP), of(UPDATE)),
    ]
