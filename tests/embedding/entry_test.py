"""What the rows of a table are made of, as the messages that the native table reads."""

import math

import pytest

from monolith import errors
from monolith.embedding import entry
from monolith.native_training import entry as historical_entry

# Class, positional arguments, oneof member, fields after conversion. Arguments that are left out
# keep the constructor's default, which the fields show.
OPTIMIZERS = [
    (entry.SgdOptimizer, (0.5,), "sgd", {"learning_rate": 0.5}),
    (
        entry.AdagradOptimizer,
        (0.5, 0.25, 10, 100, 0.125),
        "adagrad",
        {
            "learning_rate": 0.5,
            "initial_accumulator_value": 0.25,
            "hessian_compression_times": 10,
            "warmup_steps": 100,
            "weight_decay_factor": 0.125,
        },
    ),
    (
        entry.AdadeltaOptimizer,
        (0.5, 0.125, 0.75, 0.25, 100),
        "adadelta",
        {
            "learning_rate": 0.5,
            "weight_decay_factor": 0.125,
            "averaging_ratio": 0.75,
            "epsilon": 0.25,
            "warmup_steps": 100,
        },
    ),
    (
        entry.AdamOptimizer,
        (0.5, 0.75, 0.875, True, 0.125, True, 0.25, 100),
        "adam",
        {
            "learning_rate": 0.5,
            "beta1": 0.75,
            "beta2": 0.875,
            "use_beta1_warmup": True,
            "weight_decay_factor": 0.125,
            "use_nesterov": True,
            "epsilon": 0.25,
            "warmup_steps": 100,
        },
    ),
    (
        entry.AmsgradOptimizer,
        (0.5, 0.75, 0.875, 0.125, True, 0.25, 100),
        "amsgrad",
        {
            "learning_rate": 0.5,
            "beta1": 0.75,
            "beta2": 0.875,
            "weight_decay_factor": 0.125,
            "use_nesterov": True,
            "epsilon": 0.25,
            "warmup_steps": 100,
        },
    ),
    (entry.BatchSoftmaxOptimizer, (0.5,), "batch_softmax", {"learning_rate": 0.5}),
    (
        entry.MomentumOptimizer,
        (0.5, 0.125, True, 0.75, 100),
        "momentum",
        {
            "learning_rate": 0.5,
            "weight_decay_factor": 0.125,
            "use_nesterov": True,
            "momentum": 0.75,
            "warmup_steps": 100,
        },
    ),
    (entry.MovingAverageOptimizer, (0.75,), "moving_average", {"momentum": 0.75}),
    (
        entry.RmspropOptimizer,
        (0.5, 0.125, 0.75),
        "rmsprop",
        {"learning_rate": 0.5, "weight_decay_factor": 0.125, "momentum": 0.75},
    ),
    (
        entry.RmspropV2Optimizer,
        (0.5, 0.125, 0.75),
        "rmspropv2",
        {"learning_rate": 0.5, "weight_decay_factor": 0.125, "momentum": 0.75},
    ),
    (
        entry.FTRLWithGroupSparsityOptimizer,
        (0.5, 0.25, 2.0, 100, 0.125, 0.375),
        "group_ftrl",
        {
            "learning_rate": 0.5,
            "initial_accumulator_value": 0.25,
            "beta": 2.0,
            "warmup_steps": 100,
            "l1_regularization_strength": 0.125,
            "l2_regularization_strength": 0.375,
        },
    ),
    (
        entry.AdaGradWithGroupLassoOptimizer,
        (0.5, 2.0, 0.25, 0.375, 0.125, 100),
        "group_adagrad",
        {
            "learning_rate": 0.5,
            "beta": 2.0,
            "initial_accumulator_value": 0.25,
            "l2_regularization_strength": 0.375,
            "weight_decay_factor": 0.125,
            "warmup_steps": 100,
        },
    ),
    (
        entry.DynamicWdAdagradOptimizer,
        (0.5, 0.25, 10, 100, 0.125),
        "dynamic_wd_adagrad",
        {
            "learning_rate": 0.5,
            "initial_accumulator_value": 0.25,
            "hessian_compression_times": 10,
            "warmup_steps": 100,
            "weight_decay_factor": 0.125,
            "decouple_weight_decay": True,
            "enable_dynamic_wd": True,
            "flip_direction": True,
            "dynamic_wd_temperature": 1.0,
        },
    ),
    (
        entry.FtrlOptimizer,
        (0.5, 0.25, 2.0, 100, 0.125, 0.375),
        "ftrl",
        {
            "learning_rate": 0.5,
            "initial_accumulator_value": 0.25,
            "beta": 2.0,
            "warmup_steps": 100,
            "l1_regularization_strength": 0.125,
            "l2_regularization_strength": 0.375,
        },
    ),
]

# Fields that a constructor without arguments sets; all others stay unset, at the proto's default.
OPTIMIZER_DEFAULTS = [
    (entry.SgdOptimizer, "sgd", {}),
    (
        entry.AdagradOptimizer,
        "adagrad",
        {"hessian_compression_times": 1, "warmup_steps": 0, "weight_decay_factor": 0.0},
    ),
    (
        entry.AdadeltaOptimizer,
        "adadelta",
        {
            "weight_decay_factor": 0.0,
            "averaging_ratio": pytest.approx(0.9),
            "epsilon": pytest.approx(0.01),
            "warmup_steps": 0,
        },
    ),
    (
        entry.AdamOptimizer,
        "adam",
        {
            "beta1": pytest.approx(0.9),
            "beta2": pytest.approx(0.99),
            "use_beta1_warmup": False,
            "weight_decay_factor": 0.0,
            "use_nesterov": False,
            "epsilon": pytest.approx(0.01),
            "warmup_steps": 0,
        },
    ),
    (
        entry.AmsgradOptimizer,
        "amsgrad",
        {
            "beta1": pytest.approx(0.9),
            "beta2": pytest.approx(0.99),
            "weight_decay_factor": 0.0,
            "use_nesterov": False,
            "epsilon": pytest.approx(0.01),
            "warmup_steps": 0,
        },
    ),
    (entry.BatchSoftmaxOptimizer, "batch_softmax", {}),
    (
        entry.MomentumOptimizer,
        "momentum",
        {
            "weight_decay_factor": 0.0,
            "use_nesterov": False,
            "momentum": pytest.approx(0.9),
            "warmup_steps": 0,
        },
    ),
    (entry.MovingAverageOptimizer, "moving_average", {"momentum": pytest.approx(0.9)}),
    (
        entry.RmspropOptimizer,
        "rmsprop",
        {"weight_decay_factor": 0.0, "momentum": pytest.approx(0.9)},
    ),
    (
        entry.RmspropV2Optimizer,
        "rmspropv2",
        {"weight_decay_factor": 0.0, "momentum": pytest.approx(0.9)},
    ),
    (entry.FTRLWithGroupSparsityOptimizer, "group_ftrl", {"warmup_steps": 0}),
    (
        entry.AdaGradWithGroupLassoOptimizer,
        "group_adagrad",
        {"weight_decay_factor": 0.0, "warmup_steps": 0},
    ),
    (
        entry.DynamicWdAdagradOptimizer,
        "dynamic_wd_adagrad",
        {
            "hessian_compression_times": 1,
            "warmup_steps": 0,
            "weight_decay_factor": 0.0,
            "decouple_weight_decay": True,
            "enable_dynamic_wd": True,
            "flip_direction": True,
            "dynamic_wd_temperature": 1.0,
        },
    ),
    (entry.FtrlOptimizer, "ftrl", {"warmup_steps": 0}),
]

INITIALIZERS = [
    (entry.ZerosInitializer(), "zeros", {}),
    (entry.ConstantsInitializer(0.5), "constants", {"constant": 0.5}),
    (entry.RandomUniformInitializer(), "random_uniform", {}),
    (
        entry.RandomUniformInitializer(-0.5, 0.25),
        "random_uniform",
        {"minval": -0.5, "maxval": 0.25},
    ),
    (entry.BatchSoftmaxInitializer(5.0), "constants", {"constant": 5.0}),
]

COMPRESSORS = [
    (
        entry.OneBitCompressor(),
        "one_bit",
        {"step_size": 200, "amplitude": pytest.approx(0.05)},
    ),
    (entry.OneBitCompressor(100, 0.5), "one_bit", {"step_size": 100, "amplitude": 0.5}),
    (entry.FixedR8Compressor(), "fixed_r8", {"r": 1.0}),
    (entry.FixedR8Compressor(2.0), "fixed_r8", {"r": 2.0}),
    (entry.Fp16Compressor(), "fp16", {}),
    (entry.Fp32Compressor(), "fp32", {}),
]


def set_fields(config, member: str) -> dict:
    """Returns the fields that are set in the one member of the oneof."""
    assert config.WhichOneof("type") == member
    return {field.name: value for field, value in getattr(config, member).ListFields()}


def test_historical_path_gives_the_same_module():
    assert historical_entry is entry


class TestOptimizers:
    @pytest.mark.parametrize(
        ("optimizer", "arguments", "member", "fields"), OPTIMIZERS, ids=lambda x: str(x)[:20]
    )
    def test_positional_arguments_reach_their_fields(self, optimizer, arguments, member, fields):
        assert set_fields(optimizer(*arguments).as_proto(), member) == fields

    @pytest.mark.parametrize(
        ("optimizer", "member", "fields"), OPTIMIZER_DEFAULTS, ids=lambda x: str(x)[:20]
    )
    def test_none_leaves_the_default_of_the_proto(self, optimizer, member, fields):
        assert set_fields(optimizer().as_proto(), member) == fields

    def test_stochastic_rounding_keeps_the_inner_optimizer(self):
        inner = entry.AdagradOptimizer(0.5, 0.25)
        config = entry.StochasticRoundingFloat16OptimizerWrapper(inner).as_proto()
        assert config.stochastic_rounding_float16
        assert config.adagrad == inner.as_proto().adagrad
        assert not inner.as_proto().stochastic_rounding_float16

    def test_attributes_may_change_before_conversion(self):
        optimizer = entry.SgdOptimizer(0.5)
        optimizer.learning_rate = 0.25
        assert optimizer.as_proto().sgd.learning_rate == 0.25
        optimizer.learning_rate = math.nan
        with pytest.raises(errors.ConfigError, match="`learning_rate` of SgdOptimizer"):
            optimizer.as_proto()

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: entry.SgdOptimizer(math.nan), "`learning_rate` of SgdOptimizer must be fin"),
            (
                lambda: entry.AdagradOptimizer(0.1, -1.0),
                "`initial_accumulator_value` of AdagradOptimizer must not be negative, got -1.0",
            ),
            (lambda: entry.AdadeltaOptimizer(averaging_ratio=1.0), r"lie in \[0, 1\), got 1.0"),
            (lambda: entry.AdamOptimizer(beta1=-0.1), r"`beta1` of AdamOptimizer must lie in"),
            (lambda: entry.AmsgradOptimizer(epsilon=-1), "`epsilon` of AmsgradOptimizer"),
            (lambda: entry.FtrlOptimizer(l1_regularization=-1), "`l1_regularization_strength`"),
            (lambda: entry.AdaGradWithGroupLassoOptimizer(beta=-1), "`beta` of AdaGradWith"),
            (lambda: entry.MomentumOptimizer(warmup_steps=-1), "`warmup_steps` of Momentum"),
        ],
    )
    def test_settings_the_table_would_refuse_are_refused(self, make, message):
        with pytest.raises(errors.ConfigError, match=message):
            make()


class TestInitializers:
    @pytest.mark.parametrize(("initializer", "member", "fields"), INITIALIZERS)
    def test_as_proto(self, initializer, member, fields):
        assert set_fields(initializer.as_proto(), member) == fields

    def test_random_uniform_defaults(self):
        config = entry.RandomUniformInitializer().as_proto().random_uniform
        assert config.minval == pytest.approx(-0.05)
        assert config.maxval == pytest.approx(0.05)

    def test_random_uniform_bounds_in_the_wrong_order(self):
        with pytest.raises(errors.ConfigError, match="must not be above `maxval`"):
            entry.RandomUniformInitializer(minval=0.5)

    @pytest.mark.parametrize("interval", [0.5, 0, -1, math.nan])
    def test_batch_softmax_interval_below_one(self, interval):
        with pytest.raises(ValueError, match=f"should be >= 1, while got {interval}$"):
            entry.BatchSoftmaxInitializer(interval)


class TestCompressors:
    @pytest.mark.parametrize(("compressor", "member", "fields"), COMPRESSORS)
    def test_as_proto(self, compressor, member, fields):
        assert set_fields(compressor.as_proto(), member) == fields

    @pytest.mark.parametrize(
        "make",
        [
            lambda: entry.FixedR8Compressor(0.0),
            lambda: entry.OneBitCompressor(amplitude=-0.1),
            lambda: entry.OneBitCompressor(step_size=0),
        ],
    )
    def test_ranges_must_be_positive(self, make):
        with pytest.raises(errors.ConfigError, match="must be positive, got"):
            make()


class TestCombineAsSegment:
    def test_objects_and_messages_are_both_taken(self):
        initializer, optimizer = entry.ConstantsInitializer(0.5), entry.SgdOptimizer(0.25)
        compressor = entry.Fp16Compressor()
        segment = entry.CombineAsSegment(5, initializer, optimizer, compressor)
        assert segment == entry.CombineAsSegment(
            5, initializer.as_proto(), optimizer.as_proto(), compressor.as_proto()
        )
        assert segment.dim_size == 5
        assert segment.init_config.constants.constant == 0.5
        assert segment.opt_config.sgd.learning_rate == 0.25
        assert segment.comp_config.WhichOneof("type") == "fp16"

    @pytest.mark.parametrize("dim", [0, -1, 1.5, True])
    def test_dim_must_be_a_positive_int(self, dim):
        with pytest.raises(errors.ConfigError, match=f"must be a positive int, got {dim}"):
            entry.CombineAsSegment(
                dim, entry.ZerosInitializer(), entry.SgdOptimizer(), entry.Fp32Compressor()
            )


def test_public_classes_are_marked():
    marked = {
        name
        for name, value in vars(entry).items()
        if isinstance(value, type) and hasattr(value, "__monolith_doc")
    }
    assert marked == {
        "SgdOptimizer",
        "AdagradOptimizer",
        "AdadeltaOptimizer",
        "AdamOptimizer",
        "BatchSoftmaxOptimizer",
        "MomentumOptimizer",
        "RmspropOptimizer",
        "RmspropV2Optimizer",
        "AdaGradWithGroupLassoOptimizer",
        "FtrlOptimizer",
        "ZerosInitializer",
        "ConstantsInitializer",
        "OneBitCompressor",
        "FixedR8Compressor",
        "Fp16Compressor",
        "Fp32Compressor",
    }
