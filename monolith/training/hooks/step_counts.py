"""How many steps and examples a worker has trained on; for who looks from another thread.

Example:
    >>> with tf.Graph().as_default():
    ...     collect_batch_size({"user": tf.RaggedTensor.from_row_lengths([7, 8, 9], [1, 2])})
    ...     step = tf.compat.v1.train.get_or_create_global_step().assign_add(1)
    ...     hook = StepCountHook()
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         for _ in range(3):
    ...             _ = session.run(step)
    >>> hook.totals
    Totals(steps=3, examples=6)
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

_BATCH_SIZE = "monolith_batch_size"


def collect_batch_size(ids: Mapping[str, tf.RaggedTensor]) -> None:
    """Notes in the default graph how many examples the batch of a step has.

    Args:
        ids: The ids of each feature, one row per example, as the step itself sees them: behind
            the queue, if there is one.
    """
    for value in ids.values():
        if isinstance(value, tf.RaggedTensor):
            tf.compat.v1.add_to_collection(_BATCH_SIZE, value.nrows())
            return


class Totals(NamedTuple):
    """What a worker has trained on.

    Attributes:
        steps: Steps of all sessions.
        examples: Their examples; None where the graph does not tell.
    """

    steps: int = 0
    examples: int | None = None


class StepCountHook(tf.compat.v1.train.SessionRunHook):
    """Counts; that costs a step the fetch of one number.

    Attributes:
        totals: What was counted so far; of one moment, whoever reads it.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self._args: tf.compat.v1.train.SessionRunArgs | None = None

    def begin(self) -> None:
        sizes = tf.compat.v1.get_collection(_BATCH_SIZE)
        self._args = tf.compat.v1.train.SessionRunArgs(sizes[-1]) if sizes else None
        if sizes and self.totals.examples is None:
            self.totals = self.totals._replace(examples=0)

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs | None:
        return self._args

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        steps, examples = self.totals
        if examples is not None and run_values.results is not None:
            examples += int(run_values.results)
        self.totals = Totals(steps + 1, examples)
