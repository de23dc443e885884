"""Discovery from a TF_CONFIG that the job's scheduler wrote before any process started.

Example:
    >>> discovery = TfConfigServiceDiscovery({
    ...     "cluster": {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]},
    ...     "task": {"type": "worker", "index": 1},
    ... })
    >>> discovery.query("worker")
    {0: 'a:1', 1: 'c:1', 2: 'd:1'}
    >>> discovery.index, discovery.addr
    (2, 'd:1')
"""

from collections.abc import Mapping, Sequence
from typing import Any

from monolith import errors
from monolith.cluster.discovery_base import ServiceDiscovery


class TfConfigServiceDiscovery(ServiceDiscovery):
    """Reads who is who from a TF_CONFIG; the chief is worker 0, and the workers follow it.

    Args:
        tf_config: The parsed TF_CONFIG, with "cluster" and "task".

    Raises:
        errors.ConfigError: Here or later, if a part of TF_CONFIG that is needed is missing.
    """

    def __init__(self, tf_config: Mapping[str, Any]) -> None:
        self._cluster = _section(tf_config, "cluster")
        self._task = _section(tf_config, "task")

    def register(self, name: str, index: int, addr: str) -> None:
        """Does nothing: the cluster is known beforehand."""

    def deregister(self, name: str, index: int, addr: str) -> None:
        """Does nothing: the cluster is known beforehand."""

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses of the parameter servers ("ps") or the workers ("worker")."""
        if name == "ps":
            return dict(enumerate(self._addrs("ps")))
        if name == "worker":
            chief = self._addrs("chief") if self._has_chief else []
            # With a chief alone, the job has one worker: the chief.
            workers = self._addrs("worker") if "worker" in self._cluster or not chief else []
            return dict(enumerate([*chief, *workers]))
        raise ValueError("name must be ps/worker")

    @property
    def server_type(self) -> str:
        """What this process is: "ps" or "worker"; the chief is a worker."""
        return "worker" if self._task_type == "chief" else self._task_type

    @property
    def addr(self) -> str:
        """The address of this process."""
        addrs = self._addrs(self._task_type)
        if self._task_index >= len(addrs):
            raise errors.ConfigError(
                f"TF_CONFIG says this process is {self._task_type!r} number {self._task_index}, "
                f"but its cluster has only {len(addrs)} of them."
            )
        return addrs[self._task_index]

    @property
    def index(self) -> int:
        """The number of this process among those of its `server_type`."""
        if self._has_chief and self._task_type == "worker":
            return self._task_index + 1
        return self._task_index

    @property
    def _has_chief(self) -> bool:
        return bool(self._cluster.get("chief"))

    @property
    def _task_type(self) -> str:
        if "type" not in self._task:
            raise errors.ConfigError(f"TF_CONFIG has no 'type' in 'task': {dict(self._task)}.")
        return str(self._task["type"])

    @property
    def _task_index(self) -> int:
        index = self._task.get("index")
        # Some schedulers write the index as text.
        if isinstance(index, str) and index.isdigit():
            index = int(index)
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise errors.ConfigError(
                "TF_CONFIG must have a number of at least 0 as 'index' in 'task': "
                f"{dict(self._task)}."
            )
        return index

    def _addrs(self, job: str) -> list[str]:
        addrs = self._cluster.get(job)
        if isinstance(addrs, str) or not isinstance(addrs, Sequence):
            raise errors.ConfigError(
                f"TF_CONFIG must list the addresses of {job!r} in 'cluster', found {addrs!r}; "
                f"the cluster has {sorted(self._cluster)}."
            )
        return list(addrs)


def _section(tf_config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    if not isinstance(tf_config, Mapping):
        raise errors.ConfigError(
            f"TF_CONFIG must be a dictionary with 'cluster' and 'task', got {tf_config!r}."
        )
    section = tf_config.get(key)
    if not isinstance(section, Mapping):
        raise errors.ConfigError(
            f"TF_CONFIG must have a dictionary under {key!r}, found {section!r}."
        )
    return section
