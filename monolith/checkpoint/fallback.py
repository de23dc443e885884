"""Going back to an older checkpoint when the newest is damaged, for those who asked for it.

What is restored from an older checkpoint is all restored from it: variables, tables and filters. As
everybody asks the file `checkpoint` which is the newest, the damaged ones leave that list, and it
names the one to restore. Their files stay for somebody to look at.
"""

import logging
import os
from collections.abc import Callable, Collection
from typing import Any

import tensorflow as tf

from monolith.checkpoint import manifest
from monolith.checkpoint import state as checkpoint_state
from monolith.checkpoint.paths import SaveHelper

logger = logging.getLogger(__name__)


def choose(save_path: str, model_dir: str, exempt: Collection[str] = ()) -> tuple[str, list[str]]:
    """Returns what to restore for somebody who wants to restore `save_path`, and what is damaged.

    Only the newest checkpoint of `model_dir` has a substitute: who asks for another one wants that.

    Args:
        save_path: The checkpoint that was asked for.
        model_dir: The model directory.
        exempt: Names of checkpoints that stay in the list in any case.

    Raises:
        tf.errors.DataLossError: It is damaged, and there is no substitute.
    """
    listed = checkpoint_state.get_listed(model_dir, checkpoint_state.read_list(model_dir))
    if not listed or not checkpoint_state.is_same(listed[-1], save_path):
        manifest.verify(save_path)
        return save_path, []
    damaged = fall_back(model_dir, exempt)
    if not damaged:
        return save_path, []
    return checkpoint_state.get_listed(model_dir, checkpoint_state.read_list(model_dir))[
        -1
    ], damaged


def fall_back(
    model_dir: str,
    exempt: Collection[str] = (),
    verify: Callable[[str], object] = manifest.verify_thoroughly,
) -> list[str]:
    """Makes the newest checkpoint that is not damaged the one that will be restored.

    Older is what has a lower step: after training went back once, checkpoints of higher steps may
    still be listed, and they belong to what was given up.

    Args:
        model_dir: The model directory.
        exempt: Names of checkpoints that stay in the list in any case.
        verify: Raises `DataLossError` if the checkpoint of a path is damaged. The default reads
            all of it.

    Returns:
        The paths of damaged checkpoints.

    Raises:
        tf.errors.DataLossError: The newest is damaged, and no older one is not; or the list is
            damaged.
    """
    state = checkpoint_state.read_list(model_dir)
    listed = checkpoint_state.get_listed(model_dir, state)
    if not listed:
        return []
    step = SaveHelper.get_global_step_value(listed[-1])
    older = [path for path in listed[:-1] if SaveHelper.get_global_step_value(path) < step]
    older.sort(key=SaveHelper.get_global_step_value, reverse=True)
    damaged: list[str] = []
    first_error: tf.errors.DataLossError | None = None
    for path in [listed[-1], *older]:
        try:
            verify(path)
        except tf.errors.DataLossError as e:
            logger.warning("skipping checkpoint %s, it is damaged: %s", path, e.message)
            damaged.append(path)
            first_error = first_error or e
            continue
        if damaged:
            _list_as_newest(model_dir, state, path, set(damaged), exempt)
        return damaged
    assert first_error is not None
    raise tf.errors.DataLossError(
        None,
        None,
        f"{first_error.message} There is no older checkpoint in {model_dir} to fall back to: "
        f"{len(older)} are listed, and all are damaged.",
    )


def _list_as_newest(
    model_dir: str, state: Any, newest: str, damaged: set[str], exempt: Collection[str]
) -> None:
    """Lists `newest` last, without those that are damaged."""

    def is_kept(path: str) -> bool:
        resolved = checkpoint_state.resolve(model_dir, path)
        if resolved == newest:
            return False
        return resolved not in damaged or os.path.basename(path) in exempt

    written = [*state.all_model_checkpoint_paths, state.model_checkpoint_path]
    (newest_written,) = {p for p in written if checkpoint_state.resolve(model_dir, p) == newest}
    kept = [path for path in state.all_model_checkpoint_paths if is_kept(path)]
    state.model_checkpoint_path = newest_written
    state.all_model_checkpoint_paths[:] = [*kept, newest_written]
    checkpoint_state.save_list(model_dir, state)
    logger.warning(
        "restoring %s instead; the damaged checkpoints are not listed any more, and their files "
        "stay until you remove them",
        newest,
    )
