"""One checkpoint of all ranks: each writes the rows that it has, rank 0 makes it complete.

    rank 0                                      the others
    marks the save, says WRITE             -->  write their rows and the position of their input
    writes its own
    asks whether all have (CHECK)          <--  say whether they could
    variables, manifest, the list; SAVED   -->  go on training

Nothing but rank 0 makes a checkpoint visible, and it does so when the files of all ranks are there
and in the manifest. So a kill of any rank at any moment leaves the checkpoint before, or this one.
A rank that could not write fails the save, which rank 0 then tries once more.
"""

import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from monolith.graph import collectives
from monolith.training.hooks.rank_flags import AgreementHook
from monolith.training.hooks.step_gate import StepGate

logger = logging.getLogger(__name__)

# What rank 0 says.
_WRITE, _CHECK, _SAVED, _NOT_SAVED = 1, 2, 3, 4
# What others say.
_NOTHING, _WRITTEN, _FAILED = 0, 1, 2


class RankTalk:
    """A number of each rank, told to all; between two steps, by all ranks at once."""

    def __init__(self) -> None:
        self._own = tf.compat.v1.placeholder(tf.int32, [1])
        self._all = collectives.allgather(self._own, name="save_talk", same_shape=True)

    def tell(self, session: tf.compat.v1.Session, number: int) -> list[int]:
        """Returns what each rank has told."""
        with collectives.named_losses():
            return [int(told) for told in session.run(self._all, {self._own: [number]})]


class RankLeader:
    """Rank 0's part; gives the listeners of the hook that saves what they need.

    Attributes:
        first: Goes before all listeners that write.
        last: Goes behind them.
        guard: Goes last among those that guard the save.
    """

    def __init__(self) -> None:
        talk = RankTalk()
        self.first: tf.compat.v1.train.CheckpointSaverListener = _BeginListener(talk)
        self.last: tf.compat.v1.train.CheckpointSaverListener = _CheckListener(talk)
        self.guard: tf.compat.v1.train.CheckpointSaverListener = _EndListener(talk, self.last)


class _BeginListener(tf.compat.v1.train.CheckpointSaverListener):
    def __init__(self, talk: RankTalk) -> None:
        self._talk = talk

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        self._talk.tell(session, _WRITE)


class _CheckListener(tf.compat.v1.train.CheckpointSaverListener):
    def __init__(self, talk: RankTalk) -> None:
        self._talk = talk
        self.is_saved = False

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        told = self._talk.tell(session, _CHECK)
        failed = [rank for rank, answer in enumerate(told) if rank and answer != _WRITTEN]
        if failed:
            raise tf.errors.UnknownError(
                None,
                None,
                f"Rank {', '.join(map(str, failed))} could not write its part of step "
                f"{global_step_value}; its log says why.",
            )

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        self.is_saved = True


class _EndListener(tf.compat.v1.train.CheckpointSaverListener):
    """Lets the other ranks go on, whether the save went well or not."""

    def __init__(self, talk: RankTalk, check: Any) -> None:
        self._talk = talk
        self._check = check

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        self._check.is_saved = False

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        self._talk.tell(session, _SAVED if self._check.is_saved else _NOT_SAVED)


class RankFollowerHook(tf.compat.v1.train.SessionRunHook):
    """The part of the other ranks.

    Args:
        agreement: Says when ranks save.
        step_gate: Has pushed what is pushed late, as that of rank 0 does.
        listeners: Write this rank's part, `before_save`; their `after_save` is called when the
            checkpoint is there.
        always_saves_at_end: Whether rank 0 saves at the end, also if nothing has changed since.
    """

    def __init__(
        self,
        agreement: AgreementHook,
        step_gate: StepGate,
        listeners: Sequence[tf.compat.v1.train.CheckpointSaverListener],
        always_saves_at_end: bool = False,
    ) -> None:
        self._agreement = agreement
        self._step_gate = step_gate
        self._listeners = list(listeners)
        self._always_saves_at_end = always_saves_at_end
        self._talk = RankTalk()
        self._global_step: tf.Tensor | None = None
        self._last_step = -1

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step().read_value()
        for listener in self._listeners:
            listener.begin()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._last_step = int(session.run(self._global_step))

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        if self._agreement.must_save:
            session = run_context.session
            self._follow(session, int(session.run(self._global_step)))

    def end(self, session: tf.compat.v1.Session) -> None:
        step = int(session.run(self._global_step))
        if self._always_saves_at_end or step != self._last_step:
            self._follow(session, step)

    def _follow(self, session: tf.compat.v1.Session, step: int) -> None:
        self._last_step = step
        self._step_gate.drain(session)
        said = self._talk.tell(session, _NOTHING)[0]
        while said in (_WRITE, _CHECK):
            if said == _CHECK:
                said = self._talk.tell(session, _NOTHING)[0]
                continue
            # If rank 0 fails meanwhile, it says WRITE once more instead of CHECK.
            said = self._talk.tell(session, self._write(session, step))[0]
        if said == _SAVED:
            for listener in self._listeners:
                listener.after_save(session, step)

    def _write(self, session: tf.compat.v1.Session, step: int) -> int:
        try:
            for listener in self._listeners:
                listener.before_save(session, step)
        except tf.errors.OpError:
            logger.exception(
                "rank %d could not write its part of step %d", collectives.rank(), step
            )
            return _FAILED
        return _WRITTEN


class MeetBeforeRestoreHook(tf.compat.v1.train.SessionRunHook):
    """Has all ranks wait until rank 0 has put the model directory in order.

    Goes last: sessions restore when all hooks have begun.
    """

    def begin(self) -> None:
        collectives.gather_numbers([0])
