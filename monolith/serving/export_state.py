"""The file that remembers which checkpoint each exported model was made from.

It stands beside the versions of a model, as text of `ServingModelState`, newest entry last.
"""

import os
import uuid

import tensorflow as tf
from google.protobuf import text_format

from monolith.proto import export_pb2

EXPORT_SAVER_LISTENER_STATE_FILE_NAME = "ExportSaverListenerState"


def get_export_saver_listener_state(export_dir_base: str) -> export_pb2.ServingModelState:
    """Returns what the file in a directory says, an empty state if there is no file.

    Args:
        export_dir_base: Directory of all versions of a model.

    Raises:
        text_format.ParseError: The file is damaged; the message names it.
    """
    path = _get_path(export_dir_base)
    state = export_pb2.ServingModelState()
    if not tf.io.gfile.exists(path):
        return state
    with tf.io.gfile.GFile(path) as file:
        text = file.read()
    try:
        return text_format.Parse(text, state)
    except text_format.ParseError as e:
        raise text_format.ParseError(
            f"{path} does not say which models were exported: {e}. Repair or remove it; models "
            "that it does not list are never deleted."
        ) from e


def overwrite_export_saver_listener_state(
    export_dir_base: str, state: export_pb2.ServingModelState
) -> None:
    """Writes the file, complete or not at all.

    Args:
        export_dir_base: Directory of all versions of a model.
        state: What to write.
    """
    path = _get_path(export_dir_base)
    temporary_path = f"{path}-tmp-{uuid.uuid4().hex}"
    tf.io.gfile.makedirs(export_dir_base)
    with tf.io.gfile.GFile(temporary_path, "w") as file:
        file.write(text_format.MessageToString(state))
    tf.io.gfile.rename(temporary_path, path, overwrite=True)


def _get_path(export_dir_base: str) -> str:
    return os.path.join(export_dir_base, EXPORT_SAVER_LISTENER_STATE_FILE_NAME)
