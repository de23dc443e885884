"""Bad input to table ops: an error that says what is wrong, no crash, and the table as it was."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.embedding import entry, filters
from monolith.embedding.tables import multi, single
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2
from monolith.testing import generate_test_hash_table_config

InvalidArgument = tf.errors.InvalidArgumentError


@pytest.fixture
def table():
    """A table of dim 2 with the row 1: [1, 2]."""
    table = single.test_hash_table(2).assign([1], [[1.0, 2.0]], req_time=5)
    yield table
    assert table.lookup([1, 2]).numpy().tolist() == [[1, 2], [0, 0]]
    assert table.size().numpy() == 1
    tf.raw_ops.DestroyResourceOp(resource=table.table)


@pytest.fixture
def multi_table(request):
    configs = {name: generate_test_hash_table_config(1) for name in ("a", "b")}
    table = multi.MultiHashTable.from_configs(configs, name_suffix=request.node.name)
    yield table
    tf.raw_ops.DestroyResourceOp(resource=table.handle)


@pytest.mark.parametrize("method", ["assign", "assign_add", "apply_gradients"])
class TestWrites:
    def write(self, table, method, ids, values, **kwargs):
        arguments = (ids, values, 0) if method == "apply_gradients" else (ids, values)
        return getattr(table, method)(*arguments, **kwargs)

    @pytest.mark.parametrize(
        ("ids", "values"),
        [
            pytest.param([1, 2], [[5.0, 5.0]], id="fewer_rows_than_ids"),
            pytest.param([1], [[5.0, 5.0], [6.0, 6.0]], id="more_rows_than_ids"),
            pytest.param([1], [[5.0]], id="narrower"),
            pytest.param([1], [[5.0, 5.0, 5.0]], id="wider"),
            pytest.param([], [[5.0, 5.0]], id="no_ids"),
        ],
    )
    def test_ids_and_rows_do_not_fit(self, table, method, ids, values):
        with pytest.raises(InvalidArgument, match="The dim doesn't match expectation") as info:
            self.write(table, method, ids, values)
        assert table.name in info.value.message

    @pytest.mark.parametrize(
        ("ids", "values"),
        [
            pytest.param(tf.constant([1], tf.int32), [[1.0, 1.0]], id="int32_ids"),
            pytest.param(tf.constant([1.0]), [[1.0, 1.0]], id="float_ids"),
            pytest.param([1], tf.constant([[1, 1]], tf.int64), id="int_rows"),
            pytest.param([1], np.ones([1, 2], np.complex64), id="complex_rows"),
            pytest.param(["a"], [[1.0, 1.0]], id="string_ids"),
            pytest.param(np.array([1.5]), [[1.0, 1.0]], id="numpy_float_ids"),
            pytest.param([1 << 63], [[1.0, 1.0]], id="id_beyond_int64"),
        ],
    )
    def test_wrong_type(self, table, method, ids, values):
        with pytest.raises((ValueError, TypeError)):
            self.write(table, method, ids, values)

    def test_wrong_type_past_the_python_face(self, table, method):
        with pytest.raises((InvalidArgument, TypeError, ValueError)):
            ops.monolith_hash_table_assign(table.table, tf.constant([1]), [[1.0, 1.0]], 0)

    @pytest.mark.parametrize("time", [-1, np.iinfo(np.int64).min])
    def test_negative_time(self, table, method, time):
        with pytest.raises(InvalidArgument, match=f"req_time.*{time}"):
            self.write(table, method, [1], [[5.0, 5.0]], req_time=time)

    def test_time_that_is_no_scalar(self, table, method):
        with pytest.raises(InvalidArgument, match="`req_time` must be a scalar"):
            self.write(table, method, [1], [[5.0, 5.0]], req_time=[1, 2])


class TestUpdates:
    def test_negative_step(self, table):
        with pytest.raises(InvalidArgument, match="global_step=-1 is negative"):
            table.apply_gradients([1], [[5.0, 5.0]], -1)

    @pytest.mark.parametrize("rate", [np.nan, np.inf, -np.inf])
    def test_learning_rate_that_is_not_finite(self, rate):
        table = single.test_hash_table(1, learning_rate=rate)
        with pytest.raises(InvalidArgument, match="learning rate 0 is") as info:
            table.apply_gradients([1], [[1.0]], 0)
        assert table.name in info.value.message
        assert table.size().numpy() == 0

    @pytest.mark.parametrize("rates", [[], [1.0, 1.0]])
    def test_number_of_learning_rates(self, table, rates):
        with pytest.raises(InvalidArgument, match="needs 1 learning rates") as info:
            ops.monolith_hash_table_optimize(
                table.table, [1], [[1.0, 1.0]], tf.constant(rates, tf.float32), 0, 0
            )
        assert table.name in info.value.message

    def test_batch_softmax_needs_dim_1(self):
        config = embedding_hash_table_pb2.EmbeddingHashTableConfig(cuckoo={})
        config.entry_config.segments.append(
            entry.CombineAsSegment(
                2, entry.ZerosInitializer(), entry.BatchSoftmaxOptimizer(), entry.Fp32Compressor()
            )
        )
        with pytest.raises(InvalidArgument, match="batch_softmax needs a segment of dim 1") as info:
            single.hash_table_from_config(
                entry.HashTableConfigInstance(config, [1.0]), name_suffix="errors_batch_softmax"
            )
        assert "MonolithHashTable_errors_batch_softmax" in info.value.message


class TestReads:
    def test_wrapper_of_another_dim(self, table):
        wrapper = single.HashTable(table.table, f"{table.name}_other", dim_size=3)
        with pytest.raises(
            InvalidArgument, match=r"dim_size should match hash table size\. 3 vs 2\. Node name: "
        ):
            wrapper.lookup([1])

    def test_wrong_type_of_ids(self, table):
        for ids in (tf.constant([1]), tf.constant([1.0]), ["a"]):
            with pytest.raises((ValueError, TypeError)):
                table.lookup(ids)
            with pytest.raises((ValueError, TypeError)):
                table.lookup_entry(ids)

    @pytest.mark.parametrize(
        ("shard", "num_shards", "limit", "offset"),
        [(-1, 1, 1, 0), (1, 1, 1, 0), (0, 0, 1, 0), (0, -1, 1, 0), (0, 1, -1, 0), (0, 1, 1, -1)],
    )
    def test_save_as_tensor_out_of_range(self, table, shard, num_shards, limit, offset):
        with pytest.raises(InvalidArgument, match="must"):
            table.save_as_tensor(shard, num_shards, limit, offset)

    @pytest.mark.parametrize("offset", [10**6, 1 << 40, (1 << 63) - 1])
    def test_save_as_tensor_beyond_the_end(self, table, offset):
        _, entries = table.save_as_tensor(0, 1, 10, offset)
        assert entries.shape == [0]

    @pytest.mark.parametrize("serialized", [b"", b"\xff", b"\x15\x00\x00\x80\x3f"])
    def test_slot_of_what_is_no_entry(self, serialized):
        with pytest.raises(InvalidArgument, match="is not a serialized EntryDump with an id"):
            single.extract_slot_from_entry([serialized])

    def test_negative_eviction_time(self, table):
        with pytest.raises(InvalidArgument, match="max_update_time=-1 is negative"):
            table.evict(-1)


class TestFusedOps:
    def test_negative_sizes(self, table):
        with pytest.raises(InvalidArgument, match=r"fused_slot_size\[0\] is negative: -1"):
            single.fused_lookup([table.table], [1], [-1], 1)

    @pytest.mark.parametrize("sizes", [[2], [0]])
    def test_sizes_that_do_not_fit_the_ids(self, table, sizes):
        with pytest.raises(InvalidArgument, match="`fused_slot_size` sums up to"):
            single.fused_lookup([table.table], [1], sizes, 1)

    def test_sizes_that_overflow(self, table):
        huge = np.iinfo(np.int32).max
        with pytest.raises(InvalidArgument, match="`fused_slot_size`"):
            single.fused_lookup([table.table], [1], [huge, huge], 2)

    def test_number_of_sizes(self, table):
        with pytest.raises((InvalidArgument, ValueError)):
            single.fused_lookup([table.table], [1], [1, 0], 1)

    @pytest.mark.parametrize("num_of_shards", [0, -1])
    def test_number_of_shards(self, table, num_of_shards):
        with pytest.raises((InvalidArgument, ValueError)):
            single.fused_lookup([table.table], [1], [1], num_of_shards)

    def update(self, table, **changes):
        arguments = {
            "ids": [1],
            "indices": [1],
            "fused_slot_size": [1],
            "id_grads": [1.0, 1.0],
            "id_offsets": [0, 1],
            "grad_offsets": [0, 2],
            "learning_rate_tensors": [1.0],
            "req_time": 0,
            "global_step": 0,
            "num_of_shards": 1,
        }
        single.fused_apply_gradient([table.table], **{**arguments, **changes})

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"fused_slot_size": [-1]}, "is negative"),
            ({"fused_slot_size": [2]}, "sums up to 2 ids"),
            ({"id_grads": [1.0]}, "`id_grads` must have 2 floats, got 1"),
            ({"id_offsets": [0, 2]}, "`id_offsets` does not fit"),
            ({"id_offsets": [-5, 1]}, "`id_offsets` does not fit"),
            ({"grad_offsets": [1000, 2]}, "`grad_offsets` does not fit"),
            ({"grad_offsets": [0]}, "`grad_offsets` does not fit"),
            ({"learning_rate_tensors": [1.0, 1.0]}, "needs 1 learning rates"),
            ({"learning_rate_tensors": [np.nan]}, "learning rate 0 is nan"),
            ({"req_time": -1}, "req_time=-1 is negative"),
            ({"global_step": -1}, "global_step=-1 is negative"),
        ],
    )
    def test_bad_updates(self, table, changes, message):
        with pytest.raises(InvalidArgument, match=message):
            self.update(table, **changes)


class TestHandles:
    """A handle of another kind is refused, whichever op gets it."""

    def calls(self, handle):
        rates, grads = [1.0], [[1.0, 1.0]]
        yield lambda: ops.monolith_hash_table_lookup(handle, [1], dim_size=2)
        yield lambda: ops.monolith_hash_table_lookup_entry(handle, [1])
        yield lambda: ops.monolith_hash_table_assign(handle, [1], grads, 0)
        yield lambda: ops.monolith_hash_table_assign_add(handle, [1], grads, 0)
        yield lambda: ops.monolith_hash_table_optimize(handle, [1], grads, rates, 0, 0)
        yield lambda: ops.monolith_hash_table_size(handle)
        yield lambda: ops.monolith_hash_table_evict(handle, 0)
        yield lambda: ops.monolith_hash_table_save_as_tensor(handle, 0, 1, 1, 0)

    def test_filter_in_place_of_a_table(self, tmp_path):
        handle = filters.create_dummy_hash_filter("errors")
        path = str(tmp_path / "t")
        calls = [
            *self.calls(handle),
            lambda: ops.monolith_hash_table_save(handle, path),
            lambda: ops.monolith_hash_table_restore(handle, path),
            lambda: ops.monolith_hash_table_fused_lookup([handle], [1], [1], 0, num_of_shards=1),
            lambda: ops.monolith_multi_hash_table_lookup(handle, [1], [0, 1]),
            lambda: ops.monolith_multi_hash_table_save(handle, path),
            lambda: ops.monolith_multi_hash_table_restore(handle, path),
            lambda: ops.monolith_multi_hash_table_reinitialize(handle, "a", [1]),
        ]
        for call in calls:
            with pytest.raises(InvalidArgument, match=r"[Tt]r(y|ied)"):
                call()
        assert not list(tmp_path.iterdir())

    def test_several_tables_in_place_of_one(self, multi_table):
        for call in self.calls(multi_table.handle):
            with pytest.raises(InvalidArgument) as info:
                call()
            assert multi_table.shared_name in info.value.message

    def test_table_in_place_of_filter_or_sync_client(self, table):
        client = ops.monolith_dummy_sync_client(shared_name="errors_client")
        hash_filter = filters.create_dummy_hash_filter("errors")
        config = generate_test_hash_table_config()
        config = config.table_config.SerializeToString()
        for number, arguments in enumerate(
            [(table.table, client), (hash_filter, table.table), (client, hash_filter)]
        ):
            with pytest.raises(InvalidArgument):
                ops.monolith_hash_table(
                    *arguments, config=config, shared_name=f"errors_handles_{number}"
                )

    def test_table_that_is_gone(self):
        table = single.test_hash_table(2)
        tf.raw_ops.DestroyResourceOp(resource=table.table)
        for call in self.calls(table.table):
            with pytest.raises(tf.errors.NotFoundError, match=table.name):
                call()

    def test_unknown_multi_table(self):
        handle = ops.read_monolith_multi_hash_table(shared_name="never_made")
        assert not ops.is_hash_table_initialized(handle).numpy()
        with pytest.raises(tf.errors.NotFoundError, match="never_made"):
            ops.monolith_multi_hash_table_lookup(handle, [1], [0, 1])


class TestConfigs:
    def make(self, name: str, config: bytes):
        return ops.monolith_hash_table(
            filters.create_dummy_hash_filter("errors"),
            ops.monolith_dummy_sync_client(shared_name="errors_client"),
            config=config,
            shared_name=name,
        )

    @pytest.mark.parametrize("config", [b"\xff", b"\x0a\x05", b"not a config"])
    def test_config_that_does_not_parse(self, config):
        with pytest.raises(
            InvalidArgument,
            match=r"errors_config.*Unable to parse config\. Make sure it is serialized version of "
            "EmbeddingHashTableConfig",
        ):
            self.make("errors_config", config)

    def change_no_type(self, config):
        config.ClearField("cuckoo")

    def change_no_segments(self, config):
        del config.entry_config.segments[:]

    def change_no_optimizer(self, config):
        config.entry_config.segments[0].ClearField("opt_config")

    def change_empty_optimizer(self, config):
        config.entry_config.segments[0].opt_config.Clear()

    def change_empty_initializer(self, config):
        config.entry_config.segments[0].init_config.Clear()

    def change_zero_dim(self, config):
        config.entry_config.segments[0].dim_size = 0

    def change_negative_dim(self, config):
        config.entry_config.segments[0].dim_size = -5

    def change_entry_type(self, config):
        config.entry_config.entry_type = embedding_hash_table_pb2.EntryConfig.UNKNOWN

    def change_skip_zero(self, config):
        config.skip_zero_embedding = True

    def change_no_compressor_for_serving(self, config):
        config.entry_config.entry_type = embedding_hash_table_pb2.EntryConfig.SERVING
        config.entry_config.segments[0].ClearField("comp_config")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ("no_type", "Unknown type of hash table"),
            ("no_segments", "no segments"),
            ("no_optimizer", "init or opt config is missing from entry config : "),
            ("empty_optimizer", "OptimizerConfig must be set type. Got"),
            ("empty_initializer", "InitializerConfig must be set type. Got"),
            ("zero_dim", "must be positive, got 0"),
            ("negative_dim", "must be positive, got -5"),
            ("entry_type", "Unknown entry type: "),
            ("skip_zero", "Only EntryConfig_EntryType_SERVING supports skip_zero_embedding!"),
            ("no_compressor_for_serving", "comp config is missing form entry config: "),
        ],
    )
    def test_config_that_describes_no_table(self, change, message):
        config = generate_test_hash_table_config().table_config
        getattr(self, f"change_{change}")(config)
        name = f"errors_config_{change}"
        with pytest.raises(InvalidArgument, match=message) as info:
            self.make(name, config.SerializeToString())
        assert name in info.value.message

    def test_same_name_with_another_config(self):
        config = generate_test_hash_table_config(dim=1).table_config.SerializeToString()
        other = generate_test_hash_table_config(dim=2).table_config.SerializeToString()
        self.make("errors_same_name", config)
        self.make("errors_same_name", config)
        with pytest.raises(InvalidArgument, match="errors_same_name exists with another config"):
            self.make("errors_same_name", other)
