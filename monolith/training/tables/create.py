"""The tables and admission filters of a training graph, as the config asks for them.

With parameter servers every table is spread over all of them; without, it lives in the process.
The tables are either one resource per server that serves all features at once, "native", or
separate tables, of which those with equal settings are merged into one.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.embedding import entry, filters
from monolith.embedding.sharding import factory, ranks
from monolith.embedding.sharding.ranked_layouts import RankedLayoutTable
from monolith.embedding.tables import registry
from monolith.embedding.tables.inputs import TensorLike, to_floats, to_ids
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable, MergedMultiTypeHashTable
from monolith.graph import export_mode
from monolith.proto import embedding_hash_table_pb2 as proto
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.tables import layouts
from monolith.training.tables.collect import Collected
from monolith.training.tables.ranked import RankedInput, RankedTable

Configs = Mapping[str, entry.HashTableConfigInstance]


# What a filter that counts can count to.
_MAX_COUNT = 15


def create_hash_filters(
    config: CpuTrainingConfig,
    slot_to_occurrence_threshold: Mapping[int, int],
    configs: Configs | None = None,
) -> list[tf.Tensor | None]:
    """Makes the admission filter of each server; while exporting there are none.

    Args:
        config: Number of servers, and the kind of filter.
        slot_to_occurrence_threshold: The thresholds of slots.
        configs: What the table of each feature is made of; it may have a threshold of its own.

    Raises:
        errors.ConfigError: A table has a threshold that this kind of filter cannot keep to.
    """
    if export_mode.is_exporting():
        return [None] * max(1, config.num_ps)
    configs = configs or {}
    _check_table_thresholds(config.filter_type, configs)
    thresholds = proto.SlotOccurrenceThresholdConfig()
    for slot, threshold in sorted(slot_to_occurrence_threshold.items()):
        thresholds.slot_occurrence_thresholds.add(slot=slot, occurrence_threshold=threshold)
    return filters.create_hash_filters(
        config.num_ps,
        uses_hash_filter(slot_to_occurrence_threshold, configs),
        config=thresholds.SerializeToString(),
        filter_capacity=config.filter_capacity,
        filter_split_num=config.filter_split_num,
        filter_equal_probability=config.filter_equal_probability,
        filter_type=config.filter_type,
    )


def uses_hash_filter(
    slot_to_occurrence_threshold: Mapping[int, int], configs: Configs | None = None
) -> bool:
    """Returns whether any slot, or table, holds ids back that are seen for the first time."""
    of_tables = (
        instance.table_config.occurrence_threshold for instance in (configs or {}).values()
    )
    return any(threshold > 0 for threshold in (*slot_to_occurrence_threshold.values(), *of_tables))


def create_hash_table(
    config: CpuTrainingConfig,
    configs: Configs,
    collected: Collected,
    hash_filters: list[tf.Tensor | None],
    *,
    transfer_float16: bool = False,
    sync_clients: list[tf.Tensor] | None = None,
) -> BaseMultiTypeHashTable:
    """Makes the tables of all features and returns what looks them up at once.

    Args:
        config: Number of servers, and the kind of table.
        configs: What the table of each feature is made of.
        collected: Which features share a table, and when rows expire.
        hash_filters: The admission filter of each server.
        transfer_float16: Whether rows and gradients travel as float16.
        sync_clients: Who is told which rows change, for each server, or in this rank; None: nobody.
    """
    configs = _with_table_settings(configs, collected.slot_to_expire_time, config)
    if config.enable_full_sync_training and not export_mode.is_exporting():
        client = None if sync_clients is None else sync_clients[0]
        create = _create_ranked_layouts if config.enable_fused_layout else _create_ranked_table
        return create(config, configs, collected, hash_filters[0], client)
    # In parts, a model that was trained without servers has its rows in one of them.
    num_ps = max(1, config.num_ps) if export_mode.is_exporting_distributed() else config.num_ps
    options: dict[str, Any] = {
        "max_rpc_deadline_millis": config.max_rpc_deadline_millis,
        "transfer_float16": transfer_float16,
        "sync_clients": sync_clients,
    }
    is_native = bool(config.use_native_multi_hash_table)
    feature_to_table = (
        _name_tables(collected.feature_to_table, collected.named_after_slot) if is_native else {}
    )
    if config.enable_fused_layout:
        parser_ctx = layouts.make_parser_ctx(
            num_ps, configs, collected, feature_to_table, is_native, transfer_float16
        )
        partitioned = factory.create_partitioned_hash_table(
            num_ps,
            is_native,
            config.max_rpc_deadline_millis,
            hash_filters,
            sync_clients,
            parser_ctx=parser_ctx,
        )
        if is_native:
            _create_tables_with_session()
        return partitioned
    if not is_native:
        return factory.create_multi_type_hash_table(
            num_ps, configs, hash_filters, reduce_network_packets=True, **options
        )
    table_to_config = {feature_to_table[name]: configs[name] for name in configs}
    table = factory.create_native_multi_hash_table(num_ps, table_to_config, hash_filters, **options)
    _create_tables_with_session()
    if all(name == feature for feature, name in feature_to_table.items()):
        return table
    return SharedSlotTable(table, feature_to_table)


def create_ranked_input(
    config: CpuTrainingConfig, configs: Configs, collected: Collected
) -> RankedInput:
    """Makes what orders ids by rank in the input pipeline.

    Args:
        config: Number of ranks, and the kind of table.
        configs: What the table of each feature is made of.
        collected: Which features share a table.
    """
    configs = _with_table_settings(configs, collected.slot_to_expire_time, config)
    feature_to_table = _name_ranked_tables(config, configs, collected)
    dims = {
        table: sum(segment.dim_size for segment in configs[name].table_config.entry_config.segments)
        for name, table in feature_to_table.items()
    }
    return RankedInput(feature_to_table, dims, config.num_workers)


def _create_ranked_table(
    config: CpuTrainingConfig,
    configs: Configs,
    collected: Collected,
    hash_filter: tf.Tensor | None,
    sync_client: tf.Tensor | None,
) -> RankedTable:
    """Makes this rank's part of all tables."""
    queues = _get_rank_queues(config)
    feature_to_table = _name_ranked_tables(config, configs, collected)
    if config.use_native_multi_hash_table:
        table_to_config = {feature_to_table[name]: configs[name] for name in configs}
        table = factory.create_in_worker_native_multi_hash_table(
            config.num_workers, table_to_config, hash_filter, sync_client, queues
        )
    else:
        table = factory.create_in_worker_multi_type_hash_table(
            config.num_workers, configs, hash_filter, sync_client, queues
        ).merged_table
    _create_tables_with_session()
    return RankedTable(table, feature_to_table)


def _create_ranked_layouts(
    config: CpuTrainingConfig,
    configs: Configs,
    collected: Collected,
    hash_filter: tf.Tensor | None,
    sync_client: tf.Tensor | None,
) -> RankedLayoutTable:
    """Makes this rank's part of all tables, which are looked up as layouts."""
    is_native = bool(config.use_native_multi_hash_table)
    parser_ctx = layouts.make_parser_ctx(
        config.num_workers - ranks.get_first_owner(config.num_workers),
        configs,
        collected,
        _name_ranked_tables(config, configs, collected) if is_native else {},
        is_native,
        transfer_float16=False,
    )
    table = factory.create_in_worker_partitioned_hash_table(
        config.num_workers,
        is_native,
        hash_filter,
        sync_client,
        _get_rank_queues(config),
        parser_ctx=parser_ctx,
    )
    _create_tables_with_session()
    return table


def _get_rank_queues(config: CpuTrainingConfig) -> dict[str, int]:
    return {
        "embedding_prefetch_capacity": config.embedding_prefetch_capacity,
        "enable_async_optimize": int(config.enable_async_optimize),
        "enable_pipelined_fwda2a": int(config.enable_pipelined_fwda2a),
        "enable_pipelined_bwda2a": int(config.enable_pipelined_bwda2a),
    }


def _name_ranked_tables(
    config: CpuTrainingConfig, configs: Configs, collected: Collected
) -> dict[str, str]:
    if config.use_native_multi_hash_table:
        return _name_tables(collected.feature_to_table, collected.named_after_slot)
    return MergedMultiTypeHashTable(configs, _make_no_table).slot_mapping


class SharedSlotTable(BaseMultiTypeHashTable):
    """Several features look up, and update, the rows of one slot.

    Args:
        table: Knows the tables by their own names.
        feature_to_table: The name of each feature's table.
    """

    def __init__(self, table: BaseMultiTypeHashTable, feature_to_table: Mapping[str, str]) -> None:
        self._table = table
        self._feature_to_table = dict(feature_to_table)

    def lookup(self, slot_to_id: Mapping[str, TensorLike]) -> dict[str, tf.Tensor]:
        ids = {name: to_ids(value) for name, value in slot_to_id.items()}
        by_table = self._group(ids)
        rows_of_table = self._table.lookup(
            {table: _concat([ids[name] for name in names]) for table, names in by_table.items()}
        )
        rows: dict[str, tf.Tensor] = {}
        for table, names in by_table.items():
            sizes = [tf.size(ids[name]) for name in names]
            parts = tf.split(rows_of_table[table], sizes) if len(names) > 1 else None
            rows.update(zip(names, parts or [rows_of_table[table]], strict=True))
        return rows

    def assign(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        *args: Any,
        **kwargs: Any,
    ) -> "SharedSlotTable":
        return self._update("assign", slot_to_id_and_value, args, kwargs)

    def assign_add(
        self,
        slot_to_id_and_value: Mapping[str, tuple[TensorLike, TensorLike]],
        *args: Any,
        **kwargs: Any,
    ) -> "SharedSlotTable":
        return self._update("assign_add", slot_to_id_and_value, args, kwargs)

    def reinitialize(self, slot: str, ids: TensorLike) -> tuple["SharedSlotTable", tf.Tensor]:
        table, status = self._table.reinitialize(self._feature_to_table.get(slot, slot), ids)
        return self._with_table(table), status

    def apply_gradients(
        self, slot_to_id_and_grad: Mapping[str, Any], *args: Any, **kwargs: Any
    ) -> "SharedSlotTable":
        return self._update("apply_gradients", slot_to_id_and_grad, args, kwargs)

    def as_op(self, name: str | None = None) -> Any:
        return self._table.as_op(name)

    def get_table_dim_sizes(self) -> Any:
        return self._table.get_table_dim_sizes()

    def _group(self, features: Iterable[str]) -> dict[str, list[str]]:
        by_table: dict[str, list[str]] = {}
        for name in features:
            by_table.setdefault(self._feature_to_table[name], []).append(name)
        return by_table

    def _update(
        self,
        method: str,
        updates: Mapping[str, tuple[TensorLike, TensorLike]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> "SharedSlotTable":
        by_table = {
            table: (
                _concat([to_ids(updates[name][0]) for name in names]),
                _concat([to_floats(updates[name][1]) for name in names]),
            )
            for table, names in self._group(updates).items()
        }
        return self._with_table(getattr(self._table, method)(by_table, *args, **kwargs))

    def _with_table(self, table: BaseMultiTypeHashTable) -> "SharedSlotTable":
        copied = copy.copy(self)
        copied._table = table
        return copied


def get_update_options(config: CpuTrainingConfig) -> dict[str, Any]:
    """Returns what `apply_gradients` of the tables is to be told besides the gradients."""
    # Gradients of equal ids are summed, so that a batch is one step of the optimizer, as it is in
    # TensorFlow. Tables on servers always do that; those in the process have to be asked.
    return {"enable_dedup": True} if config.num_ps == 0 else {}


def _check_table_thresholds(filter_type: str, configs: Configs) -> None:
    for name, instance in configs.items():
        threshold = instance.table_config.occurrence_threshold
        if threshold > 0 and filter_type == filters.FilterType.NO_FILTER:
            raise errors.ConfigError(
                f"The table of feature '{name}' admits ids after {threshold} occurrences, but "
                f"`filter_type` is '{filter_type}', which holds none back; choose another filter, "
                "or leave `admit_after` out."
            )
        if threshold > _MAX_COUNT and filter_type == filters.FilterType.SLIDING_HASH_FILTER:
            raise errors.ConfigError(
                f"The table of feature '{name}' admits ids after {threshold} occurrences, but a "
                f"'{filter_type}' counts to {_MAX_COUNT}; lower `admit_after`, or set "
                f"`filter_type` to '{filters.FilterType.PROBABILISTIC_FILTER}'."
            )


def _with_table_settings(
    configs: Configs, slot_to_expire_time: Mapping[int, int], config: CpuTrainingConfig
) -> dict[str, entry.HashTableConfigInstance]:
    expire_times = proto.SlotExpireTimeConfig()
    for slot, expire_time in sorted(slot_to_expire_time.items()):
        expire_times.slot_expire_times.add(slot=slot, expire_time=expire_time)
    result = {}
    for name, instance in configs.items():
        instance = copy.deepcopy(instance)
        own = instance.table_config.slot_expire_time_config
        # Ids of a table with a time of its own may carry no slot: the bits of one mean nothing.
        if not own.HasField("default_expire_time"):
            own.CopyFrom(expire_times)
        if config.hashtable_init_capacity > 0:
            instance.table_config.initial_capacity = config.hashtable_init_capacity
        result[name] = instance
    return result


def _name_tables(
    feature_to_slot: Mapping[str, str], named_after_slot: frozenset[str]
) -> dict[str, str]:
    """Returns the name of each feature's table: its own, or the slot's if the slot has several."""
    slots = list(feature_to_slot.values())
    names = {
        feature: slot if slots.count(slot) > 1 or feature in named_after_slot else feature
        for feature, slot in feature_to_slot.items()
    }
    for feature, slot in feature_to_slot.items():
        if names[feature] == feature and any(
            name == feature and feature_to_slot[other] != slot for other, name in names.items()
        ):
            raise errors.ConfigError(
                f"Feature '{feature}' has the name of a slot that it does not belong to and that "
                "several features share, so their tables would have one name; rename the slot."
            )
    return names


def _make_no_table(configs: Configs) -> Any:
    """For who only asks which tables there would be."""
    del configs


def _create_tables_with_session() -> None:
    """Has every session create the tables, also one that starts from a checkpoint.

    TensorFlow runs the initializers of shared resources only when there is no checkpoint to start
    from, and takes a session without them for one that will never be ready.
    """
    keys = tf.compat.v1.GraphKeys
    for initializer in [known.table.initializer for known in registry.get_tables()]:
        if initializer is not None:
            tf.compat.v1.add_to_collection(keys.TABLE_INITIALIZERS, initializer)


def _concat(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, 0)
