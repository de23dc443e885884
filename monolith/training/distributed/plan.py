"""What all members of a job must agree on, written by the chief and compared by the others.

Processes with different code, another number of servers or another feature config would train one
model in two ways, or wait for each other for ever. So the chief writes what it is made of to
`<model_dir>/members/plan.json`, and whoever differs ends with one sentence that names the
difference.

Example:
    >>> chief = JobPlan(incarnation="a", settings={"num_ps": 2}, tables={"user": "dims [8]"})
    >>> worker = JobPlan(incarnation="a", settings={"num_ps": 2}, tables={"user": "dims [16]"})
    >>> find_difference(chief, worker)
    "feature 'user' is `dims [8]` at the chief and `dims [16]` here"
"""

import dataclasses
import functools
import hashlib
import json
import logging
import os
import pathlib
import time
import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.lib.io import file_io

from monolith import errors, version
from monolith.cluster import members
from monolith.cluster.members import MemberRecord, Membership, MemberState
from monolith.cluster.progress import WaitProgress
from monolith.embedding.features import dense_allreduce
from monolith.graph import devices
from monolith.native import ops
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.hooks import input_splits
from monolith.training.tables.members import NodeAliveCheckerError
from monolith.training.tables.training import CpuTraining

logger = logging.getLogger(__name__)

# The fact in a member's record that says in which run it takes part.
RUN = "run"

_FILE_NAME = "plan.json"
_POLL_SEC = 0.2
_MAX_TEXT = 60
# What must be the same in all workers, or their graphs would not fit together.
_SETTINGS = (
    "num_ps",
    "num_workers",
    "use_native_multi_hash_table",
    "enable_partial_sync_training",
    "enable_variable_partition",
    "filter_type",
    "filter_capacity",
    "filter_split_num",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What one process would train.

    Attributes:
        incarnation: Of the chief that wrote it.
        run: The same for all chiefs of one job, which may die and be replaced; another one when a
            job has finished and the next begins.
        code: Versions by name.
        settings: Settings by name.
        environment: Variables of the environment by name.
        tables: What the table of each feature is made of.
        table_names: The table of each feature on the servers.
        max_steps: Global step at which the training ends; None if only its input ends it.
        variables: Type, shape and device of each dense variable; None before the graph is built.
    """

    incarnation: str
    run: str = ""
    code: dict[str, str] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    tables: dict[str, str] = dataclasses.field(default_factory=dict)
    table_names: dict[str, str] = dataclasses.field(default_factory=dict)
    max_steps: int | None = None
    variables: dict[str, str] | None = None


def find_difference(
    chief: JobPlan, own: JobPlan, places: tuple[str, str] = ("at the chief", "here")
) -> str | None:
    """Returns in which point a member differs from the chief, None if it does not.

    Args:
        chief: What the chief would train.
        own: What the member would train.
        places: How the text calls where each of them is.
    """
    for what, at_chief, here in (
        ("", chief.code, own.code),
        ("setting", chief.settings, own.settings),
        ("environment variable", chief.environment, own.environment),
        ("feature", chief.tables, own.tables),
        ("variable", chief.variables or {}, own.variables or {}),
    ):
        for name in sorted(at_chief.keys() | here.keys()):
            if at_chief.get(name) != here.get(name):
                label = f"{what} {name!r}" if what else name
                there, text = _show_difference(at_chief.get(name), here.get(name))
                return f"{label} is {there} {places[0]} and {text} {places[1]}"
    return None


@functools.cache
def describe_code() -> dict[str, str]:
    """Returns what the code of this process is: versions, and a digest of this package.

    A checkout may change while its version does not, so the files count, too: as they are at the
    first call, which belongs where the code is loaded. Whoever is forked later has it from there.
    """
    digest = hashlib.sha256()
    root = pathlib.Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    digest.update(pathlib.Path(ops.LIBRARY_PATH).read_bytes())
    return {
        "monolith": f"{version.__version__} ({digest.hexdigest()[:12]})",
        "tensorflow": tf.__version__,
    }


def describe_settings(config: CpuTrainingConfig) -> dict[str, Any]:
    """Returns the settings that all workers must share."""
    settings = {name: getattr(config, name) for name in _SETTINGS}
    return {
        **settings,
        # Nothing said and no are the same.
        "partial_recovery": bool(config.partial_recovery),
        "enable_dynamic_sharding": input_splits.uses_splits(config),
    }


def describe_environment(config: CpuTrainingConfig) -> dict[str, str]:
    """Returns what the environment says that all workers must share."""
    if not config.enable_partial_sync_training:
        return {}
    return dense_allreduce.describe_environment()


def describe_tables(training: CpuTraining) -> dict[str, str]:
    """Returns what the table of each feature is made of."""
    collected = training._collected
    configs = collected.feature_configs
    slots = {
        "thresholds": sorted(collected.slot_to_occurrence_threshold.items()),
        "expiry": sorted(collected.slot_to_expire_time.items()),
    }
    tables = {}
    for name, config in configs.name_to_config.items():
        entry = text_format.MessageToString(config.table_config, as_one_line=True)
        combiner = configs.name_to_combiner[name]
        tables[name] = (
            f"dims {configs.name_to_unmerged_slice_dims[name]} in "
            f"'{collected.feature_to_table[name]}', {type(combiner).__name__}, "
            f"{[str(rate) for rate in config.learning_rate_fns]}, {entry}"
        )
    if tables:
        tables["(all slots)"] = json.dumps(slots)
    return tables


def choose_max_steps(model_dir: str, run: str, train: Any) -> int | None:
    """Returns the global step at which a chief ends; the same for all chiefs of one run.

    Args:
        model_dir: Where the last checkpoint is.
        run: The run of this chief.
        train: `train` of the task's params, with `max_steps`, or with `steps` to add to the step of
            the checkpoint.
    """
    if train.max_steps is not None or train.steps is None:
        return train.max_steps
    before = read_plan(model_dir)
    if before is not None and before.run == run and before.max_steps is not None:
        return before.max_steps
    checkpoint = tf.train.latest_checkpoint(model_dir)
    if checkpoint is None:
        return int(train.steps)
    step = tf.train.load_variable(checkpoint, tf.compat.v1.GraphKeys.GLOBAL_STEP)
    return int(step) + int(train.steps)


def describe_variables(graph: tf.Graph) -> dict[str, str]:
    """Returns type, shape and device of the variables that a worker trains.

    Those that are not on servers each worker has itself, so that it does not matter where.
    """
    with graph.as_default():
        variables = tf.compat.v1.trainable_variables()
    return {
        v.op.name: f"{v.dtype.base_dtype.name} {v.shape}"
        + (f" on {v.device}" if devices.is_on_server(v.device) else "")
        for v in variables
    }


def write_plan(model_dir: str, plan: JobPlan) -> None:
    """Publishes the plan of the chief."""
    path = _get_path(model_dir)
    tf.io.gfile.makedirs(os.path.dirname(path))
    text = json.dumps(dataclasses.asdict(plan), indent=1, sort_keys=True)
    file_io.atomic_write_string_to_file(path, text)


def read_plan(model_dir: str) -> JobPlan | None:
    """Returns the plan that the last chief wrote, None if there is none."""
    try:
        values = json.loads(file_io.read_file_to_string(_get_path(model_dir)))
        return JobPlan(**values)
    except (tf.errors.OpError, OSError):
        return None
    except (TypeError, ValueError) as error:
        logger.warning("ignoring %s: %s", _get_path(model_dir), error)
        return None


def choose_run(model_dir: str) -> str:
    """Returns the run that a chief begins, or goes on with; before it writes its record.

    A chief that takes the place of one that has not finished goes on with its run, in which some
    workers may have finished already.
    """
    chief, plan = members.read_member(model_dir, "worker", 0), read_plan(model_dir)
    if chief is None or plan is None or chief.state is MemberState.FINISHED:
        return uuid.uuid4().hex
    return plan.run or uuid.uuid4().hex


def check_plan(
    model_dir: str,
    chief: MemberRecord,
    own: JobPlan,
    member: Membership,
    timeout_sec: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> JobPlan:
    """Compares what this worker would train with the plan of the chief; waits until it is there.

    Args:
        model_dir: Where the chief writes it.
        chief: The chief whose plan counts.
        own: The plan of this worker; its incarnation does not count.
        member: This worker.
        timeout_sec: How long to wait.
        sleep: Waits for some seconds.

    Returns:
        The plan of the chief.

    Raises:
        errors.ConfigError: They differ.
        NodeAliveCheckerError: The chief has failed or does not write its plan.
    """
    progress = WaitProgress(logger)
    deadline_sec = time.monotonic() + timeout_sec
    while True:
        plan = read_plan(model_dir)
        is_there = plan is not None and plan.incarnation == chief.incarnation
        if plan is not None and is_there and (own.variables is None or plan.variables is not None):
            break
        current = members.read_member(model_dir, "worker", 0)
        if current is not None and current.incarnation != chief.incarnation:
            raise NodeAliveCheckerError(f"the chief at {chief.address} was replaced")
        if current is not None and not current.is_active:
            raise NodeAliveCheckerError(f"the chief at {chief.address} is {current.state.value}")
        if members.is_refused(chief.address) or time.monotonic() > deadline_sec:
            raise NodeAliveCheckerError(f"the chief at {chief.address} is unreachable")
        progress.report("Waiting for the chief to say what it trains.")
        sleep(_POLL_SEC)
    difference = find_difference(_without_more(plan, own), own)
    if difference is not None:
        member.update(MemberState.FAILED, difference)
        raise errors.ConfigError(
            f"{member.record.name.capitalize()} does not fit the job in {model_dir}: {difference}; "
            "start all members with the same code and settings."
        )
    return plan


def _without_more(plan: JobPlan, own: JobPlan) -> JobPlan:
    """Returns a plan without variables, if those of the other one are not known yet."""
    return plan if own.variables is not None else dataclasses.replace(plan, variables=None)


def _show_difference(at_chief: Any, here: Any) -> tuple[str, str]:
    """Returns both values for a message; of long ones, from where they differ."""
    texts = ["missing" if v is None else str(v) for v in (at_chief, here)]
    if max(map(len, texts)) > _MAX_TEXT:
        pairs = enumerate(zip(*texts, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(map(len, texts)))
        start = max(0, same - _MAX_TEXT // 2)
        texts = [f"...{text[start : start + _MAX_TEXT]}..." for text in texts]
    return texts[0] if at_chief is None else f"`{texts[0]}`", (
        texts[1] if here is None else f"`{texts[1]}`"
    )


def _get_path(model_dir: str) -> str:
    return os.path.join(model_dir, members.DIRECTORY, _FILE_NAME)
