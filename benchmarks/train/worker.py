"""The process of one contender: takes commands as JSON lines, answers in the same way."""

import argparse
import importlib
import os
import pathlib
from typing import Any

from benchmarks.table.worker import serve
from benchmarks.train import workload

# Module and class by name; a module is imported only in the environment that has its library.
CONTENDERS = {
    "ours": ("ours", "Ours"),
    "Keras 2, sparse": ("tensorflow_peers", "Peer"),
    "Keras 3": ("tensorflow_peers", "Keras3"),
    "TFRA": ("tensorflow_peers", "Tfra"),
}


class Worker:
    """Answers the commands; each public method is one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create(self, *, path: str, users: int) -> list[str]:
        """Builds the model; returns the ways in which it can be trained."""
        module, cls = CONTENDERS[self._name]
        make = getattr(importlib.import_module(f"benchmarks.train.{module}"), cls)
        self._contender = make(workload.load(pathlib.Path(path)), users)
        return list(self._contender.ways)

    def run(self, *, way: str, seconds: float) -> dict[str, Any]:
        """Trains for at least that long."""
        used = os.times()
        steps, elapsed, loss = self._contender.run(way, seconds)
        now = os.times()
        cpu = now.user + now.system - used.user - used.system
        return {
            "examples_per_sec": steps * workload.BATCH / elapsed,
            "cpu_ms_per_step": 1000 * cpu / steps,
            "loss": loss,
        }

    def close(self) -> None:
        self._contender.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contender", choices=CONTENDERS, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.contender != "ours" and args.contender != "Keras 3":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(args.threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = Worker(args.contender)
    serve(worker, answers)
    worker.close()
    os._exit(0)  # Keras' `fit`, in its thread, would never end.


if __name__ == "__main__":
    main()
