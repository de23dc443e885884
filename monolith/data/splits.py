"""An input in splits, which a worker takes one after the other as long as there are some.

A split is one file. The input function is built once, for a split whose number only the running
pipeline knows: the readers of this package read that file; of any other dataset TensorFlow leaves
the reading of that file. Everything that the function does, shuffling and batching included, is
done with each file by itself, so that a split whose last batch has come out is read to its end.

Example:
    >>> import pathlib
    >>> paths = [f"numbers-{number}" for number in range(3)]
    >>> for number, path in enumerate(paths):
    ...     _ = pathlib.Path(path).write_text(f"{number}\\n{10 + number}\\n")
    >>> class TakeSome:
    ...     numbers = iter([2, 0])
    ...     def announce(self, files):
    ...         print(files)
    ...     def take(self):
    ...         return next(self.numbers, None)
    ...     def count(self):
    ...         pass
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     dataset = make_dataset(lambda: tf.data.TextLineDataset(paths).batch(9), TakeSome())
    ...     batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    ...     [session.run(batch).tolist() for _ in range(2)]
    ['numbers-0', 'numbers-1', 'numbers-2']
    [[b'2', b'12'], [b'0', b'10']]
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import division

_NO_MORE = -1


class Taker(Protocol):
    """Takes splits for one worker."""

    def announce(self, files: Sequence[str]) -> None:
        """Is told which splits there are, when the input is built."""

    def take(self) -> int | None:
        """Returns the number of the next split, None if there is none; may wait.

        All that is in the splits before has come out of the pipeline.
        """

    def count(self) -> None:
        """Is told that an element has come out of the pipeline."""


def make_dataset(input_fn: Callable[[], Any], taker: Taker) -> tf.data.Dataset:
    """Returns the dataset of an input function, read split by split.

    Args:
        input_fn: Builds the input, in the same way in all workers.
        taker: Takes the splits.

    Raises:
        errors.ConfigError: It is no dataset of files, divides its input itself, has several
            sources, or never ends.
    """

    @tf.autograph.experimental.do_not_convert
    def take(_: tf.Tensor) -> tf.Tensor:
        number = tf.numpy_function(lambda: _number(taker.take()), [], tf.int64)
        number.set_shape([])
        return number

    @tf.autograph.experimental.do_not_convert
    def read(split: tf.Tensor) -> tf.data.Dataset:
        dataset, files = division.build_split(input_fn, split)
        check_end(dataset)
        taker.announce(files)
        return dataset.prefetch(tf.data.AUTOTUNE)

    @tf.autograph.experimental.do_not_convert
    def count(*element: Any) -> Any:
        with tf.control_dependencies([tf.numpy_function(lambda: _count(taker), [], tf.int64)]):
            copies = tf.nest.map_structure(tf.identity, element, expand_composites=True)
        return copies[0] if len(copies) == 1 else copies

    numbers = tf.data.Dataset.from_tensors(0).repeat().map(take)
    splits = numbers.take_while(lambda number: tf.not_equal(number, _NO_MORE))
    return splits.flat_map(read).map(count)


def check_end(dataset: tf.data.Dataset) -> None:
    """Refuses a dataset that is repeated for ever: its first split would never be done.

    Raises:
        errors.ConfigError: It is.
    """
    for op in division._walk(dataset):
        if op.type == "RepeatDataset" and tf.get_static_value(op.inputs[1]) == -1:
            raise errors.ConfigError(
                "With `enable_dynamic_sharding` the input must end, but `repeat()` repeats it for "
                "ever; say how often, as in `repeat(3)`, and each file is read so often."
            )


def _number(split: int | None) -> np.int64:
    return np.int64(_NO_MORE if split is None else split)


def _count(taker: Taker) -> np.int64:
    taker.count()
    return np.int64(0)
