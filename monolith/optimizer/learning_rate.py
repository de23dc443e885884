"""Learning rates that change with the global step.

A learning-rate function is called when the graph is built and gives a tensor; called eagerly, it
gives today's rate. Its text holds its settings, so that two tables with equal functions count as
equal and can share their rows.

Example:
    >>> rate = PolynomialDecay(0.01, decay_steps=10, end_learning_rate=0.11)
    >>> print(rate)  # doctest: +NORMALIZE_WHITESPACE
    LearningRateFunction("PolynomialDecay",Params:cycle=False,decay_steps=10,end_learning_rate=0.11,\
initial_learning_rate=0.01,name=None,power=1.0)
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     tensor = rate()
    ...     session.run(tf.compat.v1.global_variables_initializer())
    ...     print(round(float(session.run(tensor)), 6))
    0.01
"""

from typing import Any

import tensorflow as tf


class LearningRateFunction:
    """Base of learning-rate functions: settings are attributes, the rate is what a call gives."""

    def __call__(self) -> Any:
        """Returns the learning rate, a scalar float32."""
        raise NotImplementedError("Learning rate function must override __call__")

    def __str__(self) -> str:
        settings = ",".join(f"{name}={value}" for name, value in sorted(vars(self).items()))
        return f'LearningRateFunction("{type(self).__name__}",Params:{settings})'


class PolynomialDecay(LearningRateFunction):
    """Goes from one rate to another over a number of steps, and stays there.

    The rate may also grow. `tf.compat.v1.train.polynomial_decay` explains the settings; the step is
    the global step, which is created if the graph has none.
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str | None = None,
    ) -> None:
        self.initial_learning_rate = initial_learning_rate
        self.decay_steps = decay_steps
        self.end_learning_rate = end_learning_rate
        self.power = power
        self.cycle = cycle
        self.name = name

    def __call__(self) -> Any:
        rate = tf.compat.v1.train.polynomial_decay(
            learning_rate=self.initial_learning_rate,
            global_step=tf.compat.v1.train.get_or_create_global_step(),
            decay_steps=self.decay_steps,
            end_learning_rate=self.end_learning_rate,
            power=self.power,
            cycle=self.cycle,
            name=self.name,
        )
        # Eagerly, TensorFlow gives a function instead of a tensor.
        return rate() if callable(rate) else rate
