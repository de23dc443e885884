"""What a model function returns, and the heads it describes."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.model import heads as model_spec
from monolith.model.heads import EstimatorSpec, as_spec, make_heads
from monolith.training import estimator

pytestmark = pytest.mark.usefixtures("graph_mode")


def make_tensor(*shape: int) -> tf.Tensor:
    return tf.zeros(shape or [4])


class TestEstimatorSpec:
    def test_defaults(self):
        spec = EstimatorSpec("label", "pred")
        assert spec == ("label", "pred", None, None, None, True)

    def test_is_what_the_estimator_module_offers(self):
        assert estimator.EstimatorSpec is EstimatorSpec

    def test_replace_keeps_the_class(self):
        spec = EstimatorSpec("label", "pred")._replace(loss="loss")
        assert isinstance(spec, EstimatorSpec)
        assert spec.loss == "loss"

    def test_replace_refuses_what_it_does_not_have(self):
        with pytest.raises(errors.ConfigError, match="EstimatorSpec has no 'mode'; its fields are"):
            EstimatorSpec("label", "pred")._replace(mode="train")

    def test_tuple_of_label_loss_and_pred(self):
        spec = as_spec(("label", "loss", "pred"), "MyModel")
        assert (spec.label, spec.loss, spec.pred) == ("label", "loss", "pred")

    @pytest.mark.parametrize("result", [None, (1, 2), "spec"])
    def test_anything_else_is_refused(self, result):
        with pytest.raises(errors.ConfigError, match="model_fn of MyModel must return an Estim"):
            as_spec(result, "MyModel")


class TestHeads:
    def test_single_head_has_the_default_name(self):
        (head,) = make_heads(EstimatorSpec(make_tensor(), make_tensor()), ["ctr_head", "other"])
        assert (head.name, head.classification) == ("ctr_head", True)

    def test_label_gets_a_name_to_be_found_by(self):
        label = tf.zeros([4], name="clicked")
        (head,) = make_heads(EstimatorSpec(label, make_tensor(), "ctr"), [])
        assert head.label.op.name == "label_clicked"

    def test_lists(self):
        spec = EstimatorSpec(
            label=[make_tensor(), make_tensor()],
            pred=[make_tensor(), make_tensor()],
            head_name=["click", "time"],
            classification=[True, False],
        )
        heads = make_heads(spec, [])
        assert [(h.name, h.classification) for h in heads] == [("click", True), ("time", False)]
        assert not model_spec.is_single(spec)

    def test_dicts_match_by_key_not_by_order(self):
        click, time = tf.zeros([4], name="click"), tf.zeros([4], name="time")
        spec = EstimatorSpec(
            label={"time": time, "click": click}, pred={"click": make_tensor(), "time": time}
        )
        heads = make_heads(spec, ["unused"])
        assert [h.label.op.name for h in heads] == ["label_click", "label_time"]

    def test_one_classification_counts_for_all(self):
        spec = EstimatorSpec(None, [make_tensor(), make_tensor()], ["a", "b"], classification=False)
        assert [h.classification for h in make_heads(spec, [])] == [False, False]

    def test_default_names_fit_a_list(self):
        spec = EstimatorSpec(None, [make_tensor(), make_tensor()])
        assert [h.name for h in make_heads(spec, ["a", "b"])] == ["a", "b"]

    @pytest.mark.parametrize(
        ("label", "pred"),
        [([4], [4, 1]), ([4, 1], [4]), ([4, 1], [4, 1]), ([4, 3], [4, 3])],
    )
    def test_label_shapes_that_fit(self, label, pred):
        make_heads(EstimatorSpec(make_tensor(*label), make_tensor(*pred), "ctr"), [])

    @pytest.mark.parametrize(("label", "pred"), [([4, 2], [4]), ([3], [4]), ([4, 2], [4, 1])])
    def test_label_of_the_wrong_shape(self, label, pred):
        spec = EstimatorSpec(make_tensor(*label), make_tensor(*pred), "ctr")
        with pytest.raises(
            errors.ConfigError, match=r"label of head 'ctr' has the shape .* Select"
        ):
            make_heads(spec, [])

    def test_unknown_batch_size_is_no_reason_to_refuse(self):
        label = tf.compat.v1.placeholder(tf.float32, [None, 1])
        make_heads(EstimatorSpec(label, make_tensor(4), "ctr"), [])

    def test_distribution_over_classes_as_label(self):
        pred = tf.argmax(make_tensor(4, 3), axis=1)
        (head,) = make_heads(EstimatorSpec(make_tensor(4, 3), pred, "kind"), [])
        assert head.label.shape == (4, 3)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            pytest.param(
                {"label": {"clik": 0}, "pred": {"click": 0}},
                "label of EstimatorSpec has nothing for head 'click'; the heads are 'click'",
                id="missing_label",
            ),
            pytest.param(
                {"label": {"click": 0, "like": 0}, "pred": {"click": 0}},
                "label of EstimatorSpec names an unknown head 'like'",
                id="unknown_head",
            ),
            pytest.param(
                {"label": None, "pred": {"click": 0}, "head_name": ["like"]},
                "names the heads 'like', but gives pred for 'click'",
                id="names_and_keys_differ",
            ),
            pytest.param(
                {"label": None, "pred": [0, 0], "head_name": ["click"]},
                "gives pred for 2 heads and names 1: 'click'; set head_name to a list",
                id="too_few_names",
            ),
            pytest.param(
                {"label": [0], "pred": [0, 0], "head_name": ["a", "b"]},
                "label of EstimatorSpec is a list of 1 for 2 heads",
                id="too_few_labels",
            ),
            pytest.param(
                {"label": 0, "pred": [0, 0], "head_name": ["a", "b"]},
                "label of EstimatorSpec is one tensor for 2 heads",
                id="one_label",
            ),
            pytest.param(
                {"label": None, "pred": [0, 0], "head_name": ["a", "a"]},
                "Two heads have the same name: 'a', 'a'",
                id="same_name",
            ),
            pytest.param(
                {"label": None, "pred": 0, "head_name": "click rate"},
                "A head is named with letters, digits .* got 'click rate'",
                id="bad_name",
            ),
        ],
    )
    def test_bad_specs(self, fields, message):
        fields = tf.nest.map_structure(lambda x: make_tensor() if isinstance(x, int) else x, fields)
        with pytest.raises(errors.ConfigError, match=message):
            make_heads(EstimatorSpec(**fields), [])

    def test_pred_that_is_no_tensor(self):
        with pytest.raises(errors.ConfigError, match="pred of head 'ctr' must be a tensor"):
            make_heads(EstimatorSpec(None, np.zeros(4), "ctr"), [])

    def test_ragged_label(self):
        label = tf.ragged.constant([[1.0], []])
        with pytest.raises(errors.ConfigError, match=r"must be a dense tensor, got a RaggedTensor"):
            make_heads(EstimatorSpec(label, make_tensor(2), "ctr"), [])
