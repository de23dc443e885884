"""Filters and changes of rows, in datasets."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import fids, identity, row_filters
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
        assert list(row_filters._find_fids(changed)) == [(V1, 1000), (V2, 300)]


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


def test_examples_of_tensorflow():
    source = tf.train.Example()
    feature = source.features.feature
    feature["user"].int64_list.value.extend([7, 1 << 48])
    feature["movie"].bytes_list.value.append(b"Heat")
    feature["age"].float_list.value.append(0.5)
    feature["city"].bytes_list.value.append(b"Rome")
    feature["click"].int64_list.value.append(1)
    feature["weight"].float_list.value.append(3)
    arguments = ({"user": 2, "movie": 32767, "none": 1}, ["age", "city", "gone"], "click")
    dataset = tf.data.Dataset.from_tensors(source.SerializeToString())
    for weight, expected in (("weight", 3), (None, 1), ("heavy", 1)):
        function = lambda r, w=weight: row_filters.tf_example_to_example(r, *arguments, w)  # noqa: E731
        (found,) = dataset.map(function).as_numpy_iterator()
        example = example_pb2.Example.FromString(found)
        assert example.instance_weight == expected
    features = {named.name: named.feature for named in example.named_feature}
    # The low 48 bits, below the slot.
    assert features["user"].fid_v2_list.value == [(2 << 48) + 7, 2 << 48]
    hashed = int(tf.strings.to_hash_bucket_fast("Heat", 1 << 48))
    assert features["movie"].fid_v2_list.value == [(32767 << 48) + hashed]
    assert features["none"].fid_v2_list.value == []
    assert features["age"].float_list.value == [0.5]
    assert features["city"].bytes_list.value == [b"Rome"]
    assert features["gone"].float_list.value == []
    assert example.label == [1]


def test_examples_of_tensorflow_that_do_not_fit():
    source = tf.train.Example()
    source.features.feature["user"].float_list.value.append(0.5)
    source.features.feature["click"].bytes_list.value.append(b"yes")
    serialized = source.SerializeToString()
    for arguments, message in (
        (({"user": 1}, [], "none"), "'user' has a slot, but holds 0.5"),
        (({}, [], "click"), "'click' must be numbers"),
    ):
        with pytest.raises(errors.DataError, match=message):
            row_filters.tf_example_to_example(serialized, *arguments)
    for arguments, message in (
        (({"a": 0}, [], "b"), "1 to 32767"),
        (({"a": 32768}, [], "b"), "1 to 32767"),
        (({"a": 1}, ["a"], "b"), "must differ"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            row_filters.tf_example_to_example(serialized, *arguments)


def test_what_cannot_be_is_refused():
    with pytest.raises(errors.DataError, match="a record is no Example"):
        row_filters.filter_by_label(b"\xff", [1.0])
    damaged = tf.data.Dataset.from_tensors(b"\xff")
    with pytest.raises(tf.errors.InvalidArgumentError, match="a record is no Example"):
        list(damaged.filter(lambda row: row_filters.filter_by_label(row, [1.0])))
    for call, message in (
        (lambda: row_filters.filter_by_label(b"", [1.0], variant_type="batch"), "got 'batch'"),
        (lambda: row_filters.negative_sample(b"", 1.5), "`drop_rate` must be 0 to 1"),
        (lambda: row_filters.negative_sample(b"", 0.5, label_index=-1), "counts from 0"),
        (lambda: row_filters.add_label(b"", "1:2", 0.0, 1.0), "got '1:2'"),
        (lambda: row_filters.add_label(b"", "1::2", 0.0, 1.0), "`rate` must be 0 to 1"),
        (lambda: row_filters.add_label(b"", "", 0.0, 1.0), "no task"),
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
