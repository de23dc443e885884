"""The embedding layer of a model: which tables, columns and slices it asks for."""

import pytest
from tensorflow.python.eager import context

from monolith import errors
from monolith.embedding import optimizers
from monolith.embedding.features import combiners
from monolith.embedding.features.dry_run import DummyFeatureFactory
from monolith.embedding.table import Table
from monolith.model.embedding import Build, Embedding, building
from monolith.proto import embedding_hash_table_pb2 as proto

pytestmark = pytest.mark.usefixtures("graph_mode")

BATCH = {"user": None, "movie": None, "genres": None}


@pytest.fixture
def factory():
    return DummyFeatureFactory(4)


@pytest.fixture
def build(factory):
    with building(Build(factory.create_feature_slot, optimizers.SGD(0.5))) as current:
        yield current


def get_table(factory, name):
    return factory.get_table_name_to_table_config()[name]


class TestOutput:
    @pytest.mark.parametrize(
        ("settings", "shape"),
        [
            pytest.param({}, [4, 24], id="side_by_side"),
            pytest.param({"output": "stack"}, [4, 3, 8], id="stack"),
            pytest.param({"max_length": 5}, [4, 5, 24], id="sequences"),
        ],
    )
    def test_shape(self, build, settings, shape):
        rows = Embedding(["user", "movie", "genres"], 8, **settings)(BATCH)
        assert rows.shape.as_list() == shape

    def test_dict_by_feature(self, build):
        rows = Embedding(["user", "movie"], 8, output="dict")(BATCH)
        assert {name: row.shape.as_list() for name, row in rows.items()} == {
            "user": [4, 8],
            "movie": [4, 8],
        }

    def test_one_feature_may_be_given_without_a_list(self, build):
        assert Embedding("user", 8)(BATCH).shape.as_list() == [4, 8]


class TestTables:
    def test_each_feature_has_its_own(self, build, factory):
        Embedding(["user", "movie"], 8)(BATCH)
        assert list(factory.get_table_name_to_table_config()) == ["user", "movie"]
        assert list(build.columns) == ["user", "movie"]

    def test_features_may_share_one(self, build, factory):
        Embedding(["user", "movie"], 8, table="things")(BATCH)
        table = get_table(factory, "things")
        assert table.feature_names == ["user", "movie"]
        assert table.unmerged_slice_dims == [8]

    def test_two_layers_have_a_part_of_the_row_each(self, build, factory):
        wide = Embedding(["user"], 1, optimizers.FTRL(0.1))
        deep = Embedding(["user", "movie"], 8, optimizers.Adagrad(0.2))
        assert wide(BATCH).shape.as_list() == [4, 1]
        assert deep(BATCH).shape.as_list() == [4, 16]
        table = get_table(factory, "user")
        assert [s.segment.dim_size for s in table.slice_configs] == [1, 8]
        assert [s.learning_rate_fn for s in table.slice_configs] == [0.1, 0.2]

    def test_a_second_call_gives_the_same_rows(self, build, factory):
        layer = Embedding("user", 8)
        layer(BATCH)
        layer(BATCH)
        assert get_table(factory, "user").unmerged_slice_dims == [8]

    def test_without_an_optimizer_rows_use_that_of_the_model(self, build, factory):
        Embedding("user", 8)(BATCH)
        (part,) = get_table(factory, "user").slice_configs
        assert part.segment.opt_config.WhichOneof("type") == "sgd"
        assert part.learning_rate_fn == 0.5

    def test_admission_and_expiry_are_those_of_the_table(self, build, factory):
        Embedding("user", 8, admit_after=2, expire_after_days=30)(BATCH)
        Embedding("user", 1)(BATCH)  # A second layer need not say it again.
        written = proto.EmbeddingHashTableConfig()
        get_table(factory, "user").hashtable_config.mutate_table(written)
        assert written.occurrence_threshold == 2
        assert written.slot_expire_time_config.default_expire_time == 30
        assert written.enable_feature_eviction

    def test_other_admission_in_a_second_layer_is_refused(self, build):
        Embedding("user", 8, admit_after=2)(BATCH)
        with pytest.raises(errors.ConfigError, match="Two layers look up table 'user'"):
            Embedding("user", 1, admit_after=3)(BATCH)

    def test_no_combiner_is_the_sum(self, build):
        Embedding("user", 8)(BATCH)
        Embedding("user", 1, combiner="sum")(BATCH)
        assert str(build.columns["user"].combiner) == str(combiners.ReduceSum())

    def test_two_combiners_of_one_feature_are_refused(self, build):
        Embedding("user", 8)(BATCH)
        with pytest.raises(errors.ConfigError, match="different combiners or tables"):
            Embedding("user", 1, combiner="mean")(BATCH)


class TestBadSettings:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([], 8), "name of a feature or a list of names"),
            (((7,), 8), "name of a feature or a list of names"),
            ((["user", "user"], 8), "names a feature twice"),
            (("user", 0), "`dim` of an Embedding must be a positive int, got 0"),
            (("user", 2.5), "`dim` of an Embedding"),
        ],
    )
    def test_features_and_dim(self, arguments, message):
        with pytest.raises(errors.ConfigError, match=message):
            Embedding(*arguments)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"combiner": "max"}, "`combiner` of an Embedding is one of 'sum', 'mean', got 'max'"),
            ({"combiner": ""}, "`combiner` of an Embedding is one of 'sum', 'mean', got ''"),
            ({"combiner": "max", "max_length": 5}, "`combiner` of an Embedding is one of"),
            ({"combiner": "sum", "max_length": 5}, "does not combine ids, .* give one of the two"),
            ({"table": ""}, "`table` of an Embedding is the name of a table .*, got ''"),
            ({"table": 7}, "`table` of an Embedding is the name of a table .*, got 7"),
            ({"output": "list"}, "`output` of an Embedding is one of"),
            ({"max_length": 0}, "`max_length` of an Embedding must be a positive int"),
            ({"admit_after": -1}, "admit_after"),
            ({"admit_after": 16}, "admit_after"),
            ({"expire_after_days": 0}, "`expire_after_days` of an Embedding must be"),
            ({"expire_after_days": 0.5}, "`expire_after_days` of an Embedding must be"),
            ({"optimizer": "adagrad"}, "must be one such as ml.Adagrad"),
        ],
    )
    def test_settings(self, settings, message):
        with pytest.raises(errors.ConfigError, match=message):
            Embedding("user", 8, **settings)

    def test_a_table_is_given_by_its_name(self):
        with context.eager_mode():
            items = Table("items", 8)
        with pytest.raises(
            errors.ConfigError, match=r"cannot be an ml\.Table; give its name, 'items'"
        ):
            Embedding("user", 8, table=items)

    def test_a_vocabulary_is_not_given(self):
        with pytest.raises(errors.ConfigError, match=r"Embedding\(\['user'\], 32\) in place of"):
            Embedding(1000, 32)

    def test_a_feature_that_the_batch_does_not_have(self, build):
        with pytest.raises(errors.ConfigError, match=r"uses feature 'usr'.*did you mean 'user'"):
            Embedding("usr", 8)(BATCH)

    def test_outside_of_a_model(self):
        with pytest.raises(errors.ConfigError, match=r"outside of a model.*ml\.Table"):
            Embedding("user", 8)(BATCH)
