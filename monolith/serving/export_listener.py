"""Exports the model whenever training has saved it, and removes exports with their checkpoints.

An exported model may read the rows of its tables from its checkpoint, so it is worth nothing once
the checkpoint is gone: both stay for the same time.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf
from google.protobuf import text_format

from monolith.checkpoint.paths import SaveHelper
from monolith.core import metrics
from monolith.proto import export_pb2
from monolith.serving import export_state
from monolith.serving.export import BaseExporter

logger = logging.getLogger(__name__)

_LATEST_VERSION = "export_models.latest_version"


def get_global_step(checkpoint_path: str) -> int:
    """Returns the step of a checkpoint, from its name.

    Example:
        >>> get_global_step("/models/ads/model.ckpt-10")
        10
    """
    return SaveHelper.get_global_step_value(checkpoint_path)


class ExportSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Exports each checkpoint after it is complete.

    Args:
        save_path: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
        serving_input_receiver_fn: Builds the input of the exported model.
        exporter: Exports it.
        exempt_checkpoint_paths: Checkpoints whose exports are kept in any case.
        dense_only: Whether these are checkpoints without tables, in a directory below that of the
            full ones; exports of a step that has a full checkpoint are kept, too.
    """

    def __init__(
        self,
        save_path: str,
        serving_input_receiver_fn: Callable[[], Any],
        exporter: BaseExporter,
        exempt_checkpoint_paths: Iterable[str] | None = None,
        dense_only: bool = False,
    ) -> None:
        super().__init__()
        self._helper = SaveHelper(save_path)
        self._serving_input_receiver_fn = serving_input_receiver_fn
        self._exporter = exporter
        self._exempt_steps = {get_global_step(path) for path in exempt_checkpoint_paths or ()}
        self._full_helper = None
        if dense_only:
            directory, name = os.path.split(save_path)
            self._full_helper = SaveHelper(os.path.join(os.path.dirname(directory), name))

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Exports the checkpoint that was just saved; called by the saver hook."""
        step = int(global_step_value)
        exported = self._exporter.export_saved_model(
            self._serving_input_receiver_fn, self._helper.get_ckpt_prefix(step), step
        )
        kept_steps = self._list_kept_steps() | {step}
        for export_dir in exported.values() if isinstance(exported, Mapping) else [exported]:
            _record(os.fsdecode(export_dir), step, kept_steps)

    def _list_kept_steps(self) -> set[int]:
        steps = self._exempt_steps | self._helper.get_existing_checkpoint_steps()
        if self._full_helper is not None:
            steps |= self._full_helper.get_existing_checkpoint_steps()
        return steps


def _record(export_dir: str, step: int, kept_steps: set[int]) -> None:
    """Adds an export to the state beside it, and removes exports of steps that are gone."""
    export_dir_base, version = os.path.split(export_dir.rstrip("/"))
    try:
        state = export_state.get_export_saver_listener_state(export_dir_base)
    except text_format.ParseError as e:
        # People edit this file. Writing a new one would lose what it lists; training goes on.
        logger.error("%s is exported but not recorded: %s", export_dir, e)
        return
    state.entries.append(export_pb2.ServingEntry(export_dir=export_dir, global_step=step))
    # Exports go first: after a crash between the two, the next call finds them gone already.
    kept = [
        entry
        for entry in state.entries
        if entry.global_step in kept_steps or not _remove(entry, export_dir_base)
    ]
    export_state.overwrite_export_saver_listener_state(
        export_dir_base, export_pb2.ServingModelState(entries=kept)
    )
    if version.isdigit():
        client = metrics.get_cli(metrics.get_metric_prefix())
        client.emit_store(_LATEST_VERSION, int(version))


def _remove(entry: export_pb2.ServingEntry, export_dir_base: str) -> bool:
    """Removes an export; returns whether it is gone."""
    # The directory of all versions may have been moved, or copied, since the entry was written.
    version = os.path.basename(entry.export_dir.rstrip("/"))
    export_dir = os.path.join(export_dir_base, version)
    try:
        if tf.io.gfile.exists(export_dir):
            tf.io.gfile.rmtree(export_dir)
            logger.info(
                "removed %s, its checkpoint of step %d is gone", export_dir, entry.global_step
            )
    except tf.errors.OpError as e:
        logger.warning("could not remove the old export %s: %s", export_dir, e)
        return False
    return True
