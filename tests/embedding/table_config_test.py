"""The settings of a table: what is refused, and what a file holds of them."""

import json

import keras
import pytest

from monolith import errors
from monolith.embedding import entry, optimizers
from monolith.embedding.table_config import TableConfig, to_compressor, to_initializer
from monolith.optimizer.learning_rate import PolynomialDecay

SGD = optimizers.SGD(0.5)


@pytest.mark.parametrize(
    "config",
    [
        TableConfig("scores", 1, SGD),
        TableConfig("a/b", 3, optimizers.Adam(0.1, beta2=0.5), "zeros", 15, 36500, "fp16"),
        TableConfig("x", 2, optimizers.FTRL(PolynomialDecay(0.1, 10, power=2.0)), 0.25),
        TableConfig("x", 2, entry.AdagradOptimizer(0.1, weight_decay_factor=0.5)),
        TableConfig("x", 2, SGD, entry.RandomUniformInitializer(-1.0, 1.0)),
        TableConfig("x", 2, SGD, compressor=entry.FixedR8Compressor(2.0)),
        TableConfig("x", 2, SGD, keras.initializers.RandomUniform(-0.5, 0.5)),
        TableConfig("x", 2, optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10))),
    ],
    ids=lambda config: type(config.optimizer).__name__,
)
def test_settings_survive_a_file(config):
    read = TableConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert read.make_proto() == config.make_proto()
    assert read.name == config.name
    assert str(read.learning_rate) == str(config.learning_rate)
    assert read.to_dict() == config.to_dict()


def test_function_of_a_learning_rate_is_asked_for_again():
    settings = TableConfig("x", 1, optimizers.SGD(lambda: 0.1)).to_dict()
    with pytest.raises(errors.ConfigError, match=r"function '.*lambda.*', which no file can hold"):
        TableConfig.from_dict(json.loads(json.dumps(settings)))
    settings["optimizer"] = SGD
    assert TableConfig.from_dict(settings).learning_rate == 0.5


def test_a_file_cannot_name_anything_else():
    settings = TableConfig("x", 1, SGD).to_dict()
    for optimizer in (
        {"optimizer": "show", "learning_rate": 1},
        {"message": "EntryDump", "value": {}},
    ):
        with pytest.raises(KeyError):
            TableConfig.from_dict({**settings, "optimizer": optimizer})
    schedule = {"schedule": "LearningRateFunction"}
    with pytest.raises(errors.ConfigError, match="no file can hold"):
        TableConfig.from_dict(
            {**settings, "optimizer": {"optimizer": "SGD", "learning_rate": schedule}}
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": 7}, "needs a name, got 7"),
        ({"dim": 0}, "`dim` of table 'x' must be an int of at least 1, got 0"),
        ({"dim": 2.0}, "`dim` of table 'x' must be"),
        ({"dim": True}, "got True"),
        ({"admit_after": 16}, r"`admit_after` of table 'x' must be an int in \[0, 15\], got 16"),
        ({"admit_after": -1}, "`admit_after`"),
        ({"expire_after_days": 0}, r"must be an int in \[1, 36500\], got 0"),
        ({"expire_after_days": 1.5}, "`expire_after_days`"),
        ({"optimizer": "adam"}, "must be one such as ml.Adagrad"),
        ({"optimizer": keras.optimizers.Adam()}, r"use ml.Adam\(0.001\) instead"),
        ({"optimizer": optimizers.RMSprop(0.1)}, "RMSprop is for dense variables only"),
        ({"initializer": "glorot"}, "'uniform', 'zeros', 'ones', a number, or one of"),
        ({"initializer": keras.initializers.RandomNormal()}, "`initializer` must be 'uniform'"),
        ({"initializer": float("nan")}, "must be finite"),
        ({"compressor": "zip"}, "'fp32', 'fp16', 'fixed_r8', 'one_bit'"),
        ({"compressor": None}, "`compressor` must be"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(errors.ConfigError, match=message):
        TableConfig(**{"name": "x", "dim": 1, "optimizer": SGD, **settings})


def test_initializers():
    assert to_initializer("zeros").as_proto().HasField("zeros")
    assert to_initializer("ones").as_proto().constants.constant == 1.0
    assert to_initializer(0.5).as_proto().constants.constant == 0.5
    assert to_initializer("uniform").as_proto().random_uniform.maxval == pytest.approx(0.05)
    uniform = to_initializer(keras.initializers.RandomUniform(-0.5, 0.25)).as_proto()
    assert (uniform.random_uniform.minval, uniform.random_uniform.maxval) == (-0.5, 0.25)
    for initializer, constant in (
        (keras.initializers.Zeros(), 0.0),
        (keras.initializers.Ones(), 1.0),
        (keras.initializers.Constant(0.25), 0.25),
    ):
        assert to_initializer(initializer).as_proto().constants.constant == constant


def test_compressors():
    assert to_compressor("fp16").as_proto().HasField("fp16")
    assert to_compressor("fixed_r8").as_proto().HasField("fixed_r8")
    assert to_compressor(entry.OneBitCompressor(10)).as_proto().one_bit.step_size == 10


def test_native_config():
    config = TableConfig("x", 3, SGD, expire_after_days=7, compressor="fp16")
    message = config.make_proto()
    assert message.slot_expire_time_config.default_expire_time == 7
    assert message.enable_feature_eviction
    serving = config.make_proto(serving=True)
    assert serving.entry_config.entry_type == type(serving.entry_config).SERVING
    assert not serving.enable_feature_eviction
    assert not TableConfig("x", 3, SGD).make_proto().enable_feature_eviction


def test_steps_are_counted_for_those_who_need_them():
    assert not TableConfig("x", 1, SGD).needs_steps
    assert TableConfig("x", 1, optimizers.SGD(lambda: 0.1)).needs_steps
    assert TableConfig("x", 1, SGD, compressor="one_bit").needs_steps
    assert TableConfig("x", 1, entry.BatchSoftmaxOptimizer(0.1)).needs_steps
