"""Datasets over sources, whose iterators can be saved and gone on from.

TensorFlow saves the tensors that a pipeline carries along, but not how far a Python generator has
got. So here the position is such a tensor: a function of Python is given the position of a batch,
reads it, and returns it together with the next position. Between two calls the files stay open;
only a position that nobody stands at, as after a restart, is looked for in the files.

In the graph beside that function stands a description of what it reads, so that
`monolith.data.identity` can tell it from others.

Example:
    >>> from monolith.data import csv_files, schema
    >>> import pathlib
    >>> _ = pathlib.Path("ids.csv").write_text("id\\n1\\n2\\n3\\n")
    >>> source = csv_files.open_files("ids.csv", [schema.Ids("id")])
    >>> batches = make_dataset(source, columns.Batching(batch_size=2))
    >>> iterator = iter(batches)
    >>> next(iterator)["id"].to_list()
    [[1], [2]]
    >>> path = tf.train.Checkpoint(iterator=iterator).write("position")
    >>> iterator = iter(batches)
    >>> _ = tf.train.Checkpoint(iterator=iterator).read(path)
    >>> next(iterator)["id"].to_list()
    [[3]]
"""

import atexit
import collections
import contextlib
import dataclasses
import hashlib
import math
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, structured_function
from tensorflow.python.ops import gen_experimental_dataset_ops

from monolith import errors
from monolith.data import columns, division, positions, sources
from monolith.data.sources import FileSource, Source
from monolith.graph import metadata

# What a description in the graph begins with.
MARK = b"monolith.data: "
# And that of a stream, whose end may be a pause.
STREAM_MARK = MARK + b"stream "

_STREAMS = "monolith_data_streams"
# A seed that is given decides alone, whatever TensorFlow's own seed is. Two zeros would draw one.
_SECOND_SEED = 1
_MAX_SEED = 2**63 - 1
# More than a process reads at once, in all its datasets.
_MAX_OPEN = 32

# How soon after a batch the next one is read, if it is read ahead at all.
_NEXT_CALL_SEC = 0.1
_READ_AHEAD_SEC = 1.0
_EXIT_SEC = 10.0
_POLL_SEC = 0.005

_Cursor = Iterator[tuple[columns.Columns, positions.Position]]


def reads_stream() -> bool:
    """Returns whether a stream is read in the current graph: nobody must read ahead of it."""
    return bool(get_streams())


def get_streams() -> list[Source]:
    """Returns the streams that are read in the current graph."""
    return [reading.source for reading in _get_readings()]


@contextlib.contextmanager
def closing_streams(graph: tf.Graph) -> Iterator[None]:
    """Closes what the streams of a graph hold open, after a block that has run the graph."""
    try:
        yield
    finally:
        with graph.as_default():
            readings = _get_readings()
        for reading in readings:
            reading.close()


def _get_readings() -> "list[Reading]":
    return [] if tf.executing_eagerly() else metadata.get_meta(_STREAMS, list)


def make_dataset(source: Source, batching: columns.Batching) -> tf.data.Dataset:
    """Makes batches of the rows of a source, from the start on each pass.

    Where the input of one worker of several is built, of its part of the files.
    """
    if isinstance(source, FileSource):
        split = division.get_split(source.paths)
        if split is not None:
            return Reading(_OneFile(source), batching).make_dataset(split)
        paths = tuple(division.take_files(source.paths))
        source = dataclasses.replace(source, paths=paths)
    if batching.seed is None:
        batching = dataclasses.replace(batching, seed=division.get_seed())
    return Reading(source, batching).make_dataset()


def interleave_files(
    source: FileSource, batching: columns.Batching, **settings: Any
) -> tf.data.Dataset:
    """Makes a dataset of the rows of files, several of which are read in turns.

    Args:
        source: The files.
        batching: How many rows are read at once; they are not shuffled.
        settings: Those of `tf.data.Dataset.interleave`.

    Returns:
        Single rows, no batches.
    """
    split = division.get_split(source.paths)
    if split is not None:
        return Reading(_OneFile(source), batching).make_dataset(split).unbatch()
    paths = tuple(division.take_files(source.paths))
    reading = Reading(_OneFile(dataclasses.replace(source, paths=paths)), batching)

    @tf.autograph.experimental.do_not_convert
    def read_file(number: tf.Tensor) -> tf.data.Dataset:
        return reading.make_dataset(number, has_seeds=False).unbatch()

    return tf.data.Dataset.range(len(paths)).interleave(read_file, **settings)


class _OneFile(Source):
    """Reads to the end of the file that it is to begin with, and not the files behind it."""

    def __init__(self, source: FileSource) -> None:
        self.start = source.start
        self._source = source

    def read(self, place: positions.Place) -> Iterator[positions.Chunk]:
        paths = self._source.paths[: place[0] + 1]
        return dataclasses.replace(self._source, paths=paths).read(place)

    def describe(self) -> str:
        return self._source.describe()

    def make_layout(self, rows: int | None) -> columns.Layout:
        return self._source.make_layout(rows)


class Reading:
    """Makes a dataset, and reads for its iterators.

    What is left half read stays open for whoever reads on, until nobody can: TensorFlow does not
    say when an iterator is gone, but an iterator holds its dataset. (The function that reads is no
    help: what was made outside of graphs belongs to the default one, which is never deleted.)

    Args:
        source: What to read.
        batching: Size and order of the batches.

    Attributes:
        source: What is read.
    """

    def __init__(self, source: Source, batching: columns.Batching) -> None:
        self.source = source
        self._batching = batching
        self._layout = source.make_layout(batching.batch_size if batching.drop_remainder else None)
        # Generators of batches, by the position behind the last batch of each.
        self._cursors: dict[positions.Position, _Cursor] = {}
        self._num_closings = 0

    def make_dataset(
        self, first_file: tf.Tensor | None = None, *, has_seeds: bool = True
    ) -> tf.data.Dataset:
        """Returns the batches, in whatever graph is the default one.

        Args:
            first_file: The number of the file to begin with, if it is not the first one.
            has_seeds: Whether seeds are drawn. Without, as rows that keep their order need none,
                it can be made inside of another dataset's function, and saved with that.
        """
        described = f"{self.source.describe()} {_describe(self._batching)}"
        mark = STREAM_MARK if self.source.is_stream else MARK
        description = mark + hashlib.sha256(described.encode()).hexdigest().encode()
        start = (0, *positions.start_of_pass(self.source).to_integers())
        signature = self._layout.signature

        @tf.autograph.experimental.do_not_convert
        def read(state: tf.Tensor, numbered_seed: tuple[tf.Tensor, tf.Tensor]) -> Any:
            number, seed = numbered_seed
            new_state, *tensors = tf.numpy_function(
                self._read,
                [state, number, seed, tf.constant(description)],
                [tf.int64, *(spec.dtype for spec in signature)],
                # It has no state: where to read and what is in its arguments.
                stateful=False,
            )
            new_state.set_shape([len(start)])
            for tensor, spec in zip(tensors, signature, strict=True):
                tensor.set_shape(spec.shape)
            return new_state, tuple(tensors)

        begin = tf.constant(start, tf.int64)
        if first_file is not None:
            # Calls, seed and block come before the place, which begins with the file.
            begin += tf.scatter_nd([[3]], [first_file], [len(start)])
        seeds = _Seeds(self._batching.seed) if has_seeds else _repeat_zero()
        dataset = _Scan(seeds.enumerate(), begin, read)
        if tf.executing_eagerly():
            weakref.finalize(dataset, self.close).atexit = False  # Left to `close_at_exit`.
        elif self.source.is_stream:
            _get_readings().append(self)
        unpack = tf.autograph.experimental.do_not_convert(self._layout.unpack)
        options = tf.data.Options()
        # There is nothing to tune, and an iterator whose tuning thread sleeps when it is deleted
        # waits for it, up to a minute (TensorFlow 2.21).
        options.autotune.enabled = False
        dataset = dataset.map(unpack)
        if not self.source.is_stream:
            # Whoever saves a position waits for what is read ahead; of a stream, until there is
            # something to read.
            dataset = dataset.prefetch(2)
        return dataset.with_options(options)

    def close(self) -> None:
        """Closes what is open. Who reads on opens it again."""
        self._num_closings += 1
        self._cursors.clear()

    def _read(
        self, state: np.ndarray, number: np.ndarray, seed: np.ndarray, _: Any
    ) -> tuple[np.ndarray, ...]:
        with _open.count_call():
            return self._read_batch(state, int(number), int(seed))

    def _read_batch(self, state: np.ndarray, number: int, seed: int) -> tuple[np.ndarray, ...]:
        calls, *integers = state.tolist()
        if number != calls and not self.source.is_stream:
            # The last call has failed, and somebody has ignored that; it would fail for ever.
            raise StopIteration
        position = positions.Position.from_integers(tuple(integers))
        if calls == 0:
            # A pass begins.
            position = position._replace(seed=seed & _MAX_SEED)
        # It is taken out, since another iterator may be at the same position.
        num_closings = self._num_closings
        cursor = self._cursors.pop(position, None)
        _open.remove(self, position)
        if cursor is None:
            cursor = self._read_from(position)
        try:
            batch, after = next(cursor)  # Its StopIteration ends the dataset.
        except errors.DataError as e:
            # Without the trace, which TensorFlow would print in front of it.
            raise errors.DataError(str(e)) from None
        if num_closings == self._num_closings:  # Otherwise the cursor goes, too.
            self._cursors[after] = cursor
            _open.add(self, after)
        new_state = np.array([calls + 1, *after.to_integers()], np.int64)
        return new_state, *self._layout.pack(batch)

    def _read_from(self, position: positions.Position) -> _Cursor:
        if not self.source.is_stream:
            return positions.read_batches(self.source, self._batching, position)
        # A stream makes its own batches: what it finds in a second reading comes in other chunks.
        chunks = self.source.read(position.place)
        return ((rows, position._replace(place=after)) for rows, after in chunks)


def _describe(batching: columns.Batching) -> str:
    # Without the seed, which a position brings along.
    return f"{batching.batch_size} {batching.drop_remainder} {batching.shuffle_rows}"


class _Open:
    """Which positions are stood at, in all datasets of the process.

    How many there are is limited, since nobody says when an iterator is not wanted any more. The
    one that has not been used for the longest time goes first.
    """

    def __init__(self, max_open: int) -> None:
        self._max_open = max_open
        self._is_at_exit = False
        self._num_calls = 0
        self._last_call_sec = -math.inf
        self._lock = threading.Lock()
        self._readings: collections.OrderedDict[Any, weakref.ref[Reading]] = (
            collections.OrderedDict()
        )

    def add(self, reading: "Reading", position: positions.Position) -> None:
        with self._lock:
            self._readings[id(reading), position] = weakref.ref(reading)
            if len(self._readings) <= self._max_open:
                return
            (_, oldest), reference = self._readings.popitem(last=False)
        if (found := reference()) is not None:
            found._cursors.pop(oldest, None)

    def remove(self, reading: "Reading", position: positions.Position) -> None:
        with self._lock:
            self._readings.pop((id(reading), position), None)

    @contextlib.contextmanager
    def count_call(self) -> Iterator[None]:
        """Surrounds what TensorFlow's threads do in Python."""
        if self._is_at_exit:
            # Not the end, which would be that of the data.
            raise RuntimeError("Python is about to exit.")
        with self._lock:
            self._num_calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_calls -= 1
                self._last_call_sec = time.monotonic()

    def close_at_exit(self) -> None:
        """Closes all files while Python can still do it.

        A thread that calls Python while Python ends never comes back, and whoever deletes its
        iterator then waits for ever. So threads that read ahead may do so until they have enough,
        and those that never have are refused.
        """
        self._wait_until_idle(_READ_AHEAD_SEC)
        self._is_at_exit = True
        sources.at_exit.set()
        self._wait_until_idle(_EXIT_SEC)
        with self._lock:
            readings = [reference() for reference in self._readings.values()]
        for reading in readings:
            if reading is not None:
                reading.close()

    def _wait_until_idle(self, timeout_sec: float) -> None:
        give_up_sec = time.monotonic() + timeout_sec
        while (now_sec := time.monotonic()) < give_up_sec:
            if not self._num_calls and now_sec >= self._last_call_sec + _NEXT_CALL_SEC:
                return
            time.sleep(_POLL_SEC)


_open = _Open(_MAX_OPEN)
atexit.register(_open.close_at_exit)


class _Seeds(dataset_ops.DatasetSource):
    """Endless random integers, others on each pass.

    How many passes there were is part of an iterator's state, so that the order of the pass after
    the saved one is the same, too.
    """

    def __init__(self, seed: int | None) -> None:
        self._name = None
        variant = gen_experimental_dataset_ops.random_dataset_v2(
            seed=tf.constant(seed or 0, tf.int64),
            seed2=tf.constant(0 if seed is None else _SECOND_SEED, tf.int64),
            # Names nothing, so that the dataset makes its own generator of seeds. Of all ops that
            # give a resource it is the one that one-shot iterators take.
            seed_generator=gen_experimental_dataset_ops.dummy_iteration_counter(),
            rerandomize_each_iteration=True,
            **self._common_args,
        )
        super().__init__(variant)

    @property
    def element_spec(self) -> tf.TensorSpec:
        return tf.TensorSpec([], tf.int64)


def _repeat_zero() -> tf.data.Dataset:
    """Returns endless zeros."""
    return tf.data.Dataset.from_tensors(tf.constant(0, tf.int64)).repeat()


class _Scan(dataset_ops.UnaryDataset):
    """`tf.data.Dataset.scan`, but the function can end the dataset."""

    def __init__(self, inputs: tf.data.Dataset, state: tf.Tensor, function: Any) -> None:
        self._name = None
        self._function = structured_function.StructuredFunctionWrapper(
            function,
            "monolith.data",
            input_structure=(tf.TensorSpec.from_tensor(state), inputs.element_spec),
        )
        variant = gen_experimental_dataset_ops.scan_dataset(
            inputs._variant_tensor,
            [state],
            self._function.function.captured_inputs,
            f=self._function.function,
            preserve_cardinality=False,
            **self._common_args,
        )
        super().__init__(inputs, variant)

    def _functions(self) -> list[Any]:
        return [self._function]

    @property
    def element_spec(self) -> Any:
        return self._function.output_structure[1]
