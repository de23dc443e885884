"""Ids of a batch by server, from ragged tensors and from serialized messages."""

import pytest
import tensorflow as tf
from support.layouts import make_configs, to_ragged

from monolith import errors
from monolith.data.sparse_fids import ShardedFids, sharding_sparse_fids
from monolith.proto import example_pb2, proto_parser_pb2

SHARED = 0x80000000


def make(**tables: str) -> example_pb2.FeatureConfigs:
    """Features with rows of two floats, and their tables."""
    return make_configs({name: (table, "sum", 2, 0) for name, table in tables.items()}, {})


def shards_of(sharded: ShardedFids) -> dict[str, list[list[int]]]:
    return {
        table: [part.numpy().tolist() for part in parts] for table, parts in sharded.shards.items()
    }


def places_of(sharded: ShardedFids) -> list[tuple[int, int]]:
    return [(int(x) >> 32, int(x) & 0xFFFFFFFF) for x in sharded.fid_offset.numpy()]


class TestRagged:
    IDS = {"a": [[4, 7], [4]], "b": [[], [-1, 9]], "c": [[2], [2]]}
    CONFIGS = make(a="t", b="t", c="u")

    def test_by_remainder_table_and_feature(self):
        sharded = sharding_sparse_fids(to_ragged(self.IDS), 2, self.CONFIGS, unique=True)
        # -1 is odd: its remainder is 1, as floor division has it.
        assert shards_of(sharded) == {"t": [[4], [7, -1, 9]], "u": [[2], []]}
        splits = [part.numpy().tolist() for part in sharded.shards_row_split["t"]]
        assert splits == [[0, 1, 1], [0, 1, 3]]
        # The lists are t on 0, t on 1, u on 0, u on 1; a row has two floats.
        assert places_of(sharded) == [(0, 0), (1, 0), (0, 0), (1, 2), (1, 4), (2, 0), (2, 0)]
        assert sharded.feature_offset.numpy().tolist() == [0, 2, 3, 3, 5, 6]
        assert sharded.nfl_offset.numpy().tolist() == [0, 2, 4]
        sizes = (sharded.batch_size, sharded.nfl_size, sharded.feature_size, sharded.fid_size)
        assert [size.numpy().tolist() for size in sizes] == [[2], [3], [6], [7]]
        assert sharded.emb_size.numpy().tolist() == [2, 6, 2, 0]

    def test_every_occurrence(self):
        sharded = sharding_sparse_fids(to_ragged(self.IDS), 1, self.CONFIGS, unique=False)
        assert shards_of(sharded) == {"t": [[4, 7, 4, -1, 9]], "u": [[2, 2]]}
        assert [place for _, place in places_of(sharded)] == [0, 2, 4, 6, 8, 0, 2]

    def test_features_of_one_sub_table_are_unique_together(self):
        ids = to_ragged({"a": [[4, 7]], "b": [[7, 5]]})
        sharded = sharding_sparse_fids(ids, 1, make(a="t", b="t"), sub_tables=["x", "x"])
        assert shards_of(sharded) == {"t": [[4, 7, 5]]}
        assert sharded.shards_row_split["t"][0].numpy().tolist() == [0, 3]
        assert [place for _, place in places_of(sharded)] == [0, 2, 2, 4]

    def test_row_splits_of_32_bits(self):
        ids = {"a": tf.RaggedTensor.from_row_splits(tf.constant([5], tf.int64), [0, 1])}
        assert ids["a"].row_splits.dtype == tf.int64
        narrow = {"a": ids["a"].with_row_splits_dtype(tf.int32)}
        assert shards_of(sharding_sparse_fids(narrow, 1, make(a="t"))) == {"t": [[5]]}

    def test_refusals(self):
        ids = to_ragged(self.IDS)
        for changed, message in (
            ({"ps_num": 0}, "`ps_num` must be at least 1"),
            ({"input_type": "csv"}, "`input_type` must be"),
            ({"version": 2}, "must be 3, 4 or 5"),
            ({"parallel_flag": 1}, "`parallel_flag` must be 0"),
            ({"fid_list_ret_list": True}, "`fid_list_ret_list` must be False"),
            ({"tensor": {"a": ids["a"]}}, "Feature 'b' must be given as ragged int64 ids"),
            ({"tensor": tf.constant(["x"])}, "must be given as a dict of ragged tensors"),
        ):
            arguments = {"tensor": ids, "ps_num": 1, "feature_cfgs": self.CONFIGS} | changed
            with pytest.raises(errors.ConfigError, match=message):
                sharding_sparse_fids(**arguments)

    def test_what_the_op_refuses(self):
        ids = to_ragged({"a": [[1], [2]], "b": [[1]], "c": [[1], [2]]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="'b' must have the ids of 2"):
            sharding_sparse_fids(ids, 1, self.CONFIGS)
        configs = make(a="t", b="t")
        configs.feature_configs["b"].slice_dims[0] = 3
        both = to_ragged({"a": [[1]], "b": [[1]]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="rows have 2 and 3 floats"):
            sharding_sparse_fids(both, 1, configs, sub_tables=["x", "x"])
        with pytest.raises(tf.errors.InvalidArgumentError, match="a name for each of the 2"):
            sharding_sparse_fids(both, 1, make(a="t", b="t"), sub_tables=["x"])


def add_ids(feature: example_pb2.Feature, ids: list[int], is_old: bool = False) -> None:
    (feature.fid_v1_list if is_old else feature.fid_v2_list).value.extend(ids)


class TestSerialized:
    def test_examples(self):
        first, second = example_pb2.Example(), example_pb2.Example()
        add_ids(first.named_feature.add(name="a").feature, [4, 7])
        add_ids(first.named_feature.add(name="ignored").feature, [9])
        # Slot 3, signature 5; the upper bits of an old signature are lost.
        add_ids(first.named_feature.add(name="b").feature, [3 << 54 | 1 << 50 | 5], is_old=True)
        add_ids(second.named_feature.add(name="a").feature, [4])
        serialized = [first.SerializeToString(), second.SerializeToString()]
        sharded = sharding_sparse_fids(serialized, 1, make(a="t", b="t"), True, "example")
        assert shards_of(sharded) == {"t": [[4, 7, 3 << 48 | 5]]}
        assert sharded.feature_offset.numpy().tolist() == [0, 2, 3, 4]
        assert sharded.nfl_offset.numpy().tolist() == [0, 2]

    @pytest.mark.parametrize("input_type", ["examplebatch", "example_batch"])
    def test_a_batch(self, input_type):
        batch = example_pb2.ExampleBatch(batch_size=2)
        shared = batch.named_feature_list.add(name="a", type=example_pb2.SHARED)
        add_ids(shared.feature.add(), [4, 6])
        own = batch.named_feature_list.add(name="c")
        add_ids(own.feature.add(), [5])
        own.feature.add()
        configs = make(a="t", b="t", c="t")
        serialized = batch.SerializeToString()
        sharded = sharding_sparse_fids(serialized, 1, configs, True, input_type)
        assert shards_of(sharded) == {"t": [[4, 6, 5]]}
        # b is absent: it begins where c does.
        assert sharded.nfl_offset.numpy().tolist() == [SHARED | 0, 1, 1]
        assert sharded.feature_offset.numpy().tolist() == [0, 2, 3]
        assert sharded.batch_size.numpy().tolist() == [2]

    def test_instances(self):
        instance = proto_parser_pb2.Instance()
        instance.fid.extend([3 << 54 | 5, 9 << 54 | 6])
        feature = instance.feature.add(name="a")
        feature.fid.extend([7])
        configs = make(a="t", slot_3="t", fc_slot_9="t")
        serialized = [instance.SerializeToString(), b""]
        sharded = sharding_sparse_fids(serialized, 1, configs, True, "instance")
        # a, fc_slot_9, slot_3; as they are, so that 9 << 54 fills the sign.
        old = (9 << 54 | 6, 3 << 54 | 5)
        signed = [value - 2**64 if value >= 2**63 else value for value in (7, *old)]
        assert shards_of(sharded) == {"t": [signed]}

    def test_refusals(self):
        configs = make(a="t")
        batch = example_pb2.ExampleBatch(batch_size=3)
        add_ids(batch.named_feature_list.add(name="a").feature.add(), [4])
        empty = example_pb2.ExampleBatch(batch_size=1)
        empty.named_feature_list.add(name="a", type=example_pb2.SHARED)
        floats = example_pb2.Example()
        floats.named_feature.add(name="a").feature.float_list.value.append(1.0)
        for serialized, kind, message in (
            ([b"\xff"], "example", "not a serialized Example message"),
            ([b"\xff"], "instance", "not a serialized Instance message"),
            ([b"\xff"], "examplebatch", "not a serialized ExampleBatch message"),
            ([b"", b""], "examplebatch", "one serialized ExampleBatch, got 2"),
            ([batch.SerializeToString()], "examplebatch", "the ids of 3 examples, .* got 1"),
            ([empty.SerializeToString()], "examplebatch", "is shared by a batch, but has no ids"),
            ([floats.SerializeToString()], "example", "something else than a list of ids"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                sharding_sparse_fids(tf.constant(serialized), 1, configs, True, kind)
