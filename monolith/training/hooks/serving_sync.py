"""Sends what a training changes to the servers that serve its model, beside the steps.

Tables in this process, also those of ranks, send their rows from here; those on parameter servers
do it there. The variables are the chief's business in all cases.
"""

import contextlib
import os
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.serving.remote.client import read_credentials
from monolith.serving.sync.client_ops import parameter_sync_client_from_config
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.dense import DensePusher, VariableReads
from monolith.serving.sync.pusher import RowPusher, SyncSteps
from monolith.serving.sync.targets import SyncBackend, open_targets
from monolith.training.config.export import ServingSettings
from monolith.training.config.job import CpuTrainingConfig

_ZK_VARIABLE = "zk_servers"


def is_synced(config: CpuTrainingConfig) -> bool:
    """Returns whether a job sends what it changes to a serving side."""
    return bool(config.sync_to) or config.enable_realtime_training


def make_sync_config(config: CpuTrainingConfig) -> SyncConfig:
    """Returns how a job does that.

    Raises:
        errors.ConfigError: A setting makes no sense, or a file that it names cannot be read.
    """
    sync_config = SyncConfig(
        interval_sec=config.sync_interval_secs,
        dense_interval_sec=config.sync_dense_interval_secs,
        timeout_sec=config.sync_timeout_secs,
        token_file=config.sync_token_file,
        server_authority=config.sync_ca_file,
    )
    # So that a job does not start that could send nothing.
    read_credentials(sync_config)
    return sync_config


def make_backend(config: CpuTrainingConfig) -> SyncBackend | None:
    """Returns what knows the servers of a job's model, started; None if it sends nothing.

    Raises:
        AssertionError: `enable_realtime_training` needs names that are not given.
        errors.ConfigError: The place makes no sense, or cannot be reached.
    """
    if not is_synced(config):
        return None
    if config.sync_to:
        return open_targets(config.sync_to, config.sync_model)
    if getattr(config, "bzid", None) is None:
        raise AssertionError("Business id cannot be none while realtime training.")
    if getattr(config, "base_name", None) is None:
        raise AssertionError("Base name cannot be none while realtime training.")
    assert isinstance(config, ServingSettings)
    backend = _make_zookeeper_backend(config)
    backend.start()
    backend.subscribe_model(config.model_name)
    return backend


def _make_zookeeper_backend(config: Any) -> Any:
    # Kazoo is an optional part.
    from monolith.cluster.zookeeper import (
        KazooTimeoutError,
        MonolithKazooClient,
        default_zk_servers,
    )
    from monolith.serving.agent.backends import ZKBackend
    from monolith.serving.agent.config import AgentConfig
    from monolith.serving.agent.replicas import ReplicaWatcher

    hosts = config.zk_server or os.environ.get(_ZK_VARIABLE) or default_zk_servers()
    if config.unified_serving:
        return ZKBackend(config.bzid, hosts)
    client = MonolithKazooClient(hosts)
    try:
        client.start()
    except KazooTimeoutError as e:
        raise errors.ConfigError(f"ZooKeeper at {hosts} does not answer: {e}.") from e
    agent = AgentConfig(
        bzid=config.bzid,
        base_name=config.base_name,
        deploy_type="ps",
        num_ps=max(1, config.num_ps),
        dc_aware=config.dc_aware,
    )
    watcher = ReplicaWatcher(client, agent, zk_watch_address_family=config.zk_watch_address_family)
    client.add_listener(watcher.on_state)
    # A client that nobody ends keeps the process from ending once ZooKeeper is gone.
    return watcher.to_sync_wrapper(client)


class ServingSyncHook(tf.compat.v1.train.SessionRunHook):
    """Sends rows of tables in this process, and the variables of the model.

    Args:
        backend: Knows the servers; stopped at the end, but not by ranks.
        config: How often, and how.
        clients: The sync clients of the tables in this process.
        rank: Of a synchronous job, which rank this is: its rows are the part `ps_<rank>` of an
            exported model, its tables have a client of that number, and rank 0 sends the variables,
            which are the same in all.
    """

    def __init__(
        self,
        backend: SyncBackend,
        config: SyncConfig,
        clients: Sequence[tf.Tensor] = (),
        rank: int | None = None,
    ) -> None:
        self._backend = backend
        self._config = config
        self._clients = clients
        self._rank = rank
        self._steps: SyncSteps | None = None
        self._reads: VariableReads | None = None
        self._pushers: list[RowPusher | DensePusher] = []
        self._backend_in_use = contextlib.ExitStack()
        if rank is None:
            self._backend_in_use.callback(backend.stop)

    def begin(self) -> None:
        if self._rank is not None:
            self._clients = [parameter_sync_client_from_config(name_suffix=str(self._rank))]
        self._steps = SyncSteps(self._clients)
        self._reads = None if self._rank else VariableReads()

    def after_create_session(self, session: tf.compat.v1.Session, coord: Any) -> None:
        self._close_pushers(flush_sec=0.0)  # After a session that was lost.
        steps, reads = self._steps, self._reads
        assert steps is not None
        steps.run = session.run
        first = self._rank or 0
        self._pushers = [
            RowPusher(steps, number, self._backend, self._config, f"ps_{first + number}").start()
            for number in range(len(self._clients))
        ]
        if reads is not None:
            self._pushers.append(
                DensePusher(
                    lambda names: reads.read(session.run, names), self._backend, self._config
                ).start()
            )

    def end(self, session: tf.compat.v1.Session) -> None:
        with self._backend_in_use:
            self._close_pushers()

    def close(self) -> None:
        """Ends all threads and sends nothing more; nothing is left to do after a normal end."""
        with self._backend_in_use:
            self._close_pushers(flush_sec=0.0)

    def _close_pushers(self, flush_sec: float | None = None) -> None:
        pushers, self._pushers = self._pushers, []
        with contextlib.ExitStack() as ending:  # Reaches all, whatever becomes of one.
            for pusher in reversed(pushers):
                ending.callback(pusher.close, flush_sec)


class ServerSync:
    """Sends the rows of one parameter server, from its process; a context.

    Args:
        target: This process's own server.
        index: Which server it is.
        backend: Knows who serves; stopped at the end. None: nothing is sent.
        config: How often, and how.
    """

    def __init__(
        self, target: str, index: int, backend: SyncBackend | None, config: SyncConfig | None = None
    ) -> None:
        self._target = target
        self._index = index
        self._backend = backend
        self._config = config or SyncConfig()
        self._session: tf.compat.v1.Session | None = None
        self._pusher: RowPusher | None = None

    def __enter__(self) -> "ServerSync":
        if self._backend is None:
            return self
        with tf.Graph().as_default() as graph:
            # The tables that workers make here tell the client of this name.
            client = parameter_sync_client_from_config(name_suffix=str(self._index))
            steps = SyncSteps([client])
        self._session = tf.compat.v1.Session(self._target, graph=graph)
        steps.run = self._session.run
        self._pusher = RowPusher(
            steps, 0, self._backend, self._config, part=f"ps_{self._index}"
        ).start()
        return self

    def __exit__(self, *unused: object) -> None:
        with contextlib.ExitStack() as ending:
            if self._backend is not None:
                ending.callback(self._backend.stop)
            if self._session is not None:
                ending.callback(self._session.close)
            if self._pusher is not None:
                self._pusher.close()
