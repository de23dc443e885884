"""Collectives by TensorFlow's own ops, between the servers of the ranks.

Each rank starts a TensorFlow server in its process. Ops of a graph whose session is connected to
that server (`Ranks.session_target`) exchange tensors with the same ops of the other ranks, from
machine to machine.

TensorFlow knows one collective op from another by two numbers, of which the second also stands for
the size of the tensor. So every op here gets its first number from its position in its graph,
which must be the same in all ranks: each rank makes the same collectives in the same order. The
second number is the size; where sizes differ between ranks or steps, they are rounded up by at
most a thirty-second and cut off again, so that a job of many steps needs few of these numbers.
"""

import logging
import socket
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph, ops

from monolith import errors
from monolith.graph.rank_links import Links
from monolith.graph.rank_place import Place

logger = logging.getLogger(__name__)

_JOB = "worker"
_NUM_STARTS = 5

# What TensorFlow's collectives take, and what the others travel as.
_TYPES = (tf.float32, tf.float64, tf.float16, tf.int32, tf.int64)
_TRAVELS_AS = {
    tf.bfloat16: tf.float32,
    tf.bool: tf.int32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
_KINDS = ("reduce", "gather", "exchange")

# How many collectives each graph has.
_counts: "weakref.WeakKeyDictionary[tf.Graph, int]" = weakref.WeakKeyDictionary()


class Ranks:
    """The ranks of a job, connected; every rank makes one of these, and all wait for each other.

    Args:
        place: Which rank this process is; of at least two.
        timeout_sec: After how many seconds of silence a rank is gone.

    Raises:
        ConfigError: The ranks do not find together.
    """

    def __init__(self, place: Place, timeout_sec: float | None = None) -> None:
        self.place = place
        self.links = Links(place, timeout_sec)
        self.links.meet()
        self._server = self._start_server()

    @property
    def session_target(self) -> str:
        """What a session is connected to."""
        return str(self._server.target)

    def update_session_config(self, config: Any) -> None:
        """Makes a session see this rank only, and know where collectives are agreed upon."""
        del config.device_filters[:]
        config.device_filters.append(f"/job:{_JOB}/task:{self.place.rank}")
        config.experimental.collective_group_leader = f"/job:{_JOB}/replica:0/task:0"
        # The server outlives the session; tables and variables of a training must not.
        config.isolate_session_state = True

    def reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the tensors of all ranks, which have one shape."""
        flat = tf.reshape(tensor, [-1])
        if flat.shape[0] == 0:
            return tf.identity(tensor)
        is_maybe_empty = flat.shape[0] is None
        if is_maybe_empty:
            # TensorFlow never finishes a sum of nothing.
            flat = tf.pad(flat, [[0, 1]])
        total = tf.raw_ops.CollectiveReduceV2(
            input=flat,
            group_size=self.place.size,
            group_key=_make_key("reduce", flat.dtype),
            instance_key=tf.size(flat),
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            max_subdivs_per_device=-1,
        )
        if is_maybe_empty:
            total = total[:-1]
        return tf.ensure_shape(tf.reshape(total, tf.shape(tensor)), tensor.shape)

    def gather(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of all ranks, in their order, and how many each has, as int32."""
        num_rows = self.gather_same(tf.shape(tensor)[:1])
        padded_rows = _round_up(tf.reduce_max(num_rows))
        padding = [[0, padded_rows - tf.shape(tensor)[0]]]
        padding += [[0, 0]] * (tensor.shape.rank - 1)
        everything = self.gather_same(tf.reshape(tf.pad(tensor, padding), [-1]))
        shape = tf.concat([[self.place.size, padded_rows], tf.shape(tensor)[1:]], 0)
        rows = _cut(tf.reshape(everything, shape), num_rows)
        return tf.ensure_shape(rows, [None, *tensor.shape[1:]]), num_rows

    def exchange(
        self, tensor: tf.Tensor, splits: tf.Tensor, counts: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends the first `splits[0]` rows to rank 0, the next `splits[1]` to rank 1, and so on.

        Args:
            tensor: The rows.
            splits: How many each rank gets.
            counts: If the ranks know already how many each sends to each, [size, size]: that, so
                that they need not tell each other once more.

        Returns:
            The rows that were sent to this rank, in the order of their senders, and how many each
            of them sent.
        """
        size = self.place.size
        splits = tf.ensure_shape(tf.cast(splits, tf.int32), [size])
        with tf.control_dependencies([_check_splits(splits, tensor)]):
            splits = tf.identity(splits)
        if counts is None:
            counts = self.gather_same(splits)
        counts = tf.reshape(tf.cast(counts, tf.int32), [size, size])
        padded_rows = _round_up(tf.reduce_max(counts))
        row_shape = tf.shape(tensor)[1:]
        width = tf.reduce_prod(row_shape)
        rows = tf.reshape(tensor, tf.stack([tf.shape(tensor)[0], width]))
        parts = tf.RaggedTensor.from_row_lengths(rows, splits, validate=False)
        padded = parts.to_tensor(shape=[size, None, None])
        missing = padded_rows - tf.shape(padded)[1]
        padded = tf.reshape(tf.pad(padded, [[0, 0], [0, missing], [0, 0]]), [size, -1])
        exchanged = tf.raw_ops.CollectiveAllToAllV2(
            input=padded,
            group_size=size,
            group_key=_make_key("exchange", tensor.dtype),
            instance_key=tf.size(padded),
            ordering_token=[],
        )
        received = counts[:, self.place.rank]
        shape = tf.concat([[size, padded_rows], row_shape], 0)
        result = _cut(tf.reshape(exchanged, shape), received)
        return tf.ensure_shape(result, [None, *tensor.shape[1:]]), received

    def gather_same(self, flat: tf.Tensor) -> tf.Tensor:
        """Returns the vectors of all ranks, which are of one size, behind one another."""
        return tf.raw_ops.CollectiveGatherV2(
            input=flat,
            group_size=self.place.size,
            group_key=_make_key("gather", flat.dtype),
            instance_key=tf.size(flat),
            ordering_token=[],
        )

    def _start_server(self) -> tf.distribute.Server:
        """Starts the servers of all ranks at ports that are free everywhere.

        A port that is free may be taken before the server opens it, so ranks try several times.
        """
        config = tf.compat.v1.ConfigProto()
        self.update_session_config(config)
        problems: list[Any] = []
        for _ in range(_NUM_STARTS):
            host = f"[{self.links.host}]" if ":" in self.links.host else self.links.host
            addresses = self.links.gather(f"{host}:{_find_port()}")
            server, problem = None, None
            try:
                server = tf.distribute.Server(
                    {_JOB: addresses}, job_name=_JOB, task_index=self.place.rank, config=config
                )
            except tf.errors.OpError as error:
                problem = f"rank {self.place.rank} at {addresses[self.place.rank]}: {error.message}"
            problems = [p for p in self.links.gather(problem) if p]
            if server is not None and not problems:
                logger.warning(
                    "rank %d of %d: TensorFlow's server listens at %s; its protocol asks for no "
                    "password, keep the port behind a firewall",
                    self.place.rank,
                    self.place.size,
                    addresses[self.place.rank],
                )
                return server
        raise errors.ConfigError(
            f"The ranks could not start TensorFlow's servers in {_NUM_STARTS} attempts: "
            f"{'; '.join(problems)}."
        )


def has_collectives(graph: tf.Graph) -> bool:
    """Returns whether there are collectives in a graph."""
    return _counts.get(graph, 0) > 0


def count_collective() -> int:
    """Returns how many collectives the default graph has had before this one."""
    graph = tf.compat.v1.get_default_graph()
    while isinstance(graph, func_graph.FuncGraph):
        graph = graph.outer_graph
    count = _counts.get(graph, 0)
    _counts[graph] = count + 1
    return count


def travel_type(tensor: tf.Tensor) -> tf.DType:
    """Returns the type as which a tensor travels.

    Raises:
        ConfigError: Its type cannot travel, or there is no session to carry it.
    """
    if ops.executing_eagerly_outside_functions():
        raise errors.ConfigError(
            "Collectives between ranks run in a session, and there is none in eager execution; "
            "build them in a `tf.Graph`, as an estimator's model function does."
        )
    dtype = _TRAVELS_AS.get(tensor.dtype, tensor.dtype)
    if dtype not in _TYPES:
        raise errors.ConfigError(
            f"Tensor {tensor.name!r} is of type {tensor.dtype.name}, which ranks cannot exchange; "
            "they exchange numbers and bool."
        )
    return dtype


def _make_key(kind: str, dtype: tf.DType) -> int:
    """Returns the number of the next collective of the graph, which tells it from all others.

    Graphs of one process may have the same, so what TensorFlow remembers of it is part of it.
    """
    count = count_collective()
    return 1 + (count * len(_KINDS) + _KINDS.index(kind)) * len(_TYPES) + _TYPES.index(dtype)


def _round_up(count: tf.Tensor) -> tf.Tensor:
    """Returns a number of rows, at least 1, rounded up to one with six significant bits."""
    count = tf.maximum(count, 1)
    # Compared, not by logarithm: ranks on different processors must agree to the last bit.
    bits = tf.reduce_sum(tf.cast(count >= [1 << bit for bit in range(31)], tf.int32)) - 1
    unit = tf.bitwise.left_shift(1, tf.maximum(bits - 5, 0))
    return (count + unit - 1) // unit * unit


def _cut(padded: tf.Tensor, num_rows: tf.Tensor) -> tf.Tensor:
    """Returns the first `num_rows[i]` rows of each part i, behind one another."""
    return tf.boolean_mask(padded, tf.sequence_mask(num_rows, tf.shape(padded)[1]))


def _check_splits(splits: tf.Tensor, tensor: tf.Tensor) -> tf.Operation:
    num_rows = tf.shape(tensor)[0]
    return tf.compat.v1.debugging.Assert(
        tf.logical_and(tf.reduce_all(splits >= 0), tf.equal(tf.reduce_sum(splits), num_rows)),
        [
            "splits must say for each rank how many rows it gets, all rows together; got",
            splits,
            "for a number of rows of",
            num_rows,
        ],
        summarize=16,
    )


def _find_port() -> int:
    with socket.socket() as skt:
        skt.bind(("", 0))
        return int(skt.getsockname()[1])
