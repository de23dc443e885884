"""How a training process runs: where it writes, how often, and its place in the cluster.

The place in the cluster comes from the environment variable TF_CONFIG, which whoever starts the
process sets: `{"cluster": {"chief": [...], "ps": [...]}, "task": {"type": "chief", "index": 0}}`.

Example:
    >>> config = GraphRunConfig("/models/ads", save_checkpoints_steps=100)
    >>> config.is_chief, config.master, config.num_ps_replicas
    (True, '', 0)
    >>> config.save_checkpoints_secs is None
    True
"""

import contextlib
import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.core import directories
from monolith.graph import devices

_DEFAULT_SAVE_CHECKPOINTS_SECS = 600

_TF_CONFIG = "TF_CONFIG"

# An evaluator looks at checkpoints from outside, so the cluster does not list it.
_EVALUATOR = "evaluator"


class _NotGiven:
    """Tells an argument that was left out from one that is None."""

    def __repr__(self) -> str:
        return "<default>"


_NOT_GIVEN = _NotGiven()


class GraphRunConfig:
    """Settings of an `GraphEstimator`; they do not change once made, see `replace`.

    Args:
        model_dir: Directory of checkpoints and summaries.
        summary_dir: Directory of summaries, if it is another one.
        tf_random_seed: Seed of the graphs; None takes another one every time.
        session_config: `ConfigProto` of the sessions; None lets the estimator choose.
        save_summary_steps: Steps between two summaries; None writes none.
        save_checkpoints_steps: Steps between two checkpoints.
        save_checkpoints_secs: Seconds between two checkpoints, 600 if neither is given. With None
            here and no steps, the estimator saves nothing on its own.
        log_step_count_steps: Steps between two log lines of loss and speed; None logs none.
        session_creation_timeout_secs: How long a worker waits for the chief to make the model.
        device_fn: Device function of the graphs; None spreads variables over the parameter
            servers of the cluster, if there are any.
        keep_checkpoint_max: How many checkpoints stay; None keeps all.
        num_local_servers: Parameter servers that CPU devices of the session stand for. No port is
            opened for them, and what they hold ends with the session.
        container: Where on servers the variables of the training's graph are. Graphs with other
            containers have variables of their own, also of equal names.

    Raises:
        errors.ConfigError: A setting is not a positive number, both intervals for checkpoints are
            given, or TF_CONFIG does not describe a cluster and a task in it, or describes one
            beside servers in the session.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str] | None = None,
        *,
        summary_dir: str | None = None,
        tf_random_seed: int | None = None,
        session_config: Any = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: int | _NotGiven | None = _NOT_GIVEN,
        save_checkpoints_secs: float | _NotGiven | None = _NOT_GIVEN,
        log_step_count_steps: int | None = 100,
        session_creation_timeout_secs: float = 7200,
        device_fn: Callable[[Any], str] | None = None,
        keep_checkpoint_max: int | None = 5,
        num_local_servers: int = 0,
        container: str = "",
    ) -> None:
        self._model_dir = None if model_dir is None else os.fspath(model_dir)
        self._summary_dir = summary_dir
        self._tf_random_seed = tf_random_seed
        self._session_config = session_config
        self._save_summary_steps = save_summary_steps
        self._set_save_interval(save_checkpoints_steps, save_checkpoints_secs)
        self._log_step_count_steps = log_step_count_steps
        self._session_creation_timeout_secs = session_creation_timeout_secs
        self._device_fn = device_fn
        self._keep_checkpoint_max = keep_checkpoint_max
        self._num_local_servers = num_local_servers
        self._container = container
        self._read_tf_config(os.environ.get(_TF_CONFIG))
        self._check()

    @property
    def container(self) -> str:
        """Where on servers the variables of the training's graph are."""
        return self._container

    @property
    def model_dir(self) -> str | None:
        """Directory of checkpoints and summaries."""
        return self._model_dir

    @property
    def summary_dir(self) -> str | None:
        """Directory of summaries."""
        return self._summary_dir or self._model_dir

    @property
    def tf_random_seed(self) -> int | None:
        """Seed of the graphs."""
        return self._tf_random_seed

    @property
    def session_config(self) -> Any:
        """`ConfigProto` of the sessions, None if it is the estimator's choice."""
        return self._session_config

    @property
    def save_summary_steps(self) -> int | None:
        """Steps between two summaries."""
        return self._save_summary_steps

    @property
    def save_checkpoints_steps(self) -> int | None:
        """Steps between two checkpoints, None if seconds count or nothing is saved."""
        return self._save_checkpoints_steps

    @property
    def save_checkpoints_secs(self) -> float | None:
        """Seconds between two checkpoints, None if steps count or nothing is saved."""
        return self._save_checkpoints_secs

    @property
    def log_step_count_steps(self) -> int | None:
        """Steps between two log lines."""
        return self._log_step_count_steps

    @property
    def session_creation_timeout_secs(self) -> float:
        """How long a worker waits for the chief."""
        return self._session_creation_timeout_secs

    @property
    def device_fn(self) -> Callable[[Any], str] | None:
        """Device function of the graphs, None if it follows from the cluster."""
        return self._device_fn

    @property
    def keep_checkpoint_max(self) -> int | None:
        """How many checkpoints stay."""
        return self._keep_checkpoint_max

    @property
    def num_local_servers(self) -> int:
        """Number of parameter servers that CPU devices of the session stand for."""
        return self._num_local_servers

    @property
    def cluster_spec(self) -> tf.train.ClusterSpec:
        """The cluster of TF_CONFIG, an empty one without it."""
        return self._cluster_spec

    @property
    def task_type(self) -> str:
        """What this process is: "chief", "worker", "ps", "evaluator"."""
        return self._task_type

    @property
    def task_id(self) -> int:
        """Number of this process among those of its type."""
        return self._task_id

    @property
    def is_chief(self) -> bool:
        """Whether this process initializes the model and saves it."""
        return self._is_chief

    @property
    def master(self) -> str:
        """Address of the session's server, empty for a session inside of the process."""
        return self._master

    @property
    def num_ps_replicas(self) -> int:
        """Number of parameter servers, in the cluster or in the session."""
        return self._num_ps_replicas or self._num_local_servers

    def replace(self, **settings: Any) -> "GraphRunConfig":
        """Returns a copy with other settings, in the same place of the same cluster.

        Args:
            settings: Arguments of the constructor. A new interval for checkpoints takes the place
                of the old one, whichever it was.

        Raises:
            errors.ConfigError: There is no such setting, or its value is refused.
        """
        replaced = copy.copy(self)
        intervals = {
            name: settings.pop(name)
            for name in ("save_checkpoints_steps", "save_checkpoints_secs")
            if name in settings
        }
        if intervals:
            replaced._set_save_interval(
                intervals.get("save_checkpoints_steps", _NOT_GIVEN),
                intervals.get("save_checkpoints_secs", _NOT_GIVEN),
            )
        for name, value in settings.items():
            if name not in _SETTINGS:
                raise errors.ConfigError(
                    f"GraphRunConfig has no setting {name!r}; it has "
                    f"{', '.join(sorted(_SETTINGS))}."
                )
            setattr(replaced, f"_{name}", os.fspath(value) if name == "model_dir" else value)
        replaced._check()
        return replaced

    def _set_save_interval(
        self, steps: int | _NotGiven | None, secs: float | _NotGiven | None
    ) -> None:
        has_steps = not isinstance(steps, _NotGiven) and steps is not None
        has_secs = not isinstance(secs, _NotGiven) and secs is not None
        if has_steps and has_secs:
            raise errors.ConfigError(
                "Can not provide both save_checkpoints_steps and save_checkpoints_secs; "
                f"got {steps} and {secs}."
            )
        if not has_steps and isinstance(secs, _NotGiven):
            secs = _DEFAULT_SAVE_CHECKPOINTS_SECS
        self._save_checkpoints_steps = None if isinstance(steps, _NotGiven) else steps
        self._save_checkpoints_secs = None if isinstance(secs, _NotGiven) else secs

    def _check(self) -> None:
        for name in (
            "save_summary_steps",
            "save_checkpoints_steps",
            "save_checkpoints_secs",
            "log_step_count_steps",
            "session_creation_timeout_secs",
        ):
            value = getattr(self, f"_{name}")
            if value is not None and not value > 0:
                raise errors.ConfigError(f"{name} must be above 0, got {value!r}.")
        if self._keep_checkpoint_max is not None and self._keep_checkpoint_max < 0:
            raise errors.ConfigError(
                f"keep_checkpoint_max must not be negative, got {self._keep_checkpoint_max!r}; "
                "None keeps all."
            )
        if self._num_local_servers < 0:
            raise errors.ConfigError(
                f"num_local_servers must not be negative, got {self._num_local_servers!r}."
            )
        if self._num_local_servers and self._master:
            raise errors.ConfigError(
                f"num_local_servers is {self._num_local_servers}, but TF_CONFIG describes a "
                "cluster, which has servers of its own; unset one of the two."
            )
        if self._model_dir == "":
            raise errors.ConfigError("model_dir must not be empty; leave it out or name a path.")
        for name, path in (("model_dir", self._model_dir), ("summary_dir", self._summary_dir)):
            if path is not None:
                directories.check_path(name, path)

    def _read_tf_config(self, text: str | None) -> None:
        tf_config = _parse(text) if text else {}
        cluster = tf_config.get("cluster") or {}
        task = tf_config.get("task") or {}
        self._cluster_spec = _make_cluster_spec(cluster)
        self._num_ps_replicas = len(cluster.get("ps", ()))
        if not cluster:
            # What the process is called does not matter: nobody else is there.
            self._task_type = str(task.get("type", "worker"))
            self._task_id = 0
            self._is_chief = self._task_type != _EVALUATOR
            self._master = ""
            return
        self._task_type, self._task_id = _read_task(cluster, task)
        self._is_chief = self._task_type == "chief"
        self._master = ""
        if self._task_type != _EVALUATOR:
            self._master = "grpc://" + cluster[self._task_type][self._task_id]


_SETTINGS = frozenset(
    {
        "model_dir",
        "summary_dir",
        "tf_random_seed",
        "session_config",
        "save_summary_steps",
        "save_checkpoints_steps",
        "save_checkpoints_secs",
        "log_step_count_steps",
        "session_creation_timeout_secs",
        "device_fn",
        "keep_checkpoint_max",
        "num_local_servers",
        "container",
    }
)


@contextlib.contextmanager
def outside_of_cluster() -> Iterator[None]:
    """Hides the cluster of TF_CONFIG while a block runs, from what is of this process alone."""
    text = os.environ.pop(_TF_CONFIG, None)
    try:
        yield
    finally:
        if text is not None:
            os.environ[_TF_CONFIG] = text


def make_device_fn(config: GraphRunConfig) -> Callable[[Any], str] | None:
    """Returns the device function of a config's graphs, None if ops can be anywhere."""
    if config.device_fn is not None:
        return config.device_fn
    if config.num_ps_replicas == 0:
        return None
    if config.num_local_servers:
        return devices.make_local_device_setter(config.num_local_servers)
    return devices.make_replica_device_setter(config.cluster_spec, config.task_type, config.task_id)


def make_session_config(config: GraphRunConfig) -> Any:
    """Returns the `ConfigProto` of a config's sessions.

    Where it is not given, ops without a kernel for their device go to another one, and a process
    of a cluster only talks to the parameter servers and the chief: it can start while other
    workers are not there yet. Servers in the session get their CPU devices in any case.
    """
    session_config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    if config.session_config is not None:
        session_config.CopyFrom(config.session_config)
    elif config.master:
        filters = ["/job:ps", "/job:chief"]
        if config.task_type == "worker":
            filters.append(f"/job:worker/task:{config.task_id}")
        session_config.device_filters.extend(filters)
    if config.num_local_servers:
        session_config.device_count["CPU"] = config.num_local_servers + 1
    return session_config


def _parse(text: str) -> Mapping[str, Any]:
    try:
        tf_config = json.loads(text)
    except ValueError as e:
        raise errors.ConfigError(f"TF_CONFIG must be JSON, got {text!r}: {e}.") from e
    if not isinstance(tf_config, dict):
        raise errors.ConfigError(
            f"TF_CONFIG must be a dictionary with 'cluster' and 'task', got {tf_config!r}."
        )
    return tf_config


def _make_cluster_spec(cluster: Any) -> tf.train.ClusterSpec:
    if not isinstance(cluster, dict) or not all(
        isinstance(addrs, list) and all(isinstance(addr, str) for addr in addrs)
        for addrs in cluster.values()
    ):
        raise errors.ConfigError(
            "'cluster' of TF_CONFIG must be a dictionary from job names to lists of addresses, "
            f"got {cluster!r}."
        )
    return tf.train.ClusterSpec(cluster)


def _read_task(cluster: Mapping[str, list[str]], task: Any) -> tuple[str, int]:
    """Returns type and index of a process in a cluster."""
    if not isinstance(task, dict) or "type" not in task:
        raise errors.ConfigError(
            "TF_CONFIG must say what this process is, as 'type' and 'index' in 'task'; got "
            f"{task!r}."
        )
    task_type = str(task["type"])
    try:
        task_id = int(task.get("index", 0))
    except (TypeError, ValueError):
        raise errors.ConfigError(
            f"'index' of the task in TF_CONFIG must be a number, got {task['index']!r}."
        ) from None
    if task_type == _EVALUATOR:
        return task_type, task_id
    if task_type not in cluster:
        raise errors.ConfigError(
            f"TF_CONFIG says this process is a {task_type!r}, but its cluster has only "
            f"{sorted(cluster)}."
        )
    if not 0 <= task_id < len(cluster[task_type]):
        raise errors.ConfigError(
            f"TF_CONFIG says this process is {task_type!r} number {task_id}, but its cluster has "
            f"{len(cluster[task_type])} of them, counted from 0."
        )
    return task_type, task_id
