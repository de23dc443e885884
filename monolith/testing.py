"""What tests of models with embedding tables need: simple tables, local servers, profiles.

Example:
    >>> config = generate_test_hash_table_config(dim=4, learning_rate=0.1)
    >>> config.table_config.entry_config.segments[0].dim_size
    4
"""

import functools
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeVar, overload

import tensorflow as tf

from monolith.cluster.servers import start_server
from monolith.embedding import entry
from monolith.graph import devices
from monolith.proto import embedding_hash_table_pb2

_Function = TypeVar("_Function", bound=Callable[..., Any])


def generate_test_hash_table_config(
    dim: int = 2, use_float16: bool = False, learning_rate: Any = 1.0
) -> entry.HashTableConfigInstance:
    """Returns the config of a simple table: zeros at first, SGD, no compression.

    Args:
        dim: The width of the rows.
        use_float16: Whether the weights are rounded to float16 after each step.
        learning_rate: A number or a function.
    """
    optimizer: entry.Optimizer = entry.SgdOptimizer()
    if use_float16:
        optimizer = entry.StochasticRoundingFloat16OptimizerWrapper(optimizer)
    table_config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    table_config.cuckoo.SetInParent()
    table_config.entry_config.segments.append(
        entry.CombineAsSegment(dim, entry.ZerosInitializer(), optimizer, entry.Fp32Compressor())
    )
    return entry.HashTableConfigInstance(table_config, [learning_rate])


def create_test_ps_cluster(
    num_ps: int,
) -> tuple[list[tf.distribute.Server], tf.compat.v1.ConfigProto]:
    """Starts parameter servers in this process, on free ports.

    A session on `servers[0].target` with the returned config finds server i as
    `/job:ps/task:i`. What the servers hold outlives a session. Local training needs no servers:
    this is for tests of what is special to them. Their ports are open to everybody who reaches the
    machine, see `monolith.cluster.servers`.

    Returns:
        The servers, which live as long as the process, and the config of sessions.
    """
    servers = [start_server({"localhost": ["localhost:0"]}) for _ in range(num_ps)]
    cluster_def = tf.train.ClusterDef()
    job = cluster_def.job.add(name=devices.PS_JOB_NAME)
    for i, server in enumerate(servers):
        job.tasks[i] = server.target.removeprefix("grpc://")
    config = tf.compat.v1.ConfigProto(cluster_def=cluster_def)
    config.experimental.share_session_state_in_clusterspec_propagation = True
    return servers, config


@overload
def profile_it(fn: _Function) -> _Function: ...
@overload
def profile_it(*, log_dir: str) -> Callable[[_Function], _Function]: ...


def profile_it(fn: Any = None, *, log_dir: str | None = None) -> Any:
    """Decorator that writes a profile of each call for TensorBoard.

    Use it as `@profile_it` or `@profile_it(log_dir=...)`.

    Args:
        fn: The function to profile.
        log_dir: Where to write; by default `tests_profile` below `TEST_TMPDIR`, or below the
            directory for temporary files where that is not set.
    """
    if fn is None:
        return functools.partial(profile_it, log_dir=log_dir)

    @functools.wraps(fn)
    def profiled(*args: Any, **kwargs: Any) -> Any:
        directory = log_dir or os.path.join(
            os.environ.get("TEST_TMPDIR", tempfile.gettempdir()), "tests_profile"
        )
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=3, python_tracer_level=1, device_tracer_level=1
        )
        tf.profiler.experimental.start(directory, options=options)
        try:
            return fn(*args, **kwargs)
        finally:
            tf.profiler.experimental.stop()
            time.sleep(1)  # The profiler goes on writing for a moment.

    return profiled
