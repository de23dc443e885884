"""Exports a model in parts: `entry`, and `ps_0`, `ps_1` and so on with the rows.

Tables that are larger than one machine are served by several. The entry model holds the network and
asks each `ps_<i>` for the rows of its ids, with one request for all tables. `docs/serving.md` says
how they are run.

Example:
    With a model function that builds an `EstimatorSpec` in mode PREDICT,

        exporter = DistributedExporter(model_fn, "model_dir", "model_dir/exported_models")
        export_dirs = exporter.export_saved_model(serving_input_receiver_fn)
        print(export_dirs["entry"], export_dirs["ps_0"])
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.graph.export_mode import ExportContext, ExportMode
from monolith.serving import saved_model
from monolith.serving.export_base import BaseExporter, ContextFactory, ReceiverFn

logger = logging.getLogger(__name__)

ENTRY = "entry"
_DENSE = "dense"
_MAX_TIMESTAMP_TRIES = 1000


def check_devices(allow_gpu: bool, with_remote_gpu: bool) -> None:
    """Refuses an export for a GPU.

    Raises:
        errors.ConfigError: One of the two is set.
    """
    if allow_gpu or with_remote_gpu:
        setting = "export_with_gpu_allowed" if allow_gpu else "with_remote_gpu"
        raise errors.ConfigError(
            f"`serving.{setting}` asks for a model that is served on a GPU, and the ops of this "
            "version of Monolith run on CPUs; leave it at False."
        )


class DistributedExporter(BaseExporter):
    """Exports an entry model, and one model with the rows of each parameter server.

    The parts of a version have one number, and appear when all of them are written: those with
    rows first, the entry last. So an entry never appears before the rows that belong to it.

    Args:
        model_fn: As of `BaseExporter`, and so are those up to `export_context_list`.
        dense_only: Whether to leave the tables out; the servers keep the rows they have.
        allow_gpu: Whether ops may be placed on a GPU; must be False.
        with_remote_gpu: Whether the network is a part of its own, for a GPU; must be False.
        clear_entry_devices: Whether the ops of the entry lose their devices.
        include_graphs: Only these parts; None: all.
        global_step_as_timestamp: Whether a version is named after the step of the checkpoint, in
            place of the time.
        freeze_variable: Whether variables of parts called `dense...` become constants.

    Raises:
        errors.ConfigError: A GPU is asked for.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str,
        export_dir_base: str,
        shared_embedding: bool = False,
        warmup_file: str | None = None,
        export_context_list: Sequence[ContextFactory] | None = None,
        dense_only: bool = False,
        allow_gpu: bool = False,
        with_remote_gpu: bool = False,
        clear_entry_devices: bool = False,
        include_graphs: Collection[str] | None = None,
        global_step_as_timestamp: bool = False,
        freeze_variable: bool = True,
    ) -> None:
        super().__init__(
            model_fn,
            model_dir,
            export_dir_base,
            shared_embedding,
            warmup_file,
            export_context_list,
        )
        check_devices(allow_gpu, with_remote_gpu)
        self._dense_only = dense_only
        self._clear_entry_devices = clear_entry_devices
        self._include_graphs = None if include_graphs is None else frozenset(include_graphs)
        self._global_step_as_timestamp = global_step_as_timestamp
        self._freeze_variable = freeze_variable

    def export_saved_model(
        self,
        serving_input_receiver_fn: ReceiverFn,
        checkpoint_path: str | None = None,
        global_step: int | None = None,
    ) -> dict[str, bytes]:
        """Exports each part to `<export_dir_base>/<part>/<version>`.

        Args:
            serving_input_receiver_fn: Builds the input of the entry model.
            checkpoint_path: What to export; None takes the last checkpoint of the model directory.
            global_step: The step of the checkpoint, for versions that are named after it.

        Returns:
            The directories by part.

        Raises:
            errors.ConfigError: There is no checkpoint, it does not fit the model, the receiver
                does not give what the model needs, there is no part of a name that was asked for,
                or a directory cannot be written.
        """
        checkpoint = self._find_checkpoint(checkpoint_path)
        with self._exporting(ExportMode.DISTRIBUTED) as export_ctx:
            with tf.Graph().as_default() as entry:
                tf.compat.v1.train.create_global_step()
                self._model_fn_with_input_reveiver(serving_input_receiver_fn)
            parts = self._choose_parts(entry, export_ctx)
            version = self._choose_version(parts, global_step)
            dirs = {
                name: os.path.join(
                    self._export_dir_base, name, version + getattr(graph, "export_suffix", "")
                )
                for name, graph in parts.items()
            }
            with saved_model.Publication() as publication:
                for name, graph in parts.items():
                    if tf.io.gfile.exists(dirs[name]):
                        logger.warning("skipping duplicated model exportings: %s", dirs[name])
                        continue
                    self._export_part(name, graph, checkpoint, dirs[name], publication)
        return {name: os.fsencode(path) for name, path in dirs.items()}

    def _choose_parts(self, entry: tf.Graph, export_ctx: ExportContext) -> dict[str, tf.Graph]:
        """Returns the graphs to export, the entry last."""
        parts: dict[str, tf.Graph] = {}
        if not self._dense_only:
            parts.update(export_ctx.sub_graphs)
        parts.update(export_ctx.dense_sub_graphs)
        parts[ENTRY] = entry
        if self._include_graphs is None:
            return parts
        unknown = sorted(self._include_graphs - parts.keys())
        if unknown:
            raise errors.ConfigError(
                f"`include_graphs` asks for {', '.join(map(repr, unknown))}, but the parts of the "
                f"model are {', '.join(map(repr, sorted(parts)))}."
            )
        return {name: graph for name, graph in parts.items() if name in self._include_graphs}

    def _choose_version(self, parts: Collection[str], global_step: int | None) -> str:
        if self._global_step_as_timestamp and global_step is not None:
            return str(global_step)
        # One number for all parts, also if the current second is taken for some of them.
        now_sec = int(time.time())
        for version in range(now_sec, now_sec + _MAX_TIMESTAMP_TRIES):
            paths = (os.path.join(self._export_dir_base, name, str(version)) for name in parts)
            if not any(tf.io.gfile.exists(path) for path in paths):
                return str(version)
        raise errors.ConfigError(
            f"{self._export_dir_base} already holds a model for each of the "
            f"{_MAX_TIMESTAMP_TRIES} seconds from {now_sec}; export less often or to another "
            "directory."
        )

    def _export_part(
        self,
        name: str,
        graph: tf.Graph,
        checkpoint: str,
        export_dir: str,
        publication: saved_model.Publication,
    ) -> None:
        if name.startswith(_DENSE) and self._freeze_variable:
            self._export_frozen_saved_model_from_graph(
                graph, checkpoint, export_dir=export_dir, publication=publication
            )
            return
        has_tables = name != ENTRY and not name.startswith(_DENSE)
        self._export_saved_model_from_graph(
            graph,
            checkpoint,
            export_dir=export_dir,
            restore_hashtable=has_tables,
            assign_hashtable=has_tables,
            assets_extra=self.gen_warmup_assets() if name == ENTRY else None,
            clear_devices=self._clear_entry_devices and name == ENTRY,
            publication=publication,
        )
