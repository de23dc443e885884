"""How a job of several processes is getting on, in one line.

Workers report figures; speeds add up, losses are averaged. On a terminal the line stays at the
bottom, elsewhere it is printed now and then.

Example:
    >>> import io
    >>> display = JobDisplay(io.StringIO(), total_steps=100, plain_every_sec=0)
    >>> for name, step in (("chief", 40), ("worker 1", 42)):
    ...     display.report(name, {"step": step, "examples_per_sec": 500.0, "loss": 0.5})
    >>> display.show([Place("ps", 0), Place("worker", 0), Place("worker", 1)], num_restarts=1)
    >>> print(display.file.getvalue(), end="")
    step 42 of 100, 1,000 examples/s, loss 0.5000, 1 ps, 2 workers, 1 restart
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TextIO

from monolith.cluster.local.supervisor import Place

_PLAIN_EVERY_SEC = 10.0
_REFRESH_SEC = 0.5
# A worker that has been silent for longer is not counted.
_FRESH_SEC = 30.0
_METRICS = {"auc": "AUC", "mse": "MSE", "accuracy": "accuracy"}


class Line(Protocol):
    """A line at the bottom of a terminal."""

    def show(self, text: str) -> bool:
        """Shows a text in the place of the last one; returns whether it could."""

    def close(self) -> None:
        """Gives the terminal back."""


class JobDisplay:
    """Shows steps, speed, loss and metrics of all workers together.

    Args:
        file: Where to print lines.
        total_steps: Global step at which the job ends; None if nobody knows.
        line: The bottom of the terminal; None where there is none.
        plain_every_sec: How often a line is printed then.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        file: TextIO,
        *,
        total_steps: int | None = None,
        line: Line | None = None,
        plain_every_sec: float = _PLAIN_EVERY_SEC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.file = file
        self._total_steps = total_steps
        self._line = line
        self._every_sec = plain_every_sec
        self._clock = clock
        self._figures: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._shown: str | None = None
        self._last_sec = clock()

    def report(self, name: str, figures: Mapping[str, Any]) -> None:
        """Takes the figures of a worker: step, examples_per_sec, loss, metrics, all optional."""
        self._figures[name] = self._clock(), figures

    def show(self, running: Sequence[Place], num_restarts: int) -> None:
        """Shows a line, if it is time."""
        now_sec = self._clock()
        every_sec = _REFRESH_SEC if self._line is not None else self._every_sec
        if now_sec - self._last_sec < every_sec or not self._figures:
            return
        self._last_sec = now_sec
        self._show(self._describe(running, num_restarts))

    def close(self) -> None:
        """Gives the terminal back."""
        if self._line is not None:
            self._line.close()

    def _show(self, text: str) -> None:
        if text == self._shown:
            return
        self._shown = text
        if self._line is not None:
            if self._line.show(text):
                return
            self._line = None
        with contextlib.suppress(OSError, ValueError):
            self.file.write(f"{text}\n")
            self.file.flush()

    def _describe(self, running: Sequence[Place], num_restarts: int) -> str:
        now_sec = self._clock()
        step = max(int(figures.get("step", 0)) for _, figures in self._figures.values())
        fresh = [f for sec, f in self._figures.values() if now_sec - sec <= _FRESH_SEC]
        parts = [f"step {step:,}" + ("" if not self._total_steps else f" of {self._total_steps:,}")]
        for key, unit, digits in (
            ("examples_per_sec", "examples/s", 0),
            ("steps_per_sec", "steps/s", 1),
        ):
            speeds = [f[key] for f in fresh if f.get(key) is not None]
            if speeds:
                # Each worker sees the steps of all, but only its own examples.
                speed = sum(speeds) if key == "examples_per_sec" else max(speeds)
                parts.append(f"{speed:,.{digits}f} {unit}")
                break
        losses = [f["loss"] for f in fresh if f.get("loss") is not None]
        if losses:
            parts.append(f"loss {sum(losses) / len(losses):.4f}")
        names = sorted({name for f in fresh for name in f.get("metrics", {})})
        for name in names:
            values = [f["metrics"][name] for f in fresh if name in f.get("metrics", {})]
            head, _, kind = name.rpartition("_")
            shown = f"{_METRICS.get(kind, kind)} {sum(values) / len(values):.4f}"
            parts.append(shown if len(names) == 1 else f"{head} {shown}")
        for role, one, more in (("ps", "ps", "ps"), ("worker", "worker", "workers")):
            count = sum(place.role == role for place in running)
            parts.append(f"{count} {one if count == 1 else more}")
        if num_restarts:
            parts.append(f"{num_restarts} restart{'s' if num_restarts > 1 else ''}")
        text = ", ".join(parts)
        # Names of heads can hold anything, also what would move the cursor.
        return "".join(c if c.isprintable() else "?" for c in text)


class NoDisplay:
    """Shows nothing."""

    def report(self, name: str, figures: Mapping[str, Any]) -> None:
        """Forgets it."""

    def show(self, running: Sequence[Place], num_restarts: int) -> None:
        """Shows nothing."""

    def close(self) -> None:
        """Does nothing."""
