"""Queues between the parts of a synchronous step, so that parts of several steps run at once.

    lookup -> [1] -> rows travel -> [2] -> model -> [3] -> gradients travel -> [4] -> update

Without a queue, a step is all of this, one after the other. Each queue lets what is behind it work
on an older batch than what is before it, in the same call of the session: 1 and 2 look up batches
ahead, whose rows then lack the updates of the steps in between; 3 and 4 update rows one step late.
All ranks fill and empty their queues in the same steps, so that their exchanges meet.

Example:
    >>> collectives.init()
    >>> with tf.Graph().as_default():
    ...     queues = RankQueues({"enable_pipelined_fwda2a": 1})
    ...     rows = queues.after_lookup(tf.constant([1.0]))
    ...     len(queues.forward_hooks)
    1
    >>> collectives.shutdown()
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.graph import collectives
from monolith.tensor import look_ahead, prefetch

_FORWARD_EXCHANGE = "enable_pipelined_fwda2a"
_PREFETCH = "embedding_prefetch_capacity"
_ASYNC_OPTIMIZE = "enable_async_optimize"
_BACKWARD_EXCHANGE = "enable_pipelined_bwda2a"
NAMES = (_PREFETCH, _ASYNC_OPTIMIZE, _FORWARD_EXCHANGE, _BACKWARD_EXCHANGE)


class RankQueues:
    """The queues of one graph.

    Args:
        configs: By name of the setting, 0 for none: `enable_pipelined_fwda2a` (queue 1),
            `embedding_prefetch_capacity` (queue 2, of so many batches), `enable_async_optimize`
            (queue 3) and `enable_pipelined_bwda2a` (queue 4).

    Raises:
        ConfigError: There is no such queue, or its capacity is negative.
    """

    def __init__(self, configs: Mapping[str, int]) -> None:
        for name, capacity in configs.items():
            if name not in NAMES:
                raise errors.ConfigError(
                    f"There is no queue `{name}` in a synchronous step; there are "
                    f"{', '.join(NAMES)}."
                )
            if capacity < 0:
                raise errors.ConfigError(f"`{name}` must be 0 or more, got {capacity}.")
        self._capacities = {name: int(configs.get(name, 0)) for name in NAMES}
        self.forward_hooks: list[look_ahead.LookAheadHook] = []
        self._late = prefetch.AsyncFunctionMgr(is_async=True)

    @property
    def push_hooks(self) -> list["LatePushes"]:
        """The hook that updates rows late; none, if all are updated in their step."""
        return [LatePushes(self._late.hooks)] if self._late.hooks else []

    @property
    def sends_late(self) -> bool:
        """Whether gradients travel in another call of the session than that of their step."""
        return self._capacities[_ASYNC_OPTIMIZE] > 0

    def send_late(self) -> None:
        """Has gradients travel in another call of the session, whatever the settings say."""
        self._capacities[_ASYNC_OPTIMIZE] = 1

    def after_lookup(self, tensors: Any) -> Any:
        """Queue 1: rows wait to travel."""
        # On or off, whatever the number.
        capacity = min(1, self._capacities[_FORWARD_EXCHANGE])
        return self._look_ahead(tensors, capacity, "queue_lookup_to_fusedEmbA2A")

    def after_exchange(self, tensors: Any) -> Any:
        """Queue 2: rows wait for the model."""
        capacity = self._capacities[_PREFETCH]
        return self._look_ahead(tensors, capacity, "queue_fusedEmbA2A_to_fusedGather")

    def before_exchange(self, send: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Queue 3: gradients wait to travel."""
        return self._call(_ASYNC_OPTIMIZE, send, args, "queue_fusedGatherGrad_to_fusedEmbGradA2A")

    def before_update(self, update: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Queue 4: gradients wait for the update."""
        return self._call(
            _BACKWARD_EXCHANGE, update, args, "queue_fusedEmbGradA2A_to_sparseOptimize"
        )

    def _look_ahead(self, tensors: Any, capacity: int, name: str) -> Any:
        if capacity == 0:
            return tensors
        tensors, queue = prefetch.enqueue_dicts_with_queue_return(
            tensors, look_ahead.get_queue_capacity(capacity), name
        )
        assert queue is not None
        if collectives.size() == 1:
            # Nobody to keep in step with, and input that may end.
            self.forward_hooks.append(look_ahead.LookAheadHook(queue, capacity))
        else:
            self.forward_hooks.append(StepwiseHook(queue, capacity, list(self.forward_hooks)))
        return tensors

    def _call(
        self, setting: str, function: Callable[..., Any], args: tuple[Any, ...], name: str
    ) -> Any:
        is_late = self._capacities[setting] > 0
        return self._late.add_async_function(function, args, is_async=is_late, queue_name=name)


class StepwiseHook(look_ahead.LookAheadHook):
    """Fills a queue by one batch along with each step, in the same call of the session.

    A thread of its own would do so at moments that differ between ranks. The input must not end
    before training does.

    Args:
        queue: The queue.
        capacity: How many batches wait in it.
        before: The hooks of queues that this one is filled from.
    """

    def __init__(self, queue: Any, capacity: int, before: list[Any]) -> None:
        super().__init__(queue, capacity)
        self._fill_one = [queue.enqueue_op, *[hook._fill_one[0] for hook in before]]
        self._before = before
        self._sizes = collectives.allgather(
            tf.reshape(tf.cast(self._size, tf.int32), [1]), same_shape=True
        )
        self._is_filled = False

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        if not self._is_filled:
            for hook in [*self._before, self]:
                hook._fill_first(run_context.session)
        return tf.compat.v1.train.SessionRunArgs(self._fill_one[0])

    def _create_threads(self, session: tf.compat.v1.Session, coord: tf.train.Coordinator) -> None:
        self._is_filled = False

    def _fill_first(self, session: tf.compat.v1.Session) -> None:
        """Fills the queue in all ranks, unless a checkpoint has filled it in all of them."""
        if self._is_filled:
            return
        self._is_filled = True
        sizes = session.run(self._sizes)
        if (sizes == self._capacity).all():
            return
        for _ in range(int(sizes[collectives.rank()])):
            session.run(self._take)
        for _ in range(self._capacity):
            session.run(self._fill_one)


class LatePushes(tf.compat.v1.train.SessionRunHook):
    """Hooks of queues of which one is filled by what empties the other, as one hook.

    Args:
        hooks: Those queues, the last first.
    """

    def __init__(self, hooks: list[prefetch.AsyncPushHook]) -> None:
        self._hooks = list(hooks)

    def begin(self) -> None:
        for hook in self._hooks:
            hook.begin()

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        for hook in self._hooks:
            hook.after_create_session(session, coord)

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs | None:
        asked = [hook.before_run(run_context) for hook in self._hooks]
        fetches = [args.fetches for args in asked if args is not None]
        return tf.compat.v1.train.SessionRunArgs(fetches) if fetches else None

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        for hook in self._hooks:
            hook.after_run(run_context, run_values)

    def drain(self, session: tf.compat.v1.Session) -> None:
        """Pushes all that waits."""
        # Ranks push together, between two steps.
        with collectives.named_losses():
            # What leaves one queue enters the one behind it, which must have room, and is then
            # emptied.
            for hook in [*self._hooks, *self._hooks]:
                hook.drain(session)

    def end(self, session: tf.compat.v1.Session) -> None:
        self.drain(session)
        for hook in self._hooks:
            hook.end(session)
