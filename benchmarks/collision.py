"""What sharing rows costs: the demo's model, once with a row for each id, once with ids hashed.

The hashed model is the same in everything, but has a tenth as many rows as there are ids, so about
ten ids share each. Both are trained on the same stream and evaluated on the same examples after it,
for three seeds; the best AUC that any model can reach is computed from the stream's probabilities.

Run: `make bench-collision`. The plot is written to `build/bench/collision.png`.
"""

import argparse
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import tensorflow as tf

from benchmarks.table import environments
from monolith.cli import demo_model
from monolith.data import movies
from monolith.training.estimator import Estimator, RunConfig

DIRECTORY = pathlib.Path(__file__).resolve().parents[1] / "build" / "bench"
IDS_PER_BUCKET = 10
HELD_OUT = 102_400
# Below this the difference might be chance: AUC on so many examples moves by about 0.001.
CLEAR_MARGIN = 0.01


class HashedModel(demo_model.MovieModel):
    """Users and movies by a bucket of a tenth as many as there are; genres as they are."""

    def input_fn(self, mode: str) -> tf.data.Dataset:
        config = self._world.config
        buckets = {"user": config.num_users, "movie": config.num_movies}

        def hash_ids(batch: dict[str, Any]) -> dict[str, Any]:
            # The ids are spread over 63 bits already, so that the remainder is a fair hash.
            hashed = {
                name: batch[name].with_values(batch[name].values % (number // IDS_PER_BUCKET))
                for name, number in buckets.items()
            }
            return {**batch, **hashed}

        return super().input_fn(mode).map(hash_ids)


def measure(model_class: Any, world: movies.World) -> float:
    """Returns the AUC after the stream."""
    with tempfile.TemporaryDirectory() as model_dir:
        config = RunConfig(is_local=True, model_dir=model_dir)
        trained = Estimator(model_class(world, held_out=HELD_OUT), config).train()
        return float(trained.evaluate()[f"{demo_model.HEAD}_auc"])


def plot(results: list[dict[str, float]], path: pathlib.Path) -> None:
    """Draws the bars, with the interpreter that has matplotlib."""
    python = sys.executable
    if importlib.util.find_spec("matplotlib") is None:
        python = environments.python_of(environments.PLOT, DIRECTORY)
    program = pathlib.Path(__file__).with_name("collision_plot.py")
    subprocess.run(
        [python, str(program), str(path)], input=json.dumps(results), text=True, check=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--examples", type=int, default=movies.WorldConfig().num_examples)
    args = parser.parse_args()
    tf.compat.v1.disable_eager_execution()
    tf.compat.v1.logging.set_verbosity("ERROR")
    results = []
    start = time.monotonic()
    for seed in range(1, args.seeds + 1):
        world = movies.World(movies.WorldConfig(seed=seed, num_examples=args.examples))
        results.append(
            {
                "seed": seed,
                "best": movies.best_auc(world.held_out(HELD_OUT).probability),
                "ours": measure(demo_model.MovieModel, world),
                "hashed": measure(HashedModel, world),
            }
        )
        print(f"seed {seed} done after {time.monotonic() - start:.0f} s", flush=True)
    print("\n| seed | best reachable | a row for each id | hashed, a tenth as many rows | margin |")
    print("| --- | --- | --- | --- | --- |")
    margins = []
    for result in results:
        margins.append(result["ours"] - result["hashed"])
        print(
            f"| {result['seed']} | {result['best']:.4f} | {result['ours']:.4f} | "
            f"{result['hashed']:.4f} | {margins[-1]:.4f} |"
        )
    verdict = "PASS" if min(margins) >= CLEAR_MARGIN else "MISS"
    print(
        f"\n{verdict}: AUC is higher by {statistics.mean(margins):.4f} (at least "
        f"{min(margins):.4f}); the bar is {CLEAR_MARGIN} for every seed"
    )
    path = DIRECTORY / "collision.png"
    try:
        plot(results, path)
    except (environments.Unavailable, subprocess.CalledProcessError) as error:
        sys.exit(f"The plot could not be drawn: {error}")
    print(f"plot: {path}")


if __name__ == "__main__":
    main()
