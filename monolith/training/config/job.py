"""The settings of a training job.

`CpuTrainingConfig` is what one training process needs, `DistributedCpuTrainingConfig` adds what
it takes to be a member of a cluster, and `monolith.training.runner.RunnerConfig` adds where the
job comes from and where its data is.

A field with a `:param` line below becomes a command-line flag of the same name through
`RunnerConfig`. None means that a setting was not given.

Example:
    >>> config = CpuTrainingConfig(enable_sync_training=True)
    >>> config.index, config.enable_full_sync_training
    (0, True)
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from monolith.core.flags import LinkDataclassToFlags, update_by_flags
from monolith.data import flags as _data_flags  # noqa: F401 - defines the flag linked below


@LinkDataclassToFlags(linked_map={"use_dataservice": "dataset_use_dataservice"})
@dataclasses.dataclass
class CpuTrainingConfig:
    """How one process trains.

    Three fields have no flag of their own name: `profile_save_steps_interval`, the steps between
    two profiles of the chief; `device_fn`, which places the estimator's ops; and
    `use_dataservice`, whether input comes from the tf.data service, which the flag
    `dataset_use_dataservice` sets.

    :param server_type: What this process is, 'ps' or 'worker'.
    :param index: Index of this process among those of its kind.
    :param num_ps: How many parameter servers the job has. 0 keeps everything in one process.
    :param num_workers: How many workers the job has; worker 0 is the chief.
    :param model_name: Name of the model. If empty, the deep-insight name, else one that is made
        from the task's class.
    :param filter_capacity: How many ids the sliding hash filter remembers.
    :param filter_split_num: Into how many parts the sliding hash filter is split; the oldest part
        is forgotten when the newest is full.
    :param filter_type: How rarely seen ids are kept out of the tables: 'sliding_hash_filter',
        'probabilistic_filter' or 'no_filter'.
    :param filter_equal_probability: Whether the probabilistic filter admits an id with the same
        probability each time it is seen.
    :param hashtable_init_capacity: Rows that each table reserves at the start. 0 keeps what the
        table's own config says.
    :param use_native_multi_hash_table: Whether all tables of a server live in one resource. If
        unset, yes, unless the model directory holds a checkpoint of separate tables.
    :param embedding_prefetch_capacity: Batches that may wait between the embedding lookup and
        the model. 0 means no queue.
    :param enable_embedding_postpush: Whether embedding gradients are pushed by a queue, one step
        late, instead of within the step.
    :param enable_variable_prefetch: Whether dense variables are read from a local copy that is
        fetched beside each step.
    :param enable_variable_postpush: Whether dense gradients are pushed by a queue, one step late.
    :param enable_sync_training: Whether workers exchange rows and gradients in collectives
        instead of through parameter servers.
    :param enable_partial_sync_training: Whether dense gradients are exchanged in collectives
        while rows stay on parameter servers.
    :param enable_gpu_training: Whether ops may be placed on a GPU.
    :param processes_per_gpu: How many processes share one GPU.
    :param merge_sync_training_ckpt: Whether all workers of a synchronous job write one
        checkpoint. If not, each has a model directory of its own.
    :param mode: What to run: 'train', 'eval' or 'infer'.
    :param partial_recovery: Whether a restore leaves parameter servers alone that did not restart.
    :param tide_start_hour: Hour (UTC) at which spare machines become available.
    :param tide_start_minute: Minute that belongs to tide_start_hour.
    :param tide_end_hour: Hour (UTC) at which spare machines are taken back.
    :param tide_end_minute: Minute that belongs to tide_end_hour.
    :param tide_save_secs: Seconds between checkpoints while spare machines are not available.
    :param enable_realtime_training: Whether this job trains on a stream and sends what changed to
        the serving side.
    :param enable_async_optimize: Whether a synchronous job queues gradients before they are
        exchanged.
    :param enable_pipelined_fwda2a: Whether a synchronous job queues rows between lookup and
        exchange.
    :param enable_pipelined_bwda2a: Whether a synchronous job queues gradients between exchange
        and update.
    :param profile_some_steps_from: Step at which the chief starts to profile 10 steps.
    :param profile_with_nvprof_from_to: Steps 'start,end' between which nvprof records.
    :param reorder_fids_in_data_pipeline: Whether ids are made unique and sharded in the input
        pipeline. Synchronous training needs it.
    :param chief_timeout_secs: How long the chief waits for the other workers at the end.
    :param save_checkpoints_secs: Seconds between checkpoints.
    :param save_checkpoints_steps: Steps between checkpoints.
    :param dense_only_save_checkpoints_secs: Seconds between checkpoints of dense variables alone.
    :param dense_only_save_checkpoints_steps: Steps between checkpoints of dense variables alone.
    :param dense_only_stop_training_when_save: Whether workers pause while dense variables alone
        are saved.
    :param warmup_file: File of requests that warm up an exported model.
    :param skip_zero_embedding_when_serving: Whether rows of zeros are left out of an exported
        model.
    :param max_rpc_deadline_millis: Longest time that the serving side waits for a parameter
        server.
    :param checkpoints_max_to_keep: How many checkpoints stay on disk.
    :param submit_time_secs: When the job was submitted, in seconds since 1970; for metrics.
    :param containers_ready_time_secs: When the job's machines were there, in seconds since 1970;
        for metrics.
    :param cluster_type: Kind of cluster, 'stable', 'tide' or 'k8s'; a tag of metrics.
    :param max_slow_start_wait_minute: Longest time that a worker delays its first step to let
        others go first.
    :param enable_model_ckpt_info: Whether each checkpoint gets a file that counts its ids.
    :param feature_eviction_on_save: Whether tables are reloaded after a save, so that expired
        rows also leave the memory.
    :param only_feature_engineering: Whether features are written to files instead of training.
    :param enable_variable_partition: Whether large dense variables are split over the servers.
    :param enable_fused_layout: Whether embeddings are looked up by layout in one fused op.
    :param force_shutdown_ps: Whether the parameter servers end with the job even in realtime
        training.
    :param clear_nn: Whether a reload starts with fresh dense variables.
    :param continue_training: Whether a reload with fresh dense variables keeps the global step.
    :param reload_alias_map: New name of a variable to its name in the checkpoint, in a reload.
    :param enable_alias_map_auto_gen: Whether a reload finds renamed variables by itself.
    :param enable_model_dump: Whether the model is written as a protobuf beside the checkpoints.
    :param enable_resource_constrained_roughsort: Whether a second pass over the candidate items
        follows the training.
    :param roughsort_candidate_items_path: Where the candidate items of that pass are.
    :param roughsort_items_use_parquet: Whether the candidate items are Parquet files.
    :param items_input_lagrangex_header: Whether records of items start with a Lagrange header.
    :param items_input_has_sort_id: Whether records of items have a sort id.
    :param items_input_kafka_dump: Whether files of items are dumps of Kafka.
    :param items_input_kafka_dump_prefix: Whether records of items have the prefix of Kafka dumps.
    :param num_extra_dsworker_on_gpu_worker: How many workers of the tf.data service run beside
        each GPU worker.
    :param save_summary_steps: Steps between summaries.
    :param log_step_count_steps: Steps between log lines with the speed.
    """

    server_type: str = "worker"
    index: int = 0
    num_ps: int = 0
    num_workers: int = 1
    model_name: str = ""
    filter_capacity: int = 300000000
    filter_split_num: int = 7
    filter_type: str = "sliding_hash_filter"
    filter_equal_probability: bool = True
    hashtable_init_capacity: int = 0
    use_native_multi_hash_table: bool | None = None
    embedding_prefetch_capacity: int = 0
    enable_embedding_postpush: bool = False
    enable_variable_prefetch: bool = False
    enable_variable_postpush: bool = False
    enable_sync_training: bool = False
    enable_partial_sync_training: bool = False
    enable_gpu_training: bool = False
    processes_per_gpu: int = 1
    merge_sync_training_ckpt: bool = True
    mode: str = "train"
    partial_recovery: bool | None = None
    tide_start_hour: int | None = None
    tide_start_minute: int | None = None
    tide_end_hour: int | None = None
    tide_end_minute: int | None = None
    tide_save_secs: int | None = None
    enable_realtime_training: bool = False
    enable_async_optimize: bool = False
    enable_pipelined_fwda2a: bool = False
    enable_pipelined_bwda2a: bool = False
    profile_some_steps_from: int | None = None
    profile_save_steps_interval: int = 5000
    profile_with_nvprof_from_to: str | None = None
    reorder_fids_in_data_pipeline: bool = False
    chief_timeout_secs: int = 1800
    save_checkpoints_secs: int | None = None
    save_checkpoints_steps: int | None = None
    dense_only_save_checkpoints_secs: int | None = None
    dense_only_save_checkpoints_steps: int | None = None
    dense_only_stop_training_when_save: bool = False
    warmup_file: str = "./warmup_file"
    skip_zero_embedding_when_serving: bool = False
    max_rpc_deadline_millis: int = 30000
    checkpoints_max_to_keep: int = 10
    submit_time_secs: int | None = None
    containers_ready_time_secs: int | None = None
    cluster_type: str = "stable"
    max_slow_start_wait_minute: int = 10
    enable_model_ckpt_info: bool = False
    feature_eviction_on_save: bool = False
    only_feature_engineering: bool = False
    enable_variable_partition: bool = True
    enable_fused_layout: bool = False
    force_shutdown_ps: bool = False
    clear_nn: bool = False
    continue_training: bool = False
    reload_alias_map: dict[str, str] | None = None
    enable_alias_map_auto_gen: bool | None = None
    enable_model_dump: bool = False
    enable_resource_constrained_roughsort: bool = False
    roughsort_candidate_items_path: str | None = None
    roughsort_items_use_parquet: bool = False
    items_input_lagrangex_header: bool = False
    items_input_has_sort_id: bool = False
    items_input_kafka_dump: bool = False
    items_input_kafka_dump_prefix: bool = False
    device_fn: Callable[..., Any] | None = None
    use_dataservice: bool | None = None
    num_extra_dsworker_on_gpu_worker: int = 0
    save_summary_steps: int = 100
    log_step_count_steps: int = 100

    @property
    def enable_full_sync_training(self) -> bool:
        """Whether rows and dense gradients both go through collectives, without any server."""
        return self.enable_sync_training and not self.enable_partial_sync_training


@update_by_flags
@dataclasses.dataclass
class DistributedCpuTrainingConfig(CpuTrainingConfig):
    """How a process takes part in a cluster.

    :param model_dir: Directory of the model's checkpoints; shared by all members of the job.
    :param tensorboard_log_path: Directory of summaries. If empty, the model directory.
    :param intra_op_parallelism_threads: Threads that one op may use.
    :param inter_op_parallelism_threads: Threads that run ops side by side.
    :param num_extra_ps: Parameter servers started beyond the required ones; all are measured and
        the slowest are left out.
    :param num_redundant_ps: Parameter servers started beyond the required ones; the first to
        register take part.
    :param uuid: Identifies this run of the job, also in service discovery.
    :param operation_timeout_in_ms: Longest time of one session run. -1 means no limit.
    :param session_creation_timeout_secs: How long a worker waits for the session to be ready.
    :param max_retry_times: How often a worker starts again after the cluster changed. 0 means 6
        times with partial recovery and never without.
    :param retry_wait_in_secs: How long a worker waits before it starts again.
    :param fountain_zk_host: ZooKeeper servers of the Fountain input service.
    :param fountain_model_name: Name of the model in the Fountain input service.
    :param dc_aware: Whether updates go only to serving replicas in the same data center.
    """

    model_dir: str = ""
    tensorboard_log_path: str = ""
    intra_op_parallelism_threads: int = 8
    inter_op_parallelism_threads: int = 16
    num_extra_ps: int = 0
    num_redundant_ps: int = 0
    uuid: str = ""
    operation_timeout_in_ms: int = -1
    session_creation_timeout_secs: int = 7200
    max_retry_times: int = 0
    retry_wait_in_secs: int = 30
    fountain_zk_host: str = ""
    fountain_model_name: str = ""
    dc_aware: bool = False
