"""How many ids ranks ask each other for, as summaries: what an exchange costs, and of whom.

Flags turn them on; each rank counts what it asks for itself, and rank 0 writes what it has counted.

Example:
    >>> from absl.testing import flagsaver
    >>> with tf.Graph().as_default(), flagsaver.as_parsed(enable_alltoall_metrics="true"):
    ...     # Of slot "item", 3 ids of rank 0 and 1 of rank 1; of "user", 2 of rank 0.
    ...     count_ids(["item", "user"], tf.constant([3, 2, 1, 0]), num_ranks=2)
    ...     [summary.op.name for summary in tf.compat.v1.get_collection("summaries")]
    ['alltoall/ids_of_rank_0', 'alltoall/ids_of_rank_1']
"""

from collections.abc import Sequence

import tensorflow as tf
from absl import flags

from monolith import errors

FLAGS = flags.FLAGS

flags.DEFINE_bool(
    "enable_alltoall_metrics",
    False,
    "Whether a rank of a synchronous job writes how many ids it asks each rank for, as summaries.",
)
flags.DEFINE_string(
    "enable_alltoall_metrics_for_slot",
    None,
    "The slot whose ids are counted beside those of all slots together.",
)


def count_ids(slots: Sequence[str], sharded_slot_sizes: tf.Tensor, num_ranks: int) -> None:
    """Adds the summaries to the graph, if flags ask for them.

    Args:
        slots: All slots, in their order.
        sharded_slot_sizes: How many ids of each slot this rank asks for, rank by rank, [N * K].
        num_ranks: How many ranks there are, N.

    Raises:
        ConfigError: The slot of the flag is not among them.
    """
    # Not as attributes: a program that has parsed no flags has their defaults.
    if tf.executing_eagerly() or not FLAGS["enable_alltoall_metrics"].value:
        return
    slot = FLAGS["enable_alltoall_metrics_for_slot"].value
    if slot is not None and slot not in slots:
        raise errors.ConfigError(
            f"--enable_alltoall_metrics_for_slot is {slot!r}, but the slots are {list(slots)}; "
            "name one of them, or leave it out."
        )
    sizes = tf.reshape(sharded_slot_sizes, [num_ranks, len(slots)])
    counts = {"alltoall": tf.reduce_sum(sizes, 1)}
    if slot is not None:
        counts[f"alltoall/{slot}"] = sizes[:, list(slots).index(slot)]
    for name, of_ranks in counts.items():
        for rank in range(num_ranks):
            tf.compat.v1.summary.scalar(f"{name}/ids_of_rank_{rank}", of_ranks[rank])
