"""The tables and filters of a training, with thresholds and expiry of slots and of tables."""

import os

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.tables import registry
from monolith.graph.run_config import GraphRunConfig
from monolith.native_training import cpu_training, feature, native_task
from monolith.proto import embedding_hash_table_pb2 as proto
from monolith.testing import generate_test_hash_table_config
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.graph.estimator import GraphEstimator, GraphSpec, ModeKeys
from monolith.training.tables import create
from monolith.training.tables.collect import Collected, FeatureConfigs

pytestmark = pytest.mark.usefixtures("graph_mode")

DIM = 2
# Id 1 comes once in each batch, id 2 twice.
IDS = [[1, 2], [2]]


def make_config(**settings) -> entry.HashTableConfigInstance:
    config = generate_test_hash_table_config(1)
    entry.CuckooHashTableConfig(**settings).mutate_table(config.table_config)
    return config


class TestFilters:
    @pytest.mark.parametrize(
        ("slots", "tables", "expected"),
        [
            ({}, {}, "MonolithDummyHashFilter"),
            ({1: 0}, {"admit_after": 0}, "MonolithDummyHashFilter"),
            ({1: 3}, {}, "MonolithHashFilter"),
            ({}, {"admit_after": 1}, "MonolithHashFilter"),
            ({1: 0}, {"admit_after": 15}, "MonolithHashFilter"),
        ],
    )
    def test_there_is_one_if_a_slot_or_a_table_needs_it(self, slots, tables, expected):
        configs = {"user": make_config(**tables), "movie": make_config()}
        (made,) = create.create_hash_filters(CpuTrainingConfig(), slots, configs)
        assert made.op.type == expected
        assert create.uses_hash_filter(slots, configs) == (expected == "MonolithHashFilter")

    def test_one_for_each_server(self):
        made = create.create_hash_filters(
            CpuTrainingConfig(num_ps=2), {}, {"user": make_config(admit_after=2)}
        )
        assert [f.op.type for f in made] == ["MonolithHashFilter"] * 2

    def test_no_filter_is_refused_where_a_table_needs_one(self):
        config = CpuTrainingConfig(filter_type="no_filter")
        create.create_hash_filters(config, {}, {"user": make_config(admit_after=0)})
        with pytest.raises(
            errors.ConfigError,
            match="The table of feature 'user' admits ids after 2 occurrences, but `filter_type` "
            "is 'no_filter', which holds none back; choose another filter, or leave",
        ):
            create.create_hash_filters(config, {}, {"user": make_config(admit_after=2)})

    def test_more_than_a_filter_counts_is_refused(self):
        configs = {"user": make_config(admit_after=16)}
        with pytest.raises(
            errors.ConfigError,
            match="'user' admits ids after 16 occurrences, but a 'sliding_hash_filter' counts to "
            "15; lower `admit_after`, or set `filter_type` to 'probabilistic_filter'",
        ):
            create.create_hash_filters(CpuTrainingConfig(), {}, configs)
        config = CpuTrainingConfig(filter_type="probabilistic_filter")
        (made,) = create.create_hash_filters(config, {}, configs)
        assert made.op.type == "MonolithProbabilisticFilter"


class TestExpiry:
    def create(self, configs, slot_to_expire_time):
        collected = Collected(
            FeatureConfigs(configs, {}, {}),
            {name: name for name in configs},
            {},
            slot_to_expire_time,
        )
        config = CpuTrainingConfig(use_native_multi_hash_table=True)
        create.create_hash_table(config, configs, collected, [None])
        (known,) = registry.get_tables()
        serialized = tf.get_static_value(known.table.initializer.inputs[0])
        made = proto.MultiEmbeddingHashTableConfig.FromString(serialized.item())
        return dict(zip(made.names, made.configs, strict=True))

    def test_a_table_keeps_its_own(self):
        configs = {"slots": make_config(), "own": make_config(expire_after_days=30)}
        made = self.create(configs, {7: 3, 8: 4})
        times = made["slots"].slot_expire_time_config
        assert [(t.slot, t.expire_time) for t in times.slot_expire_times] == [(7, 3), (8, 4)]
        assert not times.HasField("default_expire_time")
        # Its ids may have any bits: those of slot 7 must not live for 3 days.
        own = made["own"].slot_expire_time_config
        assert own.default_expire_time == 30
        assert not own.slot_expire_times

    def test_configs_of_the_caller_stay_as_they_are(self):
        configs = {"user": make_config()}
        self.create(configs, {7: 3})
        assert not configs["user"].table_config.HasField("slot_expire_time_config")


class TwoFeaturesTask(native_task.NativeTask):
    """Two features with the same small ids, each with a table of its own; every gradient is 1."""

    @classmethod
    def params(cls):
        p = super().params()
        p.define("repeat", 1, "Number of batches.")
        p.define("admit_after", {}, "By feature.")
        return p

    def create_input_fn(self, mode):
        def input_fn():
            ids = tf.ragged.constant(IDS, dtype=tf.int64, ragged_rank=1)
            data = dict.fromkeys(self.p.admit_after, ids)
            return tf.data.Dataset.from_tensors(data).repeat(self.p.repeat)

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            columns, embeddings = [], {}
            for name, admit_after in self.p.admit_after.items():
                slot = self.ctx.create_feature_slot(
                    feature.FeatureSlotConfig(
                        name=name,
                        default_vec_initializer=entry.ZerosInitializer(),
                        default_vec_optimizer=entry.SgdOptimizer(1.0),
                        hashtable_config=entry.CuckooHashTableConfig(admit_after=admit_after),
                    )
                )
                vector = slot.add_feature_slice(DIM, learning_rate_fn=1.0)
                columns.append(feature.FeatureColumnV1(slot, name))
                embeddings[name] = columns[-1].embedding_lookup(vector)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions=embeddings)
            loss = tf.add_n([tf.reduce_sum(embedding) for embedding in embeddings.values()])
            rows = [column.get_all_embeddings_concat() for column in columns]
            update = self.ctx.apply_embedding_gradients(
                zip(tf.gradients(loss, rows), rows, strict=True)
            )
            with tf.control_dependencies([update]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            return GraphSpec(mode, loss=loss, train_op=step)

        return model_fn


def train(model_dir, repeat, native, **admit_after):
    """Trains on, and returns the embeddings of the examples by feature."""
    params = TwoFeaturesTask.params().set(repeat=repeat, admit_after=admit_after)
    training = cpu_training.CpuTraining(
        CpuTrainingConfig(use_native_multi_hash_table=native, filter_capacity=10000),
        params.instantiate(),
    )
    estimator = GraphEstimator(
        training.create_model_fn(), config=GraphRunConfig(model_dir=os.fspath(model_dir))
    )
    estimator.train(training.create_input_fn(ModeKeys.TRAIN))
    input_fn = training.create_input_fn(ModeKeys.PREDICT)
    predictions = list(estimator.predict(lambda: input_fn().take(1)))
    return {name: [float(p[name][0]) for p in predictions] for name in admit_after}


def expect(admit_after, batches) -> list[float]:
    """What SGD makes of rows that exist from the first update after `admit_after` occurrences."""
    row = {1: 0.0, 2: 0.0}
    for number in range(batches):
        for identity, occurrences in ((1, 1), (2, 2)):
            if number * occurrences >= admit_after:
                row[identity] -= occurrences  # The gradients of equal ids are summed.
    return [row[1] + row[2], row[2]]


@pytest.mark.parametrize("native", [True, False], ids=["native_multi_table", "merged_tables"])
def test_features_with_the_same_ids_are_admitted_each_by_its_own_threshold(native, tmp_path):
    found = train(tmp_path, 5, native, user=2, movie=4)
    assert found == {"user": expect(2, 5), "movie": expect(4, 5)}
    assert expect(2, 5) == [-3 - 8, -8]  # Id 1 from the third batch on, id 2 from the second.
    assert list((tmp_path / "model.ckpt-5.assets").glob("hash_filter_0-*"))


@pytest.mark.parametrize("native", [True, False], ids=["native_multi_table", "merged_tables"])
def test_counts_go_on_after_a_restart(native, tmp_path):
    assert train(tmp_path, 2, native, user=3, movie=5) == {"user": [0, 0], "movie": [0, 0]}
    found = train(tmp_path, 4, native, user=3, movie=5)
    assert found == {"user": expect(3, 6), "movie": expect(5, 6)}


def test_local_servers(tmp_path):
    params = TwoFeaturesTask.params().set(repeat=5, admit_after={"user": 1, "movie": 3})
    estimator = cpu_training.local_train_internal(
        params,
        CpuTrainingConfig(num_ps=2, filter_capacity=10000),
        os.fspath(tmp_path),
        steps=5,
    )
    input_fn = params.instantiate().create_input_fn(ModeKeys.PREDICT)
    predictions = list(estimator.predict(lambda: input_fn().take(1)))
    # Workers send an id once for a batch, so it is counted once: rows are there from the second
    # and from the fourth batch on.
    for name, updates in (("user", 4), ("movie", 2)):
        found = [p[name][0] for p in predictions]
        np.testing.assert_allclose(found, [-updates - 2 * updates, -2 * updates])
