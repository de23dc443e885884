"""Batches in a loop of Python: what readers and streams give in eager mode."""

from collections.abc import Iterator

import tensorflow as tf

from monolith import errors
from monolith.data import columns, seekable, sources
from monolith.data.errors import find_sentence

Batch = dict[str, tf.Tensor | tf.RaggedTensor]


def iterate(source: sources.Source, batching: columns.Batching, what: str) -> Iterator[Batch]:
    """Yields the batches of a source.

    Args:
        source: What to read.
        batching: Size and order of the batches.
        what: What the source is for its user, such as "A reader".

    Raises:
        errors.DataError: What is read is not what the schema says, or is gone.
        errors.ConfigError: This is a graph.
    """
    # Apart from the generator, which would say it at its first batch.
    if not tf.executing_eagerly():
        raise errors.ConfigError(
            f"{what} gives its batches in eager mode only; in a graph or a tf.function call it, "
            "and read the tf.data.Dataset that it returns."
        )
    return _iterate(source, batching)


def _iterate(source: sources.Source, batching: columns.Batching) -> Iterator[Batch]:
    reading = seekable.Reading(source, batching)
    try:
        yield from reading.make_dataset()
    except (tf.errors.OpError, UnicodeDecodeError) as e:
        if (sentence := find_sentence(e)) is None:
            raise
        raise errors.DataError(sentence) from None
    finally:
        reading.close()
