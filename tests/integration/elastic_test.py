"""A checkpoint of N parameter servers restores on M, equal to the last bit."""

import dataclasses
import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from monolith.checkpoint import delta_chain
from monolith.checkpoint import saver as saving
from monolith.checkpoint.restore_hook import CheckpointRestorerHook
from monolith.embedding import entry, filters
from monolith.embedding.sharding import factory as sharded_table_factory
from monolith.embedding.tables import incremental
from monolith.embedding.tables import multi as multi_hash_tables
from monolith.embedding.tables import single as hash_tables
from monolith.graph import devices
from monolith.proto import embedding_hash_table_pb2 as table_proto
from monolith.testing import create_test_ps_cluster

pytestmark = pytest.mark.usefixtures("graph_mode")

# 0: no server at all, everything is in the process.
NUM_SERVERS = (0, 1, 2, 3, 5)
# Each id of a table appears in one or several steps; ids may be negative.
IDS_OF_STEP = [np.arange(-40, 60), np.arange(0, 120, 3), np.arange(-40, 120, 7)]
ALL_IDS = np.unique(np.concatenate(IDS_OF_STEP))
DIMS = {"item": 3, "user": 2}


@pytest.fixture(scope="module")
def cluster():
    servers, config = create_test_ps_cluster(max(NUM_SERVERS))
    # Each graph runs a few times, so making it faster is not worth the time.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return servers, config


@dataclasses.dataclass
class Model:
    """The graph of a model on some servers, with what a test wants of it."""

    num_servers: int
    train: Any
    step_number: tf.Tensor
    hooks: list[Any]
    saver_hook: Any
    read: Callable[[Any], dict[Any, bytes]]


def make_configs():
    configs = {}
    for name, dim in DIMS.items():
        table_config = table_proto.EmbeddingHashTableConfig()
        table_config.cuckoo.SetInParent()
        table_config.entry_config.segments.append(
            entry.CombineAsSegment(
                dim, entry.ZerosInitializer(), entry.AdagradOptimizer(), entry.Fp32Compressor()
            )
        )
        # Separate learning rates, so that equal configs do not share a table.
        configs[name] = entry.HashTableConfigInstance(table_config, [0.1 * dim])
    return configs


def on_variables(num_servers):
    """Variables lie on the servers in turn; those with many rows are cut into a part for each."""
    if num_servers == 0:
        return tf.compat.v1.device(""), tf.compat.v1.variable_scope("")
    setter = tf.compat.v1.train.replica_device_setter(
        ps_tasks=num_servers, ps_device="/job:" + devices.PS_JOB_NAME, worker_device=""
    )
    partitioner = None
    if num_servers > 1:
        partitioner = tf.compat.v1.variable_axis_size_partitioner(
            max_shard_bytes=16, max_shards=num_servers
        )
    return tf.compat.v1.device(setter), tf.compat.v1.variable_scope("", partitioner=partitioner)


def make_model(num_servers, model_dir, delta_steps=None, trains=True):
    """Builds a model with both kinds of tables and variables that have optimizer state."""
    basename = os.path.join(model_dir, "model.ckpt")
    device, scope = on_variables(num_servers)
    with device, scope:
        step = tf.compat.v1.train.get_or_create_global_step()
        kernel = tf.compat.v1.get_variable(
            "kernel", [11, 2], initializer=tf.compat.v1.constant_initializer(1.0), use_resource=True
        )
        bias = tf.compat.v1.get_variable("bias", [], use_resource=True)
        number = tf.compat.v1.placeholder(tf.int64, [])
        rows = tf.reshape(tf.range(22.0), [11, 2]) / 7
        loss = tf.reduce_sum(tf.sin(kernel * rows)) * tf.cos(bias) * tf.cast(number, tf.float32)
        train_dense = tf.compat.v1.train.AdamOptimizer(0.01).minimize(loss)
    hash_filters = filters.create_hash_filters(num_servers, enable_hash_filter=False)
    factory = sharded_table_factory
    tables = [
        factory.create_multi_type_hash_table(
            num_servers, make_configs(), hash_filters, reduce_network_packets=True
        ),
        factory.create_native_multi_hash_table(num_servers, make_configs(), hash_filters),
    ]
    ids = tf.gather(tf.ragged.constant(IDS_OF_STEP, dtype=tf.int64), number % len(IDS_OF_STEP))
    updates = []
    for table in tables if trains else ():
        grads = {
            name: (
                ids,
                tf.sin(tf.cast(ids, tf.float32)[:, None] + tf.range(float(dim)))
                * tf.cast(number + 1, tf.float32),
            )
            for name, dim in DIMS.items()
        }
        updated = table.apply_gradients(grads, global_step=number, req_time=1000 + number)
        updates.append(updated.as_op())
    with tf.control_dependencies([train_dense, *updates]):
        train = tf.compat.v1.assign_add(step, 1)

    saver = saving.PartialRecoverySaver(sharded=True)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, saver)
    for table in tf.compat.v1.get_collection(multi_hash_tables._MULTI_HASH_TABLE_GRAPH_KEY):
        tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, table.initializer)
    tf.compat.v1.add_to_collection(
        tf.compat.v1.GraphKeys.READY_FOR_LOCAL_INIT_OP,
        tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables()),
    )
    restore_hook = CheckpointRestorerHook(
        [
            hash_tables.HashTableCheckpointRestorerListener(basename),
            multi_hash_tables.MultiHashTableCheckpointRestorerListener(basename),
        ]
    )
    saver_hook = saving.NoFirstSaveCheckpointSaverHook(
        model_dir,
        save_steps=10**6,
        saver=saver,
        listeners=[
            hash_tables.HashTableCheckpointSaverListener(basename),
            multi_hash_tables.MultiHashTableCheckpointSaverListener(basename),
        ],
    )
    hooks = [restore_hook, saver_hook]
    if delta_steps is not None:
        hooks.append(incremental.IncrementalCheckpointSaverHook(saver_hook, save_steps=delta_steps))
    return Model(num_servers, train, number, hooks, saver_hook, make_reader())


def make_reader():
    """Returns a function that reads all rows and variables, wherever they are."""
    singles, multis = {}, {}
    for table in tf.compat.v1.get_collection(hash_tables._HASH_TABLE_GRAPH_KEY):
        singles[table.name] = table.lookup_entry(ALL_IDS), table.size()
    for table in tf.compat.v1.get_collection(multi_hash_tables._MULTI_HASH_TABLE_GRAPH_KEY):
        entries = table.lookup_entry(dict.fromkeys(DIMS, ALL_IDS))
        multis[table.shared_name] = entries, table.sizes()
    variables = tf.compat.v1.global_variables()

    def read(session):
        state, num_rows = {}, 0
        read_singles, read_multis, values = session.run([singles, multis, variables])
        for name, (entries, size) in read_singles.items():
            whole = next(slot for slot in DIMS if slot_in(name, slot))
            num_rows += int(size)
            add_rows(state, ("single", whole), entries)
        for by_table, sizes in read_multis.values():
            num_rows += int(sizes.sum())
            for slot, entries in by_table.items():
                add_rows(state, ("multi", slot), entries)
        assert num_rows == len(state)  # Nothing but these rows, and none on two servers.
        parts = {}
        for variable, value in zip(variables, values, strict=True):
            info = variable._save_slice_info
            name = info.full_name if info else variable.op.name
            start = info.var_offset[0] if info else 0
            parts.setdefault(name, {})[start] = np.atleast_1d(value)
        for name, by_start in parts.items():
            state["variable", name] = np.concatenate(
                [by_start[start] for start in sorted(by_start)]
            ).tobytes()
        return state

    return read


def slot_in(table_name, slot):
    # A merged table of one slot is named by the hash of its slots.
    return hashlib.md5(slot.encode()).hexdigest() in table_name


def add_rows(state, table, entries):
    for row_id, dump in zip(ALL_IDS, entries, strict=True):
        if dump:
            assert (*table, row_id) not in state
            state[(*table, row_id)] = dump


def open_session(cluster, model, model_dir):
    servers, config = cluster
    for server in servers:
        tf.compat.v1.Session.reset(server.target)
    return tf.compat.v1.train.MonitoredTrainingSession(
        master=servers[0].target if model.num_servers else "",
        config=config if model.num_servers else None,
        checkpoint_dir=str(model_dir),
        hooks=model.hooks,
        save_checkpoint_secs=None,
        save_summaries_steps=None,
        save_summaries_secs=None,
    )


def train_and_save(cluster, num_servers, model_dir, num_steps=3, **settings):
    """Trains, saves, and returns what the tables and variables hold."""
    with tf.Graph().as_default():
        model = make_model(num_servers, str(model_dir), **settings)
        with open_session(cluster, model, model_dir) as session:
            for number in range(num_steps):
                session.run(model.train, {model.step_number: number})
            return model.read(session._tf_sess())


def restore(cluster, num_servers, model_dir, num_steps=0, **settings):
    """Restores, trains a little, and returns what the tables and variables hold."""
    with tf.Graph().as_default():
        model = make_model(num_servers, str(model_dir), trains=num_steps > 0, **settings)
        model.hooks.remove(model.saver_hook)  # Nothing is saved here.
        with open_session(cluster, model, model_dir) as session:
            for number in range(3, 3 + num_steps):
                session.run(model.train, {model.step_number: number})
            return model.read(session._tf_sess())


def check_equal(state, expected):
    assert state.keys() == expected.keys()
    assert {key for key in state if state[key] != expected[key]} == set()


@pytest.mark.parametrize("saved_by", NUM_SERVERS)
def test_save_with_n_restore_with_m(cluster, saved_by, tmp_path):
    saved = train_and_save(cluster, saved_by, tmp_path)
    assert sum(key[0] == "single" for key in saved) == 2 * len(ALL_IDS)
    assert sum(key[0] == "multi" for key in saved) == 2 * len(ALL_IDS)
    assert {"kernel", "kernel/Adam", "bias/Adam_1"} <= {k[1] for k in saved if k[0] == "variable"}
    assert np.count_nonzero(np.frombuffer(saved["variable", "kernel/Adam"], np.float32)) > 20
    for restored_by in NUM_SERVERS:
        check_equal(restore(cluster, restored_by, tmp_path), saved)


def test_training_goes_on_the_same_on_other_servers(cluster, tmp_path):
    train_and_save(cluster, 2, tmp_path)
    expected = restore(cluster, 2, tmp_path, num_steps=2)
    check_equal(restore(cluster, 3, tmp_path, num_steps=2), expected)


def test_checkpoint_with_deltas_restores_on_other_servers(cluster, tmp_path):
    saved = []
    with tf.Graph().as_default():
        model = make_model(3, str(tmp_path), delta_steps=1)
        session = open_session(cluster, model, tmp_path)
        for number in range(3):
            session.run(model.train, {model.step_number: number})
            saved.append(model.read(session._tf_sess()))
        session._tf_sess().close()  # As if the process were killed: no last save.
    base = tf.train.latest_checkpoint(str(tmp_path))
    assert base.endswith("model.ckpt-1")
    steps = [delta.step for delta in delta_chain.read(base)]
    assert steps == [2, 3]
    assert saved[0].keys() < saved[2].keys()
    for restored_by in (3, 2, 0):
        check_equal(restore(cluster, restored_by, tmp_path), saved[2])


class TestFilters:
    """An id gets a row at its third occurrence, if the filter remembers the first two."""

    THRESHOLDS = table_proto.SlotOccurrenceThresholdConfig(
        default_occurrence_threshold=2
    ).SerializeToString()

    def run(self, cluster, num_servers, model_dir, num_occurrences, by_table=False):
        """Restores what is there, lets ids occur, saves, and returns how many of them have rows."""
        basename = f"{model_dir}/model.ckpt"
        servers, config = cluster
        for server in servers:
            tf.compat.v1.Session.reset(server.target)
        with tf.Graph().as_default():
            hash_filters = filters.create_hash_filters(
                num_servers,
                True,
                b"" if by_table else self.THRESHOLDS,
                filter_capacity=10000,
                filter_split_num=5,
            )
            config_of_table = make_configs()["user"]
            if by_table:
                config_of_table.table_config.occurrence_threshold = 2
            table = sharded_table_factory.create_multi_type_hash_table(
                num_servers, {"user": config_of_table}, hash_filters
            )
            values = np.ones([len(ALL_IDS), DIMS["user"]], np.float32)
            occur = table.assign_add({"user": (ALL_IDS, values)}).as_op()
            rows = table.lookup({"user": ALL_IDS})["user"]
            step = tf.compat.v1.train.get_or_create_global_step()
            saver = saving.PartialRecoverySaver(sharded=True)
            save = filters.HashFilterCheckpointSaverListener(basename, hash_filters, True)
            restore = filters.HashFilterCheckpointRestorerListener(basename, hash_filters, True)
            with tf.compat.v1.Session(servers[0].target, config=config) as session:
                session.run(step.initializer)
                session.run([hash_filter.op for hash_filter in hash_filters])
                restore.before_restore(session)
                for _ in range(num_occurrences):
                    session.run(occur)
                save.before_save(session, 0)
                saver.save(session, basename, global_step=0)
                return int(np.count_nonzero(session.run(rows)[:, 0]))

    @pytest.mark.parametrize(("saved_by", "restored_by"), [(2, 2), (2, 4), (1, 3)])
    @pytest.mark.parametrize("by_table", [False, True], ids=["by_slot", "by_table"])
    def test_counts_go_on(self, cluster, saved_by, restored_by, by_table, tmp_path):
        assert self.run(cluster, saved_by, tmp_path, 2, by_table) == 0
        assert self.run(cluster, restored_by, tmp_path, 1, by_table) == len(ALL_IDS)

    @pytest.mark.parametrize(("saved_by", "restored_by"), [(2, 1), (2, 3)])
    def test_counts_start_anew(self, cluster, saved_by, restored_by, tmp_path, caplog):
        assert self.run(cluster, saved_by, tmp_path, num_occurrences=2) == 0
        with caplog.at_level("WARNING"):
            assert self.run(cluster, restored_by, tmp_path, num_occurrences=2) == 0
        assert f"has those of {saved_by} servers, which {restored_by} servers cannot" in caplog.text
