"""Metadata of summaries with their exact JSON, and weights read from checkpoints."""

import collections
import json

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.native_training.summary import utils

NAMES = ["f1", "f2", "f3"]
GROUPS = [["f1", "f2"], ["f3", "f4"], ["f5", "f6"]]


@pytest.mark.usefixtures("graph_mode")
class UtilsTest(tf.test.TestCase):
    def test_read_head_gating(self):
        head, tag = utils.prepare_head(NAMES, [3, 5, 9], GROUPS)
        self.assertEqual(tag, utils.SummaryType.GATING)
        self.assertEqual(tag, "gating")
        with self.session() as session:
            self.assertEqual(
                session.run(head),
                b'{"tag_type": "gating", "segment_names": ["f1", "f2", "f3"], '
                b'"segment_sizes": [3, 5, 9], "group_index": [0, 0, 1]}',
            )

    def test_read_head_selecting(self):
        head, tag = utils.prepare_head(NAMES, [[3, 6], [5, 10], [4, 8, 16]], GROUPS)
        self.assertEqual(tag, utils.SummaryType.SELECTING)
        self.assertEqual(tag, "selecting")
        with self.session() as session:
            self.assertEqual(
                session.run(head),
                b'{"tag_type": "selecting", "segment_names": ["f1", "f2", "f3"], '
                b'"segment_sizes": [[3, 6], [5, 10], [4, 8, 16]]}',
            )


def test_constants():
    assert utils.PLUGIN_NAME == "monolith"
    assert utils.MONOLITH_NAS_DATA == "monolith_nas_weight"
    assert utils.MONOLITH_FI_DATA == "monolith_feature_insight"
    assert (utils.KTYPE, utils.KMETA, utils.KDATA) == ("tag_type", "meta", "data")
    assert [str(t) for t in utils.SummaryType] == [
        "gating",
        "selecting",
        "mixed",
        "simple",
        "fi_direct",
        "fi_train",
    ]
    assert utils.SummaryType.FEATURE_INSIGHT_DIRECT == "fi_direct"
    assert utils.SummaryType.FEATURE_INSIGHT_TRAIN == "fi_train"


@pytest.mark.parametrize("content", ['{"ä": 1}', '{"ä": 1}'.encode()], ids=["str", "bytes"])
def test_metadata_carries_the_content_as_utf8(content):
    metadata = utils.create_summary_metadata("what it is", content)
    assert metadata.plugin_data.plugin_name == "monolith"
    assert metadata.plugin_data.content == '{"ä": 1}'.encode()
    assert metadata.summary_description == "what it is"
    assert metadata.data_class == 2  # DATA_CLASS_TENSOR of TensorBoard's summary.proto


def test_metadata_by_default():
    metadata = utils.create_summary_metadata()
    assert metadata.plugin_data.content == b""
    assert metadata.summary_description == ""


def test_out_types():
    text, tag = utils.prepare_head(["a"], [2], out_type="bytes")
    assert isinstance(text, str)
    as_dict, dict_tag = utils.prepare_head(["a"], [2], out_type="json")
    assert as_dict == {
        "tag_type": "gating",
        "segment_names": ["a"],
        "segment_sizes": [2],
        "group_index": [0],
    }
    assert json.loads(text) == as_dict
    assert list(json.loads(text)) == ["tag_type", "segment_names", "segment_sizes", "group_index"]
    tensor, _ = utils.prepare_head(["a"], [2])
    assert tensor.dtype == tf.string
    assert tensor.shape == []
    assert tensor.numpy().decode() == text
    assert tag == dict_tag == "gating"
    with pytest.raises(AssertionError, match=r"must be 'bytes', 'tensor' or 'json', got 'proto'"):
        utils.prepare_head(["a"], [2], out_type="proto")


@pytest.mark.parametrize("raw_tag", [None, "mixed"])
def test_without_segments_the_head_is_empty(raw_tag):
    for nothing in ([], None):
        assert utils.prepare_head(nothing, nothing, None, raw_tag, "bytes") == (b"", raw_tag)
        tensor, tag = utils.prepare_head(nothing, nothing, None, raw_tag)
        assert tensor.numpy() == b""
        assert tag == raw_tag


@pytest.mark.parametrize(
    ("raw_tag", "has_groups"),
    [
        ("gating", True),
        ("fi_train", True),
        ("selecting", False),
        ("mixed", False),
        ("simple", False),
        ("fi_direct", False),
    ],
)
def test_given_tag_wins_and_decides_on_groups(raw_tag, has_groups):
    head, tag = utils.prepare_head(["a", "b"], [1, 2], raw_tag=raw_tag, out_type="json")
    assert tag == raw_tag
    assert head["tag_type"] == raw_tag
    assert ("group_index" in head) is has_groups


def test_groups_are_numbered_without_gaps_in_their_order():
    groups = [["a"], ["b", "c"], ["d"], ["e"]]
    head, _ = utils.prepare_head(["e", "c", "b", "e"], [1] * 4, groups, out_type="json")
    # Groups 3, 1, 1, 3: of the used ones 1 comes first.
    assert head["group_index"] == [1, 0, 0, 1]


def test_segment_without_group_is_rejected():
    with pytest.raises(AssertionError, match=r"lacks \['f9'\]"):
        utils.prepare_head(["f1", "f9"], [1, 1], GROUPS)


def test_sizes_must_match_names():
    with pytest.raises(ValueError, match="got 2 names and 1 sizes"):
        utils.prepare_head(["a", "b"], [1])


def test_sizes_may_come_from_numpy():
    text, _ = utils.prepare_head(["a", "b"], np.array([1, 2]), out_type="bytes")
    assert '"segment_sizes": [1, 2]' in text
    text, tag = utils.prepare_head(["a"], [np.array([1, 2])], out_type="bytes")
    assert '"segment_sizes": [[1, 2]]' in text
    assert tag == "selecting"


def save_checkpoint(directory, step, **arrays):
    variables = collections.OrderedDict(sorted(arrays.items()))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, array in variables.items():
            tf.compat.v1.get_variable(name, initializer=tf.constant(array))
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver()
        return saver.save(session, str(directory / "model.ckpt"), global_step=step)


class TestNasWeights:
    def test_values_of_the_first_variable_with_the_prefix(self, tmp_path):
        checkpoint = save_checkpoint(
            tmp_path, 1, bias=[9.0], my_alpha=[[0.5, 1.0], [-2.0, 0.25]], z_alpha=[7.0]
        )
        expected = ["0.5", "1.0", "-2.0", "0.25"]
        assert utils.get_nas_weight_json(checkpoint, prefix="alpha") == expected
        assert utils.get_nas_weight_json(str(tmp_path), prefix="alpha") == expected

    def test_prefix_by_default(self, tmp_path):
        save_checkpoint(tmp_path, 1, **{utils.ARCH_TENSOR_PREFIX: [1.0], "bias": [2.0]})
        assert utils.get_nas_weight_json(str(tmp_path)) == ["1.0"]

    def test_newer_checkpoint_of_a_directory_is_seen(self, tmp_path):
        for step in (1, 2):
            save_checkpoint(tmp_path, step, arch_weights=[float(step)])
            weights = utils.get_nas_weight_json(str(tmp_path))
            assert weights == [f"{step}.0"]
            weights.append("a caller's own")
        assert utils.get_nas_weight_json(str(tmp_path)) == ["2.0"]

    def test_missing_variable(self, tmp_path):
        checkpoint = save_checkpoint(tmp_path, 1, bias=[1.0])
        with pytest.raises(errors.MonolithError, match=r"^not arch_weights in ckpt: .* only bias"):
            utils.get_nas_weight_json(checkpoint)

    def test_missing_checkpoint(self, tmp_path):
        with pytest.raises(ValueError, match="checkpoint"):
            utils.get_nas_weight_json(str(tmp_path))
