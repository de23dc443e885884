"""Several tasks that share experts, each through a gate of its own.

Every expert is an MLP over the same inputs; a task's gate weighs them, example by example. Tasks
that agree share experts, tasks that conflict part ways. See Ma et al., "Modeling Task Relationships
in Multi-task Learning with Multi-gate Mixture-of-Experts", KDD 2018.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     click, like = MMoE(num_tasks=2, num_experts=4, expert_units=[64, 16])(tf.ones([8, 32]))
    ...     print(click.shape, like.shape)
    (8, 16) (8, 16)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from monolith.layers import base
from monolith.layers.dense import Dense
from monolith.layers.mlp import MLP


class MMoE(base.Layer):
    """Maps `[batch, dim]` to a list with a tensor `[batch, expert_units[-1]]` for each task.

    Args:
        num_tasks: How many tasks there are; each has a gate.
        num_experts: How many experts they share.
        expert_units: Widths of the layers of each expert.
        activation: Applied after each layer of an expert, the last too.
        kernel_initializer: Of the experts; gates start at zero, so that all experts
            have the same weight at first.
        name: See `base.Layer`.

    Raises:
        ConfigError: A size is not positive, or a name is unknown.
    """

    def __init__(
        self,
        num_tasks: int,
        num_experts: int,
        expert_units: Sequence[int],
        activation: base.Activation = "relu",
        *,
        kernel_initializer: base.Initializer = "glorot_uniform",
        name: str | None = None,
    ) -> None:
        super().__init__(name, default_name="mmoe")
        base.check_units("The num_tasks of an MMoE", num_tasks)
        base.check_units("The num_experts of an MMoE", num_experts)
        self._experts = [
            MLP(
                expert_units,
                activation,
                activation,
                kernel_initializer=kernel_initializer,
                name=f"expert_{i}",
            )
            for i in range(num_experts)
        ]
        self._gates = [
            Dense(
                num_experts,
                "softmax",
                use_bias=False,
                kernel_initializer="zeros",
                name=f"gate_{i}",
            )
            for i in range(num_tasks)
        ]

    def check_inputs(self, inputs: Any) -> tf.Tensor:
        return self.to_tensor(inputs, min_rank=2, max_rank=2)

    def call(self, inputs: tf.Tensor, weights: Mapping[str, Any]) -> list[tf.Tensor]:
        experts = tf.stack([expert(inputs) for expert in self._experts], axis=1)
        return [tf.einsum("be,bed->bd", gate(inputs), experts) for gate in self._gates]
