"""Filters and changes of rows, in datasets."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import fids, identity, row_filters
from monolith.native import ops
from monolith.proto import example_pb2, proto_parser_pb2

INVALID = np.finfo(np.float32).min
V1 = fids.make_v1(slot=1000, signature=5)  # Beyond 2^63, so that int64 has a sign.
V2 = fids.make_v2(slot=300, signature=6)
BOTH = pytest.mark.parametrize("kind", ["instance", "example"])


def make_row(kind, labels=(), actions=(), req_time=0):
    if kind == "instance":
        row = proto_parser_pb2.Instance(fid=[V1], label=labels)
        row.feature.add(name="user", fid=[V2])
    else:
        row = example_pb2.Example(label=labels)
        row.named_feature.add(name="item").feature.fid_v1_list.value.append(V1)
        row.named_feature.add(name="user").feature.fid_v2_lists.list.add(value=[V2])
        row.named_feature.add(name="age").feature.float_list.value.append(1)
    row.line_id.actions.extend(actions)
    row.line_id.req_time = req_time
    return row


def filter_rows(rows, function):
    """Returns which rows stay."""
    dataset = tf.data.Dataset.from_tensor_slices([row.SerializeToString() for row in rows])
    found = dataset.enumerate().filter(lambda _, row: function(row))
    return [int(number) for number, _ in found]


def change_row(row, function):
    dataset = tf.data.Dataset.from_tensors(row.SerializeToString()).map(function)
    assert dataset.element_spec == tf.TensorSpec([], tf.string)
    (found,) = dataset.as_numpy_iterator()
    return type(row).FromString(found)


def test_the_historical_path():
    from monolith.native_training.data import feature_utils

    assert feature_utils is row_filters


@BOTH
def test_fids(kind):
    row = make_row(kind, actions=[4, 5], req_time=7)

    def keeps(**settings):
        function = lambda r: row_filters.filter_by_fids(r, variant_type=kind, **settings)  # noqa: E731
        return filter_rows([row], function) == [0]

    assert keeps()
    assert keeps(filter_fids=[1], has_fids=[V1, 1], select_fids=[V1, V2], has_actions=[5, 6])
    assert not keeps(filter_fids=[1, V2])
    for slot in (-1, 1 << 15, 99999):
        with pytest.raises(errors.ConfigError, match=f"less than 32768, while got {slot}"):
            row_filters.filter_by_fids("", select_slots=[slot], variant_type=kind)
    # As a tensor has it.
    assert not keeps(filter_fids=[int(fids.to_int64(V1))])
    assert not keeps(has_fids=[1, 2])
    assert not keeps(select_fids=[V1, 1])
    assert not keeps(has_actions=[6])
    assert keeps(select_slots=[300, 1000])
    assert not keeps(select_slots=[300, 301])
    assert keeps(req_time_min=7)
    assert not keeps(req_time_min=8)


@BOTH
def test_values(kind):
    rows = [make_row(kind, req_time=time, actions=[time] if time else []) for time in range(4)]
    for arguments, expected in (
        (("req_time", "between", [1, 3]), [1, 2]),
        (("actions", "any", [3]), [3]),
    ):
        found = filter_rows(
            rows, lambda r, a=arguments: row_filters.filter_by_value(r, *a, variant_type=kind)
        )
        assert found == expected
    found = filter_rows(
        rows, lambda r: row_filters.filter_by_value(r, "actions", "any", [3], kind, keep_empty=True)
    )
    assert found == [0, 3]


@BOTH
def test_labels(kind):
    rows = [make_row(kind, labels) for labels in ([0.1, 0], [0, 1], [0, 0], [5], [])]
    # The second label of the fourth row is missing.
    found = filter_rows(rows, lambda r: row_filters.filter_by_label(r, [0.1, 1], variant_type=kind))
    assert found == [0, 1]
    strict = filter_rows(
        rows,
        lambda r: row_filters.filter_by_label(r, [0.1, 0.5], filter_equal=True, variant_type=kind),
    )
    assert strict == [1]


@BOTH
def test_negative_rows_are_sampled(kind):
    rows = [make_row(kind, [label]) for label in [1, 0, -1] * 200]

    def sample(rate, **settings):
        function = lambda r: row_filters.negative_sample(r, rate, variant_type=kind, **settings)  # noqa: E731
        found = filter_rows(rows, function)
        return [sum(number % 3 == i for number in found) for i in range(3)]

    assert sample(1.0) == [200, 200, 0]
    assert sample(1.0, threshold=1) == [200, 0, 0]
    assert sample(0.0) == [200, 200, 200]
    positive, zero, negative = sample(0.25)
    # 150 of 200 on average; the standard deviation is sqrt(200 * 0.25 * 0.75) = 6.1.
    assert (positive, zero) == (200, 200)
    assert 115 < negative < 185


def test_a_row_without_the_label_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="0 labels, but `label_index` is 0"):
        filter_rows([make_row("instance")], lambda r: row_filters.negative_sample(r, 0.5))


@BOTH
def test_actions_are_added(kind):
    row = make_row(kind, actions=[1], req_time=5)
    for operand, expected in ((5, [1, 9]), (6, [1])):
        changed = change_row(
            row,
            lambda r, o=operand: row_filters.add_action(
                r, "req_time", "ge", o, 9, variant_type=kind
            ),
        )
        assert changed.line_id.actions == expected
        assert changed.label == row.label
        # All else is as it was.
        changed.line_id.actions[:] = row.line_id.actions
        assert changed == row


@BOTH
@pytest.mark.parametrize(
    ("labels", "actions", "config", "expected"),
    [
        # A positive action; a negative one; neither; no list of negative ones.
        ([], [1], "1,2:3:1;4:1:1;4:5:1;4::1", [1, 0, INVALID, 0]),
        # Negative rows are left out by their rate, positive ones are not.
        ([], [1], "1:3:0;4:1:0", [1, INVALID]),
        ([0], [], "1::1", [INVALID, 0]),
        ([2, 0], [], "1::1", [2, 0, 0]),
    ],
)
def test_labels_are_added(kind, labels, actions, config, expected):
    row = make_row(kind, labels, actions)
    changed = change_row(
        row, lambda r: row_filters.add_label(r, config, 0.0, 0.5, variant_type=kind)
    )
    assert changed.label == expected
    assert changed.line_id.sample_rate == 0.5


@BOTH
def test_a_channel_has_a_label_of_its_own(kind):
    for channel, labels, expected in (
        (7, [0.5, 4], [INVALID, INVALID, 0.5]),
        (9, [0], [0, INVALID, INVALID]),
        (8, [1], [INVALID] * 3),
        (7, [], [INVALID] * 3),
    ):
        row = make_row(kind, labels)
        row.line_id.chnid = channel
        scatter = lambda r: row_filters.scatter_label(r, "7:2,9:0", variant_type=kind)  # noqa: E731
        changed = change_row(row, scatter)
        assert changed.label == expected
        assert changed.line_id.chnid == channel


def test_channels_are_checked_by_the_op_too():
    for channels, indices, message in (
        ([1], [], "one element for each of the 1 channels"),
        ([1], [-1], "0 to 1023, got -1"),
        ([1, 1], [0, 1], "Channel 1 has more than one index"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ops.monolith_row_scatter_label(
                [b""], format="example", channels=channels, indices=indices
            )


@BOTH
def test_actions_have_drop_rates_of_their_own(kind):
    # Beside the rate of all others, which keeps every row; 2 decides before 1.
    rows = [make_row(kind, [-1], actions) for actions in ([], [1], [1, 2], [3, 1])]

    def sample(row):
        return row_filters.negative_sample(
            row, 0.0, 0, 0.0, kind, action_priority="2,1", per_action_drop_rate="1:1.0"
        )

    assert filter_rows(rows, sample) == [0, 2]


@BOTH
def test_special_strategies(kind):
    rows = [make_row(kind) for _ in range(4)]
    for row, strategies in zip(rows, ([], [7], [8], [7, 9]), strict=True):
        row.line_id.special_strategies.extend(strategies)

    def keep(*arguments, **settings):
        return filter_rows(
            rows,
            lambda r: row_filters.special_strategy(r, *arguments, variant_type=kind, **settings),
        )

    assert keep([7]) == [0, 1, 3]
    assert keep([7], keep_empty_strategy=False) == [1, 3]
    assert keep([7, 8], "9:0,8:1") == [0, 1, 2]


def test_features():
    rows = [make_row("example") for _ in range(2)]
    rows[1].named_feature[2].feature.float_list.value[:] = [3]
    function = lambda r: row_filters.filter_by_feature_value(r, "age", "gt", 2, "float")  # noqa: E731
    assert filter_rows(rows, function) == [1]


def test_many_rows_at_once_and_shapes():
    rows = tf.constant([[make_row("example", [label]).SerializeToString() for label in (0, 1)]])
    assert row_filters.filter_by_label(rows, [1.0]).numpy().tolist() == [[False, True]]

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.string)])
    def change(rows):
        changed = row_filters.add_label(rows, "1::1", 0.0, 1.0)
        assert changed.shape.as_list() == [None, 2]
        return row_filters.add_action(changed, "req_time", "ge", 1, 4)

    assert change(rows).shape == [1, 2]
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        ops.monolith_row_add_action(rows, [True], format="example", action=1)


def test_chances_follow_the_seed():
    rows = [make_row("instance", [-1])] * 60

    def sample(seed):
        tf.random.set_seed(seed)
        return filter_rows(rows, lambda r: row_filters.negative_sample(r, 0.5))

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_what_cannot_be_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="a record is no Example"):
        row_filters.filter_by_label(b"\xff", [1.0])
    damaged = tf.data.Dataset.from_tensors(b"\xff")
    with pytest.raises(tf.errors.InvalidArgumentError, match="a record is no Example"):
        list(damaged.filter(lambda row: row_filters.filter_by_label(row, [1.0])))
    for call, message in (
        (lambda: row_filters.filter_by_label(b"", [1.0], variant_type="batch"), "got 'batch'"),
        (lambda: row_filters.negative_sample(b"", 1.5), "`drop_rate` must be 0 to 1"),
        (lambda: row_filters.negative_sample(b"", 0.5, label_index=-1), "counts from 0"),
        (lambda: row_filters.negative_sample(b"", 0.5, action_priority="1"), "give both or none"),
        (
            lambda: row_filters.negative_sample(
                b"", 0.5, action_priority="a", per_action_drop_rate="1:1"
            ),
            "commas between, got 'a'",
        ),
        (
            lambda: row_filters.negative_sample(
                b"", 0.5, action_priority="1", per_action_drop_rate="1"
            ),
            "as 1:0.5,2:0.9, got '1'",
        ),
        (lambda: row_filters.special_strategy(b"", [1], "1:0.5:1"), "cannot change labels"),
        (lambda: row_filters.add_label(b"", "1:2", 0.0, 1.0), "got '1:2'"),
        (lambda: row_filters.add_label(b"", "1::2", 0.0, 1.0), "`rate` must be 0 to 1"),
        (lambda: row_filters.add_label(b"", "", 0.0, 1.0), "no task"),
        (lambda: row_filters.scatter_label(b"", "7"), "as 7:0,9:1, got '7'"),
        (lambda: row_filters.scatter_label(b"", ""), "each of its channels one index"),
        (lambda: row_filters.scatter_label(b"", "7:0,7:1"), "each of its channels one index"),
        (lambda: row_filters.scatter_label(b"", "7:-1"), "must be 0 to 1023, got '7:-1'"),
        (lambda: row_filters.scatter_label(b"", "7:0", "batch"), "got 'batch'"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            call()


def test_filtered_input_is_told_from_other():
    def identify(*arguments):
        dataset = tf.data.Dataset.from_tensors(b"").filter(
            lambda row: row_filters.filter_by_label(row, *arguments)
        )
        return identity.identify([dataset._variant_tensor])

    with tf.Graph().as_default():
        assert identify([1.0]) == identify([1.0])
        assert len({identify([1.0]), identify([2.0]), identify([1.0], True)}) == 3
