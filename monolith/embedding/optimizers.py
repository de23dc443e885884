"""Optimizers by name: one object says how the rows of tables, and dense variables, are updated.

`for_rows()` gives what a table takes (`monolith.embedding.entry`), `for_variables()` what updates
the dense part of a model (`tf.compat.v1.train`), by the same formula and with the object's own
learning rate. That is a number, or a schedule: a function without arguments that gives today's
rate, such as `monolith.optimizer.learning_rate.PolynomialDecay`, or one of `keras.optimizers.
schedules`, which is asked for the rate of the global step.

Accumulators start near 0, not at 0.1 as in TensorFlow and Keras: where a loss is the mean over a
batch, the squares of its gradients by rows are far below 0.1, and rows would hardly move.

Example:
    >>> optimizer = Adagrad(0.02, weight_decay=0.001)
    >>> optimizer
    Adagrad(learning_rate=0.02, initial_accumulator=1e-06, weight_decay=0.001)
    >>> optimizer.for_rows().weight_decay_factor, optimizer.for_variables().get_name()
    (0.001, 'Adagrad')
    >>> AMSGrad(0.001).for_variables()
    Traceback (most recent call last):
    ...
    monolith.errors.ConfigError: AMSGrad is for rows only; for dense variables use ml.Adam(0.001).
"""

import abc
import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.optimizer.learning_rate import LearningRateFunction
from monolith.optimizer.rmsprop import RmspropOptimizer

# A number, or a function that gives one or a tensor.
LearningRate: TypeAlias = float | Callable[..., Any]

# Settings of Keras' optimizers that none here has; its weight decay is not part of the gradient.
_ONLY_OF_KERAS = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema")

_SCHEDULES = "PolynomialDecay(...) of monolith.optimizer.learning_rate or a Keras schedule"


@dataclasses.dataclass(frozen=True)
class Optimizer(abc.ABC):
    """Base of the settings below.

    Attributes:
        learning_rate: A number that is not negative, or a schedule.

    Raises:
        ConfigError: A setting is out of its range.
    """

    learning_rate: LearningRate

    def __post_init__(self) -> None:
        rate = self.learning_rate
        if is_keras_schedule(rate):
            object.__setattr__(self, "learning_rate", KerasSchedule(rate))
        elif isinstance(rate, tf.Variable):
            raise errors.ConfigError(
                f"`learning_rate` of {type(self).__name__} is a variable; give a function that "
                "reads it at each step: `lambda: variable`."
            )
        elif not callable(rate):
            self._check_number(
                "learning_rate",
                rate,
                f"be a number that is not negative, or a schedule: {_SCHEDULES}",
            )
            object.__setattr__(self, "learning_rate", float(rate))
        for field in dataclasses.fields(self)[1:]:
            if not isinstance(field.default, bool):
                self._check_number(field.name, getattr(self, field.name), "not be negative")

    @abc.abstractmethod
    def for_rows(self) -> entry.Optimizer:
        """Returns what updates the rows of a table; it takes its rate from `row_learning_rate`.

        Raises:
            ConfigError: Rows have no such optimizer; the message says which to use.
        """

    @abc.abstractmethod
    def for_variables(self) -> tf.compat.v1.train.Optimizer:
        """Returns a new optimizer for dense variables.

        Raises:
            ConfigError: There is none for dense variables; the message says which to use.
        """

    @property
    def _row_rate(self) -> float | None:
        # Only for the record: a table is told the rate of each step.
        return None if callable(self.learning_rate) else self.learning_rate

    def _check_number(self, name: str, value: Any, rule: str) -> None:
        is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < 0:
            raise errors.ConfigError(
                f"`{name}` of {type(self).__name__} must {rule}; got {value!r}."
            )

    def _check_fractions(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) < 1:
                raise errors.ConfigError(
                    f"`{name}` of {type(self).__name__} must lie in [0, 1), got "
                    f"{getattr(self, name)}."
                )


@dataclasses.dataclass(frozen=True)
class SGD(Optimizer):
    """`w -= lr * g`. No state.

    Example:
        >>> SGD(1.0).for_variables().get_name()
        'GradientDescent'
    """

    def for_rows(self) -> entry.Optimizer:
        return entry.SgdOptimizer(self._row_rate)

    def for_variables(self) -> tf.compat.v1.train.Optimizer:
        return tf.compat.v1.train.GradientDescentOptimizer(self.learning_rate)


@dataclasses.dataclass(frozen=True)
class Adagrad(Optimizer):
    """Steps shrink with the sum of squared gradients: `n += h^2; w -= lr * h / sqrt(n)`.

    `h = g + weight_decay * w`, here and below; `n` starts at `initial_accumulator`.
    """

    initial_accumulator: float = 1e-6
    weight_decay: float = 0.0

    def for_rows(self) -> entry.Optimizer:
        return entry.AdagradOptimizer(
            self._row_rate, self.initial_accumulator, weight_decay_factor=self.weight_decay
        )

    def for_variables(self) -> tf.compat.v1.train.Optimizer:
        if self.initial_accumulator == 0:
            raise errors.ConfigError(
                "`initial_accumulator` of Adagrad must be above 0 for dense variables, where a "
                "first gradient of 0 would be divided by it; use 1e-10 or more."
            )
        return _with_decay(tf.compat.v1.train.AdagradOptimizer, self.weight_decay)(
            self.learning_rate, self.initial_accumulator
        )


@dataclasses.dataclass(frozen=True)
class Momentum(Optimizer):
    """`n = momentum * n + h; w -= lr * n`, or Nesterov's form of it.

    Rows keep `lr * n` in place of `n`, which is the same unless the rate changes.
    """

    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_fractions("momentum")

    def for_rows(self) -> entry.Optimizer:
        return entry.MomentumOptimizer(
            self._row_rate, self.weight_decay, self.nesterov, self.momentum
        )

    def for_variables(self) -> tf.compat.v1.train.Optimizer:
        return _with_decay(tf.compat.v1.train.MomentumOptimizer, self.weight_decay)(
            self.learning_rate, self.momentum, use_nesterov=self.nesterov
        )


@dataclasses.dataclass(frozen=True)
class RMSprop(Optimizer):
    """`v = rho*v + (1-rho)*h^2; m = momentum*m + lr*h/sqrt(v+epsilon); w -= m`; not for rows.

    What rows know by this name divides by `sqrt(v) + 1`, which with the small gradients of a mean
    loss is nearly SGD. Adam without momentum is what you want there, and the error says so.
    """

    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_fractions("rho", "momentum")

    def for_rows(self) -> entry.Optimizer:
        raise errors.ConfigError(
            "RMSprop is for dense variables only; for rows use "
            f"ml.Adam({_show(self.learning_rate)}, beta1=0.0, beta2={self.rho})."
        )

    def for_variables(self) -> tf.compat.v1.train.Optimizer:
        return RmspropOptimizer(
            self.learning_rate, self.momentum, self.rho, self.epsilon, self.weight_decay
        )


@dataclasses.dataclass(frozen=True)
class Adadelta(Optimizer):
    """`a = rho*a + (1-rho)*h^2; u = sqrt((b+e)/(a+e))*h; w -= lr*u; b = rho*b + (1-rho)*u^2`."""

    rho: float = 0.95
    epsilon: float = 1e-7
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_fractions("rho")

    def for_rows(self) -> entry.Optimizer:
        return entry.AdadeltaOptimizer(self._row_rate, self.weight_decay, self.rho, self.epsilon)

    def for_variables(self) -> tf.compat.v1.train.Optimizer:
        return _with_decay(tf.compat.v1.train.AdadeltaOptimizer, self.weight_decay)(
            self.learning_rate, self.rho, self.epsilon
        )


@dataclasses.dataclass(frozen=True)
class Adam(Optimizer):
    """`m += (h - m)(1 - b1); v += (h^2 - v)(1 - b2); w -= lr * c * m / (sqrt(v) + epsilon)`.

    `c = sqrt(1 - b2^t) / (1 - b1^t)` in step t. A row counts its own steps, and stands still in a
    batch that it is not in, where its momentum would move a row of a dense variable on.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-7
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_fractions("beta1", "beta2")

    def for_rows(self) -> entry.Optimizer:
        return entry.AdamOptimizer(
            self._row_rate,
            self.beta1,
            self.beta2,
            weight_decay_factor=self.weight_decay,
            epsilon=self.epsilon,
        )

    def for_variables(self) -> tf.compat.v1.train.Optimizer:
        return _with_decay(tf.compat.v1.train.AdamOptimizer, self.weight_decay)(
            self.learning_rate, self.beta1, self.beta2, self.epsilon
        )


@dataclasses.dataclass(frozen=True)
class AMSGrad(Adam):
    """Adam whose `v` below the line is the greatest so far; rows only."""

    def for_rows(self) -> entry.Optimizer:
        return entry.AmsgradOptimizer(
            self._row_rate,
            self.beta1,
            self.beta2,
            weight_decay_factor=self.weight_decay,
            epsilon=self.epsilon,
        )

    def for_variables(self) -> tf.compat.v1.train.Optimizer:
        settings = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        raise errors.ConfigError(
            f"AMSGrad is for rows only; for dense variables use {show(Adam(**settings))}."
        )


@dataclasses.dataclass(frozen=True)
class FTRL(Optimizer):
    """Follow the regularized leader: `l1` makes small weights exactly 0.

    `n' = n + g^2; z += g - (sqrt(n') - sqrt(n)) / lr * w; w = 0` if `abs(z) <= l1`, else
    `lr * (sign(z) * l1 - z) / (sqrt(n') + beta + l2 * lr)`; n starts at `initial_accumulator`.
    TensorFlow's `l2` is half of this one.
    """

    l1: float = 0.0
    l2: float = 0.0
    beta: float = 0.0
    initial_accumulator: float = 1e-6

    def for_rows(self) -> entry.Optimizer:
        return entry.FtrlOptimizer(
            self._row_rate,
            self.initial_accumulator,
            self.beta,
            l1_regularization=self.l1,
            l2_regularization=self.l2,
        )

    def for_variables(self) -> tf.compat.v1.train.Optimizer:
        return _ScheduledFtrl(
            self.learning_rate,
            initial_accumulator_value=self.initial_accumulator,
            l1_regularization_strength=self.l1,
            l2_regularization_strength=self.l2 / 2,
            beta=self.beta,
        )


def to_row_optimizer(optimizer: Any) -> entry.Optimizer:
    """Returns what updates rows, from settings of this module or of `monolith.embedding.entry`.

    Raises:
        ConfigError: It is something else; the message says what to use.

    Example:
        >>> to_row_optimizer(Adagrad(0.02))
        AdagradOptimizer(learning_rate=0.02, ...)
    """
    if isinstance(optimizer, Optimizer):
        return optimizer.for_rows()
    if isinstance(optimizer, entry.Optimizer):
        return optimizer
    raise _refuse(optimizer, "rows of a table")


def to_dense_optimizer(optimizer: Any) -> tf.compat.v1.train.Optimizer:
    """Returns what updates dense variables, from settings of this module or TensorFlow's own.

    Raises:
        ConfigError: It is something else; the message says what to use.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer.for_variables()
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return optimizer
    raise _refuse(optimizer, "dense variables")


def row_learning_rate(optimizer: Any) -> LearningRate:
    """Returns the rate that a table needs beside `to_row_optimizer`: `learning_rate_fn` of a slice.

    Example:
        >>> row_learning_rate(SGD(0.5)), row_learning_rate(entry.SgdOptimizer(0.25))
        (0.5, 0.25)
    """
    if isinstance(optimizer, Optimizer):
        return optimizer.learning_rate
    config = to_row_optimizer(optimizer).as_proto()
    settings = getattr(config, config.WhichOneof("type"))
    # A moving average has no rate, and takes any.
    return settings.learning_rate if hasattr(settings, "learning_rate") else 1.0


def show(optimizer: Optimizer) -> str:
    """Returns the call that makes `optimizer`, without what is left at its default.

    Example:
        >>> show(Adagrad(0.02, initial_accumulator=0.1))
        'ml.Adagrad(0.02, initial_accumulator=0.1)'
    """
    settings = [
        f"{field.name}={getattr(optimizer, field.name)!r}"
        for field in dataclasses.fields(optimizer)[1:]
        if getattr(optimizer, field.name) != field.default
    ]
    arguments = ", ".join([_show(optimizer.learning_rate), *settings])
    return f"ml.{type(optimizer).__name__}({arguments})"


class KerasSchedule(LearningRateFunction):
    """A schedule of Keras, asked for the rate of the global step."""

    def __init__(self, schedule: Any) -> None:
        self.schedule = schedule

    def __call__(self) -> Any:
        return self.schedule(tf.compat.v1.train.get_or_create_global_step())

    def __str__(self) -> str:
        # As that of our own: equal settings are equal texts.
        return f"{type(self.schedule).__name__}({self.schedule.get_config()})"


def is_keras_schedule(rate: Any) -> bool:
    """Whether `rate` is one of `keras.optimizers.schedules`."""
    return _is_of_keras(rate, "LearningRateSchedule")


class _ScheduledFtrl(tf.compat.v1.train.FtrlOptimizer):
    """TensorFlow's, of whose kind it is the only one that does not call a function for its rate."""

    _learning_rate: Any

    def _prepare(self) -> None:
        schedule = self._learning_rate
        self._learning_rate = self._call_if_callable(schedule)
        try:
            super()._prepare()
        finally:
            self._learning_rate = schedule


def _with_decay(base: type, weight_decay: float) -> type:
    """Returns `base`, or if there is decay, a class that adds it to each gradient as rows do."""
    if not weight_decay:
        return base

    class Decayed(base):
        def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
            return super()._resource_apply_dense(grad + weight_decay * var, var)

        def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
            decay = weight_decay * tf.gather(var, indices)
            return super()._resource_apply_sparse(grad + decay, var, indices)

    return Decayed


def _refuse(optimizer: Any, what: str) -> errors.ConfigError:
    if _is_of_keras(optimizer, "BaseOptimizer") or _is_of_keras(optimizer, "Optimizer"):
        name = f"keras.optimizers.{type(optimizer).__name__}"
        replacement = show(_find_replacement(optimizer, of_rows=what.startswith("rows")))
        config = optimizer.get_config()
        lost = [setting for setting in _ONLY_OF_KERAS if config.get(setting)]
        without = f", without its {' and '.join(lost)}" if lost else ""
        return errors.ConfigError(
            f"An optimizer of Keras does not update {what}: use {replacement} instead of "
            f"{name}{without}."
        )
    if isinstance(optimizer, tf.compat.v1.train.Optimizer | entry.Optimizer):
        of = "dense variables" if what.startswith("rows") else "rows of a table"
        found = f"{type(optimizer).__name__}, which is for {of}"
    else:
        found = repr(optimizer)
    return errors.ConfigError(
        f"The optimizer of {what} must be one such as ml.Adagrad(0.05), ml.Adam(0.001) or "
        f"ml.SGD(0.1), got {found}."
    )


def _find_replacement(optimizer: Any, of_rows: bool) -> Optimizer:
    """Returns the settings of this module that come nearest to an optimizer of Keras."""
    config = optimizer.get_config()
    rate: Any = getattr(optimizer, "_learning_rate", None)
    if not is_keras_schedule(rate):
        rate = config.get("learning_rate", 0.001)
        # Keras keeps float32; 0.02 shall not come back as 0.019999999552965164.
        rate = float(f"{rate:.6g}") if isinstance(rate, int | float) else 0.001
    kind = type(optimizer).__name__
    if kind == "Adagrad":
        return Adagrad(rate, config["initial_accumulator_value"])
    if kind == "SGD" and config.get("momentum"):
        return Momentum(rate, config["momentum"], config["nesterov"])
    if kind == "SGD":
        return SGD(rate)
    if kind == "RMSprop" and not of_rows:
        return RMSprop(rate, config["rho"], config["momentum"], config["epsilon"])
    if kind == "RMSprop":
        return Adam(rate, 0.0, config["rho"], config["epsilon"])
    if kind == "Adadelta":
        return Adadelta(rate, config["rho"], config["epsilon"])
    if kind == "Ftrl":
        return FTRL(
            rate,
            config["l1_regularization_strength"],
            2 * config["l2_regularization_strength"],
            config["beta"],
            config["initial_accumulator_value"],
        )
    if kind in ("Adam", "AdamW", "Nadam", "Adamax"):
        of_adam = AMSGrad if config.get("amsgrad") and of_rows else Adam
        return of_adam(rate, config["beta_1"], config["beta_2"], config["epsilon"])
    return Adam(rate)


def _show(rate: LearningRate) -> str:
    if isinstance(rate, KerasSchedule):
        return f"{type(rate.schedule).__name__}(...)"
    return "..." if callable(rate) else f"{rate:g}"


def _is_of_keras(value: Any, name: str) -> bool:
    # By name: whoever has no Keras schedule need not wait for Keras to load.
    return any(
        cls.__name__ == name and cls.__module__.split(".")[0] in ("keras", "tf_keras")
        for cls in type(value).__mro__
    )
