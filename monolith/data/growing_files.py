"""Files that grow, as a stream: new records are read as they are written, new files in order.

Files are read in the order of their names, as `clicks-0001.jsonl`. A file is at its end when there
is a later one. A process that is started again goes on where its checkpoint has seen the stream,
even if files that were read are gone. What is written where nobody reads any more, gives a warning,
and its bytes are counted.

Example:
    >>> import pathlib
    >>> from monolith.data.schema import Ids, Label
    >>> log = pathlib.Path("clicks-1.jsonl")
    >>> _ = log.write_text('{"user": 7, "click": 1}\\n{"user": 8, "click": 0}\\n{"user":')
    >>> stream = tail("clicks-*.jsonl", [Ids("user"), Label("click")], idle_timeout_sec=0)
    >>> for batch in stream:
    ...     print(batch["user"].to_list(), batch["click"].numpy())
    [[7], [8]] [1. 0.]
"""

import bisect
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.core import metrics
from monolith.data import division, framing, record_formats, sources, streams
from monolith.data.positions import Place
from monolith.data.schema import Feature, check_schema

logger = logging.getLogger(__name__)

_MAX_PATH_BYTES = 1024
_READ_BYTES = 1 << 20
_POLL_SEC = 0.05
_WARN_EVERY_SEC = 60.0
# How often files that were passed are looked at, and how many of them, the last ones, for growth.
_LOOK_BACK_SEC = 10.0
_MAX_LOOK_BACK = 16
# Of a text; longer ones are damaged, and would be read for ever.
_MAX_LINE_BYTES = 1 << 26


def tail(
    paths: str | os.PathLike[str],
    schema: Iterable[Feature],
    *,
    format: str = "json",
    framing: framing.Framing | None = None,
    batch_size: int = 512,
    max_wait_sec: float = 1.0,
    idle_timeout_sec: float | None = None,
    stop_file: str | os.PathLike[str] | None = None,
    refuse_damaged: bool = False,
) -> streams.StreamReader:
    """Reads files that grow.

    Args:
        paths: A path or a pattern; files that match it later are read, too.
        schema: What to read, and as what.
        format: What a record is: `json`, `tf_example`, `example` or `instance`.
        framing: What stands before each record. Only JSON has none: there, a line is a record.
        batch_size: Rows of a batch at most.
        max_wait_sec: How long a batch that has rows waits for more.
        idle_timeout_sec: The stream ends when nothing has come for so long; None waits for ever. A
            line whose end has not come is not read.
        stop_file: The stream ends, when all is read, once this file exists. Nobody writes then, so
            that what is behind the last end of a line is a record, too.
        refuse_damaged: Whether a record that cannot be read is an error; otherwise it is skipped
            and counted.

    Raises:
        errors.ConfigError: The arguments contradict themselves.
    """
    if (framing is None) != (format == "json"):
        raise errors.ConfigError(
            f"Records of format {format!r} "
            + (
                "need a framing that says where each begins, as in framing=Framing()."
                if framing is None
                else "are lines; leave out the framing."
            )
        )
    pattern = os.fspath(paths)
    if pattern.endswith(".gz"):
        raise errors.ConfigError(f"{pattern!r} is compressed; a stream reads plain files.")
    features = check_schema(schema)
    pace = streams.Pace(
        batch_size=batch_size,
        max_wait_sec=max_wait_sec,
        idle_timeout_sec=idle_timeout_sec,
        stop_file=None if stop_file is None else os.fspath(stop_file),
    )
    codec = record_formats.Codec(format, features, refuse_damaged)
    text = f"tail({pattern!r}, {list(features)}, format={format!r}, batch_size={batch_size})"
    return streams.StreamReader(GrowingFiles(pattern, framing, features, codec, pace), text)


class GrowingFiles(streams.Stream):
    """The records of files that grow.

    A place is the offset in a file, and the file's path as integers.

    Args:
        pattern: A path or a pattern.
        framed: What stands before each record; None for lines.
        features: What the records become.
        codec: Decodes them.
        pace: How long they are waited for.
    """

    start = (0,) * (1 + _MAX_PATH_BYTES // 8)

    def __init__(
        self,
        pattern: str,
        framed: framing.Framing | None,
        features: tuple[Feature, ...],
        codec: record_formats.Codec,
        pace: streams.Pace,
    ) -> None:
        super().__init__(features, codec, pace)
        self._pattern = pattern
        self._framing = framed

    def open(self, place: Place, part: division.Part) -> streams.Records:
        return _Tail(self._pattern, self._framing, place, part, self.codec.skip)

    def describe(self) -> str:
        # How long a stream is waited for, and how many of its rows make a batch, may change.
        return f"GrowingFiles {self._pattern} {self._framing} {self.features}"


class _Tail(streams.Records):
    def __init__(
        self,
        pattern: str,
        framed: framing.Framing | None,
        place: Place,
        part: division.Part,
        skip: Callable[[int, str], None],
    ) -> None:
        self._pattern = pattern
        self._framing = framed
        self._part = part
        self._skip = skip
        self._offset = place[0]  # Behind the last record that was returned.
        self._path = _decode_path(place[1:])
        self._buffer = b""  # What is there behind it.
        self._start = 0  # Of that, how much is read.
        self._size: int | None = None  # Of the file, when it was seen last.
        self._is_gone = False
        self._half_record_at: int | None = None  # Where one was counted.
        self._passed = _Passed()
        self._look_back_at_sec = time.monotonic()
        self._has_matched = bool(self._path)
        self._warn_at_sec = time.monotonic()

    def poll(self, most: int) -> list[bytes]:
        while True:
            # Before reading: what was written before the next file was made, is read.
            later = self._find_later()
            found: list[bytes] = []
            while self._path and len(found) < most:
                if (record := self._next_record(is_last=False)) is not None:
                    found.append(record)
                elif not self._fill():
                    break
            if found:
                return found
            if later is None:
                sources.at_exit.wait(_POLL_SEC)
                return []
            if last := self.take_rest():
                return last
            self._go_to(later)

    def take_rest(self) -> list[bytes]:
        if not self._path:
            return []
        if self._framing is not None:
            self._skip_half_record()
            return []
        # A line without an end is one where nothing follows.
        last = self._next_record(is_last=True)
        return [] if last is None else [last]

    def get_place(self) -> Place:
        return self._offset, *_encode_path(self._path)

    def _find_later(self) -> str | None:
        """Returns the next file of this worker, None if there is none yet."""
        names = sorted(path.removeprefix("./") for path in tf.io.gfile.glob(self._pattern))
        self._has_matched = self._has_matched or bool(names)
        if not self._has_matched and time.monotonic() >= self._warn_at_sec:
            logger.warning("no file matches %r yet; one is waited for", self._pattern)
            self._warn_at_sec += _WARN_EVERY_SEC
        if time.monotonic() >= self._look_back_at_sec:
            before = names[: bisect.bisect_left(names, self._path)]
            self._passed.look_at([path for path in before if self._is_mine(path)])
            self._look_back_at_sec = time.monotonic() + _LOOK_BACK_SEC
        later = names[bisect.bisect_right(names, self._path) :]
        return next((path for path in later if self._is_mine(path)), None)

    def _is_mine(self, path: str) -> bool:
        return zlib.crc32(path.encode()) % self._part.of == self._part.index

    def _go_to(self, path: str) -> None:
        _encode_path(path)  # Refuses one that is too long.
        if self._path:
            self._passed.add(self._path, self._count_behind())
        self._path, self._offset, self._buffer, self._start = path, 0, b"", 0
        self._size, self._is_gone, self._half_record_at = None, False, None

    def _count_behind(self) -> int:
        """Returns up to which byte the file is in the buffer."""
        return self._offset + len(self._buffer) - self._start

    def _skip_half_record(self) -> None:
        """Counts what a file ends with that is no whole record."""
        rest = len(self._buffer) - self._start
        if rest and self._half_record_at != self._offset:
            self._half_record_at = self._offset
            self._skip(
                1,
                f"{self._path!r} ends in the middle of a record, {rest} bytes behind byte "
                f"{self._offset}.",
            )

    def _note_gone(self) -> None:
        if self._is_gone:
            return
        self._is_gone = True
        behind = self._count_behind()
        if self._size is None:
            logger.warning(
                "%r is gone, of which %d bytes were read before; if it had more, they are lost",
                self._path,
                behind,
            )
        elif self._size > behind:
            _count_unread(self._size - behind)
            logger.warning(
                "%r is gone, and %d of its bytes were not read; delete a file only once there is a "
                "later one and the stream has gone on to that",
                self._path,
                self._size - behind,
            )

    def _fill(self) -> bool:
        """Reads more of the file; returns whether there was more."""
        if not tf.io.gfile.exists(self._path):
            self._note_gone()
            return False  # Nothing more comes.
        behind = self._count_behind()
        size = self._size = tf.io.gfile.stat(self._path).length
        if size < self._offset:
            raise errors.DataError(
                f"{self._path!r} has {size} bytes, but {self._offset} of it were read; files of a "
                "stream only grow. Write to a new file, or read it from the beginning."
            )
        if size <= behind:
            return False
        # Opened anew, since an open one may not see what was written behind it.
        with tf.io.gfile.GFile(self._path, "rb") as file:
            file.seek(behind)
            content = file.read(min(size - behind, _READ_BYTES))
        self._buffer = self._buffer[self._start :] + content
        self._start = 0
        return bool(content)

    def _next_record(self, is_last: bool) -> bytes | None:
        if self._framing is not None:
            return self._next_framed(self._framing)
        while True:
            end = self._buffer.find(b"\n", self._start)
            if end < 0 and is_last:
                end = len(self._buffer)
            if end < 0 or end == self._start == len(self._buffer):
                if len(self._buffer) - self._start > _MAX_LINE_BYTES:
                    raise errors.DataError(
                        f"{self._path!r} has no end of a line for {_MAX_LINE_BYTES} bytes behind "
                        f"byte {self._offset}; a stream of JSON has one object per line."
                    )
                return None
            record = self._buffer[self._start : end]
            behind = min(end + 1, len(self._buffer))
            self._offset += behind - self._start
            self._start = behind
            if record.strip():  # Empty lines are no records.
                return record

    def _next_framed(self, framed: framing.Framing) -> bytes | None:
        try:
            found = framed.read_tail(self._buffer, self._start)
        except errors.DataError as e:
            raise errors.DataError(
                f"{self._path!r}, byte {self._offset}: {e}; check which header its records have "
                f"({framed})."
            ) from None
        if found is None:
            return None
        record, behind = found
        self._offset += behind - self._start
        self._start = behind
        return record


class _Passed:
    """Files that a stream has gone on from: nobody reads what is written into them now."""

    def __init__(self) -> None:
        self._known: set[str] | None = None  # None as long as nobody has looked.
        self._sizes: dict[str, int] = {}  # Of the last ones.
        self._warned: set[str] = set()

    def add(self, path: str, num_read: int) -> None:
        """Takes a file that was read up to a byte."""
        if self._known is not None:
            self._known.add(path)
        self._sizes[path] = num_read

    def look_at(self, paths: Sequence[str]) -> None:
        """Counts what was written since the last call, and warns once for each file.

        Args:
            paths: All that are there, in the order of their names. What is there already when the
                first call is made, may have been read by a process before.
        """
        last = paths[-_MAX_LOOK_BACK:]
        sizes = {path: _find_size(path) for path in last}
        for path in paths:
            is_new = self._known is not None and path not in self._known
            if is_new and path not in sizes:
                sizes[path] = _find_size(path)
            before = 0 if is_new else self._sizes.get(path)
            if before is not None and sizes.get(path, 0) > before:
                self._report(path, sizes[path] - before)
        self._known = set(paths)
        self._sizes = {path: sizes[path] for path in last}
        self._warned &= self._known

    def _report(self, path: str, num_bytes: int) -> None:
        _count_unread(num_bytes)
        if path in self._warned:
            return
        self._warned.add(path)
        logger.warning(
            "%d bytes of %r are not read: they were written after the stream had gone on to a file "
            "with a later name; write to the file with the last name only",
            num_bytes,
            path,
        )


def _find_size(path: str) -> int:
    """Returns how many bytes a file has, 0 if it is gone."""
    try:
        return int(tf.io.gfile.stat(path).length)
    except tf.errors.NotFoundError:
        return 0


def _count_unread(num_bytes: int) -> None:
    metrics.get_cli().emit_counter("data_bytes_unread", num_bytes)


def _encode_path(path: str) -> Place:
    encoded = path.encode()
    if len(encoded) > _MAX_PATH_BYTES:
        raise errors.DataError(
            f"The path of a file has {len(encoded)} bytes, but a position holds "
            f"{_MAX_PATH_BYTES}; read it from a nearer directory: {path!r}."
        )
    words = np.frombuffer(encoded.ljust(_MAX_PATH_BYTES, b"\0"), "<i8")
    return tuple(words.tolist())


def _decode_path(place: Place) -> str:
    return np.array(place, "<i8").tobytes().rstrip(b"\0").decode()
