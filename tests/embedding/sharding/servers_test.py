"""Tables on two real parameter servers, seen as one table.

Covers monolith/embedding/sharding/learning_rates.py and monolith/embedding/sharding/remote.py.
"""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.core import metrics
from monolith.embedding.sharding import ids as sharded_ids
from monolith.embedding.sharding import learning_rates, remote
from monolith.embedding.sharding import servers as sharded_tables
from monolith.embedding.tables import multi, multi_type, single
from monolith.graph import devices, export_mode, task_context
from monolith.optimizer import learning_rate
from monolith.testing import create_test_ps_cluster, generate_test_hash_table_config

pytestmark = pytest.mark.usefixtures("graph_mode")

NUM_PS = 2


@pytest.fixture
def connect():
    servers, config = create_test_ps_cluster(NUM_PS)
    return lambda: tf.compat.v1.Session(servers[0].target, config=config)


def make_hash_table(index, config):
    return single.hash_table_from_config(config, name_suffix=f"table_{index}")


def make_distributed_table(dim=1, **kwargs) -> sharded_tables.DistributedHashTable:
    config = generate_test_hash_table_config(dim, **kwargs)
    return sharded_tables.DistributedHashTable(NUM_PS, config, make_hash_table)


def make_raw_tables(index, configs):
    return multi.MultiHashTable.from_configs(configs, name_suffix=str(index))


def make_named_tables(index, configs):
    def make_table(slot, config):
        return single.hash_table_from_config(config, name_suffix=f"{slot}_{index}")

    return multi_type.MultiTypeHashTable(configs, make_table)


FACTORIES = pytest.mark.parametrize(
    "factory", [make_raw_tables, make_named_tables], ids=["raw", "packed"]
)


def make_tables(
    factory, dims=None, transfer_float16=False, **kwargs
) -> sharded_tables.DistributedMultiTypeHashTable:
    dims = dims or {"1": 1, "2": 2}
    configs = {slot: generate_test_hash_table_config(dim, **kwargs) for slot, dim in dims.items()}
    return sharded_tables.DistributedMultiTypeHashTable(
        NUM_PS, configs, factory, transfer_float16=transfer_float16
    )


@pytest.fixture
def run(connect):
    """Runs something in a session whose tables and variables are new."""

    def run_in_session(*fetches):
        initializers = [
            table.initializer
            for table in tf.compat.v1.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY)
        ]
        initializers.append(tf.compat.v1.global_variables_initializer())
        with connect() as session:
            session.run(initializers)
            results = [session.run(fetch) for fetch in fetches]
        return results[0] if len(results) == 1 else results

    return run_in_session


class TestPsDevice:
    def test_overrides_devices_and_colocation(self):
        with tf.compat.v1.device(lambda op: "/job:worker/task:3"):
            on_worker = tf.constant(1)
            with (
                tf.compat.v1.colocate_with(on_worker),
                tf.compat.v1.variable_scope("a"),
                sharded_tables.ps_device(1),
            ):
                on_server = tf.constant(2)
        assert on_server.device == devices.ps_device(1)
        assert on_server.op.colocation_groups() == [b"loc:@" + on_server.op.name.encode()]

    def test_no_device_while_exporting_standalone(self):
        with (
            export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE),
            sharded_tables.ps_device(1),
        ):
            assert tf.constant(1).device == ""


class TestDistributedHashTable:
    def test_lookup_of_what_was_assigned(self, run):
        table = make_distributed_table(dim=2)
        table = table.assign([1, 2, 3], [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
        assert run(table.lookup([1, 2, 3])).tolist() == [[1, 1], [2, 2], [3, 3]]

    def test_assign_add_and_last_assign_wins(self, run):
        table = make_distributed_table().assign([1, 1, 2], [[5.0], [1.0], [2.0]])
        table = table.assign_add([1, 1, 4], [[10.0], [10.0], [4.0]])
        assert run(table.lookup([1, 2, 4])).tolist() == [[21], [2], [4]]

    def test_duplicates_and_unknown_and_negative_ids(self, run):
        table = make_distributed_table().assign([1, -3, 2], [[1.0], [-3.0], [2.0]])
        rows = run(table.lookup([1, -3, 1, 7, 2, -3]))
        assert rows.tolist() == [[1], [-3], [1], [0], [2], [-3]]

    def test_ids_of_any_shape(self, run):
        table = make_distributed_table(dim=2).assign([1, 2], [[1.0, 1.0], [2.0, 2.0]])
        rows = table.lookup(tf.constant([[1], [2], [1]], tf.int64))
        assert rows.shape == [3, 1, 2]
        assert run(rows).tolist() == [[[1, 1]], [[2, 2]], [[1, 1]]]

    def test_no_ids(self, run):
        table = make_distributed_table(dim=2)
        ids = tf.constant([], tf.int64)
        table = table.apply_gradients(ids, tf.zeros([0, 2]), 0)
        assert run(table.lookup(ids)).shape == (0, 2)

    def test_gradients_of_duplicates_are_summed(self, run):
        table = make_distributed_table(learning_rate=1.0)
        ids = tf.constant([0, 3, 0, 1], tf.int64)
        rows = table.lookup(ids)
        grads = tf.gradients(2 * rows, rows)[0]
        updated = table.apply_gradients(ids, grads, global_step=0)
        assert run(updated.lookup(ids)).ravel().tolist() == [-4, -2, -4, -2]

    def test_gradients_to_other_ids(self, run):
        table = make_distributed_table()
        table.lookup([0, 1])
        updated = table.apply_gradients([2, 5, 2], [[1.0], [2.0], [4.0]], global_step=0)
        assert run(updated.lookup([0, 1, 2, 5])).ravel().tolist() == [0, 0, -5, -2]

    def test_duplicates_make_one_step_of_the_optimizer(self, run):
        table = sharded_tables.DistributedHashTable(
            NUM_PS,
            generate_test_hash_table_config(1),
            lambda i, _: single.test_hash_table(1, use_adagrad=True, name_suffix=f"adagrad_{i}"),
        )
        once = run(table.apply_gradients([1, 2], [[3.0], [3.0]], 0).lookup([1, 2]))
        with tf.Graph().as_default():
            local = single.test_hash_table(1, use_adagrad=True)
            with tf.compat.v1.Session() as session:
                expected = session.run(local.apply_gradients([1], [[3.0]], 0).lookup([1]))
        assert once.tolist() == [*expected.tolist(), *expected.tolist()]

    def test_decaying_learning_rate(self, connect):
        step = tf.compat.v1.train.get_or_create_global_step()
        table = make_distributed_table(learning_rate=learning_rate.PolynomialDecay(1.0, 10, 2.0))
        # The worker computes the rate; a server makes the vector of its table of it.
        on_servers = [
            op.type
            for op in tf.compat.v1.get_default_graph().get_operations()
            if op.device == devices.ps_device(1)
        ]
        assert set(on_servers) <= {
            *("Unpack", "Pack", "Placeholder", "MonolithHashTable"),
            *("MonolithDummySyncClient", "MonolithDummyHashFilter"),
        }
        update = table.apply_gradients([0], [[2.0]], global_step=step).as_op()
        rows = table.lookup([0])
        next_step = tf.compat.v1.assign_add(step, 1)
        with connect() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(update)
            assert session.run(rows).tolist() == [[-2]]
            session.run(next_step)
            session.run(update)
            assert session.run(rows) == pytest.approx(np.array([[-4.2]]))

    def test_times_of_updates_reach_the_rows(self, run):
        table = make_distributed_table()
        table = table.apply_gradients([2, 3], [[1.0], [1.0]], 0, req_time=tf.constant(77))
        entries = [part.lookup_entry([i + 2]) for i, part in enumerate(table._tables)]
        for entry_dump in run(entries):
            assert b"\x20\x4d" in entry_dump[0]  # last_update_ts_sec: 77

    def test_too_few_gradients(self, run):
        table = make_distributed_table(dim=2)
        ids = tf.compat.v1.placeholder_with_default(tf.constant([1, 2], tf.int64), [None])
        grads = tf.compat.v1.placeholder_with_default(tf.ones([1, 2]), [None, 2])
        updated = table.apply_gradients(ids, grads, 0)
        with pytest.raises(tf.errors.InvalidArgumentError, match="one gradient for each id"):
            run(updated.as_op())

    def test_name_of_the_op(self):
        table = make_distributed_table()
        assert table.as_op().name == "dht_ao/done"
        assert table.as_op("mine").name == "mine/done"

    def test_no_servers(self):
        with pytest.raises(errors.ConfigError, match="`ps_num` must be at least 1, got 0"):
            sharded_tables.DistributedHashTable(
                0, generate_test_hash_table_config(1), make_hash_table
            )


class TestDistributedMultiTypeHashTable:
    @FACTORIES
    def test_updates_and_gradients(self, factory, run):
        table = make_tables(factory)
        ids = {"1": tf.constant([1, 2], tf.int64), "2": tf.constant([3], tf.int64)}
        table = table.assign_add(
            {"1": (ids["1"], [[-1.0], [-2.0]]), "2": (ids["2"], [[-3.0, -3.0]])}
        )
        rows = table.lookup(ids)
        grads = {slot: 0.5 * rows[slot] for slot in ids}
        table = table.apply_gradients({slot: (ids[slot], grads[slot]) for slot in ids}, 0)
        rows = run(table.lookup(ids))
        assert rows["1"].tolist() == [[-0.5], [-1]]
        assert rows["2"].tolist() == [[-1.5, -1.5]]

    @FACTORIES
    def test_only_some_slots(self, factory, run):
        table = make_tables(factory, {"a": 1, "b": 2, "c": 1})
        table = table.assign({"b": ([4, 5, 4], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])})
        table = table.apply_gradients({"a": ([4, 4], [[1.0], [2.0]])}, 0)
        rows = run(table.lookup({"b": [5, 4, 5, 9], "a": [4]}))
        assert rows["b"].tolist() == [[3, 4], [5, 6], [3, 4], [0, 0]]
        assert rows["a"].tolist() == [[-3]]
        assert set(rows) == {"a", "b"}

    @FACTORIES
    def test_unknown_slots(self, factory, run):
        table = make_tables(factory)
        rows = run(table.lookup({"1": [1], "nobody": [7]}))
        assert set(rows) == {"1"}
        for update in (
            functools.partial(table.apply_gradients, global_step=0),
            table.assign,
            table.assign_add,
        ):
            with pytest.raises(ValueError, match="There is no table for slot 'nobody'; there are"):
                update({"nobody": ([1], [[1.0]])})

    @FACTORIES
    def test_same_id_in_two_slots_is_two_rows(self, factory, run):
        table = make_tables(factory, {"a": 1, "b": 1})
        table = table.assign_add({"a": ([7, 7], [[1.0], [2.0]]), "b": ([7], [[5.0]])})
        rows = run(table.lookup({"a": [7], "b": [7]}))
        assert rows["a"].tolist() == [[3]]
        assert rows["b"].tolist() == [[5]]

    @FACTORIES
    def test_like_a_local_table(self, factory, run):
        """Random ids of three tables, looked up and updated twice, against NumPy."""
        rng = np.random.default_rng(5)
        dims = {"a": 3, "b": 1, "c": 2}
        table = make_tables(factory, dims, learning_rate=0.5)
        expected = {
            slot: collections.defaultdict(lambda d=d: np.zeros(d)) for slot, d in dims.items()
        }
        updates = []
        for _ in range(2):
            update = {}
            for slot, dim in dims.items():
                ids = rng.integers(-20, 20, 200)
                grads = rng.integers(-4, 5, (200, dim)).astype(np.float32)
                for i, grad in zip(ids.tolist(), grads, strict=True):
                    expected[slot][i] = expected[slot][i] - 0.5 * grad
                update[slot] = (ids, grads)
            updates.append(update)
        for step, update in enumerate(updates):
            table = table.apply_gradients(update, step)
        wanted = {slot: rng.integers(-20, 20, 100) for slot in dims}
        rows = run(table.lookup(wanted))
        for slot, ids in wanted.items():
            model = np.stack([expected[slot][i] for i in ids.tolist()])
            np.testing.assert_array_equal(rows[slot], model)

    @FACTORIES
    def test_gradients_of_rows_that_were_looked_up(self, factory, run):
        """The way of a training step: the update shares the distinct ids with the lookup."""
        table = make_tables(factory)
        ids = {"1": tf.constant([5, 6, 5], tf.int64), "2": tf.constant([6, 6], tf.int64)}
        rows = table.lookup(ids)
        loss = tf.reduce_sum(rows["1"]) + 3 * tf.reduce_sum(rows["2"])
        grads = tf.gradients(loss, [rows["1"], rows["2"]])
        updated = table.apply_gradients({"1": (ids["1"], grads[0]), "2": (ids["2"], grads[1])}, 0)
        unique = [
            op
            for op in tf.compat.v1.get_default_graph().get_operations()
            if op.type == "MonolithUniqueKeyWithValueAndOffset"
        ]
        assert len(unique) == 1
        result = run(updated.lookup(ids))
        assert result["1"].tolist() == [[-2], [-1], [-2]]
        assert result["2"].tolist() == [[-6, -6], [-6, -6]]

    def test_reinitialize(self, run):
        table = make_tables(make_raw_tables, {"1": 1, "2": 2})
        table = table.assign({"1": ([1, 2], [[1.0], [2.0]])})
        table, status = table.reinitialize("1", [1, 2, 3])
        with tf.control_dependencies([status]):
            rows = table.lookup({"1": [1, 2, 3]})["1"]
        _, unknown = table.reinitialize("3", [1, 2, 3])
        status, rows, unknown = run([status, rows, unknown])
        assert status.tolist() == [1, 1, 0]  # Of id 2 on server 0, then of 1 and 3 on server 1.
        assert rows.tolist() == [[0], [0], [0]]
        assert unknown.tolist() == [-1, -1, -1]

    def test_reinitialize_needs_raw_tables(self):
        message = "DistributedMultiTypeHashTable dost not support reinitialize!"
        with pytest.raises(NotImplementedError, match=message):
            make_tables(make_named_tables).reinitialize("1", [1])

    @FACTORIES
    def test_decaying_learning_rate(self, factory, connect):
        step = tf.compat.v1.train.get_or_create_global_step()
        decay = learning_rate.PolynomialDecay(1.0, 10, 2.0)
        table = make_tables(factory, learning_rate=decay)
        update = table.apply_gradients(
            {"1": ([1, 2], [[2.0], [2.0]]), "2": ([4], [[2.0, 2.0]])}, global_step=step
        ).as_op()
        rows = table.lookup({"1": [1, 2], "2": [4]})
        next_step = tf.compat.v1.assign_add(step, 1)
        with connect() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            if factory is make_raw_tables:
                session.run([part.initializer for part in table._tables])
            session.run(update)
            first = session.run(rows)
            session.run(next_step)
            session.run(update)
            second = session.run(rows)
        assert first["1"].tolist() == [[-2], [-2]]
        assert first["2"].tolist() == [[-2, -2]]
        assert second["1"].ravel() == pytest.approx([-4.2, -4.2])
        assert second["2"].ravel() == pytest.approx([-4.2, -4.2])

    @FACTORIES
    def test_float16_on_the_wire(self, factory, connect):
        table = make_tables(factory, transfer_float16=True)
        ids = {"1": tf.constant([1, 2], tf.int64), "2": tf.constant([3], tf.int64)}
        table = table.assign_add(
            {"1": (ids["1"], [[-1.0], [1.0 + 2**-12]]), "2": (ids["2"], [[-3.0, -3.0]])}
        )
        rows = table.lookup(ids)
        table = table.apply_gradients({slot: (ids[slot], 0.5 * rows[slot]) for slot in ids}, 0)
        options = tf.compat.v1.RunOptions(output_partition_graphs=True)
        metadata = tf.compat.v1.RunMetadata()
        with connect() as session:
            for part in tf.compat.v1.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY):
                session.run(part.initializer)
            rows, updated = session.run(
                [rows, table.lookup(ids)], options=options, run_metadata=metadata
            )
        assert rows["1"].tolist() == [[-1], [1]]  # 1 + 2^-12 has no float16 of its own.
        assert updated["1"].tolist() == [[-0.5], [0.5]]
        assert updated["2"].tolist() == [[-1.5, -1.5]]
        sent = {
            tf.as_dtype(node.attr["tensor_type"].type)
            for partition in metadata.partition_graphs
            for node in partition.node
            if node.op == "_Recv" and node.attr["send_device"].s != node.attr["recv_device"].s
        }
        assert tf.float16 in sent

    @FACTORIES
    def test_a_step_costs_one_lookup_and_one_update_whatever_the_number_of_slots(self, factory):
        def count(num_slots):
            """Returns ops on the tables of server 1, and messages to and from it."""
            servers, config = create_test_ps_cluster(NUM_PS)
            with tf.Graph().as_default():
                dims = {f"slot_{i}": 1 + i % 3 for i in range(num_slots)}
                step = tf.compat.v1.train.get_or_create_global_step()
                decay = learning_rate.PolynomialDecay(1.0, 10, 2.0)
                table = make_tables(factory, dims, learning_rate=decay)
                ids = {
                    slot: tf.compat.v1.placeholder_with_default(
                        tf.constant([1, 2, 3], tf.int64), [None]
                    )
                    for slot in dims
                }
                rows = table.lookup(ids)
                updates = {slot: (ids[slot], 2 * rows[slot]) for slot in dims}
                train = table.apply_gradients(
                    updates, step, req_time=tf.compat.v1.placeholder_with_default(7, [])
                ).as_op()
                options = tf.compat.v1.RunOptions(output_partition_graphs=True)
                metadata = tf.compat.v1.RunMetadata()
                with tf.compat.v1.Session(servers[0].target, config=config) as session:
                    if factory is make_raw_tables:
                        session.run([part.initializer for part in table._tables])
                    session.run(tf.compat.v1.global_variables_initializer())
                    session.run(train, options=options, run_metadata=metadata)
            nodes = [node for part in metadata.partition_graphs for node in part.node]
            server = b"/job:ps/replica:0/task:1/device:CPU:0"
            on_tables = collections.Counter(
                node.op
                for node in nodes
                if node.op.startswith("MonolithMultiHashTable") and "/task:1/" in node.device
            )
            messages = [
                node.attr["tensor_name"].s
                for node in nodes
                if node.op == "_Recv"
                and node.attr["send_device"].s != node.attr["recv_device"].s
                and server in (node.attr["send_device"].s, node.attr["recv_device"].s)
            ]
            return on_tables, len(messages)

        few_ops, few_messages = count(2)
        many_ops, many_messages = count(9)
        if factory is make_raw_tables:
            assert few_ops == many_ops
            assert many_ops == {
                "MonolithMultiHashTableLookup": 1,
                "MonolithMultiHashTableOptimize": 1,
            }
        # To the server: ids; gradients; step and time; learning rates. Back: rows; that it is done.
        assert few_messages == many_messages
        assert many_messages == 6

    def test_lookups_are_timed(self, connect):
        timers = []

        class Sink:
            def emit(self, kind, name, value, tags):
                timers.append((kind, name, value, dict(tags)))

            def flush(self):
                pass

        with task_context.with_ctx(task_context.get()._replace(model_name="ranking")):
            rows = make_tables(make_named_tables).lookup({"1": [1, 2]})
        metrics.set_sink(Sink())
        try:
            with connect() as session:
                session.run(rows)
        finally:
            metrics.set_sink(None)
        assert {(kind, name.rpartition(".")[2]) for kind, name, _, _ in timers} == {
            ("timer", "embedding_lookup")
        }
        assert sorted(tags["ps"] for *_, tags in timers) == ["0", "1"]
        assert {tags["model_name"] for *_, tags in timers} == {"ranking"}
        assert all(0 <= value < 60_000 for _, _, value, _ in timers)

    @FACTORIES
    def test_too_many_gradients(self, factory, run):
        table = make_tables(factory)
        grads = tf.compat.v1.placeholder_with_default(tf.ones([3, 1]), [None, 1])
        updated = table.apply_gradients({"1": ([1, 2], grads)}, 0)
        with pytest.raises(tf.errors.InvalidArgumentError, match="one gradient for each id"):
            run(updated.as_op())

    def test_dims_and_names(self):
        table = make_tables(make_named_tables, {"b": 2, "a": 3})
        assert list(table.get_table_dim_sizes()) == [3, 2]
        assert table.as_op().name == "dmtht_ao/done"
        rows = table.lookup({"a": tf.compat.v1.placeholder(tf.int64, [None])})
        assert rows["a"].name.startswith("dmtht_lu/")
        assert rows["a"].shape.as_list() == [None, 3]
        assert list(make_tables(make_raw_tables, {"b": 2, "a": 3}).get_table_dim_sizes()) == [3, 2]

    def test_hooks_of_the_tables_are_found(self):
        hook = tf.compat.v1.train.SessionRunHook()

        def make_with_hook(index, configs):
            table = make_named_tables(index, configs)
            table.add_queue_hook(hook)
            return table

        assert make_tables(make_with_hook).get_queue_hooks() == [hook] * NUM_PS

    def test_without_servers_or_slots(self):
        with pytest.raises(errors.ConfigError, match="`num_ps` must be at least 1, got 0"):
            sharded_tables.DistributedMultiTypeHashTable(
                0, {"a": generate_test_hash_table_config(1)}, make_raw_tables
            )
        with pytest.raises(errors.ConfigError, match="at least one slot"):
            sharded_tables.DistributedMultiTypeHashTable(2, {}, make_raw_tables)


class LocalModels:
    """Serves the sub graphs of an export from this process, in place of model servers."""

    def __init__(self, export_ctx: export_mode.ExportContext) -> None:
        self._export_ctx = export_ctx
        self._sessions: dict[str, tf.compat.v1.Session] = {}
        self.calls: list[dict] = []

    def session(self, name: str) -> tf.compat.v1.Session:
        if name not in self._sessions:
            sub_graph = self._export_ctx.sub_graphs[name]
            # Threads of its own: those of the process all wait for the answers of these models.
            config = tf.compat.v1.ConfigProto(use_per_session_threads=True)
            self._sessions[name] = tf.compat.v1.Session(graph=sub_graph, config=config)
            with sub_graph.as_default():
                for table in sub_graph.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY):
                    self._sessions[name].run(table.initializer)
        return self._sessions[name]

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def remote_predict(self, input_aliases, inputs, output_aliases, **kwargs):
        self.calls.append({**kwargs, "inputs": list(input_aliases), "outputs": output_aliases})
        name = kwargs["old_model_name"]
        (signature,) = (
            s
            for s in self._export_ctx.signatures(self._export_ctx.sub_graphs[name])
            if s.name == kwargs["signature_name"]
        )

        def call(*values):
            feed = {
                signature.inputs[alias]: value.numpy()
                for alias, value in zip(input_aliases, values, strict=True)
            }
            return self.session(name).run(
                [signature.outputs[alias] for alias in output_aliases], feed
            )

        outputs = tf.py_function(call, inputs, [tf.float32] * len(output_aliases))
        return tf.constant(0), tf.constant(""), outputs


class TestExport:
    @FACTORIES
    def test_distributed_export_asks_the_models_of_the_servers(self, factory, monkeypatch):
        context = task_context.get()._replace(model_name="ranking")
        with (
            task_context.with_ctx(context),
            export_mode.enter_export_mode(export_mode.ExportMode.DISTRIBUTED) as export_ctx,
        ):
            models = LocalModels(export_ctx)
            monkeypatch.setattr(remote.remote_predict, "call_op", models.remote_predict)
            table = make_tables(factory, {"a": 1, "b": 2})
            assert export_ctx.sub_graph_num == NUM_PS
            rows = table.lookup({"a": tf.constant([1, 2], tf.int64)})
            with pytest.raises(
                NotImplementedError, match="can be looked up in, and not be changed"
            ):
                table.apply_gradients({"a": ([1], [[1.0]])}, 0)
        entry_ops = tf.compat.v1.get_default_graph().get_operations()
        assert not [op for op in entry_ops if op.type.startswith("MonolithHashTable")]
        assert not [op for op in entry_ops if op.device]
        # Serving tables take rows by assignment.
        for i in range(NUM_PS):
            sub_graph = export_ctx.sub_graphs[f"ps_{i}"]
            names = {s.name for s in export_ctx.signatures(sub_graph)}
            assert names == {"lookup", "raw_lookup"} if factory is make_raw_tables else {"lookup"}
            with sub_graph.as_default():
                if factory is make_raw_tables:
                    (tables,) = sub_graph.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY)
                    write = tables.assign({"a": ([i, 2 - i], [[10.0 + i], [20.0 + i]])}).as_op()
                else:
                    table_a = sub_graph.get_collection(single._HASH_TABLE_GRAPH_KEY)[0]
                    write = table_a.assign([i, 2 - i], [[10.0 + i], [20.0 + i]]).as_op()
            models.session(f"ps_{i}").run(write)
        try:
            with tf.compat.v1.Session() as session:
                result = session.run(rows)["a"]
        finally:
            models.close()
        assert result.shape == (2, 1)
        # Server 1 has id 1 (written last there as 2 - 1), server 0 has id 2.
        assert result.tolist() == [[21], [20]]
        assert [(c["model_name"], c["task"], c["old_model_name"]) for c in models.calls] == [
            ("ranking:ps_0", 0, "ps_0"),
            ("ranking:ps_1", 1, "ps_1"),
        ]
        expected = (
            ("raw_lookup", ["id", "id_split"], ["flat_emb"])
            if factory is make_raw_tables
            else ("lookup", ["a", "b"], ["a", "b"])
        )
        for call in models.calls:
            assert (call["signature_name"], call["inputs"], call["outputs"]) == expected
            assert call["max_rpc_deadline_millis"] == 30

    @FACTORIES
    @pytest.mark.parametrize("default_value", [0.0, 0.5])
    def test_rows_of_a_server_that_is_away(self, factory, default_value):
        with export_mode.enter_export_mode(export_mode.ExportMode.DISTRIBUTED):
            table = make_tables(factory, {"a": 1, "b": 2})
            rows = table.lookup({"a": [1, 2], "b": [3]})
        remote.remote_predict.set_sender(lambda call: call.fail(14, "away", default_value))
        try:
            with tf.compat.v1.Session() as session:
                result = session.run(rows)
        finally:
            remote.remote_predict.set_sender(None)
        assert result["a"].tolist() == [[default_value]] * 2
        assert result["b"].tolist() == [[default_value] * 2]

    @FACTORIES
    def test_standalone_export_has_all_tables_in_one_graph(self, factory):
        with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE) as export_ctx:
            table = make_tables(factory)
            rows = table.lookup({"1": [1, 2]})["1"]
            assert export_ctx.sub_graph_num == 0
        graph_ops = tf.compat.v1.get_default_graph().get_operations()
        assert not [op.name for op in graph_ops if "job:ps" in op.device]
        with tf.compat.v1.Session() as session:
            for part in tf.compat.v1.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY):
                session.run(part.initializer)
            assert session.run(rows).tolist() == [[0], [0]]


class TestIdSharder:
    def test_branches_do_not_share(self, run):
        """What a branch of a conditional computes cannot be used outside of it."""
        table = make_distributed_table()
        ids = tf.constant([1, 2], tf.int64)
        rows = tf.compat.v1.cond(
            tf.constant(True), lambda: table.lookup(ids), lambda: tf.zeros([2, 1])
        )
        updated = table.apply_gradients(ids, tf.ones([2, 1]), 0)
        assert run(updated.lookup(ids)).tolist() == [[-1], [-1]]
        assert run(rows).tolist() == [[-1], [-1]]

    def test_two_lookups_of_the_same_ids(self, run):
        """Each has a buffer of its own, since a buffer is taken once in each step."""
        table = make_distributed_table().assign([1], [[1.0]])
        ids = tf.constant([1, 2], tf.int64)
        first, second = table.lookup(ids), table.lookup(ids)
        assert [rows.tolist() for rows in run([first, second])] == [[[1], [0]], [[1], [0]]]

    def test_packed_ids_come_back(self):
        ids = tf.ragged.constant([[], [5, 6], [7]], dtype=tf.int64)
        unpacked = sharded_ids.unpack_ids(sharded_ids.pack_ids(ids), 3)
        with tf.compat.v1.Session() as session:
            assert session.run(unpacked).to_list() == [[], [5, 6], [7]]


class TestWorkerLearningRates:
    def test_equal_functions_are_called_once(self):
        calls = []

        def rate():
            calls.append(1)
            return tf.constant(0.5)

        configs = {
            "a": generate_test_hash_table_config(1, learning_rate=rate),
            "b": generate_test_hash_table_config(1, learning_rate=rate),
            "c": generate_test_hash_table_config(1, learning_rate=0.25),
        }
        rates = learning_rates.WorkerLearningRates(configs)
        assert len(calls) == 1
        assert rates.configs["c"] is configs["c"]
        rates.unstack_here()
        with tf.compat.v1.Session() as session:
            values = session.run([rates.configs[n].call_learning_rate_fns() for n in "abc"])
        assert [v.tolist() for v in values] == [[0.5], [0.5], [0.25]]
        assert configs["a"].learning_rate_fns == [rate]
