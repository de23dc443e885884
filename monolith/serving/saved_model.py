"""Writes a session's graph and variables as a SavedModel, complete or not at all."""

import contextlib
import logging
import os
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.serving import temporary_dirs

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


class Publication:
    """Directories that appear together, complete or not at all.

    Each is written beside its place, as `temp-<name>...`. When the block ends they are renamed, one
    right after the other in the order in which they were added; if it fails, they are removed. What
    exports that were killed have left beside is removed as well.
    """

    def __init__(self) -> None:
        self._dirs: list[tuple[str, str]] = []

    def __enter__(self) -> "Publication":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        try:
            while kind is None and self._dirs:
                temporary_dir, export_dir = self._dirs[0]
                tf.io.gfile.rename(temporary_dir, export_dir)
                self._dirs.pop(0)
                logger.info("exported a saved model to %s", export_dir)
        finally:
            # Tables may be large; what nobody can use must not fill the disk.
            for temporary_dir, _ in self._dirs:
                tf.io.gfile.rmtree(temporary_dir)

    def make_dir(self, export_dir: str) -> str:
        """Makes the empty directory that becomes `export_dir`.

        Raises:
            errors.ConfigError: It cannot be made.
        """
        base, version = os.path.split(export_dir.rstrip("/"))
        temporary_dirs.remove_dead(base)
        temporary_dir = os.path.join(base, temporary_dirs.make_name(version))
        _make_empty_dir(temporary_dir, export_dir)
        self._dirs.append((temporary_dir, export_dir))
        return temporary_dir


def write_saved_model(
    session: tf.compat.v1.Session,
    export_dir: str,
    signatures: Mapping[str, Any],
    *,
    tags: Sequence[str] = (tf.saved_model.SERVING,),
    main_op: tf.Operation | None = None,
    saver: Any = None,
    assets: Sequence[Callable[[str], None]] = (),
    assets_extra: Mapping[str, str] | None = None,
    clear_devices: bool = False,
    strip_default_attrs: bool = True,
    publication: Publication | None = None,
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
        assets: Write files of their own to the directory of the model's assets, which they get.
        assets_extra: Files to copy along, from their path below `assets.extra`.
        clear_devices: Whether ops lose their devices.
        strip_default_attrs: Whether attributes with default values are left out, so that older
            versions of TensorFlow can read the model.
        publication: Has the directory appear together with others; None: at once.

    Raises:
        errors.ConfigError: The directory cannot be made.
    """
    with contextlib.ExitStack() as stack:
        if publication is None:
            publication = stack.enter_context(Publication())
        _write(
            session,
            publication.make_dir(export_dir),
            signatures,
            tags=list(tags),
            main_op=main_op,
            saver=saver,
            assets=assets,
            assets_extra=assets_extra or {},
            clear_devices=clear_devices,
            strip_default_attrs=strip_default_attrs,
        )


def _make_empty_dir(temporary_dir: str, export_dir: str) -> None:
    try:
        if tf.io.gfile.exists(temporary_dir):
            # Left behind by an export of this process that failed to clean up.
            tf.io.gfile.rmtree(temporary_dir)
        tf.io.gfile.makedirs(temporary_dir)
    except tf.errors.OpError as e:  # Each file system has errors of its own for it.
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
    assets: Sequence[Callable[[str], None]],
    assets_extra: Mapping[str, str],
    clear_devices: bool,
    strip_default_attrs: bool,
) -> None:
    builder = tf.compat.v1.saved_model.Builder(directory)
    paths = session.graph.get_collection(tf.compat.v1.GraphKeys.ASSET_FILEPATHS)
    builder.add_meta_graph_and_variables(
        session,
        tags,
        signature_def_map=dict(signatures),
        assets_collection=paths,
        main_op=main_op,
        saver=saver,
        clear_devices=clear_devices,
        strip_default_attrs=strip_default_attrs,
    )
    builder.save()
    for write_files in assets:
        write_files(os.path.join(directory, "assets"))
    for name, source in assets_extra.items():
        target = os.path.join(directory, "assets.extra", name)
        tf.io.gfile.makedirs(os.path.dirname(target))
        tf.io.gfile.copy(source, target)
