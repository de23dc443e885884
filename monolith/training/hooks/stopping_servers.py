"""Saves before a parameter server ends that has been told to.

A scheduler tells a server to end when it drains a machine, or starts a service again. Of what the
server holds there would be what the last checkpoint has, so there is one more: it is time to save
then, and when that is done the server is told.

Example:
    >>> others = Others(
    ...     check=lambda: None,
    ...     has_left=lambda worker: False,
    ...     is_absent=lambda worker: False,
    ...     is_stopping=lambda: False,
    ...     list_stopping=lambda: {"ps 0"},
    ...     say_saved=lambda servers: print("saved for", *servers),
    ... )
    >>> servers = StoppingServers(others)
    >>> timer = servers.create_timer(tf.compat.v1.train.SecondOrStepTimer(every_steps=1000))
    >>> timer.update_last_triggered_step(1)
    (None, None)
    >>> timer.should_trigger_for_step(2)
    True
    >>> listener = servers.create_saver_listener()
    >>> listener.before_save(None, 2)
    >>> listener.after_save(None, 2)
    saved for ps 0
    >>> timer.should_trigger_for_step(3)
    False
"""

import logging
from typing import Any

import tensorflow as tf

from monolith.training.hooks.sync import Others

logger = logging.getLogger(__name__)


class StoppingServers:
    """The servers that have been told to end, as the chief has them.

    A chief that was told to end, too, saves at its own end, and they wait for that.

    Args:
        others: Knows them.
    """

    def __init__(self, others: Others) -> None:
        self._others = others
        self._saved: frozenset[str] = frozenset()

    def create_timer(self, timer: Any) -> "_Timer":
        """Returns a timer that also triggers for them, for the hook that saves."""
        return _Timer(timer, self)

    def create_saver_listener(self) -> tf.compat.v1.train.CheckpointSaverListener:
        """Returns what tells them that they are saved; behind all that needs them."""
        return _SaverListener(self)

    def find_unsaved(self) -> frozenset[str]:
        """Returns those for whom the chief has yet to save."""
        if self._others.is_stopping():
            return frozenset()
        return frozenset(self._others.list_stopping()) - self._saved

    def say_saved(self, servers: frozenset[str]) -> None:
        """Lets some of them leave."""
        if servers and not self._others.is_stopping():
            logger.warning("saved for %d parameter servers that were told to end", len(servers))
            self._saved |= servers
            self._others.say_saved(self._saved)


class _Timer:
    def __init__(self, timer: Any, servers: StoppingServers) -> None:
        self._timer = timer
        self._servers = servers

    def should_trigger_for_step(self, step: int) -> bool:
        return self._timer.should_trigger_for_step(step) or bool(self._servers.find_unsaved())

    def __getattr__(self, name: str) -> Any:
        if name == "_timer":  # Before it is set, as while it is copied.
            raise AttributeError(name)
        return getattr(self._timer, name)


class _SaverListener(tf.compat.v1.train.CheckpointSaverListener):
    def __init__(self, servers: StoppingServers) -> None:
        self._servers = servers
        self._unsaved: frozenset[str] = frozenset()

    def before_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        # Who comes later may have lost something by then.
        self._unsaved = self._servers.find_unsaved()

    def after_save(self, session: tf.compat.v1.Session, global_step_value: int) -> None:
        self._servers.say_saved(self._unsaved)
