"""Keeps what TensorFlow has to say about its own workings out of a training.

    with quiet.quiet_tensorflow():
        estimator.train(...)

What TensorFlow's Python code logs while a graph is built and a session runs is, for somebody who
trains a model, about code that is not theirs: functions of TensorFlow that TensorFlow itself, or
this package, calls and that are deprecated; in a notebook, where its logger starts with INFO, also
the life of sessions ("Graph was finalized.", "Running local_init_op."). `quiet_tensorflow` leaves
out these, and nothing else: all other messages, and all other loggers, stay as they are, and the
ones left out come back after the block. What is said in C++, when TensorFlow is imported, no code
can leave out; the variable TF_CPP_MIN_LOG_LEVEL, set before, leaves out most of it.

Example:
    >>> import io
    >>> out, logger = io.StringIO(), tf.get_logger()
    >>> handler = logging.StreamHandler(out)
    >>> logger.addHandler(handler)
    >>> with quiet_tensorflow(), tf.Graph().as_default():
    ...     _ = tf.compat.v1.to_float(1)  # Deprecated.
    ...     logger.warning("A user wants to know this.")
    >>> logger.removeHandler(handler)
    >>> out.getvalue()
    'A user wants to know this.\\n'
"""

import contextlib
import logging
from collections.abc import Iterator

import tensorflow as tf

# Modules of TensorFlow by what they log. Notices of deprecation are warnings.
_DEPRECATION = "deprecation"
_SESSIONS = (
    "basic_session_run_hooks",
    "monitored_session",
    "saver",
    "session_manager",
    "builder_impl",
    "loader_impl",
)


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Leaves out TensorFlow's notices about itself during a block."""
    logger, notices = tf.get_logger(), _Notices()
    logger.addFilter(notices)
    try:
        yield
    finally:
        logger.removeFilter(notices)


class _Notices(logging.Filter):
    """Leaves out notices; one of its own for each block, since blocks may lie inside of others."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.module == _DEPRECATION:
            return False
        return record.levelno >= logging.WARNING or record.module not in _SESSIONS
