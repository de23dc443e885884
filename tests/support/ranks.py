"""What ranks of the tests of collectives do; each runs in a process of its own."""

import atexit
import json
import os
import pathlib
import signal
import socket
import time

import numpy as np
import tensorflow as tf

from monolith.embedding import entry
from monolith.embedding.sharding.ranks import DistributedMultiTypeHashTableMpi
from monolith.embedding.tables import multi
from monolith.graph import collectives, rank_links
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.rank_place import Place
from monolith.graph.spec import GraphSpec
from monolith.model.task import NativeTask
from monolith.proto import embedding_hash_table_pb2
from monolith.training.graph.estimator import GraphEstimator
from monolith.training.hooks.end_of_input import EofAwareTask


def start(job, size, function, *args, directory=None, module="support.ranks", **environment):
    """Starts the ranks of a job; each is told the others by its environment."""
    with socket.socket() as skt:
        skt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        skt.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{skt.getsockname()[1]}"
    members = []
    for rank in range(size):
        place = {
            "MONOLITH_RANK": str(rank),
            "MONOLITH_SIZE": str(size),
            "MONOLITH_LOCAL_RANK": str(rank),
            "MONOLITH_LOCAL_SIZE": str(size),
            "MONOLITH_RANKS_ADDRESS": address,
        }
        members.append(
            job.start(f"rank{rank}", module, function, *args, environment={**place, **environment})
        )
    return members


def make_session():
    config = tf.compat.v1.ConfigProto()
    collectives.update_session_config(config)
    return tf.compat.v1.Session(collectives.get_session_target(), config=config)


def write(directory, name, value):
    path = pathlib.Path(directory) / f"{name}-{collectives.rank()}.json"
    path.write_text(json.dumps(value))


def read_all(directory, name, size):
    paths = [pathlib.Path(directory) / f"{name}-{rank}.json" for rank in range(size)]
    return [json.loads(path.read_text()) for path in paths]


def do_everything(directory):
    """Runs each collective, with sizes that differ between ranks and from step to step."""
    collectives.init()
    rank, size = collectives.rank(), collectives.size()
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None])
        rows = tf.compat.v1.placeholder(tf.int64, [None, 2])
        splits = tf.compat.v1.placeholder(tf.int32, [None])
        scale = tf.compat.v1.get_variable("scale", initializer=float(rank + 2))
        slices = collectives.allreduce(
            tf.IndexedSlices(tf.fill([rank + 1, 1], 6.0), tf.range(rank + 1), tf.constant([4, 1]))
        )
        exchanged, received = collectives.alltoall(rows, splits)
        # d/d scale of the sum over ranks of what each has sent with its own scale.
        loss = tf.reduce_sum(collectives.allgather(tf.fill([rank + 1], scale)))
        way_back = tf.reduce_sum(
            collectives.alltoall(tf.fill([size, 1], scale))[:, 0]
            * tf.cast(tf.range(1, size + 1), tf.float32)
        )
        flag = tf.constant(rank == 1)
        small = tf.constant([0.1], tf.float64)
        fetches = {
            "average": collectives.allreduce(x),
            "sum": collectives.allreduce(x, collectives.Sum),
            "integers": collectives.allreduce(tf.constant(rank, tf.int64), collectives.Sum),
            "half": collectives.allreduce(small, compress=True),
            "empty": collectives.allreduce(tf.zeros([0])),
            "grouped": collectives.grouped_allreduce(
                [tf.fill([2, 1], float(rank)), tf.constant(rank), tf.fill([1], rank * 2.0)],
                collectives.Sum,
            ),
            "slices": slices.values,
            "indices": slices.indices,
            "gathered": collectives.allgather(rows),
            "exchanged": exchanged,
            "received": received,
            "even": collectives.alltoall(tf.range(size) + 10 * rank),
            "broadcast": collectives.broadcast(x[:3], size - 1),
            "flag": collectives.broadcast(flag, 1),
            "gather_gradient": tf.gradients(loss, scale)[0],
            "exchange_gradient": tf.gradients(way_back, scale)[0],
        }
        results = []
        with make_session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            for step in (0, 1, 40):
                counts = [(rank + to) % 3 * step for to in range(size)]
                sent = [[rank * 10 + to, step] for to in range(size) for _ in range(counts[to])]
                feed = {
                    x: np.full(3 + step, float(rank)),
                    rows: np.array(sent, np.int64).reshape([-1, 2]),
                    splits: counts,
                }
                values = session.run(fetches, feed)
                results.append(tf.nest.map_structure(lambda v: v.tolist(), values))
    write(directory, "results", results)
    collectives.shutdown()


def refuse_what_cannot_travel(directory):
    collectives.init()
    problems = []
    for call in (
        lambda: collectives.allreduce(tf.constant("text")),
        lambda: collectives.allgather(tf.constant(1)),
        lambda: collectives.alltoall(tf.range(collectives.size() + 1)),
        lambda: collectives.broadcast(tf.constant(1), 7),
    ):
        with tf.Graph().as_default():
            try:
                call()
            except ValueError as error:
                problems.append(str(error))
    try:
        collectives.allreduce(tf.constant(1.0))
    except ValueError as error:
        problems.append(str(error))
    write(directory, "problems", problems)


def train(directory, steps):
    """Trains a line on this rank's part of the data; rank 0 starts with other values."""
    collectives.init()
    rank, size = collectives.rank(), collectives.size()
    x = np.linspace(-1, 1, 12).astype(np.float32)
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        w = tf.compat.v1.get_variable("w", initializer=0.5 if rank == 0 else 9.0)
        b = tf.compat.v1.get_variable("b", initializer=[0.1 if rank == 0 else -3.0])
        mine = x[rank * 12 // size : (rank + 1) * 12 // size]
        loss = tf.reduce_mean(tf.square(w * mine + b - (3.0 * mine + 1.0)))
        optimizer = collectives.DistributedOptimizer(
            tf.compat.v1.train.GradientDescentOptimizer(0.1)
        )
        train_op = optimizer.minimize(loss)
        config = tf.compat.v1.ConfigProto()
        collectives.update_session_config(config)
        with tf.compat.v1.train.MonitoredTrainingSession(
            collectives.get_session_target(),
            config=config,
            hooks=[collectives.BroadcastGlobalVariablesHook(0)],
        ) as session:
            for _ in range(steps):
                session.run(train_op)
            trained = [float(np.ravel(value)[0]) for value in session.run([w, b])]
            write(directory, "trained", trained)
    collectives.shutdown()


def train_until_somebody_dies(directory, victim, how):
    """Does steps until a rank is gone; the victim goes after a few."""
    rank_links.GRACE_SEC = 1.0 if how == "leave" else 4.0
    collectives.init(timeout_sec=3.0)
    with tf.Graph().as_default():
        total = collectives.allreduce(tf.fill([1000], 1.0))
        gathered = collectives.allgather(tf.fill([collectives.rank() + 1], 1.0))
        config = tf.compat.v1.ConfigProto()
        collectives.update_session_config(config)
        with (
            collectives.named_losses(),
            tf.compat.v1.train.MonitoredTrainingSession(
                collectives.get_session_target(),
                config=config,
                hooks=collectives.make_watch_hooks(),
            ) as session,
        ):
            for step in range(100000):
                session.run([total, gathered])
                if step == 5 and collectives.rank() == victim:
                    print("the victim goes", flush=True)
                    if how == "leave":
                        # A program does that when it ends; a forked one ends without it.
                        atexit._run_exitfuncs()
                        return
                    {
                        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
                        "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
                    }[how]()


def wait_outside_of_sessions(directory, victim):
    """Stands still, as code that waits for something else does, while another rank dies."""
    rank_links.GRACE_SEC = 0.5
    collectives.init()
    if collectives.rank() == victim:
        print("the victim goes", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(200)


def meet_as(directory, rank, size, address):
    collectives.init(Place(rank=rank, size=size, address=address))
    write(directory, "met", [collectives.rank(), collectives.size()])
    collectives.shutdown()


class SumTask(NativeTask):
    """Adds up what its input gives, in its global step; alone, or in a variable of all ranks."""

    @classmethod
    def params(cls):
        params = super().params()
        params.define("data", [1, 2, 3], "What the input gives.")
        params.define("as_dict", False, "Whether it does so by name.")
        params.define("with_collectives", False, "Whether ranks add up together.")
        return params

    def create_input_fn(self, mode):
        def input_fn():
            dataset = tf.data.Dataset.from_tensor_slices(np.array(self.p.data, np.int64))
            return dataset.map(lambda x: {"1": x}) if self.p.as_dict else dataset

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            value = features["1"] if self.p.as_dict else features
            step = tf.compat.v1.train.get_global_step()
            if not self.p.with_collectives:
                train_op = tf.compat.v1.assign_add(step, value)
                return GraphSpec(mode, loss=tf.constant(0.0), train_op=train_op)
            w = tf.compat.v1.get_variable("w", initializer=0.0)
            # The gradient of each rank is what it has read; w collects minus their averages.
            loss = w * tf.cast(value, tf.float32)
            optimizer = collectives.DistributedOptimizer(
                tf.compat.v1.train.GradientDescentOptimizer(1.0)
            )
            return GraphSpec(mode, loss=loss, train_op=optimizer.minimize(loss, step))

        return model_fn


def train_sums(directory, data, with_collectives, as_dict=False):
    """Each rank has its own number of batches."""
    collectives.init(timeout_sec=20.0)
    params = SumTask.params().set(
        data=data[collectives.rank()],
        with_collectives=with_collectives,
        as_dict=as_dict,
        name="sums",
    )
    task = EofAwareTask(params.instantiate())
    estimator = GraphEstimator(task.create_model_fn(), f"{directory}/{collectives.rank()}")
    estimator.train(task.create_input_fn(ModeKeys.TRAIN))
    result = [int(estimator.get_variable_value("global_step"))]
    if with_collectives:
        result.append(float(estimator.get_variable_value("w")))
    write(directory, "sums", result)
    collectives.shutdown()


SLOTS = {"item": 2, "user": 3}


def make_rank_table(optimizer):
    configs = {}
    for slot, dim in SLOTS.items():
        config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
        config.cuckoo.SetInParent()
        config.entry_config.segments.append(
            entry.CombineAsSegment(dim, entry.ZerosInitializer(), optimizer, entry.Fp32Compressor())
        )
        configs[slot] = entry.HashTableConfigInstance(config, [0.1])
    return DistributedMultiTypeHashTableMpi(
        collectives.size(),
        lambda rank: multi.MultiHashTable.from_configs(configs, name_suffix=str(rank)),
    )


def make_tables():
    """Returns the op that makes the tables of a graph, which a scaffold would run."""
    resources = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.RESOURCES)
    return tf.group(*[resource.create for resource in resources])


def make_rank_batch(step, rank, size):
    """Returns ids and gradients of a rank: its part of a batch that does not depend on ranks."""
    random = np.random.default_rng(step)
    batch = {}
    for slot, dim in SLOTS.items():
        ids = random.integers(0, 40, 24).astype(np.int64)
        grads = random.normal(size=(24, dim)).astype(np.float32)
        batch[slot] = ids[rank::size], grads[rank::size]
    return batch


def train_tables(directory, optimizer, num_steps):
    """Updates rows with the gradients of all ranks, and writes what all of them are then."""
    collectives.init()
    rank, size = collectives.rank(), collectives.size()
    with tf.Graph().as_default():
        optimizers = {"sgd": entry.SgdOptimizer, "adagrad": entry.AdagradOptimizer}
        table = make_rank_table(optimizers[optimizer]())
        ids = {slot: tf.compat.v1.placeholder(tf.int64, [None]) for slot in SLOTS}
        grads = {slot: tf.compat.v1.placeholder(tf.float32, [None, d]) for slot, d in SLOTS.items()}
        step = tf.compat.v1.placeholder(tf.int64, [])
        rows, bundle = table.lookup(ids, {}, table.reorder(ids))
        update = table.apply_gradients(grads, bundle, step).as_op()
        with make_session() as session:
            session.run(make_tables())
            for number in range(num_steps):
                batch = make_rank_batch(number, rank, size)
                feed = {step: number}
                for slot, (ids_of_slot, grads_of_slot) in batch.items():
                    feed[ids[slot]], feed[grads[slot]] = ids_of_slot, grads_of_slot
                session.run(update, feed)
            # Rank 0 of several asks for nothing.
            everything = np.arange(40 if rank or size == 1 else 0, dtype=np.int64)
            values = session.run(rows, dict.fromkeys(ids.values(), everything))
    write(directory, "rows", {slot: value.tolist() for slot, value in values.items()})
    collectives.shutdown()
