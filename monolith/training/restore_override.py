"""Starting from a checkpoint of one's own choice instead of the newest one.

Two ways lead there. `restore_dir` lets a new model start from another model's checkpoint: the
chief writes that checkpoint into the new model directory's `checkpoint` file, once. `restore_ckpt`
goes back to an older checkpoint of the same model, once: a marker file remembers that it was done,
so that a restarted job continues from where it was. An evaluation uses that checkpoint, and leaves
the disk as it is.

Who has a config calls `go_back` or `find_checkpoint`, which concern one model directory. Historical
programs only have flags, and TensorFlow looks for the newest checkpoint in many places, so for them
`get_checkpoint_state` is replaced for the whole process. `install_process_patches` does that.
Importing this module does not; importing the historical `monolith.native_training.runner_utils`
does.

Example:
    >>> isabs("hdfs://cluster/model"), isabs("/model"), isabs("model")
    (True, True, False)
"""

import functools
import logging
import os
import threading
import time
from collections.abc import Callable

import tensorflow as tf
from absl import flags
from google.protobuf import text_format
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.lib.io import file_io
from tensorflow.python.training import checkpoint_management as old_checkpoint_management
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from monolith import errors
from monolith.checkpoint import state as checkpoint_state
from monolith.cluster.progress import WaitProgress
from monolith.proto import monolith_checkpoint_state_pb2

FLAGS = flags.FLAGS

logger = logging.getLogger(__name__)

CHECKPOINT_FILE_NAME = "checkpoint"
RESTORE_MARKER_FILE_NAME = "restore_ckpt"

_TRAIN_MODE = "train"
_MAX_READ_RETRIES = 5
_READ_RETRY_SEC = 1
_RESTORE_POLL_SEC = 30

# Where a patched function keeps the one it replaced, so that nothing is ever patched twice.
_ORIGINAL = "_monolith_original"
_ORIGINAL_ISABS = getattr(os.path.isabs, _ORIGINAL, os.path.isabs)
_LOCK = threading.RLock()

GetCheckpointState = Callable[..., CheckpointState | None]


def isabs(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bool:
    """Returns whether `path` is absolute; unlike for `os.path`, `hdfs:/...` is."""
    name = os.fspath(path)
    if isinstance(name, str) and name.startswith("hdfs:/"):
        return True
    return bool(_ORIGINAL_ISABS(path))


setattr(isabs, _ORIGINAL, _ORIGINAL_ISABS)


def install_process_patches() -> None:
    """Replaces `os.path.isabs` and TensorFlow's `get_checkpoint_state` for the whole process.

    A second call does nothing. The flag `--restore_ckpt` takes effect only after a call.
    """
    with _LOCK:
        os.path.isabs = isabs  # type: ignore[assignment]
        patched = checkpoint_management.get_checkpoint_state
        if not hasattr(patched, _ORIGINAL):
            patched = gen_get_checkpoint_state()
        for module in (
            checkpoint_management,
            old_checkpoint_management,
            tf.train,
            tf.compat.v1.train,
        ):
            module.get_checkpoint_state = patched


def gen_get_checkpoint_state(sleep: Callable[[float], None] = time.sleep) -> GetCheckpointState:
    """Wraps TensorFlow's `get_checkpoint_state` with patience and with `restore_ckpt`.

    A `checkpoint` file that exists but cannot be understood is read again up to five times, since
    on some file systems a reader may see it half-written. An empty file counts as such, too, and
    there is a second between two attempts.

    With `FLAGS.restore_ckpt`, and for the main `checkpoint` file only, the state is changed to
    name that checkpoint. A training does so once and remembers it on disk; other modes only see
    another state and leave the disk alone.

    Args:
        sleep: Called with the seconds to wait between two attempts to read.

    Returns:
        A function with the arguments of `tf.train.get_checkpoint_state`. It raises MonolithError
        "read ckpt error!" when the attempts are used up.
    """
    current = checkpoint_management.get_checkpoint_state
    original: GetCheckpointState = getattr(current, _ORIGINAL, current)

    @functools.wraps(original)
    def get_checkpoint_state(
        checkpoint_dir: str | os.PathLike[str], latest_filename: str | None = None
    ) -> CheckpointState | None:
        checkpoint_dir = os.fspath(checkpoint_dir)
        file_name = latest_filename or CHECKPOINT_FILE_NAME
        with _LOCK:
            state = _read_patiently(original, checkpoint_dir, file_name, sleep)
            if state is not None and file_name == CHECKPOINT_FILE_NAME:
                try:
                    _apply_restore_ckpt(state, checkpoint_dir)
                except flags.UnparsedFlagAccessError:
                    pass  # Nobody parsed a command line, so nobody asked for a checkpoint.
                except Exception:
                    logger.exception("Did not apply restore_ckpt to %s.", checkpoint_dir)
            return state

    setattr(get_checkpoint_state, _ORIGINAL, original)
    return get_checkpoint_state


def go_back(model_dir: str, restore_ckpt: str) -> None:
    """Has training of a model start from one of its older checkpoints, once.

    The file `checkpoint` names it then. A marker file remembers that this was done: when the job
    starts again, it goes on from where it was, unless it asks for yet another checkpoint.

    Args:
        model_dir: Model directory of the job.
        restore_ckpt: The checkpoint; only the last part of the path counts.

    Raises:
        ConfigError: There is no such checkpoint.
    """
    name = os.path.basename(restore_ckpt)
    marker = os.path.join(model_dir, RESTORE_MARKER_FILE_NAME)
    with _LOCK:
        if tf.io.gfile.exists(marker):
            done = os.path.basename(file_io.read_file_to_string(marker).strip())
            if done == name:
                logger.info("%s has gone back to %s before, and goes on.", model_dir, name)
                return
        state = _read_unpatched(model_dir)
        path = _find_or_refuse(state, model_dir, restore_ckpt)
        assert state is not None
        if path != state.model_checkpoint_path:
            _rewrite_checkpoint_file(model_dir, name)
            logger.info("Going back to %s.", path)
        # Written last: a crash before it repeats the steps above.
        _write_atomically(marker, path)


def find_checkpoint(model_dir: str, restore_ckpt: str) -> str:
    """Returns the path of a checkpoint of a model, for those who look at it and do not train.

    Args:
        model_dir: Model directory of the job.
        restore_ckpt: The checkpoint; only the last part of the path counts.

    Raises:
        ConfigError: There is no such checkpoint.
    """
    return _find_or_refuse(_read_unpatched(model_dir), model_dir, restore_ckpt)


def _find_or_refuse(state: CheckpointState | None, model_dir: str, restore_ckpt: str) -> str:
    name = os.path.basename(restore_ckpt)
    if state is None:
        raise errors.ConfigError(
            f"restore_ckpt is {restore_ckpt!r}, but there is no checkpoint in {model_dir}; leave "
            "restore_ckpt out to start a new model, or set restore_dir to start from another one."
        )
    listed = _find_listed(state, name)
    path = listed or os.path.join(os.path.dirname(state.model_checkpoint_path), name)
    if checkpoint_state.checkpoint_exists(path):
        return path
    known = [os.path.basename(path) for path in state.all_model_checkpoint_paths]
    raise errors.ConfigError(
        f"restore_ckpt is {restore_ckpt!r}, which is not in {model_dir}; it has {', '.join(known)}."
    )


def _read_unpatched(model_dir: str) -> CheckpointState | None:
    """Reads the state of a directory as it is, whatever the flags of the process say."""
    current = checkpoint_management.get_checkpoint_state
    return _read_patiently(
        getattr(current, _ORIGINAL, current), model_dir, CHECKPOINT_FILE_NAME, time.sleep
    )


def copy_checkpoint_state(restore_dir: str, restore_ckpt: str | None, model_dir: str) -> None:
    """Lets `model_dir` start from a checkpoint of `restore_dir`, unless it has one of its own.

    The checkpoint's files stay where they are. `model_dir` gets a `checkpoint` file that names
    them, a `monolith_checkpoint` that keeps them from being deleted, and the restore marker. What
    kind of table wrote them is taken over from `restore_dir`, or an older default would be
    guessed. `checkpoint` is written last: if this process is killed before, the next one starts
    over.

    Args:
        restore_dir: Model directory to start from.
        restore_ckpt: Name of one of its checkpoints; its newest if None or unknown.
        model_dir: Model directory of this job.
    """
    checkpoint_file = os.path.join(model_dir, CHECKPOINT_FILE_NAME)
    if tf.io.gfile.exists(checkpoint_file):
        logger.info("%s has a checkpoint; nothing is copied from %s.", model_dir, restore_dir)
        return
    # The patched reader would apply restore_ckpt to the other model's directory.
    state = _read_unpatched(restore_dir)
    if state is None:
        logger.warning("restore_dir %s has no checkpoint file; nothing is restored.", restore_dir)
        return
    path = state.model_checkpoint_path
    if restore_ckpt:
        listed = _find_listed(state, restore_ckpt)
        if listed is None:
            logger.warning(
                "restore_ckpt %s is not one of the checkpoints of %s, %s; its newest is taken, %s.",
                restore_ckpt,
                restore_dir,
                list(state.all_model_checkpoint_paths),
                path,
            )
        path = listed or path
    if ":/" not in path:
        path = os.path.abspath(path)

    tf.io.gfile.makedirs(model_dir)
    _exempt_from_deletion(path, restore_dir, model_dir)
    _write_atomically(os.path.join(model_dir, RESTORE_MARKER_FILE_NAME), path)
    _write_atomically(
        checkpoint_file,
        text_format.MessageToString(
            CheckpointState(model_checkpoint_path=path, all_model_checkpoint_paths=[path])
        ),
    )
    logger.info("%s starts from %s.", model_dir, path)


def wait_for_checkpoint_state(model_dir: str, sleep: Callable[[float], None] = time.sleep) -> None:
    """Waits until the chief has prepared `model_dir`, as `monolith_checkpoint` tells.

    Args:
        model_dir: Model directory of this job.
        sleep: Called with the seconds to wait between two looks.
    """
    path = os.path.join(model_dir, checkpoint_state.MONOLITH_CKPT_STATE_FILE_NAME)
    progress = WaitProgress(logger)
    while not (tf.io.gfile.exists(path) and _is_copy_complete(model_dir)):
        progress.report(f"Waiting for the chief to write {path}.")
        sleep(_RESTORE_POLL_SEC)


def _is_copy_complete(model_dir: str) -> bool:
    # The chief writes `checkpoint` last, a moment after it has made a checkpoint exempt.
    state = checkpoint_state.get_monolith_checkpoint_state(model_dir)
    is_one_exempt = state is not None and len(state.exempt_model_checkpoint_paths) > 0
    return not is_one_exempt or tf.io.gfile.exists(os.path.join(model_dir, CHECKPOINT_FILE_NAME))


def _read_patiently(
    read: GetCheckpointState,
    checkpoint_dir: str,
    file_name: str,
    sleep: Callable[[float], None],
) -> CheckpointState | None:
    """Reads a state; None if there is no file."""
    path = os.path.join(checkpoint_dir, file_name)
    problem: Exception | None = None
    for attempt in range(1 + _MAX_READ_RETRIES):
        try:
            state = read(checkpoint_dir, file_name)
        except (ValueError, UnicodeDecodeError) as error:  # No path in it, or not even text.
            state, problem = None, error
        if state is not None or not tf.io.gfile.exists(path):
            return state
        if attempt < _MAX_READ_RETRIES:
            logger.warning("%s exists but is not a checkpoint state; reading it again.", path)
            sleep(_READ_RETRY_SEC)
    raise errors.MonolithError(
        f"read ckpt error! {path} exists but is not a checkpoint state after "
        f"{_MAX_READ_RETRIES} retries; repair or remove it."
    ) from problem


def _apply_restore_ckpt(state: CheckpointState, checkpoint_dir: str) -> None:
    """Makes `state` name `FLAGS.restore_ckpt` if it should."""
    if "restore_ckpt" not in FLAGS or not FLAGS.restore_ckpt:
        return
    name = os.path.basename(FLAGS.restore_ckpt)
    listed = _find_listed(state, name)
    path = listed or os.path.join(os.path.dirname(state.model_checkpoint_path), name)
    if FLAGS.mode != _TRAIN_MODE:
        if listed is None:
            logger.warning("restore_ckpt %s is not in %s; ignored.", path, checkpoint_dir)
        elif listed == state.model_checkpoint_path:
            logger.warning("restore_ckpt %s is the newest checkpoint anyway.", path)
        else:
            state.model_checkpoint_path = listed
        return

    marker = os.path.join(checkpoint_dir, RESTORE_MARKER_FILE_NAME)
    if tf.io.gfile.exists(marker):
        return
    if listed is None:
        if not checkpoint_state.checkpoint_exists(path):
            logger.warning("restore_ckpt %s does not exist; ignored.", path)
            return
        logger.warning("restore_ckpt %s exists but is not listed in %s.", path, checkpoint_dir)
    if path == state.model_checkpoint_path:
        logger.warning("restore_ckpt %s is the newest checkpoint anyway.", path)
    else:
        _rewrite_checkpoint_file(checkpoint_dir, name)
        state.model_checkpoint_path = path
        logger.info("Going back to %s.", path)
    # Written last: a crash before it repeats the steps above, a crash after it has lost nothing.
    _write_atomically(marker, path)


def _rewrite_checkpoint_file(checkpoint_dir: str, name: str) -> None:
    # The file may hold paths relative to its directory, which TensorFlow has resolved in the
    # state it returns. They stay relative, or a model directory could not be moved any more.
    path = os.path.join(checkpoint_dir, CHECKPOINT_FILE_NAME)
    state = CheckpointState()
    text_format.Parse(file_io.read_file_to_string(path), state)
    state.model_checkpoint_path = _find_listed(state, name) or os.path.join(
        os.path.dirname(state.model_checkpoint_path), name
    )
    _write_atomically(path, text_format.MessageToString(state))


def _find_listed(state: CheckpointState, restore_ckpt: str) -> str | None:
    """Returns the newest listed checkpoint with the base name of `restore_ckpt`."""
    name = os.path.basename(restore_ckpt)
    for path in reversed(state.all_model_checkpoint_paths):
        if os.path.basename(path) == name:
            return str(path)
    return None


def _exempt_from_deletion(path: str, restore_dir: str, model_dir: str) -> None:
    state = checkpoint_state.get_monolith_checkpoint_state(model_dir)
    if state is None:
        state = monolith_checkpoint_state_pb2.MonolithCheckpointState()
        restored = checkpoint_state.get_monolith_checkpoint_state(restore_dir)
        if restored is not None and restored.HasField("builtin_hash_table_type"):
            state.builtin_hash_table_type = restored.builtin_hash_table_type
    if path not in state.exempt_model_checkpoint_paths:
        state.exempt_model_checkpoint_paths.append(path)
    checkpoint_state.save_monolith_checkpoint_state(model_dir, state)


def _write_atomically(path: str, content: str) -> None:
    file_io.atomic_write_string_to_file(path, content)
