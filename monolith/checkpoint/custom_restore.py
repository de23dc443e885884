"""Steps of a restore that TensorFlow's saver does not have: the half of `dense_reload` at run time.

`dense_reload.CustomRestoreListener` puts ops into the graph before the session is there. When the
saver restores, it runs them by these functions.
"""

import logging
import os
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.training import py_checkpoint_reader

from monolith.checkpoint import changed_model
from monolith.checkpoint.alias_names import node_name
from monolith.checkpoint.dense_reload import (
    CLEAR_NN_DONE_TEXT,
    get_clear_nn_flag_path,
    is_alias_map_needed,
    make_misfit_error,
    match_aliases,
)

logger = logging.getLogger(__name__)


def create_missing_resources(sess: tf.compat.v1.Session, graph: tf.Graph) -> None:
    """Makes tables that are made by the init op: a session that restores does not run that.

    Tables of servers that were not lost are there, and stay as they are.
    """
    shared = graph.get_collection(tf.compat.v1.GraphKeys.RESOURCES)
    exist = sess.run([resource.is_initialized for resource in shared])
    sess.run([r.create for r, exists in zip(shared, exist, strict=True) if not exists])


def restore_aliases(
    sess: tf.compat.v1.Session,
    save_path: str,
    ops: Any,
    placeholders: Iterable[tf.Tensor],
    alias_map: dict[str, str],
    keeps_what_fits: bool = False,
) -> bool:
    """Restores variables from others; returns False if all have their own in the checkpoint.

    Args:
        sess: The session.
        save_path: The checkpoint.
        ops: What assigns the placeholders to the variables.
        placeholders: One per variable, whose name is in the attribute `origin_name`.
        alias_map: New name to name in the checkpoint.
        keeps_what_fits: Whether variables that the map does not explain are initialized, instead
            of being refused.

    Raises:
        errors.ConfigError: They are refused.
    """
    reader = py_checkpoint_reader.NewCheckpointReader(save_path)
    if not is_alias_map_needed(reader, alias_map):
        return False
    matched = match_aliases(reader, alias_map, placeholders)
    if matched.misfits and not keeps_what_fits:
        raise make_misfit_error(matched.misfits, save_path)
    sess.run(ops, {**matched.feed_dict, **_initialize(sess, matched.unmatched)})
    logger.info(
        "restored %d variables from %s under other names", len(matched.feed_dict), save_path
    )
    if matched.misfits:
        logger.warning(
            "the alias map does not explain all variables that %s lacks, and these start anew: %s",
            save_path,
            changed_model.describe_first(matched.misfits),
        )
    return True


def _initialize(
    sess: tf.compat.v1.Session, placeholders: Iterable[tf.Tensor]
) -> dict[tf.Tensor, Any]:
    """Gives variables their initial values; returns those by the variables' placeholders."""
    placeholders = list(placeholders)
    known = sess.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    by_name = {node_name(variable.name): variable for variable in known}
    variables = [by_name[placeholder.origin_name] for placeholder in placeholders]
    sess.run([variable.initializer for variable in variables])
    return dict(zip(placeholders, sess.run(variables), strict=True))


def clear_nn(
    sess: tf.compat.v1.Session, save_path: str, ops: Any, placeholders: Iterable[tf.Tensor]
) -> bool:
    """Initializes variables instead of restoring them; returns False if that was done before."""
    flag_path = get_clear_nn_flag_path(ops[0].model_dir)
    if tf.io.gfile.exists(flag_path):
        return False
    feed_dict = {}
    for placeholder in placeholders:  # Only one, the global step, if training shall continue.
        reader = py_checkpoint_reader.NewCheckpointReader(save_path)
        feed_dict[placeholder] = reader.get_tensor(tf.compat.v1.GraphKeys.GLOBAL_STEP)
    # One after the other: the initializer sets the global step, too.
    for op in ops:
        sess.run(op, feed_dict)
    with tf.io.gfile.GFile(flag_path, "w") as file:
        file.write(CLEAR_NN_DONE_TEXT)
    logger.info("initialized all variables anew instead of restoring %s", save_path)
    return True


def is_checkpoint(save_path: str | None) -> bool:
    """Returns whether there are variables of a checkpoint with this path."""
    return save_path is not None and bool(
        checkpoint_management.checkpoint_exists_internal(save_path)
    )


def has_state(save_path: str | None) -> bool:
    """Returns whether there is a checkpoint with this path, in a directory with a list of them."""
    return (
        is_checkpoint(save_path)
        and tf.train.get_checkpoint_state(os.path.dirname(save_path or "")) is not None
    )
