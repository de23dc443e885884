"""Summaries, read back from real event files by TensorBoard's own data provider."""

import itertools
import json
import os

import numpy as np
import pytest
import tensorflow as tf
from tensorboard import context
from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
from tensorboard.data import provider
from tensorboard.util import tensor_util

from monolith.native_training.summary import summary_ops

v1 = tf.compat.v1

STEPS = 10
NAMES = ["f1", "f2", "f3"]
NAS_WEIGHTS = np.array([0.1, 0.2, 0.7], np.float32)
SIZES = [3, 2, 4]
INPUT = np.arange(27, dtype=np.float32).reshape(3, 9) / 10
KERNEL = np.arange(18, dtype=np.float32).reshape(9, 2) / 5 - 1
LABEL = np.array([1, 0, 1])


def feature_products():
    """Each segment's columns times its rows of the kernel, `[batch, n, units]`."""
    bounds = np.cumsum([0, *SIZES])
    segments = [slice(a, b) for a, b in itertools.pairwise(bounds)]
    return np.stack([INPUT[:, s] @ KERNEL[s] for s in segments], axis=1)


class EventLog:
    """Writes the summaries of the default graph to files, and reads them with TensorBoard."""

    def __init__(self, directory):
        self._directory = str(directory)

    def write(self, steps):
        merged = v1.summary.merge_all()
        with v1.Session() as session, v1.summary.FileWriter(self._directory) as writer:
            for step in range(steps):
                writer.add_summary(session.run(merged), step)

    def read(self, tag):
        """Returns the metadata of a tag, and its tensors by step."""
        multiplexer = plugin_event_multiplexer.EventMultiplexer()
        multiplexer.AddRunsFromDirectory(self._directory)
        multiplexer.Reload()
        source = data_provider.MultiplexerDataProvider(multiplexer, self._directory)
        request = context.RequestContext()
        where = {"experiment_id": "id", "plugin_name": "monolith"}
        wanted = provider.RunTagFilter(runs=["."], tags=[tag])
        series = source.list_tensors(request, **where, run_tag_filter=wanted)["."][tag]
        data = source.read_tensors(request, **where, downsample=100, run_tag_filter=wanted)["."][
            tag
        ]
        return series, {datum.step: datum.numpy for datum in data}


class SummaryTest(tf.test.TestCase):
    @pytest.fixture(autouse=True, scope="class")
    def _logs(self, request, tmp_path_factory):
        directory = tmp_path_factory.mktemp("demo_logs_v1")
        log = EventLog(directory)
        with tf.Graph().as_default():
            groups = [["f1", "f2"], ["f3", "f4"], ["f5", "f6"]]
            summary_ops.nas_data(tf.constant(NAS_WEIGHTS), NAMES, [3, 5, 9], groups)
            summary_ops.feature_insight_data(
                tf.constant(INPUT), NAMES, SIZES, tf.constant(KERNEL), label=tf.constant(LABEL)
            )
            log.write(STEPS)
        assert os.listdir(directory)
        request.cls.log = log

    def test_nas_data(self):
        series, values = self.log.read("gating/monolith_nas_weight")
        self.assertEqual(
            series.plugin_content,
            b'{"tag_type": "gating", "segment_names": ["f1", "f2", "f3"], '
            b'"segment_sizes": [3, 5, 9], "group_index": [0, 0, 1]}',
        )
        self.assertEqual(series.description, "gating")
        self.assertEqual(list(values), list(range(STEPS)))
        for value in values.values():
            self.assertAllEqual(value, NAS_WEIGHTS)

    def test_feature_insight_data(self):
        series, values = self.log.read("fi_train/monolith_feature_insight")
        self.assertEqual(
            series.plugin_content,
            b'{"tag_type": "fi_train", "segment_names": ["f1", "f2", "f3"], '
            b'"segment_sizes": [2, 2, 2], "group_index": [0, 1, 2], "label_size": 1}',
        )
        self.assertEqual(list(values), list(range(STEPS)))
        expected = np.concatenate([feature_products().reshape(3, 6), LABEL[:, None]], axis=1)
        for value in values.values():
            self.assertEqual(value.shape, (3, 7))
            self.assertAllClose(value, expected)


def evaluate(serialized):
    """Returns tag, description, plugin content and tensor of a summary of the default graph."""
    with v1.Session() as session:
        (value,) = v1.Summary.FromString(session.run(serialized)).value
    metadata = value.metadata
    assert metadata.plugin_data.plugin_name == "monolith"
    tensor = tensor_util.make_ndarray(value.tensor)
    return value.tag, metadata.summary_description, metadata.plugin_data.content, tensor


@pytest.mark.usefixtures("graph_mode")
class TestNasData:
    def test_selecting(self):
        summary = summary_ops.nas_data(tf.constant([[1.0, 2.0]]), ["f1"], [[3, 6]], name="user")
        tag, description, content, value = evaluate(summary)
        assert tag == "user_selecting/monolith_nas_weight"
        assert description == "selecting"
        assert content == (
            b'{"tag_type": "selecting", "segment_names": ["f1"], "segment_sizes": [[3, 6]]}'
        )
        np.testing.assert_array_equal(value, [[1, 2]])

    def test_given_tag_and_description(self):
        summary = summary_ops.nas_data(
            tf.constant([1.0]), ["f1"], [3], raw_tag="mixed", description="*mine*"
        )
        tag, description, content, _ = evaluate(summary)
        assert tag == "mixed/monolith_nas_weight"
        assert description == "*mine*"
        assert json.loads(content)["tag_type"] == "mixed"

    def test_weights_alone(self):
        tag, description, content, value = evaluate(summary_ops.nas_data(tf.constant([3.0])))
        assert tag == "simple/monolith_nas_weight"
        assert description == "simple"
        assert content == b""
        assert value == [3.0]

    def test_collections(self):
        default = summary_ops.nas_data(tf.constant([1.0]), ["f1"], [3])
        mine = summary_ops.nas_data(tf.constant([1.0]), ["f1"], [3], collections=["mine"])
        assert v1.get_collection(v1.GraphKeys.SUMMARIES) == [default]
        assert v1.get_collection("mine") == [mine]

    def test_weights_of_a_variable(self):
        weight = tf.Variable([0.25, 0.75])
        summary = summary_ops.nas_data(weight, ["f1", "f2"], [1, 1])
        with v1.Session() as session:
            session.run(weight.initializer)
            (value,) = v1.Summary.FromString(session.run(summary)).value
        np.testing.assert_array_equal(tensor_util.make_ndarray(value.tensor), [0.25, 0.75])


@pytest.mark.usefixtures("graph_mode")
class TestFeatureInsightData:
    def test_without_label_contributions_are_added_up(self):
        summary = summary_ops.feature_insight_data(
            tf.constant(INPUT), NAMES, SIZES, tf.constant(KERNEL)
        )
        tag, description, content, value = evaluate(summary)
        assert tag == "fi_direct/monolith_feature_insight"
        assert description == "fi_direct"
        assert content == (
            b'{"tag_type": "fi_direct", "segment_names": ["f1", "f2", "f3"], '
            b'"segment_sizes": [1, 1, 1], "label_size": 0}'
        )
        assert value.shape == (3, 3)
        np.testing.assert_allclose(value, (feature_products() ** 2).sum(axis=2), rtol=1e-5)

    def test_without_weight_the_input_is_written(self):
        summary = summary_ops.feature_insight_data(
            tf.constant(INPUT), NAMES, SIZES, name="head", description="about"
        )
        tag, description, content, value = evaluate(summary)
        assert tag == "head_fi_direct/monolith_feature_insight"
        assert description == "about"
        assert json.loads(content)["segment_sizes"] == SIZES
        np.testing.assert_array_equal(value, INPUT)

    def test_several_labels_and_groups_without_weight(self):
        label = np.array([[1, 2], [3, 4], [5, 6]])
        summary = summary_ops.feature_insight_data(
            tf.constant(INPUT, tf.float64),
            NAMES,
            SIZES,
            group_info=[["f3"], ["f1", "f2"]],
            label=tf.constant(label),
        )
        _, _, content, value = evaluate(summary)
        assert content == (
            b'{"tag_type": "fi_train", "segment_names": ["f1", "f2", "f3"], '
            b'"segment_sizes": [3, 2, 4], "group_index": [1, 1, 0], "label_size": 2}'
        )
        assert value.dtype == np.float32
        np.testing.assert_allclose(value, np.concatenate([INPUT, label], axis=1))

    def test_kernel_is_a_variable_and_batch_is_open(self):
        fed = v1.placeholder(tf.float32, [None, 9])
        kernel = tf.Variable(KERNEL)
        summary = summary_ops.feature_insight_data(fed, NAMES, SIZES, kernel, label=fed[:, 0])
        with v1.Session() as session:
            session.run(kernel.initializer)
            (value,) = v1.Summary.FromString(session.run(summary, {fed: INPUT})).value
        data = tensor_util.make_ndarray(value.tensor)
        np.testing.assert_allclose(data[:, :6], feature_products().reshape(3, 6), rtol=1e-5)
        np.testing.assert_array_equal(data[:, 6], INPUT[:, 0])

    @pytest.mark.parametrize(
        ("names", "sizes"),
        [(NAMES, [3, 6]), ([], []), (NAMES, None)],
        ids=["short", "none", "None"],
    )
    def test_sizes_must_match_names(self, names, sizes):
        with pytest.raises(ValueError, match="same number of segments"):
            summary_ops.feature_insight_data(tf.constant(INPUT), names, sizes)

    def test_sizes_must_match_the_input(self):
        with pytest.raises(ValueError, match="10"):
            summary_ops.feature_insight_data(
                tf.constant(INPUT), NAMES, [3, 3, 4], tf.constant(KERNEL)
            )

    def test_label_must_have_one_or_two_dimensions(self):
        with pytest.raises(ValueError, match=r"\[batch\] or \[batch, n\]"):
            summary_ops.feature_insight_data(
                tf.constant(INPUT), NAMES, SIZES, label=tf.zeros([3, 1, 1])
            )
