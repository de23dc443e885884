"""Initializing only what was lost, in a job that has no checkpoint yet.

A server that is replaced before the first checkpoint comes back with nothing. TensorFlow would
initialize all variables then, and throw away what the others hold; here only those that nobody
holds are initialized.

Example:
    >>> with tf.Graph().as_default():
    ...     kept = tf.compat.v1.get_variable("kept", initializer=1.0)
    ...     lost = tf.compat.v1.get_variable("lost", initializer=2.0)
    ...     scaffold = create_scaffold(tf.compat.v1.train.Scaffold())
    ...     with tf.compat.v1.Session() as session:
    ...         _ = session.run(kept.assign(5.0))
    ...         scaffold.init_fn(session)
    ...         [float(value) for value in session.run([kept, lost])]
    [5.0, 2.0]
"""

import logging
from typing import Any

import tensorflow as tf

from monolith.checkpoint import custom_restore

logger = logging.getLogger(__name__)


def create_scaffold(scaffold: tf.compat.v1.train.Scaffold) -> tf.compat.v1.train.Scaffold:
    """Returns a scaffold that initializes what is missing; one that has its own way, as it is.

    Args:
        scaffold: Of the model, whose graph is complete.
    """
    if scaffold.init_op is not None or scaffold.init_fn is not None:
        return scaffold
    variables = tf.compat.v1.global_variables()
    exist = [tf.raw_ops.VarIsInitializedOp(resource=v.handle) for v in variables]

    def initialize_missing(_: Any, session: tf.compat.v1.Session) -> None:
        custom_restore.create_missing_resources(session, session.graph)
        found = session.run(exist)
        missing = [
            v.initializer for v, is_there in zip(variables, found, strict=True) if not is_there
        ]
        session.run(missing)
        logger.info("initialized %d of %d variables", len(missing), len(variables))

    return tf.compat.v1.train.Scaffold(
        copy_from_scaffold=scaffold, init_op=tf.no_op(), init_fn=initialize_missing
    )
