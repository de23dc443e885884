"""From rows of ids to the slices that columns look up."""

import numpy as np
import pytest
import tensorflow as tf
from support.features import make_ids

from monolith import errors
from monolith.embedding.features import combiners
from monolith.embedding.features.slices import create_embedding_slices
from monolith.graph import devices, export_mode


def create_slices(rows, ids, combiner, dims):
    slices = create_embedding_slices(
        {"user": rows}, {"user": ids}, {"user": combiner}, {"user": dims}
    )
    return {key: tensor.numpy().tolist() for key, tensor in slices.items()}


class TestCreateEmbeddingSlices:
    def test_reduce_sum(self):
        ids = tf.RaggedTensor.from_row_splits([1, 2], [0, 1, 2])
        slices = create_slices(
            tf.constant([[1.0, 4.0], [2.0, 3.0]]), ids, combiners.ReduceSum(), [1, 1]
        )
        assert slices == {"user:0_1": [[1], [2]], "user:1_2": [[4], [3]]}

    def test_reduce_sum_with_empty_row(self):
        ids = tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 1, 1, 3])
        rows = tf.constant([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0]])
        slices = create_slices(rows, ids, combiners.ReduceSum(), [1, 1])
        assert slices == {"user:0_1": [[1], [0], [5]], "user:1_2": [[2], [0], [8]]}

    def test_reduce_mean(self):
        ids = tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 1, 1, 3])
        rows = tf.constant([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0]])
        slices = create_slices(rows, ids, combiners.ReduceMean(), [1, 1])
        assert slices == {"user:0_1": [[1], [0], [2.5]], "user:1_2": [[2], [0], [4]]}

    def test_first_n(self):
        ids = tf.RaggedTensor.from_row_splits([1, 2, 3, 4], [0, 1, 1, 4])
        rows = tf.constant([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]])
        slices = create_slices(rows, ids, combiners.FirstN(2), [1, 1])
        assert slices["user:0_1"] == [[[1], [0]], [[0], [0]], [[2], [3]]]
        assert slices["user:1_2"] == [[[5], [0]], [[0], [0]], [[6], [7]]]

    def test_several_features(self):
        slices = create_embedding_slices(
            {"a": tf.ones([1, 3]), "b": 2 * tf.ones([2, 1])},
            {"a": make_ids([1]), "b": make_ids([2])},
            {"a": combiners.ReduceMean(), "b": combiners.ReduceSum()},
            {"a": [2, 1], "b": [1]},
        )
        assert sorted(slices) == ["a:0_2", "a:2_3", "b:0_1"]
        assert slices["a:0_2"].numpy().tolist() == [[1, 1]]
        assert slices["b:0_1"].numpy().tolist() == [[4]]

    @pytest.mark.usefixtures("graph_mode")
    def test_exporting_uses_ops_of_tensorflow_and_keeps_the_sum(self):
        rows = tf.constant([[1.0, 2.0], [2.0, 3.0], [3.0, 5.0]])
        ids = tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 1, 1, 3])
        with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
            slices = create_embedding_slices(
                {"user": rows}, {"user": ids}, {"user": combiners.ReduceSum()}, {"user": [1, 1]}
            )
        (combined,) = tf.compat.v1.get_collection("monolith_reduced_embs")
        with tf.compat.v1.Session() as session:
            slices, combined = session.run((slices, combined))
        assert combined.tolist() == [[1, 2], [0, 0], [5, 8]]
        assert slices["user:0_1"].tolist() == [[1], [0], [5]]
        assert slices["user:1_2"].tolist() == [[2], [0], [8]]
        types = {op.type for op in tf.compat.v1.get_default_graph().get_operations()}
        assert not any("ReduceSumAndSplit" in t for t in types)

    @pytest.mark.usefixtures("graph_mode")
    @pytest.mark.parametrize(
        ("allowed", "device", "is_fused"),
        [(False, "/GPU:0", True), (True, "/CPU:0", True), (True, "/GPU:0", False)],
    )
    def test_on_a_gpu_ops_of_tensorflow_are_used(self, monkeypatch, allowed, device, is_fused):
        # Only built, not run: there may be no GPU here.
        monkeypatch.setattr(devices, "_GPU_PLACEMENT_ALLOWED", allowed)
        with tf.device(device):
            create_embedding_slices(
                {"user": tf.ones([2, 2])},
                {"user": make_ids([1, 1])},
                {"user": combiners.ReduceSum()},
                {"user": [1, 1]},
            )
        types = {op.type for op in tf.compat.v1.get_default_graph().get_operations()}
        assert ("MonolithFusedReduceSumAndSplit" in types) is is_fused
        assert ("ScatterNd" in types) is not is_fused
        assert not tf.compat.v1.get_collection("monolith_reduced_embs")

    @pytest.mark.usefixtures("graph_mode")
    def test_width_that_is_not_known_is_that_of_the_slices(self):
        rows = tf.compat.v1.placeholder(tf.float32, [None, None])
        for combiner, shape in ((combiners.ReduceSum(), [2, 2]), (combiners.FirstN(3), [2, 3, 2])):
            slices = create_embedding_slices(
                {"user": rows}, {"user": make_ids([1, 1])}, {"user": combiner}, {"user": [2, 1]}
            )
            assert slices["user:0_2"].shape.as_list() == shape

    @pytest.mark.parametrize(
        "combiner", [combiners.ReduceSum(), combiners.ReduceMean(), combiners.FirstN(2)], ids=str
    )
    def test_gradient_by_whole_rows_against_tensorflow(self, combiner):
        lengths, dims = [2, 0, 3, 1], [1, 3, 2]
        rng = np.random.default_rng(5)
        rows = tf.constant(rng.normal(size=(6, 6)).astype(np.float32))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(rows)
            slices = create_embedding_slices(
                {"user": rows}, {"user": make_ids(lengths)}, {"user": combiner}, {"user": dims}
            )
            # The last slice is not used: its part of the row has no gradient.
            ours = tf.reduce_sum(slices["user:0_1"] ** 2) + tf.reduce_sum(slices["user:1_4"] ** 3)
            padded = tf.RaggedTensor.from_row_lengths(rows, lengths).to_tensor()
            if isinstance(combiner, combiners.FirstN):
                combined = padded[:, :2]
            else:
                combined = tf.reduce_sum(padded, 1)
            if isinstance(combiner, combiners.ReduceMean):
                combined /= np.maximum(lengths, 1)[:, np.newaxis]
            plain = tf.reduce_sum(combined[..., :1] ** 2) + tf.reduce_sum(combined[..., 1:4] ** 3)
        assert float(ours) == pytest.approx(float(plain), rel=1e-5)
        gradient = tape.gradient(ours, rows)
        assert gradient.shape == [6, 6]  # For each occurrence of an id.
        expected = tf.convert_to_tensor(tape.gradient(plain, rows))
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
        assert not gradient.numpy()[:, 4:].any()

    def test_dense_ids_are_refused(self):
        with pytest.raises(
            errors.ConfigError,
            match=r"The ids of feature 'user' must be a tf\.RaggedTensor of shape "
            r"\[batch, \(num_ids\)\], got a dense tensor of shape \(2, 1\); make one with",
        ):
            create_slices(tf.ones([2, 1]), tf.zeros([2, 1], tf.int64), combiners.ReduceSum(), [1])

    def test_rows_of_another_width_are_refused(self):
        with pytest.raises(
            errors.ConfigError, match=r"must have shape \[num_ids, 3\], the width of its slices"
        ):
            create_slices(tf.ones([2, 2]), make_ids([1, 1]), combiners.ReduceSum(), [1, 2])

    @pytest.mark.parametrize("missing", range(3))
    def test_feature_that_was_not_declared_is_named(self, missing):
        arguments = [{"user": make_ids([2])}, {"user": combiners.ReduceSum()}, {"user": [1]}]
        arguments[missing] = {}
        with pytest.raises(errors.ConfigError, match="Feature 'user' has embeddings but no"):
            create_embedding_slices({"user": tf.ones([2, 1])}, *arguments)
