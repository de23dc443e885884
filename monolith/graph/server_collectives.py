"""Collectives between the workers of a job that has parameter servers, by queues on the servers.

TensorFlow's own collectives know a rank by the name under which its server was started, and the
servers of a job that meets by discovery have no such names. But every worker talks to every
parameter server. So what the ranks add up goes there: each puts its tensor into a queue, rank 0's
graph takes all of them out, on the server, and puts the result into a queue for each rank. A tensor
crosses to the server and back once per rank, as a dense variable on a server does; one collective
after the other takes the next server.

Every op has queues of its own, so that no order of ops must be kept. Ranks must make the same
collectives in the same order, as for `monolith.graph.tensorflow_collectives`. Who waits for a rank
that is gone waits until somebody ends its connections to the servers.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.graph import devices
from monolith.graph.rank_place import Place
from monolith.graph.tensorflow_collectives import count_collective

# Collection of a graph: what waits for other ranks.
MEETINGS = "monolith_meetings_on_servers"


class ServerRanks:
    """The workers of a job as ranks; they meet on its servers.

    Args:
        place: Which rank this process is; of at least two.
        num_servers: How many servers there are.
        meeting: Tells this meeting from all others on these servers, the same in all ranks. Who
            was in one that failed needs another: something may wait there for it.
    """

    #: A session is that of the job.
    session_target = ""

    def __init__(self, place: Place, num_servers: int, meeting: str) -> None:
        self.place = place
        self._num_servers = num_servers
        self._meeting = meeting

    def update_session_config(self, config: Any) -> None:
        """Leaves it as it is: the sessions of the job see its servers."""

    def reduce(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the tensors of all ranks, which have one shape."""
        return tf.ensure_shape(self._meet(tensor, tf.add_n), tensor.shape)

    def gather(self, tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows of all ranks, in their order, and how many each has, as int32."""
        rows = self._meet(tensor, _concat)
        num_rows = self.gather_same(tf.shape(tensor)[:1])
        return tf.ensure_shape(rows, [None, *tensor.shape[1:]]), num_rows

    def gather_same(self, flat: tf.Tensor) -> tf.Tensor:
        """Returns the vectors of all ranks, which are of one size, behind one another."""
        return tf.ensure_shape(self._meet(flat, _concat), [None])

    def exchange(self, tensor: tf.Tensor, splits: tf.Tensor, counts: Any = None) -> Any:
        """Is not there.

        Raises:
            ConfigError: Always.
        """
        raise errors.ConfigError(
            "Workers beside parameter servers do not exchange rows with each other; `alltoall` is "
            "for ranks that share the tables, see `distributed_sync_train`."
        )

    def _meet(
        self, tensor: tf.Tensor, combine: Callable[[list[tf.Tensor]], tf.Tensor]
    ) -> tf.Tensor:
        """Returns what rank 0 makes of the tensors of all ranks."""
        number = count_collective()
        graph = tf.compat.v1.get_default_graph()
        with (
            tf.name_scope("meet_on_server"),
            graph.colocate_with(None, ignore_existing=True),
            tf.device(devices.ps_device(number % self._num_servers)),
        ):
            others = range(1, self.place.size)
            if self.place.rank == 0:
                given = [self._make_queue(number, r, tensor.dtype, "to").dequeue() for r in others]
                for part in given:
                    tf.compat.v1.add_to_collection(MEETINGS, part.op)
                total = combine([tensor, *given])
                answers = [
                    self._make_queue(number, r, tensor.dtype, "from").enqueue(total) for r in others
                ]
                with tf.control_dependencies(answers):
                    return tf.identity(total)
            rank = self.place.rank
            sent = self._make_queue(number, rank, tensor.dtype, "to").enqueue(tensor)
            with tf.control_dependencies([sent]):
                answer = self._make_queue(number, rank, tensor.dtype, "from").dequeue()
            tf.compat.v1.add_to_collection(MEETINGS, answer.op)
            return answer

    def _make_queue(self, number: int, rank: int, dtype: tf.DType, way: str) -> tf.queue.FIFOQueue:
        name = f"monolith_ranks/{self._meeting}/{number}/{way}/{rank}"
        return tf.queue.FIFOQueue(1, [dtype], shared_name=name)


def _concat(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tf.concat(tensors, 0)
