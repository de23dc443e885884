"""The process of one contender: takes commands as JSON lines, answers in the same way.

What the libraries print goes to standard error, so that answers stay readable.
"""

import argparse
import importlib
import json
import mmap
import os
import pathlib
import sys
import time
from typing import Any, TextIO

import numpy as np

from benchmarks.table import contender, workload

# Module and class by name; a module is imported only in the environment that has its library.
CONTENDERS = {
    "ours": ("ours", "Ours"),
    "TFRA": ("tfra", "Tfra"),
    "DenseHashTable": ("tensorflow_peers", "DenseHash"),
    "tf.Variable": ("tensorflow_peers", "Variable"),
    "tf.Variable by hand": ("tensorflow_peers", "VariableByHand"),
    "fbgemm": ("torch_peers", "Fbgemm"),
    "EmbeddingBag": ("torch_peers", "EmbeddingBag"),
}

VERIFY_ROWS = 2 * workload.BATCH
# The worst moment of growth is looked for from here on; below, fixed costs would hide it.
GROWN_ROWS = 1_000_000

# A free page goes back to the host after two seconds, so memory is touched again before that.
TOUCH_EVERY_SEC = 0.5
TOUCH_BYTES = 1 << 30  # More than any contender fills until the next time.


def touch(size: int) -> None:
    """Uses and frees memory.

    On a virtual machine the first use of a page that the guest has not used lately takes a detour
    through the host, ten times as long as filling it. That would be measured instead of the table.
    """
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        pages = np.frombuffer(memory, np.uint8)
        pages[:: mmap.PAGESIZE] = 1
        del pages  # The memory cannot be freed while somebody looks at it.


class Worker:
    """Answers the commands; each public method is one."""

    def __init__(self, name: str, threads: int) -> None:
        module, cls = CONTENDERS[name]
        # The library is loaded here, so that its memory is not counted as the table's.
        self._make = getattr(importlib.import_module(f"benchmarks.table.{module}"), cls)
        self._threads = threads
        self._calls: dict[workload.Case, tuple[contender.Call, tuple[int, int, int]]] = {}
        self._next_call: dict[workload.Case, int] = {}

    def wait(self) -> None:
        """Answers once the library is loaded."""

    def verify(self) -> None:
        """Trains two steps on a small table and compares the rows with NumPy's."""
        dim = 16
        small = self._make(VERIFY_ROWS, dim, self._threads)
        ranks = np.arange(VERIFY_ROWS)
        keys = ranks if small.wants_places else workload.ids_of(ranks)
        if not small.wants_places:
            small.insert(keys)
            small.insert_other(keys)
        grads = workload.gradients(workload.BATCH, dim)
        for operation in ("adagrad", "sgd"):
            before = small.read(operation, keys)
            # One batch, twice; the other half of the table stays as it is.
            ids = np.tile(keys[: workload.BATCH], (1, 2, 1))
            call = small.prepare(workload.Case(operation, "unique"), ids)
            call(0)
            expected = before.copy()
            accumulator = np.full_like(grads, workload.INITIAL_ACCUMULATOR)
            for _ in range(2):
                accumulator += grads**2
                scale = np.sqrt(accumulator) if operation == "adagrad" else 1.0
                expected[: workload.BATCH] -= workload.LEARNING_RATE * grads / scale
            np.testing.assert_allclose(
                small.read(operation, keys), expected, rtol=1e-5, atol=1e-7, err_msg=operation
            )

    def create(self, *, rows: int, dim: int, directory: str) -> dict[str, Any]:
        """Makes the table, empty if it can grow; returns whether it can, and its bytes."""
        self._workload = workload.Workload(pathlib.Path(directory), rows)
        before = contender.resident_bytes()
        self._contender = self._make(rows, dim, self._threads)
        return {
            "grows": not self._contender.wants_places,
            "bytes": contender.resident_bytes() - before,
        }

    def fill(self) -> dict[str, Any]:
        """Fills the table, batch by batch.

        Returns:
            seconds: What the inserts took.
            bytes: The memory of the full table.
            worst_bytes_per_row: The greatest ratio of memory to rows on the way, None if the table
                is too small to tell.
            other_bytes: The memory of the second table.
        """
        ids = workload.ids_of(np.asarray(self._workload.fill_ranks))
        seconds, worst, touched = 0.0, None, 0.0
        before = resident = contender.resident_bytes()
        for rows in range(0, len(ids), workload.INSERT_KEYS_PER_CALL):
            if time.monotonic() - touched > TOUCH_EVERY_SEC:
                touch(TOUCH_BYTES + int(self._contender.grows_by * (resident - before)))
                touched = time.monotonic()
            contender.forget_peak()
            seconds += self._contender.insert(ids[rows : rows + workload.INSERT_KEYS_PER_CALL])
            resident = contender.resident_bytes()
            # Against the rows before the call: a peak inside it never looks better than it is.
            if rows >= GROWN_ROWS:
                worst = max(worst or 0.0, (contender.peak_resident_bytes() - before) / rows)
        self._contender.insert_other(ids)
        return {
            "seconds": seconds,
            "bytes": resident - before,
            "worst_bytes_per_row": worst,
            "other_bytes": contender.resident_bytes() - resident,
        }

    def measure(self, *, case: dict[str, Any], seconds: float) -> float:
        """Runs a case for at least that long, at least one call; returns keys per second."""
        key = workload.Case(**case)
        if key not in self._calls:
            make_ids = self._workload.places if self._contender.wants_places else self._workload.ids
            ids = make_ids(key)
            call = self._contender.prepare(key, ids)
            call(len(ids) - 1)  # Traces, and warms up what is slow only once.
            self._calls[key] = call, ids.shape
            self._next_call[key] = 0
        call, (count, steps, batch) = self._calls[key]
        calls = 0
        start = time.perf_counter()
        while True:
            call((self._next_call[key] + calls) % count)
            calls += 1
            elapsed = time.perf_counter() - start
            if elapsed >= seconds:
                break
        self._next_call[key] += calls
        return calls * steps * batch / elapsed


def serve(worker: Worker, answers: TextIO) -> None:
    """Answers commands until standard input ends; an error is an answer, too."""
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        try:
            answer = {"ok": getattr(worker, name)(**command)}
        except Exception as error:  # noqa: BLE001, whatever it is belongs into the report
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contender", choices=CONTENDERS, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(Worker(args.contender, args.threads), answers)


if __name__ == "__main__":
    main()
