"""Changes of rows by functions of Python, in datasets."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import row_changes
from monolith.proto import example_pb2


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
        function = lambda r, w=weight: row_changes.tf_example_to_example(r, *arguments, w)  # noqa: E731
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
            row_changes.tf_example_to_example(serialized, *arguments)
    for arguments, message in (
        (({"a": 0}, [], "b"), "1 to 32767"),
        (({"a": 32768}, [], "b"), "1 to 32767"),
        (({"a": 1}, ["a"], "b"), "must differ"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            row_changes.tf_example_to_example(serialized, *arguments)
