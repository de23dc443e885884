"""Learning rates that a worker computes once for all parameter servers.

A rate that changes with the global step would otherwise be computed on every server, for every
segment of every table, each asking for the step. The worker stacks all of them to one vector, and
each server takes its numbers from that.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from monolith.embedding import entry
from monolith.graph import export_mode

Configs = Mapping[str, entry.HashTableConfigInstance]


class WorkerLearningRates:
    """The functions among the learning rates of some tables, called on the worker.

    Args:
        configs: The tables' configs; they are not changed.
    """

    def __init__(self, configs: Configs) -> None:
        self._functions: list[Callable[[], Any]] = []
        self._here: list[tf.Tensor] = []
        # Graphs of an export know no worker, and eagerly functions are called at each update.
        if export_mode.is_exporting() or tf.executing_eagerly():
            self.configs = configs
            return
        self.configs = {name: self._redirect(config) for name, config in configs.items()}
        if self._functions:
            with tf.name_scope("learning_rate"):
                rates = [tf.cast(function(), tf.float32) for function in self._functions]
                self._vector = tf.stack(rates)

    def unstack_here(self) -> None:
        """Makes `configs` give the rates on the current device, to which they are sent once."""
        if self._functions:
            self._here = tf.unstack(self._vector, len(self._functions))

    def _redirect(self, config: entry.HashTableConfigInstance) -> entry.HashTableConfigInstance:
        if not any(callable(rate) for rate in config.learning_rate_fns):
            return config
        redirected = copy.copy(config)
        redirected._learning_rate_fns = [
            self._rate(rate) if callable(rate) else rate for rate in config.learning_rate_fns
        ]
        return redirected

    def _rate(self, function: Callable[[], Any]) -> Callable[[], tf.Tensor]:
        known = [i for i, other in enumerate(self._functions) if other is function]
        index = known[0] if known else len(self._functions)
        if not known:
            self._functions.append(function)
        return lambda: self._here[index]
