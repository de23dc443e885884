"""What Monolith remembers of a TensorFlow graph, kept with the graph itself.

State in module variables would leak from one graph into the next; here it lives and dies with
the graph it describes.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     get_meta("table_names", set).add("user")
    ...     print(get_meta("table_names", set))
    {'user'}
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import tensorflow as tf
from google.protobuf import empty_pb2
from tensorflow.python.framework import ops

logger = logging.getLogger(__name__)

_COLLECTION = "monolith_graph_meta"

# The two collections hold Python objects, which no file takes. TensorFlow would leave them out of a
# meta graph with a warning at every start of a session; asked like this it does so quietly.
ops.register_proto_function(
    _COLLECTION,
    proto_type=empty_pb2.Empty,
    to_proto=lambda metas, export_scope=None: empty_pb2.Empty(),
    from_proto=lambda proto, import_scope=None: {},
)
ops.register_proto_function(
    tf.compat.v1.GraphKeys.RESOURCES, to_proto=lambda resource, export_scope=None: None
)

_Meta = TypeVar("_Meta")


def get_meta(key: str, meta_factory: Callable[[], _Meta]) -> _Meta:
    """Returns what the default graph holds under `key`; its first use creates it."""
    collection = tf.compat.v1.get_collection_ref(_COLLECTION)
    if not collection:
        collection.append({})
    metas = collection[0]
    if key not in metas:
        metas[key] = meta_factory()
    return metas[key]


def add_batch_norm_into_update_ops() -> None:
    """Adds the moving averages of batch normalization to the ops that a training step must run.

    Not every layer does this itself; without it the averages stay at their initial values.
    """
    update_ops = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.UPDATE_OPS)
    known = {id(op) for op in update_ops}
    for op in tf.compat.v1.get_default_graph().get_operations():
        is_moving_average = op.type == "AssignSubVariableOp" and "AssignMovingAvg" in op.name
        if is_moving_average and id(op) not in known:
            update_ops.append(op)


def add_to_collections(names: str | Iterable[str], value: Any) -> None:
    """Adds `value` to collections of the default graph, except None and empty containers."""
    if isinstance(value, (bool, int, float, str)) or tf.is_tensor(value) or value:
        tf.compat.v1.add_to_collections(names, value)
    else:
        logger.info("value is %s, skip", value)
