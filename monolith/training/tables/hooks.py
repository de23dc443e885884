"""The hooks that a training session runs with, in the order in which they must act.

Every worker gets those that keep it in step with the others; the chief restores the model before
anybody trains, saves it, and measures.
"""

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from monolith.checkpoint import dense_reload, saver
from monolith.checkpoint.changed_model import OnChange
from monolith.checkpoint.restore_hook import CheckpointRestorerHook, CheckpointRestorerListener
from monolith.checkpoint.saver_hook import NoFirstSaveCheckpointSaverHook
from monolith.data import seekable
from monolith.embedding import filters
from monolith.embedding.tables.snapshots import TableRestorerListener
from monolith.graph import mode_keys
from monolith.model.task import NativeTask
from monolith.tensor import look_ahead
from monolith.training import restore_override
from monolith.training.config.checkpoint import StartSettings
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.controller.barrier import BarrierHook, BarrierOp
from monolith.training.hooks import server_health, serving_sync, sync, sync_training
from monolith.training.hooks.checkpoint_barrier import (
    SAVE_ACTION,
    WorkerCkptHelper,
    disable_iterator_save_restore,
)
from monolith.training.hooks.current_session import SetCurrentSessionHook
from monolith.training.hooks.profiler import Tf2ProfilerHook
from monolith.training.hooks.rank_flags import AgreementHook, RankFlags, StopTogetherHook
from monolith.training.hooks.rank_saves import MeetBeforeRestoreHook
from monolith.training.hooks.step_gate import StepGate
from monolith.training.hooks.stream_wait import StreamWaitHook
from monolith.training.hooks.throughput import ThroughputMetricHook
from monolith.training.hooks.tide import CustomGlobalStepWaiterHook
from monolith.training.tables import own_variables, save
from monolith.training.tables.save import SaveContext

if TYPE_CHECKING:
    from monolith.training.tables.training import CpuTraining

Hooks = tuple[tf.compat.v1.train.SessionRunHook, ...]

_PROFILED_STEPS = 10
# All workers stand still while a checkpoint is written, so they look often whether it is done.
_BARRIER_POLL_SEC = 0.2


class HookLists(NamedTuple):
    """The hooks of a training session.

    Attributes:
        first: Of every worker, before all others.
        last: Of every worker, after all others.
        chief: Of the chief alone.
    """

    first: Hooks
    last: Hooks
    chief: Hooks


def go_back(config: CpuTrainingConfig, model_dir: str, params: Any) -> None:
    """Has a training start from `restore_ckpt`, once; before anybody asks for the last checkpoint.

    Args:
        config: The job; only the chief of one calls this.
        model_dir: Where checkpoints are and go.
        params: Settings of the task.

    Raises:
        errors.ConfigError: There is no such checkpoint.
    """
    if not model_dir or not isinstance(config, StartSettings):
        return
    # Together with a directory it chooses there, and that was done before.
    if config.restore_dir or not config.restore_ckpt:
        return
    save.prepare_model_dir(model_dir, params)
    restore_override.go_back(model_dir, config.restore_ckpt)


def keeps_servers(config: CpuTrainingConfig) -> bool:
    """Returns whether a restore leaves servers alone that still have their part of the model."""
    return bool(config.partial_recovery) and config.num_ps > 1


class TrainingHooks:
    """Makes the hooks of one training graph, after everything else is in it.

    Args:
        config: The job.
        task: The model.
        model_dir: Where checkpoints are and go.
        is_chief: Whether this worker restores and saves.
        hash_filters: The admission filter of each server.
        enable_hash_filter: Whether the filters count anything.
        training: The task, ready for an estimator; saves may export it.
        step_gate: Keeps steps and saves apart, and has pushed what a checkpoint must hold.
        others: What this process knows of the other members, if there are some.
        sync_clients: Who is told which rows change; None if nothing is sent to a serving side.
        rank_flags: If the ranks of a job share the tables, and there are several: what they tell
            each other in a step.
    """

    def __init__(
        self,
        config: CpuTrainingConfig,
        task: NativeTask,
        model_dir: str,
        is_chief: bool,
        hash_filters: Sequence[tf.Tensor],
        enable_hash_filter: bool,
        training: "CpuTraining",
        step_gate: StepGate,
        others: sync.Others | None = None,
        sync_clients: Sequence[tf.Tensor] | None = None,
        rank_flags: RankFlags | None = None,
    ) -> None:
        self._others = others
        self._sync_clients = sync_clients
        self._rank_flags = rank_flags
        self._training = training
        self._step_gate = step_gate
        self._config = config
        self._task = task
        self._model_dir = model_dir
        self._is_chief = is_chief
        self._hash_filters = hash_filters
        self._enable_hash_filter = enable_hash_filter
        # A restore that leaves servers alone is one that can tell which of them are new.
        self._ps_monitor = saver.PsMonitor(config.num_ps) if keeps_servers(config) else None

    def create_restore_hook(self, is_training: bool = False) -> CheckpointRestorerHook:
        """Makes the hook that brings tables, filters and renamed variables back.

        Args:
            is_training: Whether a training starts from them. Only that may leave something out, and
                start it anew: who evaluates or predicts wants what was trained.
        """
        if not self._model_dir:
            return CheckpointRestorerHook()
        config = self._config
        changed_model = self._task.p.train.changed_model
        if changed_model is not None and not is_training:
            changed_model = OnChange.REFUSE
        basename = os.path.join(self._model_dir, save.CHECKPOINT_BASENAME)
        listeners: list[CheckpointRestorerListener] = [
            TableRestorerListener(basename, self._ps_monitor, changed_model=changed_model),
            filters.HashFilterCheckpointRestorerListener(
                basename,
                self._hash_filters,
                self._enable_hash_filter,
                enable_save_restore=not config.enable_full_sync_training
                and config.filter_type != filters.FilterType.PROBABILISTIC_FILTER,
            ),
            dense_reload.CustomRestoreListener(
                config.reload_alias_map,
                config.clear_nn and is_training,
                config.continue_training,
                model_dir=self._model_dir,
                enable_alias_map_auto_gen=config.enable_alias_map_auto_gen,
            ),
        ]
        return CheckpointRestorerHook(listeners)

    def create_for_training(self) -> HookLists:
        """Returns the hooks of every worker, and those of the chief."""
        config = self._config
        if self._is_chief:
            go_back(config, self._model_dir, self._task.p)
        if config.enable_full_sync_training:
            return self._create_for_ranks()
        if config.enable_partial_sync_training:
            return self._create_beside_servers()
        splits = self._training.splits
        if splits is not None:
            # What is read and what not, the splits say.
            disable_iterator_save_restore()
        checkpoint_helper = WorkerCkptHelper(self._model_dir, config.index, with_model=True)
        barrier_op = BarrierOp(
            config.num_workers,
            is_chief=self._is_chief,
            wait_seconds=_BARRIER_POLL_SEC,
            sleep=None if self._others is None else self._others.sleep,
            barrier_callbacks=[
                self._push_before_save,
                *([] if splits is None else [splits.note_pushed]),
                checkpoint_helper.create_save_iterator_callback(),
            ],
        )
        sync_hooks = sync.TrainingHooksHelper(
            config.num_workers > 1,
            config.num_workers,
            config.index,
            config.chief_timeout_secs,
            self._others,
        )
        first, last = sync_hooks.first_and_last_hooks
        if splits is not None:
            first = [*first, splits.create_hook()]
            last = [splits.create_end_hook(), *last]
        hooks: list[tf.compat.v1.train.SessionRunHook] = [
            SetCurrentSessionHook(),
            *first,
            BarrierHook(config.index, barrier_op),
        ]
        params = self._task.p
        if params.mode == mode_keys.ModeKeys.TRAIN:
            if params.train.slow_start_steps:
                hooks.append(self._create_slow_start_hook(params.train.slow_start_steps))
            # An evaluation has another input, which starts at its beginning.
            hooks.append(checkpoint_helper.create_restorer_hook())
        if not self._is_chief:
            return HookLists((*self._create_wait_hooks(barrier_op), *hooks), tuple(last), ())
        chief_hooks = [
            # Before all others: at the end, too, all must be pushed before the last save.
            *self._step_gate.hooks,
            *self._create_health_hooks(barrier_op),
            self.create_restore_hook(is_training=params.mode == mode_keys.ModeKeys.TRAIN),
            *([] if splits is None else [splits.create_desk_hook()]),
            *sync_hooks.training_chief_hooks,
            *save.create_save_hooks(self._make_save_context(barrier_op, checkpoint_helper)),
            *self._create_metric_hooks(),
            *self._create_serving_sync_hooks(),
        ]
        chief_hooks = [*self._create_wait_hooks(barrier_op, chief_hooks), *chief_hooks]
        return HookLists(tuple(hooks), tuple(last), tuple(chief_hooks))

    def _create_for_ranks(self) -> HookLists:
        """Returns the hooks of a rank; all that train and save stand at the same step."""
        agreement = None
        first: list[tf.compat.v1.train.SessionRunHook] = [SetCurrentSessionHook()]
        if self._rank_flags is not None:
            save.check_rank_saves(self._config, self._task.p)
            stop_hook = StopTogetherHook()
            agreement = AgreementHook(self._rank_flags, stop_hook)
            self._training.agreement = agreement
            first.append(stop_hook)
        checkpoint_helper = self._create_checkpoint_helper(agreement)
        context = self._make_save_context(None, checkpoint_helper, agreement)
        is_training = self._task.p.mode == mode_keys.ModeKeys.TRAIN
        # Each rank has a session of its own, of which it is the chief.
        chief_hooks = [
            *self._step_gate.hooks,
            self.create_restore_hook(is_training=is_training),
            *([] if agreement is None else [agreement]),
        ]
        if self._is_chief:
            save_hooks = save.create_save_hooks(context)
            chief_hooks += self._create_operator_hooks(save_hooks)
            chief_hooks += [*save_hooks, *self._create_metric_hooks()]
        else:
            chief_hooks += self._create_operator_hooks([])
            chief_hooks.append(save.create_follower_hook(context))
        if is_training:
            first.append(checkpoint_helper.create_restorer_hook())
        return HookLists(tuple(first), (MeetBeforeRestoreHook(),), tuple(chief_hooks))

    def _create_operator_hooks(
        self, save_hooks: Sequence[tf.compat.v1.train.SessionRunHook]
    ) -> list[tf.compat.v1.train.SessionRunHook]:
        """Returns what acts on files of an operator; none, unless the config asks for it.

        Args:
            save_hooks: Those of rank 0; the other ranks have none.
        """
        steps = self._config.operator_files_steps
        if steps is None:
            return []
        timers = [
            hook.timer for hook in save_hooks if isinstance(hook, NoFirstSaveCheckpointSaverHook)
        ]
        # The one that saves everything is the first.
        return sync_training.create_operator_hooks(self._model_dir, steps, *timers)

    def _create_beside_servers(self) -> HookLists:
        """Returns the hooks of a worker that does steps with the others, over tables on servers."""
        agreement = None
        if self._rank_flags is not None:
            save.check_rank_saves(self._config, self._task.p)
            assert self._training.stop_hook is not None
            agreement = AgreementHook(self._rank_flags, self._training.stop_hook)
            self._training.agreement = agreement
        checkpoint_helper = self._create_checkpoint_helper(agreement)
        first: list[tf.compat.v1.train.SessionRunHook] = [
            SetCurrentSessionHook(),
            own_variables.TakeFromChiefHook(),
            checkpoint_helper.create_restorer_hook(),
        ]
        agreements = [] if agreement is None else [agreement]
        context = self._make_save_context(None, checkpoint_helper, agreement)
        if not self._is_chief:
            follower = save.create_follower_hook(context)
            # At the end it has everything pushed, too, and says so, before the chief saves.
            return HookLists((*first, *self._step_gate.hooks, *agreements, follower), (), ())
        chief_hooks = [
            *self._step_gate.hooks,
            self.create_restore_hook(is_training=True),
            *agreements,
            *save.create_save_hooks(context),
            *self._create_metric_hooks(),
        ]
        return HookLists(tuple(first), (), tuple(chief_hooks))

    def _create_checkpoint_helper(self, agreement: AgreementHook | None) -> WorkerCkptHelper:
        """Returns what knows how far this process has read; it ends when all ranks have."""
        return WorkerCkptHelper(
            self._model_dir,
            self._config.index,
            with_model=True,
            has_ended=None if agreement is None else lambda: agreement.have_all_ended,
        )

    def _push_before_save(self, action: str, session: tf.compat.v1.Session) -> None:
        """Pushes what a worker that waits for a save has not; the chief has when this is called."""
        if action == SAVE_ACTION and not self._is_chief:
            self._step_gate.drain(session)

    def _create_wait_hooks(
        self,
        barrier_op: BarrierOp,
        chief_hooks: Sequence[tf.compat.v1.train.SessionRunHook] = (),
    ) -> list[tf.compat.v1.train.SessionRunHook]:
        """Returns the hook of a worker that waits for a stream; it goes before all others.

        While it waits, it stands at the barrier like the others, and a chief saves when it is time.
        """
        queue_hooks = look_ahead.get_hooks()
        if not queue_hooks or not seekable.reads_stream():
            return []
        savers = [hook for hook in chief_hooks if isinstance(hook, NoFirstSaveCheckpointSaverHook)]
        index, others = self._config.index, self._others

        def rest(session: tf.compat.v1.Session) -> None:
            if others is not None:
                others.check()
            if not self._is_chief and barrier_op.is_barrier_placed(session):
                barrier_op.wait_until_barrier_removed(session, index)
            for saver_hook in savers:
                saver_hook.save_if_due(session)

        is_stopping = (lambda: False) if others is None else others.is_stopping
        return [StreamWaitHook(queue_hooks[-1], seekable.get_streams(), rest, is_stopping)]

    def _create_slow_start_hook(self, slow_start_steps: int) -> tf.compat.v1.train.SessionRunHook:
        steps = int(slow_start_steps * math.log(1 + self._config.index))
        return CustomGlobalStepWaiterHook(
            steps, max_non_tide_wait_minute=self._config.max_slow_start_wait_minute
        )

    def _create_health_hooks(
        self, barrier_op: BarrierOp
    ) -> list[tf.compat.v1.train.SessionRunHook]:
        if self._config.num_ps == 0:
            return []
        return [
            server_health.PsHealthCheckerHook(
                server_health.Config(barrier_op=barrier_op, num_ps=self._config.num_ps)
            )
        ]

    def _make_save_context(
        self,
        barrier_op: BarrierOp | None,
        checkpoint_helper: WorkerCkptHelper,
        agreement: AgreementHook | None = None,
    ) -> SaveContext:
        return SaveContext(
            training=self._training,
            config=self._config,
            params=self._task.p,
            model_dir=self._model_dir,
            barrier_op=barrier_op,
            checkpoint_helper=checkpoint_helper,
            step_gate=self._step_gate,
            hash_filters=self._hash_filters,
            enable_hash_filter=self._enable_hash_filter,
            ps_monitor=self._ps_monitor,
            others=self._others,
            agreement=agreement,
        )

    def _create_serving_sync_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        config = self._config
        if self._sync_clients is None or not serving_sync.is_synced(config):
            return []
        sync_config = serving_sync.make_sync_config(config)
        backend = serving_sync.make_backend(config)
        assert backend is not None
        # The tables of a cluster are in its servers, which send their rows themselves.
        is_cluster = self._others is not None and config.num_ps > 0
        clients = () if is_cluster else self._sync_clients
        return [serving_sync.ServingSyncHook(backend, sync_config, clients)]

    def _create_metric_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        config, metrics = self._config, self._task.p.metrics
        hooks: list[tf.compat.v1.train.SessionRunHook] = []
        start = config.profile_some_steps_from
        if metrics.enable_tf2_profiler_hook and start is not None:
            hooks.append(
                Tf2ProfilerHook(
                    logdir=self._model_dir,
                    init_step_range=(start, start + _PROFILED_STEPS),
                    save_steps=config.profile_save_steps_interval,
                )
            )
        if metrics.enable_throughput_hook:
            hooks.append(
                ThroughputMetricHook(
                    config.model_name,
                    start_time_secs=config.containers_ready_time_secs,
                    cluster_type=config.cluster_type,
                )
            )
        return hooks
