"""A job whose tables count: after it, each row says how often its id was trained on.

Every occurrence of an id in a batch gives a gradient of 1, and the optimizer is plain SGD with the
rate 1, so a row that was zero holds minus the number of updates, exactly. So does the dense
variable, for the steps.
"""

import dataclasses
import json
import socket
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from monolith.cluster import manager, members
from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.embedding import entry
from monolith.embedding.features.slots import FeatureColumnV1, FeatureSlotConfig
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.run_config import GraphRunConfig
from monolith.graph.spec import GraphSpec
from monolith.model.task import NativeTask
from monolith.training import cpu
from monolith.training.distributed import server, start, watch, worker
from monolith.training.graph.estimator import GraphEstimator
from monolith.training.hooks import split_desk

DIM = 2
NUM_IDS = {"user": 23, "item": 13}
# No id belongs to two features: tables with equal settings may be merged into one.
FIRST_ID = {"user": 0, "item": 1000}


@dataclasses.dataclass(kw_only=True)
class Settings:
    """What a test decides about a member."""

    model_dir: str
    role: str = "worker"
    index: int = 0
    num_ps: int = 2
    num_extra_ps: int = 0
    num_redundant_ps: int = 0
    num_workers: int = 2
    num_batches: int = 40
    batch_size: int = 4
    # One text file per list of numbers; without any, the numbers are counted.
    files: Sequence[str] = ()
    step_sec: float = 0.0
    max_steps: int | None = None
    steps: int | None = None
    save_steps: int | None = None
    delta_steps: int | None = None
    queues: bool = True
    partial_recovery: bool | None = None
    max_retry_times: int = 0
    retry_wait_secs: int = 0
    chief_timeout_secs: int = 60
    session_creation_timeout_secs: int = 7200
    dims: int = DIM
    native: bool = True
    # How members meet: "file", "tf_config", "zk" or "mlp", and what that needs.
    discovery: str = "file"
    tf_config: str | None = None
    zk_server: str | None = None
    job: str = "job"
    # Shorter than in real life.
    beat_sec: float = 0.2
    silent_sec: float = 1.5
    watch_sec: float = 0.2
    shared_wait_sec: float = 20.0
    pretends_other_machine: bool = False
    metrics_port: int | None = None
    dynamic_splits: bool = False
    only_features: bool = False
    # File that says which address workers see instead of a server's own.
    proxies: str | None = None


class CountingTask(NativeTask):
    @classmethod
    def params(cls):
        p = super().params()
        p.define("settings", None, "What a test has decided.")
        p.name = "counting"
        return p

    def create_input_fn(self, mode):
        settings = self.p.settings

        def input_fn():
            if settings.files:
                lines = tf.data.TextLineDataset(list(settings.files))
                numbers = lines.map(lambda line: tf.strings.to_number(line, tf.int64))
            else:
                numbers = tf.data.Dataset.range(settings.num_batches * settings.batch_size)
            return numbers.batch(settings.batch_size, drop_remainder=True).map(make_features)

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            columns = [
                look_up_counts(self.ctx, name, self.p.settings.dims) for name in sorted(NUM_IDS)
            ]
            steps = tf.compat.v1.get_variable(
                "steps", [], initializer=tf.compat.v1.zeros_initializer(), use_resource=True
            )
            if mode == ModeKeys.PREDICT:
                rows = {name: features[name] for name in NUM_IDS}
                return GraphSpec(mode, predictions={**rows, "steps": steps[None]})
            loss = tf.add_n([tf.reduce_sum(embedding) for _, embedding in columns]) + steps
            rows = [column.get_all_embeddings_concat() for column, _ in columns]
            grads = tf.gradients(loss, [steps, *rows])
            update = self.ctx.apply_embedding_gradients(zip(grads[1:], rows, strict=True))
            step = tf.compat.v1.train.get_or_create_global_step()
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            with tf.control_dependencies([update]):
                train_op = optimizer.apply_gradients([(grads[0], steps)], global_step=step)
            return GraphSpec(mode, loss=loss, train_op=train_op)

        return model_fn


def look_up_counts(ctx, name, dim):
    """Returns the column of a feature whose rows count, and its embeddings."""
    slot = ctx.create_feature_slot(
        FeatureSlotConfig(
            name=name,
            default_vec_initializer=entry.ZerosInitializer(),
            default_vec_optimizer=entry.SgdOptimizer(learning_rate=1.0),
            default_vec_compressor=entry.Fp32Compressor(),
        )
    )
    column = FeatureColumnV1(slot, name)
    return column, column.embedding_lookup(slot.add_feature_slice(dim))


class StepHook(tf.compat.v1.train.SessionRunHook):
    """Prints a line per step, and makes steps last."""

    def __init__(self, settings):
        self._settings = settings
        self._num_steps = 0

    def after_create_session(self, session, coord):
        print("session", flush=True)

    def after_run(self, run_context, run_values):
        self._num_steps += 1
        print(f"step {self._num_steps}.", flush=True)
        time.sleep(self._settings.step_sec)


def make_features(numbers):
    """The ids of a batch: one user, and two items of which the second may equal the first."""
    return {
        "user": tf.RaggedTensor.from_tensor(numbers[:, None] % NUM_IDS["user"]),
        "item": tf.RaggedTensor.from_tensor(
            FIRST_ID["item"] + tf.stack([numbers, numbers // 2], axis=1) % NUM_IDS["item"]
        ),
    }


def count_expected(num_batches, batch_size=Settings.batch_size):
    """Returns how often each id is trained on in one pass, by feature."""
    numbers = np.arange(num_batches * batch_size)
    items = np.concatenate([numbers, numbers // 2])
    return {
        "user": np.bincount(numbers % NUM_IDS["user"], minlength=NUM_IDS["user"]),
        "item": np.bincount(items % NUM_IDS["item"], minlength=NUM_IDS["item"]),
    }


def read_counts(model_dir, settings=None):
    """Returns how often each id was trained on, and the steps, as the last checkpoint has it."""
    settings = settings or Settings(model_dir=str(model_dir))
    task = CountingTask.params().set(settings=settings).instantiate()
    config = cpu.CpuTrainingConfig()
    cpu.make_config_backward_compatible(str(model_dir), config)
    training = cpu.CpuTraining(config, task)

    def input_fn():
        ids = {name: FIRST_ID[name] + np.arange(n)[None, :] for name, n in NUM_IDS.items()}
        dataset = tf.data.Dataset.from_tensors(ids)
        return dataset.map(lambda x: {k: tf.RaggedTensor.from_tensor(v) for k, v in x.items()})

    estimator = GraphEstimator(
        training.create_model_fn(), config=GraphRunConfig(model_dir=str(model_dir))
    )
    (found,) = estimator.predict(input_fn, yield_single_examples=False)
    for name in NUM_IDS:
        assert (found[name] == found[name][:, :1]).all()  # All parts of a row are equal.
    counts = {name: -found[name][:, 0] for name in NUM_IDS}
    return counts, -float(found["steps"][0])


def run_member(settings):
    """Takes part in a job; the entry of a process."""
    # Not at the top: its module defines flags that other programs define, too.
    from monolith.cluster.discovery_base import ServiceDiscoveryType
    from monolith.training.estimator import Estimator
    from monolith.training.runner import RunnerConfig

    tf.compat.v1.disable_eager_execution()
    shorten_times(settings)
    types = {
        "file": ServiceDiscoveryType.FILE,
        "tf_config": ServiceDiscoveryType.PRIMUS,
        "zk": ServiceDiscoveryType.ZK,
        "mlp": ServiceDiscoveryType.MLP,
    }
    config = RunnerConfig(
        server_type=settings.role,
        index=settings.index,
        num_ps=settings.num_ps,
        num_extra_ps=settings.num_extra_ps,
        num_redundant_ps=settings.num_redundant_ps,
        num_workers=settings.num_workers,
        model_dir=settings.model_dir,
        discovery_type=types[settings.discovery],
        tf_config=settings.tf_config,
        zk_server=settings.zk_server,
        deep_insight_name=settings.job,
        save_checkpoints_steps=settings.save_steps,
        partial_recovery=settings.partial_recovery,
        max_retry_times=settings.max_retry_times,
        retry_wait_in_secs=settings.retry_wait_secs,
        chief_timeout_secs=settings.chief_timeout_secs,
        session_creation_timeout_secs=settings.session_creation_timeout_secs,
        use_native_multi_hash_table=settings.native,
        embedding_prefetch_capacity=1 if settings.queues else 0,
        enable_embedding_postpush=settings.queues,
        intra_op_parallelism_threads=2,
        inter_op_parallelism_threads=4,
        metrics_port=settings.metrics_port,
        enable_dynamic_sharding=settings.dynamic_splits,
        only_feature_engineering=settings.only_features,
    )
    params = CountingTask.params().set(settings=settings)
    params.train.incremental_save_steps = settings.delta_steps
    params.train.max_pending_seconds_for_barrier = 10
    # Only workers print and wait: a server runs no hooks.
    estimator = Estimator(params, config)
    estimator.train(steps=settings.steps, max_steps=settings.max_steps, hooks=[StepHook(settings)])
    print("done", flush=True)


def shorten_times(settings):
    members.BEAT_SEC = settings.beat_sec
    members.SILENT_AFTER_SEC = settings.silent_sec
    watch.PERIOD_SEC = settings.watch_sec
    worker.CLOSE_SEC = 0.5
    worker.MAKE_SEC = 20.0
    server._LOOK_SEC = 0.5
    cpu._EXTRA_PS_BENCHMARK_SECS = 0.2
    start.SHARED_WAIT_SEC = settings.shared_wait_sec
    split_desk.POLL_SEC = 0.05
    if settings.proxies and settings.role == "worker":
        see_proxies(settings.proxies)
    if settings.pretends_other_machine:
        describe = members._describe_process
        members._describe_process = lambda pid: f"elsewhere-{describe(pid)}"
    manager._cluster_query_failure_handler = lambda: time.sleep(0.1)


def see_proxies(path):
    """Has this process find proxies in the places of servers."""
    query = FileServiceDiscovery.query

    def query_proxies(self, name):
        found = query(self, name)
        if name != "ps":
            return found
        with open(path) as file:
            instead = json.load(file)
        return {index: instead[addr] for index, addr in found.items() if addr in instead}

    FileServiceDiscovery.query = query_proxies


def start_job(job, settings, **changes):
    """Starts all members of a job; returns them by name."""
    settings = dataclasses.replace(settings, **changes)
    started = {}
    num_ps = settings.num_ps + settings.num_extra_ps + settings.num_redundant_ps
    for role, count in (("ps", num_ps), ("worker", settings.num_workers)):
        for index in range(count):
            started[f"{role}-{index}"] = start_member(job, settings, role, index)
    return started


def start_member(job, settings, role, index, name=None, environment=None, **changes):
    """Starts one member."""
    settings = dataclasses.replace(settings, role=role, index=index, **changes)
    name = name or f"{role}-{index}"
    return job.start(name, "support.counting", "run_member", settings, environment=environment)


def plan_tf_config(settings):
    """Returns the TF_CONFIG of each member, on ports that are free now."""
    addrs = [f"127.0.0.1:{port}" for port in find_ports(settings.num_ps + settings.num_workers)]
    ps, (chief, *workers) = addrs[: settings.num_ps], addrs[settings.num_ps :]
    cluster = {"ps": ps, "chief": [chief], "worker": workers}
    tasks = {f"ps-{i}": ("ps", i) for i in range(len(ps))} | {"worker-0": ("chief", 0)}
    tasks |= {f"worker-{i + 1}": ("worker", i) for i in range(len(workers))}
    return {
        name: json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
        for name, (role, index) in tasks.items()
    }


def plan_mlp(settings):
    """Returns the variables with which MLP tells each member of its place."""
    places = [("ps", i) for i in range(settings.num_ps)]
    places += [("worker", i) for i in range(settings.num_workers)]
    ports = dict(zip(places, find_ports(len(places)), strict=True))
    common = {
        "MLP_PS_NUM": str(settings.num_ps),
        "MLP_WORKER_NUM": str(settings.num_workers),
        "CLOUDNATIVE_INET_ADDR": "127.0.0.1",
    }
    for (role, index), port in ports.items():
        common[f"MLP_{role.upper()}_{index}_PRIMARY_HOST"] = "127.0.0.1"
        common[f"MLP_{role.upper()}_{index}_PORT"] = str(port)
    return {
        f"{role}-{index}": {
            **common,
            "MLP_ROLE": role,
            "MLP_ROLE_INDEX": str(index),
            "MLP_PORT": str(port),
        }
        for (role, index), port in ports.items()
    }


def find_ports(count):
    """Returns ports that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [skt.getsockname()[1] for skt in sockets]
    for skt in sockets:
        skt.close()
    return ports
