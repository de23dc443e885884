"""What every training task has: its settings, and the two functions that build its graph."""

from collections.abc import Callable
from typing import Any

from monolith.core.hyperparams import InstantiableParams, Params
from monolith.core.naming import get_uname


class BaseTask:
    """A model with its input; subclasses build the graph.

    Example:
        >>> params = BaseTask.params().set(**{"train.max_steps": 100})
        >>> params.instantiate().p.train.max_steps
        100
    """

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the settings with their defaults; subclasses define more."""
        p = InstantiableParams(cls)
        p.define("name", get_uname(cls.__name__), "Name of the task.")
        p.define("accelerator", None, 'Accelerator to use: None, "tpu" or "horovod".')

        p.define("input", Params(), "Input of the task.")
        p.input.define("eval_examples", None, "Number of examples to evaluate on.")
        p.input.define("train_examples", None, "Number of examples to train on.")

        p.define("eval", Params(), "Evaluation.")
        p.eval.define("per_replica_batch_size", None, "Batch size of each replica.")
        p.eval.define("steps_per_eval", 10000, "Training steps between two evaluations.")
        p.eval.define("steps", None, "Number of steps of one evaluation.")

        p.define("train", Params(), "Training.")
        p.train.define("steps", None, "Number of steps to train from where training starts.")
        p.train.define("max_steps", None, "Global step at which training ends.")
        p.train.define("per_replica_batch_size", None, "Batch size of each replica.")
        p.train.define("file_pattern", None, "Files to train on.")
        p.train.define("repeat", False, "Whether the input starts over at its end.")
        p.train.define("label_key", "label", "Name of the feature that holds the label.")
        p.train.define("save_checkpoints_steps", None, "Steps between two checkpoints.")
        p.train.define("save_checkpoints_secs", None, "Seconds between two checkpoints.")
        p.train.define(
            "dense_only_save_checkpoints_secs", None, "Seconds between checkpoints without tables."
        )
        p.train.define(
            "dense_only_save_checkpoints_steps", None, "Steps between checkpoints without tables."
        )
        return p

    def __init__(self, params: InstantiableParams) -> None:
        if not params.name:
            raise AssertionError(f"A {type(self).__name__} needs a name; set `params.name`.")
        self.p = params

    def create_input_fn(self, mode: str) -> Callable[..., Any]:
        """Returns the function that builds the input of the graph."""
        raise NotImplementedError("Abstract method.")

    def create_model_fn(self) -> Callable[..., Any]:
        """Returns the function that builds the model of the graph."""
        raise NotImplementedError("Abstract method.")
