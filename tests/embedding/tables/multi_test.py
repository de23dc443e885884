"""Many tables in one resource."""

import time

import numpy as np
import pytest
import tensorflow as tf
from support.multi_tables import (
    MultiHashTable,
    make_configs,
    make_session,
    make_table,
    run,
    to_lists,
)
from tensorflow.python.ops import resources

from monolith import errors
from monolith.embedding import entry, filters
from monolith.embedding.tables import multi
from monolith.graph import export_mode
from monolith.native import ops
from monolith.native_training import multi_hash_table_ops
from monolith.optimizer import learning_rate
from monolith.proto import embedding_hash_table_pb2, multi_hash_table_ops_pb2
from monolith.testing import generate_test_hash_table_config


def test_historical_path_gives_the_same_module():
    assert multi_hash_table_ops is multi
    assert multi_hash_table_ops._TIMEOUT_IN_MS == 3600000
    assert multi_hash_table_ops._MULTI_HASH_TABLE_GRAPH_KEY == "monolith_multi_hash_tables"


@pytest.mark.usefixtures("graph_mode")
class TestReadAndWrite:
    def test_lookup(self):
        # Nobody writes slot2, and nobody asks for it in the second lookup.
        table = make_table(make_configs(slot0=1, slot1=2, slot2=2))
        table = table.assign_add(
            {"slot0": ([0], [[1.0]]), "slot1": ([1, 2], [[2.0, 2.0], [4.0, 4.0]])}
        )
        all_rows = table.lookup({"slot0": [0], "slot1": [2, 1, 9], "slot2": [1]})
        some_rows = table.lookup({"slot1": [1], "unknown": [1]})
        all_rows, some_rows = run([all_rows, some_rows])
        assert to_lists(all_rows) == {
            "slot0": [[1]],
            "slot1": [[4, 4], [2, 2], [0, 0]],
            "slot2": [[0, 0]],
        }
        assert to_lists(some_rows) == {"slot1": [[2, 2]]}

    def test_assign(self):
        table = make_table(make_configs(slot0=1, slot1=2))
        table = table.assign({"slot0": ([0], [[1.0]]), "slot1": ([1], [[2.0, 3.0]])})
        table = table.assign({"slot0": ([0], [5.0])}, enable_inter_table_parallelism=True)
        rows = run(table.lookup({"slot0": [0], "slot1": [1]}))
        assert to_lists(rows) == {"slot0": [[5]], "slot1": [[2, 3]]}

    def test_sizes_are_in_the_order_of_the_tables(self):
        table = make_table(make_configs(slot1=1, slot0=1))
        before = table.sizes()
        table = table.assign({"slot0": ([0, 1, 0], [[1.0]] * 3), "slot1": ([0], [[1.0]])})
        after = table.sizes()
        assert table.table_names == ["slot0", "slot1"]
        with make_session() as session:
            assert session.run(before).tolist() == [0, 0]
            assert session.run(after).tolist() == [2, 1]

    @pytest.mark.parametrize("method", ["assign", "assign_add"])
    def test_req_time_is_passed_on(self, method):
        table = make_table(make_configs(slot0=1))
        table = getattr(table, method)({"slot0": ([0], [[1.0]])}, req_time=123)
        (serialized,) = run(table.lookup_entry({"slot0": [0]}))["slot0"]
        dump = embedding_hash_table_pb2.EntryDump.FromString(serialized)
        assert dump.last_update_ts_sec == 123

    def test_lookup_entry(self):
        table = make_table(make_configs(slot0=1, slot1=2))
        table = table.assign({"slot0": ([5], [[1.0]]), "slot1": ([6], [[2.0, 3.0]])})
        entries = run(table.lookup_entry({"slot1": [6, 7], "slot0": [5]}))
        dumps = [
            embedding_hash_table_pb2.EntryDump.FromString(serialized)
            for serialized in (entries["slot0"][0], entries["slot1"][0])
        ]
        assert [list(dump.num) for dump in dumps] == [[1.0], [2.0, 3.0]]
        assert entries["slot1"][1] == b""

    def test_reinitialize(self):
        table = make_table(make_configs(slot0=1, slot1=1, slot2=2))
        before = int(time.time())
        table = table.assign({"slot2": ([2, 3], [[2.0, 2.0], [3.0, 3.0]])})
        table, status = table.reinitialize("slot2", [1, 2, 3])
        table, unknown = table.reinitialize("slot3", [1, 2, 3])
        status, unknown, rows, entries = run(
            [
                status,
                unknown,
                table.lookup({"slot2": [1, 2, 3]}),
                table.lookup_entry({"slot2": [1, 2, 3]}),
            ]
        )
        assert status.tolist() == [0, 1, 1]
        assert unknown.tolist() == [-1, -1, -1]
        assert rows["slot2"].tolist() == [[0, 0]] * 3
        for serialized in entries["slot2"]:
            dump = embedding_hash_table_pb2.EntryDump.FromString(serialized)
            assert before <= dump.last_update_ts_sec <= time.time()

    def test_reinitialize_resets_the_optimizer(self):
        segment = entry.CombineAsSegment(
            1,
            entry.ConstantsInitializer(0.5),
            entry.AdagradOptimizer(initial_accumulator_value=1.0),
            entry.Fp32Compressor(),
        )
        config = embedding_hash_table_pb2.EmbeddingHashTableConfig(cuckoo={})
        config.entry_config.segments.append(segment)
        table = make_table({"slot": entry.HashTableConfigInstance(config, [1.0])})
        table = table.apply_gradients({"slot": ([1], [[3.0]])}, 0)
        table, _ = table.reinitialize("slot", [1])
        table = table.apply_gradients({"slot": ([1], [[1.0]])}, 1)
        # 0.5 - 1 / sqrt(1 + 1), as if the first update had not been.
        rows = run(table.lookup({"slot": [1]}))
        np.testing.assert_allclose(rows["slot"], [[0.5 - 1 / np.sqrt(2)]], rtol=1e-6)

    def test_ids_may_be_any_64_bits(self):
        ids = [0, -1, np.iinfo(np.int64).min, np.iinfo(np.int64).max]
        table = make_table(make_configs(slot=1))
        table = table.assign({"slot": (ids, [[1.0], [2.0], [3.0], [4.0]])})
        assert run(table.lookup({"slot": ids}))["slot"].tolist() == [[1], [2], [3], [4]]

    def test_present_ids_are_not_filtered(self):
        thresholds = embedding_hash_table_pb2.SlotOccurrenceThresholdConfig(
            default_occurrence_threshold=1
        ).SerializeToString()
        table = make_table(
            make_configs(slot=1), hash_filter=filters.create_hash_filter(300, 5, thresholds)
        )
        add = table.assign_add({"slot": ([7], [[1.0]])})
        rows = add.lookup({"slot": [7]})["slot"]
        with make_session() as session:
            # The first is held back, all after the second are let in without being counted.
            assert [session.run(rows).tolist() for _ in range(4)] == [[[0]], [[1]], [[2]], [[3]]]


@pytest.mark.usefixtures("graph_mode")
class TestGradients:
    def test_apply_gradients(self):
        table = make_table(make_configs(slot0=1, slot1=2, unused=3))
        table = table.apply_gradients(
            {"slot0": ([0], [[2.0]]), "slot1": ([1, 2], [[1.0, 3.0], [2.0, 4.0]])}, 0, req_time=1
        )
        rows = run(table.lookup({"slot0": [0], "slot1": [1, 2]}))
        assert to_lists(rows) == {"slot0": [[-2]], "slot1": [[-1, -3], [-2, -4]]}

    def test_every_occurrence_is_a_step(self):
        table = make_table(make_configs(slot1=2))
        table = table.apply_gradients({"slot1": ([2, 2], [[1.1, 3.1], [2.2, 4.2]])}, 0)
        rows = run(table.lookup({"slot1": [2]}))
        np.testing.assert_allclose(rows["slot1"], [[-3.3, -7.3]], rtol=1e-6)

    def test_decaying_rate(self):
        decay = learning_rate.PolynomialDecay(0.1, 10, 1.1)
        table = make_table({"slot0": generate_test_hash_table_config(1, learning_rate=decay)})
        step = tf.compat.v1.train.get_or_create_global_step()
        table = table.apply_gradients({"slot0": ([0], [[2.0]])}, step)
        rows = run(table.lookup({"slot0": [0]}))
        np.testing.assert_allclose(rows["slot0"], [[-0.2]], rtol=1e-6)

    def test_learning_rates_are_in_the_order_of_the_tables(self):
        # The dict is not sorted, the tables are.
        configs = {
            "b": generate_test_hash_table_config(1, learning_rate=10.0),
            "a": generate_test_hash_table_config(1, learning_rate=1.0),
        }
        table = make_table(configs).apply_gradients({"a": ([1], [[1.0]]), "b": ([1], [[1.0]])}, 0)
        assert to_lists(run(table.lookup({"a": [1], "b": [1]}))) == {"a": [[-1]], "b": [[-10]]}

    def test_gradient_by_the_rows(self):
        table = make_table(make_configs(slot0=1, slot1=2))
        rows = table.lookup({"slot0": [0], "slot1": [1, 2]})
        loss = tf.reduce_sum(rows["slot0"]) + tf.reduce_sum(rows["slot1"] * [[1.0], [2.0]])
        grads = dict(zip(rows, tf.gradients(loss, list(rows.values())), strict=True))
        table = table.apply_gradients(
            {"slot0": ([0], grads["slot0"]), "slot1": ([1, 2], grads["slot1"])}, 0
        )
        rows = run(table.lookup({"slot0": [0], "slot1": [1, 2]}))
        assert to_lists(rows) == {"slot0": [[-1]], "slot1": [[-1, -1], [-2, -2]]}

    def test_fused_ops(self):
        table = make_table(make_configs(slot0=1, slot1=2))
        table = table.assign_add({"slot0": ([0, 1], [[1.0], [1.0]])})
        ids, sizes = [0, 4, 1, 3], [1, 1, 1, 1]
        _, _, id_offsets, emb_offsets, indices = table.fused_lookup(ids, sizes, 2)
        table = table.fused_apply_gradient(
            ids,
            indices,
            sizes,
            [-1.0, -2.0, -2.0, -1.0, -2.0, -2.0],
            id_offsets,
            emb_offsets,
            0,
            0,
            num_of_shards=2,
        )
        rows, splits, id_offsets, emb_offsets, _ = run(table.fused_lookup(ids, sizes, 2))
        assert rows.tolist() == [2, 2, 2, 2, 2, 2]
        assert splits.tolist() == [3, 3]
        assert id_offsets.tolist() == [0, 1, 2, 3, 4]
        assert emb_offsets.tolist() == [0, 1, 3, 4, 6]


@pytest.mark.usefixtures("graph_mode")
class TestRaw:
    def test_ragged_ids_and_flat_rows(self):
        table = make_table(make_configs(b=2, a=1, c=1))
        ids = table.get_ragged_id({"b": [3, 4], "a": [5], "unknown": [6]})
        flat = table.get_flat_value({"b": [[1.0, 2.0], [3.0, 4.0]], "a": [[5.0]]})
        rows = table.get_embeddings(ids, flat)
        ids, flat, rows = run([ids, flat, rows])
        assert ids.to_list() == [[5], [3, 4], []]
        assert flat.tolist() == [5, 1, 2, 3, 4]
        assert to_lists(rows) == {"a": [[5]], "b": [[1, 2], [3, 4]], "c": []}

    def test_raw_assign_lookup_and_update(self):
        table = make_table(make_configs(a=1, b=2))
        ids = table.get_ragged_id({"a": [1], "b": [2]})
        table = table.raw_assign(ids, tf.constant([1.0, 2.0, 3.0]))
        table = table.raw_apply_gradients(ids, tf.constant([1.0, 1.0, 1.0]), 0, req_time=3)
        assert run(table.raw_lookup(ids)).tolist() == [0, 1, 2]

    def test_wrong_splits(self):
        table = make_table(make_configs(a=1, b=2))
        for splits, message in [
            ([0, 1], "id_split must be 3. Current: 2"),
            ([0, 2, 1], "id_split must start at 0, never fall"),
            ([1, 1, 1], "id_split must start at 0, never fall"),
            ([0, 0, 5], "id_split must start at 0, never fall"),
            ([0, 0, 0], "The length of tensor `id` doesn't equal to table num"),
        ]:
            with pytest.raises(tf.errors.InvalidArgumentError, match=message) as info:
                run(ops.monolith_multi_hash_table_lookup(table.handle, [7], splits))
            assert table.shared_name in info.value.message

    @pytest.mark.parametrize(("length", "problem"), [(2, "too short"), (4, "too long")])
    def test_wrong_number_of_floats(self, length, problem):
        table = make_table(make_configs(a=1, b=2))
        ids = table.get_ragged_id({"a": [1], "b": [2]})
        for write in (
            table.raw_assign(ids, tf.zeros([length])),
            table.raw_apply_gradients(ids, tf.zeros([length]), 0),
        ):
            with pytest.raises(
                tf.errors.InvalidArgumentError,
                match=f"The length of tensor `value` is {problem}. Currently value",
            ):
                run(write.as_op())


@pytest.mark.usefixtures("graph_mode")
class TestMaking:
    def test_name_conflict(self):
        configs = make_configs(a=1)
        MultiHashTable.from_configs(configs, name_suffix="x")
        with pytest.raises(
            ValueError, match=r"^shared_name MonolithMultiHashTable_x has already been used\.$"
        ):
            MultiHashTable.from_configs(configs, name_suffix="x")

    def test_properties(self):
        table = MultiHashTable.from_configs(make_configs(b=2, a=1), name_suffix="x")
        assert MultiHashTable.NAME_PREFIX == "MonolithMultiHashTable"
        assert table.shared_name == "MonolithMultiHashTable_x"
        assert table.table_names == ["a", "b"]
        assert table.get_table_dim_sizes() == (1, 2)
        assert table.initializer.type == "CreateMonolithMultiHashTable"
        assert table.handle.op.type == "ReadMonolithMultiHashTable"
        assert table.as_op("a name", other="argument") is table.handle.op

    def test_use_before_the_initializer(self):
        table = make_table(make_configs(a=1), name_suffix="x")
        rows = table.lookup({"a": [1]})["a"]
        initialized = ops.is_hash_table_initialized(table.handle)
        with tf.compat.v1.Session() as session:
            assert not session.run(initialized)
            with pytest.raises(tf.errors.NotFoundError, match="MonolithMultiHashTable_x"):
                session.run(rows)
            session.run(table.initializer)
            assert session.run(initialized)
            assert session.run(rows).tolist() == [[0]]
            session.run(table.initializer)  # A second time changes nothing.

    def test_report_uninitialized_resources(self):
        make_table(make_configs(a=1), name_suffix="x")
        report = resources.report_uninitialized_resources()
        with tf.compat.v1.Session() as session:
            assert len(session.run(report)) == 1
            session.run(resources.initialize_resources(resources.shared_resources()))
            assert len(session.run(report)) == 0

    def test_cached_config(self):
        configs = make_configs(b=2, a=1)
        configs["a"].table_config.slot_expire_time_config.default_expire_time = 7
        cached = multi.convert_to_cached_config(configs)
        assert cached.configs is configs
        assert cached.table_names == ["a", "b"]
        assert cached.dims == [1, 2]
        mconfig = embedding_hash_table_pb2.MultiEmbeddingHashTableConfig.FromString(cached.mconfig)
        assert list(mconfig.names) == ["a", "b"]
        assert [c.entry_config.segments[0].dim_size for c in mconfig.configs] == [1, 2]
        times = embedding_hash_table_pb2.SlotExpireTimeConfig.FromString(
            cached.slot_expire_time_config
        )
        assert times.default_expire_time == 7
        assert run(cached.mconfig_tensor) == cached.mconfig
        tables = [MultiHashTable.from_cached_config(cached, name_suffix=str(i)) for i in range(2)]
        first = tables[0].assign({"a": ([1], [[1.0]])})
        with tf.control_dependencies([first.as_op()]):
            rows = [table.lookup({"a": [1]})["a"] for table in tables]
        assert [r.tolist() for r in run(rows)] == [[[1]], [[0]]]

    def test_exported_tables_are_for_serving(self):
        with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
            cached = multi.convert_to_cached_config(make_configs(a=1))
        mconfig = embedding_hash_table_pb2.MultiEmbeddingHashTableConfig.FromString(cached.mconfig)
        serving = embedding_hash_table_pb2.EntryConfig.SERVING
        assert mconfig.configs[0].entry_config.entry_type == serving

    def test_bad_configs(self):
        with pytest.raises(errors.ConfigError, match="at least one table"):
            MultiHashTable.from_configs({})
        config = entry.HashTableConfigInstance(make_configs(a=1)["a"].table_config, [1.0, 2.0])
        with pytest.raises(ValueError, match="Size of learning_rate_fns and size of segments"):
            MultiHashTable.from_configs({"a": config})
        with pytest.raises(errors.ConfigError, match="needs a `cached_config`"):
            MultiHashTable()

    def test_config_that_does_not_parse(self):
        created = ops.create_monolith_multi_hash_table(
            b"\xff",
            filters.create_dummy_hash_filter(),
            ops.monolith_dummy_sync_client(),
            shared_name="broken",
        )
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"broken.*Unable to parse config\."
        ):
            run(created.op)

    def test_infer_dims(self):
        assert multi.infer_dims(make_configs(b=2, a=1)) == [1, 2]


@pytest.mark.usefixtures("graph_mode")
class TestProto:
    def test_collection_in_meta_graph(self):
        table = MultiHashTable.from_configs(make_configs(a=1, b=2), name_suffix="x")
        meta_graph = tf.compat.v1.train.export_meta_graph()
        collection = meta_graph.collection_def["monolith_multi_hash_tables"]
        (serialized,) = collection.bytes_list.value
        table_proto = multi_hash_table_ops_pb2.MultiHashTableProto.FromString(serialized)
        assert table_proto.shared_name == table.shared_name
        assert list(table_proto.table_names) == ["a", "b"]
        assert list(table_proto.dims) == [1, 2]

    def test_imported_meta_graph_has_working_tables(self):
        MultiHashTable.from_configs(make_configs(a=1), name_suffix="x")
        meta_graph = tf.compat.v1.train.export_meta_graph()
        with tf.Graph().as_default():
            tf.compat.v1.train.import_meta_graph(meta_graph, import_scope="imported")
            (imported,) = tf.compat.v1.get_collection("monolith_multi_hash_tables")
            rows = imported.apply_gradients({"a": ([1], [[2.0]])}, 0).lookup({"a": [1]})
            with tf.compat.v1.Session() as session:
                session.run(imported.initializer)
                assert session.run(rows)["a"].tolist() == [[-2]]

    def test_rebuilt_table_keeps_everything_and_is_not_collected(self):
        table = MultiHashTable.from_configs(make_configs(a=1), name_suffix="x", saver_parallel=3)
        rebuilt = MultiHashTable.from_proto(table.to_proto())
        assert rebuilt.to_proto() == table.to_proto()
        assert rebuilt.to_proto().saver_parallel == 3
        assert len(tf.compat.v1.get_collection("monolith_multi_hash_tables")) == 1
        assert table.to_proto(export_scope="elsewhere") is None


def test_eagerly_and_in_a_function():
    configs = make_configs(a=1, b=2)
    table = MultiHashTable.from_configs(configs, name_suffix="multi_hash_tables_test_eager")
    assert table.initializer is None
    table = table.assign({"a": ([1], [[5.0]])})

    @tf.function
    def train(ids):
        updated = table.apply_gradients({"a": (ids, tf.ones([1, 1]))}, 0)
        return updated.lookup({"a": ids, "b": ids})

    rows = train(tf.constant([1], tf.int64))
    assert {name: r.numpy().tolist() for name, r in rows.items()} == {"a": [[4]], "b": [[0, 0]]}
    assert table.lookup({"a": [1]})["a"].numpy().tolist() == [[4]]
    with pytest.raises(RuntimeError, match="Only a table in a graph has a proto"):
        table.to_proto()


def test_eager_learning_rates_follow_the_step():
    decay = learning_rate.PolynomialDecay(1.0, 10, 2.0)
    table = MultiHashTable.from_configs(
        {"a": generate_test_hash_table_config(1, learning_rate=decay)},
        name_suffix="multi_hash_tables_test_decay",
    )
    step = tf.compat.v1.train.get_or_create_global_step()
    step.assign(0)
    table = table.apply_gradients({"a": ([1], [[1.0]])}, step)
    step.assign(10)
    table = table.apply_gradients({"a": ([1], [[1.0]])}, step)
    step.assign(0)
    # Rates 1 and 2.
    assert table.lookup({"a": [1]})["a"].numpy().tolist() == [[-3]]


@pytest.mark.usefixtures("graph_mode")
@pytest.mark.parametrize(
    ("enable_dedup", "steps"), [(False, [1.0, 2.0]), (True, [3.0])], ids=["apart", "summed"]
)
def test_gradients_of_equal_ids(enable_dedup, steps):
    segment = entry.CombineAsSegment(
        1,
        entry.ZerosInitializer(),
        entry.AdagradOptimizer(initial_accumulator_value=1.0),
        entry.Fp32Compressor(),
    )
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig(cuckoo={})
    config.entry_config.segments.append(segment)
    # The same id in another table is another row.
    configs = {slot: entry.HashTableConfigInstance(config, [1.0]) for slot in ("a", "b")}
    table = make_table(configs, name_suffix="dedup").apply_gradients(
        {"a": ([1, 1], [[1.0], [2.0]]), "b": ([1], [[1.0]])}, 0, enable_dedup=enable_dedup
    )
    weight, accumulator = 0.0, 1.0
    for gradient in steps:
        accumulator += gradient**2
        weight -= gradient / accumulator**0.5
    rows = run(table.lookup({"a": [1], "b": [1]}))
    np.testing.assert_allclose(rows["a"], [[weight]], rtol=1e-6)
    np.testing.assert_allclose(rows["b"], [[-1.0 / 2**0.5]], rtol=1e-6)
