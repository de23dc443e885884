import pytest
import tensorflow as tf

from monolith.data import parse_steps
from monolith.data.parse_steps import RaggedEncodingHelper
from monolith.native_training.data.training_instance.python import parser_utils

RAGGED = [[1, 2], [], [3]]


def make():
    return tf.ragged.constant(RAGGED, dtype=tf.int64)


def test_old_path_is_this_module():
    assert parser_utils is parse_steps


def test_steps_are_applied_in_order_and_once():
    parse_steps.add_extra_parse_step(lambda x: [*x, "first"])
    parse_steps.add_extra_parse_step(lambda x: [*x, "second"])
    assert parse_steps.advanced_parse([]) == ["first", "second"]
    assert parse_steps.advanced_parse([]) == []


@pytest.mark.parametrize("with_rows", [True, False])
def test_expand_says_what_is_asked_for(with_rows):
    parts = RaggedEncodingHelper.expand({"a": make()}, with_rows, not with_rows)["a"]
    assert parts["row_splits"].numpy().tolist() == [0, 2, 2, 3]
    if with_rows:
        assert int(parts["nrows"]) == 3
        assert parts["value_rowids"] is None
    else:
        assert parts["nrows"] is None
        assert parts["value_rowids"].numpy().tolist() == [0, 0, 2]


def test_round_trip_through_a_dataset():
    def expand(features):
        expanded = RaggedEncodingHelper.expand(features)
        return {"a": {k: v for k, v in expanded["a"].items() if v is not None}, "b": expanded["b"]}

    dataset = tf.data.Dataset.from_tensors({"a": make(), "b": tf.constant(1)}).map(expand)
    (element,) = dataset
    contracted = RaggedEncodingHelper.contract(element)
    assert contracted["a"].to_list() == RAGGED
    assert int(contracted["b"]) == 1


def test_what_was_computed_is_kept():
    expanded = RaggedEncodingHelper.expand({"a": make()}, True, True)
    contracted = RaggedEncodingHelper.contract(expanded)["a"]
    assert contracted.nrows() is expanded["a"]["nrows"]
    assert contracted.value_rowids() is expanded["a"]["value_rowids"]
