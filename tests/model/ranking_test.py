"""The user's face of a model: params as attributes, features, slots, lookups and layouts.

Covers monolith/model/lookup.py.
"""

import copy
import hashlib

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from support.models import Model

from monolith import errors, layers
from monolith.embedding import entry
from monolith.embedding.features import combiners
from monolith.embedding.features.dry_run import DummyFeatureFactory
from monolith.embedding.features.factory import EmbeddingLayoutFactory, FeatureFactoryFromEmbeddings
from monolith.embedding.features.slices import create_embedding_slices
from monolith.graph.mode_keys import ModeKeys
from monolith.model import ranking
from monolith.native_training import native_model
from monolith.proto import example_pb2
from monolith.tensor import prefetch

pytestmark = pytest.mark.usefixtures("graph_mode")

FLAGS = flags.FLAGS


@pytest.fixture
def factory() -> DummyFeatureFactory:
    return DummyFeatureFactory(batch_size=4)


@pytest.fixture
def model_(factory) -> Model:
    result = Model()
    result.ctx.feature_factory = factory
    result.ctx.async_function_mgr = prefetch.AsyncFunctionMgr(is_async=False)
    return result


class TestParams:
    def test_historical_path(self):
        assert native_model is ranking

    def test_defaults(self):
        p = Model.params()
        defaults = {
            "output_path": None,
            "output_fields": None,
            "delimiter": "\t",
            "file_name": "",
            "enable_grads_and_vars_summary": False,
            "dense_weight_decay": 0.0,
            "clip_norm": 1000.0,
            "sparse_norm_warmup_steps": None,
            "default_occurrence_threshold": 0,
            "feature_list": None,
        }
        assert {name: p[name] for name in defaults} == defaults

    def test_params_are_attributes(self):
        made = Model()
        made.clip_norm = 5.0
        made.metrics.deep_insight_target = "click"
        assert made.p.clip_norm == made.clip_norm == 5.0
        assert made.p.metrics.deep_insight_target == "click"
        assert made.train is made.p.train

    def test_other_attributes_are_those_of_the_object(self):
        made = Model()
        made.hidden = [64, 32]
        assert made.hidden == [64, 32]
        assert "hidden" not in made.p

    def test_unknown_attribute(self):
        with pytest.raises(AttributeError, match="Model has no attribute and no param 'clip_nrm'"):
            _ = Model().clip_nrm

    def test_batch_size_is_that_of_the_mode(self):
        made = Model()
        made.batch_size = 128
        assert made.p.train.per_replica_batch_size == 128
        assert made.p.eval.per_replica_batch_size == 128
        made.p.eval.per_replica_batch_size = 256
        assert made.batch_size == 128
        made.mode = ModeKeys.EVAL
        assert made.batch_size == 256

    def test_model_stands_for_its_params(self):
        made = Model()
        assert made.instantiate() is made
        assert isinstance(Model.params().instantiate(), Model)

    def test_copy_leaves_the_graph_behind(self, model_):
        model_.clip_norm = 5.0
        model_.create_embedding_feature_column("user")
        model_.hidden = [64]
        copied = copy.deepcopy(model_)
        copied.p.clip_norm = 6.0
        copied.hidden.append(32)
        assert (model_.clip_norm, model_.hidden) == (5.0, [64])
        assert copied.fc_dict == {}
        assert copied.ctx.feature_factory is None
        assert model_.ctx.feature_factory is not None

    def test_unparsed_flags_are_no_problem(self):
        FLAGS.unparse_flags()
        assert Model()._use_dense_allreduce is False


class TestFeatureColumn:
    def test_sum_is_the_default(self, model_, factory):
        column = model_.create_embedding_feature_column("user")
        (rows,) = model_.lookup_embedding_slice(["user"], "vec", 8)
        assert isinstance(column.combiner, combiners.ReduceSum)
        assert rows.shape == (4, 8)
        assert list(factory.get_table_name_to_table_config()) == ["user"]

    def test_second_call_returns_the_same(self, model_):
        first = model_.create_embedding_feature_column("user")
        assert model_.create_embedding_feature_column("user") is first
        assert model_.fc_dict == {"user": first}

    def test_second_call_with_other_settings(self, model_):
        model_.create_embedding_feature_column("user")
        with pytest.raises(errors.ConfigError, match="'user' was declared before with other sett"):
            model_.create_embedding_feature_column("user", max_seq_length=3)

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"max_seq_length": 3}, "FirstN(3)"),
            ({"combiner": "first_n", "max_seq_length": 3}, "FirstN(3)"),
            ({"combiner": "reduce_mean"}, "ReduceMean()"),
            ({"combiner": "reduce_sum"}, "ReduceSum()"),
            ({"combiner": combiners.FirstN(2)}, "FirstN(2)"),
        ],
    )
    def test_combiners(self, model_, settings, expected):
        column = model_.create_embedding_feature_column("user", **settings)
        assert str(column.combiner) == expected

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"combiner": "first_n"}, "needs a max_seq_length above 0, got 0"),
            ({"combiner": "max"}, "unknown combiner 'max'; use 'reduce_sum'"),
            ({"combiner": "reduce_sum", "max_seq_length": 3}, "leave one of them out"),
            ({"combiner": combiners.ReduceSum(), "max_seq_length": 3}, "give one of them"),
        ],
    )
    def test_bad_combiners(self, model_, settings, message):
        with pytest.raises(errors.ConfigError, match=message):
            model_.create_embedding_feature_column("user", **settings)

    def test_sequence(self, model_):
        model_.create_embedding_feature_column("clicks", max_seq_length=10)
        (rows,) = model_.lookup_embedding_slice(["clicks"], "vec", 8)
        assert rows.shape == (4, 10, 8)

    def test_shared_with_a_feature(self, model_, factory):
        movie = model_.create_embedding_feature_column("movie")
        history = model_.create_embedding_feature_column(
            "history", max_seq_length=5, shared_name="movie"
        )
        assert history.feature_slot is movie.feature_slot
        model_.lookup_embedding_slice(["movie", "history"], "vec", 8)
        config = factory.get_table_name_to_table_config()["movie"]
        assert config.unmerged_slice_dims == [8]
        assert config.feature_names == ["movie", "history"]

    def test_shared_with_a_slot_that_has_no_feature(self, model_, factory):
        first = model_.create_embedding_feature_column("first", shared_name="item")
        second = model_.create_embedding_feature_column("second", shared_name="item")
        assert first.feature_slot is second.feature_slot
        assert first.feature_slot.name == "item"

    def test_shared_through_a_feature_that_shares(self, model_):
        model_.create_embedding_feature_column("movie")
        model_.create_embedding_feature_column("second", shared_name="movie")
        third = model_.create_embedding_feature_column("third", shared_name="second")
        assert third.feature_slot.name == "movie"

    def test_shared_slot_has_one_threshold(self, model_):
        model_.create_embedding_feature_column("slot_3", occurrence_threshold=2)
        with pytest.raises(errors.ConfigError, match="shares the slot 'slot_3', which has occurr"):
            model_.create_embedding_feature_column(
                "other", shared_name="slot_3", occurrence_threshold=5
            )

    def test_unknown_kind_of_name(self, model_):
        with pytest.raises(errors.ConfigError, match=r"called by its name, .* got 1.5"):
            model_.create_embedding_feature_column(1.5)


class TestSlots:
    @pytest.mark.parametrize(
        ("key", "name", "slot"),
        [
            (7, "fc_slot_7", 7),
            ("slot_7", "slot_7", 7),
            ("fc_slot_7", "fc_slot_7", 7),
            (9, "user", 9),
            ("user", "user", 9),
        ],
    )
    def test_name_and_slot(self, model_, factory, key, name, slot):
        model_.feature_list = {"user": 9}
        column = model_.create_embedding_feature_column(key, occurrence_threshold=3, expire_time=30)
        assert column.feature_name == name
        assert factory.slot_to_occurrence_threshold == {slot: 3}
        assert factory.slot_to_expire_time == {slot: 30}

    def test_feature_list_may_be_an_object(self, model_, factory):
        class FeatureList:
            def get_feature_name_and_slot(self, item):
                return "f_user", 200

        model_.feature_list = FeatureList()
        assert model_.create_embedding_feature_column("user").feature_name == "f_user"
        assert list(factory.slot_to_expire_time) == [200]

    def test_feature_list_of_another_kind(self, model_):
        model_.feature_list = "features.conf"
        with pytest.raises(errors.ConfigError, match="must be a dict from names to slots"):
            model_.create_embedding_feature_column("user")

    def test_default_threshold(self, model_, factory):
        model_.default_occurrence_threshold = 4
        model_.create_embedding_feature_column("slot_1")
        assert factory.slot_to_occurrence_threshold == {1: 4}

    def test_plain_names_are_counted_from_one_around_those_that_are_taken(self, model_, factory):
        model_.create_embedding_feature_column("slot_1", occurrence_threshold=5)
        model_.create_embedding_feature_column("user")
        model_.create_embedding_feature_column("movie")
        assert factory.slot_to_occurrence_threshold == {1: 5, 2: 0, 3: 0}

    @pytest.mark.parametrize("settings", [{"occurrence_threshold": 3}, {"expire_time": 30}])
    def test_settings_that_would_have_no_effect_are_refused(self, model_, settings):
        # The slot is read from the id; without one there is nothing to find the setting by.
        with pytest.raises(errors.ConfigError, match=r"has no slot: call the feature 'slot_<numbe"):
            model_.create_embedding_feature_column("user", **settings)

    def test_tables_on_a_gpu(self, model_):
        model_.train.use_gpu_emb_table = True
        with pytest.raises(errors.ConfigError, match="tables on a GPU"):
            model_.create_embedding_feature_column("user")


class TestShareSlot:
    FEATURES = {"user": [[(5 << 48) + 1, 2], [3]], "label": [1.0, 0.0]}

    def share(self, model_, share_meta):
        features = {
            "user": tf.ragged.constant(self.FEATURES["user"], dtype=tf.int64),
            "label": tf.constant(self.FEATURES["label"]),
        }
        shared = model_.share_slot(features, share_meta)
        with tf.compat.v1.Session() as session:
            values = session.run(shared)
        return {
            name: value.to_list() if name != "label" else value.tolist()
            for name, value in values.items()
        }

    def test_added(self, model_):
        shared = self.share(model_, {"user": (False, 7)})
        assert shared == {
            **self.FEATURES,
            "user_share": [[(7 << 48) + 1, (7 << 48) + 2], [(7 << 48) + 3]],
        }

    def test_in_place(self, model_, factory):
        shared = self.share(model_, {"user": (True, 7)})
        assert shared["user"] == [[(7 << 48) + 1, (7 << 48) + 2], [(7 << 48) + 3]]
        model_.clean()  # As before every graph.
        model_.create_embedding_feature_column("user", occurrence_threshold=3)
        assert factory.slot_to_occurrence_threshold == {7: 3}

    def test_unparsed_batch(self, model_):
        with pytest.raises(errors.ConfigError, match="share_slot needs a parsed batch"):
            model_.share_slot(share_meta={"user": (True, 7)})

    def test_dense_ids(self, model_):
        with pytest.raises(errors.ConfigError, match=r"'user' must be a tf.RaggedTensor"):
            model_.share_slot({"user": tf.constant([1])}, {"user": (True, 7)})


# Rows of three features for two examples, one id each: a has the slices vec (2) and bias (1).
ROWS = {
    "a": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32),
    "b": np.array([[10.0, 20.0], [40.0, 50.0]], np.float32),
    "slot_8": np.array([[100.0, 200.0], [400.0, 500.0]], np.float32),
}


@pytest.fixture
def given_rows() -> Model:
    ids = tf.ragged.constant([[1], [2]], dtype=tf.int64)
    slices = create_embedding_slices(
        {name: tf.constant(rows) for name, rows in ROWS.items()},
        dict.fromkeys(ROWS, ids),
        {name: combiners.ReduceSum() for name in ROWS},
        {"a": [2, 1], "b": [2], "slot_8": [2]},
    )
    result = Model()
    result.ctx.feature_factory = FeatureFactoryFromEmbeddings(
        {name: tf.constant(rows) for name, rows in ROWS.items()}, slices
    )
    for name in ROWS:
        result.create_embedding_feature_column(name)
    return result


def run(fetches):
    with tf.compat.v1.Session() as session:
        return session.run(fetches)


A, B, C = ROWS["a"][:, :2], ROWS["b"], ROWS["slot_8"]


class TestLookup:
    @pytest.mark.parametrize(
        "features",
        [["a", "b"], [("a", 2), ("b", 2)], {"a": 2, "b": 2}, [["a"], ["b"]]],
        ids=["names", "pairs", "dict", "groups"],
    )
    def test_list_of_tensors(self, given_rows, features):
        slice_dim = None if isinstance(features, dict) or isinstance(features[0], tuple) else 2
        first, second = run(given_rows.lookup_embedding_slice(features, "vec", slice_dim))
        np.testing.assert_array_equal(first, A)
        np.testing.assert_array_equal(second, B)

    @pytest.mark.parametrize(
        ("out_type", "expected"),
        [
            ("concat", np.concatenate([A, B], axis=1)),
            ("stack", np.stack([A, B], axis=1)),
            ("add_n", A + B),
            ("addn", A + B),
        ],
    )
    def test_out_types(self, given_rows, out_type, expected):
        rows = given_rows.lookup_embedding_slice(["a", "b"], "vec", 2, out_type=out_type)
        np.testing.assert_array_equal(run(rows), expected)

    def test_columns_and_slots_as_features(self, given_rows):
        features = [given_rows.fc_dict["a"], "slot_8"]
        rows = run(given_rows.lookup_embedding_slice(features, "vec", 2, out_type="concat"))
        np.testing.assert_array_equal(rows, np.concatenate([A, C], axis=1))

    def test_several_slices_of_a_row(self, given_rows):
        (vec,) = given_rows.lookup_embedding_slice(["a"], "vec", 2)
        (bias,) = given_rows.lookup_embedding_slice(["a"], "bias", 1)
        np.testing.assert_array_equal(run(vec), A)
        np.testing.assert_array_equal(run(bias), ROWS["a"][:, 2:])

    def test_same_slice_again(self, given_rows):
        (first,) = given_rows.lookup_embedding_slice(["a"], "vec", 2)
        (again,) = given_rows.lookup_embedding_slice(["a"], "vec", 2)
        np.testing.assert_array_equal(*run([first, again]))
        assert list(given_rows.slice_dict["a"]) == ["vec"]

    @pytest.mark.parametrize(
        ("group_out_type", "expected"),
        [("add_n", [A + B, C]), ("concat", [np.concatenate([A, B], axis=1), C])],
    )
    def test_groups(self, given_rows, group_out_type, expected):
        rows = given_rows.lookup_embedding_slice(
            [["a", "b"], ["slot_8"]], "vec", 2, group_out_type=group_out_type
        )
        for actual, wanted in zip(run(rows), expected, strict=True):
            np.testing.assert_array_equal(actual, wanted)

    def test_groups_of_slots(self, model_):
        for slot in (1, 2, 3):
            model_.create_embedding_feature_column(slot)
        rows = model_.lookup_embedding_slice([[1, 2], [3]], "vec", 8, out_type="concat")
        assert rows.shape == (4, 16)

    def test_settings_reach_the_slice(self, model_, factory):
        model_.create_embedding_feature_column("user")
        model_.lookup_embedding_slice(
            ["user"],
            "vec",
            8,
            initializer=entry.ConstantsInitializer(0.5),
            optimizer=entry.AdamOptimizer(learning_rate=0.2),
            compressor=entry.Fp32Compressor(),
        )
        (config,) = factory.get_table_name_to_table_config()["user"].slice_configs
        assert config.learning_rate_fn == pytest.approx(0.2)
        assert config.segment.init_config.WhichOneof("type") == "constants"
        assert config.segment.opt_config.WhichOneof("type") == "adam"
        assert config.segment.comp_config.WhichOneof("type") == "fp32"

    def test_feature_that_is_not_declared(self, given_rows):
        with pytest.raises(
            errors.ConfigError,
            match=r"'usr' is looked up but not declared; call create_embedding_feature_column"
            r"\('usr'\) before. Declared are: 'a', 'b', 'slot_8'",
        ):
            given_rows.lookup_embedding_slice(["usr"], "vec", 2)

    def test_slice_with_another_dim(self, given_rows):
        given_rows.lookup_embedding_slice(["a"], "vec", 2)
        with pytest.raises(
            errors.ConfigError, match=r"Slice 'vec' of slot 'a' has dim 2, but .* 4"
        ):
            given_rows.lookup_embedding_slice(["a"], "vec", 4)

    @pytest.mark.parametrize(
        ("features", "slice_dim"),
        [
            pytest.param([], 2, id="nothing"),
            pytest.param("a", 2, id="not_a_list"),
            pytest.param(["a"], None, id="no_dim"),
            pytest.param(["a"], 0, id="zero_dim"),
            pytest.param([("a", "b")], 2, id="tuple_of_names"),
            pytest.param([[]], 2, id="empty_group"),
            pytest.param([1.5], 2, id="no_name"),
        ],
    )
    def test_bad_features(self, given_rows, features, slice_dim):
        with pytest.raises(ValueError, match="ValueError for features"):
            given_rows.lookup_embedding_slice(features, "vec", slice_dim)

    def test_unknown_out_type(self, given_rows):
        with pytest.raises(errors.ConfigError, match=r"out_type must be None, .* got 'sum'"):
            given_rows.lookup_embedding_slice(["a"], "vec", 2, out_type="sum")

    def test_unknown_group_out_type(self, given_rows):
        with pytest.raises(errors.ConfigError, match="group_out_type must be 'add_n' or 'concat'"):
            given_rows.lookup_embedding_slice([["a", "b"]], "vec", 2, group_out_type="mean")

    def test_different_dims_cannot_be_added(self, model_):
        for name in ("a", "b"):
            model_.create_embedding_feature_column(name)
        with pytest.raises(errors.ConfigError, match="'add_n' needs slices of one shape"):
            model_.lookup_embedding_slice({"a": 2, "b": 3}, "vec", out_type="add_n")


class TestLayout:
    def make_slice(self, name, start, end):
        return example_pb2.SliceConfig(feature_name=name, start=start, end=end)

    @pytest.mark.parametrize(
        ("out_type", "kind", "shapes"),
        [
            (None, example_pb2.NONE, [[-1, 2], [-1, 2]]),
            ("concat", example_pb2.CONCAT, [[-1, 4]]),
            ("stack", example_pb2.STACK, [[-1, 2, 2]]),
            ("add_n", example_pb2.ADDN, [[-1, 2]]),
        ],
    )
    def test_lookup_registers_a_layout(self, given_rows, out_type, kind, shapes):
        given_rows.lookup_embedding_slice(["b", "a"], "vec", 2, out_type=out_type)
        config = given_rows.layout_dict[f"vec_{hashlib.md5(b'a,b').hexdigest()}"]
        assert config.out_type == kind
        assert [list(shape.dims) for shape in config.shape] == shapes
        assert list(config.slice_configs) == [
            self.make_slice("b", 0, 2),
            self.make_slice("a", 0, 2),
        ]

    def test_same_features_laid_out_in_two_ways(self, given_rows):
        given_rows.lookup_embedding_slice(["a", "b"], "vec", 2)
        given_rows.lookup_embedding_slice(["b", "a"], "vec", 2, out_type="concat")
        given_rows.lookup_embedding_slice(["a", "b"], "vec", 2)
        kinds = [config.out_type for config in given_rows.layout_dict.values()]
        assert kinds == [example_pb2.NONE, example_pb2.CONCAT]

    def test_sequence(self, model_):
        model_.create_embedding_feature_column("clicks", max_seq_length=10)
        model_.lookup_embedding_slice(["clicks"], "vec", 8)
        (config,) = model_.layout_dict.values()
        assert [list(shape.dims) for shape in config.shape] == [[-1, 10, 8]]

    def test_fused_lookup_returns_the_layout(self, model_):
        model_.create_embedding_feature_column("user")
        model_.lookup_embedding_slice(["user"], "vec", 8)
        (name,) = model_.layout_dict
        model_.clean()
        model_.ctx.feature_factory = None
        model_.ctx.layout_factory = EmbeddingLayoutFactory(None, {name: "the tensor"})
        assert model_.is_fused_layout()
        model_.create_embedding_feature_column("user")
        assert model_.lookup_embedding_slice(["user"], "vec", 8) == "the tensor"

    def test_fused_groups(self, model_):
        model_.ctx.feature_factory = None
        model_.ctx.layout_factory = EmbeddingLayoutFactory(None, {})
        for slot in (1, 2):
            model_.create_embedding_feature_column(slot)
        with pytest.raises(ValueError, match="group pool is not support when fused_layout"):
            model_.lookup_embedding_slice([[1, 2]], "vec", 8)


def test_layers_can_be_kept_in_the_model(model_):
    """A model may make its layers once; every graph, and every copy, gets weights of its own."""
    model_.tower = layers.MLP([4, 1])
    for made in (model_, copy.deepcopy(model_)):
        with tf.Graph().as_default():
            made.tower(tf.ones([2, 3]))
            made.tower(tf.ones([2, 3]))
            assert len(tf.compat.v1.trainable_variables()) == 4
