"""One embedding table: reading, writing, updating, and what a meta graph keeps of it.

Covers monolith/embedding/tables/table.py.
"""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import entry, filters
from monolith.embedding.tables import single
from monolith.graph import export_mode
from monolith.graph import metadata as graph_meta
from monolith.native_training import hash_table_ops
from monolith.optimizer import learning_rate
from monolith.proto import embedding_hash_table_pb2, hash_table_ops_pb2

INT64 = np.iinfo(np.int64)


def round_trip(make_table) -> single.HashTable:
    """Makes a table in a name scope and finds it again through its proto."""
    with tf.compat.v1.name_scope("table") as scope:
        table = make_table()
    scope = scope.rstrip("/")
    table_proto = table.to_proto(export_scope=scope)
    assert not table_proto.table_tensor.startswith(scope)
    return single.HashTable.from_proto(table_proto, import_scope=scope)


def make_table(dim: int = 1, **kwargs) -> single.HashTable:
    return round_trip(lambda: single.test_hash_table(dim, **kwargs))


def make_config(segments, learning_rates=None) -> entry.HashTableConfigInstance:
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    entry.CuckooHashTableConfig().mutate_table(config)
    config.entry_config.segments.extend(segments)
    return entry.HashTableConfigInstance(config, learning_rates or [1.0] * len(segments))


def sgd_segment(dim: int, initializer: entry.Initializer | None = None):
    return entry.CombineAsSegment(
        dim,
        initializer or entry.ZerosInitializer(),
        entry.SgdOptimizer(),
        entry.Fp32Compressor(),
    )


def run(fetches, feed_dict=None):
    with tf.compat.v1.Session() as session:
        return session.run(fetches, feed_dict)


def test_helper_is_not_a_test():
    # Where a test imports it by name, pytest would call it.
    assert single.test_hash_table.__test__ is False


def test_historical_path_gives_the_same_module():
    assert hash_table_ops is single
    assert hash_table_ops._TIMEOUT_IN_MS == 3600000
    assert hash_table_ops._HASH_TABLE_GRAPH_KEY == "monolith_hash_tables"


@pytest.mark.usefixtures("graph_mode")
class TestReadAndWrite:
    def test_basic(self):
        table = make_table()
        table = table.assign_add([0, 1], tf.ones([2, 1]))
        values, size = run([table.lookup([0, 1, 2]), table.size()])
        assert values.tolist() == [[1], [1], [0]]
        assert size == 2
        assert table.name != "MonolithHashTable"
        assert table.name.startswith("MonolithHashTable_")
        assert table.dim_size == 1

    def test_assign(self):
        table = make_table()
        table = table.assign([0, 1], tf.ones([2, 1]))
        table = table.assign([1], [5.0])
        assert run(table.lookup([0, 1, 2])).tolist() == [[1], [5], [0]]

    def test_assign_of_equal_ids_keeps_the_last(self):
        table = make_table(2).assign([3, 3], [[1.0, 2.0], [3.0, 4.0]])
        assert run(table.lookup([3])).tolist() == [[3, 4]]

    def test_assign_add_of_equal_ids_adds_all(self):
        table = make_table(2).assign_add([3, 3], [[1.0, 2.0], [3.0, 4.0]])
        assert run(table.lookup([3])).tolist() == [[4, 6]]

    def test_new_rows_start_from_the_initializer(self):
        config = make_config([sgd_segment(2, entry.ConstantsInitializer(0.5))])
        table = round_trip(lambda: single.hash_table_from_config(config, name_suffix="c"))
        added = table.assign_add([1], [[1.0, 2.0]])
        assigned = added.assign([2], [[1.0, 2.0]])
        updated = assigned.apply_gradients([3], [[1.0, 2.0]], 0)
        assert run(updated.lookup([1, 2, 3, 4])).tolist() == [
            [1.5, 2.5],
            [1, 2],
            [-0.5, -1.5],
            [0, 0],
        ]

    def test_random_uniform_rows(self):
        config = make_config([sgd_segment(4, entry.RandomUniformInitializer(0.25, 0.5))])
        table = single.hash_table_from_config(config, name_suffix="u")
        ids = tf.range(1000, dtype=tf.int64)
        rows = run(table.assign_add(ids, tf.zeros([1000, 4])).lookup(ids))
        assert rows.min() >= 0.25
        assert rows.max() < 0.5
        # The mean of 4000 draws is off by more than 0.005 only once in 10^5 cases.
        assert rows.mean() == pytest.approx(0.375, abs=0.005)
        assert len(np.unique(rows)) > 3900

    def test_lookup_entry(self):
        table = make_table().assign_add([0, 1, 2], [[0.1], [0.2], [0.3]], req_time=7)
        entries = run(table.lookup_entry([0, 1, 2, 3]))
        for value, serialized in zip([0.1, 0.2, 0.3], entries[:3], strict=True):
            dump = embedding_hash_table_pb2.EntryDump.FromString(serialized)
            assert dump.num == pytest.approx([value])
            assert dump.last_update_ts_sec == 7
            assert dump.opt.dump[0].WhichOneof("type") == "sgd"
            assert not dump.HasField("id")
        assert entries[3] == b""

    def test_ids_may_be_any_64_bits(self):
        ids = [0, -1, 1, INT64.min, INT64.max, 1 << 48, -(1 << 48)]
        values = [[float(i)] for i in range(1, len(ids) + 1)]
        table = make_table().assign(ids, values)
        rows, size = run([table.lookup([*ids, 2]), table.size()])
        assert rows.tolist() == [*values, [0]]
        assert size == len(ids)

    def test_rows_keep_the_shape_of_the_ids(self):
        table = make_table(2).assign([[1], [2]], [[1.0, 2.0], [3.0, 4.0]])
        rows = table.lookup(tf.constant([[1], [2]], tf.int64))
        assert rows.shape == [2, 1, 2]
        assert run(rows).tolist() == [[[1, 2]], [[3, 4]]]
        assert run(table.lookup(1)).tolist() == [1, 2]
        assert run(table.lookup(tf.zeros([0, 3], tf.int64))).shape == (0, 3, 2)

    def test_rows_keep_a_shape_that_is_known_late(self):
        table = make_table(2).assign([1, 2], [[1.0, 2.0], [3.0, 4.0]])
        ids = tf.compat.v1.placeholder(tf.int64, [None, 2])
        some = tf.compat.v1.placeholder(tf.int64)
        rows = table.lookup(ids)
        assert rows.shape.as_list() == [None, 2, 2]
        feeds = {ids: [[1, 2], [2, 3]], some: [[[2]]]}
        with tf.compat.v1.Session() as session:
            found, single = session.run([rows, table.lookup(some)], feeds)
        assert found.tolist() == [[[1, 2], [3, 4]], [[3, 4], [0, 0]]]
        assert single.tolist() == [[[[3, 4]]]]

    def test_gradients_of_rows_in_another_shape(self):
        table = make_table(2)
        loss = tf.reduce_sum(table.lookup([[7, 8], [7, 9]]) * [1.0, 2.0])
        (slices,) = tf.gradients(loss, table.table)
        ids, values = run([slices.indices, slices.values])
        assert ids.tolist() == [7, 8, 7, 9]
        assert values.tolist() == [[1, 2]] * 4

    def test_no_ids(self):
        table = make_table(2)
        none = tf.constant([], tf.int64)
        for written in (
            table.assign(none, tf.zeros([0, 2])),
            table.assign_add(none, tf.zeros([0, 2])),
            table.apply_gradients(none, tf.zeros([0, 2]), 0),
        ):
            rows, size = run([written.lookup(none), written.size()])
            assert rows.shape == (0, 2)
            assert size == 0

    def test_static_shapes(self):
        table = make_table(3)
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        assert table.lookup([1, 2]).shape == [2, 3]
        assert table.lookup(ids).shape.as_list() == [None, 3]
        assert table.lookup_entry([1, 2]).shape == [2]
        assert table.size().shape == []
        assert table.assign([1], [[0.0] * 3]).table.shape == []

    def test_many_ids_with_several_threads(self):
        # More than the number from which on work is spread over threads.
        ids = np.random.default_rng(0).permutation(40000).astype(np.int64)
        rows = np.stack([ids, -ids], 1).astype(np.float32)
        table = make_table(2).assign(ids, rows)
        table = table.apply_gradients(ids, rows / 2, 0, use_multi_threads=True)
        found, size = run([table.lookup(ids, use_multi_threads=True), table.size()])
        np.testing.assert_array_equal(found, rows / 2)
        assert size == 40000

    def test_old_wrapper_still_works(self):
        table = make_table()
        written = table.assign([1], [[1.0]])
        with tf.control_dependencies([written.as_op()]):
            rows = table.lookup([1])
        assert run(rows).tolist() == [[1]]

    def test_table_update(self):
        table = make_table()
        write = table.assign([1], [[1.0]]).as_op()
        assert run(table.table_update(write).lookup([1])).tolist() == [[1]]


@pytest.mark.usefixtures("graph_mode")
class TestNames:
    def test_name_conflict(self):
        single.test_hash_table(1, name_suffix="same")
        with pytest.raises(
            ValueError, match=r"^shared_name MonolithHashTable_same has already been used\.$"
        ):
            single.test_hash_table(1, name_suffix="same")

    def test_names_of_test_tables_differ(self):
        names = {single.test_hash_table(1).name for _ in range(3)}
        assert len(names) == 3

    def test_another_graph_may_use_the_name(self):
        first = single.test_hash_table(1, name_suffix="same")
        with tf.Graph().as_default():
            second = single.test_hash_table(1, name_suffix="same")
        assert first.name == second.name

    def test_metadata(self):
        table = single.test_hash_table(1, name_suffix="a")
        metadata = single.HashTable.get_metadata()
        assert metadata is graph_meta.get_meta("hash_table_metadata", list)
        assert metadata.name_set == {"MonolithHashTable_a"}
        assert metadata.tensor_table_to_obj_dict[table.table.ref()] is table

    def test_op_and_shared_name(self):
        table = single.test_hash_table(1, name_suffix="a:b/c")
        assert table.name == "MonolithHashTable_a:b/c"
        assert table.table.op.name == "MonolithHashTable_a_b/c"
        assert table.table.op.get_attr("shared_name") == b"MonolithHashTable_a:b/c"
        assert table.table.device == "/device:CPU:0"

    def test_vocab_hash_table(self):
        table = single.vocab_hash_table(2, 3, learning_rate=0.5)
        updated = table.apply_gradients([100], [[1.0, 2.0, 3.0]], 0)
        assert run(updated.lookup([100])).tolist() == [[-0.5, -1, -1.5]]


@pytest.mark.usefixtures("graph_mode")
class TestGradients:
    def apply(self, table, ids=(0, 0, 1)):
        """Gradients of minus the sum of the rows are -1."""
        ids = tf.constant(ids, tf.int64)
        rows = table.lookup(ids)
        (grads,) = tf.gradients(-tf.reduce_sum(rows), rows)
        return table.apply_gradients(ids, grads, tf.compat.v1.train.get_or_create_global_step())

    @pytest.mark.parametrize("rate", [0.1, lambda: 0.1], ids=["number", "callable"])
    def test_sgd(self, rate):
        table = self.apply(make_table(learning_rate=rate))
        rows = table.lookup([0, 1])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            np.testing.assert_allclose(session.run(rows), [[0.2], [0.1]])

    def test_polynomial_decay(self):
        step = tf.compat.v1.train.get_or_create_global_step()
        table = make_table(learning_rate=learning_rate.PolynomialDecay(0.01, 10, 0.11))
        rows = self.apply(table).lookup([0, 1])
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(tf.compat.v1.assign(step, 1))
            np.testing.assert_allclose(session.run(rows), [[0.04], [0.02]], rtol=1e-6)

    def test_dedup(self):
        table = make_table(10, learning_rate=0.1)
        ids = [0, 1, 0, 1, 0]
        table = table.apply_gradients(ids, -tf.ones([5, 10]), 0, enable_dedup=True)
        expected = [[0.3] * 10, [0.2] * 10]
        np.testing.assert_allclose(run(table.lookup([0, 1])), expected, rtol=1e-6)

    def test_dedup_makes_one_step_per_id(self):
        # adagrad, acc 0.1: one step of g=2 is not two steps of g=1.
        table = make_table(use_adagrad=True)
        once = table.apply_gradients([0, 0], [[1.0], [1.0]], 0, enable_dedup=True)
        twice = once.apply_gradients([1, 1], [[1.0], [1.0]], 0)
        expected = [[-2 / np.sqrt(4.1)], [-1 / np.sqrt(1.1) - 1 / np.sqrt(2.1)]]
        np.testing.assert_allclose(run(twice.lookup([0, 1])), expected, rtol=1e-6)

    def test_grads_applied_to_other_ids(self):
        table = make_table(learning_rate=0.1)
        rows = table.lookup([0, 1, 2])
        (grads,) = tf.gradients(-tf.reduce_sum(rows), rows)
        table = table.apply_gradients([1, 0, 1], grads, 0)
        np.testing.assert_allclose(run(table.lookup([0, 1])), [[0.1], [0.2]])

    def test_scalar_gradient_for_one_id(self):
        table = make_table().apply_gradients([0], tf.constant(2.0), 0)
        assert run(table.lookup([0])).tolist() == [[-2]]

    def test_gradient_by_the_handle_is_what_the_update_takes(self):
        table = make_table(2).assign([1, 2], [[1.0, 2.0], [3.0, 4.0]])
        rows = table.lookup(tf.constant([[1], [2], [1]], tf.int64))
        again = table.lookup([2])
        loss = tf.reduce_sum(rows * [[[1.0]], [[2.0]], [[3.0]]]) + tf.reduce_sum(again * again)
        (slices,) = tf.gradients(loss, table.table)
        assert isinstance(slices, tf.IndexedSlices)
        updated = table.apply_gradients(slices.indices, slices.values, 0, enable_dedup=True)
        # d/d row 1 = 1 + 3, d/d row 2 = 2 + 2 * (3, 4).
        assert run(updated.lookup([1, 2])).tolist() == [[-3, -2], [-5, -6]]

    def test_gradient_stops_at_a_write(self):
        table = make_table()
        written = table.assign([1], [[1.0]])
        assert tf.gradients(written.lookup([1]), table.table) == [None]
        ids, values = tf.constant([1], tf.int64), tf.constant([[1.0]])
        assert tf.gradients(table.assign(ids, values).lookup(ids), values) == [None]

    def test_segments_have_their_own_learning_rates(self):
        config = make_config([sgd_segment(1), sgd_segment(2)], [1.0, 2.0])
        table = round_trip(lambda: single.hash_table_from_config(config, name_suffix="s"))
        table = table.apply_gradients([7], [[1.0, 2.0, 3.0]], 0)
        assert run(table.lookup([7])).tolist() == [[-1, -4, -6]]

    def test_batch_softmax(self):
        # Estimates how often an id comes: id 0 every 5 steps, id 1 every 10.
        segment = entry.CombineAsSegment(
            1,
            entry.BatchSoftmaxInitializer(1.0),
            entry.BatchSoftmaxOptimizer(),
            entry.Fp32Compressor(),
        )
        table = round_trip(
            lambda: single.hash_table_from_config(make_config([segment], [0.1]), name_suffix="b")
        )
        ids = tf.compat.v1.placeholder(tf.int64, [None])
        step = tf.compat.v1.placeholder(tf.int64, [])
        update = table.apply_gradients(ids, tf.zeros_like(ids, tf.float32), step).as_op()
        rows = table.lookup([0, 1])
        with tf.compat.v1.Session() as session:
            run_step = session.make_callable(update, [ids, step])
            for i in range(1, 1001):
                due = [0] * (i % 5 == 0) + [1] * (i % 10 == 0)
                if due:
                    run_step(np.array(due, np.int64), i)
            frequency = 1 / np.maximum(session.run(rows), 1)
        np.testing.assert_allclose(frequency, [[0.2], [0.1]], atol=0.01)


@pytest.mark.usefixtures("graph_mode")
class TestFilter:
    def test_occurrence_threshold(self):
        table = make_table(enable_hash_filter=True, occurrence_threshold=3, learning_rate=0.1)
        update = table.apply_gradients([0, 0, 1], -tf.ones([3, 1]), 0)
        rows = update.lookup([0, 1])
        expected = [[[0], [0]], [[0.1], [0]], [[0.3], [0]], [[0.5], [0.1]]]
        with tf.compat.v1.Session() as session:
            for after_run in expected:
                np.testing.assert_allclose(session.run(rows), after_run, rtol=1e-6)

    def test_dedup_charges_the_filter_with_the_number_of_occurrences(self):
        table = make_table(enable_hash_filter=True, occurrence_threshold=3)
        update = table.apply_gradients([0, 0], -tf.ones([2, 1]), 0, enable_dedup=True)
        rows = update.lookup([0])
        with tf.compat.v1.Session() as session:
            # Counts before the runs are 0, 2 and 4; an id passes when it is at least 3.
            assert [session.run(rows).tolist() for _ in range(3)] == [[[0]], [[0]], [[2]]]

    @pytest.mark.parametrize("method", ["assign", "assign_add"])
    def test_writes_are_filtered_too_but_lookups_are_not_counted(self, method):
        table = make_table(enable_hash_filter=True, occurrence_threshold=1)
        write = getattr(table, method)([5], [[1.0]])
        rows, lookup = write.lookup([5]), table.lookup([5])
        with tf.compat.v1.Session() as session:
            for _ in range(3):
                assert session.run(lookup).tolist() == [[0]]
            assert session.run(rows).tolist() == [[0]]
            assert session.run(rows).tolist() == [[1]]

    def test_probabilistic_filter(self):
        thresholds = embedding_hash_table_pb2.SlotOccurrenceThresholdConfig(
            default_occurrence_threshold=10
        ).SerializeToString()
        table = single.hash_table_from_config(
            make_config([sgd_segment(1)]),
            hash_filter=filters.create_probabilistic_filter(False, thresholds),
            name_suffix="p",
        )
        size = table.assign_add(tf.range(5000, dtype=tf.int64), tf.ones([5000, 1])).size()
        # 5000 draws with probability 0.1: 500, with a deviation of 21.
        assert run(size) == pytest.approx(500, abs=110)


@pytest.mark.usefixtures("graph_mode")
class TestFusedOps:
    def test_fused_lookup(self):
        dims = [1, 1, 2]
        tables = [make_table(dim) for dim in dims]
        tables[0] = tables[0].assign_add([0, 1], tf.ones([2, 1]))
        tables[1] = tables[1].assign_add([2], tf.ones([1, 1]))
        tables[2] = tables[2].assign_add([6, 7], tf.ones([2, 2]))
        result = single.fused_lookup(
            [table.table for table in tables], [0, 4, 6, 1, 3, 7], [1] * 6, num_of_shards=2
        )
        embeddings, splits, id_offsets, emb_offsets, indices = run(result)
        assert embeddings.tolist() == [1, 0, 1, 1, 1, 0, 1, 1]
        assert splits.tolist() == [4, 4]
        assert id_offsets.tolist() == [0, 1, 2, 3, 4, 5, 6]
        assert emb_offsets.tolist() == [0, 1, 2, 4, 5, 6, 8]
        assert indices.tolist() == [0, 4, 6, 1, 3, 7]

    def test_fused_optimize(self):
        tables = [make_table(dim, learning_rate=0.1) for dim in (1, 2)]
        tables[0] = tables[0].assign_add([0, 1], tf.ones([2, 1]))
        handles = [table.table for table in tables]
        ids, sizes = [0, 4, 1, 3], [1, 1, 1, 1]
        _, _, id_offsets, emb_offsets, indices = single.fused_lookup(handles, ids, sizes, 2)
        rates = tf.concat([table.learning_rate_tensor for table in tables], 0)
        handles = single.fused_apply_gradient(
            handles,
            ids,
            indices,
            sizes,
            [-1.0, -2.0, -2.0, -1.0, -2.0, -2.0],
            id_offsets,
            emb_offsets,
            rates,
            req_time=0,
            global_step=0,
            num_of_shards=2,
        )
        assert len(handles) == 2
        embeddings, splits, id_offsets, emb_offsets, _ = run(
            single.fused_lookup(handles, ids, sizes, 2)
        )
        np.testing.assert_allclose(embeddings, [1.1, 0.2, 0.2, 1.1, 0.2, 0.2], rtol=1e-6)
        assert splits.tolist() == [3, 3]
        assert id_offsets.tolist() == [0, 1, 2, 3, 4]
        assert emb_offsets.tolist() == [0, 1, 3, 4, 6]

    @pytest.mark.parametrize(
        ("accumulate", "expected"),
        [
            (False, -1 / np.sqrt(1.1) - 1 / np.sqrt(2.1)),
            (True, -2 / np.sqrt(4.1)),
        ],
    )
    def test_equal_ids_in_one_block(self, accumulate, expected):
        table = make_table(use_adagrad=True)
        (handle,) = single.fused_apply_gradient(
            [table.table],
            [5, 5],
            [5, 5],
            [2],
            [1.0, 1.0],
            [0, 2],
            [0, 2],
            table.learning_rate_tensor,
            None,
            0,
            num_of_shards=1,
            enable_grad_accumulation=accumulate,
        )
        rows = table.table_update(handle).lookup([5])
        np.testing.assert_allclose(run(rows), [[expected]], rtol=1e-6)

    def test_fused_slot_size_must_fit_the_tables(self):
        tables = [make_table().table, make_table().table]
        with pytest.raises(ValueError, match=r"must be 4 but is 3|expected.*4"):
            single.fused_lookup(tables, [0], [1, 0, 0], 2)
        with pytest.raises(ValueError, match="rank 1"):
            single.fused_lookup(tables, [0], [[1, 0], [0, 0]], 2)


@pytest.mark.usefixtures("graph_mode")
class TestProto:
    def test_collection_in_meta_graph(self):
        table = single.test_hash_table(3, extra_restore_names=["old"])
        meta_graph = tf.compat.v1.train.export_meta_graph()
        collection = meta_graph.collection_def["monolith_hash_tables"]
        (serialized,) = collection.bytes_list.value
        table_proto = hash_table_ops_pb2.HashTableProto.FromString(serialized)
        assert table_proto.shared_name == table.name
        assert table_proto.dim_size == 3
        assert table_proto.extra_restore_names == ["old"]

    def test_imported_meta_graph_has_working_tables(self):
        table = single.test_hash_table(2, learning_rate=0.5)
        meta_graph = tf.compat.v1.train.export_meta_graph()
        with tf.Graph().as_default():
            tf.compat.v1.train.import_meta_graph(meta_graph, import_scope="imported")
            (imported,) = tf.compat.v1.get_collection("monolith_hash_tables")
            assert imported.name == table.name
            assert imported.table.name.startswith("imported/")
            rows = imported.apply_gradients([1], [[2.0, 4.0]], 0).lookup([1])
            assert run(rows).tolist() == [[-1, -2]]

    def test_rebuilt_table_keeps_everything_and_is_not_collected(self):
        table = single.hash_table_from_config(
            make_config([sgd_segment(3)]), name_suffix="a", saver_parallel=5
        )
        table.export_share_embedding = True
        rebuilt = single.HashTable.from_proto(table.to_proto())
        assert rebuilt.to_proto() == table.to_proto()
        assert rebuilt.to_proto().saver_parallel == 5
        assert len(tf.compat.v1.get_collection("monolith_hash_tables")) == 1

    def test_extra_restore_names_are_a_list_after_from_proto(self):
        table = single.test_hash_table(1, extra_restore_names=("old", "older"))
        rebuilt = single.HashTable.from_proto(table.to_proto())
        assert rebuilt.extra_restore_names + ["x"] == ["old", "older", "x"]

    @pytest.mark.parametrize(
        ("value", "number"), [(None, -1), (False, 0), (True, 1)], ids=["none", "false", "true"]
    )
    def test_export_share_embedding(self, value, number):
        table = single.test_hash_table(1)
        assert table.export_share_embedding is None
        table.export_share_embedding = value
        assert table.to_proto().export_share_embedding == number
        rebuilt = single.HashTable.from_proto(table.to_proto())
        assert rebuilt.export_share_embedding is value

    def test_scope_that_the_table_is_not_in(self):
        assert single.test_hash_table(1).to_proto(export_scope="elsewhere") is None

    def test_table_without_learning_rates(self):
        handle = single.test_hash_table(1).table
        table = single.HashTable(handle, "by_hand", 1)
        rebuilt = single.HashTable.from_proto(table.to_proto())
        assert run(rebuilt.lookup([1])).tolist() == [[0]]
        with pytest.raises(errors.ConfigError, match="Table by_hand has no learning rates"):
            rebuilt.apply_gradients([1], [[1.0]], 0)


@pytest.mark.usefixtures("graph_mode")
class TestFromConfig:
    def test_config_is_copied(self):
        config = make_config([sgd_segment(1)])
        with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
            single.hash_table_from_config(config, name_suffix="a")
        assert not config.table_config.entry_config.HasField("entry_type")

    def test_type_must_be_set(self):
        config = make_config([sgd_segment(1)])
        config.table_config.ClearField("cuckoo")
        with pytest.raises(ValueError, match="The table config has no `type`"):
            single.hash_table_from_config(config)

    def test_learning_rates_must_fit_the_segments(self):
        config = make_config([sgd_segment(1), sgd_segment(1)], [1.0])
        with pytest.raises(
            ValueError, match=r"^Size of learning_rate_fns and size of segments must be equal\.$"
        ):
            single.hash_table_from_config(config)

    def test_gpu_tables_are_refused(self):
        with pytest.raises(NotImplementedError, match="no hash tables on GPUs"):
            single.test_hash_table(1, use_gpu=True)

    def test_arguments_are_missing(self):
        with pytest.raises(errors.ConfigError, match="needs `table`, `shared_name`"):
            single.HashTable()


@pytest.mark.usefixtures("graph_mode")
class TestRowsAsTensors:
    def test_every_row_comes_once(self):
        ids = list(range(100))
        table = make_table().assign(ids, [[float(i)] for i in ids])
        shard = tf.compat.v1.placeholder(tf.int32, [])
        offset = tf.compat.v1.placeholder(tf.int64, [])
        portion = table.save_as_tensor(shard, 4, 7, offset)
        assert portion[1].op.name.endswith("monolith_hash_table_save_as_tensor")
        found = {}
        with tf.compat.v1.Session() as session:
            for i in range(4):
                next_offset, entries = 0, range(7)
                while len(entries) == 7:
                    next_offset, entries = session.run(portion, {shard: i, offset: next_offset})
                    assert next_offset > 0
                    assert len(entries) <= 7
                    for serialized in entries:
                        dump = embedding_hash_table_pb2.EntryDump.FromString(serialized)
                        assert dump.id not in found
                        found[dump.id] = list(dump.num)
        assert found == {i: [float(i)] for i in ids}

    def test_expired_rows_come_too(self):
        table = make_table(expire_time=1).assign([1], [[1.0]], req_time=0)
        table = table.assign([2], [[1.0]], req_time=10 * 86400)
        assert len(run(table.save_as_tensor(0, 1, 10, 0))[1]) == 2

    def test_extract_slot_from_entry(self):
        dumps = [
            embedding_hash_table_pb2.EntryDump(id=i).SerializeToString()
            for i in (1 << 48, 3 << 54, -1)
        ]
        slots = [
            single.extract_slot_from_entry(dumps),
            single.extract_slot_from_entry(dumps, fid_v2=False),
        ]
        # 3 << 54 is slot 192 of the newer layout; -1 has all bits set.
        assert [s.tolist() for s in run(slots)] == [[1, 192, 32767], [0, 3, 1023]]


@pytest.mark.usefixtures("graph_mode")
def test_evict_removes_rows_that_have_expired():
    day = 86400
    # Per-slot times: slots 0, 1, 2 live 0, 5 and 6 days; the others 14.
    config = make_config([sgd_segment(1)])
    times = config.table_config.slot_expire_time_config
    times.default_expire_time = 14
    for slot, days in enumerate([0, 5, 6]):
        times.slot_expire_times.add(slot=slot, expire_time=days)
    table = single.hash_table_from_config(config, name_suffix="evict")
    ids = [1 << 48, 2 << 48, 3 << 48]
    table = table.assign(ids, [[1.0], [2.0], [3.0]], req_time=1234)
    evicted_table, evicted = table.evict(1234 + 5 * day + 60)
    rows, size, number = run([evicted_table.lookup(ids), evicted_table.size(), evicted])
    assert rows.tolist() == [[0], [2], [3]]
    assert (size, number) == (2, 1)
