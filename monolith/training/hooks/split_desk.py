"""Handing out the splits of an input: the chief's desk, and the workers that come to it.

They talk through small files in `<model_dir>/members/splits`, each with one writer: the chief's
board says who was given which splits, and each worker's slip how many it wants and which it has
trained. Nothing is lost with a process: a worker that dies leaves its slip, and its unfinished
splits go to others. A chief that begins anew goes on with the board if the servers have kept all
that was trained since; if not, it starts with what the checkpoint says is finished, and an epoch of
its own, so that nobody takes the old board for the new one.

Example:
    >>> import tempfile
    >>> model_dir = tempfile.mkdtemp()
    >>> desk = SplitDesk(model_dir, num_workers=2, is_gone=lambda worker: False)
    >>> desk.begin(["monday", "tuesday"], finished=["monday"])
    >>> taker = SplitTaker(model_dir, 1)
    >>> taker.announce(["monday", "tuesday"])
    >>> with desk.serving():
    ...     taken = taker.take()
    ...     taker.count()  # A batch of it comes out of the pipeline, and is all of it.
    ...     none_left = taker.take()
    ...     taker.note_step()
    ...     taker.note_pushed()
    ...     desk.serve()
    >>> taken, none_left, desk.finished
    (1, None, ['monday', 'tuesday'])
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.lib.io import file_io

from monolith import errors
from monolith.cluster import members

logger = logging.getLogger(__name__)

# Read when it is used, so that tests can shorten it.
POLL_SEC = 0.3

_BOARD = "board.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Slip:
    """What a worker says.

    Attributes:
        epoch: Of the board that it answers.
        session: Another one whenever the worker begins anew.
        wanted: How many splits it has asked for in this session.
        done: Which of them are trained.
        before: The same of its earlier sessions in this epoch.
    """

    epoch: str
    session: str
    wanted: int = 0
    done: list[int] = dataclasses.field(default_factory=list)
    before: dict[str, list[int]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True)
class _Given:
    """What the chief has given to a session of a worker, and whether there will be no more."""

    session: str
    splits: list[int] = dataclasses.field(default_factory=list)
    is_over: bool = False


class SplitTaker:
    """Takes splits for one worker, and says which of them are trained.

    Batches leave the pipeline in the order in which steps train them, so a split is trained when as
    many steps are done as batches had come out when its reading ended.

    Args:
        model_dir: The directory that all members share.
        index: Which worker this is.
        check: Raises if there is no chief to wait for.
        is_stopping: Whether the input is to end now.
    """

    def __init__(
        self,
        model_dir: str,
        index: int,
        *,
        check: Callable[[], None] = lambda: None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._directory = _get_directory(model_dir)
        self._index = index
        self._check = check
        self._is_stopping = is_stopping
        self._is_closed = False
        self._files: list[str] = []
        self._lock = threading.Lock()
        self._slip = _Slip(epoch="", session="")
        self._current: int | None = None
        # Splits that are read, with how many batches had come out by then.
        self._read: list[tuple[int, int]] = []
        self._num_batches = 0
        self._num_steps = 0

    @property
    def files(self) -> list[str]:
        """The splits, as the input says."""
        return self._files

    def announce(self, files: Sequence[str]) -> None:
        """Is told which splits there are, when the input is built."""
        self._files = list(files)

    def take(self) -> int | None:
        """Returns the number of the next split, None if there is none; waits for the chief.

        Raises:
            errors.ConfigError: The chief sees other files.
            RuntimeError: The session has ended.
        """
        with self._lock:
            if self._current is not None:
                self._read.append((self._current, self._num_batches))
                self._current = None
        has_asked = False
        while True:
            if self._is_closed:
                raise RuntimeError("The session of this input has ended.")
            if self._is_stopping():
                return None
            self._check()
            board = _read_json(os.path.join(self._directory, _BOARD))
            if board is not None:
                with self._lock:
                    if board["epoch"] != self._slip.epoch:
                        self._begin(board)
                        has_asked = False
                    if not has_asked:
                        self._write(wanted=self._slip.wanted + 1)
                        has_asked = True
                    given = _Given(**board["given"].get(str(self._index), {"session": ""}))
                    if given.session == self._slip.session:
                        if len(given.splits) >= self._slip.wanted:
                            self._current = given.splits[self._slip.wanted - 1]
                            return self._current
                        if given.is_over:
                            return None
            time.sleep(POLL_SEC)

    def count(self) -> None:
        """Is told that a batch has come out of the pipeline."""
        with self._lock:
            self._num_batches += 1

    def note_step(self) -> None:
        """Is told that a step is done; its gradients may be pushed by the next one."""
        self._num_steps += 1
        self._report(self._num_steps - 1)

    def note_pushed(self) -> None:
        """Is told that the gradients of all steps are pushed."""
        self._report(self._num_steps)

    def close(self) -> None:
        """Lets nobody wait any more."""
        self._is_closed = True

    def _begin(self, board: dict[str, Any]) -> None:
        if board["files"] != _digest(self._files):
            raise errors.ConfigError(
                f"Worker {self._index} finds {len(self._files)} input files, which are not the "
                f"{board['num_files']} that the chief finds; all workers must see the same files, "
                "under the same names and in the same order."
            )
        path = _get_slip_path(self._directory, self._index)
        last = _read_slip(path)
        before: dict[str, list[int]] = {}
        if last is not None and last.epoch == board["epoch"]:
            before = {**last.before, last.session: last.done}
        # What was read before belongs to a model that is not there any more.
        self._read = []
        self._slip = _Slip(epoch=board["epoch"], session=uuid.uuid4().hex, before=before)

    def _report(self, num_trained: int) -> None:
        with self._lock:
            done = [split for split, end in self._read if end <= num_trained]
            if done:
                self._read = [(split, end) for split, end in self._read if end > num_trained]
                self._write(done=[*self._slip.done, *done])

    def _write(self, **changes: Any) -> None:
        self._slip = dataclasses.replace(self._slip, **changes)
        path = _get_slip_path(self._directory, self._index)
        _write_json(path, dataclasses.asdict(self._slip))


class SplitDesk:
    """Gives splits to workers that want some, in the process of the chief.

    A worker for which nothing is left is told so, and ends. Only the chief stays until all others
    are done: it takes over what dead workers leave behind.

    Args:
        model_dir: The directory that all members share.
        num_workers: How many workers there are, the chief included.
        is_gone: Whether a worker is dead or has left.
    """

    def __init__(self, model_dir: str, num_workers: int, is_gone: Callable[[int], bool]) -> None:
        self._directory = _get_directory(model_dir)
        self._num_workers = num_workers
        self._is_gone = is_gone
        self._lock = threading.Lock()
        self._epoch = ""
        self._files: list[str] = []
        self._free: collections.deque[int] = collections.deque()
        self._done: set[int] = set()
        self._given: dict[int, _Given] = {}
        self._servers: dict[str, str] | None = None

    @property
    def finished(self) -> list[str]:
        """The splits that are trained."""
        with self._lock:
            return [self._files[number] for number in sorted(self._done)]

    def begin(
        self,
        files: Sequence[str],
        finished: Sequence[str],
        servers: Mapping[str, str] | None = None,
    ) -> None:
        """Begins an epoch: the model is as some checkpoint has it.

        Args:
            files: All splits.
            finished: Those that were trained before the checkpoint; if that is all, everything is
                given out again.
            servers: What tells the processes apart that keep what is trained from now on, for
                `resume`; None if nobody does.
        """
        with self._lock:
            self._epoch = uuid.uuid4().hex
            self._servers = None if servers is None else dict(servers)
            self._files = list(files)
            self._done = {number for number, file in enumerate(files) if file in set(finished)}
            if len(self._done) == len(files):
                self._done = set()
            self._free = collections.deque(n for n in range(len(files)) if n not in self._done)
            self._given = {}
            logger.info("%d of %d input files are to be read", len(self._free), len(files))
            self._write()

    def resume(self, files: Sequence[str], servers: Mapping[str, str]) -> bool:
        """Goes on with the epoch of the chief before this one, if the model has all of it.

        Args:
            files: All splits.
            servers: Who has the model.

        Returns:
            Whether it does: these servers have the model since that epoch began, the splits are the
            same, and some are left.
        """
        board = _read_json(os.path.join(self._directory, _BOARD))
        if board is None or board.get("servers") != servers or board["files"] != _digest(files):
            return False
        done = set(board["done"])
        if len(done) == len(files):
            return False
        with self._lock:
            self._epoch = board["epoch"]
            self._servers = dict(servers)
            self._files = list(files)
            self._done = done
            self._given = {int(index): _Given(**given) for index, given in board["given"].items()}
            taken = {number for given in self._given.values() for number in given.splits}
            self._free = collections.deque(n for n in range(len(files)) if n not in done | taken)
            logger.info(
                "%d of %d input files are still to be read", len(files) - len(done), len(files)
            )
        return True

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serves during a block, from a thread."""
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(stop,), name="SplitDesk", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def serve(self) -> None:
        """Reads all slips once, and gives what is wanted."""
        with self._lock:
            if not self._epoch:
                return
            before = self._describe()
            slips = {index: self._read(index) for index in range(self._num_workers)}
            for index, slip in slips.items():
                if slip is not None:
                    self._take_note(index, slip)
            for index in sorted(self._given):
                if self._list_open(index) and self._is_gone(index):
                    self._take_back(index)
            # The chief last: it must know what the others have.
            for index in sorted(slips, reverse=True):
                slip = slips[index]
                if slip is not None and index in self._given:
                    self._give(index, slip.wanted)
            if before != self._describe():
                self._write()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(POLL_SEC):
            try:
                self.serve()
            except Exception:
                logger.exception("no splits could be given; trying again")

    def _read(self, index: int) -> _Slip | None:
        slip = _read_slip(_get_slip_path(self._directory, index))
        return slip if slip is not None and slip.epoch == self._epoch else None

    def _take_note(self, index: int, slip: _Slip) -> None:
        given = self._given.get(index)
        if given is not None:
            is_same = given.session == slip.session
            done = slip.done if is_same else slip.before.get(given.session, [])
            self._done.update(set(done) & set(given.splits))
            if not is_same:
                self._take_back(index)
                given = None
        if given is None:
            self._given[index] = _Given(session=slip.session)

    def _take_back(self, index: int) -> None:
        unfinished = self._list_open(index)
        if unfinished:
            logger.warning(
                "worker %d has not finished %d input files, which are given again: %s",
                index,
                len(unfinished),
                ", ".join(self._files[number] for number in unfinished[:3]),
            )
        self._free.extendleft(reversed(unfinished))
        del self._given[index]

    def _give(self, index: int, wanted: int) -> None:
        given = self._given[index]
        while len(given.splits) < wanted and self._free:
            given.splits.append(self._free.popleft())
        if len(given.splits) < wanted and not given.is_over:
            others = [i for i in self._given if i != index and self._list_open(i)]
            given.is_over = index != 0 or not others

    def _list_open(self, index: int) -> list[int]:
        return [number for number in self._given[index].splits if number not in self._done]

    def _describe(self) -> dict[str, Any]:
        """Returns what is on the board."""
        return {
            "epoch": self._epoch,
            "servers": self._servers,
            "files": _digest(self._files),
            "num_files": len(self._files),
            "done": sorted(self._done),
            "given": {str(i): dataclasses.asdict(given) for i, given in self._given.items()},
        }

    def _write(self) -> None:
        _write_json(os.path.join(self._directory, _BOARD), self._describe())


def _get_directory(model_dir: str) -> str:
    return os.path.join(model_dir, members.DIRECTORY, "splits")


def _get_slip_path(directory: str, index: int) -> str:
    return os.path.join(directory, f"worker-{index}.json")


def _digest(files: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(files).encode()).hexdigest()


def _read_slip(path: str) -> _Slip | None:
    values = _read_json(path)
    return None if values is None else _Slip(**values)


def _read_json(path: str) -> Any:
    try:
        return json.loads(file_io.read_file_to_string(path))
    except (tf.errors.OpError, OSError, ValueError):
        return None  # Not there yet, or being replaced where that takes a moment.


def _write_json(path: str, values: Any) -> None:
    tf.io.gfile.makedirs(os.path.dirname(path))
    file_io.atomic_write_string_to_file(path, json.dumps(values))
