"""Trains a task whose embeddings live in tables: in this process, on servers, or among ranks.

`CpuTraining` wraps the two functions of a task. Its model function looks up the rows of all
features before the task's model is built, hands the task a factory that knows them, and surrounds
the training session with what a long job needs: restore, checkpoints, a barrier, metrics.

    input -> ids -> lookup -> [queue] -> combine -> model -> gradients -> [queue] -> update

The queues are options: with them, the next batch is looked up and the last one's gradients are sent
while the current one is computed.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from absl import flags

from monolith import errors
from monolith.checkpoint.changed_model import OnChange
from monolith.checkpoint.saver import PartialRecoverySaver
from monolith.data import division, seekable
from monolith.data import flags as _data_flags  # noqa: F401 - defines the flags set below
from monolith.data import splits as data_splits
from monolith.embedding.features.slices import create_embedding_slices
from monolith.embedding.sharding import ranks
from monolith.embedding.sharding.partitioned import PartitionedHashTable
from monolith.embedding.sharding.ranked_layouts import RankedLayoutTable
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.graph import collectives, export_mode, mpi, task_context
from monolith.graph.mode_keys import ModeKeys
from monolith.model.batch import InputFeatures
from monolith.model.task import NativeTask
from monolith.serving.sync.client_ops import (
    create_parameter_sync_clients,
    parameter_sync_client_from_config,
)
from monolith.tensor import look_ahead, messages, prefetch
from monolith.training.config import supported
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.graph.estimator import GraphRunConfig, GraphSpec
from monolith.training.hooks import end_of_input, serving_sync
from monolith.training.hooks.input_splits import InputSplits
from monolith.training.hooks.rank_flags import AgreementHook, RankFlags, StopTogetherHook
from monolith.training.hooks.step_counts import collect_batch_size
from monolith.training.hooks.step_gate import StepGate
from monolith.training.hooks.sync import Others
from monolith.training.hooks.sync_training import REQ_TIME_COLLECTION
from monolith.training.tables import (
    cached_variables,
    collect,
    create,
    dense_ranks,
    export,
    layouts,
    own_variables,
    partial_init,
)
from monolith.training.tables.collect import FeatureConfigs
from monolith.training.tables.hooks import TrainingHooks
from monolith.training.tables.push import (
    _CpuFeatureFactory,
    _FusedCpuFeatureFactory,
    _lookup_embedding_ids,
    get_req_time,
)
from monolith.training.tables.ranked import RankedInput, RankedTable

FLAGS = flags.FLAGS

_MAX_SHARD_BYTES = 1 << 17
_IS_LAST = "is_last"
_DEQUEUED_SPARSE_FEATURES = "dequeued_sparse_features"
_DEQUEUED_FEATURES = "dequeued_features"


def is_chief(config: CpuTrainingConfig) -> bool:
    """Returns whether a process is the worker that restores and saves."""
    if config.server_type != "worker":
        return False
    if config.enable_full_sync_training:
        return mpi.get_mpi_rank() == 0
    return config.index == 0


def make_native_task_context(
    config: CpuTrainingConfig, sync_backend: Any = None
) -> task_context.NativeTaskContext:
    """Returns the context in which the graph of a process is built."""
    is_ps = config.server_type == "ps"
    return task_context.NativeTaskContext(
        num_ps=config.num_ps,
        ps_index=config.index if is_ps else 0,
        num_workers=config.num_workers,
        worker_index=0 if is_ps else config.index,
        model_name=config.model_name,
        sync_backend=sync_backend,
        server_type=config.server_type,
    )


class CpuTraining:
    """A task, ready for an estimator.

    Args:
        config: The job. Settings that were left open are filled in.
        task: The model and its input. Its model function is called once without tables, to learn
            which features it has, and again for every graph.
        sync_backend: Tells which servers get parameter updates.
        others: What this process knows of the other members, if there are some.

    Raises:
        ValueError: The process is not a worker.
        errors.ConfigError: The config asks for what this class does not do, or the features of the
            model do not fit its input.
    """

    def __init__(
        self,
        config: CpuTrainingConfig,
        task: NativeTask,
        sync_backend: Any = None,
        others: Others | None = None,
    ) -> None:
        if config.server_type != "worker":
            raise ValueError("server_type in CpuTraining must be `worker`")
        supported.check_settings(config)
        _fill_in(config, task)
        self._task = task
        self._sync_backend = sync_backend
        self._others = others
        #: Of shuffles without a seed, if there are several workers; the same in all of them.
        self.input_seed = 0
        #: If workers take files as they go: what takes them.
        self.splits: InputSplits | None = None
        #: Of several ranks, once their graph is built: what they have agreed upon.
        self.agreement: AgreementHook | None = None
        #: Of workers that do steps together beside servers: what notes signals.
        self.stop_hook: StopTogetherHook | None = None
        self._make_empty: Callable[[], Any] | None = None
        self._config = copy.deepcopy(config)
        self._serving_config = _make_serving_config_from_training_config(self._config)
        with task_context.with_ctx(make_native_task_context(self._config, sync_backend)):
            self._collected = collect.collect_features(task)
        if config.enable_full_sync_training:
            for instance in self._collected.feature_configs.name_to_config.values():
                instance.table_config.entry_type = instance.table_config.RAW
        self._slot_to_occurrence_threshold = self._collected.slot_to_occurrence_threshold
        self._slot_to_expire_time = self._collected.slot_to_expire_time
        self._serving_feature_configs = collect._make_serving_feature_configs_from_training_configs(
            self._collected.feature_configs, config.skip_zero_embedding_when_serving
        )

    @property
    def config(self) -> CpuTrainingConfig:
        """The job; while a model is exported, as the serving side needs it."""
        return self._serving_config if export_mode.is_exporting() else self._config

    @property
    def feature_configs(self) -> FeatureConfigs:
        """What the tables are made of; while a model is exported, as the serving side needs it."""
        if export_mode.is_exporting():
            return self._serving_feature_configs
        return self._collected.feature_configs

    @property
    def task(self) -> NativeTask:
        """The model and its input."""
        return self._task

    @property
    def p(self) -> Any:
        """The settings of the task."""
        return self._task.p

    @property
    def ctx(self) -> Any:
        """The context of the task."""
        return self._task.ctx

    @property
    def handles_end_of_input(self) -> bool:
        """Whether the model function knows what an `EofAwareTask` says of a batch."""
        return self._config.enable_sync_training

    def create_serving_input_receiver_fn(self) -> Callable[[], Any] | None:
        """Returns that of the task."""
        return self._task.create_serving_input_receiver_fn()

    def create_input_fn(self, mode: str) -> Callable[[], Any]:
        """Returns the task's input function: the part of this worker, with a buffer behind it."""

        def make_input() -> Any:
            with self._task_context():
                return self._task.create_input_fn(mode)()

        def input_fn() -> Any:
            if self.splits is not None and mode == ModeKeys.TRAIN:
                result: Any = data_splits.make_dataset(make_input, self.splits.taker)
            else:
                result = self._divide(make_input)
            if not isinstance(result, tf.data.Dataset):
                return result
            if self._is_ranked(mode):
                ranked, spec = self._make_ranked_input(), result.element_spec
                # Ordered as all batches are, which it cannot be made like afterwards.
                self._make_empty = lambda: ranked.reorder(end_of_input.make_empty_batch(spec))
                result = result.map(ranked.reorder)
            return result if seekable.reads_stream() else result.prefetch(tf.data.AUTOTUNE)

        return input_fn

    def make_empty_batch(self, spec: Any) -> Any:
        """Returns what a rank trains on that has no data at all, see `end_of_input`.

        Args:
            spec: Of the elements of the input, which is built already.
        """
        if self._make_empty is not None:
            return self._make_empty()
        return end_of_input.make_empty_batch(spec)

    def _is_ranked(self, mode: str) -> bool:
        """Returns whether tables are shared by ranks; who does not train has all rows itself."""
        return (
            self.config.enable_full_sync_training
            and self.config.reorder_fids_in_data_pipeline
            # Layouts divide the ids themselves.
            and not self.config.enable_fused_layout
            and mode == ModeKeys.TRAIN
            and bool(self._collected.feature_to_table)
        )

    def _make_ranked_input(self) -> RankedInput:
        return create.create_ranked_input(
            self._config, self.feature_configs.name_to_config, self._collected
        )

    def _divide(self, make_input: Callable[[], Any]) -> Any:
        """Calls what builds the input, and leaves this worker's part of it."""
        config = self._config
        if config.num_workers == 1 or not self._task.p.train.divide_input:
            return make_input()
        part = division.Part(config.index, config.num_workers, self.input_seed)
        return division.divide(make_input, part)

    def create_model_fn(self) -> Callable[..., GraphSpec]:
        """Returns the task's model function over real tables.

        A task without embeddings gets its own function back, and no hooks, unless ranks train it
        together.
        """
        if not self._collected.feature_to_table:
            if self._config.enable_partial_sync_training:
                raise errors.ConfigError(
                    "`enable_partial_sync_training` is True, but the model has no embeddings that "
                    "would be on servers; set `enable_sync_training` alone."
                )
            self._task.ctx.feature_factory = None
            self._task.ctx.layout_factory = None
            self._task.ctx.async_function_mgr = prefetch.AsyncFunctionMgr(is_async=False)
            inner = self._task.create_model_fn()
            if not self._config.enable_full_sync_training:
                export.warn_without_embeddings(self._task)
                return inner

            def dense_model_fn(features: Any, mode: str, config: GraphRunConfig) -> GraphSpec:
                with self._task_context():
                    is_root = is_chief(self._config)
                    return dense_ranks.build(self, inner, features, mode, config, is_root)

            return dense_model_fn

        def model_fn(features: Any, mode: str, config: GraphRunConfig) -> GraphSpec:
            with self._task_context():
                return self._build_model(features, mode, config)

        return model_fn

    def _build_model(self, features: Any, mode: str, run_config: GraphRunConfig) -> GraphSpec:
        config = self.config
        if config.enable_full_sync_training and mode != ModeKeys.TRAIN:
            config = _make_local_config(config)
        features, is_last, is_idle = end_of_input.split_flags(features)
        table_configs = self.feature_configs.name_to_config
        hash_filters = create.create_hash_filters(
            config, self._slot_to_occurrence_threshold, table_configs
        )
        sync_clients = None
        if mode == ModeKeys.TRAIN and config.enable_full_sync_training:
            if self._sync_backend is not None:
                # Hooks that send find it by this name.
                sync_clients = [parameter_sync_client_from_config(name_suffix=str(config.index))]
        elif mode == ModeKeys.TRAIN and serving_sync.is_synced(self.config):
            sync_clients = create_parameter_sync_clients(self.config.num_ps)
        hash_table = create.create_hash_table(
            config,
            table_configs,
            self._collected,
            hash_filters,
            transfer_float16=self._task.p.train.transfer_float16,
            sync_clients=sync_clients,
        )
        async_functions = prefetch.AsyncFunctionMgr(is_async=config.enable_variable_postpush)
        flags: RankFlags | None = None
        is_partial = config.enable_partial_sync_training and mode == ModeKeys.TRAIN
        if isinstance(hash_table, RankedTable):
            model_features, is_last, flags = self._provide_ranked_embeddings(
                features, hash_table, async_functions, (is_last, is_idle)
            )
        else:
            end = {} if is_last is None else {_IS_LAST: is_last, ranks.IS_IDLE: is_idle}
            model_features, end = self._provide_embeddings(
                features, mode, hash_table, async_functions, end
            )
            is_last, is_idle = end.get(_IS_LAST), end.get(ranks.IS_IDLE)
            if is_partial or isinstance(hash_table, RankedLayoutTable):
                flags = end_of_input.agree_in_steps(is_last, is_idle)
                collectives.average_gradients(rows=not is_partial)
        with self._variable_scope():
            spec = self._task.create_model_fn()(
                features=model_features, mode=mode, config=run_config
            )
        if export_mode.is_exporting():
            return spec
        _wait_for_variables_only()
        pushes = [*async_functions.hooks]
        if isinstance(hash_table, RankedTable | RankedLayoutTable):
            pushes += hash_table.push_hooks
        hooks = TrainingHooks(
            config,
            self._task,
            run_config.model_dir or "",
            is_chief(config),
            hash_filters,
            create.uses_hash_filter(self._slot_to_occurrence_threshold, table_configs),
            self,
            StepGate(pushes),
            self._others,
            sync_clients,
            flags,
        )
        if mode != ModeKeys.TRAIN:
            # As when training: variables and tables come from the same deltas, if there are some.
            changed_model = self._task.p.train.changed_model and OnChange.REFUSE
            saver = PartialRecoverySaver(
                sharded=True, defer_build=True, changed_model=changed_model
            )
            tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.SAVERS, saver)
            restore = (hooks.create_restore_hook(),)
            return spec._replace(
                prediction_hooks=restore + spec.prediction_hooks,
                evaluation_hooks=restore + spec.evaluation_hooks,
            )
        if self.config.num_ps > 0 and spec.train_op is not None:
            messages.read_together(spec.train_op)
        own = hooks.create_for_training()
        if config.partial_recovery and config.num_ps > 0:
            spec = spec._replace(scaffold=partial_init.create_scaffold(spec.scaffold))
        if is_partial and not is_chief(config):
            spec = spec._replace(scaffold=own_variables.create_scaffold(spec.scaffold))
        if flags is not None and is_last is not None:
            end_hook = end_of_input.EofHook(is_last, [spec.train_op, spec.loss], flags)
            spec = spec._replace(training_hooks=(end_hook, *spec.training_hooks))
        # Ranks push late before they save, and all save.
        has_pushes = config.enable_sync_training or is_chief(config)
        return spec._replace(
            training_hooks=(
                *own.first,
                *hash_table.get_queue_hooks(),
                *self._create_variable_hooks(),
                *([] if has_pushes else async_functions.hooks),
                *spec.training_hooks,
                *own.last,
            ),
            training_chief_hooks=(
                *own.chief,
                *(spec.training_chief_hooks if is_chief(config) else ()),
            ),
        )

    def _provide_ranked_embeddings(
        self,
        features: Any,
        hash_table: RankedTable,
        async_functions: prefetch.AsyncFunctionMgr,
        end: tuple[tf.Tensor | None, tf.Tensor | None],
    ) -> tuple[InputFeatures, tf.Tensor | None, RankFlags | None]:
        """Does what `_provide_embeddings` does, with tables that ranks share.

        Returns:
            What the model sees; whether it is the last batch of this rank; and what the ranks tell
            each other of it, if there are several.
        """
        bundle, pack = RankedInput.split(features)
        if end[0] is not None:
            bundle |= {_IS_LAST: end[0], ranks.IS_IDLE: end[1]}
        embeddings, bundle = hash_table.lookup(bundle, pack)
        is_last, is_idle = bundle.get(_IS_LAST), bundle.get(ranks.IS_IDLE)
        flags = end_of_input.agree_in_steps(is_last, is_idle)
        collectives.average_gradients()
        ids, others = RankedInput.get_features(bundle)
        _collect_dequeued(ids, others)
        _, name_to_dims, name_to_combiner = self.feature_configs
        self._task.ctx.layout_factory = None
        self._task.ctx.async_function_mgr = async_functions
        self._task.ctx.feature_factory = _FusedCpuFeatureFactory(
            hash_table,
            embeddings,
            create_embedding_slices(embeddings, ids, name_to_combiner, name_to_dims),
            get_req_time(others),
            bundle,
            use_native_multi_hash_table=True,
        )
        return InputFeatures({**others, **embeddings}), is_last, flags

    def _provide_embeddings(
        self,
        features: Any,
        mode: str,
        hash_table: BaseMultiTypeHashTable,
        async_functions: prefetch.AsyncFunctionMgr,
        end: dict[str, tf.Tensor],
    ) -> tuple[InputFeatures, dict[str, tf.Tensor]]:
        """Looks up all embeddings, and makes the task's context.

        Returns:
            What the model sees, and `end`, which says whether the batch is the last one: of the
            batch that the model sees.
        """
        collect.check_features(features, self._collected.feature_to_table)
        names = self._collected.feature_to_table
        ids = {name: features[name] for name in names}
        if end:
            # What a worker repeats that has no data left is not trained on.
            ids = {name: _empty_if(end[ranks.IS_IDLE], value) for name, value in ids.items()}
        others = {name: value for name, value in features.items() if name not in names}
        # Without a training session there is nobody to fill the queue.
        capacity = self.config.embedding_prefetch_capacity if mode == ModeKeys.TRAIN else 0
        if mode == ModeKeys.TRAIN and self.config.num_ps > 0 and seekable.reads_stream():
            # A worker that waits for a stream must not do so inside a step: others save meanwhile.
            capacity = max(1, capacity)
        if isinstance(hash_table, PartitionedHashTable):
            ids, others = layouts.provide_layouts(
                self._task,
                hash_table,
                ids,
                {**others, **end},
                async_functions,
                # Ranks have queues of their own.
                prefetch_capacity=0 if isinstance(hash_table, RankedLayoutTable) else capacity,
                async_push=self.config.enable_embedding_postpush,
            )
            end = {name: others.pop(name) for name in end}
            _collect_dequeued(ids, others)
            return InputFeatures({**others, **ids}), end
        embeddings = _lookup_embedding_ids(hash_table, ids)
        (embeddings, ids, others, end), queue = prefetch.enqueue_dicts_with_queue_return(
            (embeddings, ids, others, end), capacity=look_ahead.get_queue_capacity(capacity)
        )
        if queue is not None:
            hash_table.add_queue_hook(look_ahead.LookAheadHook(queue, capacity))
        _collect_dequeued(ids, others)
        _, name_to_dims, name_to_combiner = self.feature_configs
        embedding_slices = create_embedding_slices(embeddings, ids, name_to_combiner, name_to_dims)
        self._task.ctx.layout_factory = None
        self._task.ctx.async_function_mgr = async_functions
        self._task.ctx.feature_factory = _CpuFeatureFactory(
            hash_table,
            ids,
            embeddings,
            embedding_slices,
            get_req_time(others),
            async_functions,
            async_push=self.config.enable_embedding_postpush,
            update_options=create.get_update_options(self.config),
        )
        return InputFeatures({**others, **embeddings}), end

    @contextlib.contextmanager
    def _variable_scope(self) -> Iterator[None]:
        """Variables are cached and split over servers, as the config says."""
        config = self.config
        with contextlib.ExitStack() as stack:
            if config.enable_partial_sync_training:
                yield  # Every worker has all of them itself.
                return
            if config.enable_variable_prefetch:
                stack.enter_context(
                    tf.variable_creator_scope(cached_variables.cached_variable_creator)
                )
            # Only over several servers: in one place, every step would put the parts together
            # again for nothing.
            if (
                config.enable_variable_partition
                and config.num_ps > 1
                and not export_mode.is_exporting()
            ):
                partitioner = tf.compat.v1.variable_axis_size_partitioner(
                    max_shard_bytes=_MAX_SHARD_BYTES, max_shards=config.num_ps
                )
                scope = tf.compat.v1.get_variable_scope()
                stack.enter_context(tf.compat.v1.variable_scope(scope, partitioner=partitioner))
            yield

    def _create_variable_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        if not self.config.enable_variable_prefetch or self.config.enable_partial_sync_training:
            return []
        return [cached_variables.FetchAllCachedVariablesHook()]

    def _task_context(self) -> contextlib.AbstractContextManager[None]:
        return task_context.with_ctx(make_native_task_context(self.config, self._sync_backend))


def _fill_in(config: CpuTrainingConfig, task: NativeTask) -> None:
    """Fills in what the config leaves open."""
    if not config.model_name:
        deep_insight_name = task.p.metrics.deep_insight_name
        config.model_name = deep_insight_name or f"di_name_{type(task).__name__}"
    config.num_ps = max(0, config.num_ps)
    if config.use_native_multi_hash_table is None:
        config.use_native_multi_hash_table = True
    # For input functions that ask flags which part they are to build.
    FLAGS.dataset_worker_idx = config.index
    FLAGS.dataset_num_workers = config.num_workers


def _empty_if(condition: tf.Tensor, ids: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns ids, or as many lists with nothing in them."""
    if ids.ragged_rank > 1:
        inner = _empty_if(condition, ids.values)
    else:
        values = ids.values
        inner = values[: tf.where(condition, 0, tf.shape(values)[0])]
    splits = tf.where(condition, tf.zeros_like(ids.row_splits), ids.row_splits)
    return tf.RaggedTensor.from_row_splits(inner, splits, validate=False)


def _make_local_config(config: CpuTrainingConfig) -> CpuTrainingConfig:
    """Returns the config with which one rank uses what all have trained: it has all rows."""
    local = copy.copy(config)
    local.enable_sync_training = False
    local.num_ps, local.num_workers = 0, 1
    local.embedding_prefetch_capacity = 0
    return local


def _make_serving_config_from_training_config(config: CpuTrainingConfig) -> CpuTrainingConfig:
    """Returns the config of the same model without what only training needs."""
    serving = copy.deepcopy(config)
    if config.enable_full_sync_training:
        serving.num_ps = config.num_workers - ranks.get_first_owner(config.num_workers)
    serving.embedding_prefetch_capacity = 0
    for setting in (
        "enable_embedding_postpush",
        "enable_variable_prefetch",
        "enable_variable_postpush",
        "reorder_fids_in_data_pipeline",
        "enable_model_ckpt_info",
        "enable_sync_training",
        "enable_partial_sync_training",
    ):
        setattr(serving, setting, False)
    return serving


def _collect_dequeued(ids: dict[str, tf.RaggedTensor], others: dict[str, Any]) -> None:
    """Lets hooks and user code find the features of the batch that is being computed.

    Ids are in the collection as plain tensors, since a meta graph can hold no ragged ones.
    """
    collect_batch_size(ids)
    for collection, tensors in (
        (_DEQUEUED_SPARSE_FEATURES, {name: value.flat_values for name, value in ids.items()}),
        (_DEQUEUED_FEATURES, others),
    ):
        for name, tensor in tensors.items():
            if isinstance(tensor, tf.Tensor):
                tensor.feature_name = name
                tf.compat.v1.add_to_collection(collection, tensor)
    times = others.get(REQ_TIME_COLLECTION)
    if isinstance(times, tf.Tensor):
        tf.compat.v1.add_to_collection(REQ_TIME_COLLECTION, times)


def _wait_for_variables_only() -> None:
    """Lets a session create the tables although it starts from a checkpoint.

    TensorFlow would wait for the tables before it runs what creates them.
    """
    tf.compat.v1.add_to_collection(
        tf.compat.v1.GraphKeys.READY_FOR_LOCAL_INIT_OP,
        tf.compat.v1.report_uninitialized_variables(tf.compat.v1.global_variables()),
    )
