"""Saves before a parameter server ends that has been told to.

A scheduler tells a server to end when it drains a machine, or starts a service again. What the
server holds would be what the last checkpoint has of it, so there is one more.

Example:
    >>> class Saver:
    ...     def trigger_save(self, session):
    ...         print("saved")
    >>> others = Others(
    ...     check=lambda: None,
    ...     has_left=lambda worker: False,
    ...     is_absent=lambda worker: False,
    ...     is_stopping=lambda: False,
    ...     list_stopping=lambda: {"ps 0"},
    ...     say_saved=lambda servers: print("for", *servers),
    ... )
    >>> hook = SaveForStoppingHook(Saver(), others)
    >>> hook.save_if_asked(None)
    saved
    for ps 0
    >>> hook.save_if_asked(None)  # Once is enough.
"""

import logging

import tensorflow as tf

from monolith.training.controller.server import SaverHook
from monolith.training.hooks.sync import Others

logger = logging.getLogger(__name__)


class SaveForStoppingHook(tf.compat.v1.train.SessionRunHook):
    """Has the chief save when a server was told to end, and tells the server when it has.

    A chief that was told to end, too, saves at its own end, and the servers wait for that.

    Args:
        saver: Saves.
        others: Knows the servers.
    """

    def __init__(self, saver: SaverHook, others: Others) -> None:
        self._saver = saver
        self._others = others
        self._saved: frozenset[str] = frozenset()

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        self.save_if_asked(run_context.session)

    def save_if_asked(self, session: tf.compat.v1.Session) -> None:
        """Saves if there is a server that it has not done so for; between two steps.

        Raises:
            tf.errors.OpError: The save has failed.
        """
        stopping = self._others.list_stopping() - self._saved
        if not stopping or self._others.is_stopping():
            return
        logger.warning("saving for %d parameter servers that have been told to end", len(stopping))
        self._saver.trigger_save(session)
        self._saved |= stopping
        self._others.say_saved(self._saved)
