"""Random training examples for the field-aware factorization machine of the tests and demos.

Example:
    >>> import tensorflow as tf
    >>> example = tf.train.Example.FromString(generate_ffm_example([10, 10], length=3))
    >>> sorted(example.features.feature)
    ['feature_0', 'feature_1', 'label']
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


def slot_to_key(slot: int) -> str:
    """Returns the name of the feature that holds the ids of `slot`."""
    return f"feature_{slot}"


def generate_ffm_example(vocab_sizes: Sequence[int], length: int = 5) -> bytes:
    """Makes one example from NumPy's global random state.

    The label is always 0.

    Args:
        vocab_sizes: How many different ids slot i has. Its ids start at `max(vocab_sizes) * i`, so
            that no two slots share one.
        length: A slot gets 1 to `length` ids.

    Returns:
        A serialized `tf.train.Example` with the float feature `label` and an int64 feature for
        each slot.

    Raises:
        ValueError: A vocabulary is empty, or `length` leaves no room for an id.
    """
    if length < 1 or any(size < 1 for size in vocab_sizes):
        raise ValueError(
            f"An example needs positive vocabulary sizes and a positive length, got "
            f"vocab_sizes={list(vocab_sizes)} and length={length}."
        )
    features = {"label": tf.train.Feature(float_list=tf.train.FloatList(value=[0.0]))}
    for slot, vocab_size in enumerate(vocab_sizes):
        num_ids = np.random.randint(1, length + 1)
        first_id = max(vocab_sizes) * slot
        ids = np.random.randint(first_id, first_id + vocab_size, size=num_ids)
        features[slot_to_key(slot)] = tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
