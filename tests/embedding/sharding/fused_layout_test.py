"""Rows to layouts and gradients back, against a model in NumPy; bad offsets are refused.

Covers monolith/native/layout_gradients.py.
"""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from support.distribution import weighted_sum
from support.layouts import make_configs, model, to_ragged

from monolith import errors
from monolith.data.sparse_fids import ShardedFids, sharding_sparse_fids
from monolith.embedding.sharding.fused_layout import (
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
)

FEATURES = {
    "age": ("small", "mean", 2, 0),
    "clicks": ("large", "firstn", 3, 2),
    "item": ("large", "sum", 3, 0),
    "views": ("large", "firstn", 3, 2),
}
LAYOUTS = {
    "bias": ("addn", [("age", 0, 1), ("item", 2, 3), ("age", 1, 2)]),
    "deep": ("concat", [("item", 0, 3), ("age", 0, 2), ("item", 1, 2)]),
    "each": ("none", [("age", 0, 2), ("clicks", 1, 3)]),
    "pairs": ("stack", [("item", 0, 2), ("age", 0, 2)]),
    "sequences": ("stack", [("clicks", 0, 3), ("views", 0, 3)]),
    "in_a_row": ("concat", [("views", 0, 2), ("clicks", 0, 2)]),
}
CONFIGS = make_configs(FEATURES, LAYOUTS)
IDS = {
    "age": [[1], [2, 3], [], [1, 1]],
    "clicks": [[10, 11, 12], [], [10], [12, 12]],
    "item": [[10], [13, 10], [11], []],
    "views": [[], [14, 15], [10, 11, 13], [-3]],
}


def row_of(table: str, id_: int) -> list[float]:
    width = 2 if table == "small" else 3
    return [id_ + 0.25 * d - (7 if table == "small" else 0) for d in range(width)]


def rows_of(sharded: ShardedFids, row_of=row_of) -> list[np.ndarray]:
    """The rows of each list, flat: what its server would answer."""
    return [
        np.array([x for i in ids.numpy() for x in row_of(table, int(i))], np.float32)
        for table in sorted(sharded.shards)
        for ids in sharded.shards[table]
    ]


def offsets_of(sharded: ShardedFids) -> tuple[tf.Tensor, ...]:
    return (sharded.fid_offset, sharded.feature_offset, sharded.nfl_offset, sharded.batch_size)


def in_version(version: int, ps_num: int, sharded: ShardedFids, rows: list[np.ndarray]):
    """Rows and further arguments of a version, whose offsets lead to the same rows."""
    tables = sorted(sharded.shards)
    if version == 3:
        return rows, {}
    if version == 5:
        return rows, {
            name: getattr(sharded, name)
            for name in ("nfl_size", "feature_size", "fid_size", "emb_size")
        }
    assert version == 4
    blocks = [rows[t * ps_num + ps] for ps in range(ps_num) for t in range(len(tables))]
    lengths = [block.size for block in blocks]
    return [np.concatenate(blocks)], {"fid_list_emb_row_lenth": lengths}


class TestForward:
    @pytest.mark.parametrize("unique", [True, False])
    @pytest.mark.parametrize("ps_num", [1, 3])
    @pytest.mark.parametrize("version", [3, 4, 5])
    def test_floats_by_offset(self, version, ps_num, unique):
        sharded = sharding_sparse_fids(to_ragged(IDS), ps_num, CONFIGS, unique)
        rows, options = in_version(version, ps_num, sharded, rows_of(sharded))
        made = fused_embedding_to_layout(
            rows,
            None,
            *offsets_of(sharded),
            "example",
            CONFIGS,
            ps_num,
            version=version,
            **options,
        )
        expected = model(FEATURES, LAYOUTS, IDS, row_of)
        assert len(made) == len(expected) == 7
        for tensor, values in zip(made, expected, strict=True):
            np.testing.assert_allclose(tensor, values, rtol=1e-6)

    def test_rows_by_number(self):
        # Two tables on one server; feature "b" comes before "c" in table "t".
        configs = make_configs(
            {"b": ("t", "sum", 2, 0), "c": ("t", "sum", 2, 0), "a": ("u", "sum", 1, 0)},
            {"all": ("concat", [("a", 0, 1), ("b", 0, 2), ("c", 0, 2)])},
        )
        t = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
        u = [[7.0], [8.0]]
        # Feature by feature: a of both examples, b of both, c of the second.
        feature_offset, nfl_offset = [0, 1, 2, 4, 5, 5], [0, 2, 4]
        by_list = [(1, 0), (1, 1), (0, 0), (0, 1), (0, 2), (0, 0)]
        fid_offset = [list_ << 32 | row for list_, row in by_list]
        arguments = (feature_offset, nfl_offset, 2, "example", configs, 1)
        expected = [[7, 4, 6, 0, 0], [8, 5, 6, 1, 2]]
        made = fused_embedding_to_layout([t, u], None, fid_offset, *arguments, version=1)
        assert made[0].numpy().tolist() == expected
        # Version 2 names the features of a table apart: b is 0, c is 1, a of table u is 2. The
        # rows of b are the first two and the third, so that c has the ones behind them.
        flat = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0, 2.0]
        by_feature = [(2, 0), (2, 1), (0, 0), (0, 1), (0, 2), (1, 0)]
        fid_offset = [list_ << 32 | row for list_, row in by_feature]
        row_splits = [[0, 3, 4], [0, 2]]
        made = fused_embedding_to_layout(
            [flat, [7.0, 8.0]], row_splits, fid_offset, *arguments, version=2
        )
        assert made[0].numpy().tolist() == expected

    def test_one_list_for_the_whole_batch_and_an_absent_feature(self):
        configs = make_configs(
            {"a": ("t", "mean", 1, 0), "b": ("t", "sum", 1, 0), "c": ("t", "sum", 1, 0)},
            {"all": ("concat", [("a", 0, 1), ("b", 0, 1), ("c", 0, 1)])},
        )
        shared = 0x80000000
        rows = [tf.constant([1.0, 3.0, 10.0, 20.0, 30.0])]
        fid_offset, feature_offset = [0, 1, 2, 3, 4], [0, 2, 3, 4]
        with tf.GradientTape() as tape:
            tape.watch(rows)
            (made,) = fused_embedding_to_layout(
                rows,
                None,
                fid_offset,
                feature_offset,
                [shared | 0, 1, 4],
                3,
                "example_batch",
                configs,
                1,
            )
            loss = tf.reduce_sum(made * [[1.0, 1, 9], [2, 10, 9], [3, 100, 9]])
        # a: the mean of 1 and 3 for all; b: one id each; c: nowhere.
        assert made.numpy().tolist() == [[2, 10, 0], [2, 20, 0], [2, 30, 0]]
        # a: half of 1 + 2 + 3 for each of its rows.
        assert tape.gradient(loss, rows)[0].numpy().tolist() == [3, 3, 1, 10, 100]

    def test_no_examples(self):
        sharded = sharding_sparse_fids(to_ragged({name: [] for name in IDS}), 1, CONFIGS)
        made = fused_embedding_to_layout(
            rows_of(sharded), None, *offsets_of(sharded), "instance", CONFIGS, 1
        )
        assert [tensor.shape[0] for tensor in made] == [0] * 7
        assert made[4].shape == (0, 4, 2)  # in_a_row, after bias, deep, and two of each.

    def test_shapes_in_a_graph(self):
        with tf.Graph().as_default():
            rows = [tf.compat.v1.placeholder(tf.float32, [None]) for _ in range(2)]
            made = fused_embedding_to_layout(rows, None, [0], [0], [0], 5, "example", CONFIGS, 1)
            assert made[1].shape == (5, 6)
            size = tf.compat.v1.placeholder(tf.int32, [])
            made = fused_embedding_to_layout(rows, None, [0], [0], [0], size, "example", CONFIGS, 1)
            assert made[-1].shape.as_list() == [None, 2, 2, 3]
            grads = tf.gradients(made[1], rows)
            assert [grad.shape.as_list() for grad in grads] == [[None], [None]]


class TestGradient:
    @pytest.mark.parametrize("version", [3, 4, 5])
    def test_is_numeric(self, version):
        sharded = sharding_sparse_fids(to_ragged(IDS), 2, CONFIGS, unique=True)
        rows, options = in_version(version, 2, sharded, rows_of(sharded))

        def loss(*rows):
            made = fused_embedding_to_layout(
                list(rows),
                None,
                *offsets_of(sharded),
                "example",
                CONFIGS,
                2,
                version=version,
                **options,
            )
            return weighted_sum(made)

        # Linear in each row: a step of 1 makes no error but that of the sum.
        theoretical, numeric = tf.test.compute_gradient(
            loss, [tf.constant(r) for r in rows], delta=1.0
        )
        for exact, approximate in zip(theoretical, numeric, strict=True):
            np.testing.assert_allclose(exact, approximate, rtol=1e-3, atol=0.05)

    @pytest.mark.parametrize("version", [1, 2])
    def test_of_rows_by_number(self, version):
        configs = make_configs(
            {"a": ("t", "sum", 2, 0)}, {"all": ("concat", [("a", 1, 2), ("a", 0, 1)])}
        )
        rows = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        with tf.GradientTape() as tape:
            tape.watch(rows)
            (made,) = fused_embedding_to_layout(
                [rows], [[0, 2]], [1, 0, 1], [0, 2], [0], 2, "example", configs, 1, version=version
            )
            loss = tf.reduce_sum(made * [[1.0, 2.0], [10.0, 20.0]])
        assert made.numpy().tolist() == [[6, 4], [4, 3]]
        # Row 1 is in both examples, row 0 in the first; the slices are exchanged.
        assert tape.gradient(loss, rows).numpy().tolist() == [[2, 1], [22, 11]]

    @pytest.mark.parametrize("version", [3, 5])
    def test_called_directly_with_a_scale(self, version):
        configs = make_configs({"a": ("t", "mean", 1, 0)}, {"all": ("none", [("a", 0, 1)])})
        grads = fused_embedding_to_layout_grad(
            nfl_offset=[0],
            feature_offset=[0, 2],
            fid_offset=[0, 1, 1],
            batch_size=2,
            embeddings_list=[[0.0, 0.0, 0.0]],
            fid_list_row_split=None,
            layout_tensors_grad=[[[1.0], [4.0]]],
            variant_type="examplebatch",
            feature_cfgs=configs,
            ps_num=1,
            layout_tensors_grad_scale=2.0,
            version=version,
        )
        # 2 * 1 / 2 for the first row; that and 2 * 4 for the second; nobody has the third.
        assert grads[0].numpy().tolist() == [1, 9, 0]

    def test_all_threads_give_the_bits_of_one(self):
        rng = np.random.default_rng(3)
        configs = make_configs({"a": ("t", "mean", 8, 0)}, {"all": ("concat", [("a", 0, 8)])})
        ids = {"a": [rng.integers(0, 99, size=20).tolist() for _ in range(2000)]}
        sharded = sharding_sparse_fids(to_ragged(ids), 1, configs, unique=True)
        rows = [rng.normal(size=[int(sharded.emb_size[0])]).astype(np.float32)]
        grad = [rng.normal(size=[2000, 8]).astype(np.float32)]

        def both(parallel_flag):
            fid, feature, nfl, batch = offsets_of(sharded)
            options = {"parallel_flag": parallel_flag}
            made = fused_embedding_to_layout(
                rows, None, fid, feature, nfl, batch, "example", configs, 1, **options
            )
            back = fused_embedding_to_layout_grad(
                nfl, feature, fid, batch, rows, None, grad, "example", configs, 1, **options
            )
            return made[0].numpy().tobytes(), back[0].numpy().tobytes()

        assert both(0) == both(1)


class TestRefusals:
    SIMPLE = make_configs({"a": ("t", "sum", 2, 0)}, {"all": ("concat", [("a", 0, 2)])})

    def call(self, configs=SIMPLE, rows=([1.0, 2.0],), version=3, **changed):
        arguments = {
            "fid_offset": [0],
            "feature_offset": [0],
            "nfl_offset": [0],
            "batch_size": 1,
            "fid_list_row_split": None,
        }
        options = {"variant_type": "example", "ps_num": 1} | changed
        arguments |= {name: options.pop(name) for name in list(options) if name in arguments}
        return fused_embedding_to_layout(
            list(rows), feature_cfgs=configs, version=version, **arguments, **options
        )

    def test_the_simple_call_is_accepted(self):
        assert self.call()[0].numpy().tolist() == [[1, 2]]

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"fid_offset": [1]}, "row of feature 'a' at 1 .* is not inside of embedding 0"),
            ({"fid_offset": [2**32 - 1]}, "is not inside of embedding 0, which has 2 floats"),
            ({"fid_offset": [1 << 32]}, "must name one of 1 embeddings, .* names number 1"),
            ({"feature_offset": [2]}, "must rise from 0 to at most the number of ids, 1"),
            ({"feature_offset": [-1]}, "element 0 is -1"),
            ({"feature_offset": [1, 0], "batch_size": 2}, "element 1 is 0"),
            ({"feature_offset": [0, 1]}, "must have offsets for 1 examples, or for none, got 2"),
            ({"nfl_offset": [2]}, "goes from 2 to 1"),
            ({"nfl_offset": [0, 1]}, "an element for each of the 1 features, got 2"),
            ({"batch_size": -1}, "must not be negative"),
            ({"batch_size": [1, 1]}, "must have 1 element"),
            ({"batch_size": 2**31 - 1, "feature_offset": []}, "asks for an output of"),
            ({"variant_type": "csv"}, "got 'csv'"),
            ({"parallel_flag": 7}, "must be 0, for all threads, or 1, for one, got 7"),
            ({"version": 1}, "must have 2 dimensions"),
            ({"version": 1, "rows": [[[1.0, 2.0, 3.0]]]}, "has rows of 3 floats"),
            ({"version": 2, "fid_list_row_split": [[0]]}, "must have 2 elements"),
            (
                {"version": 2, "fid_list_row_split": [[0, 2]]},
                "have 4 floats, but embedding 0 has 2",
            ),
            ({"version": 2, "fid_list_row_split": [[1, 1]]}, "must start with 0"),
            ({"version": 4, "fid_list_emb_row_lenth": [3]}, "adds up to 3 floats"),
            ({"version": 4, "fid_list_emb_row_lenth": [-1]}, "must not be negative"),
            ({"version": 4, "fid_list_emb_row_lenth": [1, 1]}, "1 tables and 1 servers, got 2"),
            (
                {"version": 5, "nfl_size": 2, "feature_size": 1, "fid_size": 1, "emb_size": [2]},
                "`nfl_size` is 2, but the request has 1",
            ),
            (
                {"version": 5, "nfl_size": 1, "feature_size": 1, "fid_size": 1, "emb_size": [3]},
                "embedding 0 has 3 floats, but it has 2",
            ),
        ],
    )
    def test_offsets(self, changed, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            self.call(**changed)

    @pytest.mark.parametrize(
        ("features", "layouts", "message"),
        [
            ({}, {}, "has no features"),
            ({"a": ("t", "sum", 2, 0)}, {}, "has no layouts"),
            ({"a": ("t", "sum", 0, 0)}, {"l": ("none", [("a", 0, 1)])}, "a slice of 0 floats"),
            ({"a": ("t", "firstn", 2, 0)}, {"l": ("none", [("a", 0, 1)])}, "must be positive"),
            ({"a": ("t", "sum", 2, 0)}, {"l": ("none", [("a", 1, 3)])}, r"the slice \[1, 3\)"),
            ({"a": ("t", "sum", 2, 0)}, {"l": ("none", [("a", 1, 1)])}, r"the slice \[1, 1\)"),
            (
                {"a": ("t", "firstn", 2, 3)},
                {"l": ("addn", [("a", 0, 1)])},
                "sequences .* like 'a' cannot be",
            ),
            (
                {"a": ("t", "sum", 2, 0)},
                {"l": ("addn", [("a", 0, 1), ("a", 0, 2)])},
                r"shapes \[-1, 1\] and \[-1, 2\], which do not fit together",
            ),
        ],
    )
    def test_configs(self, features, layouts, message):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            self.call(make_configs(features, layouts))

    def test_a_slice_of_no_feature_and_a_wrong_shape(self):
        configs = make_configs({"a": ("t", "sum", 2, 0)}, {"all": ("concat", [("a", 0, 2)])})
        configs.out_configs["all"].slice_configs[0].feature_name = "b"
        with pytest.raises(tf.errors.InvalidArgumentError, match="'b', which is none of"):
            self.call(configs)
        configs.out_configs["all"].slice_configs[0].feature_name = "a"
        configs.out_configs["all"].shape[0].dims[1] = 3
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"make \[-1, 2\]"):
            self.call(configs)

    def test_what_a_version_needs(self):
        with pytest.raises(errors.ConfigError, match="must be 1, 2, 3, 4 or 5, got 6"):
            self.call(version=6)
        with pytest.raises(errors.ConfigError, match=r"Version 2 .* needs `fid_list_row_split`"):
            self.call(version=2)
        with pytest.raises(errors.ConfigError, match=r"Version 5 .* needs `nfl_size`"):
            self.call(version=5)

    def test_a_gradient_of_another_size(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="2 floats for each of 1 examples"):
            fused_embedding_to_layout_grad(
                [0], [0], [0], 1, [[1.0, 2.0]], None, [[1.0]], "example", self.SIMPLE, 1
            )


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_batch_is_as_in_the_model(data):
    ids = {}
    batch = data.draw(st.integers(0, 4))
    for name in FEATURES:
        example = st.lists(st.integers(-5, 9), max_size=4)
        ids[name] = data.draw(st.lists(example, min_size=batch, max_size=batch))
    ps_num = data.draw(st.integers(1, 3))
    sharded = sharding_sparse_fids(to_ragged(ids), ps_num, CONFIGS, data.draw(st.booleans()))
    made = fused_embedding_to_layout(
        rows_of(sharded), None, *offsets_of(sharded), "example", CONFIGS, ps_num
    )
    if batch == 0:
        return
    for tensor, values in zip(made, model(FEATURES, LAYOUTS, ids, row_of), strict=True):
        np.testing.assert_allclose(tensor, values, rtol=1e-5, atol=1e-5)


@settings(max_examples=200, deadline=None)
@given(
    fid=st.lists(st.sampled_from([0, 1, 2, 3, 1 << 32, 2**63, 2**64 - 1]), max_size=4),
    feature=st.lists(st.integers(-1, 4), max_size=6),
    nfl=st.lists(st.sampled_from([0, 1, 2, 2**31, 2**31 + 1, 2**32 - 1]), max_size=4),
    batch=st.integers(-1, 3),
    version=st.sampled_from([1, 3]),
)
def test_odd_offsets_give_numbers_or_an_error(fid, feature, nfl, batch, version):
    configs = make_configs(
        {"a": ("t", "sum", 2, 0), "b": ("t", "firstn", 2, 2)},
        {"all": ("none", [("a", 0, 2), ("b", 1, 2)])},
    )
    rows = [tf.ones([2, 2])]
    try:
        made = fused_embedding_to_layout(
            rows,
            None,
            tf.constant(fid, tf.uint64),
            tf.constant(feature, tf.int32),
            tf.constant(nfl, tf.uint32),
            batch,
            "example",
            configs,
            1,
            version=version,
        )
    except tf.errors.InvalidArgumentError:
        return
    assert np.isfinite(made[0].numpy()).all()
    assert set(np.unique(made[1].numpy())) <= {0.0, 1.0}
