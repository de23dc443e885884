"""What all exporters of SavedModels do.

An exporter builds the model once more, for prediction, over the placeholders of a receiver
function, takes the variables from a checkpoint, and writes both. Rows of tables are not loaded for
that: the exported model restores them itself, from its own assets or, with `shared_embedding`, from
the checkpoint. `monolith.serving.export` has the exporters.
"""

import abc
import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from monolith import errors
from monolith.graph import signatures
from monolith.graph.export_mode import (
    ExportContext,
    ExportMode,
    enter_export_mode,
    get_current_export_ctx,
)
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.run_config import GraphRunConfig, outside_of_cluster
from monolith.graph.signatures import ServingInputReceiver
from monolith.serving import export_tables, saved_model
from monolith.serving.export_rows import RowFiles

logger = logging.getLogger(__name__)

ReceiverFn = Callable[[], ServingInputReceiver]
# What is entered around an export, such as a context of a parser.
ContextFactory = Callable[[], contextlib.AbstractContextManager[Any]]

_WARMUP_REQUESTS = "tf_serving_warmup_requests"
_SERVING_TAGS = (tf.saved_model.SERVING,)


class BaseExporter(abc.ABC):
    """What all exporters do; a subclass decides which graphs there are.

    Args:
        model_fn: Builds the model of `features`, `mode` and `config`; returns an `EstimatorSpec`.
        model_dir: Directory of the checkpoints.
        export_dir_base: Directory of all versions of the exported model.
        shared_embedding: Whether exported models read the rows of tables from the checkpoint, in
            place; if False, each takes their values along.
        warmup_file: Requests for a server to warm up with, a TFRecord file of `PredictionLog`s;
            left out if there is none.
        export_context_list: Functions that make a context to export in.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str,
        export_dir_base: str,
        shared_embedding: bool = False,
        warmup_file: str | None = None,
        export_context_list: Sequence[ContextFactory] | None = None,
    ) -> None:
        self._model_fn = model_fn
        self._model_dir = os.fspath(model_dir)
        self._export_dir_base = os.fspath(export_dir_base)
        self._shared_embedding = shared_embedding
        self._warmup_file = warmup_file
        self._export_context_list = list(export_context_list or ())

    @abc.abstractmethod
    def export_saved_model(
        self,
        serving_input_receiver_fn: ReceiverFn,
        checkpoint_path: str | None = None,
        global_step: int | None = None,
    ) -> bytes | dict[str, bytes]:
        """Exports the model.

        Args:
            serving_input_receiver_fn: Builds the input of the exported model.
            checkpoint_path: What to export; None takes the last checkpoint of the model directory.
            global_step: The step of the checkpoint.

        Returns:
            The directory, or directories by name of the sub model.

        Raises:
            errors.ConfigError: There is no checkpoint, it does not fit the model, the receiver
                does not give what the model needs, or the directory cannot be written.
        """

    create_asset_base = staticmethod(export_tables.create_asset_base)
    add_ckpt_to_assets = staticmethod(export_tables.add_ckpt_to_assets)
    build_signature = staticmethod(signatures.build_signature)

    def gen_warmup_assets(self) -> dict[str, str] | None:
        """Returns the file of requests to warm up with, by its name below `assets.extra`."""
        if not self._warmup_file or not tf.io.gfile.exists(self._warmup_file):
            logger.info("no warmup file %s, the model is exported without", self._warmup_file)
            return None
        return {_WARMUP_REQUESTS: self._warmup_file}

    def _model_fn_with_input_reveiver(self, serving_input_receiver_fn: ReceiverFn) -> Any:
        """Builds the model in the default graph, and adds its outputs to the signatures.

        Users override it, so the name keeps its spelling.
        """
        if serving_input_receiver_fn is None:
            raise errors.ConfigError(
                "An exported model needs a serving_input_receiver_fn, got None; give a function "
                "that returns a ServingInputReceiver(features, receiver_tensors)."
            )
        receiver = serving_input_receiver_fn()
        if not isinstance(receiver, ServingInputReceiver):
            raise errors.ConfigError(
                "serving_input_receiver_fn must return a ServingInputReceiver(features, "
                f"receiver_tensors), got {receiver!r}."
            )
        features = receiver.features
        if isinstance(features, Mapping):
            features = _ReceivedFeatures(features)
        spec = self._model_fn(
            features=features, mode=ModeKeys.PREDICT, config=GraphRunConfig(self._model_dir)
        )
        outputs = getattr(spec, "export_outputs", None)
        if not outputs:
            raise errors.ConfigError(
                "The model function gave nothing to export in mode PREDICT; return an "
                f"EstimatorSpec with predictions or export_outputs, got {spec!r}."
            )
        graph = tf.compat.v1.get_default_graph()
        for name, output in outputs.items():
            _get_export_ctx().add_signature(graph, name, receiver.receiver_tensors, output.outputs)
        return spec

    def _export_saved_model_from_graph(
        self,
        graph: tf.Graph,
        checkpoint_path: str,
        export_dir_base: str | None = None,
        export_dir: str | None = None,
        restore_vars: bool = True,
        restore_hashtable: bool = True,
        assign_hashtable: bool = True,
        export_ctx: ExportContext | None = None,
        export_tags: Sequence[str] = _SERVING_TAGS,
        assets_extra: Mapping[str, str] | None = None,
        clear_devices: bool = False,
        strip_default_attrs: bool = True,
        publication: saved_model.Publication | None = None,
    ) -> bytes:
        """Writes a graph as a SavedModel.

        Args:
            graph: The graph, whose signatures are in `export_ctx`.
            checkpoint_path: Has the values of variables and the rows of tables.
            export_dir_base: A new directory below this one, named after the time, is made.
            export_dir: The directory to make, in place of one below `export_dir_base`.
            restore_vars: Whether variables get the checkpoint's values; else their initial ones.
            restore_hashtable: Whether tables get their rows when the model is loaded.
            assign_hashtable: Whether the model gets functions to assign rows.
            export_ctx: The export; None: the one that is going on.
            export_tags: Tags of the graph.
            assets_extra: Files to copy along, from their path below `assets.extra`.
            clear_devices: Whether ops lose their devices.
            strip_default_attrs: Whether attributes with default values are left out, so that
                older versions of TensorFlow can read the model.
            publication: Has the directory appear together with others; None: at once.

        Returns:
            The directory.
        """
        export_dir = _choose_export_dir(export_dir_base, export_dir)
        with graph.as_default():
            signature_defs = _build_signatures(graph, export_ctx)
            main_ops = [
                tf.compat.v1.local_variables_initializer(),
                tf.compat.v1.tables_initializer(),
            ]
            row_files: list[RowFiles] = []
            if restore_hashtable:
                restore_ops, row_files = export_tables.create_restore_ops(
                    checkpoint_path, self._shared_embedding
                )
                main_ops += restore_ops
            if assign_hashtable:
                signature_defs.update(export_tables.create_assign_signatures())
            signature_defs.update(export_tables.create_variable_signatures())
            # Before a session runs them: TensorFlow marks ops that others wait for.
            main_op = tf.group(*main_ops, name="main_op")
            saver = tf.compat.v1.train.Saver(sharded=True, allow_empty=True)
            # Only for hooks of training, and nothing that a file can hold.
            graph.clear_collection(ops.GraphKeys.RESOURCES)
            with _create_session(graph) as session:
                _initialize(session, saver, checkpoint_path if restore_vars else None)
                saved_model.write_saved_model(
                    session,
                    export_dir,
                    signature_defs,
                    tags=export_tags,
                    main_op=main_op,
                    saver=saver,
                    assets=[files.write for files in row_files],
                    assets_extra=assets_extra,
                    clear_devices=clear_devices,
                    strip_default_attrs=strip_default_attrs,
                    publication=publication,
                )
        return os.fsencode(export_dir)

    def _export_frozen_saved_model_from_graph(
        self,
        graph: tf.Graph,
        checkpoint_path: str,
        export_dir_base: str | None = None,
        export_dir: str | None = None,
        restore_vars: bool = True,
        export_ctx: ExportContext | None = None,
        export_tags: Sequence[str] = _SERVING_TAGS,
        assets_extra: Mapping[str, str] | None = None,
        clear_devices: bool = False,
        strip_default_attrs: bool = True,
        publication: saved_model.Publication | None = None,
    ) -> bytes:
        """Writes a graph without tables as a SavedModel whose variables are constants.

        The arguments are those of `_export_saved_model_from_graph`.
        """
        export_dir = _choose_export_dir(export_dir_base, export_dir)
        with graph.as_default():
            signature_defs = _build_signatures(graph, export_ctx)
            saver = tf.compat.v1.train.Saver(sharded=True, allow_empty=True)
            with _create_session(graph) as session:
                _initialize(session, saver, checkpoint_path if restore_vars else None)
                frozen = tf.compat.v1.graph_util.convert_variables_to_constants(
                    session, graph.as_graph_def(), _list_nodes(signature_defs)
                )
        with tf.Graph().as_default() as frozen_graph:
            tf.import_graph_def(frozen, name="")
            with _create_session(frozen_graph) as session:
                saved_model.write_saved_model(
                    session,
                    export_dir,
                    signature_defs,
                    tags=export_tags,
                    assets_extra=assets_extra,
                    clear_devices=clear_devices,
                    strip_default_attrs=strip_default_attrs,
                    publication=publication,
                )
        return os.fsencode(export_dir)

    @contextlib.contextmanager
    def _exporting(self, mode: ExportMode) -> Iterator[ExportContext]:
        """Exports while the block runs; whoever loads the model knows nothing of this cluster."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(outside_of_cluster())
            for make_context in self._export_context_list:
                stack.enter_context(make_context())
            yield stack.enter_context(enter_export_mode(mode))

    def _find_checkpoint(self, checkpoint_path: str | None) -> str:
        checkpoint = checkpoint_path or tf.train.latest_checkpoint(self._model_dir)
        if checkpoint is None:
            raise errors.ConfigError(
                f"There is nothing to export: {self._model_dir} holds no checkpoint; train the "
                "model first, or name another model_dir."
            )
        if not tf.io.gfile.exists(f"{checkpoint}.index"):
            raise errors.ConfigError(
                f"There is nothing to export: the checkpoint {checkpoint} does not exist; "
                f"the last one in {self._model_dir} is "
                f"{tf.train.latest_checkpoint(self._model_dir)}."
            )
        return checkpoint


class _ReceivedFeatures(dict[str, Any]):
    """What a receiver gives; a missing feature is answered with a sentence, not with its name."""

    def __missing__(self, name: str) -> Any:
        raise errors.ConfigError(
            f"The model uses feature {name!r} in mode PREDICT, which serving_input_receiver_fn "
            f"does not give; it gives {', '.join(sorted(map(repr, self))) or 'no features'}. Add "
            "it there; a label, which nobody knows when serving, must not be used in this mode."
        )


def _get_export_ctx(export_ctx: ExportContext | None = None) -> ExportContext:
    export_ctx = export_ctx or get_current_export_ctx()
    if export_ctx is None:
        raise RuntimeError("A model can be exported only inside of `enter_export_mode`.")
    return export_ctx


def _choose_export_dir(export_dir_base: str | None, export_dir: str | None) -> str:
    if export_dir is not None:
        return export_dir
    if export_dir_base is None:
        raise errors.ConfigError("An export needs `export_dir_base` or `export_dir`.")
    return saved_model.make_timestamped_dir(export_dir_base)


def _build_signatures(graph: tf.Graph, export_ctx: ExportContext | None) -> dict[str, Any]:
    return {
        signature.name: signatures.build_signature(signature.inputs, signature.outputs)
        for signature in _get_export_ctx(export_ctx).signatures(graph)
    }


def _create_session(graph: tf.Graph) -> tf.compat.v1.Session:
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    return tf.compat.v1.Session(graph=graph, config=config)


def _initialize(
    session: tf.compat.v1.Session, saver: tf.compat.v1.train.Saver, checkpoint: str | None
) -> None:
    if checkpoint is None:
        session.run(tf.compat.v1.global_variables_initializer())
        return
    _check_variables(checkpoint)
    saver.restore(session, checkpoint)


def _check_variables(checkpoint: str) -> None:
    """Refuses a graph with variables that a checkpoint does not have, or in another shape."""
    # TensorFlow itself would restore a value of another shape.
    shapes = tf.train.load_checkpoint(checkpoint).get_variable_to_shape_map()
    problems = []
    for variable in tf.compat.v1.global_variables():
        name = variable.op.name
        if name not in shapes:
            problems.append(f"it has no {name}")
        elif not variable.shape.is_compatible_with(shapes[name]):
            problems.append(f"its {name} has the shape {shapes[name]}, not {variable.shape}")
    if problems:
        raise errors.ConfigError(
            "Could not load all requested variables from checkpoint. "
            f"{checkpoint} does not fit the model in mode PREDICT: {', '.join(problems)}. Make "
            "the same variables there as in training."
        )


def _list_nodes(signature_defs: Mapping[str, Any]) -> list[str]:
    """Returns the names of all nodes that signatures need to be there."""
    names: set[str] = set()
    for signature in signature_defs.values():
        for info in (*signature.inputs.values(), *signature.outputs.values()):
            components = info.composite_tensor.components or [info]
            names.update(component.name.split(":")[0] for component in components)
    return sorted(names)
