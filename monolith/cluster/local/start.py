"""Starts the members of a job on this machine, and runs it to its end.

What they train is either a pickle that all are given, or has a name that all look up; the process
that starts them need not know it.
"""

import contextlib
import json
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from monolith import errors
from monolith.cluster import narrow
from monolith.cluster.local.display import NoDisplay
from monolith.cluster.local.output import OWN_NAME, LabelledLog
from monolith.cluster.local.processes import Ended, Nursery
from monolith.cluster.local.supervisor import (
    GRACE_SEC,
    Display,
    Outcome,
    Place,
    Supervisor,
    list_places,
)

# Where members of a cluster on one machine listen.
ADDRESS = "127.0.0.1"

# Named, not imported: it brings TensorFlow, which a launcher does not need.
_MEMBER = "monolith.training.launch.member"
_READ_BYTES = 1 << 16


def describe_process(level: int) -> dict[str, Any]:
    """Returns how members become like this process: where they import from, and what they log.

    Args:
        level: Level of their log.
    """
    # The empty entry is the current directory, wherever that will be.
    path = [entry or os.getcwd() for entry in sys.path]
    return {"path": path, "directory": os.getcwd(), "level": level}


@contextlib.contextmanager
def open_nursery(given: bytes = b"") -> Iterator[Nursery]:
    """Starts the process that starts members; at the end of the block, none of them is left."""
    environment = {
        **narrow.get_environment(ADDRESS),
        # What TensorFlow tells about its own start is not what somebody has asked for.
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
    # They are members of this job, not of the one that a scheduler may have told this process of.
    preload = [f"{_MEMBER}:load_code"]
    with Nursery(preload, environment, given, without=["TF_CONFIG"]) as nursery:
        yield nursery


def ask(
    nursery: Nursery, process: Mapping[str, Any], target: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns what a member finds out about a target.

    That is its name, model_dir, num_ps, num_workers; num_spare_ps, how many servers are started
    beyond those; and only_features: whether nothing is trained.

    Raises:
        ConfigError: It cannot be trained, and why.
    """
    arguments = {"process": process, "target": target}
    asked = nursery.start(_MEMBER, "look", arguments)
    log = LabelledLog([OWN_NAME])
    try:
        while not isinstance(event := nursery.wait(0.05), Ended):
            with contextlib.suppress(BlockingIOError):
                log.feed(OWN_NAME, os.read(asked.output, _READ_BYTES))
        with contextlib.suppress(BlockingIOError):
            while text := os.read(asked.output, _READ_BYTES):
                log.feed(OWN_NAME, text)
        log.finish(OWN_NAME)
        report = _read_all(asked.report)
    finally:
        asked.close()
    for line in report.splitlines():
        message = json.loads(line)
        if "found" in message:
            return dict(message["found"])
        raise errors.ConfigError(str(next(iter(message.values()))))
    raise errors.ConfigError(
        f"What to train could not be looked up: the process that did has ended with {event.code}."
    )


def run_job(
    *,
    num_ps: int,
    num_workers: int,
    num_spare_ps: int = 0,
    model_dir: str,
    process: Mapping[str, Any],
    target: Mapping[str, Any] | None = None,
    given: bytes = b"",
    max_restarts: int,
    grace_sec: float = GRACE_SEC,
    display: Display | None = None,
    nursery: Nursery | None = None,
) -> Outcome:
    """Runs a job to its end.

    Args:
        num_ps: How many parameter servers.
        num_workers: How many workers, with the chief.
        num_spare_ps: How many servers are started beyond those; the settings of the target say
            what becomes of them.
        model_dir: The model directory.
        process: What members need to know of this process.
        target: Arguments of `targets.find_work`; None if the work is what is given.
        given: The pickle of the work.
        max_restarts: How often members are started again, in sum.
        grace_sec: How long they have to save after a signal.
        display: Shows how the job is getting on.
        nursery: Starts the members, if there is one already.
    """
    if nursery is None:
        with open_nursery(given) as nursery:
            return run_job(
                num_ps=num_ps,
                num_workers=num_workers,
                num_spare_ps=num_spare_ps,
                model_dir=model_dir,
                process=process,
                target=target,
                max_restarts=max_restarts,
                grace_sec=grace_sec,
                display=display,
                nursery=nursery,
            )
    places = list_places(num_ps + num_spare_ps, num_workers)
    discovery = os.path.join(nursery.directory, "discovery")
    run = uuid.uuid4().hex

    def describe(place: Place) -> dict[str, Any]:
        part = {
            "role": place.role,
            "index": place.index,
            "num_ps": num_ps,
            "num_workers": num_workers,
            "model_dir": model_dir,
            "run": run,
            "max_retries": max_restarts,
            "num_threads": len(os.sched_getaffinity(0)),
        }
        return {"process": process, "target": target, "discovery": discovery, "part": part}

    supervisor = Supervisor(
        nursery,
        places,
        (_MEMBER, "run"),
        describe,
        max_restarts=max_restarts,
        log=LabelledLog([OWN_NAME, *(place.name for place in places)], sys.stderr),
        display=display or NoDisplay(),
        grace_sec=grace_sec,
    )
    return supervisor.run()


def _read_all(descriptor: int) -> bytes:
    pieces = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(descriptor, _READ_BYTES):
            pieces.append(piece)
    return b"".join(pieces)
