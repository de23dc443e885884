"""The config of a whole table."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import config as table_configs
from monolith.embedding import entry
from monolith.optimizer import learning_rate
from monolith.proto import embedding_hash_table_pb2 as proto


def make_table_config(dim: int = 2) -> proto.EmbeddingHashTableConfig:
    config = proto.EmbeddingHashTableConfig()
    table_configs.CuckooHashTableConfig().mutate_table(config)
    config.entry_config.segments.append(
        entry.CombineAsSegment(
            dim, entry.ZerosInitializer(), entry.SgdOptimizer(0.01), entry.Fp32Compressor()
        )
    )
    return config


class TestCuckooHashTableConfig:
    def test_defaults_do_not_evict(self):
        config = proto.EmbeddingHashTableConfig()
        table_configs.CuckooHashTableConfig().mutate_table(config)
        assert config.WhichOneof("type") == "cuckoo"
        assert config.initial_capacity == 1
        assert not config.enable_feature_eviction
        assert not config.HasField("feature_evict_every_n_hours")

    def test_eviction_period(self):
        config = proto.EmbeddingHashTableConfig()
        table_configs.CuckooHashTableConfig(100, 12).mutate_table(config)
        assert config.initial_capacity == 100
        assert config.enable_feature_eviction
        assert config.feature_evict_every_n_hours == 12

    @pytest.mark.parametrize("arguments", [(-1,), (1, -1)])
    def test_negative_numbers_are_refused(self, arguments):
        with pytest.raises(errors.ConfigError, match="must not be negative, got -1"):
            table_configs.CuckooHashTableConfig(*arguments)

    def test_threshold_and_expiry_are_left_to_the_slots(self):
        config = proto.EmbeddingHashTableConfig()
        table_configs.CuckooHashTableConfig().mutate_table(config)
        assert not config.HasField("occurrence_threshold")
        assert not config.HasField("slot_expire_time_config")

    @pytest.mark.parametrize(("admit_after", "days"), [(0, 1), (2, 30), (2**32 - 1, 2**32 - 1)])
    def test_threshold_and_expiry_of_the_table(self, admit_after, days):
        config = proto.EmbeddingHashTableConfig()
        table_configs.CuckooHashTableConfig(
            admit_after=admit_after, expire_after_days=np.int64(days)
        ).mutate_table(config)
        assert config.HasField("occurrence_threshold")
        assert config.occurrence_threshold == admit_after
        assert config.slot_expire_time_config.default_expire_time == days

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"admit_after": -1}, "`admit_after` .* whole number from 0 to .*, got -1"),
            ({"admit_after": 1.5}, "got 1.5"),
            ({"admit_after": True}, "got True"),
            ({"admit_after": "2"}, "got '2'"),
            ({"admit_after": 2**32}, "got 4294967296"),
            ({"expire_after_days": 0}, "`expire_after_days` .* from 1 to .*, got 0"),
            ({"expire_after_days": -3}, "got -3"),
            ({"expire_after_days": float("nan")}, "got nan"),
        ],
    )
    def test_odd_thresholds_and_times_are_refused(self, settings, message):
        with pytest.raises(errors.ConfigError, match=message):
            table_configs.CuckooHashTableConfig(**settings)


class TestHashTableConfigInstance:
    def test_text_is_equal_for_equal_configs(self):
        config = make_table_config()
        numbers = [
            table_configs.HashTableConfigInstance(make_table_config(), [0.1]) for _ in range(2)
        ]
        decays = [
            table_configs.HashTableConfigInstance(
                make_table_config(), [learning_rate.PolynomialDecay(0.01, 20, 0.05)]
            )
            for _ in range(2)
        ]
        assert str(numbers[0]) == str(numbers[1])
        assert str(decays[0]) == str(decays[1])
        assert str(numbers[0]) != str(decays[0])
        assert str(numbers[0]) == (
            f"TableConfigPB: {config.SerializeToString()}, LearningRateFns: [0.1]"
        )

    def test_text_lists_the_functions_of_all_segments(self):
        config = table_configs.HashTableConfigInstance(proto.EmbeddingHashTableConfig(), [0.1, 0.2])
        assert str(config) == "TableConfigPB: b'', LearningRateFns: [0.1, 0.2]"

    def test_text_differs_for_other_dims(self):
        one, two = (
            table_configs.HashTableConfigInstance(make_table_config(d), [0.1]) for d in (1, 2)
        )
        assert str(one) != str(two)

    def test_extra_restore_names_are_a_copy(self):
        names = ["old"]
        config = table_configs.HashTableConfigInstance(make_table_config(), [0.1], names)
        names.append("older")
        assert config.extra_restore_names == ["old"]
        assert (
            table_configs.HashTableConfigInstance(make_table_config(), [0.1]).extra_restore_names
            == []
        )

    def test_properties(self):
        table_config, rates = make_table_config(), [0.1]
        config = table_configs.HashTableConfigInstance(table_config, rates)
        assert config.table_config is table_config
        assert config.learning_rate_fns is rates
        assert config.learning_rate_tensor is None
        tensor = tf.constant([0.1])
        config.set_learning_rate_tensor(tensor)
        assert config.learning_rate_tensor is tensor

    @pytest.mark.usefixtures("graph_mode")
    def test_learning_rates_are_called_and_stacked(self):
        config = table_configs.HashTableConfigInstance(
            make_table_config(), [1, 0.5, lambda: 0.25, tf.constant(0.125, tf.float64)]
        )
        rates = config.call_learning_rate_fns()
        assert rates.dtype == tf.float32
        assert rates.shape == [4]
        assert rates.name.startswith("learning_rate/")
        with tf.compat.v1.Session() as session:
            assert session.run(rates).tolist() == [1.0, 0.5, 0.25, 0.125]

    def test_fewer_ops_gives_a_plain_list(self):
        config = table_configs.HashTableConfigInstance(make_table_config(), [0.5, lambda: 0.25])
        assert config.call_learning_rate_fns_fewer_ops() == [0.5, 0.25]

    def test_no_learning_rates(self):
        config = table_configs.HashTableConfigInstance(make_table_config(), [])
        for call in (config.call_learning_rate_fns, config.call_learning_rate_fns_fewer_ops):
            with pytest.raises(Exception, match=r"^Learning_rate_fns must be not empty\.$"):
                call()
