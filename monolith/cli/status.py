"""`monolith status MODEL_DIR`: members, speed, rows and checkpoints of a job, alive or dead."""

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import rich.console
import rich.live
import rich.table
import rich.text
import typer

from monolith.core import silence

if TYPE_CHECKING:
    from monolith.checkpoint.inventory import CheckpointInfo
    from monolith.training.distributed.status import JobStatus, MemberStatus

# Wide enough for every table, where no terminal says how wide it is.
_PLAIN_WIDTH = 220
_NOTHING = "-"
_BAD_STATES = ("gone", "silent", "frozen", "failed", "dead", "impaired", "damaged", "unfinished")


def status(
    model_dir: Annotated[
        str, typer.Argument(metavar="MODEL_DIR", help="The model directory of the job.")
    ],
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How often --watch looks.")
    ] = 3.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one line for each look.")
    ] = False,
) -> None:
    """Show the members of a job, how fast they are, what they hold, and its checkpoints.

    A job that is dead is shown as it was last known.
    """
    if "://" not in model_dir and not os.path.isdir(model_dir):
        typer.echo(
            f"error: There is no directory {model_dir!r}; give the model directory.", err=True
        )
        raise typer.Exit(1)
    with silence.silenced_stderr():
        import tensorflow as tf

    from monolith.training.distributed.status import read_status

    is_terminal = sys.stdout.isatty()
    console = rich.console.Console(highlight=False, width=None if is_terminal else _PLAIN_WIDTH)
    try:
        if as_json:
            typer.echo(json.dumps(read_status(model_dir).to_dict()))
            while watch:
                time.sleep(every)
                typer.echo(json.dumps(read_status(model_dir).to_dict()))
            return
        shown = render(read_status(model_dir))
        if not watch:
            console.print(shown)
            return
        with rich.live.Live(
            shown, console=console, auto_refresh=False, vertical_overflow="visible"
        ) as live:
            while True:
                if not is_terminal:
                    console.print(shown)
                time.sleep(every)
                shown = render(read_status(model_dir))
                live.update(shown, refresh=is_terminal)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except tf.errors.OpError as error:
        typer.echo(f"error: {model_dir} cannot be read: {error.message}", err=True)
        raise typer.Exit(1) from None


def render(job: "JobStatus") -> rich.console.Group:
    """Returns a job as tables.

    Args:
        job: What is known of it.
    """
    parts: list[Any] = [_render_head(job)]
    servers = [member for member in job.members if member.role == "ps"]
    workers = [member for member in job.members if member.role != "ps"]
    if servers:
        parts += ["", _render_servers(servers, job.time_sec)]
    if workers:
        parts += ["", _render_workers(workers, job.time_sec)]
    notes = [*_list_messages(job.members), *job.damaged]
    if notes:
        parts += ["", *(rich.text.Text(note) for note in notes)]
    if job.checkpoints:
        parts += ["", _render_checkpoints(job.checkpoints, job.time_sec)]
    return rich.console.Group(*parts)


def _render_head(job: "JobStatus") -> rich.table.Table:
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_row("directory", rich.text.Text(job.model_dir))
    table.add_row("job", _describe_job(job))
    table.add_row("global step", _count(job.global_step))
    speeds = [_number(m.facts.get("examples_per_sec")) for m in job.members if m.is_alive]
    known = [speed for speed in speeds if speed is not None]
    if known:
        table.add_row("examples/s", f"{sum(known):,.0f}")
    table.add_row("controller", rich.text.Text(_describe_controller(job)))
    if not job.checkpoints:
        table.add_row("checkpoints", "none")
    return table


def _describe_job(job: "JobStatus") -> rich.text.Text:
    state = job.state.value
    if not job.members:
        if state == "running":
            return rich.text.Text("running in one process")
        return rich.text.Text("no job of several processes has left a record here")
    text = _style_state(state)
    lost = [m for m in job.members if m.state in ("gone", "silent", "frozen") and not m.is_past]
    if lost:
        last_sec = max(member.seen_sec for member in lost)
        names = ", ".join(f"{_name(member)} {member.state}" for member in lost)
        since = f", last sign of life {_ago(job.time_sec - last_sec)}" if state == "dead" else ""
        text.append(f": {names}{since}")
    return text


def _describe_controller(job: "JobStatus") -> str:
    controller = job.controller
    if controller.address is None:
        return "none"
    if controller.problem:
        return f"{controller.address}: {controller.problem}"
    if not controller.is_paused:
        return controller.address
    waiting = ", ".join(map(str, controller.waiting)) or "none yet"
    return f"{controller.address}: the training is paused, workers that wait: {waiting}"


def _render_servers(servers: Sequence["MemberStatus"], now_sec: float) -> rich.table.Table:
    names = ["rows", "tables", "memory", "sent", "received"]
    table = _make_table("server", names)
    for member in servers:
        facts = member.facts
        table.add_row(
            *_describe_member(member, now_sec),
            _count(facts.get("rows")),
            _size(facts.get("table_bytes")),
            _size(facts.get("resident_bytes")),
            _size(facts.get("sent_bytes")),
            _size(facts.get("received_bytes")),
        )
    return table


def _render_workers(workers: Sequence["MemberStatus"], now_sec: float) -> rich.table.Table:
    names = ["steps", "examples/s", "behind", "requests/step", "sent/step", "received/step"]
    table = _make_table("worker", [*names, "memory"])
    for member in workers:
        facts = member.facts
        behind = facts.get("steps_behind") if member.is_alive else member.steps_missed
        table.add_row(
            *_describe_member(member, now_sec),
            _count(facts.get("steps")),
            _count(facts.get("examples_per_sec") if member.is_alive else None),
            _count(behind, digits=1),
            _count(facts.get("requests_per_step")),
            _size(facts.get("sent_bytes_per_step")),
            _size(facts.get("received_bytes_per_step")),
            _size(facts.get("resident_bytes")),
        )
    return table


def _render_checkpoints(
    checkpoints: Sequence["CheckpointInfo"], now_sec: float
) -> rich.table.Table:
    table = _make_table("checkpoint", [], ["step", "saved", "size", "deltas"])
    table.add_column("state", no_wrap=True)
    for info in checkpoints:
        state = _style_state(info.state.value)
        if info.is_newest:
            state.append(", restored next")
        elif not info.is_listed:
            state.append(", not in the list")
        if info.problem:
            state.append(f": {info.problem}")
        table.add_row(
            info.name,
            _count(info.step),
            _ago(now_sec - info.saved_sec) if info.saved_sec else _NOTHING,
            _size(info.size_bytes),
            _count(info.num_deltas),
            state,
        )
    return table


def _make_table(
    first: str, facts: Iterable[str], columns: Sequence[str] | None = None
) -> rich.table.Table:
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    if columns is None:
        for name in ("state", "address", "host", "pid", "last sign"):
            table.add_column(name, no_wrap=True)
    for name in (*facts, *(columns or ())):
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _describe_member(member: "MemberStatus", now_sec: float) -> list[Any]:
    state = _style_state("earlier job" if member.is_past else member.state)
    return [
        _name(member),
        state,
        rich.text.Text(member.address),
        rich.text.Text(member.host),
        str(member.pid),
        _ago(now_sec - member.seen_sec),
    ]


def _list_messages(members: Iterable["MemberStatus"]) -> list[str]:
    notes = [f"{_name(m)}: {m.message}" for m in members if m.message]
    return notes + [
        f"{_name(m)}: metrics at http://{m.facts['metrics']}/metrics"
        for m in members
        if m.is_alive and "metrics" in m.facts
    ]


def _name(member: "MemberStatus") -> str:
    return "chief" if member.role == "chief" else f"{member.role} {member.index}"


def _style_state(state: str) -> rich.text.Text:
    style = "red" if state in _BAD_STATES else "green" if state == "running" else ""
    return rich.text.Text(state, style=style)


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type]


def _count(value: object, digits: int = 0) -> str:
    number = _number(value)
    return _NOTHING if number is None else f"{number:,.{digits}f}"


def _size(value: object) -> str:
    number = _number(value)
    if number is None:
        return _NOTHING
    for unit in ("B", "KB", "MB", "GB"):
        if abs(number) < 999.5:  # What would be written as 1e+03.
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.0f} TB"


def _ago(seconds: float) -> str:
    """Returns how long ago something was; a clock that goes ahead counts as now."""
    seconds = max(0.0, seconds)
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
