"""Streams: input that is still being written. Their batches are trained on as they come.

A batch is full, or what has come in `max_wait_sec` since its first row. The place behind each is
exact, so that a training that is killed and started again goes on behind the batch that its
checkpoint has seen.
"""

import abc
import dataclasses
import time
from collections.abc import Callable, Iterator

import tensorflow as tf

from monolith import errors
from monolith.data import columns, division, eager, record_formats, seekable, sources
from monolith.data.positions import Chunk, Place
from monolith.data.schema import Feature


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pace:
    """How long a stream is waited for.

    Attributes:
        batch_size: Rows of a batch at most.
        max_wait_sec: How long a batch that has rows waits for more.
        idle_timeout_sec: The stream ends when nothing has come for so long; None waits for ever.
        stop_file: The stream ends, when all is read, once this file exists.
    """

    batch_size: int = 512
    max_wait_sec: float = 1.0
    idle_timeout_sec: float | None = None
    stop_file: str | None = None

    def __post_init__(self) -> None:
        columns.Batching(batch_size=self.batch_size)
        if self.max_wait_sec < 0 or (self.idle_timeout_sec or 0) < 0:
            raise errors.ConfigError(
                f"A time to wait must not be negative, got max_wait_sec={self.max_wait_sec!r} and "
                f"idle_timeout_sec={self.idle_timeout_sec!r}; None waits for ever."
            )


class Stream(sources.Source):
    """Records that are decoded, in batches.

    Args:
        features: What the records become.
        codec: Decodes them.
        pace: How long they are waited for.
        clock: Seconds that only grow.
    """

    is_stream = True

    def __init__(
        self,
        features: tuple[Feature, ...],
        codec: record_formats.Codec,
        pace: Pace,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.features = features
        self.codec = codec
        self._pace = pace
        self._clock = clock
        self._num_ends = 0

    @abc.abstractmethod
    def open(self, place: Place, part: division.Part) -> "Records":
        """Returns what reads the records from a place on."""

    def read(self, place: Place) -> Iterator[Chunk]:
        return self.read_part(place, division.Part(0, of=1))

    def read_part(self, place: Place, part: division.Part) -> Iterator[Chunk]:
        """Yields the batches of one worker."""
        records = self.open(place, part)
        try:
            while (batch := self._collect(records)) is not None:
                rows = self.codec.decode(batch)
                if columns.num_rows(rows):
                    yield rows, records.get_place()
                    records.acknowledge()
        finally:
            records.close()

    def make_layout(self, rows: int | None) -> columns.Layout:
        return columns.FeatureLayout(self.features, rows)

    def end_waits(self) -> None:
        self._num_ends += 1

    def _collect(self, records: "Records") -> list[bytes] | None:
        """Returns the records of a batch, None at the end."""
        pace, found = self._pace, list[bytes]()
        last_sec = self._clock()
        first_sec, num_ends = last_sec, self._num_ends
        while len(found) < pace.batch_size:
            # Asked before reading: what was written before the stop file is read.
            is_stopped = pace.stop_file is not None and tf.io.gfile.exists(pace.stop_file)
            more = records.poll(pace.batch_size - len(found))
            now_sec = self._clock()
            if more:
                first_sec = first_sec if found else now_sec
                last_sec = now_sec
                found += more
                continue
            if found and now_sec - first_sec >= pace.max_wait_sec:
                return found
            timeout_sec = pace.idle_timeout_sec
            if is_stopped and records.is_at_end():
                return found + records.take_rest() or None
            if timeout_sec is not None and now_sec - last_sec >= timeout_sec:
                return found or None
            if self._num_ends != num_ends:
                return None  # Nobody wants what has come so far either.
            if sources.at_exit.is_set():
                raise RuntimeError("Python is about to exit.")
        return found


class Records(abc.ABC):
    """Reads the records of a stream from a place on."""

    @abc.abstractmethod
    def poll(self, most: int) -> list[bytes]:
        """Returns the next records; none if there are none after a short wait."""

    @abc.abstractmethod
    def get_place(self) -> Place:
        """Returns the place behind the last record."""

    def is_at_end(self) -> bool:
        """Returns whether everything is read that was written before this call."""
        return True

    def take_rest(self) -> list[bytes]:
        """Returns what has no end, once everything is read and nobody writes any more."""
        return []

    def acknowledge(self) -> None:  # noqa: B027 - most have nobody to tell
        """Says that somebody has asked for what comes behind the place."""

    def close(self) -> None:  # noqa: B027 - most have nothing open
        """Ends reading."""


class StreamReader:
    """A stream as batches; `tail` and `kafka` make one.

    Called, it gives a `tf.data.Dataset` in whatever graph is current; in a loop, the batches. Its
    datasets save their position with a checkpoint.
    """

    def __init__(self, stream: Stream, text: str) -> None:
        self._stream = stream
        self._text = text

    @property
    def schema(self) -> tuple[Feature, ...]:
        """What records become."""
        return self._stream.features

    @property
    def num_skipped(self) -> int:
        """How many records this process has skipped, since they could not be read."""
        return self._stream.codec.num_skipped

    def __call__(self) -> tf.data.Dataset:
        """Returns a dataset of dicts with the names of the schema, in the current graph."""
        part = division.take_part()
        source = self._stream if part.of == 1 else _Part(self._stream, part)
        return seekable.make_dataset(source, columns.Batching())

    def __iter__(self) -> Iterator[eager.Batch]:
        """Yields the batches, in eager mode.

        Raises:
            errors.DataError: A record cannot be read and is to be refused, or the stream is gone.
            errors.ConfigError: This is a graph.
        """
        return eager.iterate(self._stream, columns.Batching(), "A stream")

    def __repr__(self) -> str:
        return f"monolith.data.{self._text}"


class _Part(sources.Source):
    """What one worker of several reads of a stream."""

    is_stream = True

    def __init__(self, stream: Stream, part: division.Part) -> None:
        self.start = stream.start
        self._stream = stream
        self._part = part

    def read(self, place: Place) -> Iterator[Chunk]:
        return self._stream.read_part(place, self._part)

    def describe(self) -> str:
        return f"{self._stream.describe()} part {self._part.index} of {self._part.of}"

    def make_layout(self, rows: int | None) -> columns.Layout:
        return self._stream.make_layout(rows)

    def end_waits(self) -> None:
        self._stream.end_waits()
