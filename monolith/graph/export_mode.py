"""Whether a model is being exported, and the graphs and signatures collected meanwhile.

A model function builds the same model for training and for serving; the parts that differ ask here.
The mode is one for the process: an export builds its graphs on one thread.

Example:
    >>> is_exporting()
    False
    >>> with enter_export_mode(ExportMode.DISTRIBUTED) as ctx:
    ...     graph = ctx.sub_graph("ps_0")
    ...     is_exporting_distributed(), ctx.sub_graph_num
    (True, 1)
"""

import contextlib
import enum
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf


class ExportMode(enum.Enum):
    """What is being exported: nothing, one model with all tables, or one model per server."""

    NONE = 0
    STANDALONE = 1
    DISTRIBUTED = 2


class SavedModelSignature(NamedTuple):
    """A function of a saved model: names of its inputs and outputs with their tensors."""

    name: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


class ExportContext:
    """The graphs of one export, and the signatures of each.

    Args:
        with_remote_gpu: Whether the dense part goes to a server with a GPU of its own.
    """

    def __init__(self, with_remote_gpu: bool = False) -> None:
        self._with_remote_gpu = with_remote_gpu
        self._sub_graphs: dict[str, tf.Graph] = {}
        self._dense_sub_graphs: dict[str, tf.Graph] = {}
        # Graphs compare by identity. As keys they stay alive, so no other graph can take their id.
        self._signatures: dict[tf.Graph, dict[str, SavedModelSignature]] = {}

    def sub_graph(self, name: str) -> tf.Graph:
        """Returns the graph called `name`; the first call makes it."""
        return self._sub_graphs.setdefault(name, tf.Graph())

    def dense_sub_graph(self, name: str) -> tf.Graph:
        """Returns the dense graph called `name`; the first call makes it."""
        return self._dense_sub_graphs.setdefault(name, tf.Graph())

    @property
    def sub_graphs(self) -> dict[str, tf.Graph]:
        return self._sub_graphs

    @property
    def dense_sub_graphs(self) -> dict[str, tf.Graph]:
        return self._dense_sub_graphs

    @property
    def sub_graph_num(self) -> int:
        return len(self._sub_graphs)

    @property
    def with_remote_gpu(self) -> bool:
        return self._with_remote_gpu

    def signatures(self, graph: tf.Graph) -> list[SavedModelSignature]:
        """Returns the signatures of `graph` in the order they were added."""
        return list(self._signatures.get(graph, {}).values())

    def add_signature(
        self, graph: tf.Graph, name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Adds a signature to `graph`, in place of an earlier one of the same name."""
        signature = SavedModelSignature(name, dict(inputs), dict(outputs))
        self._signatures.setdefault(graph, {})[name] = signature
        graph.add_to_collection("signature_name", name)

    def merge_signature(
        self, graph: tf.Graph, name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
    ) -> None:
        """Adds inputs and outputs to the signature `name` of `graph`, which may be new."""
        known = self._signatures.get(graph, {}).get(name)
        if known is None:
            self.add_signature(graph, name, inputs, outputs)
        else:
            known.inputs.update(inputs)
            known.outputs.update(outputs)


EXPORT_MODE = ExportMode.NONE
EXPORT_CTX: ExportContext | None = None


def is_exporting() -> bool:
    """Returns whether a model is being exported."""
    return EXPORT_MODE != ExportMode.NONE


def is_exporting_standalone() -> bool:
    """Returns whether one model with all its tables is being exported."""
    return EXPORT_MODE == ExportMode.STANDALONE


def is_exporting_distributed() -> bool:
    """Returns whether a model per parameter server is being exported."""
    return EXPORT_MODE == ExportMode.DISTRIBUTED


def is_dry_run_or_exporting() -> bool:
    """Returns whether nothing will be trained: while exporting, or in a graph marked `dry_run`."""
    return is_exporting() or hasattr(tf.compat.v1.get_default_graph(), "dry_run")


def get_current_export_ctx() -> ExportContext | None:
    """Returns the context of the export that is going on, None if there is none."""
    return EXPORT_CTX


@contextlib.contextmanager
def enter_export_mode(
    mode: ExportMode, export_ctx: ExportContext | None = None
) -> Iterator[ExportContext]:
    """Exports in `mode` while the block runs.

    Args:
        mode: What is exported.
        export_ctx: Takes the graphs and signatures; a new one if left out.

    Yields:
        The context.

    Raises:
        AssertionError: An export is going on already.
    """
    global EXPORT_MODE, EXPORT_CTX
    if is_exporting():
        raise AssertionError(f"export mode can't be nested: {EXPORT_MODE} is active.")
    ctx = ExportContext() if export_ctx is None else export_ctx
    EXPORT_MODE, EXPORT_CTX = mode, ctx
    try:
        yield ctx
    finally:
        EXPORT_MODE, EXPORT_CTX = ExportMode.NONE, None
