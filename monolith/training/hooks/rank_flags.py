"""What ranks tell each other in every step: who has had its last batch, whether to save, to stop.

Ranks wait for each other in each step, so all must save, and all must stop, after the same one.
What makes one of them want that, a clock, a signal, a hook that has seen enough, comes to each at
another moment. So each puts what it wants into a small vector, and the step adds up those of all
ranks.

Example:
    >>> collectives.init()
    >>> with tf.Graph().as_default():
    ...     flags = RankFlags(is_last=tf.constant(True))
    ...     with tf.compat.v1.Session() as session:
    ...         session.run(tf.compat.v1.local_variables_initializer())
    ...         flags.ask(session, save=True)
    ...         flags.read(session.run(flags.totals))
    Agreed(num_ended=1, num_active=1, must_stop=False, must_save=True, is_told=False)
    >>> collectives.shutdown()
"""

import logging
import signal
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from monolith import errors
from monolith.data.errors import describe_empty_input
from monolith.graph import collectives
from monolith.training.hooks.interrupt import StopOnSignalHook

logger = logging.getLogger(__name__)


class Agreed(NamedTuple):
    """What all ranks know after a step.

    Attributes:
        num_ended: How many have had their last batch.
        num_active: How many had data of their own in this step.
        must_stop: Whether one wants to stop.
        must_save: Whether one wants to save.
        is_told: Whether one was sent a signal, which is why it wants to stop.
    """

    num_ended: int
    num_active: int
    must_stop: bool
    must_save: bool
    is_told: bool


class RankFlags:
    """The vector that ranks add up in a step; made once per graph.

    Args:
        is_last: Whether the batch of the step is the last of this rank; None if nobody knows.
        is_idle: Whether this rank has no data left, and repeats what it had; None for no.
    """

    def __init__(self, is_last: tf.Tensor | None = None, is_idle: tf.Tensor | None = None) -> None:
        last = tf.constant(False) if is_last is None else is_last
        idle = tf.constant(False) if is_idle is None else is_idle
        # Fed by a rank that is done, and does not read any more.
        self.fed_last = tf.compat.v1.placeholder_with_default(tf.reshape(last, [1]), [1])
        self.fed_idle = tf.compat.v1.placeholder_with_default(tf.reshape(idle, [1]), [1])
        self._asked = tf.compat.v1.get_variable(
            "monolith_rank_asks",
            shape=[3],
            dtype=tf.int32,
            initializer=tf.compat.v1.zeros_initializer(),
            trainable=False,
            use_resource=True,
            collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
        )
        self._new = tf.compat.v1.placeholder(tf.int32, [3])
        self._ask = self._asked.assign(self._new, read_value=False)
        own = [
            tf.cast(self.fed_last, tf.int32),
            tf.cast(tf.logical_not(self.fed_idle), tf.int32),
            self._asked.read_value(),
        ]
        self.totals = collectives.allreduce(tf.concat(own, 0), collectives.Sum)
        tf.compat.v1.add_to_collection(collectives.NUM_ACTIVE, self.totals[1])

    def ask(
        self,
        session: tf.compat.v1.Session,
        *,
        stop: bool = False,
        save: bool = False,
        is_told: bool = False,
    ) -> None:
        """Says what this rank wants, and whether since it was told, from the next step on."""
        session.run(self._ask, {self._new: [int(stop), int(save), int(is_told)]})

    @staticmethod
    def read(totals: Any) -> Agreed:
        """Returns what a step has added up."""
        ended, active, stop, save, told = (int(total) for total in totals)
        return Agreed(ended, active, stop > 0, save > 0, told > 0)


def check_active(agreed: Agreed) -> None:
    """Refuses a step in which no rank has had a batch; training ends before such a one comes.

    Raises:
        ConfigError: The inputs of all ranks are empty.
    """
    if agreed.num_active == 0:
        raise errors.ConfigError(describe_empty_input("trained"))


class StopTogetherHook(StopOnSignalHook):
    """Notes a signal, and leaves it to the ranks to stop together."""

    def __init__(self) -> None:
        super().__init__(only_default=True)

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Stops nobody yet: the others are about to do their first step."""

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        """Stops nobody: an `AgreementHook` does."""


class AgreementHook(tf.compat.v1.train.SessionRunHook):
    """Has all ranks save, and stop, after the same step; goes before the hooks that save.

    Args:
        flags: Added up in each step.
        stop_hook: Knows whether this rank was sent a signal.
        wants_save: Called with the step that comes next; whether to save after it. Only rank 0
            has one.
    """

    def __init__(
        self,
        flags: RankFlags,
        stop_hook: StopTogetherHook,
        wants_save: Callable[[int], bool] | None = None,
    ) -> None:
        self._flags = flags
        self._stop_hook = stop_hook
        self.wants_save = wants_save
        #: Whether a hook of this rank has asked to stop.
        self.wants_stop = False
        self._asked = (False, False, False)
        self._step = 0
        self._global_step: tf.Tensor | None = None
        self.must_save = False
        #: Whether all ranks stop after the step that has just ended.
        self.must_stop = False
        #: Whether all ranks have had their last batch.
        self.have_all_ended = False
        self._is_told = False

    @property
    def received(self) -> signal.Signals | None:
        """The signal that has stopped the ranks; of another rank, as if it were SIGTERM."""
        if not self.must_stop:
            return None
        return self._stop_hook.received or (signal.SIGTERM if self._is_told else None)

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step().read_value()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._step = int(session.run(self._global_step))
        self._asked = (False, False, False)
        self.have_all_ended = False

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        self.must_save = False
        is_told = self._stop_hook.received is not None
        save = self.wants_save is not None and self.wants_save(self._step + 1)
        stop = is_told or self.wants_stop
        if (stop, save, is_told) != self._asked:
            self._asked = (stop, save, is_told)
            self._flags.ask(run_context.session, stop=stop, save=save, is_told=is_told)
        return tf.compat.v1.train.SessionRunArgs(self._flags.totals)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        agreed = self._flags.read(run_values.results)
        check_active(agreed)
        self._step += 1
        self.must_save = agreed.must_save
        self.have_all_ended = agreed.num_ended == collectives.size()
        if agreed.must_stop and not self.must_stop:
            self._is_told = agreed.is_told
            why = "was told to stop" if agreed.is_told else "has a hook that asks to stop"
            logger.warning("a rank %s: all stop after step %d", why, self._step)
        self.must_stop = agreed.must_stop
        if agreed.must_stop:
            run_context.request_stop()


class LocalStopHook(tf.compat.v1.train.SessionRunHook):
    """Has all ranks stop if a hook of this one asks to.

    The others are about to wait for this rank in the next step. So it does that step, too, in which
    they learn of it. Goes behind all hooks but those that ask in the same step of all ranks.

    Args:
        agreement: By which they learn of it.
    """

    def __init__(self, agreement: AgreementHook) -> None:
        self._agreement = agreement

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        agreement = self._agreement
        if not run_context.stop_requested or agreement.must_stop or agreement.have_all_ended:
            return
        agreement.wants_stop = True
        # TensorFlow knows no way to take it back.
        run_context._stop_requested = False


class AgreedTimer:
    """The timer of a hook that saves when all ranks do.

    Args:
        timer: Says when rank 0 wants to save.
        agreement: Says when all do.
    """

    def __init__(self, timer: Any, agreement: AgreementHook) -> None:
        self._timer = timer
        self._agreement = agreement
        agreement.wants_save = timer.should_trigger_for_step

    def should_trigger_for_step(self, step: int) -> bool:
        """Returns whether the ranks save after the step that has just ended."""
        del step
        return self._agreement.must_save

    def __getattr__(self, name: str) -> Any:
        if name == "_timer":  # Before it is set, as while it is copied.
            raise AttributeError(name)
        return getattr(self._timer, name)
