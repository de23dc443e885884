"""Checkpoints without the file `checkpoint`, which says which of them there are.

To TensorFlow a directory without that file has no checkpoint: training starts from nothing, and
deletes what is there one by one as it saves. Files get lost when a directory is copied; so who
trains looks first, and is told, unless it was asked to go on from the newest.

Example:
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     for step in (9, 10):
    ...         _ = pathlib.Path(directory, f"model.ckpt-{step}.index").write_text("")
    ...     try:
    ...         require_list(directory, "model.ckpt")
    ...     except tf.errors.DataLossError as e:
    ...         print(e.message.replace(directory, "")[:69])
    ...     require_list(directory, "model.ckpt", rebuild=True)
    ...     os.path.basename(tf.train.latest_checkpoint(directory))
    /checkpoint is missing, though 2 complete checkpoints are there, /mod
    'model.ckpt-10'
"""

import logging
import os
import re

import tensorflow as tf

from monolith.checkpoint import state as checkpoint_state
from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.state import CHECKPOINT_FILE_NAME, REPLACED_PREFIX, UNFINISHED_SUFFIX

logger = logging.getLogger(__name__)


def require_list(directory: str, basename: str, rebuild: bool = False) -> None:
    """Sees that the checkpoints of a directory are listed, before somebody trains there.

    Call it before `unfinished.clean_up`, which takes what is not listed for leftovers.

    Args:
        directory: The model directory.
        basename: What names of checkpoints in it begin with, such as `model.ckpt`.
        rebuild: Whether to list the complete ones again, with the highest step as the newest.

    Raises:
        tf.errors.DataLossError: There are complete checkpoints and no list; or the list is damaged.
    """
    if checkpoint_state.read_list(directory) is not None:
        return
    complete = find_complete(directory, basename)
    if not complete:
        return
    path = os.path.join(directory, CHECKPOINT_FILE_NAME)
    if not rebuild:
        raise tf.errors.DataLossError(
            None,
            None,
            f"{path} is missing, though {len(complete)} complete checkpoints are there, "
            f"{complete[-1]} the newest: put the file back, or set `rebuild_checkpoint_list` to go "
            "on from the newest, or move them away to start afresh.",
        )
    logger.warning("%s was missing; training goes on from %s", path, complete[-1])
    checkpoint_state.write_list(directory, complete[-1], complete, relative=True)


def find_complete(directory: str, basename: str) -> list[str]:
    """Returns the complete checkpoints of a directory, listed or not, in the order of their steps.

    Args:
        directory: The model directory.
        basename: What their names begin with.
    """
    try:
        entries = {entry.rstrip("/") for entry in tf.io.gfile.listdir(directory or ".")}
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError):
        return []
    own = re.compile(rf"({REPLACED_PREFIX})?({re.escape(basename)}-\d+)\.index", re.ASCII)
    found: dict[str, str] = {}
    # A copy stands for a checkpoint of its step only while that is being saved again.
    for match in sorted(filter(None, map(own.fullmatch, entries)), key=lambda m: m[1] or ""):
        name = match[0].removesuffix(".index")
        if name + UNFINISHED_SUFFIX not in entries:
            found.setdefault(match[2], name)
    return [
        os.path.join(directory, found[name])
        for name in sorted(found, key=SaveHelper.get_global_step_value)
    ]
