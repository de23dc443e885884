"""A member of a job with parameter servers that trains on a stream, as `stream_job` does alone."""

import dataclasses

import tensorflow as tf
from support import counting, stream_job

NUM_PS = 1
NUM_WORKERS = 2


@dataclasses.dataclass(kw_only=True)
class Settings:
    """What a test decides.

    Attributes:
        model_dir: The model directory.
        log: Beginning of the names of the files that get the ids of each step, one per worker.
        kind: `tail` or `kafka`.
        arguments: Of the stream.
        capacity: `embedding_prefetch_capacity`.
    """

    model_dir: str
    log: str
    kind: str
    arguments: dict
    capacity: int = 1


def run_member(settings, role, index):
    """Takes part in a job; the entry of a process."""
    from monolith.cluster.discovery_base import ServiceDiscoveryType
    from monolith.training.estimator import Estimator
    from monolith.training.runner import RunnerConfig

    tf.compat.v1.disable_eager_execution()
    counting.shorten_times(counting.Settings(model_dir=settings.model_dir))
    config = RunnerConfig(
        server_type=role,
        index=index,
        num_ps=NUM_PS,
        num_workers=NUM_WORKERS,
        model_dir=settings.model_dir,
        discovery_type=ServiceDiscoveryType.FILE,
        save_checkpoints_steps=1,
        checkpoints_max_to_keep=3,
        # What a killed job has left says where its servers were, and the next one may look there.
        max_retry_times=20,
        retry_wait_in_secs=0,
        embedding_prefetch_capacity=settings.capacity,
        enable_embedding_postpush=settings.capacity > 0,
        intra_op_parallelism_threads=2,
        inter_op_parallelism_threads=4,
        disable_native_metrics=True,
    )
    task = stream_job.StreamTask.params()
    task.set(kind=settings.kind, arguments=settings.arguments, log=f"{settings.log}-{role}-{index}")
    Estimator(task, config).train()


def start_job(job, settings, name=""):
    """Starts all members; returns them by name."""
    started = {}
    for role, count in (("ps", NUM_PS), ("worker", NUM_WORKERS)):
        for index in range(count):
            started[f"{role}-{index}"] = job.start(
                f"{name}{role}-{index}",
                "support.stream_cluster",
                "run_member",
                settings,
                role,
                index,
            )
    return started
