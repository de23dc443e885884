"""The deltas of a checkpoint on disk: which are listed, cut off where one is damaged, removed.

Their names and the list's form are in `delta_chain`.
"""

import contextlib
import logging
import os

import tensorflow as tf

from monolith.checkpoint import delta_chain, durable_files, manifest
from monolith.checkpoint.delta_chain import Delta

logger = logging.getLogger(__name__)


def cut_damaged(base: str) -> None:
    """Takes a damaged delta, and all that build on it, from the list, with a warning.

    For those who would rather lose what was trained last than not start. Reads all deltas.

    Args:
        base: The full checkpoint.

    Raises:
        tf.errors.DataLossError: The list itself is damaged.
    """
    deltas = delta_chain.read(base)
    for i, delta in enumerate(deltas):
        try:
            manifest.verify_thoroughly(delta_chain.get_delta_prefix(base, delta.step))
        except tf.errors.DataLossError as error:
            logger.warning(
                "%s is restored with %d of its %d deltas: %s", base, i, len(deltas), error.message
            )
            write_list(base, deltas[:i])
            return


def write_list(base: str, deltas: list[Delta]) -> None:
    """Says which deltas of a checkpoint are complete; from now on a restore includes them."""
    durable_files.write_atomically(delta_chain.get_list_path(base), delta_chain.serialize(deltas))


def remove(base: str, listed_steps: set[int]) -> None:
    """Removes what belongs to deltas of a checkpoint, except for those that are listed."""
    directory, base_name = os.path.split(base)
    list_name = os.path.basename(delta_chain.get_list_path(base_name))
    kept = tuple(
        os.path.basename(delta_chain.get_delta_prefix(base_name, step)) + "."
        for step in listed_steps
    )
    for entry in delta_chain.find_entries(directory, base_name):
        if entry.startswith(kept) or (entry == list_name and listed_steps):
            continue
        path = os.path.join(directory, entry)
        with contextlib.suppress(tf.errors.NotFoundError):
            if tf.io.gfile.isdir(path):
                tf.io.gfile.rmtree(path)
            else:
                tf.io.gfile.remove(path)
