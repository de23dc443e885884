"""What runs a registered task on some kind of machine."""

import abc
from collections.abc import Mapping
from typing import Any

import tensorflow as tf


class BaseRunner(abc.ABC):
    """Runs a task; subclasses say how."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs  # Those of subclasses.

    @abc.abstractmethod
    def run(self) -> None:
        """Trains or evaluates, as asked for."""

    def write_summary(
        self, logs: Mapping[str, Any], summary_writer: Any, current_step: int
    ) -> None:
        """Writes numbers for TensorBoard.

        Args:
            logs: The numbers, by name.
            summary_writer: A `tf.compat.v1.summary.FileWriter`.
            current_step: The step they belong to.
        """
        values = [
            tf.compat.v1.Summary.Value(tag=name, simple_value=float(value))
            for name, value in logs.items()
        ]
        summary_writer.add_summary(tf.compat.v1.Summary(value=values), current_step)
