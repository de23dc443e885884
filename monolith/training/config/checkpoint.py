"""When a job saves, what it keeps, and what it starts from."""

import dataclasses


@dataclasses.dataclass
class SaveSettings:
    """When checkpoints are written, and what is done beside.

    :param save_checkpoints_secs: Seconds between checkpoints.
    :param save_checkpoints_steps: Steps between checkpoints.
    :param dense_only_save_checkpoints_secs: Seconds between checkpoints of dense variables alone.
    :param dense_only_save_checkpoints_steps: Steps between checkpoints of dense variables alone.
    :param dense_only_stop_training_when_save: Whether workers pause while dense variables alone are
        saved.
    :param checkpoints_max_to_keep: How many checkpoints stay on disk.
    :param enable_model_ckpt_info: Whether each checkpoint gets a file that counts its ids.
    :param feature_eviction_on_save: Whether tables are reloaded after a save, so that expired rows
        also leave the memory.
    :param tide_start_hour: Hour (UTC) at which spare machines become available.
    :param tide_start_minute: Minute that belongs to tide_start_hour.
    :param tide_end_hour: Hour (UTC) at which spare machines are taken back.
    :param tide_end_minute: Minute that belongs to tide_end_hour.
    :param tide_save_secs: Seconds between checkpoints while spare machines are not available.
    """

    save_checkpoints_secs: int | None = None
    save_checkpoints_steps: int | None = None
    dense_only_save_checkpoints_secs: int | None = None
    dense_only_save_checkpoints_steps: int | None = None
    dense_only_stop_training_when_save: bool = False
    checkpoints_max_to_keep: int = 10
    enable_model_ckpt_info: bool = False
    feature_eviction_on_save: bool = False
    tide_start_hour: int | None = None
    tide_start_minute: int | None = None
    tide_end_hour: int | None = None
    tide_end_minute: int | None = None
    tide_save_secs: int | None = None


@dataclasses.dataclass
class RestoreSettings:
    """What a restore brings back.

    `reload_alias_map` has no flag: it is no single value.

    :param partial_recovery: Whether a restore leaves parameter servers alone that did not restart.
    :param clear_nn: Whether a reload starts with fresh dense variables.
    :param continue_training: Whether a reload with fresh dense variables keeps the global step.
    :param reload_alias_map: New name of a variable to its name in the checkpoint, in a reload.
    :param enable_alias_map_auto_gen: Whether a reload finds renamed variables by itself.
    """

    partial_recovery: bool | None = None
    clear_nn: bool = False
    continue_training: bool = False
    reload_alias_map: dict[str, str] | None = None
    enable_alias_map_auto_gen: bool | None = None


@dataclasses.dataclass
class TaskSettings:
    """What the task is asked to do with checkpoints, beside what its own settings say.

    An estimator sets `train` of the task's params by them: what is given here counts, the rest is
    left to the task.

    :param incremental_save_steps: Steps between saves of what has changed since the last one,
        between full checkpoints. If unset, as the task says, which saves none by default.
    :param incremental_save_secs: Seconds between them; one of the two.
    :param fall_back_to_older_checkpoint: Whether training goes on from an older checkpoint if the
        newest is damaged. False leaves it to the task.
    :param rebuild_checkpoint_list: Whether training goes on from the newest checkpoint if the file
        `checkpoint`, which lists them, is missing. False leaves it to the task.
    """

    incremental_save_steps: int | None = None
    incremental_save_secs: int | None = None
    fall_back_to_older_checkpoint: bool = False
    rebuild_checkpoint_list: bool = False


@dataclasses.dataclass
class StartSettings:
    """Which checkpoint a job starts from, if not the newest of its own.

    :param restore_dir: Model directory to start from when model_dir has no checkpoint yet.
    :param restore_ckpt: Name of the checkpoint to start from, or to go back to once, instead of the
        newest one.
    """

    restore_dir: str | None = None
    restore_ckpt: str | None = None
