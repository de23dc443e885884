"""The examples that a serving side sends, and what it says of their features.

The cases have the names that people know; they build the same messages, and look at them.
"""

import dataclasses
import random

import numpy as np
import tensorflow as tf

from monolith.proto import example_pb2

BATCH_SIZE = 10
FIDS_V1 = 0
MASK_V1 = (1 << 54) - 1
MASK_V2 = (1 << 48) - 1
SUM, MEAN, FIRSTN = 1, 2, 3


@dataclasses.dataclass
class FeatMeta:
    """A feature: its slot, where its rows are, and how they are pooled."""

    name: str | None = None
    slot: int | None = None
    max_sequence_length: int = 1
    fid_version: int = FIDS_V1
    slice_dims: list[int] | None = None
    table: str | None = None
    pool_type: int = SUM
    fl_type: int = example_pb2.FeatureListType.INDIVIDUAL


@dataclasses.dataclass
class TableMeta:
    """A table and the segments of its rows."""

    name: str | None = None
    slice_dims: list[int] | None = None


tables = {
    "table1": TableMeta("table1", [1, 4, 4, 8]),
    "table2": TableMeta("table2", [1, 4, 4]),
    "table3": TableMeta("table3", [8]),
}
SHARED = example_pb2.FeatureListType.SHARED
features = {
    "f_user_id": FeatMeta("f_user_id", 1, table="table1", fl_type=SHARED),
    "f_user_ctx_network": FeatMeta("f_user_ctx_network", 61, table="table1", fl_type=SHARED),
    "f_user_test10_array": FeatMeta(
        "f_user_test10_array", 549, 10, table="table1", pool_type=MEAN, fl_type=SHARED
    ),
    "f_user_id-f_page": FeatMeta(
        "f_user_id-f_page", 504, 10, 1, table="table3", pool_type=FIRSTN, fl_type=SHARED
    ),
    "f_goods_id": FeatMeta("f_user_id", 200, table="table2"),
    "f_page": FeatMeta("f_page", 305, table="table2"),
}
POOLING = {
    SUM: example_pb2.PoolingType.SUM,
    MEAN: example_pb2.PoolingType.MEAN,
    FIRSTN: example_pb2.PoolingType.FIRSTN,
}
USER_FEATURES = ["f_user_id", "f_user_ctx_network", "f_user_test10_array"]
ITEM_FEATURES = ["f_goods_id", "f_page"]


def make_fid(meta):
    if meta.fid_version == FIDS_V1:
        return meta.slot << 54 | random.getrandbits(54)
    return meta.slot << 48 | random.getrandbits(48)


class ServingPSTest(tf.test.TestCase):
    def test_example_gen(self):
        batch = example_pb2.ExampleBatch(batch_size=BATCH_SIZE)
        for name, meta in features.items():
            column = batch.named_feature_list.add(id=meta.slot, name=name, type=meta.fl_type)
            for _ in range(1 if meta.fl_type == SHARED else BATCH_SIZE):
                fids = [make_fid(meta) for _ in range(meta.max_sequence_length)]
                feature = column.feature.add()
                if meta.fid_version == FIDS_V1:
                    feature.fid_v1_list.value.extend(fids)
                else:
                    feature.fid_v2_list.value.extend(fids)

        read = example_pb2.ExampleBatch.FromString(batch.SerializeToString())
        assert read == batch
        assert [column.name for column in read.named_feature_list] == list(features)
        for column in read.named_feature_list:
            meta = features[column.name]
            assert len(column.feature) == (1 if meta.fl_type == SHARED else BATCH_SIZE)
            for feature in column.feature:
                kind = feature.WhichOneof("type")
                assert kind == ("fid_v1_list" if meta.fid_version == FIDS_V1 else "fid_v2_list")
                fids = np.array(getattr(feature, kind).value, np.uint64)
                assert len(fids) == meta.max_sequence_length
                # The slot is what stands above the signature; in version 2, bit 63 is free.
                shift = np.uint64(54 if meta.fid_version == FIDS_V1 else 48)
                assert set((fids >> shift).tolist()) == {meta.slot}

    def test_conf_gen(self):
        configs = example_pb2.FeatureConfigs()
        for name, meta in features.items():
            config = configs.feature_configs[name]
            config.table = meta.table
            config.slice_dims.extend(tables[meta.table].slice_dims)
            config.pooling_type = POOLING[meta.pool_type]

        def add(name, out_type, shapes, names, start, end):
            out = configs.out_configs[name]
            out.out_type = out_type
            for shape in shapes:
                out.shape.add(dims=shape)
            for feature in names:
                out.slice_configs.add(feature_name=feature, start=start, end=end)

        pooled = [name for name, meta in features.items() if meta.pool_type != FIRSTN]
        out_type = example_pb2.OutType
        add("bias", out_type.CONCAT, [(10, 5)], pooled, 0, 1)
        add("vec", out_type.CONCAT, [(10, 20)], pooled, 1, 5)
        add("uffm", out_type.NONE, [(10, 4)] * 3, USER_FEATURES, 5, 8)
        add("iffm", out_type.NONE, [(10, 4)] * 2, ITEM_FEATURES, 5, 8)
        add("seq", out_type.NONE, [(10, 8, 10)], ["f_user_id-f_page"], 0, 8)
        add("user_only", out_type.STACK, [(10, 8, 3)], USER_FEATURES, 8, 16)

        read = example_pb2.FeatureConfigs.FromString(configs.SerializeToString())
        assert read == configs
        assert dict(read.feature_configs).keys() == features.keys()
        assert list(read.feature_configs["f_goods_id"].slice_dims) == [1, 4, 4]
        assert read.feature_configs["f_user_id-f_page"].pooling_type == 3
        # Slices lie inside of rows, and what is concatenated is as wide as it is said to be.
        for name, out in read.out_configs.items():
            for part in out.slice_configs:
                width = sum(read.feature_configs[part.feature_name].slice_dims)
                assert 0 <= part.start < part.end <= max(width, 9), name
        for name in ("bias", "vec"):
            out = read.out_configs[name]
            assert out.shape[0].dims[1] == sum(s.end - s.start for s in out.slice_configs)
        assert len(read.out_configs["uffm"].shape) == len(USER_FEATURES)
        assert read.out_configs["user_only"].shape[0].dims[2] == len(USER_FEATURES)
