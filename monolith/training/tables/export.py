"""Which exporter a task wants, and what exports the model after each save."""

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from monolith import errors
from monolith.graph import export_mode
from monolith.graph.export_mode import ExportMode
from monolith.model.task import NativeTask
from monolith.serving import export_distributed
from monolith.serving.export import BaseExporter, DistributedExporter, StandaloneExporter
from monolith.serving.export_listener import ExportSaverListener

if TYPE_CHECKING:
    from monolith.training.tables.training import CpuTraining

logger = logging.getLogger(__name__)


def create_exporter(
    task: "CpuTraining",
    model_dir: str,
    warmup_file: str | None,
    export_dir_base: str,
    dense_only: bool,
    include_graphs: Sequence[str] | None = None,
    export_context_list: Sequence[Any] | None = None,
) -> BaseExporter:
    """Makes the exporter that `params.serving` of a task asks for.

    Args:
        task: The task, ready for an estimator.
        model_dir: Directory of the checkpoints.
        warmup_file: Requests for a server to warm up with, if the file exists.
        export_dir_base: Directory of all versions of the exported model.
        dense_only: Whether to leave the tables out.
        include_graphs: Which parts of a model for several servers to export.
        export_context_list: Functions that make a context to export in.

    Raises:
        ValueError: `export_mode` is not a mode to export in.
        errors.ConfigError: Other settings do not go with it.
    """
    serving = task.task.p.serving
    if serving.export_mode == ExportMode.DISTRIBUTED:
        return DistributedExporter(
            task.create_model_fn(),
            model_dir=model_dir,
            export_dir_base=export_dir_base,
            shared_embedding=serving.shared_embedding,
            warmup_file=warmup_file,
            export_context_list=export_context_list,
            dense_only=dense_only,
            allow_gpu=serving.export_with_gpu_allowed,
            with_remote_gpu=serving.with_remote_gpu,
            clear_entry_devices=serving.export_with_cleared_entry_devices,
            include_graphs=include_graphs,
            global_step_as_timestamp=task.config.enable_sync_training,
        )
    if serving.export_mode != ExportMode.STANDALONE:
        raise ValueError(f"Invalid export_mode: {serving.export_mode}")
    if dense_only or include_graphs is not None:
        setting = "dense_only" if dense_only else "include_graphs"
        raise errors.ConfigError(
            f"`{setting}` exports a part of a model, and ExportMode.STANDALONE is one model with "
            "everything in it; leave it out."
        )
    export_distributed.check_devices(serving.export_with_gpu_allowed, serving.with_remote_gpu)
    if serving.export_with_cleared_entry_devices:
        raise errors.ConfigError(
            "`serving.export_with_cleared_entry_devices` is for the entry of a model in parts, and "
            "ExportMode.STANDALONE exports one model without devices; leave it at False."
        )
    return StandaloneExporter(
        task.create_model_fn(),
        model_dir=model_dir,
        export_dir_base=export_dir_base,
        shared_embedding=serving.shared_embedding,
        warmup_file=warmup_file,
        export_context_list=export_context_list,
    )


def create_export_listeners(
    task: "CpuTraining",
    model_dir: str,
    save_path: str,
    exempt_checkpoint_paths: Sequence[str],
    dense_only: bool,
) -> list[tf.compat.v1.train.CheckpointSaverListener]:
    """Returns what exports the model after a save; nothing, unless the task asks for it.

    Args:
        task: The task, ready for an estimator.
        model_dir: Directory of the model.
        save_path: What checkpoint prefixes begin with.
        exempt_checkpoint_paths: Checkpoints that are never deleted.
        dense_only: Whether these are checkpoints without tables.

    Raises:
        ValueError: The model is being exported already, it has no receiver function, or
            checkpoints without tables cannot be exported in its mode.
    """
    serving = task.task.p.serving
    if not serving.export_when_saving:
        return []
    if export_mode.is_exporting():
        raise ValueError("Logic corrupted. Try to call exporting listeners inside exporting.")
    if dense_only and serving.export_mode != ExportMode.DISTRIBUTED:
        raise errors.ConfigError(
            "`serving.export_when_saving` cannot export checkpoints without tables "
            f"(`dense_only_save_checkpoints_...`) with {serving.export_mode}, only with "
            "ExportMode.DISTRIBUTED; leave one of the two out."
        )
    receiver_fn = task.task.create_serving_input_receiver_fn()
    if receiver_fn is None:
        raise errors.ConfigError(
            f"`serving.export_when_saving` is set, but {describe_missing_receiver(task.task)}"
        )
    exporter = create_exporter(
        task,
        model_dir,
        task.config.warmup_file,
        os.path.join(model_dir, serving.export_dir_base),
        dense_only,
    )
    return [
        ExportSaverListener(
            save_path,
            receiver_fn,
            exporter,
            exempt_checkpoint_paths=exempt_checkpoint_paths,
            dense_only=dense_only,
        )
    ]


def warn_without_embeddings(task: NativeTask) -> None:
    """Says that saves of a model without embeddings, which has no hooks of ours, export nothing."""
    if task.p.serving.export_when_saving:
        logger.warning(
            "`serving.export_when_saving` has no effect on %s, which has no embeddings; call "
            "export_saved_model of an Estimator",
            type(task).__name__,
        )


def describe_missing_receiver(task: NativeTask) -> str:
    """Returns a sentence for a task that cannot be exported."""
    return (
        f"{type(task).__name__} has no serving_input_receiver_fn; override it to return a "
        "ServingInputReceiver(features, receiver_tensors). (Of a task that is no MonolithModel, "
        "override create_serving_input_receiver_fn, which returns such a function.)"
    )
