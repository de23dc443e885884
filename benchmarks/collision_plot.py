"""Draws the result of `benchmarks.collision`, which it reads from the standard input as JSON.

A program of its own: it is run with an interpreter that has matplotlib, and needs nothing else.
"""

import json
import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

BARS = (
    ("ours", "a row for each id", "#2a7f62"),
    ("hashed", "hashed, a tenth as many rows", "#c96a3b"),
)
WIDTH = 0.38


def main() -> None:
    results = json.load(sys.stdin)
    path = pathlib.Path(sys.argv[1])
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for i, (key, label, color) in enumerate(BARS):
        places = [place + (i - 0.5) * WIDTH for place in range(len(results))]
        bars = axes.bar(places, [r[key] for r in results], WIDTH, label=label, color=color)
        axes.bar_label(bars, fmt="%.3f", label_type="center", color="white", fontsize=10)
    for place, result in enumerate(results):
        best = {"color": "black", "linestyle": "--", "linewidth": 1}
        axes.plot([place - WIDTH, place + WIDTH], [result["best"]] * 2, **best)
    axes.plot([], [], label="best that any model can reach", **best)
    axes.set_xticks(range(len(results)), [f"seed {r['seed']}" for r in results])
    axes.set_ylim(0.5, 1.0)
    axes.set_ylabel("AUC on examples after the stream")
    axes.set_title("Movie clicks: the same model, with and without shared rows")
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
