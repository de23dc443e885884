"""Listeners of a saver that act on only one side of a save.

Some work belongs before one save and after another, such as the tables' part of a checkpoint that
is written by one hook and exported by the next.

Example:
    >>> class Announce(tf.compat.v1.train.CheckpointSaverListener):
    ...     def before_save(self, session, global_step_value):
    ...         print("before", global_step_value)
    ...     def after_save(self, session, global_step_value):
    ...         print("after", global_step_value)
    >>> listener = AfterSaveListener(Announce())
    >>> listener.before_save(None, 7)
    >>> listener.after_save(None, 7)
    after 7
"""

import tensorflow as tf


class _FilteringListener(tf.compat.v1.train.CheckpointSaverListener):
    """Holds the listener that is called on one side only."""

    def __init__(self, listener: tf.compat.v1.train.CheckpointSaverListener) -> None:
        self._listener = listener

    def __repr__(self) -> str:
        return super().__repr__() + repr(self._listener)


class BeforeSaveListener(_FilteringListener):
    """Passes `before_save` on to a listener, and nothing else.

    Args:
        listener: Called before a save.
    """

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        """Called by the saver hook."""
        self._listener.before_save(session, global_step_value)


class AfterSaveListener(_FilteringListener):
    """Passes `after_save` on to a listener, and nothing else.

    Args:
        listener: Called after a save; as always, True ends the training.
    """

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> bool | None:
        """Called by the saver hook."""
        return self._listener.after_save(session, global_step_value)
