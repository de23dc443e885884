"""What rows are made of, read from the graph, written down, and compared."""

import json

import pytest
import tensorflow as tf
from support.segments import make_config

from monolith import testing
from monolith.embedding import entry
from monolith.embedding.tables import multi, registry, row_forms, single
from monolith.embedding.tables.row_forms import Segment
from monolith.graph import export_mode

pytestmark = pytest.mark.usefixtures("graph_mode")


def get_forms():
    return [row_forms.get_forms(known) for known in registry.get_tables()]


def test_a_table_of_its_own():
    single.hash_table_from_config(
        make_config((3, entry.AdamOptimizer()), (1, entry.SgdOptimizer())), name_suffix="user"
    )
    assert get_forms() == [{"MonolithHashTable_user": ((3, "adam"), (1, "sgd"))}]


def test_tables_in_one_resource_and_in_an_imported_graph():
    configs = {
        "user": make_config((2, entry.AdagradOptimizer())),
        "item": make_config((4, entry.FtrlOptimizer())),
    }
    multi.MultiHashTable.from_configs(configs, name_suffix="m")
    expected = [{"user": ((2, "adagrad"),), "item": ((4, "ftrl"),)}]
    assert get_forms() == expected
    meta_graph = tf.compat.v1.train.export_meta_graph()
    with tf.Graph().as_default():
        tf.compat.v1.train.import_meta_graph(meta_graph)
        assert get_forms() == expected


def test_a_dim_that_only_the_optimizer_has():
    config = make_config((3, entry.SgdOptimizer()))
    (segment,) = config.table_config.entry_config.segments
    segment.ClearField("dim_size")
    segment.opt_config.sgd.dim_size = 3
    assert row_forms.to_segment(segment) == Segment(3, "sgd")


def test_tables_that_serve_read_rows_of_any_optimizer():
    with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
        single.test_hash_table(2, name_suffix="user")
        configs = {"f": testing.generate_test_hash_table_config(1)}
        multi.MultiHashTable.from_configs(configs, name_suffix="m")
    assert get_forms() == [{}, {}]


def test_rounding_and_settings_of_an_optimizer_are_no_other_form():
    rounded = entry.StochasticRoundingFloat16OptimizerWrapper(entry.AdagradOptimizer(0.5))
    single.hash_table_from_config(make_config((3, rounded)), name_suffix="a")
    single.hash_table_from_config(
        make_config((3, entry.AdagradOptimizer(initial_accumulator_value=2.0))), name_suffix="b"
    )
    first, second = ([*forms.values()] for forms in get_forms())
    assert first == second == [((3, "adagrad"),)]


ADAGRAD_8 = (Segment(8, "adagrad"),)


@pytest.mark.parametrize(
    ("saved", "keeps_weights", "text"),
    [
        pytest.param((Segment(4, "adagrad"),), False, "dim 4 (adagrad)", id="dim"),
        pytest.param((Segment(8, "sgd"),), True, "dim 8 (sgd)", id="optimizer"),
        pytest.param(
            (Segment(4, "adagrad"), Segment(4, "adagrad")),
            False,
            "dim 4 (adagrad) + 4 (adagrad)",
            id="segments",
        ),
    ],
)
def test_changes(saved, keeps_weights, text):
    now = {"user": ADAGRAD_8, "item": ADAGRAD_8, "new": ADAGRAD_8}
    (change,) = row_forms.find_changes(now, {"user": saved, "item": ADAGRAD_8, "gone": saved})
    assert (change.table, change.keeps_weights) == ("user", keeps_weights)
    assert change.describe() == f"has dim 8 (adagrad), in the checkpoint {text}"


def test_a_table_that_is_alone_may_have_had_another_name():
    (change,) = row_forms.find_changes({"now": ADAGRAD_8}, {"before": (Segment(8, "adam"),)})
    assert change == ("now", ADAGRAD_8, (Segment(8, "adam"),))


def test_through_a_file():
    forms = {"用户": ADAGRAD_8, "item": (Segment(1, "sgd"), Segment(2, "adam"))}
    assert row_forms.from_json(json.loads(json.dumps(row_forms.to_json(forms)))) == forms
