"""What the ranks of a synchronous job do together, by whichever library there is.

This is the one place that chooses the library:

1. BytePS, if `MONOLITH_WITH_BYTEPS` asks for it; it must be installed then.
2. Horovod, where it is installed, unless `MONOLITH_WITH_HOROVOD` says no.
3. TensorFlow's own collectives otherwise, which need nothing.

A variable asks for something unless it is empty, `0` or `false`. A process that nobody started as
one of several is rank 0 of 1, and every collective gives it back what it gave.

Example:
    >>> import tensorflow as tf
    >>> init()
    >>> rank(), size()
    (0, 1)
    >>> allreduce(tf.constant([1.0, 2.0])).numpy().tolist()
    [1.0, 2.0]
    >>> shutdown()
"""

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from monolith import errors

if TYPE_CHECKING:
    from monolith.graph.rank_library import RankLibrary
    from monolith.graph.rank_place import Place

BYTEPS = "byteps.tensorflow"
HOROVOD = "horovod.tensorflow"

Average = "average"
Sum = "sum"

# Collection of a graph: whether this rank has no data left, and repeats what it had.
IDLE = "monolith_idle_rank"
# Collection of a graph: whether its gradients are averaged over ranks.
_AVERAGED = "monolith_averages_gradients"
# The same for gradients of rows.
_ROWS_AVERAGED = "monolith_averages_rows"
# Collection of a graph: how many ranks have data in this step, if a step adds that up anyway.
NUM_ACTIVE = "monolith_num_active_ranks"

_WITH_BYTEPS = "MONOLITH_WITH_BYTEPS"
_WITH_BYTEPS_ALLREDUCE = "MONOLITH_WITH_BYTEPS_ALLREDUCE"
_WITH_HOROVOD = "MONOLITH_WITH_HOROVOD"


def is_on(variable: str, default: str = "0") -> bool:
    """Returns whether a variable of the environment asks for something.

    Example:
        >>> os.environ["MONOLITH_SKIP_ALLREDUCE"] = "False"
        >>> is_on("MONOLITH_SKIP_ALLREDUCE")
        False
        >>> del os.environ["MONOLITH_SKIP_ALLREDUCE"]
    """
    return os.environ.get(variable, default).strip().lower() not in ("", "0", "false")


class MissingLibraryError(errors.ConfigError, ImportError):
    """The library that the environment asks for cannot be imported."""


class _Lib:
    """The library, which is imported when it is first used."""

    def __init__(self) -> None:
        self._own: RankLibrary | None = None

    @property
    def enable_bps(self) -> bool:
        """Whether BytePS is asked for."""
        return is_on(_WITH_BYTEPS)

    @property
    def lib(self) -> Any:
        """The module of BytePS or Horovod, or what stands for them.

        Raises:
            ConfigError: BytePS is asked for, and cannot be imported.
        """
        if self._own is not None and self._own.is_on_servers():
            return self._own
        if self.enable_bps:
            return _import_byteps()
        if _is_installed(HOROVOD) and is_on(_WITH_HOROVOD, default="1"):
            return _import_horovod()
        return self.own

    @property
    def own(self) -> "RankLibrary":
        """TensorFlow's collectives."""
        if self._own is None:
            # It takes the seconds of TensorFlow's import.
            self._own = importlib.import_module("monolith.graph.rank_library").RankLibrary()
        return self._own

    @property
    def is_own(self) -> bool:
        """Whether it is TensorFlow's collectives that are used."""
        return self.lib is self._own

    @property
    def connected(self) -> "RankLibrary | None":
        """TensorFlow's collectives if they are in use now; most processes never need them."""
        if self._own is not None and self._own.is_initialized():
            return self._own
        return None

    def __getattr__(self, name: str) -> Any:
        """Hands on what the library offers: `init`, `rank`, `allgather` and all others."""
        if name.startswith("_"):  # Before it is set, as while it is copied.
            raise AttributeError(name)
        library = self.lib
        try:
            return getattr(library, name)
        except AttributeError:
            where = "TensorFlow's collectives" if self.is_own else library.__name__
            raise AttributeError(f"There is no {name!r} in {where}.") from None


_lib = _Lib()


def init(place: "Place | None" = None, timeout_sec: float | None = None) -> None:
    """Finds out which rank this process is, and waits until all are there.

    Once is enough; calling it again does nothing.

    Args:
        place: Which rank this is; None asks the environment (`monolith.graph.rank_place`).
        timeout_sec: After how many seconds of silence another rank is taken for gone; None asks
            `MONOLITH_RANKS_TIMEOUT_SEC`, and takes 30 without it.

    Raises:
        ConfigError: The environment contradicts itself, or the ranks do not find together. Also
            if a place is given to another library, which finds its own.
    """
    library = _lib.lib
    if library is _lib.own:
        library.init(place, timeout_sec)
        return
    if place is not None or timeout_sec is not None:
        raise errors.ConfigError(
            f"{library.__name__} finds its ranks and their time limits itself; leave `place` and "
            "`timeout_sec` out."
        )
    library.init()


def on_servers(
    place: "Place", num_servers: int, meeting: str
) -> contextlib.AbstractContextManager[None]:
    """Makes this process a rank among the workers of a job with servers, while a block runs.

    They meet on the servers (`monolith.graph.server_collectives`), whichever library there is, in
    sessions of the job.

    Args:
        place: Which rank this is.
        num_servers: How many servers the job has.
        meeting: Tells this meeting from all others on these servers, the same in all ranks.
    """
    return _lib.own.on_servers(place, num_servers, meeting)


def shutdown() -> None:
    """Ends what `init` began; waits a few seconds for the other ranks to do the same."""
    _lib.shutdown()


def is_initialized() -> bool:
    """Returns whether the ranks of this process have met."""
    return not _lib.is_own or _lib.own.is_initialized()


def rank() -> int:
    """Returns the number of this process among all ranks."""
    return int(_lib.rank())


def size() -> int:
    """Returns how many ranks there are."""
    return int(_lib.size())


def local_rank() -> int:
    """Returns the number of this process among the ranks of its machine."""
    return int(_lib.local_rank())


def local_size() -> int:
    """Returns how many ranks there are on this machine."""
    return int(_lib.local_size())


def allreduce(
    tensor: Any, op: str = Average, *, compress: bool = False, name: str | None = None
) -> Any:
    """Returns the average of a tensor over all ranks, or the sum.

    Args:
        tensor: A tensor, of the same shape in all ranks, or `tf.IndexedSlices`, whose rows come
            back from all of them.
        op: `Average` or `Sum`; averages of integers are rounded down.
        compress: Whether it travels in half precision.
        name: Name of the op.
    """
    library, options = _get_reducer(op, compress)
    reduce = library.push_pull if _is_byteps(library) else library.allreduce
    return reduce(tensor, **options, **_with_name(name))


def grouped_allreduce(
    tensors: Sequence[Any], op: str = Average, *, compress: bool = False
) -> list[Any]:
    """Returns what `allreduce` does for each tensor, with few messages for all of them.

    Raises:
        RuntimeError: The library cannot.
    """
    library, options = _get_reducer(op, compress)
    if not reduces_groups():
        raise RuntimeError(f"{library.__name__} cannot reduce groups; reduce tensors one by one.")
    return list(library.grouped_allreduce(tensors, **options))


def reduces_groups() -> bool:
    """Returns whether there is `grouped_allreduce`; BytePS has none."""
    return hasattr(_get_reducing_library(), "grouped_allreduce")


def average_gradients(*, rows: bool = True) -> None:
    """Has the default graph average gradients over ranks.

    Args:
        rows: Whether those of rows, too, or only those of variables: rows on servers get what each
            rank sends as a step of its own.
    """
    tf = importlib.import_module("tensorflow")
    tf.compat.v1.add_to_collection(_AVERAGED, True)
    if rows:
        tf.compat.v1.add_to_collection(_ROWS_AVERAGED, True)


def averages_gradients() -> bool:
    """Returns whether the default graph averages gradients of variables."""
    return _has_collection(_AVERAGED)


def averages_rows() -> bool:
    """Returns whether the default graph averages gradients of rows."""
    return _has_collection(_ROWS_AVERAGED)


def get_idle() -> Any:
    """Returns whether this rank has no data left, a tensor of the graph; None if nobody says."""
    tf = importlib.import_module("tensorflow")
    idle = [] if tf.executing_eagerly() else tf.compat.v1.get_collection(IDLE)
    return idle[-1] if idle else None


def leave_out_idle(gradients: Sequence[Any]) -> tuple[list[Any], Any]:
    """Leaves a rank out of an average that has no data left and only keeps the others company.

    Args:
        gradients: What this rank would add: tensors or `tf.IndexedSlices`.

    Returns:
        The same, or zeros in a rank that is idle now; and by what to multiply their average over
        all ranks, which is then that over the ranks that are not, None for 1.
    """
    tf = importlib.import_module("tensorflow")
    is_idle = get_idle()
    if is_idle is None or not gradients:
        return list(gradients), None

    def mask(gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.where(is_idle, tf.zeros_like(gradient.values), gradient.values)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        # Not a product: what an idle rank computes may be NaN.
        return tf.where(is_idle, tf.zeros_like(gradient), gradient)

    return [mask(gradient) for gradient in gradients], size() * get_share()


def get_share() -> Any:
    """Returns by what a sum over ranks is multiplied to be an average over those that have data.

    A number if all have, else a tensor.
    """
    is_idle = get_idle()
    if is_idle is None:
        return 1.0 / size()
    tf = importlib.import_module("tensorflow")
    known = tf.compat.v1.get_collection(NUM_ACTIVE)
    if known:
        num_active = tf.cast(known[-1], tf.float32)
    else:
        num_active = allreduce(tf.cast(tf.logical_not(is_idle), tf.float32), Sum)
    return 1.0 / tf.maximum(num_active, 1.0)


def scale_average(average: Any, factor: Any) -> Any:
    """Multiplies an average by the second result of `leave_out_idle`."""
    if factor is None:
        return average
    tf = importlib.import_module("tensorflow")
    if isinstance(average, tf.IndexedSlices):
        values = average.values * tf.cast(factor, average.values.dtype)
        return tf.IndexedSlices(values, average.indices, average.dense_shape)
    return average * tf.cast(factor, average.dtype)


def allgather(tensor: Any, name: str | None = None, *, same_shape: bool = False) -> Any:
    """Returns the rows of all ranks behind one another; each rank may have another number.

    Args:
        tensor: The rows.
        name: Name of the op.
        same_shape: Whether all ranks have the same number, above 0, so that TensorFlow's
            collectives need not ask for it. There is no gradient then.
    """
    known = {"same_shape": True} if same_shape and _lib.is_own else {}
    return _lib.allgather(tensor, **_with_name(name), **known)


def alltoall(
    tensor: Any, splits: Any = None, name: str | None = None, *, counts: Any = None
) -> Any:
    """Sends each rank its part of the rows, and returns those that this one is sent.

    Args:
        tensor: The rows, those for rank 0 first.
        splits: How many each rank gets; None for equal parts.
        name: Name of the op.
        counts: If all ranks know how many rows each sends to each, [size, size]: that. TensorFlow's
            collectives then exchange nothing but the rows; other libraries do not need it.

    Returns:
        The rows, in the order of the ranks they come from; with `splits` also how many came from
        each.
    """
    known = {} if counts is None or not _lib.is_own else {"counts": counts}
    return _lib.alltoall(tensor, splits=splits, **_with_name(name), **known)


def broadcast(tensor: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the tensor of one rank; those of the others are of the same shape."""
    return _lib.broadcast(tensor, root_rank, **_with_name(name))


def BroadcastGlobalVariablesHook(root_rank: int, device: str = "") -> Any:
    """Returns a hook that gives all ranks the variables of one when a session is made."""
    return _lib.BroadcastGlobalVariablesHook(root_rank, device=device)


def DistributedOptimizer(optimizer: Any, op: str = Average, *, compress: bool = False) -> Any:
    """Returns an optimizer that reduces gradients over all ranks before it applies them.

    Args:
        optimizer: A `tf.compat.v1.train.Optimizer`.
        op: `Average` or `Sum`.
        compress: Whether gradients travel in half precision.
    """
    # Not that of another library, which knows nothing of ranks without data.
    from monolith.graph import rank_library

    def reduce(gradients: list[Any]) -> list[Any]:
        masked, factor = leave_out_idle(gradients)
        if reduces_groups():
            reduced = grouped_allreduce(masked, op, compress=compress)
        else:
            reduced = [allreduce(gradient, op, compress=compress) for gradient in masked]
        return [scale_average(g, factor if op == Average else None) for g in reduced]

    return rank_library.DistributedOptimizer(optimizer, reduce)


def gather_numbers(numbers: Sequence[int]) -> list[list[int]]:
    """Returns what each rank has given, in the order of ranks; also a barrier.

    For what is agreed upon outside of training, where there is no session: it has one of its own.

    Args:
        numbers: As many in each rank.

    Raises:
        RankLostError: A rank is gone.

    Example:
        >>> init()
        >>> gather_numbers([4, 2])
        [[4, 2]]
        >>> shutdown()
    """
    if size() == 1:
        return [list(numbers)]
    tf = importlib.import_module("tensorflow")
    with tf.Graph().as_default(), named_losses():
        gathered = allgather(tf.constant([list(numbers)], tf.int64))
        config = tf.compat.v1.ConfigProto()
        update_session_config(config)
        if _lib.connected is not None:
            _lib.connected.begin_step()
        with tf.compat.v1.Session(get_session_target(), config=config) as session:
            return [[int(number) for number in row] for row in session.run(gathered)]


def get_session_target() -> str:
    """Returns what a session that runs collectives is connected to.

    Empty, which is a session inside of the process, with one rank, with another library, and
    before `init`.
    """
    return "" if _lib.connected is None else _lib.connected.get_session_target()


def update_session_config(config: Any) -> None:
    """Changes a `tf.compat.v1.ConfigProto` so that its sessions run collectives."""
    if _lib.connected is not None:
        _lib.connected.update_session_config(config)


def make_watch_hooks() -> list[Any]:
    """Returns the hook that ends training when a rank is gone; none with one rank."""
    return [] if _lib.connected is None else _lib.connected.make_watch_hooks()


@contextlib.contextmanager
def named_losses() -> Iterator[None]:
    """Makes an error of TensorFlow name the rank that is gone, if one is.

    Raises:
        RankLostError: The block failed because a rank is gone.
    """
    library = _lib.connected
    with contextlib.nullcontext() if library is None else library.named_losses():
        yield


def __getattr__(name: str) -> Any:
    """Hands on what else a library offers."""
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(_lib, name)


def _get_reducer(op: str, compress: bool) -> tuple[Any, dict[str, Any]]:
    """Returns the library that reduces, and how it is told what to do."""
    library = _get_reducing_library()
    if library is _lib.own:
        return library, {"op": op, "compress": compress}
    options = {"op": _get_op(library, op)}
    if compress:
        options["compression"] = library.Compression.fp16
    return library, options


def _get_reducing_library() -> Any:
    if _lib.enable_bps and not is_on(_WITH_BYTEPS_ALLREDUCE, default="1"):
        return _import_horovod()
    return _lib.lib


def _is_byteps(library: Any) -> bool:
    return library is sys.modules.get(BYTEPS)


def _get_op(library: Any, op: str) -> Any:
    return {Average: library.Average, Sum: getattr(library, "Sum", None)}[op]


def _has_collection(name: str) -> bool:
    tf = importlib.import_module("tensorflow")
    return bool(not tf.executing_eagerly() and tf.compat.v1.get_collection(name))


def _with_name(name: str | None) -> dict[str, str]:
    return {} if name is None else {"name": name}


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:
        return False  # Nor is the package around it.


def _import_byteps() -> Any:
    try:
        return importlib.import_module(BYTEPS)
    except ImportError as error:
        raise MissingLibraryError(
            f"{_WITH_BYTEPS} asks for {BYTEPS}, which cannot be imported ({error}); install it, or "
            f"unset {_WITH_BYTEPS}."
        ) from error


def _import_horovod() -> Any:
    try:
        return importlib.import_module(HOROVOD)
    except ImportError as error:
        raise MissingLibraryError(
            f"{HOROVOD} cannot be imported ({error}); repair it, or set {_WITH_HOROVOD}=0 to take "
            "TensorFlow's own collectives."
        ) from error
