"""A member of a job that trains the model of `monolith demo`."""

import time

import tensorflow as tf

from monolith.cli.demo_model import MovieModel
from monolith.cluster import manager
from monolith.data import movies


def make_model(num_examples, held_out=40_960):
    # A small world, of which the whole stream is seen.
    config = movies.WorldConfig(num_users=2_000, num_movies=400, num_examples=num_examples)
    world = movies.World(config)
    return MovieModel(world, held_out=held_out)


def run_member(model_dir, role, index, num_examples, settings=None):
    from monolith.cluster.discovery_base import ServiceDiscoveryType
    from monolith.training.estimator import Estimator
    from monolith.training.runner import RunnerConfig

    tf.compat.v1.disable_eager_execution()
    manager._cluster_query_failure_handler = lambda: time.sleep(0.1)
    config = RunnerConfig(
        server_type=role,
        index=index,
        num_ps=2,
        num_workers=2,
        model_dir=model_dir,
        discovery_type=ServiceDiscoveryType.FILE,
        embedding_prefetch_capacity=1,
        enable_embedding_postpush=True,
        intra_op_parallelism_threads=2,
        inter_op_parallelism_threads=4,
        disable_native_metrics=True,
        **(settings or {}),
    )
    Estimator(make_model(num_examples), config).train()
