"""Random examples of the factorization machine."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.data import ffm


def make_features(vocab_sizes, **kwargs):
    serialized = ffm.generate_ffm_example(vocab_sizes, **kwargs)
    assert isinstance(serialized, bytes)
    return tf.train.Example.FromString(serialized).features.feature


@pytest.fixture(autouse=True)
def seeded():
    state = np.random.get_state()
    np.random.seed(0)
    yield
    np.random.set_state(state)


def test_slot_to_key():
    assert ffm.slot_to_key(7) == "feature_7"


def test_label_is_always_zero():
    assert {tuple(make_features([5])["label"].float_list.value) for _ in range(20)} == {(0.0,)}


def test_ids_lie_in_the_range_of_their_slot():
    vocab_sizes = [5, 2, 3]
    lengths = set()
    seen = [set(), set(), set()]
    for _ in range(200):
        features = make_features(vocab_sizes, length=4)
        assert sorted(features) == ["feature_0", "feature_1", "feature_2", "label"]
        for slot in range(3):
            ids = features[ffm.slot_to_key(slot)].int64_list.value
            lengths.add(len(ids))
            seen[slot].update(ids)
    assert lengths == {1, 2, 3, 4}
    # Slot i starts at max(vocab_sizes) * i.
    assert seen == [{0, 1, 2, 3, 4}, {5, 6}, {10, 11, 12}]


def test_default_length_is_five():
    lengths = {len(make_features([5])["feature_0"].int64_list.value) for _ in range(200)}
    assert lengths == {1, 2, 3, 4, 5}


def test_seed_fixes_the_example():
    np.random.seed(3)
    first = make_features([5] * 6)
    np.random.seed(3)
    assert make_features([5] * 6) == first
    # Written out from NumPy's own stream: a count of ids, then the ids, slot by slot.
    np.random.seed(3)
    count = np.random.randint(1, 6)
    assert list(first["feature_0"].int64_list.value) == list(np.random.randint(0, 5, size=count))


@pytest.mark.parametrize(("vocab_sizes", "length"), [([5, 0], 5), ([5], 0)])
def test_empty_ranges_are_refused(vocab_sizes, length):
    with pytest.raises(ValueError, match="positive vocabulary sizes and a positive length"):
        ffm.generate_ffm_example(vocab_sizes, length)
