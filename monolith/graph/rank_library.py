"""The collectives of Horovod's names, by TensorFlow's own ops.

A process that is alone gets its own tensors back. See `monolith.graph.collectives`, which is what
programs use.
"""

import atexit
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from monolith import errors
from monolith.graph.rank_links import Links
from monolith.graph.rank_place import Place, find_place
from monolith.graph.server_collectives import ServerRanks
from monolith.graph.tensorflow_collectives import Ranks, has_collectives, travel_type

AVERAGE = "average"
SUM = "sum"

# Gradients that travel together: enough that the way is not what costs, and few enough that the
# first are under way while the last are computed.
_BUCKET_BYTES = 8 << 20
_LEAVE_SEC = 10.0


class RankLibrary:
    """The ranks of this process's job, once `init` was called."""

    def __init__(self) -> None:
        self._place: Place | None = None
        self._ranks: Ranks | ServerRanks | None = None
        # Workers beside servers have none: they look after each other in another way.
        self._links: Links | None = None
        self._stop_listening: Callable[[], None] = lambda: None
        self._is_on_servers = False

    def init(self, place: Place | None = None, timeout_sec: float | None = None) -> None:
        """Finds out which rank this process is, and waits for the others."""
        if self._place is not None:
            return
        place = find_place() if place is None else place
        if place.size > 1:
            self._ranks = ranks = Ranks(place, timeout_sec)
            self._links = ranks.links
            self._stop_listening = _listen_to_exits(self._links.note_exit)
            atexit.register(self._links.leave)
        self._place = place

    @contextlib.contextmanager
    def on_servers(self, place: Place, num_servers: int, meeting: str) -> Iterator[None]:
        """Makes this process a rank among workers that meet on servers, while a block runs."""
        if self._place is not None:
            raise errors.ConfigError(
                "The ranks have met already, by `collectives.init`; workers beside parameter "
                "servers meet on these, so leave that call out."
            )
        self._place, self._is_on_servers = place, True
        if place.size > 1:
            self._ranks = ServerRanks(place, num_servers, meeting)
        try:
            yield
        finally:
            self._place, self._ranks, self._is_on_servers = None, None, False

    def shutdown(self) -> None:
        """Waits for the other ranks to do the same, for a while, and lets go of them."""
        if self._links is not None:
            # Who comes too late, or does not come, has its own reasons; this rank is done.
            with contextlib.suppress(TimeoutError, errors.RankLostError):
                self._links.gather("done", timeout_sec=_LEAVE_SEC)
            self._links.leave()
            atexit.unregister(self._links.leave)
            self._stop_listening()
        self._place = self._ranks = self._links = None

    def is_initialized(self) -> bool:
        """Returns whether `init` was called."""
        return self._place is not None

    def is_on_servers(self) -> bool:
        """Returns whether this is a worker that meets others on servers."""
        return self._is_on_servers

    def rank(self) -> int:
        """Returns the number of this process among all."""
        return self._get_place().rank

    def size(self) -> int:
        """Returns how many ranks there are."""
        return self._get_place().size

    def local_rank(self) -> int:
        """Returns the number of this process among those on its machine."""
        return self._get_place().local_rank

    def local_size(self) -> int:
        """Returns how many ranks are on this machine."""
        return self._get_place().local_size

    def get_session_target(self) -> str:
        """Returns what a session is connected to; empty in a process that is alone."""
        return "" if self._ranks is None else self._ranks.session_target

    def update_session_config(self, config: Any) -> None:
        """Makes a session able to run collectives."""
        if self._ranks is not None:
            self._ranks.update_session_config(config)

    def make_watch_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        """Returns the hook that ends training when a rank is gone."""
        return [] if self._links is None else [_WatchHook(self._links)]

    @contextlib.contextmanager
    def named_losses(self) -> Iterator[None]:
        """Makes of an error that a lost rank has caused one that names it.

        In a graph with collectives this process waits for all ranks from here on, so that one that
        has left is a loss; until `_WatchHook` says that it does not, or the block is over.
        """
        links = self._links
        if links is None:
            yield
            return
        with links.waiting(has_collectives(tf.compat.v1.get_default_graph())):
            try:
                yield
            except tf.errors.OpError as error:
                if _is_of_network(error):
                    try:
                        links.explain()
                    except errors.RankLostError as loss:
                        raise loss from error
                raise
            except SystemExit as end:
                links.note_exit(end.code)
                raise

    def begin_step(self) -> None:
        """Says that this process is about to wait for all ranks, until `named_losses` ends."""
        if self._links is not None:
            self._links.begin_step()

    def allreduce(
        self, tensor: Any, *, op: str = AVERAGE, compress: bool = False, name: str | None = None
    ) -> Any:
        """Returns the sum or the average over all ranks."""
        ranks = self._get_ranks()
        if isinstance(tensor, tf.IndexedSlices):
            if ranks is None:
                return tensor
            values = self.allgather(tensor.values)
            divisor = tf.cast(ranks.place.size if op == AVERAGE else 1, values.dtype)
            return tf.IndexedSlices(
                values / divisor, self.allgather(tensor.indices), tensor.dense_shape
            )
        tensor = tf.convert_to_tensor(tensor)
        if ranks is None:
            return tf.identity(tensor, name=name)

        @tf.custom_gradient
        def reduce(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            dtype = travel_type(x)
            small = compress and x.dtype in (tf.float32, tf.float64)
            total = tf.cast(ranks.reduce(tf.cast(x, tf.float16 if small else dtype)), dtype)
            if op == AVERAGE:
                size = tf.cast(ranks.place.size, dtype)
                total = total / size if dtype.is_floating else total // size
            return tf.cast(total, x.dtype), lambda dy: self.allreduce(dy, op=op)

        return tf.identity(reduce(tensor), name=name)

    def grouped_allreduce(
        self, tensors: Sequence[Any], *, op: str = AVERAGE, compress: bool = False
    ) -> list[Any]:
        """Returns what `allreduce` does for each; those of one type travel together."""
        results: dict[int, Any] = {}
        for bucket in _make_buckets(tensors):
            if len(bucket) == 1:
                (index,) = bucket
                results[index] = self.allreduce(tensors[index], op=op, compress=compress)
                continue
            flat = tf.concat([tf.reshape(tensors[i], [-1]) for i in bucket], 0)
            parts = tf.split(
                self.allreduce(flat, op=op, compress=compress),
                [tensors[i].shape.num_elements() for i in bucket],
            )
            for index, part in zip(bucket, parts, strict=True):
                results[index] = tf.reshape(part, tensors[index].shape)
        return [results[index] for index in range(len(tensors))]

    def allgather(
        self, tensor: Any, name: str | None = None, same_shape: bool = False
    ) -> tf.Tensor:
        """Returns the rows of all ranks behind one another."""
        ranks = self._get_ranks()
        tensor = _check_rows(tf.convert_to_tensor(tensor), "allgather")
        if ranks is None:
            return tf.identity(tensor, name=name)
        if same_shape:
            flat = tf.reshape(tf.cast(tensor, travel_type(tensor)), [-1])
            shape = tf.concat([[-1], tf.shape(tensor)[1:]], 0)
            return tf.cast(tf.reshape(ranks.gather_same(flat), shape), tensor.dtype, name=name)

        @tf.custom_gradient
        def gather(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            rows, num_rows = ranks.gather(tf.cast(x, travel_type(x)))

            def backward(dy: tf.Tensor) -> tf.Tensor:
                total = self.allreduce(dy, op=SUM)
                first = tf.reduce_sum(num_rows[: ranks.place.rank])
                return total[first : first + num_rows[ranks.place.rank]]

            return tf.cast(rows, x.dtype), backward

        return tf.identity(gather(tensor), name=name)

    def alltoall(
        self, tensor: Any, splits: Any = None, name: str | None = None, counts: Any = None
    ) -> Any:
        """Sends a part of the rows to each rank, and returns what this one is sent."""
        ranks = self._get_ranks()
        tensor = _check_rows(tf.convert_to_tensor(tensor), "alltoall")
        given = None if splits is None else tf.convert_to_tensor(splits)
        if ranks is None:
            result = tf.identity(tensor, name=name)
            return result if given is None else (result, tf.identity(tf.cast(given, tf.int32)))
        size = ranks.place.size
        if given is None:
            if tensor.shape[0] is not None and tensor.shape[0] % size:
                raise errors.ConfigError(
                    f"`alltoall` cannot send equal parts of {tensor.shape[0]} rows to {size} "
                    "ranks; say with `splits` how many each gets."
                )
            given = tf.fill([size], tf.shape(tensor)[0] // size)

        @tf.custom_gradient
        def exchange(x: tf.Tensor) -> tuple[Any, Callable[..., tf.Tensor]]:
            rows, received = ranks.exchange(tf.cast(x, travel_type(x)), given, counts)

            def backward(dy: tf.Tensor, _: tf.Tensor | None = None) -> tf.Tensor:
                return self.alltoall(dy, received)[0]

            return (tf.cast(rows, x.dtype), received), backward

        rows, received = exchange(tensor)
        rows = tf.identity(rows, name=name)
        return rows if splits is None else (rows, received)

    def broadcast(self, tensor: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
        """Returns the tensor of one rank, whose shape all have."""
        ranks = self._get_ranks()
        tensor = tf.convert_to_tensor(tensor)
        size = 1 if ranks is None else ranks.place.size
        if not 0 <= root_rank < size:
            raise errors.ConfigError(f"There is no rank {root_rank} to broadcast from, of {size}.")
        if ranks is None:
            return tf.identity(tensor, name=name)
        # The others add nothing to it. What they have may be NaN, so it is not multiplied by 0.
        dtype = travel_type(tensor)
        is_root = ranks.place.rank == root_rank
        mine = tf.cast(tensor, dtype) if is_root else tf.zeros(tf.shape(tensor), dtype)
        mine = tf.ensure_shape(mine, tensor.shape)
        return tf.cast(self.allreduce(mine, op=SUM), tensor.dtype, name=name)

    def BroadcastGlobalVariablesHook(
        self, root_rank: int, device: str = ""
    ) -> tf.compat.v1.train.SessionRunHook:
        """Returns the hook that makes all ranks start with the variables of one."""
        return BroadcastGlobalVariablesHook(self, root_rank, device)

    def _get_place(self) -> Place:
        if self._place is None:
            raise errors.ConfigError(
                "The ranks have not met yet; call `collectives.init()` at the start of the program."
            )
        return self._place

    def _get_ranks(self) -> Ranks | ServerRanks | None:
        self._get_place()
        return self._ranks


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Makes all ranks start with the variables of one.

    Args:
        library: The ranks.
        root_rank: Whose variables they are.
        device: Where the assignments are placed.
    """

    def __init__(self, library: RankLibrary, root_rank: int, device: str = "") -> None:
        self._library = library
        self._root_rank = root_rank
        self._device = device
        self._broadcast: tf.Operation | None = None

    def begin(self) -> None:
        if self._library.size() == 1:
            return
        with tf.device(self._device):
            self._broadcast = tf.group(
                *[
                    tf.compat.v1.assign(
                        variable, self._library.broadcast(variable, self._root_rank)
                    )
                    for variable in tf.compat.v1.global_variables()
                ]
            )

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        if self._broadcast is not None:
            session.run(self._broadcast)


class DistributedOptimizer(tf.compat.v1.train.Optimizer):
    """An optimizer whose gradients are averaged over all ranks before they are applied.

    Args:
        optimizer: What applies them.
        reduce: Returns the averages of some gradients.
    """

    def __init__(self, optimizer: Any, reduce: Callable[[list[Any]], list[Any]]) -> None:
        super().__init__(use_locking=False, name=f"Distributed{type(optimizer).__name__}")
        self._optimizer = optimizer
        self._reduce = reduce

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        present = [gradient for gradient, _ in pairs if gradient is not None]
        reduced = iter(self._reduce(present))
        return [(None if g is None else next(reduced), variable) for g, variable in pairs]

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


class _WatchHook(tf.compat.v1.train.SessionRunHook):
    """Ends training before a step that would wait for a rank that is gone.

    Also when TensorFlow makes a new session after a server was not reachable: that of a rank never
    is again.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._links.check()

    def before_run(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        self._links.check()
        if has_collectives(run_context.session.graph):
            self._links.begin_step()

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        self._links.end_step()

    def end(self, session: tf.compat.v1.Session) -> None:
        self._links.end_step()  # The last step may have found no data.


def _listen_to_exits(note: Callable[[Any], None]) -> Callable[[], None]:
    """Notes the code with which the program ends, if it ends by `sys.exit`.

    Python tells those who are called at the end of a program (`atexit`) of exceptions only.

    Returns:
        What takes that back.
    """
    leave = sys.exit

    def note_and_leave(code: Any = None) -> NoReturn:
        # In another thread it ends that one alone.
        if threading.current_thread() is threading.main_thread():
            note(code)
        leave(code)

    def stop() -> None:
        if sys.exit is note_and_leave:
            sys.exit = leave

    sys.exit = note_and_leave
    return stop


def _make_buckets(tensors: Sequence[Any]) -> list[list[int]]:
    """Returns which tensors travel together; the last come first, as in a backward pass."""
    buckets: list[list[int]] = []
    open_buckets: dict[Any, tuple[list[int], int]] = {}
    for index in reversed(range(len(tensors))):
        tensor = tensors[index]
        if isinstance(tensor, tf.IndexedSlices) or not tensor.shape.is_fully_defined():
            buckets.append([index])
            continue
        num_bytes = tensor.shape.num_elements() * tensor.dtype.size
        bucket, filled = open_buckets.get(tensor.dtype, ([], 0))
        if not bucket or filled + num_bytes > _BUCKET_BYTES:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(index)
        open_buckets[tensor.dtype] = bucket, filled + num_bytes
    return buckets


def _check_rows(tensor: tf.Tensor, what: str) -> tf.Tensor:
    if not tensor.shape.rank:  # None, or 0.
        raise errors.ConfigError(
            f"`{what}` takes rows, so a tensor of a known rank above 0; got one of shape "
            f"{tensor.shape}."
        )
    return tensor


def _is_of_network(error: tf.errors.OpError) -> bool:
    return isinstance(
        error,
        tf.errors.UnavailableError
        | tf.errors.AbortedError
        | tf.errors.CancelledError
        | tf.errors.InternalError
        | tf.errors.UnknownError
        | tf.errors.DeadlineExceededError,
    )
