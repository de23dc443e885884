"""The files that say which checkpoints there are: `checkpoint`, and `monolith_checkpoint` beside.

The first is TensorFlow's list of checkpoints; only what it names is one. The second holds what
TensorFlow's file has no place for: checkpoints that retention must never delete, when the last one
was written, and which kind of table wrote them.

Example:
    >>> import tempfile
    >>> from monolith.proto import monolith_checkpoint_state_pb2 as state_pb2
    >>> with tempfile.TemporaryDirectory() as model_dir:
    ...     save_monolith_checkpoint_state(
    ...         model_dir,
    ...         state_pb2.MonolithCheckpointState(exempt_model_checkpoint_paths=["model.ckpt-1"]),
    ...     )
    ...     list(get_monolith_checkpoint_state(model_dir).exempt_model_checkpoint_paths)
    ['model.ckpt-1']
"""

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.lib.io import file_io
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from monolith.checkpoint import durable_files, failpoints, manifest
from monolith.checkpoint.paths import SaveHelper
from monolith.proto import monolith_checkpoint_state_pb2

logger = logging.getLogger(__name__)

CHECKPOINT_FILE_NAME = "checkpoint"
MONOLITH_CKPT_STATE_FILE_NAME = "monolith_checkpoint"

# A checkpoint that has such a file beside it, and is not listed, is on its way to be complete, or
# to be deleted.
UNFINISHED_SUFFIX = ".unfinished"

# A listed checkpoint whose step is being saved again has this in front of its name.
REPLACED_PREFIX = "replaced-"

# How many ids a checkpoint has, by slot or by feature: `ckpt.info-STEP`.
COUNTS_PREFIX = "ckpt.info-"

_STEP = re.compile(r"-\d+$", re.ASCII)

# Model directory to the step it was asked for and what its file `checkpoint` said then.
_ckpt_state_cache_map: dict[str, tuple[int, Any]] = {}


def get_latest_checkpoint_state(checkpoint_dir: str, global_step_value: int) -> Any:
    """Reads the file `checkpoint` of a model directory, at most once per step.

    For those who ask at every step, when the answer changes every few thousand.

    Args:
        checkpoint_dir: The model directory.
        global_step_value: The step of the caller. The file is read again when it has grown since
            the file was last read, or when there was no checkpoint then.

    Returns:
        The `CheckpointState`, None if the directory has no checkpoint.
    """
    step, state = _ckpt_state_cache_map.get(checkpoint_dir, (0, None))
    if state is None or global_step_value > step:
        state = tf.train.get_checkpoint_state(checkpoint_dir)
        _ckpt_state_cache_map[checkpoint_dir] = (global_step_value, state)
    return state


def get_monolith_checkpoint_state(
    checkpoint_dir: str, filename: str | None = None, remove_invalid_path: bool = False
) -> monolith_checkpoint_state_pb2.MonolithCheckpointState | None:
    """Reads the state file of a model directory.

    Args:
        checkpoint_dir: The model directory.
        filename: Name of the file in it, `monolith_checkpoint` if None.
        remove_invalid_path: Whether exempt checkpoints that do not exist are left out, and the
            others are given with their directory.

    Returns:
        The state; None, with a log line that says why, if there is none or it cannot be read.
    """
    path = os.path.join(checkpoint_dir, filename or MONOLITH_CKPT_STATE_FILE_NAME)
    state = monolith_checkpoint_state_pb2.MonolithCheckpointState()
    try:
        text_format.Parse(file_io.read_file_to_string(path, binary_mode=True), state)
    except tf.errors.NotFoundError:
        logger.info("There is no %s.", path)
        return None
    except (tf.errors.OpError, text_format.ParseError, UnicodeDecodeError) as error:
        logger.warning("%s is ignored, it cannot be read: %s", path, error)
        return None
    if remove_invalid_path:
        paths = [resolve(checkpoint_dir, p) for p in state.exempt_model_checkpoint_paths]
        del state.exempt_model_checkpoint_paths[:]
        state.exempt_model_checkpoint_paths.extend(p for p in paths if checkpoint_exists(p))
    return state


def get_exempt_names(checkpoint_dir: str) -> set[str] | None:
    """Returns the names of checkpoints that must never be deleted; None if nobody knows."""
    state = get_monolith_checkpoint_state(checkpoint_dir)
    if state is not None:
        return {os.path.basename(path) for path in state.exempt_model_checkpoint_paths}
    path = os.path.join(checkpoint_dir, MONOLITH_CKPT_STATE_FILE_NAME)
    return None if tf.io.gfile.exists(path) else set()


def save_monolith_checkpoint_state(
    checkpoint_dir: str, state: monolith_checkpoint_state_pb2.MonolithCheckpointState
) -> None:
    """Writes the state file; a reader sees the old state or the new one, never a part."""
    path = os.path.join(checkpoint_dir, MONOLITH_CKPT_STATE_FILE_NAME)
    durable_files.write_atomically(path, text_format.MessageToString(state))


def read_list(checkpoint_dir: str, filename: str | None = None) -> Any:
    """Reads the list of checkpoints as it is, with paths that may be relative to the directory.

    TensorFlow's own function takes a list that cannot be read for none, and training would start
    afresh over it.

    Args:
        checkpoint_dir: The model directory.
        filename: Name of the file in it, `checkpoint` if None.

    Returns:
        The `CheckpointState`, None if there is no such file.

    Raises:
        tf.errors.DataLossError: The file is damaged.
    """
    path = os.path.join(checkpoint_dir, filename or CHECKPOINT_FILE_NAME)
    try:
        state = text_format.Parse(
            file_io.read_file_to_string(path, binary_mode=True), CheckpointState()
        )
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError):
        return None
    except (text_format.ParseError, UnicodeDecodeError) as e:
        problem: Any = e
    else:
        if state.model_checkpoint_path:
            return state
        problem = "it names no checkpoint"
    raise tf.errors.DataLossError(
        None,
        None,
        f"{path} is no list of checkpoints: {problem}. Correct it by hand, it is text; or remove "
        "it, and set `rebuild_checkpoint_list` to go on from the newest checkpoint that is there.",
    )


def get_listed(checkpoint_dir: str, state: Any) -> list[str]:
    """Returns the paths that `state`, from `read_list`, names; the newest is the last."""
    if state is None:
        return []
    newest = resolve(checkpoint_dir, state.model_checkpoint_path)
    others = [resolve(checkpoint_dir, path) for path in state.all_model_checkpoint_paths]
    return [*(path for path in others if path != newest), newest]


def write_list(
    checkpoint_dir: str,
    newest: str,
    listed: Sequence[str],
    filename: str | None = None,
    relative: bool = False,
) -> None:
    """Writes the list of checkpoints; a reader sees the old one or the new one.

    Args:
        checkpoint_dir: The model directory.
        newest: The checkpoint that a restore shall take.
        listed: All checkpoints, the oldest first.
        filename: Name of the file in the directory, `checkpoint` if None.
        relative: Whether paths are written without the directory.

    Raises:
        RuntimeError: A checkpoint has the path of the list.
    """
    paths = [newest, *listed]
    if relative:
        paths = [os.path.relpath(p, checkpoint_dir) if os.path.isabs(p) else p for p in paths]
    state = checkpoint_management.generate_checkpoint_state_proto(
        checkpoint_dir, paths[0], paths[1:]
    )
    path = os.path.join(checkpoint_dir, filename or CHECKPOINT_FILE_NAME)
    if path == state.model_checkpoint_path:
        raise RuntimeError(
            f"Save path '{newest}' conflicts with path used for checkpoint state.  Please use a "
            "different save path."
        )
    save_list(checkpoint_dir, state, filename)


def rename_in_list(checkpoint_dir: str, old: str, new: str, filename: str | None = None) -> None:
    """Lists the checkpoint `old` as `new`, in the same directory, and leaves the rest as it is."""
    state = read_list(checkpoint_dir, filename)
    name = os.path.basename(new)

    def rename(path: str) -> str:
        if not is_same(resolve(checkpoint_dir, path), old):
            return path
        return os.path.join(os.path.dirname(path), name)

    state.model_checkpoint_path = rename(state.model_checkpoint_path)
    state.all_model_checkpoint_paths[:] = [rename(p) for p in state.all_model_checkpoint_paths]
    save_list(checkpoint_dir, state, filename)


def save_list(checkpoint_dir: str, state: Any, filename: str | None = None) -> None:
    """Writes what `read_list` has returned back."""
    path = os.path.join(checkpoint_dir, filename or CHECKPOINT_FILE_NAME)
    durable_files.write_atomically(path, text_format.MessageToString(state))


def checkpoint_exists(prefix: str) -> bool:
    """Returns whether the checkpoint with the path `prefix` is on disk."""
    # What TensorFlow's deprecated function of this name asks for, without the format of TF 0.x.
    return bool(tf.io.gfile.exists(prefix + ".index"))


def remove_checkpoint(prefix: str) -> None:
    """Deletes the checkpoint with the path `prefix`: its variables, and its tables and filters.

    That is everything called `<prefix>.<something>`, its manifest, and the counts of its ids beside
    it. What another process deletes meanwhile is no error.
    """
    directory, name = os.path.split(prefix)
    # Listed rather than globbed: a path may hold characters that mean something in a pattern.
    try:
        found = tf.io.gfile.listdir(directory or ".")
    except tf.errors.NotFoundError:
        return
    # Some file systems list a directory with a slash at its end.
    entries = [entry.rstrip("/") for entry in found]
    beside = {os.path.basename(manifest.get_path(prefix)), get_counts_name(prefix)}
    remove_entries(prefix, [e for e in entries if e.startswith(f"{name}.") or e in beside])


def get_counts_name(prefix: str) -> str | None:
    """Returns the name of the file with the counts of a checkpoint's ids, if it can have one."""
    name = os.path.basename(prefix)
    # Copies made while a step is saved again have the step of the one that is being saved.
    if name.startswith(REPLACED_PREFIX) or not _STEP.search(name):
        return None
    return f"{COUNTS_PREFIX}{SaveHelper.get_global_step_value(prefix)}"


def remove_entries(prefix: str, entries: Sequence[str]) -> None:
    """Deletes files and directories of a checkpoint, in an order that a kill does no harm to.

    Args:
        prefix: The path of the checkpoint.
        entries: Names in its directory.
    """
    directory, name = os.path.split(prefix)
    index, mark = f"{name}.index", name + UNFINISHED_SUFFIX
    if index in entries:
        # The index goes first: without it the rest is no checkpoint to anyone. It becomes the mark
        # that the rest is to be deleted, as there may be no space on the disk for a new file.
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.rename(
                os.path.join(directory, index), os.path.join(directory, mark), overwrite=True
            )
        failpoints.reach(failpoints.INDEX_REMOVED)
    for entry in [*(e for e in entries if e not in (index, mark)), mark]:
        path = os.path.join(directory, entry)
        with contextlib.suppress(tf.errors.NotFoundError):
            if tf.io.gfile.isdir(path):
                tf.io.gfile.rmtree(path)
            else:
                tf.io.gfile.remove(path)
        failpoints.reach(failpoints.PARTLY_REMOVED)


def resolve(checkpoint_dir: str, path: str) -> str:
    """Returns the path of a checkpoint that a file in `checkpoint_dir` names."""
    # A path such as hdfs:/model is absolute, which os.path does not know.
    joined = path if ":/" in path else os.path.join(checkpoint_dir, path)
    return joined if ":/" in joined else os.path.normpath(joined)


def is_same(path: str, other: str) -> bool:
    """Returns whether two paths, however they are written, are one."""
    return _get_real(path) == _get_real(other)


def _get_real(path: str) -> str:
    local = durable_files.get_local(path)
    return path if local is None else os.path.realpath(local)
