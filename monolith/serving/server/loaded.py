"""One version of a model in memory.

Each has a session of its own, and with it tables of its own: two versions of one model never share
rows. Functions are prepared when the version is loaded, so that no request pays for it.

Example:
    With a SavedModel in `exported_models/3`,

        model = LoadedModel.load("exported_models/3")
        rows = model.run(model.get_signature("serving_default"), ("output",), [examples])
        model.close()
"""

import gc
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from monolith.native import ops as _ops  # noqa: F401 - an exported model holds ops of this package
from monolith.serving.server import status
from monolith.serving.server.signature import Signature
from monolith.serving.server.writing import find_writing

logger = logging.getLogger(__name__)

# A client may ask for any subset of the outputs; so many of them are prepared.
_MAX_SUBSETS = 64

Callable_ = Callable[..., Sequence[Any]]


class LoadError(Exception):
    """A version cannot be loaded; the message says why."""


class LoadedModel:
    """A SavedModel that can be called. Thread-safe.

    Args:
        session: Has the graph, variables and tables.
        definitions: The `SignatureDef`s by name.
        path: Where it comes from.
        writing: Names of those that change tables.
    """

    def __init__(
        self,
        session: tf.compat.v1.Session,
        definitions: Mapping[str, Any],
        path: str,
        writing: frozenset[str] = frozenset(),
    ) -> None:
        self.path = path
        self.writing = writing
        self.definitions = dict(definitions)
        self._session = session
        self._signatures = {
            name: Signature(name, definition) for name, definition in definitions.items()
        }
        self._callables: dict[tuple[str, tuple[str, ...]], Callable_] = {}
        self._lock = threading.Lock()
        for signature in self._signatures.values():
            if signature.problem is None:
                self._prepare(signature, tuple(signature.outputs))

    @classmethod
    def load(cls, path: str, *, threads: int | None = None) -> "LoadedModel":
        """Loads a SavedModel.

        Args:
            path: Its directory.
            threads: How many threads one op may use; None leaves that to TensorFlow.

        Raises:
            LoadError: It is damaged, is not there, or needs something that is not.
        """
        config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
        if threads is not None:
            config.intra_op_parallelism_threads = threads
        graph = tf.Graph()
        session = tf.compat.v1.Session(graph=graph, config=config)
        try:
            with graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(session, [tf.saved_model.SERVING], path)
            # Signatures that TensorFlow adds for itself are not for clients.
            definitions = {
                name: definition
                for name, definition in meta_graph.signature_def.items()
                if name != "__saved_model_init_op"
            }
            return cls(session, definitions, path, find_writing(meta_graph.graph_def, definitions))
        except Exception as e:  # Whatever a damaged file leads to: the server goes on without it.
            session.close()
            raise LoadError(_explain(e)) from e

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    def get_signature(self, name: str) -> Signature:
        """Returns a function of the model.

        Raises:
            RequestError: There is none of that name, or it cannot be called.
        """
        signature = self._signatures.get(name)
        if signature is None:
            raise status.invalid(
                f"The model has no signature {name!r}; it has "
                f"{', '.join(map(repr, sorted(self._signatures))) or 'none'}."
            )
        if signature.problem is not None:
            raise status.RequestError(
                status.Code.FAILED_PRECONDITION, f"Signature {name!r} {signature.problem}."
            )
        return signature

    def run(
        self, signature: Signature, outputs: tuple[str, ...], inputs: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Calls a function.

        Args:
            signature: The function.
            outputs: What to return.
            inputs: All its inputs, in their order.

        Raises:
            RequestError: The model ended with an error.
        """
        try:
            prepared = self._callables.get((signature.name, outputs))
            if prepared is None:
                prepared = self._prepare_subset(signature, outputs)
            if prepared is None:
                every = self._callables[signature.name, tuple(signature.outputs)](*inputs)
                by_name = dict(zip(signature.outputs, every, strict=True))
                return [np.asarray(by_name[name]) for name in outputs]
            return [np.asarray(value) for value in prepared(*inputs)]
        except tf.errors.OpError as e:
            raise status.from_tensorflow(e) from e
        except UnicodeDecodeError as e:
            # The model's error quotes what it was given, and TensorFlow cannot make text of that.
            raise status.invalid(status.shorten(e.object.decode("utf-8", "replace"))) from e

    def close(self) -> None:
        """Gives the memory back; nobody may be calling it."""
        self._callables.clear()
        self._session.close()
        self._session = None
        # A graph is full of cycles. Without this, its memory would stay for a long time, because
        # the collector counts objects and not what they hold on to.
        gc.collect()

    def _prepare_subset(self, signature: Signature, outputs: tuple[str, ...]) -> Callable_ | None:
        with self._lock:
            if len(self._callables) >= _MAX_SUBSETS + len(self._signatures):
                return None
            return self._prepare(signature, outputs)

    def _prepare(self, signature: Signature, outputs: tuple[str, ...]) -> Callable_:
        options = config_pb2.CallableOptions()
        options.feed.extend(spec.tensor for spec in signature.inputs.values())
        options.fetch.extend(signature.outputs[name].tensor for name in outputs)
        # In the thread that calls: handing small ops from thread to thread takes longer than they
        # do. Ops that wait for others, as requests to parameter servers, still do so at once, and
        # a large one still uses several threads.
        options.run_options.inter_op_thread_pool = -1
        prepared = self._session._make_callable_from_options(options)
        self._callables[signature.name, outputs] = prepared
        return prepared


def _explain(error: Exception) -> str:
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    # Of many lines, the one that names a missing file says most.
    lines = [line for line in message.splitlines() if "Unable to find" in line]
    return status.shorten(lines[0] if lines else message) or type(error).__name__
