"""Ids of given lengths, for tests of features."""

import tensorflow as tf


def make_ids(lengths):
    values = tf.range(sum(lengths), dtype=tf.int64)
    return tf.RaggedTensor.from_row_lengths(values, tf.constant(lengths, tf.int64))
