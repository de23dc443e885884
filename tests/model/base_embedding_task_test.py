"""Tasks for accelerators: their tables, their vocabulary, their input."""

import numpy as np
import pytest
import tensorflow as tf
from support import tpu_tasks

from monolith import errors
from monolith.model.base_embedding_task import (
    STOPPING_SIGNAL,
    BaseEmbeddingTask,
    FeatureConfig,
    TableConfig,
)


def make(**settings):
    return tpu_tasks.Clicks.params().set(name="c", **settings).instantiate()


class TestVocabulary:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "vocab20260131"
        path.write_text("slot_id\tcount\n1\t10\n2\t20\n")
        return str(path)

    def test_precedence(self, path):
        assert make(vocab_file_path=path).get_vocab_size(2) == 20
        task = make(vocab_file_path=path, custom_vocab_size_mapping={2: 7})
        assert (task.get_vocab_size(1), task.get_vocab_size(2)) == (10, 7)
        task = make(
            vocab_file_path=path,
            custom_vocab_size_mapping={2: 7},
            vocab_size_per_slot=5,
            vocab_size_offset=3,
        )
        assert (task.get_vocab_size(1), task.get_vocab_size(2)) == (8, 8)

    def test_by_date(self, path):
        prefix = path.removesuffix("20260131")
        settings = {"train.vocab_file_folder_prefix": prefix, "train.end_date": "20260131"}
        assert make(**settings).get_vocab_size(1) == 10

    def test_nothing_says(self):
        with pytest.raises(AssertionError, match="Either provide vocab_file_path or"):
            make().get_vocab_size(1)

    def test_unknown_slot(self, path):
        with pytest.raises(errors.ConfigError, match="nothing of slot 3"):
            make(vocab_file_path=path).get_vocab_size(3)

    def test_broken_line(self, tmp_path):
        (tmp_path / "v").write_text("1\t2\n3\n")
        with pytest.raises(AssertionError, match=r"Line 2 of .* must have 2 fields"):
            make(vocab_file_path=str(tmp_path / "v")).get_vocab_size(1)


class TestTables:
    def test_features_of_a_slot_share_tables(self):
        class Two(tpu_tasks.Clicks):
            def logits_fn(self):
                return [
                    self.env.lookup("user", 1, 4),
                    self.env.lookup("user", 1, 1),
                    self.env.lookup("friend", 1, 4),
                    self.env.lookup("user", 1, 4),
                ]

        task = Two.params().set(name="t", vocab_size_per_slot=9).instantiate()
        task.init_slot_to_env()
        features, tables = task.create_feature_and_table_config_dict()
        assert features == {
            "user_0": FeatureConfig("table_1_0", "user"),
            "user_1": FeatureConfig("table_1_1", "user"),
            "friend_0": FeatureConfig("table_1_0", "friend"),
        }
        assert tables == {"table_1_0": TableConfig(9, 4), "table_1_1": TableConfig(9, 1)}

    def test_large_slots(self):
        task = make(vocab_size_per_slot=100, qr_multi_hashing=True, qr_hashing_threshold=99)
        task.init_slot_to_env()
        features, tables = task.create_feature_and_table_config_dict()
        assert features == {
            "user_0_0": FeatureConfig("table_1_0_0", "user", divisor=4),
            "user_0_1": FeatureConfig("table_1_0_1", "user", modulus=4),
        }
        # 100 // 4 + 1 and 4 + 1
        assert tables == {"table_1_0_0": TableConfig(26, 4), "table_1_0_1": TableConfig(5, 4)}

    def test_new_features_after_the_first_run(self):
        task = make(vocab_size_per_slot=9)
        task.init_slot_to_env()
        with pytest.raises(
            errors.ConfigError, match="'new' of slot 3 with dim 2 was not looked up"
        ):
            task.env.lookup("new", 3, 2)

    @pytest.mark.usefixtures("graph_mode")
    def test_lookup_in_variables(self):
        task = make(vocab_size_per_slot=10)
        task.init_slot_to_env()
        # Ids 12 and 2 are the same of 10.
        ids = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], np.int64([12, 3, 2]), [3, 2])
        features = task.process_features_for_cpu_test({"user": ids})
        assert task.create_feature_and_table_config_dict() == ({}, {})
        (table,) = tf.compat.v1.global_variables()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            rows, looked_up = session.run([table, features["user_0"]])
        np.testing.assert_allclose(looked_up, [rows[2] + rows[3], rows[2], np.zeros(4)], rtol=1e-6)

    def test_dense_ids(self):
        task = make(vocab_size_per_slot=10)
        task.init_slot_to_env()
        with tf.Graph().as_default(), pytest.raises(errors.ConfigError, match="SparseTensor, got"):
            task.process_features_for_cpu_test({"user": tf.constant([1])})


class TestInput:
    def make_input(self, params, **settings):
        return make(vocab_size_per_slot=9, **settings).create_input_fn("train")(params)

    @pytest.fixture
    def folder(self, tmp_path):
        for day in ("20260101", "20260102"):
            (tmp_path / day / "00").mkdir(parents=True)
            tpu_tasks.write_examples(tmp_path / day / "00" / "part-0")
        return str(tmp_path)

    def test_cpu_test_repeats(self, folder):
        dataset = self.make_input(
            {"cpu_test": True, "batch_size": 500},
            **{"train.file_pattern": f"{folder}/20260101/*/part*"},
        )
        batches = list(dataset.take(3))
        assert [batch["label"].shape[0] for batch in batches] == [500] * 3
        np.testing.assert_array_equal(batches[0]["uid"], batches[1]["uid"])
        np.testing.assert_array_equal(batches[0]["uid_bucket"], batches[0]["uid"].numpy() % 1000)
        assert batches[0]["uid_bucket"].dtype == tf.int32

    @pytest.mark.parametrize(("start", "count"), [("20260101", 1024), ("20260102", 512)])
    def test_dates(self, folder, start, count):
        dataset = self.make_input(
            {"cpu_test": False, "batch_size": 128},
            deterministic=True,
            **{"train.file_folder": folder, "train.start_date": start},
        )
        assert sum(int(batch["label"].shape[0]) for batch in dataset) == count

    def test_hosts_share_the_files(self, folder):
        class Context:
            def __init__(self, index):
                self.index = index

            def current_input_fn_deployment(self):
                return None, self.index, 2, 1

        for index in range(2):
            dataset = self.make_input(
                {"cpu_test": False, "batch_size": 128, "context": Context(index)},
                **{"train.file_folder": folder},
            )
            assert len(list(dataset)) == 4

    def test_stopping_signals(self, folder):
        dataset = self.make_input(
            {"cpu_test": False, "batch_size": 512, "enable_stopping_signals": True},
            **{"train.file_folder": folder},
        )
        signals = [batch[STOPPING_SIGNAL].numpy() for batch in dataset.take(4)]
        assert [s.all() for s in signals] == [s.any() for s in signals] == [0, 0, 1, 1]

    def test_only_to_train(self):
        with pytest.raises(AssertionError, match="for training only"):
            make().create_input_fn("eval")


def test_what_subclasses_must_have():
    task = BaseEmbeddingTask.params().set(name="b").instantiate()
    for call in (task.logits_fn, task._get_feature_map, task.create_model_fn):
        with pytest.raises(NotImplementedError):
            call()
