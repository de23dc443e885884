"""Writing the features of an input to files."""

import os
import struct
import types

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.native_training.hooks import feature_engineering_hooks
from monolith.proto import example_pb2
from monolith.training.hooks import feature_dump

pytestmark = pytest.mark.usefixtures("graph_mode")


def test_historical_path():
    assert feature_engineering_hooks is feature_dump


def make_config(model_dir, index=0):
    return types.SimpleNamespace(model_dir=str(model_dir), index=index)


def read_batches(path):
    """An independent reader of the format."""
    data = path.read_bytes()
    batches = []
    while data:
        header, size = struct.unpack("<QQ", data[:16])
        assert header == 0
        batches.append(example_pb2.ExampleBatch.FromString(data[16 : 16 + size]))
        data = data[16 + size :]
    return batches


def list_files(model_dir):
    return sorted((model_dir / "features").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def dump(config, features, num_batches=1, **kwargs):
    """Runs the loop of feature engineering: initialize, then one batch per run."""
    dataset = tf.data.Dataset.from_tensors(features).repeat(num_batches)
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    hook = feature_dump.FeatureEngineeringSaveHook(config, batch, **kwargs)
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        session.run(iterator.initializer)
        while not session.should_stop():
            session.run(batch)


def test_content(tmp_path):
    features = {
        "user": tf.ragged.constant([[1 << 60, -1], [], [7]], dtype=tf.int64),
        "score": tf.ragged.constant([[0.5], [0.25, -1.0], []], dtype=tf.float32),
        "label": tf.constant([1.0, 0.0, 1.0]),
        "position": tf.constant([[1, 2], [3, 4], [5, 6]], tf.int32),
        "city": tf.constant(["Bern", "Oslo", "Rome"]),
    }
    dump(make_config(tmp_path), features)
    (path,) = list_files(tmp_path)
    (batch,) = read_batches(path)
    assert batch.batch_size == 3
    columns = {column.name: column for column in batch.named_feature_list}
    assert set(columns) == set(features)
    assert {column.type for column in columns.values()} == {example_pb2.INDIVIDUAL}

    def values(name, kind):
        assert {row.WhichOneof("type") for row in columns[name].feature} == {kind}
        return [list(getattr(row, kind).value) for row in columns[name].feature]

    assert values("user", "fid_v2_list") == [[1 << 60, (1 << 64) - 1], [], [7]]
    assert values("score", "float_list") == [[0.5], [0.25, -1.0], []]
    assert values("label", "float_list") == [[1.0], [0.0], [1.0]]
    assert values("position", "fid_v2_list") == [[1, 2], [3, 4], [5, 6]]
    assert values("city", "bytes_list") == [[b"Bern"], [b"Oslo"], [b"Rome"]]


@pytest.mark.parametrize(
    ("num_batches", "cap", "sizes"),
    [
        pytest.param(5, 2, [2, 2, 1], id="rest_at_the_end"),
        pytest.param(4, 2, [2, 2, 0], id="end_is_written_even_if_empty"),
        pytest.param(3, 100, [3], id="fewer_than_cap"),
    ],
)
def test_batches_per_file(tmp_path, num_batches, cap, sizes):
    dump(make_config(tmp_path), {"x": tf.constant([1.0])}, num_batches, cap=cap)
    found = [len(read_batches(path)) for path in list_files(tmp_path)]
    assert sorted(found, reverse=True) == sizes


def test_hundred_batches_are_the_default(tmp_path):
    dump(make_config(tmp_path), {"x": tf.constant([1.0])}, 101)
    assert sorted(len(read_batches(path)) for path in list_files(tmp_path)) == [1, 100]


@pytest.mark.parametrize(("index", "prefix"), [(0, "chief_"), (1, "worker1_"), (12, "worker12_")])
def test_names_tell_who_wrote(tmp_path, index, prefix):
    dump(make_config(tmp_path, index), {"x": tf.constant([1.0])})
    (name,) = os.listdir(tmp_path / "features")
    assert name.startswith(prefix)
    assert name.endswith(".pb")


def test_nothing_is_lost_or_read_twice(tmp_path):
    dataset = tf.data.Dataset.range(7).map(lambda i: {"x": tf.reshape(i, [1])})
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    batch = iterator.get_next()
    hook = feature_dump.FeatureEngineeringSaveHook(make_config(tmp_path), batch, cap=3)
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        session.run(iterator.initializer)
        while not session.should_stop():
            session.run(batch)
    read = [b for path in list_files(tmp_path) for b in read_batches(path)]
    fids = [b.named_feature_list[0].feature[0].fid_v2_list.value[0] for b in read]
    assert sorted(fids) == list(range(7))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        pytest.param(
            {"a": np.zeros([2, 1]), "b": np.zeros([3])},
            "one row per example, got 3 rows of 'b' and 2 of 'a'",
            id="rows",
        ),
        pytest.param({"a": np.float32(1)}, "Feature 'a' must be a ragged or dense", id="scalar"),
        pytest.param(
            {"a": tf.compat.v1.SparseTensorValue([[0, 0]], [1], [1, 1])},
            "Feature 'a' must be a ragged or dense",
            id="sparse",
        ),
    ],
)
def test_features_that_are_no_batch(features, message):
    with pytest.raises(errors.ConfigError, match=message):
        feature_dump.make_example_batch(features)


def test_deeper_structures_are_flattened():
    ragged = tf.compat.v1.ragged.constant_value([[[1, 2], [3]], []], dtype=np.int64)
    batch = feature_dump.make_example_batch({"a": ragged, "b": np.ones([2, 2, 2], np.float32)})
    a, b = batch.named_feature_list
    assert [list(row.fid_v2_list.value) for row in a.feature] == [[1, 2, 3], []]
    assert [list(row.float_list.value) for row in b.feature] == [[1.0] * 4] * 2


@pytest.mark.parametrize(
    ("batch", "cap", "message"),
    [
        (([1.0], [2.0]), 100, "must be a dict of features, got tuple"),
        ({}, 0, "`cap` must be positive, got 0"),
    ],
)
def test_bad_arguments(tmp_path, batch, cap, message):
    with pytest.raises(errors.ConfigError, match=message):
        feature_dump.FeatureEngineeringSaveHook(make_config(tmp_path), batch, cap)
