"""One process of a job.

`run` is what a launcher starts (`monolith.cluster.local`), `take_part` what both it and
`monolith train --role` do then. `explain` says which errors are the answer to what somebody has
asked for: they are told in a sentence, without a trace.
"""

import dataclasses
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

import monolith
from monolith import errors
from monolith.cluster import meeting
from monolith.cluster.discovery import ServiceDiscovery, TfConfigServiceDiscovery
from monolith.cluster.local.supervisor import FAILED, FIGURES, REFUSED
from monolith.core import silence
from monolith.graph import quiet
from monolith.training.config.cluster import MemberSettings
from monolith.training.distributed import plan
from monolith.training.distributed.recovery import JobFailedError
from monolith.training.estimator import Estimator
from monolith.training.hooks.watch import Figures, Reporter, WatchHook
from monolith.training.launch import targets, work
from monolith.training.launch.work import Work
from monolith.training.runner import RunnerConfig
from monolith.training.tables.members import NodeAliveCheckerError

# How many servers are started beyond those of `num_ps`.
SPARES = ("num_extra_ps", "num_redundant_ps")

_LOG_FORMAT = "%(asctime)s %(levelname).1s %(message)s"
_REPORT_EVERY_SEC = 1.0
_MOST_THREADS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """The part of a process in a job.

    Attributes:
        role: "ps" or "worker".
        index: Its number in that role.
        num_ps: How many servers the job has.
        num_workers: How many workers, with the chief.
        model_dir: The directory that all share.
        run: Another one for each run of the job; may be empty.
        max_retries: How often a worker goes on after the members have changed.
        num_threads: How many threads an op may use, unless the settings say so; None leaves that
            to them.
    """

    role: str
    index: int
    num_ps: int
    num_workers: int
    model_dir: str
    run: str = ""
    max_retries: int | None = None
    num_threads: int | None = None


def take_part(
    what: Work,
    part: Part,
    discovery: ServiceDiscovery,
    report: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """Takes part in a job, and returns when it is over for this process.

    Args:
        what: What the job trains.
        part: What this process is in it.
        discovery: Where its members meet.
        report: Gets the figures of a worker, now and then.
    """
    conf = make_config(what, part)
    if isinstance(discovery, TfConfigServiceDiscovery):
        conf.server_type, conf.index = discovery.server_type, discovery.index
    is_chief = (conf.server_type, conf.index) == ("worker", 0)
    reporters = what.make_reporters(part.model_dir) if is_chief else []
    if report is not None:
        reporters.append(_FiguresReporter(report))
    with tf.Graph().as_default(), quiet.quiet_tensorflow():
        estimator = Estimator(what.make_model(conf.server_type), conf)
        hooks = [*([WatchHook(reporters)] if reporters else []), *what.hooks]
        estimator.take_part(discovery, what.steps, what.max_steps, hooks)


def make_config(what: Work, part: Part) -> RunnerConfig:
    """Returns the settings of a member; what the work leaves open is chosen for it.

    Args:
        what: What the job trains.
        part: What this process is in it.
    """
    conf = what.make_config()
    conf.is_local = False
    conf.server_type, conf.index = part.role, part.index
    conf.num_ps, conf.num_workers = part.num_ps, part.num_workers
    conf.model_dir, conf.uuid = part.model_dir, part.run
    # Workers that do every step together go back together.
    if conf.partial_recovery is None and not conf.enable_partial_sync_training:
        conf.partial_recovery = True
    if part.max_retries is not None:
        # The launcher counts, and it is here in a moment.
        conf.max_retry_times, conf.retry_wait_in_secs = max(part.max_retries, 1), 0
    if part.num_threads is not None:
        num_threads = min(part.num_threads, _MOST_THREADS)
        if conf.intra_op_parallelism_threads == MemberSettings.intra_op_parallelism_threads:
            conf.intra_op_parallelism_threads = num_threads
        if conf.inter_op_parallelism_threads == MemberSettings.inter_op_parallelism_threads:
            conf.inter_op_parallelism_threads = 2 * num_threads
    return conf


def count_servers(what: Work, *names: str) -> int:
    """Returns the sum of some numbers of servers, which a `RunConfig` leaves at 0."""
    return sum(getattr(what.config, name, 0) for name in names)


def load_code() -> None:
    """Loads what members use of this package, and notes which code that is; before they are forked.

    Files may change while a job runs. A member that is started again has the code that was loaded
    here, as all others have, and must not say that it has what is on disk by then.
    """
    for name in monolith.__all__:
        getattr(monolith, name)
    plan.describe_code()


def explain(error: BaseException) -> str | None:
    """Returns the sentence of an error that was raised on purpose, None for any other one."""
    if isinstance(error, errors.MonolithError) and not isinstance(error, NodeAliveCheckerError):
        return " ".join(str(error).split())
    return None


def run(arguments: Mapping[str, Any], report: int, given: int) -> int:
    """Runs as a member that a launcher has started; returns the exit code.

    Args:
        arguments: `part`, the fields of a `Part`; `process`, see `prepare`; `discovery`, a
            directory; and `target`, the arguments of `targets.find_work`, or None if the work is
            what was given.
        report: Descriptor to report to.
        given: Descriptor of a pickle.
    """
    channel = _Channel(report)
    try:
        prepare(arguments["process"])
        what = _find_work(arguments["target"], given)
        part = Part(**arguments["part"])
        # Those that are measured must be there; redundant ones may stay away for good.
        num_measured = part.num_ps + count_servers(what, "num_extra_ps")
        sizes = {"ps": num_measured, "worker": part.num_workers}
        discovery = meeting.LocalDiscovery(arguments["discovery"], sizes)
        try:
            take_part(what, part, discovery, lambda figures: channel.send(FIGURES, figures))
        finally:
            discovery.close()
    except Exception as error:  # noqa: BLE001 - the outermost frame; it is told
        if isinstance(error, JobFailedError) and arguments["part"]["role"] == "ps":
            return 0  # The chief has dismissed it, and is about to say itself what is wrong.
        return _tell(error, channel)
    return 0


def look(arguments: Mapping[str, Any], report: int, given: int) -> int:
    """Finds out about a target for a launcher that has not imported it; returns the exit code."""
    channel = _Channel(report)
    try:
        prepare(arguments["process"])
        what = _find_work(arguments["target"], given)
        found = {
            "name": what.name,
            "model_dir": what.config.model_dir,
            "num_ps": what.config.num_ps,
            "num_workers": what.config.num_workers,
            "num_spare_ps": count_servers(what, *SPARES),
            # A `RunConfig` cannot ask for that.
            "only_features": getattr(what.config, "only_feature_engineering", False),
        }
    except Exception as error:  # noqa: BLE001 - as above
        return _tell(error, channel)
    channel.send("found", found)
    return 0


def prepare(process: Mapping[str, Any]) -> None:
    """Makes this process like the one that has started the job.

    Args:
        process: What `monolith.cluster.local.start.describe_process` returns.
    """
    sys.path[:] = process["path"]
    os.chdir(process["directory"])
    set_up_logging(process["level"])


def set_up_logging(level: int) -> None:
    """Has this process log to the standard error, TensorFlow only what went wrong."""
    logging.basicConfig(format=_LOG_FORMAT, datefmt="%H:%M:%S", level=level, force=True)
    for name in ("tensorflow", "absl"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # That there is no GPU is told as an error by whoever asks first, and servers do.
    with silence.silenced_stderr():
        tf.config.list_physical_devices("GPU")


def _find_work(target: Mapping[str, Any] | None, given: int) -> Work:
    if target is None:
        return work.unpickle(os.pread(given, os.fstat(given).st_size, 0))
    return targets.find_work(**target)


def _tell(error: Exception, channel: "_Channel") -> int:
    sentence = explain(error)
    if sentence is None:
        traceback.print_exc()
        text = (str(error).strip().splitlines() or [""])[0]
        channel.send(FAILED, f"{type(error).__name__}: {text}")
    elif isinstance(error, JobFailedError):
        # It ends with its chief, which says why; or others may go on without it.
        channel.send(FAILED, sentence)
    else:
        channel.send(REFUSED, sentence)
    return 1


class _Channel:
    """What a member tells its launcher, as lines of JSON."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "w", closefd=False)

    def send(self, kind: str, content: Any) -> None:
        """Sends something; if the launcher is gone, this process is about to end."""
        try:
            self._file.write(json.dumps({kind: content}) + "\n")
            self._file.flush()
        except OSError:
            pass


class _FiguresReporter(Reporter):
    def __init__(self, report: Callable[[Mapping[str, Any]], None]) -> None:
        self._report = report

    def plan(self, num_steps: int, now_sec: float) -> tuple[float, float]:
        return (1 if num_steps == 0 else float("inf")), now_sec + _REPORT_EVERY_SEC

    def report(self, figures: Figures) -> None:
        self._report(
            {
                "step": figures.step,
                "examples_per_sec": figures.examples_per_sec,
                "steps_per_sec": figures.steps_per_sec,
                "loss": figures.loss,
                "metrics": dict(figures.metrics),
            }
        )
