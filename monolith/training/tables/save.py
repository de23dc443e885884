"""What is written while a model trains, and how often: checkpoints, with tables beside variables.

A save goes through listeners in order: tables and filters are written first, TensorFlow's variables
after them, and only then does the file `checkpoint` name the new one.
"""

import dataclasses
import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from monolith import errors
from monolith.checkpoint import deltas, fallback, manifest, unfinished, unlisted
from monolith.checkpoint import state as checkpoint_state
from monolith.checkpoint.changed_model import OnChange
from monolith.checkpoint.saver import PartialRecoverySaver
from monolith.checkpoint.saver_hook import NoFirstSaveCheckpointSaverHook
from monolith.checkpoint.server_monitor import PsMonitor
from monolith.checkpoint.state import MONOLITH_CKPT_STATE_FILE_NAME, get_monolith_checkpoint_state
from monolith.core import directories
from monolith.core.hyperparams import Params
from monolith.embedding import filters
from monolith.embedding.tables.incremental import IncrementalCheckpointSaverHook
from monolith.embedding.tables.snapshots import TableRestorerSaverListener, TableSaverListener
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.controller import files
from monolith.training.controller.barrier import BarrierOp
from monolith.training.controller.server import ServerHook
from monolith.training.hooks.checkpoint_barrier import BarrierSaverListener, WorkerCkptHelper
from monolith.training.hooks.checkpoint_info import FidSlotCountSaverListener
from monolith.training.hooks.rank_flags import AgreedTimer, AgreementHook
from monolith.training.hooks.rank_saves import RankFollowerHook, RankLeader
from monolith.training.hooks.step_gate import StepGate
from monolith.training.hooks.stopping_servers import StoppingServers
from monolith.training.hooks.sync import Others
from monolith.training.tables import export

if TYPE_CHECKING:
    from monolith.training.tables.training import CpuTraining

logger = logging.getLogger(__name__)

CHECKPOINT_BASENAME = "model.ckpt"
DENSE_ONLY_DIR = "dense_only"

_KEEP_CHECKPOINT_EVERY_N_HOURS = 24
# If nobody says how often to save, only the end of training does.
_NEVER_STEPS = 100000000
_BARRIER_POLL_SEC = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveContext:
    """What the graph has that a save needs to know.

    Attributes:
        training: The task, ready for an estimator.
        config: The job.
        params: The task.
        model_dir: Where checkpoints go.
        barrier_op: Holds the workers during a save; None for ranks, which hold each other.
        checkpoint_helper: Knows how far the input was read.
        step_gate: Keeps steps and saves apart.
        hash_filters: The admission filter of each server.
        enable_hash_filter: Whether the filters count anything.
        ps_monitor: Knows servers that have lost their memory; None if all are restored together.
        others: What the chief knows of the other members, if there are some.
        agreement: If there are several ranks: says when all of them save.
    """

    training: "CpuTraining"
    config: CpuTrainingConfig
    params: Params
    model_dir: str
    barrier_op: BarrierOp | None
    checkpoint_helper: WorkerCkptHelper
    step_gate: StepGate
    hash_filters: Sequence[tf.Tensor]
    enable_hash_filter: bool
    ps_monitor: PsMonitor | None
    others: Others | None
    agreement: AgreementHook | None = None


def create_save_hooks(context: SaveContext) -> list[tf.compat.v1.train.SessionRunHook]:
    """Makes the hooks of the chief that save, after everything to be saved is in the graph.

    Raises:
        ValueError: There is no model directory, or seconds and steps are given for one interval.
    """
    if not context.model_dir:
        raise ValueError("model_dir must be provided")
    prepare_model_dir(context.model_dir, context.params)
    saver_hook = _create_full_saver_hook(context)
    hooks: list[tf.compat.v1.train.SessionRunHook] = [saver_hook]
    if context.barrier_op is None:
        logger.debug("ranks of a synchronous job are not steered by a controller")
    elif files.can_hold_token(context.model_dir):
        hooks.append(
            ServerHook(
                context.model_dir,
                context.barrier_op,
                saver_hook,
                listen_host=context.params.train.controller_host,
            )
        )
    else:
        logger.warning(
            "this run has no controller: others might read its token in %s, which is not a local "
            "directory; a run in a local model directory can be steered",
            context.model_dir,
        )
    dense_only = get_dense_only_interval(context.config, context.params)
    # Has the full saver save at the end, whatever the other one has saved by then. A flag of the
    # process, so a training without the other one has to take it back.
    NoFirstSaveCheckpointSaverHook._has_dense_only = dense_only != (None, None)
    if dense_only != (None, None):
        hooks.append(_create_dense_only_saver_hook(context, *dense_only))
    return hooks + _create_incremental_hooks(context, saver_hook)


def create_follower_hook(context: SaveContext) -> RankFollowerHook:
    """Makes the hook of a rank that is not rank 0, which writes its part of each checkpoint.

    That are its rows and the position of its input; beside servers, which have the rows, the
    position alone.
    """
    assert context.agreement is not None
    basename = os.path.join(context.model_dir, CHECKPOINT_BASENAME)
    # The session restores with the saver that it finds here, and rank 0 saves.
    saver = _create_saver(
        context,
        context.model_dir,
        [],
        defer_build=True,
        changed_model=context.params.train.changed_model,
        skip_save=True,
    )
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, saver)
    listeners: list[tf.compat.v1.train.CheckpointSaverListener] = [
        # Of this rank alone: each writes its own.
        context.checkpoint_helper.create_saver_listener(basename, num_workers=0),
    ]
    if context.config.enable_full_sync_training:
        listeners.append(TableSaverListener(basename, write_ckpt_info=False, write_lists=False))
        if context.config.feature_eviction_on_save:
            listeners.append(TableRestorerSaverListener(basename))
    dense_only = get_dense_only_interval(context.config, context.params)
    return RankFollowerHook(
        context.agreement,
        context.step_gate,
        listeners,
        always_saves_at_end=dense_only != (None, None),
    )


def check_rank_saves(config: CpuTrainingConfig, params: Params) -> None:
    """Refuses what several ranks cannot save.

    Raises:
        ConfigError: The task asks for deltas between full checkpoints, or the config for counts of
            ids that are spread over the ranks.
    """
    if config.enable_model_ckpt_info and config.enable_full_sync_training:
        raise errors.ConfigError(
            "`enable_model_ckpt_info` is True, but ranks of a synchronous job count no ids, of "
            "which each has a part; leave it at False."
        )
    for name in ("incremental_save_steps", "incremental_save_secs"):
        if params.train[name] is not None:
            raise errors.ConfigError(
                f"`train.{name}` is {params.train[name]}, but ranks of a synchronous job save full "
                "checkpoints only; leave it unset, and save more often."
            )


def prepare_model_dir(model_dir: str, params: Params) -> None:
    """Has the file `checkpoint` name what can be restored, before anybody looks at it.

    Only the process that is going to save there may call this.

    Args:
        model_dir: Where checkpoints are and go.
        params: The task.

    Raises:
        ConfigError: Nothing can be written there.
        tf.errors.DataLossError: That file is damaged, or missing and the task does not ask to
            rebuild it; or the newest checkpoint is damaged, the task asks for an older one, and
            there is none.
    """
    directories.make_writable("model_dir", model_dir)
    unlisted.require_list(model_dir, CHECKPOINT_BASENAME, params.train.rebuild_checkpoint_list)
    unfinished.clean_up(model_dir, CHECKPOINT_BASENAME)
    if params.train.fall_back_to_older_checkpoint:
        newest = tf.train.latest_checkpoint(model_dir)
        if newest is not None:
            deltas.cut_damaged(newest)
        exempt = checkpoint_state.get_exempt_names(model_dir) or set()
        # Not the tables: the saver reads all of the checkpoint before it restores it.
        fallback.fall_back(model_dir, exempt, manifest.verify_variables)


def _create_incremental_hooks(
    context: SaveContext, saver_hook: NoFirstSaveCheckpointSaverHook
) -> list[tf.compat.v1.train.SessionRunHook]:
    """Returns what saves only changes between full checkpoints; nothing, unless asked for."""
    params = context.params.train
    if params.incremental_save_steps is None and params.incremental_save_secs is None:
        return []
    return [
        IncrementalCheckpointSaverHook(
            saver_hook,
            save_secs=params.incremental_save_secs,
            save_steps=params.incremental_save_steps,
            max_touched_ids=params.incremental_max_touched_ids,
        )
    ]


def _create_full_saver_hook(context: SaveContext) -> NoFirstSaveCheckpointSaverHook:
    config = context.config
    exempt = _read_exempt_checkpoints(context.model_dir)
    # Built by the session, when hooks have made their variables.
    saver = _create_saver(
        context,
        context.model_dir,
        exempt,
        defer_build=True,
        fall_back=context.params.train.fall_back_to_older_checkpoint,
        rebuild_list=context.params.train.rebuild_checkpoint_list,
        changed_model=context.params.train.changed_model,
    )
    # The session restores with the saver that it finds here.
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, saver)
    secs, steps = get_save_interval(config, context.params)
    leader = None if context.agreement is None else RankLeader()
    listeners = _create_save_listeners(context, leader)
    stopping = None if context.others is None else StoppingServers(context.others)
    if stopping is not None:
        listeners.append(stopping.create_saver_listener())
    saver_hook = NoFirstSaveCheckpointSaverHook(
        context.model_dir,
        save_secs=secs,
        save_steps=steps,
        saver=saver,
        checkpoint_basename=CHECKPOINT_BASENAME,
        listeners=listeners,
        save_graph_def=True,
        tide_start_hour=config.tide_start_hour,
        tide_start_minute=config.tide_start_minute,
        tide_end_hour=config.tide_end_hour,
        tide_end_minute=config.tide_end_minute,
        tide_save_secs=config.tide_save_secs,
        ignore_save_errors=config.enable_realtime_training,
        is_dense_only=False,
        use_native_multi_hash_table=bool(config.use_native_multi_hash_table),
        no_first_save=True,
        guard_saver_listeners=[
            context.step_gate.create_saver_listener(),
            *([leader.guard] if leader is not None else _create_barrier_listeners(context)),
        ],
    )
    if stopping is not None:
        saver_hook.replace_timer(stopping.create_timer(saver_hook.timer))
    if context.agreement is not None:
        saver_hook.replace_timer(AgreedTimer(saver_hook.timer, context.agreement))
    return saver_hook


def _create_dense_only_saver_hook(
    context: SaveContext, secs: int | None, steps: int | None
) -> NoFirstSaveCheckpointSaverHook:
    config = context.config
    directory = os.path.join(context.model_dir, DENSE_ONLY_DIR)
    saver = _create_saver(context, directory, [], defer_build=False)
    state = tf.train.get_checkpoint_state(directory)
    if state is not None:
        saver.recover_last_checkpoints(state.all_model_checkpoint_paths)
    # What ranks push late, they push together, and only rank 0 is here.
    guards = [] if context.agreement else [context.step_gate.create_saver_listener()]
    if config.dense_only_stop_training_when_save:
        guards += _create_barrier_listeners(context)
    return NoFirstSaveCheckpointSaverHook(
        directory,
        save_secs=secs,
        save_steps=steps,
        saver=saver,
        checkpoint_basename=CHECKPOINT_BASENAME,
        listeners=_create_export_listeners(context, dense_only=True),
        save_graph_def=False,
        ignore_save_errors=config.enable_realtime_training,
        is_dense_only=True,
        use_native_multi_hash_table=bool(config.use_native_multi_hash_table),
        no_first_save=True,
        guard_saver_listeners=guards,
    )


def _create_saver(
    context: SaveContext,
    directory: str,
    exempt: Sequence[str],
    defer_build: bool,
    fall_back: bool = False,
    rebuild_list: bool = False,
    changed_model: OnChange | None = None,
    skip_save: bool = False,
) -> PartialRecoverySaver:
    return PartialRecoverySaver(
        # Ranks have all variables themselves, and rank 0 saves its own.
        sharded=not context.config.enable_full_sync_training,
        max_to_keep=context.config.checkpoints_max_to_keep,
        keep_checkpoint_every_n_hours=_KEEP_CHECKPOINT_EVERY_N_HOURS,
        ps_monitor=context.ps_monitor,
        exempt_checkpoint_paths=list(exempt),
        skip_save=skip_save,
        model_dir=directory,
        defer_build=defer_build,
        fall_back_to_older_checkpoint=fall_back,
        rebuild_checkpoint_list=rebuild_list,
        changed_model=changed_model,
    )


def _create_save_listeners(
    context: SaveContext, leader: RankLeader | None
) -> list[tf.compat.v1.train.CheckpointSaverListener]:
    config = context.config
    basename = os.path.join(context.model_dir, CHECKPOINT_BASENAME)
    is_full_sync = config.enable_full_sync_training
    listeners: list[tf.compat.v1.train.CheckpointSaverListener] = [
        *([] if leader is None else [leader.first]),
        # Each rank writes the position of its own input.
        context.checkpoint_helper.create_saver_listener(
            basename, 0 if config.enable_sync_training else config.num_workers
        ),
        *(
            []
            if context.training.splits is None
            else [context.training.splits.create_saver_listener(basename)]
        ),
        TableSaverListener(basename, write_ckpt_info=leader is None or not is_full_sync),
        filters.HashFilterCheckpointSaverListener(
            basename,
            context.hash_filters,
            context.enable_hash_filter,
            enable_save_restore=not is_full_sync,
        ),
        *([] if leader is None else [leader.last]),
        *_create_export_listeners(context, dense_only=False),
    ]
    if config.enable_model_ckpt_info:
        listeners.append(FidSlotCountSaverListener(context.model_dir))
    if config.feature_eviction_on_save:
        listeners.append(TableRestorerSaverListener(basename))
    return listeners


def _create_export_listeners(
    context: SaveContext, dense_only: bool
) -> list[tf.compat.v1.train.CheckpointSaverListener]:
    """Returns what exports the model after a save; nothing, unless the task asks for it."""
    directory = os.path.join(context.model_dir, DENSE_ONLY_DIR) if dense_only else context.model_dir
    return export.create_export_listeners(
        context.training,
        context.model_dir,
        os.path.join(directory, CHECKPOINT_BASENAME),
        _read_exempt_checkpoints(context.model_dir),
        dense_only,
    )


def _create_barrier_listeners(
    context: SaveContext,
) -> list[tf.compat.v1.train.CheckpointSaverListener]:
    if context.barrier_op is None:
        return []
    others = context.others
    return [
        BarrierSaverListener(
            context.barrier_op,
            wait_seconds=_BARRIER_POLL_SEC,
            max_pending_seconds=context.params.train.max_pending_seconds_for_barrier,
            is_absent=None if others is None else others.is_absent,
            sleep=None if others is None else others.sleep,
        )
    ]


def _read_exempt_checkpoints(model_dir: str) -> list[str]:
    """Returns the names of the checkpoints that must never be deleted."""
    state = get_monolith_checkpoint_state(model_dir)
    if state is None or not state.exempt_model_checkpoint_paths:
        return []
    exempt = [os.path.basename(path) for path in state.exempt_model_checkpoint_paths]
    known = tf.train.get_checkpoint_state(model_dir)
    names = {os.path.basename(p) for p in known.all_model_checkpoint_paths} if known else set()
    missing = sorted(set(exempt) - names)
    if missing:
        raise AssertionError(
            f"{os.path.join(model_dir, MONOLITH_CKPT_STATE_FILE_NAME)} exempts "
            f"{', '.join(missing)} from deletion, which the file `checkpoint` beside it does not "
            "list; correct one of the two."
        )
    return exempt


def get_save_interval(config: CpuTrainingConfig, params: Params) -> tuple[int | None, int | None]:
    """Returns seconds and steps between two full checkpoints, one of them None.

    Where nobody has said anything there is one checkpoint, at the end.
    """
    secs, steps = _get_interval(
        config.save_checkpoints_secs,
        config.save_checkpoints_steps,
        params.train.save_checkpoints_secs,
        params.train.save_checkpoints_steps,
    )
    return secs, _NEVER_STEPS if secs is None and steps is None else steps


def get_dense_only_interval(
    config: CpuTrainingConfig, params: Params
) -> tuple[int | None, int | None]:
    """Returns seconds and steps between two saves of variables alone, both None without them."""
    return _get_interval(
        config.dense_only_save_checkpoints_secs,
        config.dense_only_save_checkpoints_steps,
        params.train.dense_only_save_checkpoints_secs,
        params.train.dense_only_save_checkpoints_steps,
    )


def _get_interval(
    secs: int | None, steps: int | None, params_secs: int | None, params_steps: int | None
) -> tuple[int | None, int | None]:
    """Returns seconds and steps between two saves: those of the config, else of the params."""
    if secs is None and steps is None:
        secs, steps = params_secs, params_steps
    if secs is not None and steps is not None:
        raise ValueError(
            "Can not provide both save_checkpoints_secs and save_checkpoints_steps. "
            f"Got {secs} seconds and {steps} steps; set one of them to None."
        )
    return secs, steps
