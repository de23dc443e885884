"""What it costs to watch a training with a progress line and summaries, as a share of its steps.

One training is watched, and its own steps are compared: the hook looks at the predictions of some
steps and not at those of others, in turns of some dozens, so that both have the same model, memory
and neighbours. In CPU time of the thread that trains, which moves less than time itself on a busy
machine; reports, which are rare, in time.

Run: `python -m benchmarks.watching`, or with `--plain` to log the line instead of drawing it.
"""

import argparse
import io
import statistics
import tempfile
import time
from typing import Any

import rich.console
import tensorflow as tf

from benchmarks.train import ours, run
from monolith.training.estimator import Estimator, RunConfig
from monolith.training.hooks import progress, summaries, watch

WARM_UP_STEPS = 400
# A step in which the hook took longer than that has made a report.
REPORT_MICROS = 300.0


class Measured(watch.WatchHook):
    """Notes, of each step, its microseconds, the hook's own, and whether it was looked at."""

    def __init__(self, reporters: list[watch.Reporter], num_steps: int) -> None:
        super().__init__(reporters)
        self._most = num_steps
        self.steps: list[tuple[float, float, bool]] = []
        self._began: float | None = None
        self.began_sec = self.ended_sec = 0.0

    def before_run(self, run_context: Any) -> Any:
        now = time.thread_time()
        if len(self.steps) == WARM_UP_STEPS:
            self.began_sec = time.perf_counter()
        if self._began is not None:
            self.steps.append(((now - self._began) * 1e6, self._own * 1e6, self._is_looked_at))
        self._began = now
        own_began = time.perf_counter()
        args = super().before_run(run_context)
        self._own = time.perf_counter() - own_began
        self._is_looked_at = args is not None
        return args

    def after_run(self, run_context: Any, run_values: Any) -> None:
        own_began = time.perf_counter()
        super().after_run(run_context, run_values)
        self._own += time.perf_counter() - own_began
        self.ended_sec = time.perf_counter()
        if len(self.steps) >= self._most:
            run_context.request_stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    tf.compat.v1.disable_eager_execution()
    console = rich.console.Console(
        file=io.StringIO(), width=120, height=20, force_terminal=not args.plain
    )
    with tempfile.TemporaryDirectory() as directory:
        reporters = [progress.ProgressLine(console=console), summaries.SummaryWriter(directory)]
        hook = Measured(reporters, args.steps)
        config = RunConfig(is_local=True, model_dir=directory)
        Estimator(ours.RankingModel(run.make_batches()), config).train(hooks=[hook])
    steps = hook.steps[WARM_UP_STEPS:]
    ordinary = [step for step in steps if step[1] < REPORT_MICROS]
    alone = statistics.median(took for took, _, looked_at in ordinary if not looked_at)
    looked_at = statistics.median(took for took, _, looked_at in ordinary if looked_at)
    own = statistics.median(own for _, own, looked_at in ordinary if not looked_at)
    share = sum(looked_at for _, _, looked_at in steps) / len(steps)
    reports = [own for _, own, _ in steps if own >= REPORT_MICROS]
    per_step = own + share * (looked_at - alone)
    in_reports = sum(reports) / 1e6 / (hook.ended_sec - hook.began_sec)
    print(
        f"a step takes {alone:.0f} us; {share:.0%} of them are looked at, which takes "
        f"{looked_at - alone:.0f} us more; {len(reports)} reports took "
        f"{statistics.mean(reports) / 1e3:.1f} ms each"
    )
    print(
        f"watching: {per_step:.1f} us a step, {per_step / alone:.2%}, and {in_reports:.2%} in "
        f"reports: {per_step / alone + in_reports:.2%}; the bar is 1 %"
    )


if __name__ == "__main__":
    main()
