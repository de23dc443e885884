"""The process of one contender: takes commands as JSON lines, answers in the same way."""

import argparse
import importlib
import os
from typing import Any

from benchmarks.criteo import workload
from benchmarks.table.worker import serve

# Module and class by name; a module is imported only in the environment that has its library.
CONTENDERS = {
    "ours": ("ours", "Estimator"),
    "torch, fbgemm": ("torch_peers", "Fbgemm"),
    "torch, Embedding": ("torch_peers", "Embedding"),
    "Keras 2, sparse": ("tensorflow_peers", "Keras2"),
    "TFRA": ("tensorflow_peers", "Tfra"),
}


class Worker:
    """Answers the commands; each public method is one."""

    def __init__(self, name: str, threads: int) -> None:
        self._name, self._threads = name, threads

    def create(self, *, directory: str, most: int, network: str) -> float:
        """Makes the model and trains it a little; returns the loss that it has reached."""
        module, cls = CONTENDERS[self._name]
        make = getattr(importlib.import_module(f"benchmarks.criteo.{module}"), cls)
        self._contender = make(directory, most, network, self._threads)
        return self._contender.learn(workload.COMPARED_STEPS)

    def run(self, *, seconds: float) -> dict[str, Any]:
        """Trains for at least that long."""
        used = os.times()
        steps, elapsed = self._contender.run(seconds)
        now = os.times()
        cpu = now.user + now.system - used.user - used.system
        return {
            "examples_per_sec": steps * workload.BATCH / elapsed,
            "cpu_ms_per_step": 1000 * cpu / steps,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contender", choices=CONTENDERS, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.contender != "ours":
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(args.threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(Worker(args.contender, args.threads), answers)  # type: ignore[arg-type]
    os._exit(0)  # A training, in its thread, would go on, and save what nobody wants.


if __name__ == "__main__":
    main()
