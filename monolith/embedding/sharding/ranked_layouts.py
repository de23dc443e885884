"""Tables that ranks share, looked up as the tensors of a model: fused layouts without servers.

    ids -> divide (one op) -> rows travel between ranks -> layouts (one op) -> model
    gradients of layouts -> gradients of rows (one op) -> travel back -> update

A rank with rows takes the place of a server. What travels is what `ranks` exchanges: all tables at
once, in one message from each rank to each, with the same queues between the parts of a step.

Example:
    >>> from monolith.data.parser_context import ParserCtx
    >>> from monolith.embedding.features.combiners import ReduceSum
    >>> from monolith.embedding.sharding.factory import create_in_worker_partitioned_hash_table
    >>> from monolith.proto import example_pb2
    >>> from monolith.testing import generate_test_hash_table_config
    >>> from tensorflow.python.ops import resources
    >>> collectives.init()
    >>> bias = example_pb2.OutConfig()
    >>> _ = bias.slice_configs.add(feature_name="user", start=0, end=1)
    >>> _ = bias.shape.add(dims=[-1, 1])
    >>> ctx = ParserCtx(enable_fused_layout=True)
    >>> ctx.set("sharding_feature_configs", PartitionedHashTable.gen_feature_configs(
    ...     1, {"user": generate_test_hash_table_config(dim=1, learning_rate=1.0)}, {"bias": bias},
    ...     {"user": [1]}, {"user": ReduceSum()}, use_native_multi_hash_table=True))
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     table = create_in_worker_partitioned_hash_table(1, True, parser_ctx=ctx)
    ...     _ = session.run(resources.initialize_resources(resources.shared_resources()))
    ...     bias = table.lookup({"user": tf.ragged.constant([[7, 8], [8]], dtype=tf.int64)})["bias"]
    ...     _ = session.run(table.apply_gradients([(tf.ones_like(bias), bias)], 0))
    ...     session.run(bias)  # 8 is in both examples.
    array([[-3.],
           [-2.]], dtype=float32)
    >>> collectives.shutdown()
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.data.parser_context import SHARDING_PREFIX, ParserCtx
from monolith.embedding.sharding import rank_metrics, ranks
from monolith.embedding.sharding.partitioned import (
    Bundle,
    PartitionedHashTable,
    Rows,
    read_step,
)
from monolith.embedding.sharding.ranks import DistributedMultiTypeHashTableMpi
from monolith.embedding.sharding.servers import Configs
from monolith.embedding.tables.inputs import TensorLike
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.graph import collectives
from monolith.tensor import prefetch

# In the bundle of a lookup: what the exchange needs for the way back.
_EXCHANGE = SHARDING_PREFIX + "exchange"
# In the bundle of the exchange: that of the lookup, which travels along through the queues.
_BATCH = "batch"


class RankedLayoutTable(PartitionedHashTable):
    """All tables of a model, of which each rank has a part, looked up as layouts.

    Args:
        num_ranks: How many ranks there are.
        table_factory: Makes the part of a rank, of its number and the configs.
        use_native_multi_hash_table: Whether that part is one resource.
        queue_configs: Which queues there are between the parts of a step, see `RankQueues`.
        parser_ctx: Has the configs of the features, made for as many servers as there are ranks
            with rows.

    Raises:
        errors.ConfigError: The context has no configs, or others than the arguments say; or equal
            ids are not to be sent once.
    """

    def __init__(
        self,
        num_ranks: int,
        table_factory: Callable[[int, Configs], BaseMultiTypeHashTable],
        use_native_multi_hash_table: bool,
        queue_configs: Mapping[str, int] | None = None,
        parser_ctx: ParserCtx | None = None,
    ) -> None:
        self._first_owner = ranks.get_first_owner(num_ranks)
        self._num_ranks = num_ranks
        self._queue_configs = queue_configs
        super().__init__(
            num_ranks - self._first_owner,
            table_factory,
            use_native_multi_hash_table,
            parser_ctx=parser_ctx,
        )

    def apply_gradients(  # type: ignore[override]
        self,
        layout_grads_and_vars: Sequence[tuple[Any, tf.Tensor]],
        global_step: TensorLike,
        req_time: TensorLike | None = None,
        auxiliary_bundle: Bundle | None = None,
        async_function_mgr: prefetch.AsyncFunctionMgr | None = None,
        async_push: bool = False,
        grad_scale: TensorLike | None = None,
    ) -> Any:
        """Returns the op that updates the rows of a lookup, each once with the sum of all ranks.

        Args:
            layout_grads_and_vars: As of `PartitionedHashTable`, as all others.
            global_step: As there.
            req_time: As there.
            auxiliary_bundle: As there.
            async_function_mgr: Must be there for gradients to be pushed late. The hook that does
                that is among `push_hooks`: ranks push in the same steps.
            async_push: Whether they are.
            grad_scale: As there.

        Raises:
            errors.ConfigError: As there.
        """
        bundle = self._get_bundle(auxiliary_bundle)
        with tf.name_scope("pht_ag"):
            by_rank = self._grads_of_rows(layout_grads_and_vars, bundle, grad_scale)
            table = self._table.exchange_gradients(
                tf.concat(by_rank, 0),
                bundle[_EXCHANGE],
                read_step(global_step),
                None if req_time is None else tf.reduce_max(req_time),
                send_late=async_push and async_function_mgr is not None,
            )
            return table.as_op()

    @property
    def push_hooks(self) -> list[Any]:
        """The hooks of gradients that are pushed late, once `apply_gradients` was called."""
        hooks: list[Any] = self._table.push_hooks
        return hooks

    def _make_tables(
        self,
        table_factory: Callable[[int, Configs], BaseMultiTypeHashTable],
        max_rpc_deadline_millis: int,
    ) -> DistributedMultiTypeHashTableMpi:
        configs = self._configs
        if not configs.unique:
            raise errors.ConfigError(
                "`unique` is False, but an id that several ranks send is one step of the optimizer,"
                " and so must be one that a rank has several times; leave it at True."
            )
        return DistributedMultiTypeHashTableMpi(
            self._num_ranks,
            lambda rank: table_factory(rank, configs.table_configs),
            self._queue_configs,
        )

    def _fetch(self, parts: Sequence[tf.RaggedTensor], bundle: Bundle) -> None:
        num_tables = len(self._table.get_table_dim_sizes())
        # A rank without rows is asked for nothing.
        empty = [tf.zeros([self._first_owner * num_tables], tf.int32)]
        sizes = tf.concat([*empty, *(tf.cast(p.row_lengths(), tf.int32) for p in parts)], 0)
        shard_sizes = tf.reduce_sum(tf.reshape(sizes, [self._num_ranks, num_tables]), 1)
        ids = tf.concat([part.values for part in parts], 0)
        rank_metrics.count_ids(sorted(self._configs.table_configs), sizes, self._num_ranks)
        received, exchanged = self._table.exchange_rows(
            ids, shard_sizes, sizes, {_BATCH: dict(bundle)}
        )
        bundle.update(exchanged.pop(_BATCH))
        bundle[_EXCHANGE] = exchanged
        sent = exchanged["float_counts"][collectives.rank()]
        rows = tf.split(received, sent[self._first_owner :], num=len(parts))
        self._put_rows(rows, bundle)

    def _queue(self, bundle: Bundle, capacity: int) -> None:
        if capacity > 0:
            raise errors.ConfigError(
                f"`embedding_prefetch_capacity` of a lookup is {capacity}, but ranks look ahead "
                "together; say it in `queue_configs` when the tables are made."
            )

    def _write(self, method: str, data: Rows, req_time: TensorLike | None) -> PartitionedHashTable:
        raise NotImplementedError(f"RankedLayoutTable does not support {method}!")

    def reinitialize(self, slot: str, ids: TensorLike) -> tuple[PartitionedHashTable, tf.Tensor]:
        raise NotImplementedError("RankedLayoutTable does not support reinitialize!")
