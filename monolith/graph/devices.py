"""Where ops run: on the CPU unless GPU training was asked for, and on whose CPU.

A model function may ask for a GPU; `default_device_fn` turns that into the CPU of the same process
when the job does not train on GPUs, so that one model function serves both.

Parameter servers are processes of a cluster, `/job:ps/task:0` and so on. A job in one process has
none and opens no port: further CPU devices of its session stand for them. Each has resources of its
own, as a server has, so a graph is the same for both but for the devices.

Example:
    >>> with tf.Graph().as_default(), tf.compat.v1.device(default_device_fn):
    ...     with tf.device("/job:worker/task:0/device:GPU:1"):
    ...         tf.constant(1).device
    '/job:worker/task:0/device:CPU:0'
    >>> get_visible_gpus(local_rank=3, processes_per_gpu=2)
    '1'
    >>> with tf.Graph().as_default():
    ...     place_servers_in_session()
    ...     ps_device(0)
    '/device:CPU:1'
"""

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from absl import flags

from monolith import errors
from monolith.graph import metadata, mpi

FLAGS = flags.FLAGS

PS_JOB_NAME = "ps"

_CPU = "/device:CPU:0"
_GPU = "/device:GPU:0"

# Ops that hold state, which belongs on parameter servers.
_PS_OPS = (
    "Variable",
    "VariableV2",
    "AutoReloadVariable",
    "MutableHashTable",
    "MutableHashTableV2",
    "MutableHashTableOfTensors",
    "MutableHashTableOfTensorsV2",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "VarHandleOp",
)

_GPU_PLACEMENT_ALLOWED = False

DeviceFunction = Callable[[Any], str]


@dataclasses.dataclass
class _Servers:
    """Where the servers of a graph are."""

    are_in_session: bool = False


def ps_device(index: int) -> str:
    """Returns the device of a parameter server, as the default graph places them."""
    if _are_servers_in_session():
        return _get_cpu_of_server(index)
    return f"/job:{PS_JOB_NAME}/task:{index}/device:CPU:0"


def cpu_here() -> str:
    """Returns the CPU of whichever process is chosen around, a server's on a server."""
    # With its number it would be the worker's, where further ones stand for the servers.
    return "/device:CPU:*" if _are_servers_in_session() else _CPU


def place_servers_in_session() -> None:
    """Lets CPU devices of the session stand for the servers of the default graph.

    Call it before the graph is built. Its sessions need one CPU device more than it has servers.
    """
    metadata.get_meta("servers", _Servers).are_in_session = True


def enable_gpu_training() -> None:
    """Lets ops that ask for a GPU have it."""
    global _GPU_PLACEMENT_ALLOWED
    _GPU_PLACEMENT_ALLOWED = True


def disable_gpu_training() -> None:
    """Sends ops that ask for a GPU to the CPU; so it is at first."""
    global _GPU_PLACEMENT_ALLOWED
    _GPU_PLACEMENT_ALLOWED = False


def is_gpu_training() -> bool:
    """Returns whether ops may run on a GPU."""
    return _GPU_PLACEMENT_ALLOWED


def get_visible_gpus(local_rank: int, processes_per_gpu: int = 1) -> str:
    """Returns the GPU of a process, as `CUDA_VISIBLE_DEVICES` takes it.

    Args:
        local_rank: Rank of the process among those on its machine.
        processes_per_gpu: How many of them share a GPU.
    """
    is_valid = isinstance(processes_per_gpu, int) and processes_per_gpu >= 1
    assert is_valid, f"processes_per_gpu must be a whole number from 1, got {processes_per_gpu!r}."
    return str(int(local_rank / processes_per_gpu))


def skip_device(op: Any) -> bool:
    """Returns whether an op stays on the CPU whatever it asks for: it writes, or holds text."""
    if op.type.startswith("Write") or op.type.endswith("Summary"):
        return True
    return op.type == "Const" and tf.as_dtype(op.get_attr("dtype")) == tf.string


def default_device_fn(op: Any) -> str:
    """A device function: the device of `op`, its CPU if there is none or no GPU is allowed."""
    if skip_device(op):
        return _CPU
    return _allowed_device(op.device)


@contextlib.contextmanager
def maybe_device_if_allowed(device_name: str) -> Iterator[None]:
    """Places ops on `device_name` while the block runs, on its CPU if no GPU is allowed."""
    with tf.device(_allowed_device(device_name)):
        yield


def within_placement_context_of(device_name: str) -> bool:
    """Returns whether a new op would be placed on a "GPU" or "CPU".

    A device that nothing asks for is neither. Adds an op without effect to the default graph.
    """
    if device_name not in ("CPU", "GPU"):
        raise errors.ConfigError(f'device_name must be "CPU" or "GPU", got {device_name!r}.')
    probe = tf.no_op(name="placement_probe")
    return tf.DeviceSpec.from_string(probe.device or "").device_type == device_name


def make_replica_device_setter(
    cluster: Any, task_type: str | None, task_id: int = 0
) -> DeviceFunction | None:
    """Returns a device function that deals variables out to the parameter servers in turn.

    Args:
        cluster: A `tf.train.ClusterSpec`, or a dictionary from jobs to addresses.
        task_type: Job of this process, where all other ops go; None for any worker.
        task_id: Number of this process in its job.

    Returns:
        The function; None if the cluster has no parameter servers.
    """
    cluster = tf.train.ClusterSpec(cluster)
    num_ps = cluster.num_tasks("ps") if "ps" in cluster.jobs else 0
    worker_device = f"/job:{task_type}/task:{task_id}" if task_type else "/job:worker"
    return tf.compat.v1.train.replica_device_setter(
        ps_tasks=num_ps,
        worker_device=worker_device,
        merge_devices=True,
        ps_ops=list(_PS_OPS),
        cluster=cluster,
    )


def make_own_device_setter(task_type: str, task_id: int = 0) -> DeviceFunction:
    """Returns a device function that keeps all variables, and other ops, at this worker.

    What asks for another job, as tables on servers do, has it.

    Args:
        task_type: Job of this process.
        task_id: Number of this process in its job.
    """
    own = f"/job:{task_type}/replica:0/task:{task_id}"
    return lambda op: _complete(default_device_fn(op), own)


def is_on_server(device: str | None) -> bool:
    """Returns whether a device is one of a parameter server of a cluster."""
    return bool(tf.DeviceSpec.from_string(device or "").job == PS_JOB_NAME)


def make_local_device_setter(num_servers: int) -> DeviceFunction:
    """Returns a device function that deals variables out to servers that are in the session.

    A variable that asks for the CPU of the worker is dealt out, too, as
    `make_replica_device_setter` does it; whatever asks for another device has it.
    """
    servers = itertools.cycle(_get_cpu_of_server(i) for i in range(num_servers))

    def place(op: Any) -> str:
        device = op.device or ""
        if op.type in _PS_OPS and device in ("", _CPU):
            return next(servers)
        return device

    return place


def get_device_fn(
    cluster: Mapping[str, Any] | None = None, task: Mapping[str, Any] | None = None
) -> DeviceFunction | None:
    """Returns the device function that a worker's graph needs.

    Args:
        cluster: Addresses by job; None takes those of TF_CONFIG, if it is set.
        task: "type" and "index" of this process; None takes those of TF_CONFIG, too.

    Returns:
        In synchronous training `default_device_fn`, or one that keeps ops at this worker if there
        are parameter servers. In asynchronous training one that spreads variables over the
        parameter servers, and None where there are none.
    """
    if cluster is None:
        tf_config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        cluster, task = tf_config.get("cluster"), task or tf_config.get("task")
    if _flag("enable_sync_training"):
        assert mpi.enable_sync_training(), "sync training must running under mpi mode"
        return _sync_worker_device_fn if _has_ps(cluster) else default_device_fn
    if not cluster or not cluster.get("ps") or _flag("is_local"):
        return None
    task = task or {}
    return make_replica_device_setter(cluster, task.get("type"), int(task.get("index", 0)))


def input_device_fn(op: Any) -> str:
    """The device function of the input in synchronous training: this worker's CPU."""
    return _merge(op.device, get_own_job() + _CPU)


def model_device_fn(op: Any) -> str:
    """The device function of the model in synchronous training.

    Ops that ask for no device run on this worker's GPU if GPUs are allowed.
    """
    if is_gpu_training() and not skip_device(op) and not _device_type(op.device):
        return _complete(op.device, get_own_job() + _GPU)
    return _sync_worker_device_fn(op)


def serving_input_device_fn(op: Any) -> str:
    """The device function of an exported model's input: the CPU of whoever serves it."""
    return _merge(op.device, _CPU)


def _are_servers_in_session() -> bool:
    return metadata.get_meta("servers", _Servers).are_in_session


def _get_cpu_of_server(index: int) -> str:
    # The first is the worker's own.
    return f"/device:CPU:{index + 1}"


def _sync_worker_device_fn(op: Any) -> str:
    """Keeps what asks for no job at this worker; otherwise as `default_device_fn`."""
    return _complete(default_device_fn(op), get_own_job())


def get_own_job() -> str:
    """Returns the job and task of this worker in synchronous training beside servers.

    Without servers there are no jobs, and it is empty.
    """
    if not _has_ps(json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster")):
        return ""
    rank = mpi.get_mpi_rank()
    return f"/job:worker/replica:0/task:{rank - 1}" if rank else "/job:chief/replica:0/task:0"


def _has_ps(cluster: Mapping[str, Any] | None) -> bool:
    return bool(cluster and cluster.get("ps")) or _flag("enable_partial_sync_training")


def _allowed_device(device: str | None) -> str:
    device_type = _device_type(device)
    if device_type is None or (device_type == "GPU" and not _GPU_PLACEMENT_ALLOWED):
        return _merge(device, _CPU)
    return device or _CPU


def _device_type(device: str | None) -> str | None:
    return tf.DeviceSpec.from_string(device or "").device_type


def _merge(device: str | None, override: str) -> str:
    """Returns `device` with what `override` says in its place."""
    base = tf.DeviceSpec.from_string(device or "")
    return base.make_merged_spec(tf.DeviceSpec.from_string(override)).to_string()


def _complete(device: str | None, rest: str) -> str:
    """Returns `device` with what it leaves open from `rest`; a job it names keeps its task."""
    spec = tf.DeviceSpec.from_string(device or "")
    other = tf.DeviceSpec.from_string(rest)
    if spec.job is not None:
        other = other.replace(job=None, replica=None, task=None)
    return other.make_merged_spec(spec).to_string()


def _flag(name: str) -> bool:
    """Returns a flag that another module defines, False where it is not there or not parsed."""
    try:
        return bool(getattr(FLAGS, name))
    except (AttributeError, flags.Error):
        return False
