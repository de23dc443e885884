"""Training in which the workers exchange rows and gradients in collectives."""

import dataclasses


@dataclasses.dataclass
class SyncSettings:
    """How workers keep in step, and whether they compute on GPUs.

    :param enable_sync_training: Whether workers exchange rows and gradients in collectives instead
        of through parameter servers.
    :param enable_partial_sync_training: Whether dense gradients are exchanged in collectives while
        rows stay on parameter servers.
    :param enable_gpu_training: Whether ops may be placed on a GPU.
    :param processes_per_gpu: How many processes share one GPU.
    :param merge_sync_training_ckpt: Whether all workers of a synchronous job write one checkpoint.
        If not, each has a model directory of its own.
    :param enable_async_optimize: Whether a synchronous job queues gradients before they are
        exchanged.
    :param enable_pipelined_fwda2a: Whether a synchronous job queues rows between lookup and
        exchange.
    :param enable_pipelined_bwda2a: Whether a synchronous job queues gradients between exchange and
        update.
    :param reorder_fids_in_data_pipeline: Whether ids are made unique and sharded in the input
        pipeline. Synchronous training needs it.
    :param operator_files_steps: Steps between two looks of a synchronous job at the files that an
        operator leaves in the model directory, to have it save or stop. If unset, nobody looks.
    """

    enable_sync_training: bool = False
    enable_partial_sync_training: bool = False
    enable_gpu_training: bool = False
    processes_per_gpu: int = 1
    merge_sync_training_ckpt: bool = True
    enable_async_optimize: bool = False
    enable_pipelined_fwda2a: bool = False
    enable_pipelined_bwda2a: bool = False
    reorder_fids_in_data_pipeline: bool = False
    operator_files_steps: int | None = None
