"""Several tables behind one object, one for each slot or shared by equal slots."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from monolith.embedding.tables import multi_type, single
from monolith.native_training import multi_type_hash_table
from monolith.optimizer import learning_rate
from monolith.testing import generate_test_hash_table_config

MERGED_NAME = "e21904dd414d1780e5fc904866dc69c2"  # md5 of "slot0,slot1"


def make_table(slot, config):
    return single.hash_table_from_config(config, name_suffix=slot)


def make_multi_type(configs) -> multi_type.MultiTypeHashTable:
    return multi_type.MultiTypeHashTable(configs, make_table)


def make_merged(configs) -> multi_type.MergedMultiTypeHashTable:
    return multi_type.MergedMultiTypeHashTable(configs, make_multi_type)


def run(fetches):
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        return session.run(fetches)


def to_lists(slot_to_rows):
    return {slot: rows.tolist() for slot, rows in slot_to_rows.items()}


def test_historical_path_gives_the_same_module():
    assert multi_type_hash_table is multi_type


@pytest.fixture
def configs():
    return {f"slot{i}": generate_test_hash_table_config(dim) for i, dim in enumerate([1, 2, 2])}


@pytest.mark.usefixtures("graph_mode")
@pytest.mark.parametrize("make", [make_multi_type, make_merged], ids=["multi", "merged"])
class TestBoth:
    def test_basic(self, configs, make):
        table = make(configs)
        table = table.assign_add(
            {"slot0": ([0], [[1.0]]), "slot1": ([1], [[2.0, 2.0]]), "slot2": ([2], [[4.0, 4.0]])}
        )
        rows = run(table.lookup({"slot0": [0], "slot1": [1], "slot2": [2, 9]}))
        assert to_lists(rows) == {"slot0": [[1]], "slot1": [[2, 2]], "slot2": [[4, 4], [0, 0]]}

    def test_assign(self, configs, make):
        table = make(configs).assign({"slot1": ([1], [[2.0, 2.0]])}, req_time=5)
        table = table.assign({"slot1": ([1], [[3.0, 4.0]])})
        assert to_lists(run(table.lookup({"slot1": [1]}))) == {"slot1": [[3, 4]]}

    def test_slots_that_are_not_mentioned_keep_their_table(self, configs, make):
        table = make(configs)
        first = table.assign({"slot0": ([0], [[1.0]])})
        second = first.assign({"slot1": ([1], [[2.0, 2.0]])})
        rows = run(second.lookup({"slot0": [0], "slot1": [1]}))
        assert to_lists(rows) == {"slot0": [[1]], "slot1": [[2, 2]]}

    def test_apply_gradients(self, make):
        configs = {
            "slot0": generate_test_hash_table_config(1),
            "slot1": generate_test_hash_table_config(2),
        }
        table = make(configs)
        table = table.apply_gradients(
            {"slot0": ([0], [[2.0]]), "slot1": ([1, 2], [[1.0, 3.0], [2.0, 4.0]])},
            0,
            req_time=7,
        )
        rows = run(table.lookup({"slot0": [0], "slot1": [1, 2]}))
        assert to_lists(rows) == {"slot0": [[-2]], "slot1": [[-1, -3], [-2, -4]]}

    def test_gradients_with_decaying_rate(self, make):
        decay = learning_rate.PolynomialDecay(0.1, 10, 1.1)
        table = make(
            {
                "slot0": generate_test_hash_table_config(1, learning_rate=decay),
                "slot1": generate_test_hash_table_config(2, learning_rate=decay),
            }
        )
        step = tf.compat.v1.train.get_or_create_global_step()
        table = table.apply_gradients(
            {"slot0": ([0], [[2.0]]), "slot1": ([1, 2], [[1.0, 3.0], [2.0, 4.0]])}, step
        )
        rows = run(table.lookup({"slot0": [0], "slot1": [1, 2]}))
        np.testing.assert_allclose(rows["slot0"], [[-0.2]], rtol=1e-6)
        np.testing.assert_allclose(rows["slot1"], [[-0.1, -0.3], [-0.2, -0.4]], rtol=1e-6)

    def test_repeated_id_without_lookup(self, make):
        table = make({"slot1": generate_test_hash_table_config(2)})
        table = table.apply_gradients({"slot1": ([2, 2], [[1.1, 3.1], [2.2, 4.2]])}, 0)
        rows = run(table.lookup({"slot1": [2]}))
        np.testing.assert_allclose(rows["slot1"], [[-3.3, -7.3]], rtol=1e-6)

    def test_as_op(self, configs, make):
        table = make(configs).assign({"slot0": ([0], [[1.0]])})
        done = table.as_op(name="all")
        assert done.name == "all/done"
        assert table.as_op().name == "mtht_ao/done"
        with tf.control_dependencies([done]):
            rows = table.lookup({"slot0": [0]})["slot0"]
        assert run(rows).tolist() == [[1]]

    def test_reinitialize_is_not_supported(self, configs, make):
        table = make(configs)
        with pytest.raises(
            NotImplementedError, match=f"^{type(table).__name__} dost not support reinitialize!$"
        ):
            table.reinitialize("slot0", [1])

    def test_queue_hooks(self, configs, make):
        class Hook(tf.compat.v1.train.SessionRunHook):
            pass

        table = make(configs)
        assert table.get_queue_hooks() == []
        outer, inner = Hook(), Hook()
        if isinstance(table, multi_type.MergedMultiTypeHashTable):
            table._table.add_queue_hook(inner)
        table.add_queue_hook(outer)
        expected = [outer, inner] if hasattr(table, "_table") else [outer]
        assert table.get_queue_hooks() == expected


@pytest.mark.usefixtures("graph_mode")
class TestMultiTypeHashTable:
    def test_factory_is_called_in_sorted_order(self):
        calls = []

        def factory(slot, config):
            calls.append((slot, config))
            return make_table(slot, config)

        configs = {slot: generate_test_hash_table_config(1) for slot in ("b", "a", "c")}
        multi_type.MultiTypeHashTable(configs, factory)
        assert calls == [(slot, configs[slot]) for slot in ("a", "b", "c")]

    def test_dim_sizes(self, configs):
        assert make_multi_type(configs).get_table_dim_sizes() == [1, 2, 2]

    def test_unknown_slot(self, configs):
        with pytest.raises(KeyError, match="slot9"):
            make_multi_type(configs).lookup({"slot9": [1]})

    def filled(self, configs):
        return make_multi_type(configs).assign_add(
            {
                "slot0": ([0], [[1.0]]),
                "slot1": ([1], [[2.0, 2.0]]),
                "slot2": ([2, 3], [[4.0, 4.0], [8.0, 8.0]]),
            }
        )

    def test_fused_lookup(self, configs):
        table = self.filled(configs)
        rows, splits, id_offsets, emb_offsets, _ = run(
            table.fused_lookup([0, 1, 2, 3], [1, 1, 2], 1)
        )
        assert rows.tolist() == [1, 2, 2, 4, 4, 8, 8]
        assert splits.tolist() == [7]
        assert id_offsets.tolist() == [0, 1, 2, 4]
        assert emb_offsets.tolist() == [0, 1, 3, 7]

    def test_fused_lookup_of_two_shards(self, configs):
        table = self.filled(configs)
        rows, splits, id_offsets, emb_offsets, _ = run(
            table.fused_lookup([0, 2, 1, 3], [1, 0, 1, 0, 1, 1], 2)
        )
        assert rows.tolist() == [1, 4, 4, 2, 2, 8, 8]
        assert splits.tolist() == [3, 4]
        assert id_offsets.tolist() == [0, 1, 1, 2, 2, 3, 4]
        assert emb_offsets.tolist() == [0, 1, 1, 3, 3, 5, 7]

    def test_fused_apply_gradient(self, configs):
        table = make_multi_type(configs)
        ids, sizes = [0, 2, 1, 3], [1, 0, 1, 0, 1, 1]
        _, _, id_offsets, emb_offsets, indices = table.fused_lookup(ids, sizes, 2)
        table = table.fused_apply_gradient(
            ids,
            indices,
            sizes,
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
            id_offsets,
            emb_offsets,
            0,
            0,
            num_of_shards=2,
        )
        rows = run(table.lookup({"slot0": [0], "slot1": [1], "slot2": [2, 3]}))
        assert to_lists(rows) == {
            "slot0": [[-1]],
            "slot1": [[-4, -5]],
            "slot2": [[-2, -3], [-6, -7]],
        }

    def test_fused_apply_gradient_with_an_unused_table(self):
        # Both shards update id 1 of the first table.
        configs = {f"slot{i}": generate_test_hash_table_config(1) for i in range(2)}
        table = make_multi_type(configs)
        ids, sizes = [1, 1], [1, 0, 1, 0]
        _, _, id_offsets, emb_offsets, indices = table.fused_lookup(ids, sizes, 2)
        table = table.fused_apply_gradient(
            ids, indices, sizes, [1.0, 2.0], id_offsets, emb_offsets, 0, 0, num_of_shards=2
        )
        rows, *_ = run(table.fused_lookup(ids, sizes, 2))
        assert rows.tolist() == [-3, -3]

    def test_fused_learning_rates_are_in_slot_order(self):
        configs = {
            "b": generate_test_hash_table_config(1, learning_rate=10.0),
            "a": generate_test_hash_table_config(1, learning_rate=1.0),
        }
        table = make_multi_type(configs)
        table = table.fused_apply_gradient(
            [1, 2], [1, 2], [1, 1], [1.0, 1.0], [0, 1, 2], [0, 1, 2], 0, 0, num_of_shards=1
        )
        assert to_lists(run(table.lookup({"a": [1], "b": [2]}))) == {"a": [[-1]], "b": [[-10]]}


@pytest.mark.usefixtures("graph_mode")
class TestMergedMultiTypeHashTable:
    def test_equal_configs_share_a_table(self):
        configs = {
            "slot0": generate_test_hash_table_config(1),
            "slot1": generate_test_hash_table_config(1),
            "slot2": generate_test_hash_table_config(2),
        }
        made = []

        def factory(merged_configs):
            made.append(merged_configs)
            return make_multi_type(merged_configs)

        table = multi_type.MergedMultiTypeHashTable(configs, factory)
        slot2_name = hashlib.md5(b"slot2").hexdigest()
        assert table.slot_mapping == {
            "slot0": MERGED_NAME,
            "slot1": MERGED_NAME,
            "slot2": slot2_name,
        }
        (merged_configs,) = made
        assert sorted(merged_configs) == sorted([MERGED_NAME, slot2_name])
        assert merged_configs[MERGED_NAME].table_config is configs["slot0"].table_config
        assert merged_configs[MERGED_NAME].extra_restore_names == []
        assert sorted(table.get_table_dim_sizes()) == [1, 2]

    def test_rows_come_back_to_their_slots(self):
        configs = {f"slot{i}": generate_test_hash_table_config(1) for i in range(3)}
        table = make_merged(configs)
        table = table.assign_add(
            {"slot2": ([4, 5], [[4.0], [5.0]]), "slot0": ([1, 2, 3], [[1.0], [2.0], [3.0]])}
        )
        rows = run(table.lookup({"slot2": [5, 4], "slot1": [], "slot0": [3, 1]}))
        assert to_lists(rows) == {"slot0": [[3], [1]], "slot1": [], "slot2": [[5], [4]]}

    def test_equal_ids_in_merged_slots_are_one_row(self):
        configs = {f"slot{i}": generate_test_hash_table_config(2) for i in (1, 2)}
        table = make_merged(configs)
        table = table.assign_add({"slot1": ([1], [[2.0, 2.0]]), "slot2": ([1], [[4.0, 4.0]])})
        rows = run(table.lookup({"slot1": [1], "slot2": [1]}))
        assert to_lists(rows) == {"slot1": [[6, 6]], "slot2": [[6, 6]]}

    def test_names_of_older_checkpoints(self):
        made = {}

        def factory(merged_configs):
            made.update(merged_configs)
            return make_multi_type(merged_configs)

        config = generate_test_hash_table_config(1)
        config.extra_restore_names.append("given")
        table = multi_type.MergedMultiTypeHashTable({"fc_slot_0": config}, factory)
        merged = made[table.slot_mapping["fc_slot_0"]]
        # md5 of "slot_0", what the table was called when slots had no prefix.
        assert merged.extra_restore_names == ["given", "cde3ba88ba62b682f84241b273f8100c"]
        assert config.extra_restore_names == ["given"]

    def test_only_plain_slot_names_have_had_another_one(self):
        made = {}

        def factory(merged_configs):
            made.update(merged_configs)
            return make_multi_type(merged_configs)

        configs = {
            "fc_slot_user": generate_test_hash_table_config(1),
            "my_fc_slot_1": generate_test_hash_table_config(2),
        }
        multi_type.MergedMultiTypeHashTable(configs, factory)
        assert [config.extra_restore_names for config in made.values()] == [[], []]

    def test_auxiliary_bundle(self):
        configs = {f"slot{i}": generate_test_hash_table_config(1) for i in range(2)}
        table = make_merged(configs)
        assert isinstance(table.lookup({"slot0": [1]}, {}), dict)
        bundle = {"x": tf.constant(1)}
        rows, returned = table.lookup({"slot0": [1]}, bundle)
        assert returned is bundle
        assert list(rows) == ["slot0"]

    def test_ids_that_were_merged_earlier(self):
        configs = {f"slot{i}": generate_test_hash_table_config(1) for i in range(2)}
        calls = []

        class Inner(multi_type.MultiTypeHashTable):
            """Knows its ids already, as the tables of synchronous training do."""

            def lookup(self, slot_to_id, auxiliary_bundle, res_pack):
                calls.append((slot_to_id, auxiliary_bundle, res_pack))
                return {MERGED_NAME: tf.constant([[1.0], [2.0], [3.0]])}, {"kept": 1}

            def apply_gradients(self, slot_to_grad, *args, **kwargs):
                calls.append((slot_to_grad, args, kwargs))
                return self

        table = multi_type.MergedMultiTypeHashTable(
            configs, lambda merged: Inner(merged, make_table)
        )
        rows, bundle = table.lookup(
            {"slot1": None, "slot0": None}, {"given": 2}, ({MERGED_NAME: [1, 2]}, "pack")
        )
        assert calls.pop() == ({MERGED_NAME: None}, {"given": 2}, "pack")
        assert bundle == {"kept": 1}
        assert to_lists(run(rows)) == {"slot0": [[1]], "slot1": [[2], [3]]}

        table.apply_gradients(
            {"slot1": [[2.0], [3.0]], "slot0": [[1.0]]}, 5, skip_merge_id=True, req_time=6
        )
        merged_grads, args, kwargs = calls.pop()
        assert run(merged_grads[MERGED_NAME]).tolist() == [[1], [2], [3]]
        assert (args, kwargs) == ((5,), {"req_time": 6})


@pytest.mark.usefixtures("graph_mode")
def test_extra_restore_names_reach_the_tables():
    make_merged({"fc_slot_0": generate_test_hash_table_config(1)})
    (table,) = tf.compat.v1.get_collection("monolith_hash_tables")
    assert table.extra_restore_names == ["cde3ba88ba62b682f84241b273f8100c"]


def test_eagerly_and_in_a_function():
    configs = {f"slot{i}": generate_test_hash_table_config(i + 1) for i in range(2)}

    def make_eager(slot, config):
        return single.hash_table_from_config(config, name_suffix=f"multi_type_test_{slot}")

    table = multi_type.MultiTypeHashTable(configs, make_eager)

    @tf.function
    def train(ids):
        updated = table.apply_gradients(
            {"slot0": (ids, tf.ones([2, 1])), "slot1": (ids, tf.ones([2, 2]))}, 0
        )
        return updated.lookup({"slot1": ids})["slot1"]

    assert train(tf.constant([1, 2], tf.int64)).numpy().tolist() == [[-1, -1], [-1, -1]]
    assert table.lookup({"slot0": [2]})["slot0"].numpy().tolist() == [[-1]]
