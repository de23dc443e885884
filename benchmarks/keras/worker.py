"""The process of one contender: takes commands as JSON lines, answers in the same way."""

import argparse
import importlib
import os
from typing import Any

from benchmarks.keras import workload
from benchmarks.table.worker import serve

# Class by name; it is imported in an environment that has its library.
CONTENDERS = {
    "ours": "Ours",
    "ours, Keras' Dense": "OurEmbedding",
    "no embedding": "NoEmbedding",
    "Keras 3": "Contender",
    "Keras 2, sparse": "SparseKeras2",
    "TFRA": "Tfra",
}
OF_KERAS_3 = ("ours", "ours, Keras' Dense", "no embedding", "Keras 3")


class Worker:
    """Answers the commands; each public method is one."""

    def __init__(self, name: str) -> None:
        module = importlib.import_module("benchmarks.keras.contenders")
        self._make = getattr(module, CONTENDERS[name])

    def create(self, *, path: str, most: int, shape: str) -> list[str]:
        """Reads the examples; returns the ways in which the model can be fitted."""
        self._batches = workload.load(path)
        self._contender = self._make(workload.make_features(shape, most))
        return list(workload.WAYS)

    def run(self, *, way: str, seconds: float) -> dict[str, Any]:
        """Fits for about that long."""
        return self._contender.run(self._batches, way, seconds)

    def learn(self, *, path: str) -> float:
        """Fits a new model, and returns its AUC."""
        features = workload.make_features(workload.PAIR, workload.TAUGHT_USERS)
        contender = self._make(features)
        return contender.learn(workload.load(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contender", choices=CONTENDERS, required=True)
    parser.add_argument("--threads", type=int, required=True)
    args = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if args.contender not in OF_KERAS_3:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    os.environ["TF_NUM_INTRAOP_THREADS"] = str(args.threads)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(Worker(args.contender), answers)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
