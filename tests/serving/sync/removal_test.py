"""Rows that training has no more go from real servers, however many there are at once."""

import itertools
import os

import numpy as np
import pytest
import tensorflow as tf
from support import serving
from support.waiting import wait_for

from monolith.embedding import entry
from monolith.embedding.tables import multi, multi_snapshots, single, single_snapshots
from monolith.graph.signatures import PredictOutput, ServingInputReceiver
from monolith.graph.spec import GraphSpec
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2 as proto
from monolith.serving.export import StandaloneExporter
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.pusher import RowPusher, SyncSteps
from monolith.serving.sync.targets import ListedTargets

pytestmark = pytest.mark.usefixtures("graph_mode")

v1 = tf.compat.v1

CONFIG = SyncConfig(interval_sec=0.05, timeout_sec=60, flush_sec=60)
CAPACITY = 8
DAY_SEC = 24 * 60 * 60
# Far more than the capacity, and ids that nobody ever had.
IDS = np.arange(30)


def make_config():
    """Returns a table of one number per row, to which each update adds 1; it lives for a day."""
    config = proto.EmbeddingHashTableConfig(cuckoo=proto.CuckooEmbeddingHashTableConfig())
    config.entry_config.segments.append(
        entry.CombineAsSegment(
            1, entry.ZerosInitializer(), entry.SgdOptimizer(), entry.Fp32Compressor()
        )
    )
    config.slot_expire_time_config.default_expire_time = 1
    return entry.HashTableConfigInstance(config, [1.0])


class SetOfTables:
    """A set of two tables; the ids of the second are 100 more."""

    save = multi.MultiHashTableCheckpointSaverListener
    restore = multi_snapshots.MultiHashTableCheckpointRestorerListener

    def __init__(self, client=None):
        configs = {"a": make_config(), "b": make_config()}
        self._table = multi.MultiHashTable.from_configs(
            configs, sync_client=client, name_suffix="synced"
        )
        self.init = self._table.initializer
        self.handles = [self._table.handle]

    def lookup(self, ids):
        rows = self._table.lookup({"a": ids, "b": ids + 100})
        return tf.concat([rows["a"], rows["b"]], 1)

    def update(self, ids, time_sec):
        grads = -tf.ones([tf.size(ids), 1])
        slots = {"a": (ids, grads), "b": (ids + 100, grads)}
        return self._table.apply_gradients(slots, 0, req_time=time_sec).as_op()


class SingleTables:
    """Two single tables."""

    save = single.HashTableCheckpointSaverListener
    restore = single_snapshots.HashTableCheckpointRestorerListener

    def __init__(self, client=None):
        self._tables = [
            single.hash_table_from_config(make_config(), sync_client=client, name_suffix=name)
            for name in ("one", "two")
        ]
        self.init = [table.as_op() for table in self._tables]
        self.handles = [table.table for table in self._tables]

    def lookup(self, ids):
        return tf.concat([table.lookup(ids) for table in self._tables], 1)

    def update(self, ids, time_sec):
        grads = -tf.ones([tf.size(ids), 1])
        return [
            table.apply_gradients(ids, grads, global_step=0, req_time=time_sec).as_op()
            for table in self._tables
        ]


class Training:
    """Tables, and what sends them to a server; a context."""

    _steps = itertools.count(1)

    def __init__(self, tables_class, model_dir, port):
        self._dir = str(model_dir)
        graph = tf.Graph()
        with graph.as_default():
            client = ops.monolith_parameter_sync_client(shared_name="client", capacity=CAPACITY)
            tables = tables_class(client)
            self._ids = v1.placeholder(tf.int64, [None])
            self._time = v1.placeholder(tf.int64, [])
            self._update = tables.update(self._ids, self._time)
            self._lookup = tables.lookup(self._ids)
            self._evicted = [
                ops.monolith_multi_hash_table_evict(handle, self._time).evicted
                for handle in tables.handles
            ]
            v1.train.get_or_create_global_step()
            self._saver_listener = tables_class.save(os.path.join(self._dir, "model.ckpt"))
            self._restorer = tables_class.restore(self._dir)
            self._saver = v1.train.Saver(sharded=True)
            init = [v1.global_variables_initializer(), tables.init]
            steps = SyncSteps([client])
        self._session = v1.Session(graph=graph)
        self._session.run(init)
        steps.run = self._session.run
        backend = ListedTargets({"m": [f"127.0.0.1:{port}"]}, "m")
        self.pusher = RowPusher(steps, 0, backend, CONFIG)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._session.close()

    def update(self, ids, day):
        self._session.run(self._update, {self._ids: ids, self._time: day * DAY_SEC})

    def evict(self, day):
        """Removes what has expired; returns how many rows of all tables."""
        return np.concatenate(self._session.run(self._evicted, {self._time: day * DAY_SEC})).sum()

    def read(self):
        return self._session.run(self._lookup, {self._ids: IDS})

    def save(self):
        """Returns the prefix of the checkpoint."""
        step = next(self._steps)
        with self._session.graph.as_default():
            self._saver_listener.before_save(self._session, step)
            prefix = os.path.join(self._dir, "model.ckpt")
            return self._saver.save(self._session, prefix, global_step=step)

    def restore(self, prefix):
        self._restorer.restore(self._session, prefix)


def export(tables_class, model_dir):
    """Exports the last checkpoint; returns the directory of versions."""

    def model_fn(features, mode, config):
        rows = tables_class().lookup(features["ids"])
        return GraphSpec(
            mode, predictions=rows, export_outputs={"serving_default": PredictOutput(rows)}
        )

    def receive():
        ids = v1.placeholder(tf.int64, [None])
        return ServingInputReceiver({"ids": ids}, {"ids": ids})

    base = os.path.join(str(model_dir), "exported")
    StandaloneExporter(model_fn, str(model_dir), base).export_saved_model(receive)
    return base


def read_served(client):
    response = client.prediction.Predict(serving.make_request({"ids": IDS}), timeout=60)
    return tf.make_ndarray(response.outputs["output"])


@pytest.fixture(params=[SetOfTables, SingleTables])
def tables_class(request):
    return request.param


@pytest.fixture
def exported(tables_class, tmp_path):
    """A model with the rows of 20 ids, and the checkpoint that it is made of."""
    with Training(tables_class, tmp_path, port=1) as training:
        training.update(range(20), day=1)
        prefix = training.save()
    return export(tables_class, tmp_path), prefix


def expect_equal(training, client):
    """What training has, the server has after the last interval."""
    assert training.pusher.close()
    np.testing.assert_array_equal(read_served(client), training.read())


def test_a_mass_of_rows_that_expires_at_once_goes_from_a_server(tables_class, exported, tmp_path):
    base, prefix = exported
    with serving.serving(base, allow_writes=True) as (server, client):
        with Training(tables_class, tmp_path, server.port) as training:
            training.restore(prefix)
            training.update([0], day=1)
            training.pusher.start()
            wait_for(lambda: read_served(client)[0, 0] == 2)
            training.update([0], day=10)
            # Of the 20 rows of each table one was updated since.
            assert training.evict(day=10) == 2 * 19
            expect_equal(training, client)
        assert np.count_nonzero(read_served(client)) == 2


def test_a_server_that_starts_again_with_expired_rows_loses_them(tables_class, exported, tmp_path):
    base, prefix = exported
    with serving.serving(base, allow_writes=True) as (server, client):
        port = server.port
        training = Training(tables_class, tmp_path, port)
        training.restore(prefix)
        training.update([3], day=10)
        training.evict(day=10)
        training.pusher.start()
        wait_for(lambda: np.count_nonzero(read_served(client)) == 2)
    with serving.serving(base, allow_writes=True, port=port) as (server, client), training:
        # Its export has them all; training does nothing meanwhile.
        wait_for(lambda: np.count_nonzero(read_served(client)) == 2)
        expect_equal(training, client)


def test_a_training_that_starts_again_has_rows_removed_that_it_has_lost(
    tables_class, exported, tmp_path
):
    base, prefix = exported
    with serving.serving(base, allow_writes=True) as (server, client):
        with Training(tables_class, tmp_path, server.port) as killed:
            killed.restore(prefix)
            killed.pusher.start()
            killed.update(range(20, 25), day=1)  # In no checkpoint.
            wait_for(lambda: np.count_nonzero(read_served(client)) == 2 * 25)
            killed.pusher.close(0)
        with Training(tables_class, tmp_path, server.port) as training:
            training.restore(prefix)
            training.pusher.start()
            expect_equal(training, client)
        assert np.count_nonzero(read_served(client)) == 2 * 20


def test_a_training_that_has_not_begun_removes_nothing(tables_class, exported, tmp_path):
    base, prefix = exported
    with (
        serving.serving(base, allow_writes=True) as (server, client),
        Training(tables_class, tmp_path, server.port) as training,
    ):
        training.pusher.start()
        # The restore is still to come.
        name = f"m@127.0.0.1:{server.port}"
        wait_for(lambda: training.pusher.get_lags().get(name, 0) > CONFIG.interval_sec)
        wait_for(lambda: training.pusher.get_lags()[name] < CONFIG.interval_sec)
        assert np.count_nonzero(read_served(client)) == 2 * 20
        training.restore(prefix)
        expect_equal(training, client)
