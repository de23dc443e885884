"""A model without embeddings that ranks train together: they average its gradients.

There are no tables, but all else is as with them: ranks save and stop after the same step, each
goes on where it was in its input, and they end together.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monolith.graph import collectives
from monolith.graph.mode_keys import ModeKeys
from monolith.training.graph.estimator import GraphRunConfig, GraphSpec
from monolith.training.hooks import end_of_input
from monolith.training.hooks.step_gate import StepGate
from monolith.training.tables.hooks import TrainingHooks

if TYPE_CHECKING:
    from monolith.training.tables.training import CpuTraining


def build(
    training: "CpuTraining",
    model_fn: Callable[..., GraphSpec],
    features: Any,
    mode: str,
    run_config: GraphRunConfig,
    is_chief: bool,
) -> GraphSpec:
    """Builds the model of a graph, with the hooks of a rank if it is to be trained.

    A model in whose steps ranks do nothing together, such as one that applies its gradients as they
    are, is not saved together either, and its ranks wait for each other at the end alone.

    Args:
        training: The task.
        model_fn: The model function of the task.
        features: What it gets, perhaps with what an `EofAwareTask` says of the batch.
        mode: What the graph is for.
        run_config: How to run.
        is_chief: Whether this rank saves.
    """
    if mode != ModeKeys.TRAIN:
        return model_fn(features, mode, run_config)
    features, is_last, is_idle = end_of_input.split_flags(features)
    flags = end_of_input.agree_in_steps(is_last, is_idle)
    collectives.average_gradients()
    spec = model_fn(features, mode, run_config)
    step = [spec.train_op, spec.loss]
    if flags is not None and is_last is not None:
        end_hook = end_of_input.EofHook(is_last, step, flags)
        spec = spec._replace(training_hooks=(end_hook, *spec.training_hooks))
    if collectives.size() > 1 and not end_of_input.has_collectives(step):
        return spec
    hooks = TrainingHooks(
        training.config,
        training.task,
        run_config.model_dir or "",
        is_chief,
        hash_filters=[],
        enable_hash_filter=False,
        training=training,
        step_gate=StepGate(),
        rank_flags=flags,
    ).create_for_training()
    return spec._replace(
        training_hooks=(*hooks.first, *spec.training_hooks, *hooks.last),
        training_chief_hooks=(
            *hooks.chief,
            *(spec.training_chief_hooks if is_chief else ()),
        ),
    )
