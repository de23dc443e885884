"""One attempt to train, on servers in this process: what crosses between a worker and a server."""

import collections
import contextlib
import itertools
import os
import signal

import pytest
import tensorflow as tf

from monolith.cluster import members
from monolith.embedding import entry
from monolith.embedding.features import gradients
from monolith.embedding.features.slots import FeatureColumnV1, FeatureSlotConfig
from monolith.graph.spec import GraphSpec
from monolith.model.task import NativeTask
from monolith.training import cpu
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import plan, start, worker
from monolith.training.tables.members import NodeAliveCheckerError

pytestmark = pytest.mark.usefixtures("graph_mode")

NUM_SERVERS = 2
# With 200 features, the kernel of the first layer has 1.6 MB, as it may in real models.
DIM, NUM_UNITS = 8, 256


class WideTask(NativeTask):
    """As many features as a test wants."""

    @classmethod
    def params(cls):
        p = super().params()
        p.define("num_features", 2, "How many.")
        p.name = "wide"
        return p

    def create_input_fn(self, mode):
        names = self._list_names()

        def input_fn():
            numbers = tf.data.Dataset.range(12).batch(4)
            return numbers.map(
                lambda batch: {
                    name: tf.RaggedTensor.from_tensor(batch[:, None] + 100 * i)
                    for i, name in enumerate(names)
                }
            )

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            columns, parts = [], []
            for i, name in enumerate(self._list_names()):
                slot = self.ctx.create_feature_slot(
                    FeatureSlotConfig(
                        name=name,
                        slot_id=i,
                        default_vec_optimizer=entry.SgdOptimizer(learning_rate=0.1),
                    )
                )
                columns.append(FeatureColumnV1(slot, name))
                parts.append(columns[-1].embedding_lookup(slot.add_feature_slice(DIM)))
            hidden = apply_dense("first", tf.concat(parts, axis=1), NUM_UNITS)
            loss = tf.reduce_sum(apply_dense("last", hidden, 1))
            train_op = gradients.apply_gradients_with_var_optimizer(
                self.ctx,
                columns,
                tf.compat.v1.train.GradientDescentOptimizer(0.1),
                loss,
                clip_type=gradients.GradClipType.NoClip,
            )
            return GraphSpec(mode, loss=loss, train_op=train_op)

        return model_fn

    def _list_names(self):
        return [f"feature_{i:03}" for i in range(self.p.num_features)]


def apply_dense(name, inputs, num_units):
    with tf.compat.v1.variable_scope(name):
        shape = [inputs.shape[1], num_units]
        kernel, bias = (
            tf.convert_to_tensor(tf.compat.v1.get_variable(part, size, use_resource=True))
            for part, size in (("kernel", shape), ("bias", [num_units]))
        )
    return tf.matmul(inputs, kernel) + bias


class CrossingsHook(tf.compat.v1.train.SessionRunHook):
    """Notes what the second step sends between devices."""

    def __init__(self):
        self.num_steps = 0
        self.tensors = []
        self.ops = collections.Counter()
        self.types = collections.Counter()

    def before_run(self, run_context):
        options = tf.compat.v1.RunOptions(output_partition_graphs=self.num_steps == 1)
        return tf.compat.v1.train.SessionRunArgs([], options=options)

    def after_run(self, run_context, run_values):
        if self.num_steps == 1:
            for partition in run_values.run_metadata.partition_graphs:
                self._read(partition)
        self.num_steps += 1

    def _read(self, partition):
        for node in partition.node:
            if "/job:ps" in node.device:
                self.ops[node.op, node.device] += 1
            if node.op not in ("_Send", "_HostSend"):
                continue
            source, target = (node.attr[name].s.decode() for name in ("send_device", "recv_device"))
            if source.split("/device")[0] != target.split("/device")[0]:
                self.tensors.append((source, target, node.attr["tensor_name"].s.decode()))
                self.types[node.attr["T"].type] += 1


def get_job(device):
    return tf.DeviceSpec.from_string(device).job


@pytest.fixture(scope="module")
def tf_servers():
    """A chief and its parameter servers."""
    return [tf.distribute.Server({"local": ["127.0.0.1:0"]}) for _ in range(1 + NUM_SERVERS)]


def make_cluster(tf_servers):
    for server in tf_servers:
        tf.compat.v1.Session.reset(server.target)  # Forgets the tables of another test.
    addrs = [server.target.removeprefix("grpc://") for server in tf_servers]
    return {"chief": addrs[:1], "worker": [], "ps": addrs[1:]}


def train(tf_servers, model_dir, num_features=2, transfer_float16=False, **settings):
    cluster = make_cluster(tf_servers)
    config = DistributedCpuTrainingConfig(
        num_ps=NUM_SERVERS, model_dir=str(model_dir), session_creation_timeout_secs=60, **settings
    )
    params = WideTask.params().set(num_features=num_features)
    params.train.transfer_float16 = transfer_float16
    hook = CrossingsHook()
    worker.train(config, params, cluster, {"type": "chief", "index": 0}, [hook])
    assert hook.num_steps == 3
    return hook


@pytest.mark.parametrize(
    ("queues", "numbers"),
    [
        pytest.param(False, (2, 20), id="in_the_step"),
        pytest.param(True, (2, 20), id="queues"),
        pytest.param(False, (2, 20, 200), id="many", marks=pytest.mark.slow),
    ],
)
def test_what_crosses_does_not_grow_with_the_features(tf_servers, tmp_path, queues, numbers):
    settings = {"embedding_prefetch_capacity": int(queues), "enable_embedding_postpush": queues}
    hooks = {n: train(tf_servers, tmp_path / str(n), n, **settings) for n in numbers}
    # Of both servers together: which of them has the barrier of the chief depends on how many parts
    # the first kernel has.
    crossings = [
        collections.Counter((get_job(source), get_job(target)) for source, target, _ in h.tensors)
        for h in hooks.values()
    ]
    assert crossings == [crossings[0]] * len(crossings)
    for index, hook in itertools.product(range(NUM_SERVERS), hooks.values()):
        ops = {op: n for (op, device), n in hook.ops.items() if f"task:{index}" in device}
        # With queues the rows of a step were looked up before it, by another thread.
        assert ops.get("MonolithMultiHashTableLookup", 0) == (0 if queues else 1)
        assert ops["MonolithMultiHashTableOptimize"] == 1
    if queues:
        return
    for index in range(NUM_SERVERS):
        server = f"/job:ps/replica:0/task:{index}"
        sent = [
            name
            for source, target, name in hooks[numbers[-1]].tensors
            if server in target and "ps" not in source
        ]
        received = [name for source, _, name in hooks[numbers[-1]].tensors if server in source]
        # Ids, gradients, step with time, and gradients of variables once each; rows and variables
        # once.
        for part in ("TensorsTimestamp", "OffsetMapGradient", "dmtht_ag/stack", "together_to_ser"):
            assert len([name for name in sent if part in name]) == 1, sent
        for part in ("HashTableLookup", "together_to_worker"):
            assert len([name for name in received if part in name]) == 1, received


@pytest.mark.parametrize("native", [True, False])
def test_float16_on_the_wire(tf_servers, tmp_path, native):
    float16 = tf.float16.as_datatype_enum
    settings = {"use_native_multi_hash_table": native}
    assert train(tf_servers, tmp_path / "32", **settings).types[float16] == 0
    hook = train(tf_servers, tmp_path / "16", transfer_float16=True, **settings)
    # Rows and gradients, to and from each server.
    assert hook.types[float16] == 2 * NUM_SERVERS


def test_names_of_cpu_training_are_looked_up_there(tf_servers, tmp_path, monkeypatch):
    calls = []

    def record(name):
        replaced = getattr(cpu, name)

        def call(*args):
            calls.append(name)
            return replaced(*args)

        monkeypatch.setattr(cpu, name, call)

    cluster = make_cluster(tf_servers)
    config = DistributedCpuTrainingConfig(num_ps=NUM_SERVERS, model_dir=str(tmp_path))
    with contextlib.ExitStack() as stack:
        for index, addr in enumerate(cluster["ps"]):
            details = {"code": plan.describe_code()}
            server = members.Membership(str(tmp_path), "ps", index, addr, details=details)
            server.join()
            stack.callback(server.leave, members.MemberState.FINISHED)
        chief = stack.enter_context(start.joined(config, cluster["chief"][0]))
        for name in ("_save_debugging_info", "_get_replica_device_setter"):
            record(name)
        task = {"type": "chief", "index": 0}
        cpu._do_worker_train(config, WideTask.params(), cluster, task, member=chief)
    assert calls == ["_save_debugging_info", "_get_replica_device_setter"]
    assert (tmp_path / "debugging_info.pb").exists()


def test_member_that_does_not_answer(tf_servers, tmp_path):
    cluster = {"chief": ["127.0.0.1:1"], "worker": [], "ps": []}
    with pytest.raises(NodeAliveCheckerError, match=r"^127.0.0.1:1 is unreachable$"):
        worker.train(
            DistributedCpuTrainingConfig(model_dir=str(tmp_path)),
            WideTask.params(),
            cluster,
            {"type": "chief", "index": 0},
        )
    assert "TF_CONFIG" not in os.environ


def test_attempt_that_is_to_stop_and_loses_a_member_is_the_last(tmp_path, monkeypatch):
    member = members.Membership(str(tmp_path), "worker", 0, "b:1")
    others = {"b:1": member.record}
    monkeypatch.setattr(start, "check_members", lambda *unused: others)
    config = DistributedCpuTrainingConfig(model_dir=str(tmp_path))
    attempt = worker._Attempt(config, {"chief": ["b:1"], "ps": []}, member)
    attempt.stop_hook._handle(signal.SIGTERM, None)
    with pytest.raises(SystemExit) as caught, attempt:
        raise tf.errors.UnavailableError(None, None, "ps 1 is gone")
    assert caught.value.code == 128 + signal.SIGTERM


def test_params_of_something_else(tmp_path):
    class Params:
        mode = None

        def instantiate(self):
            return "no task"

    with pytest.raises(ValueError, match=r"distributed train only support NativeTask. Got no task"):
        worker.train(DistributedCpuTrainingConfig(model_dir=str(tmp_path)), Params(), {}, {})
