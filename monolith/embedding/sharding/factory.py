"""Makes the tables of a model, wherever they live: in the process, on servers, or among ranks.

Example:
    >>> from monolith.testing import generate_test_hash_table_config
    >>> configs = {"user": generate_test_hash_table_config(dim=1)}
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     table = create_native_multi_hash_table(0, configs, hash_filters=[None])
    ...     _ = session.run(table.initializer)
    ...     table = table.assign({"user": ([7], [[0.5]])})
    ...     session.run(table.lookup({"user": [7, 8]})["user"]).tolist()
    [[0.5], [0.0]]
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.data.parser_context import ParserCtx
from monolith.embedding import entry
from monolith.embedding.sharding import ranks
from monolith.embedding.sharding import servers as sharded_tables
from monolith.embedding.sharding.partitioned import PartitionedHashTable
from monolith.embedding.sharding.ranked_layouts import RankedLayoutTable
from monolith.embedding.tables import multi, multi_type, registry, single
from monolith.embedding.tables.multi import CachedConfig, MultiHashTable
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable, MergedMultiTypeHashTable

Configs = Mapping[str, entry.HashTableConfigInstance]


def create_multi_type_hash_table(
    num_ps: int,
    slot_to_config: Configs,
    hash_filters: Sequence[tf.Tensor | None],
    sync_clients: Sequence[tf.Tensor | None] | None = None,
    reduce_network_packets: bool = False,
    max_rpc_deadline_millis: int = 30,
    transfer_float16: bool = False,
) -> MergedMultiTypeHashTable:
    """Makes a table for all slots with equal configs, and a view of all of them.

    Args:
        num_ps: Number of parameter servers; 0: the tables are in this process.
        slot_to_config: What the table of each slot is made of.
        hash_filters: The admission filter of each server; one if there is none.
        sync_clients: Who is told which rows change, for each server; by default nobody.
        reduce_network_packets: Whether one request to a server serves all tables, instead of one
            for each table.
        max_rpc_deadline_millis: How long a call may take in an exported model.
        transfer_float16: Whether rows and gradients travel as float16 between a worker and a
            server; only if one request serves all tables.

    Raises:
        AssertionError: There is not one filter, or client, for each server.
    """
    clients = _check_servers(num_ps, hash_filters, sync_clients)

    make_table = _table_maker(num_ps, hash_filters, clients)

    def make_on_server(index: int, configs: Configs) -> BaseMultiTypeHashTable:
        return multi_type.MultiTypeHashTable(
            configs, lambda name, config: make_table(name, config, index)
        )

    def make_distributed_table(
        name: str, config: entry.HashTableConfigInstance
    ) -> sharded_tables.DistributedHashTable:
        return sharded_tables.DistributedHashTable(
            num_ps, config, lambda index, config: make_table(name, config, index)
        )

    def make_inner(configs: Configs) -> BaseMultiTypeHashTable:
        if num_ps == 0:
            return multi_type.MultiTypeHashTable(configs, make_table)
        if reduce_network_packets:
            return sharded_tables.DistributedMultiTypeHashTable(
                num_ps,
                configs,
                make_on_server,
                transfer_float16=transfer_float16,
                max_rpc_deadline_millis=max_rpc_deadline_millis,
            )
        return multi_type.MultiTypeHashTable(configs, make_distributed_table)

    return MergedMultiTypeHashTable(slot_to_config, make_inner)


def create_native_multi_hash_table(
    num_ps: int,
    slot_to_config: Configs,
    hash_filters: Sequence[tf.Tensor | None],
    sync_clients: Sequence[tf.Tensor | None] | None = None,
    max_rpc_deadline_millis: int = 30,
    transfer_float16: bool = False,
) -> MultiHashTable | sharded_tables.DistributedMultiTypeHashTable:
    """Makes one resource on each server that serves the tables of all slots at once.

    The arguments are those of `create_multi_type_hash_table`.

    Raises:
        AssertionError: There is not one filter, or client, for each server.
    """
    clients = _check_servers(num_ps, hash_filters, sync_clients)
    if num_ps == 0:
        return MultiHashTable.from_configs(
            slot_to_config, hash_filter=hash_filters[0], sync_client=clients[0]
        )
    return sharded_tables.DistributedMultiTypeHashTable(
        num_ps,
        slot_to_config,
        MultiHashTableFactory(hash_filters, clients),
        transfer_float16=transfer_float16,
        max_rpc_deadline_millis=max_rpc_deadline_millis,
    )


def create_partitioned_hash_table(
    num_ps: int,
    use_native_multi_hash_table: bool,
    max_rpc_deadline_millis: int = 30,
    hash_filters: Sequence[tf.Tensor | None] | None = None,
    sync_clients: Sequence[tf.Tensor | None] | None = None,
    enable_gpu_emb: bool = False,
    queue_configs: Mapping[str, int] | None = None,
    parser_ctx: ParserCtx | None = None,
) -> PartitionedHashTable:
    """Makes tables whose rows are looked up as layouts; their names are those of other tables.

    Args:
        num_ps: Number of parameter servers; 0: the tables are in this process.
        use_native_multi_hash_table: Whether the tables of a server are one resource; otherwise
            features with equal configs share a table.
        max_rpc_deadline_millis: How long a call may take in an exported model.
        hash_filters: The admission filter of each server; by default there is none.
        sync_clients: Who is told which rows change, for each server; by default nobody.
        enable_gpu_emb: Must be False: there are no tables on a GPU.
        queue_configs: See `PartitionedHashTable`.
        parser_ctx: See there.

    Raises:
        AssertionError: There is not one filter, or client, for each server.
    """
    if enable_gpu_emb:
        raise errors.ConfigError(
            "`enable_gpu_emb` asks for tables on a GPU, which this package does not have."
        )
    hash_filters = [None] * max(1, num_ps) if hash_filters is None else hash_filters
    clients = _check_servers(num_ps, hash_filters, sync_clients)
    make_table = _table_maker(num_ps, hash_filters, clients)

    def make_on_server(index: int, configs: Configs) -> BaseMultiTypeHashTable:
        if use_native_multi_hash_table and num_ps == 0:
            return MultiHashTable.from_configs(configs, hash_filters[0], clients[0])
        if use_native_multi_hash_table:
            return make_native_table(index, configs)
        return multi_type.MultiTypeHashTable(
            configs, lambda name, config: make_table(name, config, index)
        )

    make_native_table = MultiHashTableFactory(hash_filters, clients)
    return PartitionedHashTable(
        num_ps,
        make_on_server,
        use_native_multi_hash_table,
        max_rpc_deadline_millis=max_rpc_deadline_millis,
        queue_configs=queue_configs,
        parser_ctx=parser_ctx,
    )


def create_in_worker_multi_type_hash_table(
    shard_num: int,
    slot_to_config: Configs,
    hash_filter: tf.Tensor | None,
    sync_client: tf.Tensor | None = None,
    queue_configs: Mapping[str, int] | None = None,
) -> MergedMultiTypeHashTable:
    """Makes this rank's part of the tables of all slots; those with equal configs are one table.

    Args:
        shard_num: How many ranks there are.
        slot_to_config: What the table of each slot is made of.
        hash_filter: The admission filter of this rank.
        sync_client: Who is told which rows change; by default nobody.
        queue_configs: Which queues a step has, see `rank_queues`.
    """

    make_part = _rank_part_maker(shard_num, False, hash_filter, sync_client)

    def make_inner(configs: Configs) -> BaseMultiTypeHashTable:
        return ranks.DistributedMultiTypeHashTableMpi(
            shard_num, lambda rank: make_part(rank, configs), queue_configs
        )

    return MergedMultiTypeHashTable(slot_to_config, make_inner)


def create_in_worker_native_multi_hash_table(
    shard_num: int,
    slot_to_config: Configs,
    hash_filter: tf.Tensor | None,
    sync_client: tf.Tensor | None = None,
    queue_configs: Mapping[str, int] | None = None,
) -> ranks.DistributedMultiTypeHashTableMpi:
    """Makes this rank's part of the tables of all slots, as one resource.

    The arguments are those of `create_in_worker_multi_type_hash_table`.
    """

    make_part = _rank_part_maker(shard_num, True, hash_filter, sync_client)
    return ranks.DistributedMultiTypeHashTableMpi(
        shard_num, lambda rank: make_part(rank, slot_to_config), queue_configs
    )


def create_in_worker_partitioned_hash_table(
    shard_num: int,
    use_native_multi_hash_table: bool,
    hash_filter: tf.Tensor | None = None,
    sync_client: tf.Tensor | None = None,
    queue_configs: Mapping[str, int] | None = None,
    parser_ctx: ParserCtx | None = None,
) -> RankedLayoutTable:
    """Makes this rank's part of tables whose rows are looked up as layouts.

    Args:
        shard_num: How many ranks there are.
        use_native_multi_hash_table: Whether the tables of a rank are one resource; otherwise
            features with equal configs share a table.
        hash_filter: The admission filter of this rank; by default there is none.
        sync_client: Who is told which rows change; by default nobody.
        queue_configs: Which queues a step has, see `rank_queues`.
        parser_ctx: See `PartitionedHashTable`; its configs are those of as many servers as there
            are ranks with rows.
    """
    return RankedLayoutTable(
        shard_num,
        _rank_part_maker(shard_num, use_native_multi_hash_table, hash_filter, sync_client),
        use_native_multi_hash_table,
        queue_configs,
        parser_ctx,
    )


class MultiHashTableFactory:
    """Makes the `MultiHashTable` of a server; its name ends with the server's number.

    Args:
        hash_filters: The admission filter of each server.
        sync_clients: Who is told which rows change, for each server.
    """

    def __init__(
        self,
        hash_filters: Sequence[tf.Tensor | None],
        sync_clients: Sequence[tf.Tensor | None],
    ) -> None:
        self._hash_filters = hash_filters
        self._sync_clients = sync_clients
        # Configs are converted once for all servers of a graph. The dict is kept with the result,
        # so that no other dict can come to have its identity.
        self._converted: dict[tuple[int, Any], tuple[Configs, CachedConfig]] = {}

    def __call__(self, index: int, slot_to_config: Configs) -> MultiHashTable:
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        key = (id(slot_to_config), graph)
        if key not in self._converted:
            cached = multi.convert_to_cached_config(slot_to_config)
            self._converted[key] = slot_to_config, cached
        table = MultiHashTable.from_cached_config(
            self._converted[key][1],
            hash_filter=self._hash_filters[index],
            sync_client=self._sync_clients[index],
            name_suffix=str(index),
        )
        # So that a checkpoint can be restored on another number of servers. Without servers, the
        # name of the tables is what stands here before the number.
        whole = table.shared_name.removesuffix(str(index))
        registry.set_shard(
            table.shared_name, registry.TableShard(whole, index, len(self._hash_filters))
        )
        return table


def _table_maker(
    num_ps: int,
    hash_filters: Sequence[tf.Tensor | None],
    clients: Sequence[tf.Tensor | None],
) -> Callable[..., single.HashTable]:
    """Returns what makes one table of its name, its config and the number of its server."""

    def make_table(
        name: str, config: entry.HashTableConfigInstance, index: int = 0
    ) -> single.HashTable:
        table = single.hash_table_from_config(
            config,
            hash_filter=hash_filters[index],
            name_suffix=name if num_ps == 0 else f"{name}_{index}",
            sync_client=clients[index],
            counted_as=name,
        )
        # So that a checkpoint can be restored on another number of servers.
        whole = table.name if num_ps == 0 else table.name.removesuffix(f"_{index}")
        registry.set_shard(table.name, registry.TableShard(whole, index, max(1, num_ps)))
        return table

    return make_table


def _rank_part_maker(
    num_ranks: int,
    is_native: bool,
    hash_filter: tf.Tensor | None,
    sync_client: tf.Tensor | None,
) -> Callable[[int, Configs], BaseMultiTypeHashTable]:
    """Returns what makes the part of a rank of all tables."""

    def make_native(rank: int, configs: Configs) -> BaseMultiTypeHashTable:
        table = MultiHashTable.from_configs(
            configs, hash_filter=hash_filter, sync_client=sync_client, name_suffix=str(rank)
        )
        name = table.shared_name
        _set_rank_shard(name, name.removesuffix(str(rank)), "", rank, num_ranks)
        return table

    def make_separate(rank: int, configs: Configs) -> BaseMultiTypeHashTable:
        def make_table(name: str, config: entry.HashTableConfigInstance) -> single.HashTable:
            table = single.hash_table_from_config(
                config,
                hash_filter=hash_filter,
                name_suffix=f"{name}_{rank}",
                sync_client=sync_client,
                counted_as=name,
            )
            _set_rank_shard(table.name, table.name.removesuffix(f"_{rank}"), "_", rank, num_ranks)
            return table

        return multi_type.MultiTypeHashTable(configs, make_table)

    return make_native if is_native else make_separate


def _set_rank_shard(name: str, whole: str, separator: str, rank: int, num_ranks: int) -> None:
    """Says which ids a rank has, so that another number of ranks, or of servers, finds them."""
    first = ranks.get_first_owner(num_ranks)
    names = tuple(f"{whole}{separator}{owner}" for owner in range(first, num_ranks))
    shard = registry.TableShard(
        whole, max(0, rank - first), num_ranks - first, names, has_rows=rank >= first
    )
    registry.set_shard(name, shard)


def _check_servers(
    num_ps: int,
    hash_filters: Sequence[tf.Tensor | None],
    sync_clients: Sequence[tf.Tensor | None] | None,
) -> Sequence[tf.Tensor | None]:
    """Returns a client, or None, for each server."""
    num_servers = max(1, num_ps)
    if len(hash_filters) != num_servers:
        raise AssertionError(
            f"Number of PS should be equal to number of hash filters, while got {num_ps} vs "
            f"{len(hash_filters)}"
        )
    if sync_clients is None:
        return [None] * num_servers
    if len(sync_clients) != num_servers:
        raise AssertionError(
            f"Number of PS should be equal to number of sync clients, while got {num_ps} vs "
            f"{len(sync_clients)}"
        )
    return sync_clients
