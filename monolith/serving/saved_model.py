"""Writes a session's graph and variables as a SavedModel, complete or not at all."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors

logger = logging.getLogger(__name__)

_MAX_TIMESTAMP_TRIES = 1000


def make_timestamped_dir(export_dir_base: str, clock: Callable[[], float] = time.time) -> str:
    """Returns a directory below `export_dir_base` that does not exist, named after the time.

    Servers load the highest number; if the current second is taken, the next free one is used.

    Args:
        export_dir_base: Directory of all versions of a model.
        clock: Returns seconds since 1970.
    """
    now_sec = int(clock())
    for timestamp in range(now_sec, now_sec + _MAX_TIMESTAMP_TRIES):
        export_dir = os.path.join(export_dir_base, str(timestamp))
        if not tf.io.gfile.exists(export_dir):
            return export_dir
    raise errors.ConfigError(
        f"{export_dir_base} already holds a model for each of the {_MAX_TIMESTAMP_TRIES} seconds "
        f"from {now_sec}; export less often or to another directory."
    )


def write_saved_model(
    session: tf.compat.v1.Session,
    export_dir: str,
    signatures: Mapping[str, Any],
    *,
    tags: Sequence[str] = (tf.saved_model.SERVING,),
    main_op: tf.Operation | None = None,
    saver: Any = None,
    assets_extra: Mapping[str, str] | None = None,
    clear_devices: bool = False,
    strip_default_attrs: bool = True,
) -> None:
    """Writes the graph of a session, with the values of its variables.

    Everything goes to a directory beside first, which is renamed at the end: whoever watches for
    new versions never sees half of one.

    Args:
        session: The session.
        export_dir: Directory to make.
        signatures: `SignatureDef`s by name.
        tags: Tags of the graph.
        main_op: Runs when the model is loaded, after its variables are restored.
        saver: Saves the variables; None for all of them.
        assets_extra: Files to copy along, from their path below `assets.extra`.
        clear_devices: Whether ops lose their devices.
        strip_default_attrs: Whether attributes with default values are left out, so that older
            versions of TensorFlow can read the model.

    Raises:
        errors.ConfigError: The directory cannot be made.
    """
    base, version = os.path.split(export_dir.rstrip("/"))
    temporary_dir = os.path.join(base, f"temp-{version}")
    _make_empty_dir(temporary_dir, export_dir)
    try:
        _write(
            session,
            temporary_dir,
            signatures,
            tags=list(tags),
            main_op=main_op,
            saver=saver,
            assets_extra=assets_extra or {},
            clear_devices=clear_devices,
            strip_default_attrs=strip_default_attrs,
        )
        tf.io.gfile.rename(temporary_dir, export_dir)
    except BaseException:
        # Tables may be large; what nobody can use must not fill the disk.
        tf.io.gfile.rmtree(temporary_dir)
        raise
    logger.info("exported a saved model to %s", export_dir)


def _make_empty_dir(temporary_dir: str, export_dir: str) -> None:
    try:
        if tf.io.gfile.exists(temporary_dir):
            # Left behind by an export that was killed.
            tf.io.gfile.rmtree(temporary_dir)
        tf.io.gfile.makedirs(temporary_dir)
    except (tf.errors.PermissionDeniedError, tf.errors.FailedPreconditionError) as e:
        raise errors.ConfigError(
            f"The model cannot be exported to {export_dir}, because no directory can be made "
            f"there: {e.message}. Export to a directory that this process may write to."
        ) from e


def _write(
    session: tf.compat.v1.Session,
    directory: str,
    signatures: Mapping[str, Any],
    *,
    tags: list[str],
    main_op: tf.Operation | None,
    saver: Any,
    assets_extra: Mapping[str, str],
    clear_devices: bool,
    strip_default_attrs: bool,
) -> None:
    builder = tf.compat.v1.saved_model.Builder(directory)
    assets = session.graph.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS)
    builder.add_meta_graph_and_variables(
        session,
        tags,
        signature_def_map=dict(signatures),
        assets_collection=assets,
        main_op=main_op,
        saver=saver,
        clear_devices=clear_devices,
        strip_default_attrs=strip_default_attrs,
    )
    builder.save()
    for name, source in assets_extra.items():
        target = os.path.join(directory, "assets.extra", name)
        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.copy(source, target)
