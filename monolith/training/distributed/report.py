"""What members tell of themselves while they run: speed, traffic, rows, memory.

A thread of each member looks every few seconds, beside the step, and notes what it finds as facts
in the member's record (`monolith.cluster.members`), with whose next heartbeat they are written.
`monolith status` and the metrics for Prometheus read them there. A step pays for one number that is
fetched with it.

| fact | of | is |
| --- | --- | --- |
| `steps`, `examples` | workers | how many this process has trained on |
| `steps_per_sec`, `examples_per_sec` | workers | the same in the last ten seconds |
| `global_step` | workers | steps of all workers |
| `steps_behind` | workers | updates that a gradient does not know of, see `estimate_staleness` |
| `requests_per_step` | workers | tensors that cross, see `crossings` |
| `sent_bytes`, `received_bytes` | all | what connections with other members have carried |
| `sent_bytes_per_step`, `received_bytes_per_step` | workers | the same in the last ten seconds |
| `rows`, `table_bytes` | servers | of all tables |
| `resident_bytes` | all | memory of the process |
| `facts_sec` | all | when this was so, in seconds since 1970 |
"""

import collections
import contextlib
import dataclasses
import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith.cluster import manager, members, traffic
from monolith.cluster.members import Membership, MemberState
from monolith.embedding.tables import registry
from monolith.embedding.tables.stats import read_stats
from monolith.native import ops
from monolith.training.distributed import crossings
from monolith.training.hooks.step_counts import StepCountHook

logger = logging.getLogger(__name__)

# In the record of the chief: names of the tables on each server, by the server's index.
TABLES = "tables"

_WINDOW_SEC = 10.0
_TIMEOUT_IN_MS = 2_000
# Of a session: the step that tells what it sends. The first ones are slow enough.
_TOLD_STEP = 3
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Mark:
    """Totals of a moment."""

    time_sec: float
    steps: int
    examples: int | None
    global_step: int
    carried: traffic.Traffic


class WorkerReport:
    """Tells what a worker does.

    Args:
        member: This process.
        servers: Addresses of the parameter servers, as this process reaches them.
        steps_in_flight: How many of its own steps lie between the lookup of a batch and its push.
        server_indices: Which member each of the servers is, if this is the chief, which tells them
            the names of their tables.
    """

    def __init__(
        self,
        member: Membership,
        servers: Sequence[str],
        steps_in_flight: int,
        server_indices: Sequence[int] | None = None,
    ) -> None:
        self._member = member
        self._meter = traffic.TrafficMeter(traffic.counts_members(servers, member.record.address))
        self._steps_in_flight = steps_in_flight
        self._server_indices = server_indices
        self._counts = StepCountHook()
        self._marks: collections.deque[_Mark] = collections.deque()
        self._requests_per_step: int | None = None
        # A thread looks, and the end of a session does.
        self._lock = threading.Lock()

    def create_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        """Returns the hooks that count and look."""
        return [self._counts, _LookHook(self)]

    def name_tables(self) -> None:
        """Tells the servers their tables; in the chief, when its graph is built."""
        if self._server_indices is None:
            return
        names: dict[str, list[str]] = {str(index): [] for index in self._server_indices}
        for entry in registry.get_tables():
            if entry.shard.server < len(self._server_indices):
                names[str(self._server_indices[entry.shard.server])].append(entry.name)
        self._member.note({TABLES: names})

    def count_requests(self, graph: tf.Graph, partitions: Sequence[Any]) -> None:
        """Counts what a step has sent, given the graphs of its parts."""
        self._requests_per_step = crossings.count(graph, partitions)

    def look(self, global_step: int) -> None:
        """Notes what has changed."""
        with self._lock:
            self._look(global_step)

    def _look(self, global_step: int) -> None:
        steps, examples = self._counts.totals
        now = _Mark(
            time_sec=time.monotonic(),
            steps=steps,
            examples=examples,
            global_step=global_step,
            carried=self._meter.read(),
        )
        while len(self._marks) > 1 and now.time_sec - self._marks[1].time_sec >= _WINDOW_SEC:
            self._marks.popleft()
        before = self._marks[0] if self._marks else now
        self._marks.append(now)
        self._member.note(
            {
                "steps": now.steps,
                "examples": now.examples,
                "global_step": now.global_step,
                "requests_per_step": self._requests_per_step,
                "sent_bytes": now.carried.sent_bytes,
                "received_bytes": now.carried.received_bytes,
                **_describe_process(),
                **_compare(before, now, self._steps_in_flight),
            }
        )


class ServerReport:
    """Tells what a parameter server holds; a context.

    Args:
        target: The TensorFlow server of this process.
        member: This process.
        model_dir: Where the chief's record is, which names the tables.
        metrics_port: Port of this process that no member of the job talks to.
    """

    def __init__(
        self, target: str, member: Membership, model_dir: str, metrics_port: int | None = None
    ) -> None:
        self._target = target
        self._member = member
        self._model_dir = model_dir
        self._meter = traffic.TrafficMeter(lambda local, remote: local.port != metrics_port)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ServerReport", daemon=True)
        self._names: list[str] = []
        self._session: tf.compat.v1.Session | None = None
        self._stats: Any = None

    def __enter__(self) -> "ServerReport":
        self._member.update(MemberState.RUNNING)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._stop.set()
        # What the thread asks for is in this process, and limited.
        self._thread.join(2 * _TIMEOUT_IN_MS / 1000)
        # What is told of a finished job is how it ended, not how it was a heartbeat before.
        self._look_safely()
        if self._session is not None:
            self._session.close()

    def look(self) -> None:
        """Notes what the tables hold now."""
        carried = self._meter.read()
        facts = {
            "sent_bytes": carried.sent_bytes,
            "received_bytes": carried.received_bytes,
            **_describe_process(),
        }
        # Not before the chief has made them, nor for a model that has none.
        with contextlib.suppress(tf.errors.NotFoundError, tf.errors.FailedPreconditionError):
            facts.update(self._read_tables())
        self._member.note(facts)

    def _run(self) -> None:
        while not self._stop.wait(members.BEAT_SEC):
            self._look_safely()

    def _look_safely(self) -> None:
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - looking goes on whatever happened
            logger.info("this server could not look at itself: %s", error)

    def _read_tables(self) -> dict[str, int]:
        chief = members.read_member(self._model_dir, "worker", 0)
        tables = {} if chief is None else chief.details.get(TABLES, {})
        names = tables.get(str(self._member.record.index), self._names)
        if names != self._names:
            self._connect(names)
        if self._session is None or not names:
            return {}
        rows, num_bytes = self._session.run(self._stats)
        return {"rows": int(rows), "table_bytes": int(num_bytes)}

    def _connect(self, names: Sequence[str]) -> None:
        if self._session is not None:
            self._session.close()
        with tf.Graph().as_default() as graph:
            # Tables of all kinds can be found by name.
            stats = [
                read_stats(ops.read_monolith_multi_hash_table(shared_name=name)) for name in names
            ]
            if not stats:
                return
            self._stats = [
                tf.add_n([tf.reduce_sum(found.rows) for found in stats]),
                tf.add_n([tf.reduce_sum(found.memory_bytes) for found in stats]),
            ]
            config = manager.generate_session_config()
            config.operation_timeout_in_ms = _TIMEOUT_IN_MS
            self._session = tf.compat.v1.Session(self._target, graph=graph, config=config)
        self._names = list(names)


class _LookHook(tf.compat.v1.train.SessionRunHook):
    """Has a thread look while a session is open."""

    def __init__(self, report: WorkerReport) -> None:
        self._report = report

    def begin(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._global_step = tf.compat.v1.train.get_or_create_global_step()
        self._report.name_tables()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._num_steps = 0
        self._partitions: Any = None
        # As the one of `PsHealthCheckerHook`: without a claim on the session.
        thread = threading.Thread(
            target=self._run, args=(weakref.ref(session), coord), name="WorkerReport", daemon=True
        )
        coord.register_thread(thread)
        thread.start()

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs | None:
        self._num_steps += 1
        if self._num_steps != _TOLD_STEP:
            return None
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        return tf.compat.v1.train.SessionRunArgs([], options=options)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        if self._num_steps == _TOLD_STEP:
            self._partitions = run_values.run_metadata.partition_graphs

    def end(self, session: tf.compat.v1.Session) -> None:
        # What is told of a worker that has finished counts all of its steps.
        self._look(session)

    def _run(self, get_session: Any, coord: tf.train.Coordinator) -> None:
        while not coord.wait_for_stop(members.BEAT_SEC):
            session = get_session()
            if session is None:
                return
            self._look(session, coord)
            del session

    def _look(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator | None = None
    ) -> None:
        options = tf.compat.v1.RunOptions(timeout_in_ms=_TIMEOUT_IN_MS)
        try:
            if self._partitions is not None:
                self._report.count_requests(self._graph, self._partitions)
                self._partitions = None
            self._report.look(int(session.run(self._global_step, options=options)))
        except Exception as error:  # noqa: BLE001 - looking goes on whatever happened
            if coord is None or not coord.should_stop():
                logger.info("this worker could not look at itself: %s", error)


def count_steps_in_flight(prefetch_capacity: int, has_postpush: bool) -> int:
    """Returns how many of its own steps a worker makes from the lookup of a batch to its push.

    Without queues, one. With a queue, a batch is looked up while another is trained on and
    `prefetch_capacity` others wait; with post-push its gradients leave with the next step.

    Example:
        >>> count_steps_in_flight(0, False), count_steps_in_flight(1, True)
        (1, 4)
    """
    return (prefetch_capacity + 2 if prefetch_capacity > 0 else 1) + int(has_postpush)


def estimate_staleness(global_steps: int, own_steps: int, steps_in_flight: int) -> float | None:
    """Returns how many updates come between the lookup of a batch and its push, on average.

    While a worker makes one step, all workers together make `global_steps / own_steps`. A batch is
    on its way for `steps_in_flight` steps; its own update is none that it misses.

    Example:
        >>> estimate_staleness(global_steps=40, own_steps=10, steps_in_flight=1)
        3.0
    """
    if own_steps <= 0:
        return None
    return max(0.0, global_steps / own_steps * steps_in_flight - 1)


def _compare(before: _Mark, now: _Mark, steps_in_flight: int) -> Mapping[str, Any]:
    """Returns what has happened between two moments, by second and by step."""
    passed_sec, steps = now.time_sec - before.time_sec, now.steps - before.steps
    if passed_sec <= 0:
        return {}
    facts: dict[str, Any] = {"steps_per_sec": round(steps / passed_sec, 3)}
    if now.examples is not None and before.examples is not None:
        facts["examples_per_sec"] = round((now.examples - before.examples) / passed_sec, 1)
    staleness = estimate_staleness(now.global_step - before.global_step, steps, steps_in_flight)
    if staleness is not None:
        facts["steps_behind"] = round(staleness, 1)
        for name in traffic.Traffic._fields:
            carried = getattr(now.carried, name) - getattr(before.carried, name)
            facts[f"{name}_per_step"] = round(carried / steps)
    return facts


def _describe_process() -> dict[str, Any]:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {"resident_bytes": pages * _PAGE_BYTES, "facts_sec": round(time.time(), 3)}
