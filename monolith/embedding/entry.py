"""What the rows of a table are made of: optimizers, initializers, compressors, segments.

The config of a whole table is in `config`, and can be imported from here as well.

Each class here is a handful of settings that `as_proto()` turns into the message which the native
table reads. None leaves a setting at the message's default. A setting that the table would refuse
is refused here already, where the traceback shows who wrote it.

Example:
    >>> segment = CombineAsSegment(
    ...     8, ZerosInitializer(), AdagradOptimizer(initial_accumulator_value=1.0), Fp16Compressor()
    ... )
    >>> segment.dim_size, segment.opt_config.adagrad.initial_accumulator_value
    (8, 1.0)
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

from monolith import errors
from monolith.core.export_marker import monolith_export
from monolith.embedding.config import (
    CuckooHashTableConfig,
    HashTableConfig,
    HashTableConfigInstance,
)
from monolith.proto import embedding_hash_table_pb2 as proto

__all__ = [
    "AdaGradWithGroupLassoOptimizer",
    "AdadeltaOptimizer",
    "AdagradOptimizer",
    "AdamOptimizer",
    "AmsgradOptimizer",
    "BatchSoftmaxInitializer",
    "BatchSoftmaxOptimizer",
    "CombineAsSegment",
    "Compressor",
    "ConstantsInitializer",
    "CuckooHashTableConfig",
    "DynamicWdAdagradOptimizer",
    "FTRLWithGroupSparsityOptimizer",
    "FixedR8Compressor",
    "Fp16Compressor",
    "Fp32Compressor",
    "FtrlOptimizer",
    "HashTableConfig",
    "HashTableConfigInstance",
    "Initializer",
    "MomentumOptimizer",
    "MovingAverageOptimizer",
    "OneBitCompressor",
    "Optimizer",
    "RandomUniformInitializer",
    "RmspropOptimizer",
    "RmspropV2Optimizer",
    "SgdOptimizer",
    "StochasticRoundingFloat16OptimizerWrapper",
    "ZerosInitializer",
]

# Settings with a narrower range than all finite numbers, the same that the native table demands.
_NOT_NEGATIVE = {
    "initial_accumulator_value",
    "beta",
    "epsilon",
    "l1_regularization_strength",
    "l2_regularization_strength",
    "warmup_steps",
}
_FRACTIONS = {"averaging_ratio", "beta1", "beta2"}
_POSITIVE = {"r", "step_size", "amplitude", "hessian_compression_times", "dynamic_wd_temperature"}


def _check_settings(obj: Any) -> None:
    for name, value in vars(obj).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not math.isfinite(value):
            rule = "be finite"
        elif name in _NOT_NEGATIVE and value < 0:
            rule = "not be negative"
        elif name in _FRACTIONS and not 0 <= value < 1:
            rule = "lie in [0, 1)"
        elif name in _POSITIVE and value <= 0:
            rule = "be positive"
        else:
            continue
        raise errors.ConfigError(f"`{name}` of {type(obj).__name__} must {rule}, got {value}.")


def _convert_to_proto(obj: Any, message: Any) -> None:
    """Marks `message` as set and copies the attributes of `obj` that are not None into it."""
    _check_settings(obj)  # Again: attributes are public and may have changed since construction.
    message.SetInParent()
    for name, value in vars(obj).items():
        if value is not None:
            setattr(message, name, value)


class Optimizer(abc.ABC):
    """How a segment of a row is updated from its gradient."""

    @abc.abstractmethod
    def as_proto(self) -> proto.OptimizerConfig:
        """Returns the settings as the native table reads them."""


class Initializer(abc.ABC):
    """What a segment of a new row starts with."""

    @abc.abstractmethod
    def as_proto(self) -> proto.InitializerConfig:
        """Returns the settings as the native table reads them."""


class Compressor(abc.ABC):
    """How a segment of a row is stored for serving."""

    @abc.abstractmethod
    def as_proto(self) -> proto.FloatCompressorConfig:
        """Returns the settings as the native table reads them."""


@dataclasses.dataclass(eq=False)
class _Settings:
    """Attributes that are the fields of one message, a member of the oneof of another."""

    _MESSAGE: ClassVar[Callable[[], Any]]
    _MEMBER: ClassVar[str]

    def __post_init__(self) -> None:
        _check_settings(self)

    def as_proto(self) -> Any:
        config = type(self)._MESSAGE()
        _convert_to_proto(self, getattr(config, self._MEMBER))
        return config


class _NamedOptimizer(_Settings, Optimizer):
    _MESSAGE = proto.OptimizerConfig


class _NamedInitializer(_Settings, Initializer):
    _MESSAGE = proto.InitializerConfig


class _NamedCompressor(_Settings, Compressor):
    _MESSAGE = proto.FloatCompressorConfig


@monolith_export
@dataclasses.dataclass(eq=False)
class SgdOptimizer(_NamedOptimizer):
    """`w -= lr * g`. No state."""

    _MEMBER = "sgd"
    learning_rate: float | None = None


@monolith_export
@dataclasses.dataclass(eq=False)
class AdagradOptimizer(_NamedOptimizer):
    """Steps shrink with the sum of squared gradients: `norm += h^2; w -= lr * h / sqrt(norm)`.

    `h = g + weight_decay_factor * w`. `hessian_compression_times` and `warmup_steps` are carried
    along for compatibility and have no effect in the table.
    """

    _MEMBER = "adagrad"
    learning_rate: float | None = None
    initial_accumulator_value: float | None = None
    hessian_compression_times: int = 1
    warmup_steps: int = 0
    weight_decay_factor: float = 0.0


@monolith_export
@dataclasses.dataclass(eq=False)
class AdadeltaOptimizer(_NamedOptimizer):
    """Like Adagrad with decaying averages of squared gradients and of squared updates."""

    _MEMBER = "adadelta"
    learning_rate: float | None = None
    weight_decay_factor: float = 0.0
    averaging_ratio: float = 0.9
    epsilon: float = 0.01
    warmup_steps: int = 0


@monolith_export
@dataclasses.dataclass(eq=False)
class AdamOptimizer(_NamedOptimizer):
    """Adam with bias correction per row; `use_beta1_warmup` has no effect in the table."""

    _MEMBER = "adam"
    learning_rate: float | None = None
    beta1: float = 0.9
    beta2: float = 0.99
    use_beta1_warmup: bool = False
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    epsilon: float = 0.01
    warmup_steps: int = 0


@dataclasses.dataclass(eq=False)
class AmsgradOptimizer(_NamedOptimizer):
    """Adam whose denominator never shrinks."""

    _MEMBER = "amsgrad"
    learning_rate: float | None = None
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    epsilon: float = 0.01
    warmup_steps: int = 0


@monolith_export
@dataclasses.dataclass(eq=False)
class BatchSoftmaxOptimizer(_NamedOptimizer):
    """Estimates how many steps lie between two occurrences of an id; for segments of dim 1.

    The gradient is not used: `w = (1 - lr) * w + lr * (global_step - step of the last update)`.
    """

    _MEMBER = "batch_softmax"
    learning_rate: float | None = None


@monolith_export
@dataclasses.dataclass(eq=False)
class MomentumOptimizer(_NamedOptimizer):
    """`n = momentum * n - lr * (g + weight_decay_factor * w); w += n`, or Nesterov's form of it."""

    _MEMBER = "momentum"
    learning_rate: float | None = None
    weight_decay_factor: float = 0.0
    use_nesterov: bool = False
    momentum: float = 0.9
    warmup_steps: int = 0


@dataclasses.dataclass(eq=False)
class MovingAverageOptimizer(_NamedOptimizer):
    """`w = momentum * w + (1 - momentum) * g`: the row averages what is sent as its gradient."""

    _MEMBER = "moving_average"
    momentum: float = 0.9


@monolith_export
@dataclasses.dataclass(eq=False)
class RmspropOptimizer(_NamedOptimizer):
    """`n = momentum * n + (1 - momentum) * h^2; w -= lr * h / (sqrt(n) + 1)`."""

    _MEMBER = "rmsprop"
    learning_rate: float | None = None
    weight_decay_factor: float = 0.0
    momentum: float = 0.9


@monolith_export
@dataclasses.dataclass(eq=False)
class RmspropV2Optimizer(_NamedOptimizer):
    """`n = momentum * n + h^2; w -= lr * h / (sqrt(n) + 1)`."""

    _MEMBER = "rmspropv2"
    learning_rate: float | None = None
    weight_decay_factor: float = 0.0
    momentum: float = 0.9


@dataclasses.dataclass(eq=False)
class DynamicWdAdagradOptimizer(_NamedOptimizer):
    """Adagrad with weight decay that may be kept apart from the gradient.

    Coupled, it is Adagrad. Decoupled: `norm += g^2; w -= lr * g / sqrt(norm) + lr * wd * w`. What
    `enable_dynamic_wd`, `flip_direction` and `dynamic_wd_temperature` do is defined nowhere; they
    are carried along and have no effect in the table.
    """

    _MEMBER = "dynamic_wd_adagrad"
    learning_rate: float | None = None
    initial_accumulator_value: float | None = None
    hessian_compression_times: int = 1
    warmup_steps: int = 0
    weight_decay_factor: float = 0.0
    decouple_weight_decay: bool = True
    enable_dynamic_wd: bool = True
    flip_direction: bool = True
    dynamic_wd_temperature: float = 1.0


class _FtrlSettings(_NamedOptimizer):
    """The constructor that both kinds of FTRL share."""

    def __init__(
        self,
        learning_rate: float | None = None,
        initial_accumulator_value: float | None = None,
        beta: float | None = None,
        warmup_steps: int = 0,
        l1_regularization: float | None = None,
        l2_regularization: float | None = None,
    ) -> None:
        self.learning_rate = learning_rate
        self.initial_accumulator_value = initial_accumulator_value
        self.beta = beta
        self.warmup_steps = warmup_steps
        self.l1_regularization_strength = l1_regularization
        self.l2_regularization_strength = l2_regularization
        _check_settings(self)


@monolith_export
class FtrlOptimizer(_FtrlSettings):
    """Follow the regularized leader: small weights become exactly 0."""

    _MEMBER = "ftrl"


class FTRLWithGroupSparsityOptimizer(_FtrlSettings):
    """FTRL that zeroes a segment as a whole when the norm of its state is below `l1`.

    The formulas are those of the specification; there is no reference behaviour to compare with.
    """

    _MEMBER = "group_ftrl"


@monolith_export
class AdaGradWithGroupLassoOptimizer(_NamedOptimizer):
    """Adagrad with one accumulator per segment, which zeroes the segment as a whole."""

    _MEMBER = "group_adagrad"

    def __init__(
        self,
        learning_rate: float | None = None,
        beta: float | None = None,
        initial_accumulator_value: float | None = None,
        l2_regularization: float | None = None,
        weight_decay_factor: float = 0.0,
        warmup_steps: int = 0,
    ) -> None:
        self.learning_rate = learning_rate
        self.beta = beta
        self.initial_accumulator_value = initial_accumulator_value
        self.l2_regularization_strength = l2_regularization
        self.weight_decay_factor = weight_decay_factor
        self.warmup_steps = warmup_steps
        _check_settings(self)


class StochasticRoundingFloat16OptimizerWrapper(Optimizer):
    """Rounds the weights to float16 after each step, up or down at random, right on average."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def as_proto(self) -> proto.OptimizerConfig:
        config = self._optimizer.as_proto()
        config.stochastic_rounding_float16 = True
        return config


@monolith_export
class ZerosInitializer(_NamedInitializer):
    """New rows are zeros."""

    _MEMBER = "zeros"


@monolith_export
@dataclasses.dataclass(eq=False)
class ConstantsInitializer(_NamedInitializer):
    """Every element of a new row is `constant`."""

    _MEMBER = "constants"
    constant: float


@dataclasses.dataclass(eq=False)
class RandomUniformInitializer(_NamedInitializer):
    """Elements of a new row are drawn from [minval, maxval), by default [-0.05, 0.05)."""

    _MEMBER = "random_uniform"
    minval: float | None = None
    maxval: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        config = self.as_proto().random_uniform
        if config.minval > config.maxval:
            raise errors.ConfigError(
                "`minval` of RandomUniformInitializer must not be above `maxval`, got "
                f"{config.minval} and {config.maxval}."
            )


class BatchSoftmaxInitializer(_NamedInitializer):
    """The first guess for `BatchSoftmaxOptimizer`: how many steps until an id comes again."""

    _MEMBER = "constants"

    def __init__(self, init_step_interval: float) -> None:
        if not init_step_interval >= 1:
            raise ValueError(f"init_step_interval should be >= 1, while got {init_step_interval}")
        self.constant = init_step_interval
        _check_settings(self)


@monolith_export
@dataclasses.dataclass(eq=False)
class OneBitCompressor(_NamedCompressor):
    """Keeps the sign only: every element is served as `amplitude` or `-amplitude`.

    Training reads the weights through a tanh that grows steeper every `step_size` steps.
    """

    _MEMBER = "one_bit"
    step_size: int = 200
    amplitude: float = 0.05


@monolith_export
class FixedR8Compressor(_NamedCompressor):
    """8 bits per element: 256 even steps in [-fixed_range, fixed_range), the rest is cut off."""

    _MEMBER = "fixed_r8"

    def __init__(self, fixed_range: float = 1.0) -> None:
        self.r = fixed_range
        _check_settings(self)


@monolith_export
class Fp16Compressor(_NamedCompressor):
    """IEEE half precision."""

    _MEMBER = "fp16"


@monolith_export
class Fp32Compressor(_NamedCompressor):
    """No compression."""

    _MEMBER = "fp32"


def CombineAsSegment(
    dim_size: int,
    initializer: Initializer | proto.InitializerConfig,
    optimizer: Optimizer | proto.OptimizerConfig,
    compressor: Compressor | proto.FloatCompressorConfig,
) -> proto.EntryConfig.Segment:
    """Returns one segment of a row; each part is an object of this module or its message."""
    if isinstance(dim_size, bool) or int(dim_size) != dim_size or dim_size <= 0:
        raise errors.ConfigError(f"`dim_size` of a segment must be a positive int, got {dim_size}.")
    segment = proto.EntryConfig.Segment(dim_size=int(dim_size))
    segment.init_config.CopyFrom(_as_proto(initializer))
    segment.opt_config.CopyFrom(_as_proto(optimizer))
    segment.comp_config.CopyFrom(_as_proto(compressor))
    return segment


def _as_proto(config: Any) -> Any:
    return config.as_proto() if hasattr(config, "as_proto") else config
