"""The file `monolith_checkpoint` beside TensorFlow's `checkpoint`.

It holds what TensorFlow's file has no place for: checkpoints that retention must never delete,
when the last one was written, and which kind of table wrote them.

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

import logging
import os

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.lib.io import file_io

from monolith.proto import monolith_checkpoint_state_pb2

logger = logging.getLogger(__name__)

MONOLITH_CKPT_STATE_FILE_NAME = "monolith_checkpoint"


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
        paths = [_resolve(checkpoint_dir, p) for p in state.exempt_model_checkpoint_paths]
        del state.exempt_model_checkpoint_paths[:]
        state.exempt_model_checkpoint_paths.extend(p for p in paths if checkpoint_exists(p))
    return state


def save_monolith_checkpoint_state(
    checkpoint_dir: str, state: monolith_checkpoint_state_pb2.MonolithCheckpointState
) -> None:
    """Writes the state file; a reader sees the old state or the new one, never a part."""
    path = os.path.join(checkpoint_dir, MONOLITH_CKPT_STATE_FILE_NAME)
    file_io.atomic_write_string_to_file(path, text_format.MessageToString(state))


def checkpoint_exists(prefix: str) -> bool:
    """Returns whether the checkpoint with the path `prefix` is on disk."""
    # What TensorFlow's deprecated function of this name asks for, without the format of TF 0.x.
    return bool(tf.io.gfile.exists(prefix + ".index"))


def _resolve(checkpoint_dir: str, path: str) -> str:
    # A path such as hdfs:/model is absolute, which os.path does not know.
    return path if ":/" in path else os.path.join(checkpoint_dir, path)
