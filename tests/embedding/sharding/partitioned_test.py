"""The table of fused layouts: lookup, updates, names, on servers and without.

Covers monolith/embedding/sharding/layout_configs.py,
monolith/embedding/sharding/server_calls.py, monolith/native_training/legacy/distributed_ps.py.
"""

import math

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import resources

from monolith import errors, testing
from monolith.data.parser_context import SHARDING_PREFIX, SPARSE_FEATURES, ParserCtx
from monolith.embedding import entry
from monolith.embedding.features import combiners
from monolith.embedding.sharding import layout_configs
from monolith.embedding.sharding.factory import create_partitioned_hash_table
from monolith.native_training import distributed_ps
from monolith.proto import embedding_hash_table_pb2, example_pb2

UID = "9871d3a2c554b27151cacf1422eec048"  # md5("uid") of the specification.
CID_GID = "c4a398dea30b21551ae4c09454001dba"  # md5("cid,gid")
LOOKUPS = {"uid": [[1], [2, 1]], "cid": [[4], []], "gid": [[5], [5]]}


def make_config(adagrad_dim: int) -> entry.HashTableConfigInstance:
    """One float that Ftrl updates, and some that Adagrad does; with a learning rate of 1."""
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    config.cuckoo.SetInParent()
    for dim, optimizer in (
        (1, entry.FtrlOptimizer(initial_accumulator_value=0.1, beta=0.0)),
        (adagrad_dim, entry.AdagradOptimizer(initial_accumulator_value=0.1)),
    ):
        segment = entry.CombineAsSegment(
            dim, entry.ZerosInitializer(), optimizer, entry.Fp32Compressor()
        )
        config.entry_config.segments.append(segment)
    return entry.HashTableConfigInstance(config, [1.0, 1.0])


CONFIGS = {"uid": make_config(3), "cid": make_config(1), "gid": make_config(1)}


def make_layouts() -> dict[str, example_pb2.OutConfig]:
    bias = example_pb2.OutConfig(out_type=example_pb2.ADDN)
    vec = example_pb2.OutConfig(out_type=example_pb2.NONE)
    for name in ("uid", "cid", "gid"):
        bias.slice_configs.add(feature_name=name, start=0, end=1)
    bias.shape.add(dims=[-1, 1])
    for name, end in (("uid", 4), ("cid", 2)):
        vec.slice_configs.add(feature_name=name, start=1, end=end)
        vec.shape.add(dims=[-1, end - 1])
    return {"vec": vec, "bias": bias}


def make_ctx(num_ps: int, native: bool, **options) -> ParserCtx:
    ctx = ParserCtx(enable_fused_layout=True)
    configs = distributed_ps.PartitionedHashTable.gen_feature_configs(
        num_ps,
        CONFIGS,
        make_layouts(),
        {"uid": [1, 3], "cid": [1, 1], "gid": [1, 1]},
        {name: combiners.ReduceSum() for name in CONFIGS},
        native,
        **options,
    )
    ctx.set("sharding_feature_configs", configs)
    return ctx


def make_rows(num_ps: int, native: bool) -> list[dict]:
    """Threes for all ids that are looked up, on their servers."""
    tables = {"uid": "uid", "cid": "cid", "gid": "gid"}
    if not native:
        tables = {"uid": UID, "cid": CID_GID, "gid": CID_GID}
    data: list[dict] = [{} for _ in range(max(1, num_ps))]
    for name, examples in LOOKUPS.items():
        dim = 4 if name == "uid" else 2
        for server, of_server in enumerate(data):
            ids = sorted({i for example in examples for i in example})
            ids = [i for i in ids if i % len(data) == server]
            known, rows = of_server.get(tables[name], ([], np.zeros([0, dim])))
            rows = np.concatenate([rows, np.full([len(ids), dim], 3.0)])
            of_server[tables[name]] = ([*known, *ids], rows)
    return data


def ragged() -> dict[str, tf.RaggedTensor]:
    return {n: tf.ragged.constant(v, dtype=tf.int64) for n, v in LOOKUPS.items()}


@pytest.mark.parametrize("num_ps", [0, 2])
@pytest.mark.parametrize("native", [True, False])
def test_lookup_and_update(native, num_ps):
    servers, session_config = testing.create_test_ps_cluster(max(1, num_ps))
    with tf.Graph().as_default():
        ctx = make_ctx(num_ps, native)
        table = create_partitioned_hash_table(num_ps, native, parser_ctx=ctx)
        written = table.assign(make_rows(num_ps, native))
        added = table.assign_add(make_rows(num_ps, native))
        bundle: dict = {}
        layouts = table.lookup(ragged(), bundle)
        tensors = table.flatten_layout(layouts)
        grads = [tf.fill(tf.shape(tensor), 2.0) for tensor in tensors[:2]]
        update = table.apply_gradients(
            list(zip(grads, tensors[:2], strict=True)), 0, req_time=[5, 7], auxiliary_bundle=bundle
        )
        assert {key for key in bundle if "offset" in key} == {
            f"{SHARDING_PREFIX}{name}" for name in ("fid_offset", "feature_offset", "nfl_offset")
        }
        create = resources.initialize_resources(resources.shared_resources())
        with tf.compat.v1.Session(servers[0].target, config=session_config) as session:
            session.run(create)
            session.run(written.as_op())
            before = session.run(layouts)
            # Example 0: uid 1, cid 4, gid 5; example 1: uids 2 and 1, no cid, gid 5.
            assert before["bias"].tolist() == [[9], [9]]
            assert before["vec"][0].tolist() == [[3, 3, 3], [6, 6, 6]]
            assert before["vec"][1].tolist() == [[3], [0]]
            session.run(update)
            after = session.run(layouts)
            session.run(added.as_op())
            assert session.run(layouts)["vec"][0][0].tolist() == pytest.approx(
                (after["vec"][0][0] + 3).tolist()
            )

    # An id that occurs in both examples gets the sum of its gradients, 4; others get 2.
    def adagrad(g):
        return 3 - g / math.sqrt(0.1 + g * g)

    def ftrl(g):
        n = math.sqrt(0.1 + g * g)
        return -(g - (n - math.sqrt(0.1)) * 3) / n

    # The specification's numbers: value 3, gradient 2.
    assert adagrad(2) == 3 - 2 / math.sqrt(4.1)
    assert ftrl(2) == -(2 - (math.sqrt(4.1) - math.sqrt(0.1)) * 3) / math.sqrt(4.1)
    np.testing.assert_allclose(
        after["vec"][0], [[adagrad(4)] * 3, [adagrad(4) + adagrad(2)] * 3], rtol=1e-5
    )
    # The slice of cid had no gradient.
    assert after["vec"][1].tolist() == [[3], [0]]
    # uid 1, cid 4, gid 5; uids 2 and 1, gid 5.
    expected = [[ftrl(4) + ftrl(2) + ftrl(4)], [ftrl(2) + ftrl(4) + ftrl(4)]]
    np.testing.assert_allclose(after["bias"], expected, rtol=1e-5)


def test_serialized_examples():
    example = example_pb2.Example()
    for name, ids in (("uid", [1]), ("cid", [4]), ("gid", [5])):
        example.named_feature.add(name=name).feature.fid_v2_list.value.extend(ids)
    ctx = make_ctx(0, True)
    table = create_partitioned_hash_table(0, True, parser_ctx=ctx).assign(make_rows(0, True))
    features = {SPARSE_FEATURES: tf.constant([example.SerializeToString()])}
    with pytest.raises(errors.ConfigError, match="no parser has said which"):
        table.lookup(features)
    ctx.parser_type = "example"
    assert table.lookup(features)["bias"].numpy().tolist() == [[9]]


def test_functions_instead_of_layouts():
    table = create_partitioned_hash_table(0, True, parser_ctx=make_ctx(0, True))
    table = table.assign(make_rows(0, True))
    bundle: dict = {}
    make = table.lookup(ragged(), bundle, ret_fused_layout_callable_fn=True)
    assert make(bundle)["bias"].numpy().tolist() == [[9], [9]]
    look_up = table.lookup(ragged(), ret_lookup_callable_fn=True)
    assert look_up()["bias"].numpy().tolist() == [[9], [9]]


def test_names_and_configs():
    assert distributed_ps.get_sub_table_name(["uid"]) == ("uid", UID)
    assert distributed_ps.get_sub_table_name(["gid", "cid"]) == ("cid,gid", CID_GID)
    to_table, tables = distributed_ps.PartitionedHashTable.merge_feature_config(CONFIGS)
    assert to_table == {"uid": UID, "cid": CID_GID, "gid": CID_GID}
    assert set(tables) == {UID, CID_GID}
    merged = make_ctx(0, False).get("sharding_feature_configs")
    assert merged.num_servers == 1
    assert merged.feature_configs.feature_configs["gid"].table == CID_GID
    assert list(merged.feature_configs.feature_configs["uid"].slice_dims) == [1, 3]
    native = make_ctx(3, True).get("sharding_feature_configs")
    assert native.num_servers == 3
    tables = {config.table for config in native.feature_configs.feature_configs.values()}
    assert tables == {"native_multi_hash_table_fake_table"}
    assert native.unique


def test_layouts_flat_and_nested():
    table = create_partitioned_hash_table(0, True, parser_ctx=make_ctx(0, True))
    assert table.nest_layout(["b", "v0", "v1"]) == {"bias": "b", "vec": ["v0", "v1"]}
    assert table.flatten_layout({"vec": ["v0", "v1"], "bias": "b"}) == ["b", "v0", "v1"]
    with pytest.raises(errors.ConfigError, match="have 3 tensors, got 1"):
        table.nest_layout(["b"])


class Other(combiners.Combiner):
    def __init__(self):
        super().__init__(0)

    def combine(self, key, embedding, name=None):
        return embedding


def test_refusals():
    with pytest.raises(Exception, match="pooling_type error!"):
        layout_configs.gen_feature_configs(
            0, {"uid": CONFIGS["uid"]}, {}, {"uid": [4]}, {"uid": Other()}, True
        )
    with pytest.raises(errors.ConfigError, match="on a GPU"):
        make_ctx(0, True, use_gpu=True)
    with pytest.raises(errors.ConfigError, match="feature 'uid', which has no table"):
        layout_configs.gen_feature_configs(0, {}, make_layouts(), {}, {}, True)
    with pytest.raises(errors.ConfigError, match="does not know the features"):
        create_partitioned_hash_table(0, True, parser_ctx=ParserCtx())
    with pytest.raises(errors.ConfigError, match="those of 2 servers, but `num_ps` is 0"):
        create_partitioned_hash_table(0, True, parser_ctx=make_ctx(2, True))
    with pytest.raises(errors.ConfigError, match="for the other kind of tables"):
        create_partitioned_hash_table(0, False, parser_ctx=make_ctx(0, True))
    with pytest.raises(errors.ConfigError, match="only ranks that exchange"):
        create_partitioned_hash_table(
            0, True, queue_configs={"enable_pipelined_fwda2a": 1}, parser_ctx=make_ctx(0, True)
        )
    with pytest.raises(errors.ConfigError, match="tables on a GPU"):
        create_partitioned_hash_table(0, True, enable_gpu_emb=True, parser_ctx=make_ctx(0, True))
    table = create_partitioned_hash_table(0, True, parser_ctx=make_ctx(0, True))
    with pytest.raises(errors.ConfigError, match="for each of 1 servers, got 2"):
        table.assign([{}, {}])
    with pytest.raises(errors.ConfigError, match="after a lookup only"):
        table.apply_gradients([], 0)
    table.lookup(ragged())
    with pytest.raises(errors.ConfigError, match="which is no layout"):
        table.apply_gradients([(tf.zeros([1]), tf.zeros([1]))], 0)
