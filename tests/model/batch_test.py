"""Batches remember what was read; ids in any form become ragged ones."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import string_ids
from monolith.model.batch import Batch, MissingFeatureError, list_names, to_ids


class TestBatch:
    def test_tells_what_was_read_from_what_was_asked_for(self):
        batch = Batch({"user": 1, "movie": 2, "label": 3, "unused": 4})
        assert (batch["user"], batch.get("label"), batch.get("weight", 7)) == (1, 3, 7)
        assert batch.read == {"user"}
        assert batch.asked == {"label", "weight"}

    def test_what_is_read_is_not_optional_however_it_was_asked_for_before(self):
        batch = Batch({"user": 1})
        batch.get("user")
        assert batch["user"] == 1
        assert (batch.read, batch.asked) == ({"user"}, set())

    def test_is_trained_on_if_it_says_so(self):
        assert Batch({}, training=True).training
        assert not Batch({}).training

    def test_values_and_items_read_everything(self):
        batch = Batch({"a": 1, "b": 2})
        assert dict(batch.items()) == {"a": 1, "b": 2}
        assert batch.read == {"a", "b"}

    def test_looking_for_a_name_reads_nothing(self):
        batch = Batch({"a": 1})
        assert "a" in batch
        assert "b" not in batch
        assert (list(batch), len(batch), batch.read) == (["a"], 1, set())

    def test_a_missing_feature_is_a_sentence_with_a_guess(self):
        with pytest.raises(MissingFeatureError, match="did you mean 'movie'") as caught:
            Batch({"movie": 1})["mvie"]
        assert str(caught.value).endswith("Add it to what the data gives, or correct the name.")
        assert isinstance(caught.value, KeyError)


def test_many_names_are_cut():
    assert list_names({str(i): 0 for i in range(25)}).endswith("5 more")
    assert list_names({}) == "no features at all"


class TestToIds:
    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            pytest.param(tf.constant([7, -1], tf.int64), [[7], [-1]], id="one_per_example"),
            pytest.param(tf.constant([7, 8], tf.int32), [[7], [8]], id="int32"),
            pytest.param(tf.constant([7, 8], tf.uint8), [[7], [8]], id="uint8"),
            pytest.param(tf.constant([[1, 2], [3, 4]]), [[1, 2], [3, 4]], id="several"),
            pytest.param(tf.constant([[[1, 2], [3, 4]]]), [[1, 2, 3, 4]], id="more_dimensions"),
            pytest.param(tf.ragged.constant([[1], [], [2, 3]]), [[1], [], [2, 3]], id="ragged"),
            pytest.param(
                tf.ragged.constant([[[1], [2, 3]], []], dtype=tf.int64), [[1, 2, 3], []], id="deep"
            ),
            pytest.param(
                tf.sparse.from_dense(np.array([[0, 5], [6, 0], [0, 0]])),
                [[5], [6], []],
                id="sparse",
            ),
            pytest.param(tf.zeros([0], tf.int64), [], id="empty_batch"),
            pytest.param(tf.zeros([2, 0], tf.int64), [[], []], id="no_ids"),
        ],
    )
    def test_gives_ragged_int64(self, value, expected):
        ids = to_ids("user", value)
        assert ids.to_list() == expected
        assert (ids.dtype, ids.row_splits.dtype, ids.ragged_rank) == (tf.int64, tf.int64, 1)

    def test_strings_are_hashed(self):
        expected = [[string_ids.hash_string(s)] for s in ("a", "")]
        assert to_ids("user", tf.constant(["a", ""])).to_list() == expected
        ragged = to_ids("user", tf.ragged.constant([["a"], []], dtype=tf.string))
        assert ragged.to_list() == [expected[0], []]

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (tf.constant([0.5]), "Feature 'age' .* integers or strings, but they are float32"),
            (tf.constant([True]), "they are bool"),
            (tf.constant(7), r"its shape is \(\); batch the data"),
        ],
    )
    def test_what_is_no_id_is_refused(self, value, message):
        with pytest.raises(errors.ConfigError, match=message):
            to_ids("age", value)

    def test_a_dense_tensor_of_unknown_size_in_a_graph(self):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            placeholder = tf.compat.v1.placeholder(tf.int32, [None, None])
            ids = to_ids("user", placeholder)
            found = session.run(ids, {placeholder: [[1, 2], [3, 4]]})
        assert found.to_list() == [[1, 2], [3, 4]]
