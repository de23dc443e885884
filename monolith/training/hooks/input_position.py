"""How far an input has been read: written with a checkpoint, and gone back to with it.

A position is one file. It holds the state of the iterators, with the batches that they have given
and that nobody has trained on yet, and says which input they read (see `monolith.data.identity`),
because it means something for that input only. So an input that was not read to its end goes on
there, and any other one, or one that was, starts at its beginning. The input of a rank that keeps
others company never ends by itself; of such a one, somebody says when it was read to its end. If it
is noted in the graph which epoch the input is (`epochs`), the position says that, too.

A stream whose next batch is waited for has a position, too: the one before that batch. If the batch
comes at the very moment of the save, it may count twice after a restart, but never be missing.

Example:
    >>> import tempfile
    >>> def read_two(path):
    ...     with tf.Graph().as_default():
    ...         dataset = tf.data.Dataset.range(4)
    ...         iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    ...         element, position = iterator.get_next(), InputPosition()
    ...         with tf.compat.v1.Session() as session:
    ...             session.run(iterator.initializer)
    ...             found = position.restore(session, path)
    ...             elements = [int(session.run(element)) for _ in range(2)]
    ...             _ = position.save(session, path)
    ...             return elements, found.name
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     [read_two(f"{directory}/position") for _ in range(3)]
    [([0, 1], 'NOTHING'), ([2, 3], 'UNFINISHED'), ([0, 1], 'FINISHED')]
"""

import contextlib
import enum
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.python.data.ops import iterator_ops

from monolith.data import identity
from monolith.tensor import look_ahead
from monolith.training.hooks import epochs
from monolith.training.hooks.epochs import Epoch

logger = logging.getLogger(__name__)

_FORMAT = 1
_GET_NEXT = ("IteratorGetNext", "IteratorGetNextSync")
# A read of a stream that takes longer than that waits for the next batch.
_STREAM_HOLD_SEC = 0.5
# How often a position is read again because a batch has come meanwhile.
_MAX_ATTEMPTS = 3


class Found(enum.Enum):
    """What a saved position has turned out to be; only from the first kind reading goes on.

    The values say it of the checkpoint that the position belongs to.
    """

    UNFINISHED = "was saved before its end"
    FINISHED = "was saved after its last batch"
    OTHER_INPUT = "was saved with another input, or files of it have changed since"
    NOTHING = "has no position of it"
    UNREADABLE = "has a position of it that cannot be restored"


class InputPosition:
    """The input of the default graph, which must be complete; without iterators it is empty.

    Args:
        has_ended: Whether an input that repeats its last batch forever counts as read to its end;
            None for one that ends.
    """

    def __init__(self, has_ended: Callable[[], bool] | None = None) -> None:
        self._has_ended = has_ended
        iterators = [
            _Iterator(resource)
            for resource in tf.compat.v1.get_collection(iterator_ops.GLOBAL_ITERATORS)
        ]
        self._iterators = iterators
        self._look_aheads = look_ahead.get_hooks()
        self._identity: str | None = None
        self._why_unknown = ""
        self._can_be_saved = True
        self._epoch = epochs.get_noted()
        try:
            if any(iterator.dataset is None for iterator in iterators):
                raise identity.UnknownInputError("one of its iterators has no dataset in the graph")
            self._identity = identity.identify([i.dataset for i in iterators if i.is_known])
        except identity.UnknownInputError as error:
            self._why_unknown = str(error)
        if self.is_stream and self._look_aheads:
            # Of queues that are filled one from another, the first one reads the input.
            self._look_aheads[0].note_positions(self._try_to_read_states)

    @property
    def is_stream(self) -> bool:
        """Whether the input may go on after its end."""
        return self._identity is not None and self._identity.startswith(identity.STREAM)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that has a position."""
        return not self._iterators

    @property
    def why_unknown(self) -> str:
        """Why the input cannot be told from others; empty if it can be."""
        return self._why_unknown

    def save(self, session: tf.compat.v1.Session, path: str) -> bool:
        """Writes the position; returns False if there is none that could be gone back to.

        Raises:
            tf.errors.OpError: The file cannot be written.
        """
        if self.is_empty or self._identity is None or not self._can_be_saved:
            return False
        if self._has_ended is not None and self._has_ended():
            _write(path, self._identity, [], [], self._epoch)  # There is no place to go on from.
            return True
        found = self._read_position(session)
        for _ in range(_MAX_ATTEMPTS - 1):
            if found is None or not found.may_be_late:
                break
            found = self._read_position(session)
        if found is None:
            return False
        states, ahead, _ = found
        tensors = [tensor for batches in ahead for batch in batches for tensor in batch]
        parts = [*states, *[tf.make_tensor_proto(t).SerializeToString() for t in tensors]]
        _write(path, self._identity, [len(batches) for batches in ahead], parts, self._epoch)
        return True

    def restore(self, session: tf.compat.v1.Session, path: str) -> Found:
        """Goes to a saved position, if it is one inside this input.

        The iterators must be initialized. If it is none, they are at the beginning afterwards.

        Args:
            session: Where the iterators are.
            path: What `save` has written, or nothing.
        """
        if self.is_empty or self._identity is None or not tf.io.gfile.exists(path):
            return Found.NOTHING
        try:
            saved = _read(path)
            found = self._go_to_saved(session, saved)
        except (tf.errors.OpError, ValueError, KeyError) as error:
            logger.warning("%s is of no use: %s", path, _get_reason(error))
            self._start_over(session)
            return Found.UNREADABLE
        if found is not Found.OTHER_INPUT and self._epoch is not None and saved.epoch is not None:
            total, is_over = self._epoch.total, found is Found.FINISHED
            number = epochs.go_on(saved.epoch, is_over=is_over, total=total)
            self._epoch = Epoch(number, total)
        return found

    def _go_to_saved(self, session: tf.compat.v1.Session, saved: "_Saved") -> Found:
        if saved.input != self._identity:
            return Found.OTHER_INPUT
        if not saved.parts:
            return Found.FINISHED
        states = saved.parts[: len(self._iterators)]
        self._go_to(session, states)
        if any(saved.num_ahead):
            self._fill(session, saved.num_ahead, saved.parts[len(self._iterators) :])
            return Found.UNFINISHED
        if self.is_stream:
            # What was its end may be none any more, and to look for a batch is to wait for it.
            return Found.UNFINISHED
        if self._is_at_end(session):
            self._start_over(session)
            return Found.FINISHED
        # Once more: to see whether there is a batch, one was read.
        self._go_to(session, states)
        return Found.UNFINISHED

    def _read_position(self, session: tf.compat.v1.Session) -> "_Position | None":
        """Returns where the input stands, and what is read ahead; None if that cannot be told."""
        with contextlib.ExitStack() as stack:
            timeout_sec = _STREAM_HOLD_SEC if self.is_stream else None
            reading = [
                hook
                for hook in self._look_aheads
                if not stack.enter_context(hook.held(timeout_sec))
            ]
            if reading and not self.is_stream:
                logger.warning("the input has no position to save: it waits for a batch")
                return None
            # Before the queues: a batch that comes meanwhile is then told twice, not left out.
            if reading and reading[0] is self._look_aheads[0]:
                states = reading[0].position_before_read
            else:
                states = self._try_to_read_states(session)
            if states is None:
                return None
            ahead = [hook.read(session) for hook in self._look_aheads]
            return _Position(states, ahead, not all(hook.is_reading() for hook in reading))

    def _try_to_read_states(self, session: tf.compat.v1.Session) -> list[bytes] | None:
        """Returns the states of the iterators; None if TensorFlow cannot save them."""
        if not self._can_be_saved:
            return None
        try:
            return list(session.run([iterator.state for iterator in self._iterators]))
        except tf.errors.UnimplementedError as error:
            logger.warning(
                "a training that starts again reads its input from the beginning, since it has "
                "no position to save: %s",
                _get_reason(error),
            )
            self._can_be_saved = False  # Said once, and not tried again.
            return None

    def _go_to(self, session: tf.compat.v1.Session, states: Sequence[bytes]) -> None:
        feeds = {i.new_state: s for i, s in zip(self._iterators, states, strict=True)}
        session.run([iterator.set_state for iterator in self._iterators], feeds)

    def _fill(
        self, session: tf.compat.v1.Session, num_ahead: Sequence[int], tensors: Sequence[bytes]
    ) -> None:
        """Puts batches that were read ahead back into their queues."""
        values = iter([tf.make_ndarray(tensor_pb2.TensorProto.FromString(t)) for t in tensors])
        for hook, count in zip(self._look_aheads, num_ahead, strict=True):
            hook.fill(
                session,
                [list(itertools.islice(values, hook.num_tensors)) for _ in range(count)],
            )
        if next(values, None) is not None:
            raise ValueError("its batches have other features than those of the model")

    def _is_at_end(self, session: tf.compat.v1.Session) -> bool:
        try:
            for iterator in self._iterators:
                session.run(iterator.get_next)
        except tf.errors.OutOfRangeError:
            return True
        return False

    def _start_over(self, session: tf.compat.v1.Session) -> None:
        session.run([iterator.initializer for iterator in self._iterators])


class _Position(NamedTuple):
    """Where an input stands.

    Attributes:
        states: The serialized states of its iterators.
        ahead: By queue, the batches that were read ahead.
        may_be_late: Whether a batch that is among these may also come behind those states.
    """

    states: list[bytes]
    ahead: list[list[list[Any]]]
    may_be_late: bool


class _Saved(NamedTuple):
    """A position as its file has it.

    Attributes:
        input: Which input it is of.
        num_ahead: By queue, how many batches were read ahead.
        parts: The states of the iterators, and then the tensors of these batches; none after the
            end.
        epoch: Which epoch it is in, None if nobody has noted it.
    """

    input: str
    num_ahead: list[int]
    parts: list[bytes]
    epoch: Epoch | None


class _Iterator:
    """Ops of an iterator.

    Attributes:
        dataset: What it reads, None if the graph does not say.
        is_known: Whether it does.
        initializer: Goes to the beginning.
        get_next: Reads one element.
        state: The serialized state.
        new_state: Where a state is fed for `set_state`.
        set_state: Goes to the place of that state.
    """

    def __init__(self, resource: tf.Tensor) -> None:
        users = resource.consumers()
        makers = [op for op in users if op.type == "MakeIterator"]
        self.dataset: tf.Tensor | None = makers[0].inputs[0] if len(makers) == 1 else None
        self.is_known = self.dataset is not None
        self.initializer = makers[:1]
        self.get_next: list[Any] = [op for op in users if op.type in _GET_NEXT][:1]
        with tf.device(resource.op.device), tf.control_dependencies(None):
            self.state = tf.io.serialize_tensor(
                tf.raw_ops.SerializeIterator(
                    resource_handle=resource,
                    # Shuffling and random ops are no reason to lose the position.
                    external_state_policy=tf.data.experimental.ExternalStatePolicy.IGNORE.value,
                )
            )
            self.new_state = tf.compat.v1.placeholder(tf.string, [])
            self.set_state = tf.raw_ops.DeserializeIterator(
                resource_handle=resource,
                serialized=tf.io.parse_tensor(self.new_state, tf.variant),
            )


def _get_reason(error: BaseException) -> str:
    """Returns what is wrong in one line, without the stack traces that sessions add."""
    if isinstance(error.__context__, tf.errors.OpError):
        error = error.__context__  # As it was before the session put the place in the graph to it.
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    return next(iter(message.splitlines()), type(error).__name__)


def read_epoch(path: str) -> Epoch | None:
    """Returns which epoch a saved position is in, None if it does not say."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return _get_epoch(json.loads(file.readline()))
    except (tf.errors.NotFoundError, ValueError):
        return None


def _get_epoch(header: dict[str, Any]) -> Epoch | None:
    return Epoch(*header["epoch"]) if "epoch" in header else None


def _write(
    path: str,
    saved_input: str,
    num_ahead: Sequence[int],
    parts: Sequence[bytes],
    epoch: Epoch | None,
) -> None:
    """Writes a line of JSON and the parts behind it."""
    header = {
        "format": _FORMAT,
        "input": saved_input,
        "num_ahead": list(num_ahead),
        "parts": [len(part) for part in parts],
        "sha256": hashlib.sha256(b"".join(parts)).hexdigest(),
        **({} if epoch is None else {"epoch": epoch}),
    }
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(json.dumps(header).encode() + b"\n")
        for part in parts:
            file.write(part)


def _read(path: str) -> _Saved:
    """Returns a position.

    Raises:
        ValueError: It is damaged, or of another version.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        line, _, content = file.read().partition(b"\n")
    header = json.loads(line)
    if header["format"] != _FORMAT:
        raise ValueError(f"its format is {header['format']}, this version knows {_FORMAT}")
    if hashlib.sha256(content).hexdigest() != header["sha256"]:
        raise ValueError("its content is not what was saved")
    ends = list(itertools.accumulate(header["parts"], initial=0))
    parts = [content[i:j] for i, j in itertools.pairwise(ends)]
    return _Saved(header["input"], header["num_ahead"], parts, _get_epoch(header))
