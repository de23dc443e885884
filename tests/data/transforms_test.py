"""Filters and labels of rows as objects."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.data.transforms import (
    AddLabel,
    Compose,
    FilterByAction,
    FilterByFid,
    FilterByLabel,
    FilterByValue,
    LogicalOr,
    transform,
)
from monolith.native_training.data.transform import transforms as historical
from monolith.proto import example_pb2, transform_config_pb2

# A fid whose first bit is set: negative as int64.
LARGE = (1 << 63) + 5


def make_row(uid, fids=(), actions=(), labels=()):
    example = example_pb2.Example(label=labels)
    example.line_id.uid = uid
    example.line_id.actions.extend(actions)
    example.named_feature.add(name="f").feature.fid_v2_list.value.extend(fids)
    return example.SerializeToString()


def apply(t, rows):
    dataset = transform(tf.data.Dataset.from_tensor_slices(list(rows)), t)
    return [example_pb2.Example.FromString(row) for row in dataset.as_numpy_iterator()]


def keep(t, rows):
    return [example.line_id.uid for example in apply(t, rows)]


ROWS = [
    make_row(1, fids=[7, LARGE], actions=[1], labels=[0.0, 3.0]),
    make_row(2, fids=[7], actions=[2], labels=[2.0, 0.0]),
    make_row(3, fids=[8], actions=[3, 1], labels=[0.0, 0.0]),
]


@pytest.mark.parametrize(
    ("t", "kept"),
    [
        (FilterByFid(), [1, 2, 3]),
        (FilterByFid(has_fids=[LARGE, 8]), [1, 3]),
        (FilterByFid(filter_fids=[LARGE]), [2, 3]),
        (FilterByFid(None, None, select_fids=[7, LARGE - (1 << 64)]), [1]),
        (FilterByAction([1]), [1, 3]),
        (FilterByAction(None), [1, 2, 3]),
        (FilterByLabel([1.0, 4.0]), [2]),
        (FilterByLabel(None), [1, 2, 3]),
        (FilterByValue("uid", "gt", 1), [2, 3]),
        (FilterByValue("uid", "between", [1, 3]), [1, 2]),
        (FilterByValue("actions", "any", [2, 3]), [2, 3]),
        (LogicalOr(FilterByFid(has_fids=[8]), FilterByValue("uid", "eq", 1)), [1, 3]),
        (Compose([FilterByAction([1]), FilterByValue("uid", "lt", 3)]), [1]),
        (Compose([Compose([FilterByAction([1])]), FilterByFid(has_fids=[8])]), [3]),
        (Compose([]), [1, 2, 3]),
    ],
)
def test_rows_that_stay(t, kept):
    assert keep(t, ROWS) == kept
    # The message says the same.
    assert (
        keep(
            transform_config_pb2.TransformConfig.FromString(t.as_proto().SerializeToString()), ROWS
        )
        == kept
    )


def test_operands_in_a_file(tmp_path):
    values = example_pb2.FilterValues()
    values.int64_list.value.extend([2, 3])
    path = tmp_path / "values"
    path.write_bytes(values.SerializeToString())
    assert keep(FilterByValue("uid", "in", operand_filepath=str(path)), ROWS) == [2, 3]


def test_labels():
    # Labels that a row has stay in front; those of the first that are not positive are invalid.
    rows = [make_row(1, actions=[1]), make_row(2, actions=[2]), make_row(3, actions=[9])]
    found = apply(AddLabel("1:2:1.0;9::1.0", negative_value=-1.0, new_sample_rate=0.5), rows)
    lowest = tf.float32.min
    assert [list(example.label) for example in found] == [[1, -1], [-1, -1], [lowest, 1]]
    assert {example.line_id.sample_rate for example in found} == {0.5}


def test_messages():
    either = LogicalOr(FilterByFid([1]), FilterByAction([2]))
    config = Compose([either, AddLabel("1,2:3:0.5")]).as_proto()
    first, second = config.configs
    assert list(first.logical_or_config.x.filter_by_fid.has_fids) == [1]
    assert list(first.logical_or_config.y.filter_by_action.has_actions) == [2]
    (task,) = second.basic_config.add_label.task_label_configs
    assert (list(task.pos_actions), list(task.neg_actions), task.sample_rate) == ([1, 2], [3], 0.5)


def test_the_historical_path():
    assert historical.Compose is Compose


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Compose([7]), "takes transforms, got 7"),
        (lambda: LogicalOr(Compose([]), FilterByAction([1])), "two single filters"),
        (lambda: LogicalOr(FilterByAction([1]), AddLabel("1::1")), "two single filters"),
        (lambda: AddLabel(""), "has no task"),
        (lambda: FilterByValue("nothing", "gt", 1), "nothing is not in line id"),
        (lambda: FilterByValue("uid", "startswith", "a"), "does not fit uid"),
        (lambda: apply(transform_config_pb2.TransformConfig(configs=[{}]), ROWS), "none of them"),
        (lambda: transform(tf.data.Dataset.from_tensors(b""), FilterByFid(), "row"), "row"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(errors.ConfigError, match=message):
        make()
