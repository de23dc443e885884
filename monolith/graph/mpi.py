"""Which of several synchronous workers this process is.

The ranks of `monolith.graph.collectives` know, once they have met. Before, who has started them
tells it through environment variables: `monolith run` (`monolith.graph.rank_place`), or `mpirun` of
Open MPI, each of whose variables counts by itself. A process that was started alone is rank 0 of 1.

Example:
    >>> import os
    >>> os.environ["OMPI_COMM_WORLD_RANK"] = "3"
    >>> get_mpi_rank()
    3
    >>> del os.environ["OMPI_COMM_WORLD_RANK"]
"""

import importlib
import logging
import os
from typing import Any

from absl import flags

from monolith import errors
from monolith.graph import collectives, rank_place
from monolith.graph.rank_place import Place

logger = logging.getLogger(__name__)

FLAGS = flags.FLAGS

_LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"

# Variables whose absence was reported already; ranks are asked for all over the code.
_reported_missing: set[str] = set()


def get_mpi_rank() -> int:
    """Returns the rank of this process among all; once ranks have met, whoever started them."""
    place = _find_place()
    return _read("OMPI_COMM_WORLD_RANK", default=0) if place is None else place.rank


def get_mpi_local_rank() -> int:
    """Returns the rank of this process among those on the same machine."""
    place = _find_place()
    return _read(_LOCAL_RANK, default=0) if place is None else place.local_rank


def get_mpi_size() -> int:
    """Returns the number of processes."""
    place = _find_place()
    return _read("OMPI_COMM_WORLD_SIZE", default=1) if place is None else place.size


def get_mpi_local_size() -> int:
    """Returns the number of processes on this machine."""
    place = _find_place()
    return _read("OMPI_COMM_WORLD_LOCAL_SIZE", default=1) if place is None else place.local_size


def enable_sync_training() -> bool:
    """Returns whether `--enable_sync_training` is on and the process was started as a rank.

    False where the flag is not defined, or flags are not parsed yet.
    """
    try:
        is_on = bool(FLAGS.enable_sync_training)
    except (AttributeError, flags.Error):
        return False
    return is_on and (_LOCAL_RANK in os.environ or _find_place() is not None)


def get_sync_run_hooks(is_full_sync: bool = False) -> list[Any]:
    """Returns the hooks that make synchronous workers start from the same values.

    Args:
        is_full_sync: Whether all variables are the workers' own. Beside parameter servers only
            those of the dense part are, and rank 0's are broadcast to the CPU.

    Returns:
        A hook that broadcasts rank 0's variables; none outside of synchronous training.

    Raises:
        ConfigError: Synchronous training is on, and the library for it is not installed.
    """
    if not enable_sync_training():
        return []
    device = "" if is_full_sync else "/device:CPU:0"
    return [collectives.BroadcastGlobalVariablesHook(0, device=device)]


def update_session_config_for_gpu(session_config: Any) -> None:
    """Lets GPU memory grow and, in synchronous training, gives each local rank its own GPU.

    Args:
        session_config: A `tf.compat.v1.ConfigProto`, changed in place.
    """
    gpu_options = session_config.gpu_options
    gpu_options.allow_growth = True
    if enable_sync_training():
        gpu_options.visible_device_list = str(get_mpi_local_rank())
        gpu_options.force_gpu_compatible = (
            os.environ.get("MONOLITH_FORCE_GPU_COMPATIBLE", "1") == "1"
        )


def try_init_cuda() -> bool:
    """Lets TensorFlow start CUDA in this process, if there is a GPU.

    Without one, or without CUDA, nothing happens but a warning: what has no GPU runs on the CPU.

    Returns:
        Whether there is a GPU.
    """
    if _has_gpu():
        return True
    logger.warning("TensorFlow finds no GPU that it can use with CUDA; all ops run on the CPU")
    return False


def get_device_str(force_on_cpu: bool = False) -> str:
    """Returns the device of this worker's dense part.

    That is its GPU if there is one and training on GPUs is allowed (`devices.enable_gpu_training`),
    else its CPU. Beside parameter servers it names the worker, too.

    Args:
        force_on_cpu: Whether it is the CPU in any case.

    Example:
        >>> get_device_str()
        '/device:CPU:0'
    """
    # Not at the top: it needs the ranks of this module.
    from monolith.graph import devices

    is_on_gpu = not force_on_cpu and devices.is_gpu_training() and _has_gpu()
    return devices.get_own_job() + f"/device:{'GPU' if is_on_gpu else 'CPU'}:0"


def _has_gpu() -> bool:
    # Not at the top: who asks for ranks only does not wait for its import.
    tf = importlib.import_module("tensorflow")
    return bool(tf.config.list_physical_devices("GPU"))


def _find_place() -> Place | None:
    """Returns which rank this process is; None if it is none, or Open MPI has started it.

    TF_CONFIG is not asked: jobs with servers have it, too, and their workers are no ranks.
    """
    if collectives._lib.connected is not None:
        return Place(
            rank=collectives.rank(),
            size=collectives.size(),
            local_rank=collectives.local_rank(),
            local_size=collectives.local_size(),
        )
    return rank_place.find_place() if rank_place.RANK in os.environ else None


def _read(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        if name not in _reported_missing:
            _reported_missing.add(name)
            logger.warning("%s is not set, taking %d: not started by mpirun?", name, default)
        return default
    try:
        return int(text)
    except ValueError:
        raise errors.ConfigError(
            f"{name} must be an integer, got {text!r}; start the process with mpirun or unset it."
        ) from None
