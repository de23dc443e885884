"""Tasks whose embeddings live in Monolith's tables: the settings, and what builds the graph.

A task is a model with its input. The training loop hands it a context before it calls the model
function; through it the model declares its features and applies the gradients of their rows,
without knowing where the rows are.

Example:
    >>> class MyTask(NativeTask):
    ...     def create_input_fn(self, mode): ...
    ...     def create_model_fn(self): ...
    >>> params = MyTask.params().set(**{"train.max_steps": 100})
    >>> params.serving.export_dir_base
    'exported_models'
    >>> params.instantiate().ctx.feature_factory is None
    True
"""

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from monolith.core.hyperparams import InstantiableParams, Params
from monolith.embedding.tables.touched_keys import TOUCHED_KEY_SET_CAPACITY
from monolith.graph.export_mode import ExportMode
from monolith.graph.mode_keys import ModeKeys
from monolith.model.base_task import BaseTask
from monolith.tensor.prefetch import AsyncFunctionMgr


class NativeContext:
    """What the training loop gives to a model function.

    Args:
        feature_factory: Makes feature slots and applies their gradients.
        async_function_mgr: Runs functions one step late.
        layout_factory: Does the same as `feature_factory` for embeddings that arrive in fused
            layouts.

    Raises:
        ValueError: Both factories are given.
    """

    def __init__(
        self,
        feature_factory: Any = None,
        async_function_mgr: AsyncFunctionMgr | None = None,
        layout_factory: Any = None,
    ) -> None:
        if feature_factory is not None and layout_factory is not None:
            raise ValueError("Cannot set feature_factory and layout_factory in the same time")
        self.feature_factory = feature_factory
        self.async_function_mgr = async_function_mgr
        self.layout_factory = layout_factory

    def create_feature_slot(self, config: Any) -> Any:
        """Declares a slot and returns it, ready to get slices.

        Args:
            config: The `FeatureSlotConfig` of the slot.
        """
        return self._factory("create_feature_slot").create_feature_slot(config)

    def apply_embedding_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], scale: Any = 1
    ) -> Any:
        """Returns the op that applies gradients to rows of the tables.

        Args:
            grads_and_vars: Pairs of a gradient and the embedding it belongs to.
            scale: Multiplies the gradients. Fused layouts scale on their own and do not take it.
        """
        factory = self._factory("apply_embedding_gradients")
        if self.layout_factory is not None:
            return factory.apply_gradients(grads_and_vars)
        return factory.apply_gradients(grads_and_vars, scale=scale)

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> Any:
        """Builds `target(*args, **kwargs)`, one step late if it is asynchronous.

        Args:
            target: Adds ops to the graph and returns them.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            is_async: Whether it runs late; None leaves that to the manager's setting.
            queue_name: Name of the queue that keeps the arguments until they are used.

        Returns:
            The op that hands over the arguments if it is asynchronous, else what `target` returns.
        """
        if self.async_function_mgr is None:
            raise RuntimeError(
                "This context has no async_function_mgr, so it cannot add an async function; "
                "the training loop sets one before it calls the model function."
            )
        return self.async_function_mgr.add_async_function(
            target, args, kwargs, is_async=is_async, queue_name=queue_name
        )

    def _factory(self, wanted_for: str) -> Any:
        factory = self.layout_factory if self.layout_factory is not None else self.feature_factory
        if factory is None:
            raise RuntimeError(
                f"{wanted_for} needs a feature_factory or a layout_factory, and this context has "
                "none; the training loop sets one before it calls the model function."
            )
        return factory


class NativeTask(BaseTask, abc.ABC):
    """A task that declares features through its context.

    Args:
        params: The settings, see `params`.
    """

    @classmethod
    def params(cls) -> InstantiableParams:
        """Returns the settings with their defaults; subclasses define more."""
        p = super().params()
        p.define("metrics", _metrics_params(), "What is measured during training, and where to.")
        p.define("mode", ModeKeys.TRAIN, "What the task is run for.")
        _define_train_params(p.train)
        p.define("serving", _serving_params(), "What is exported for serving, and how.")
        return p

    def __init__(self, params: InstantiableParams) -> None:
        super().__init__(params)
        self._ctx = NativeContext()

    @property
    def ctx(self) -> NativeContext:
        """The context that the model function uses."""
        return self._ctx

    @abc.abstractmethod
    def create_input_fn(self, mode: str) -> Callable[..., Any]:
        """Returns the function that builds the input; a `tf.data.Dataset`, as a rule."""

    @abc.abstractmethod
    def create_model_fn(self) -> Callable[..., Any]:
        """Returns the function `(features, mode, config)` that builds an `EstimatorSpec`."""

    def create_serving_input_receiver_fn(self) -> Callable[[], Any] | None:
        """Returns the function that builds the input of an exported model; None: no export."""
        return None


def _metrics_params() -> Params:
    p = Params()
    p.define("enable_deep_insight", False, "Whether samples of predictions are sent for analysis.")
    p.define("deep_insight_target", "ctr_head", "Heads to send, separated by commas.")
    p.define("deep_insight_name", None, "Name of the model where the samples arrive.")
    p.define("deep_insight_sample_ratio", 0.01, "Share of the examples to send.")
    p.define("extra_fields_keys", [], "Features to send along.")
    p.define("enable_throughput_hook", True, "Whether examples per second are measured.")
    p.define("enable_kafka_metrics", False, "Whether samples go to Kafka.")
    p.define("enable_tf2_profiler_hook", True, "Whether some steps are profiled.")
    p.define("enable_file_metrics", False, "Whether samples go to files.")
    p.define("file_base_name", "/vepfs/jaguar_deepinsight_results", "Where the files begin.")
    p.define("file_ext", "txt", "Extension of the files.")
    p.define("parse_fn", None, "Reads a sample back.")
    p.define("key_fn", None, "Groups samples.")
    p.define("layout_fn", None, "Arranges the fields of a sample in a line.")
    p.define("dump_filename", "", "File that samples are dumped to; empty for none.")
    p.define("use_data_service", False, "Whether the input comes from a data service.")
    return p


def _define_train_params(p: Params) -> None:
    p.define(
        "max_pending_seconds_for_barrier", 30, "How long a save waits for workers to stand still."
    )
    p.define(
        "incremental_save_steps",
        None,
        "Between full checkpoints, saves what has changed every so many steps; None: does not.",
    )
    p.define(
        "incremental_save_secs",
        None,
        "The same every so many seconds; give one of the two.",
    )
    p.define(
        "incremental_max_touched_ids",
        TOUCHED_KEY_SET_CAPACITY,
        "How many changed rows a table remembers; with more, all are saved.",
    )
    p.define(
        "fall_back_to_older_checkpoint",
        False,
        "Whether training starts from an older checkpoint if the newest is damaged.",
    )
    p.define(
        "rebuild_checkpoint_list",
        False,
        "Whether training goes on from the newest checkpoint if the file `checkpoint` is missing.",
    )
    p.define(
        "changed_model",
        None,
        "What a restore does where the network has changed, an `OnChange`; None: TensorFlow's way.",
    )
    p.define(
        "divide_input",
        True,
        "Whether each worker of several reads its part of what the input function gives; False: "
        "the function divides it itself.",
    )
    p.define(
        "controller_host",
        "127.0.0.1",
        "Address that the controller listens on, for calls with its token; 0.0.0.0: all, so that "
        "other machines can reach it.",
    )
    p.define(
        "transfer_float16",
        False,
        "Whether rows and gradients travel as float16 between workers and servers.",
    )
    p.define("slow_start_steps", 0, "Workers start one after another, this many steps apart.")
    p.define("sample_bias", 0.0, "Bias of sampled examples.")
    p.define("use_gpu_emb_table", False, "Whether tables live on the GPU.")
    p.define("use_fountain", False, "Whether the input comes from the Fountain service.")
    p.define("fountain_zk_host", "", "ZooKeeper of the Fountain service.")
    p.define("fountain_model_name", "", "Model that the Fountain service knows.")
    p.define("fountain_parse_on_server", False, "Whether the Fountain service parses examples.")
    p.define(
        "fountain_precompute_value_rowids", False, "Whether it also computes rows of ragged values."
    )


def _serving_params() -> Params:
    p = Params()
    p.define("export_with_gpu_allowed", False, "Whether exported ops may stay on a GPU.")
    p.define(
        "export_with_cleared_entry_devices", False, "Whether the entry graph loses its devices."
    )
    p.define("export_when_saving", False, "Whether every checkpoint is exported, too.")
    p.define("export_dir_base", "exported_models", "Directory, absolute or below the model's.")
    p.define("export_mode", ExportMode.DISTRIBUTED, "One model, or one for each server.")
    p.define("shared_embedding", True, "Whether exports read the checkpoint's tables in place.")
    p.define("with_remote_gpu", False, "Whether the dense part is served by a machine with a GPU.")
    return p
