"""A moment to restore what TensorFlow's own saver does not know.

Variables are restored while a session is created. Right after that, once per session, the hook
here tells its listeners to bring back the rest: tables, admission filters. It decides which
checkpoint that is, once for all of them: the one that the saver has restored the session's
variables from, so that a model never consists of two.

Example:
    >>> class Announce(CheckpointRestorerListener):
    ...     def before_restore(self, session):
    ...         print("restoring tables")
    >>> hook = CheckpointRestorerHook([Announce()])
    >>> with tf.Graph().as_default():
    ...     step = tf.constant(1)
    ...     with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
    ...         int(session.run(step))
    restoring tables
    1
"""

import abc
import os
import weakref
from collections.abc import Sequence

import tensorflow as tf

from monolith.checkpoint import manifest
from monolith.checkpoint.paths import SaveHelper

# What the variables of a session were restored from.
_restored: "weakref.WeakKeyDictionary[tf.compat.v1.Session, str]" = weakref.WeakKeyDictionary()


def note_restored(session: tf.compat.v1.Session, prefix: str) -> None:
    """Says from which full checkpoint a session's variables were restored.

    Called by the saver, which has compared all files of the checkpoint with its manifest.
    """
    _restored[session] = prefix


def get_restored(session: tf.compat.v1.Session) -> str | None:
    """Returns from which full checkpoint a session's variables were restored, if that is known."""
    return _restored.get(session)


class CheckpointRestorerListener:
    """Acts at the stages of a restore; every method does nothing unless overridden."""

    def begin(self) -> None:
        """Called before the graph is finalized, so that ops can be added."""

    def before_restore(self, session: tf.compat.v1.Session) -> None:
        """Called when a session was created and its variables are there."""

    def after_restore(self, session: tf.compat.v1.Session) -> None:
        """Called when `before_restore` of all listeners is done."""

    def end(self, session: tf.compat.v1.Session) -> None:
        """Called when the session ends without an error."""


class AssetRestorerListener(CheckpointRestorerListener, abc.ABC):
    """Brings back something that a checkpoint has beside its variables.

    Args:
        basename: What checkpoint prefixes begin with, such as `<model_dir>/model.ckpt`.
    """

    def __init__(self, basename: str) -> None:
        self.model_dir = os.path.dirname(basename)

    def before_restore(self, session: tf.compat.v1.Session) -> None:
        """Restores from the latest checkpoint of the directory; for who has no hook that decides.

        Raises:
            tf.errors.DataLossError: Tables or filters there are not those that were saved.
        """
        self.restore(session, _find_latest(self.model_dir))

    @abc.abstractmethod
    def restore(self, session: tf.compat.v1.Session, prefix: str | None) -> None:
        """Restores from the checkpoint `prefix`, whose files were compared with its manifest.

        None, if there is no checkpoint to restore from.
        """


class CheckpointRestorerHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Calls its listeners whenever a session is created; restores nothing itself.

    Args:
        listeners: Called in this order.
    """

    def __init__(self, listeners: Sequence[CheckpointRestorerListener] | None = None) -> None:
        self._listeners = list(listeners or [])

    def begin(self) -> None:
        for listener in self._listeners:
            listener.begin()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        """Has the listeners restore; called by the session.

        Raises:
            tf.errors.DataLossError: Tables or filters are not those that were saved.
        """
        chosen: dict[str, str | None] = {}
        for listener in self._listeners:
            if not isinstance(listener, AssetRestorerListener):
                listener.before_restore(session)
                continue
            if listener.model_dir not in chosen:
                chosen[listener.model_dir] = _choose(session, listener.model_dir)
            listener.restore(session, chosen[listener.model_dir])
        for listener in self._listeners:
            listener.after_restore(session)

    def end(self, session: tf.compat.v1.Session) -> None:
        for listener in self._listeners:
            listener.end(session)


def _choose(session: tf.compat.v1.Session, model_dir: str) -> str | None:
    """Returns the checkpoint that belongs to what the session has; None, if there is none."""
    prefix = get_restored(session)
    if prefix is None:
        return _find_latest(model_dir)
    # A checkpoint of variables only, such as those in `dense_only`, has its tables elsewhere.
    is_elsewhere = os.path.dirname(prefix) != model_dir
    if is_elsewhere and not tf.io.gfile.isdir(SaveHelper.get_ckpt_asset_dir(prefix)):
        return _find_latest(model_dir)
    return prefix


def _find_latest(model_dir: str) -> str | None:
    prefix: str | None = tf.train.latest_checkpoint(model_dir)
    if prefix is not None:
        manifest.verify_assets(prefix)
    return prefix
