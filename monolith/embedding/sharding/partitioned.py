"""Tables whose rows become the tensors of a model in one op: the table of fused layouts.

    ids -> divide (one op) -> rows (one request per server) -> layouts (one op) -> model
    gradients of layouts -> gradients of rows (one op) -> update (one request per server)

However many features a model has, a step has these few ops. `lookup` keeps in a bundle what the
update needs, under keys that begin with `__sharding_sparse_fids__`.

Example:
    >>> from monolith.data.parser_context import ParserCtx
    >>> from monolith.embedding.features.combiners import ReduceSum
    >>> from monolith.embedding.sharding.factory import create_partitioned_hash_table
    >>> from monolith.proto import example_pb2
    >>> from monolith.testing import generate_test_hash_table_config
    >>> from tensorflow.python.ops import resources
    >>> bias = example_pb2.OutConfig()
    >>> _ = bias.slice_configs.add(feature_name="user", start=0, end=1)
    >>> _ = bias.shape.add(dims=[-1, 1])
    >>> ctx = ParserCtx(enable_fused_layout=True)
    >>> ctx.set("sharding_feature_configs", PartitionedHashTable.gen_feature_configs(
    ...     0, {"user": generate_test_hash_table_config(dim=1)}, {"bias": bias},
    ...     {"user": [1]}, {"user": ReduceSum()}, use_native_multi_hash_table=True))
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     table = create_partitioned_hash_table(0, True, hash_filters=[None], parser_ctx=ctx)
    ...     _ = session.run(resources.initialize_resources(resources.shared_resources()))
    ...     table = table.assign([{"user": ([7, 8], [[0.5], [0.25]])}])
    ...     ids = tf.ragged.constant([[7, 8], [8]], dtype=tf.int64)
    ...     session.run(table.lookup({"user": ids})["bias"])
    array([[0.75],
           [0.25]], dtype=float32)
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.data import parser_context
from monolith.data.parser_context import SHARDING_PREFIX, SPARSE_FEATURES, ParserCtx
from monolith.data.sparse_fids import sharding_sparse_fids
from monolith.embedding.sharding import layout_configs
from monolith.embedding.sharding.fused_layout import (
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
)
from monolith.embedding.sharding.ids import pack_ids
from monolith.embedding.sharding.layout_configs import NATIVE_TABLE, ShardingFeatureConfigs
from monolith.embedding.sharding.remote import PackedTables
from monolith.embedding.sharding.servers import Configs, DistributedMultiTypeHashTable
from monolith.embedding.tables.inputs import TensorLike, to_floats, to_ids
from monolith.embedding.tables.iteration import infer_dim_size
from monolith.embedding.tables.layout import RawMultiTypeHashTable
from monolith.embedding.tables.multi_type import BaseMultiTypeHashTable
from monolith.tensor import look_ahead, prefetch

#: Under this key a `ParserCtx` has what `gen_feature_configs` returned.
SHARDING_FEATURE_CONFIGS = "sharding_feature_configs"

_POSTPUSH_QUEUE = "postpush_queue"
_OFFSETS = ("fid_offset", "feature_offset", "nfl_offset", "batch_size")
# The ids of all features are read by one op, so it does not matter what they came from.
_VARIANT_TYPE = "example_batch"

Bundle = dict[str, Any]
# For each server, the ids and rows of some tables.
Rows = Sequence[Mapping[str, tuple[TensorLike, TensorLike]]]


class PartitionedHashTable(BaseMultiTypeHashTable):
    """All tables of a model, in this process or on servers, looked up as layouts.

    Args:
        num_ps: Number of servers; 0: the tables are in this process.
        table_factory: Makes the tables of a server, of its number and the configs.
        use_native_multi_hash_table: Whether the tables of a server are one resource; the configs
            of the context must have been made for that.
        max_rpc_deadline_millis: How long a call may take in an exported model.
        queue_configs: Must have no queues: these belong to the exchange between ranks.
        parser_ctx: Has the configs of the features, see `SHARDING_FEATURE_CONFIGS`; by default the
            context that was entered last.

    Raises:
        errors.ConfigError: The context has no configs, or others than the arguments say.
    """

    gen_feature_configs = staticmethod(layout_configs.gen_feature_configs)
    merge_feature_config = staticmethod(layout_configs.merge_feature_config)
    flatten_layout = staticmethod(layout_configs.flatten_layout)

    def __init__(
        self,
        num_ps: int,
        table_factory: Callable[[int, Configs], BaseMultiTypeHashTable],
        use_native_multi_hash_table: bool,
        max_rpc_deadline_millis: int = 30,
        queue_configs: Mapping[str, int] | None = None,
        parser_ctx: ParserCtx | None = None,
    ) -> None:
        if any((queue_configs or {}).values()):
            raise errors.ConfigError(
                f"`queue_configs` is {dict(queue_configs or {})}, but only ranks that exchange "
                "rows have these queues; leave it out, or let ranks share the tables with "
                "`create_in_worker_partitioned_hash_table`."
            )
        self._parser_ctx = parser_ctx or parser_context.get_default_parser_ctx()
        self._num_ps = num_ps
        self._configs = _get_configs(self._parser_ctx, num_ps, use_native_multi_hash_table)
        self._feature_cfgs = self._configs.as_one_table()
        self._table: Any = self._make_tables(table_factory, max_rpc_deadline_millis)
        # The layouts of the latest lookup, and what it kept: shared by all copies of the table.
        self._latest: dict[str, Any] = {}

    @property
    def layout_configs(self) -> Mapping[str, Any]:
        """The layouts, by name."""
        return self._feature_cfgs.out_configs

    def nest_layout(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """Undoes `flatten_layout`."""
        return layout_configs.nest_layout(tensors, self.layout_configs)

    def lookup(
        self,
        features: Mapping[str, Any],
        auxiliary_bundle: Bundle | None = None,
        ret_fused_layout_callable_fn: bool = False,
        ret_lookup_callable_fn: bool = False,
        embedding_prefetch_capacity: int = 0,
    ) -> Any:
        """Returns the layouts of a batch.

        Args:
            features: Ragged ids of all features; or serialized examples, under the key
                `SPARSE_FEATURES`, of the kind that the parsers' context says.
            auxiliary_bundle: Gets what the update needs. Tensors that are in it already go through
                the queue along with the batch.
            ret_fused_layout_callable_fn: Whether to return a function that makes the layouts of a
                bundle, instead of the layouts.
            ret_lookup_callable_fn: Whether to return a function that makes this very lookup.
            embedding_prefetch_capacity: How many batches are looked up ahead, by a queue whose
                hook is among `get_queue_hooks`; the bundle then has what comes out of it.

        Returns:
            For each layout a tensor, or a list of them if its slices are separate.
        """
        bundle: Bundle = {} if auxiliary_bundle is None else auxiliary_bundle

        def look_up() -> Any:
            with tf.name_scope("pht_lu"):
                self._look_up(features, bundle)
                self._queue(bundle, embedding_prefetch_capacity)
            return (
                self._make_layouts if ret_fused_layout_callable_fn else self._make_layouts(bundle)
            )

        return look_up if ret_lookup_callable_fn else look_up()

    # Rows are written by server, and gradients are those of layouts: not as other tables take them.
    def assign(  # type: ignore[override]
        self, data: Rows, req_time: TensorLike | None = None
    ) -> "PartitionedHashTable":
        """Overwrites rows.

        Args:
            data: For each server, by table, ids that it has and their rows.
            req_time: When the rows were updated, in seconds since 1970.
        """
        return self._write("assign", data, req_time)

    def assign_add(  # type: ignore[override]
        self, data: Rows, req_time: TensorLike | None = None
    ) -> "PartitionedHashTable":
        """Adds to rows; the arguments are those of `assign`."""
        return self._write("assign_add", data, req_time)

    def reinitialize(self, slot: str, ids: TensorLike) -> tuple["PartitionedHashTable", tf.Tensor]:
        if not hasattr(self._table, "reinitialize"):
            raise NotImplementedError("PartitionedHashTable does not support reinitialize!")
        table, status = self._table.reinitialize(slot, ids)
        return self._with_table(table), status

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
        """Returns the op that updates the rows of a lookup.

        Args:
            layout_grads_and_vars: Gradients of tensors of the latest lookup; a tensor that is not
                among them counts as one without influence.
            global_step: The step of training.
            req_time: When the examples were made, in seconds since 1970; the latest counts.
            auxiliary_bundle: That of the lookup; by default the latest one's.
            async_function_mgr: Moves the update to the next step, if `async_push`.
            async_push: Whether it does.
            grad_scale: What the gradients are multiplied with.

        Raises:
            errors.ConfigError: Nothing was looked up, or a gradient is of another tensor.
        """
        bundle = self._get_bundle(auxiliary_bundle)
        with tf.name_scope("pht_ag"):
            by_list = self._grads_of_rows(layout_grads_and_vars, bundle, grad_scale)
            if req_time is not None:
                req_time = tf.reduce_max(req_time)
            arguments = (self._ids_in(bundle), by_list, read_step(global_step), req_time)
            if async_function_mgr is None:
                return self._push(*arguments)
            return async_function_mgr.add_async_function(
                self._push, arguments, is_async=async_push, queue_name=_POSTPUSH_QUEUE
            )

    def as_op(self, name: str | None = None) -> Any:
        return self._table.as_op(name or "pht_ao")

    def get_table_dim_sizes(self) -> Sequence[int]:
        sizes: Sequence[int] = self._table.get_table_dim_sizes()
        return sizes

    def _make_tables(
        self,
        table_factory: Callable[[int, Configs], BaseMultiTypeHashTable],
        max_rpc_deadline_millis: int,
    ) -> Any:
        configs = self._configs
        if self._num_ps > 0:
            return DistributedMultiTypeHashTable(
                self._num_ps,
                configs.table_configs,
                table_factory,
                transfer_float16=configs.transfer_float16,
                max_rpc_deadline_millis=max_rpc_deadline_millis,
            )
        table = table_factory(0, configs.table_configs)
        if isinstance(table, RawMultiTypeHashTable):
            return table
        dims = {name: infer_dim_size(config) for name, config in configs.table_configs.items()}
        return PackedTables(table, dims)

    def _look_up(self, features: Mapping[str, Any], bundle: Bundle) -> None:
        """Puts the rows of a batch into the bundle, and what leads from examples to them."""
        configs = self._configs
        is_parsed = SPARSE_FEATURES not in features
        input_type = "ragged" if is_parsed else self._parser_ctx.parser_type
        if input_type is None:
            raise errors.ConfigError(
                f"The batch has serialized examples, under '{SPARSE_FEATURES}', but no parser has "
                "said which; set `parser_type` of the parsers' context."
            )
        sharded = sharding_sparse_fids(
            features if is_parsed else features[SPARSE_FEATURES],
            configs.num_servers,
            self._feature_cfgs,
            configs.unique,
            input_type,
            sub_tables=configs.sub_tables,
        )
        parts = [
            tf.RaggedTensor.from_row_splits(ids, row_splits, validate=False)
            for ids, row_splits in zip(
                sharded.shards[NATIVE_TABLE], sharded.shards_row_split[NATIVE_TABLE], strict=True
            )
        ]
        for name in _OFFSETS:
            bundle[SHARDING_PREFIX + name] = getattr(sharded, name)
        self._fetch(parts, bundle)

    def _fetch(self, parts: Sequence[tf.RaggedTensor], bundle: Bundle) -> None:
        """Puts the rows of each server's ids into the bundle, and what their update needs."""
        if self._num_ps == 0:
            ids: Sequence[Any] = parts
            rows = [self._table.raw_lookup(parts[0])]
        else:
            rows, ids = self._table.lookup_packed([pack_ids(part) for part in parts])
        for i in range(self._configs.num_servers):
            bundle[_key("shards", i)] = ids[i]
        self._put_rows(rows, bundle)

    def _put_rows(self, rows: Sequence[tf.Tensor], bundle: Bundle) -> None:
        for i in range(self._configs.num_servers):
            bundle[_key("embeddings", i)] = rows[i]

    def _queue(self, bundle: Bundle, capacity: int) -> None:
        dequeued, queue = prefetch.enqueue_dicts_with_queue_return(
            bundle, capacity=look_ahead.get_queue_capacity(capacity)
        )
        bundle.update(dequeued)
        if queue is not None:
            self.add_queue_hook(look_ahead.LookAheadHook(queue, capacity))

    def _make_layouts(self, bundle: Bundle) -> dict[str, Any]:
        tensors = fused_embedding_to_layout(
            embeddings_list=self._rows_in(bundle),
            fid_list_row_split=None,
            **self._offsets_in(bundle),
        )
        self._latest.update(bundle=bundle, layouts=tensors)
        return self.nest_layout(tensors)

    def _get_bundle(self, auxiliary_bundle: Bundle | None) -> Bundle:
        bundle: Bundle | None = auxiliary_bundle
        if bundle is None:
            bundle = self._latest.get("bundle")
        if bundle is None or "layouts" not in self._latest:
            raise errors.ConfigError("Gradients can be applied after a lookup only.")
        return bundle

    def _grads_of_rows(
        self,
        layout_grads_and_vars: Sequence[tuple[Any, tf.Tensor]],
        bundle: Bundle,
        grad_scale: TensorLike | None,
    ) -> list[tf.Tensor]:
        """Returns the gradients of the rows of each server, in the order of its ids."""
        return fused_embedding_to_layout_grad(
            embeddings_list=self._rows_in(bundle),
            fid_list_row_split=None,
            layout_tensors_grad=self._grads_in_order(layout_grads_and_vars),
            layout_tensors_grad_scale=grad_scale,
            **self._offsets_in(bundle),
        )

    def _rows_in(self, bundle: Bundle) -> list[tf.Tensor]:
        return [bundle[_key("embeddings", i)] for i in range(self._configs.num_servers)]

    def _offsets_in(self, bundle: Bundle) -> dict[str, Any]:
        """Returns what the op and its gradient are told alike."""
        return {
            "variant_type": _VARIANT_TYPE,
            "feature_cfgs": self._feature_cfgs,
            "ps_num": self._configs.num_servers,
            **{name: bundle[SHARDING_PREFIX + name] for name in _OFFSETS},
        }

    def _ids_in(self, bundle: Bundle) -> list[Any]:
        return [bundle[_key("shards", i)] for i in range(self._configs.num_servers)]

    def _grads_in_order(
        self, layout_grads_and_vars: Sequence[tuple[Any, tf.Tensor]]
    ) -> list[tf.Tensor]:
        layouts = self._latest["layouts"]
        grads: dict[Any, tf.Tensor] = {}
        for grad, tensor in layout_grads_and_vars:
            if grad is not None:
                grads[tensor.ref()] = to_floats(tf.convert_to_tensor(grad))
        if set(grads) - {tensor.ref() for tensor in layouts}:
            raise errors.ConfigError("A gradient is that of a tensor which is no layout.")
        return [
            grads[tensor.ref()] if tensor.ref() in grads else tf.zeros_like(tensor)
            for tensor in layouts
        ]

    def _push(
        self,
        ids: Sequence[Any],
        grads: Sequence[tf.Tensor],
        global_step: tf.Tensor,
        req_time: tf.Tensor | None,
    ) -> Any:
        if self._num_ps == 0:
            table = self._table.raw_apply_gradients(ids[0], grads[0], global_step, req_time)
        else:
            table = self._table.apply_packed(ids, grads, global_step, req_time)
        return table.as_op()

    def _write(
        self, method: str, data: Rows, req_time: TensorLike | None
    ) -> "PartitionedHashTable":
        if len(data) != self._configs.num_servers:
            raise errors.ConfigError(
                f"There must be ids and rows for each of {self._configs.num_servers} servers, got "
                f"{len(data)}."
            )
        parts = [
            {name: (to_ids(ids), to_floats(rows)) for name, (ids, rows) in of_server.items()}
            for of_server in data
        ]
        if self._num_ps == 0:
            return self._with_table(getattr(self._table, method)(parts[0], req_time=req_time))
        return self._with_table(self._table.write_parts(method, parts, req_time))

    def _with_table(self, table: Any) -> "PartitionedHashTable":
        copied = copy.copy(self)
        copied._table = table
        return copied


def _get_configs(ctx: ParserCtx, num_ps: int, is_native: bool) -> ShardingFeatureConfigs:
    configs = ctx.get(SHARDING_FEATURE_CONFIGS)
    if configs is None:
        raise errors.ConfigError(
            "The parsers' context does not know the features of the model: call "
            f"PartitionedHashTable.gen_feature_configs and ctx.set('{SHARDING_FEATURE_CONFIGS}', "
            "...) with its result."
        )
    if configs.num_servers != max(1, num_ps):
        raise errors.ConfigError(
            f"The configs are those of {configs.num_servers} servers, but `num_ps` is {num_ps}."
        )
    tables = {config.table for config in configs.feature_configs.feature_configs.values()}
    if is_native != (tables == {NATIVE_TABLE}):
        raise errors.ConfigError(
            f"`use_native_multi_hash_table` is {is_native}, but the configs were made for the "
            "other kind of tables."
        )
    return configs


def _key(what: str, server: int) -> str:
    return f"{SHARDING_PREFIX}{what}/{NATIVE_TABLE}:{server}"


def read_step(global_step: TensorLike) -> Any:
    """Returns the value that a step has now, if it is a variable."""
    return global_step.read_value() if isinstance(global_step, tf.Variable) else global_step
