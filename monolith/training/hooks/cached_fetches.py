"""Makes a session remember what it was asked for.

Before a step, `Session.run` looks at everything that is fetched for the loop and its hooks, and
after it puts the results together again. That takes as long as a tenth of a step of a small model,
for an answer that is the same in nearly all steps.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     one = tf.constant(1)
    ...     hooks = [CachedFetchesHook()]
    ...     with tf.compat.v1.train.MonitoredSession(hooks=hooks) as session:
    ...         print([int(session.run(one)) for _ in range(2)])
    [1, 1]
"""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

_MAX_CACHED = 64


class CachedFetchesHook(tf.compat.v1.train.SessionRunHook):
    """Speeds up the steps of its session; what they fetch and what hooks see stays the same."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        del coord
        # The classes around the session call its `run`.
        session.run = _CachedRun(session, session.run)


class _CachedRun:
    """Stands in for `Session.run`."""

    def __init__(self, session: Any, run: Callable[..., Any]) -> None:
        self._session = session
        self._run = run
        self._steps: dict[tuple[int, ...], _Step] = {}  # By the ids of what is fetched.

    def __call__(
        self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        # An empty message asks for nothing, so there will be no metadata either.
        is_plain = not feed_dict and (options is None or options.ByteSize() == 0)
        leaves: list[Any] = []
        if not (is_plain and isinstance(fetches, dict) and _flatten(fetches, leaves)):
            return self._run(fetches, feed_dict, options, run_metadata)
        key = tuple(map(id, leaves))
        if key not in self._steps:
            if len(self._steps) == _MAX_CACHED:
                return self._run(fetches, feed_dict, options, run_metadata)
            self._steps[key] = _Step(self._session, leaves)
        # Errors get the op that failed, as those of `run` do.
        results = self._session._do_call(self._steps[key])
        return _pack(fetches, iter(results))


class _Step:
    """Gets tensors and runs ops."""

    def __init__(self, session: Any, leaves: list[Any]) -> None:
        self._leaves = leaves  # Held, so that no other object takes the id of one.
        options = config_pb2.CallableOptions()
        places: dict[str, int] = {}
        for leaf in leaves:
            if isinstance(leaf, tf.Operation):
                options.target.append(leaf.name)
            else:
                places.setdefault(leaf.name, len(places))
        options.fetch.extend(places)
        self._run = session._make_callable_from_options(options)
        self._places = [places.get(leaf.name) for leaf in leaves]

    def __call__(self) -> list[Any]:
        results = self._run()
        return [None if place is None else results[place] for place in self._places]


def _flatten(fetches: Any, leaves: list[Any]) -> bool:
    """Appends the tensors and ops; returns False for structures that only `run` understands."""
    if isinstance(fetches, tf.Tensor | tf.Operation):
        leaves.append(fetches)
        return True
    if type(fetches) is dict:
        return all(_flatten(value, leaves) for value in fetches.values())
    if type(fetches) in (list, tuple):
        return all(_flatten(value, leaves) for value in fetches)
    return False


def _pack(fetches: Any, results: Iterator[Any]) -> Any:
    """Returns the results in the structure of the fetches."""
    if type(fetches) is dict:
        return {key: _pack(value, results) for key, value in fetches.items()}
    if type(fetches) in (list, tuple):
        return type(fetches)(_pack(value, results) for value in fetches)
    return next(results)
