"""Ranks that have different amounts of data end together, and none of it is lost.

The ranks of a synchronous job wait for each other in every step, so one whose data has ended must
not just leave. `EofAwareTask` wraps a task: its input says of each batch whether it is the last,
the ranks tell each other in every step, and training ends when all have had their last. Until then
a rank without data

- keeps the others company in their steps, if these have collectives: it repeats its last batch, or
  an empty one if it never had any, and averages of gradients leave it out
  (`monolith.graph.collectives.leave_out_idle`);
- waits, if steps have none.

Example:
    >>> dataset = mark_last(tf.data.Dataset.range(3))
    >>> [(int(x), bool(last), bool(idle)) for x, last, idle in dataset.take(5)]
    [(0, False, False), (1, False, False), (2, True, False), (2, True, True), (2, True, True)]
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.graph import collectives, server_collectives
from monolith.graph.mode_keys import ModeKeys
from monolith.model.task import NativeContext, NativeTask
from monolith.training.hooks.rank_flags import RankFlags, check_active

_IDLE_KEY = "__EofAwareTask_idle"

# What ops of collectives are called, of the libraries that there are.
_COLLECTIVE_OPS = ("Collective", "Horovod", "Byteps", "BytePS")


def mark_last(dataset: tf.data.Dataset, filler: Any = None) -> tf.data.Dataset:
    """Returns the elements, each with whether it is the last, and whether it is a repetition.

    The dataset does not end any more: its last element is repeated.

    Args:
        dataset: The elements.
        filler: What is repeated if there are none; None is what `make_empty_batch` returns.
    """
    spec = dataset.element_spec
    # As plain tensors: TensorFlow cannot carry ragged ones from element to element.
    filler = _flatten(make_empty_batch(spec) if filler is None else filler)
    end = tf.data.Dataset.from_tensors((filler, True)).repeat()
    marked = dataset.map(lambda *parts: (_flatten(_join(parts)), False)).concatenate(end)
    # State: the element to give next, whether it is one, and whether it was given as the last.
    start = (filler, False, False)

    def give_previous(state: Any, following: Any) -> Any:
        element, is_there, is_ended = state
        next_element, is_end = following
        # Before the first element there is only the filler, which an empty dataset gives.
        is_idle = tf.logical_or(is_ended, tf.logical_not(is_there))
        given = (element, is_end, is_idle)
        kept = tuple(
            tf.cond(is_end, lambda old=old: old, lambda new=new: new)
            for old, new in zip(element, next_element, strict=True)
        )
        next_state = (kept, tf.logical_or(is_there, tf.logical_not(is_end)), is_end)
        return next_state, (given, tf.logical_or(is_there, is_end))

    found = marked.scan(start, give_previous).filter(lambda given, is_given: is_given)

    def pack(given: Any, is_given: tf.Tensor) -> Any:
        flat, is_last, is_idle = given
        element = tf.nest.pack_sequence_as(spec, flat, expand_composites=True)
        return element, is_last, is_idle

    return found.map(pack)


class EofAwareTask(NativeTask):
    """A task whose ranks end together; otherwise it is the task that it wraps.

    In a job of one rank whose input is its own there is nothing to do, and nothing is done.

    Args:
        task: The task.
        use_dataservice: Whether the input comes from a data service, whose readers get what is
            left when they ask; the end of the input is looked for then even with one rank.
    """

    EOF_KEY = "__EofAwareTask_eof"
    INPUT_FN_WRAPPER_KEY = "wrapped"

    def __init__(self, task: NativeTask, use_dataservice: bool = False) -> None:
        super().__init__(task.p)
        self._task = task
        self._use_dataservice = use_dataservice

    def __getattr__(self, name: str) -> Any:
        if name == "_task":  # Before it is set, as while it is unpickled.
            raise AttributeError(name)
        return getattr(self._task, name)

    @property
    def ctx(self) -> NativeContext:
        return self._task.ctx

    def create_input_fn(self, mode: str) -> Callable[..., Any]:
        input_fn = self._task.create_input_fn(mode)
        is_wrapped = getattr(input_fn, self.INPUT_FN_WRAPPER_KEY, False)
        if mode != ModeKeys.TRAIN or is_wrapped or not self._is_needed():
            return input_fn

        @functools.wraps(input_fn)
        def wrapped(*args: Any, **kwargs: Any) -> tf.data.Dataset:
            dataset = input_fn(*args, **kwargs)
            if not isinstance(dataset, tf.data.Dataset):
                raise errors.ConfigError(
                    f"The input of {type(self._task).__name__} must be a tf.data.Dataset for ranks "
                    f"to end together, got {type(dataset).__name__}."
                )
            make_empty = getattr(self._task, "make_empty_batch", make_empty_batch)
            return mark_last(dataset, make_empty(dataset.element_spec)).map(self._add_flags)

        setattr(wrapped, self.INPUT_FN_WRAPPER_KEY, True)
        return wrapped

    def create_model_fn(self) -> Callable[..., Any]:
        model_fn = self._task.create_model_fn()
        if getattr(self._task, "handles_end_of_input", False):
            return model_fn

        @functools.wraps(model_fn)
        def wrapped(features: Any, *args: Any, **kwargs: Any) -> Any:
            features, is_last, is_idle = split_flags(features)
            if is_last is None:
                return model_fn(features, *args, **kwargs)
            flags = announce(is_last, is_idle)
            spec = model_fn(features, *args, **kwargs)
            hook = EofHook(is_last, [spec.train_op, spec.loss], flags)
            return spec._replace(training_hooks=(hook, *(spec.training_hooks or ())))

        return wrapped

    def create_serving_input_receiver_fn(self) -> Callable[[], Any] | None:
        return self._task.create_serving_input_receiver_fn()

    def _is_needed(self) -> bool:
        return self._use_dataservice or collectives.size() > 1

    def _add_flags(self, features: Any, is_last: tf.Tensor, is_idle: tf.Tensor) -> dict[str, Any]:
        if isinstance(features, dict):
            return {**features, self.EOF_KEY: is_last, _IDLE_KEY: is_idle}
        return {"1": features, "2": is_last, _IDLE_KEY: is_idle}


def split_flags(features: Any) -> tuple[Any, Any, Any]:
    """Returns features as they were, whether they are the last, and whether a repetition.

    None for both flags, if nobody has added them.
    """
    if not isinstance(features, dict) or _IDLE_KEY not in features:
        return features, None, None
    rest = dict(features)
    is_idle = rest.pop(_IDLE_KEY)
    if EofAwareTask.EOF_KEY in rest:
        is_last = rest.pop(EofAwareTask.EOF_KEY)
        return rest, is_last, is_idle
    return rest["1"], rest["2"], is_idle


def announce(is_last: tf.Tensor, is_idle: tf.Tensor) -> RankFlags:
    """Lets the graph know whether its batch is the last one, and makes ranks tell each other."""
    tf.compat.v1.add_to_collection(EofAwareTask.EOF_KEY, is_last)
    flags = RankFlags(is_last, is_idle)
    if collectives.size() > 1:
        tf.compat.v1.add_to_collection(collectives.IDLE, is_idle)
    return flags


def agree_in_steps(is_last: tf.Tensor | None, is_idle: tf.Tensor | None) -> RankFlags | None:
    """Returns what ranks tell each other in a step; None if there is only one.

    Args:
        is_last: Whether the batch is the last one, None if nobody knows.
        is_idle: Whether it is a repetition.
    """
    if is_last is not None:
        return announce(is_last, is_idle)
    return RankFlags() if collectives.size() > 1 else None


class EofHook(tf.compat.v1.train.SessionRunHook):
    """Ends training when all ranks have had their last batch.

    Args:
        is_last: Whether the batch of the step is the last of this rank.
        step: What a step runs, to see whether there are collectives in it.
        flags: What ranks tell each other in a step.
    """

    def __init__(self, is_last: tf.Tensor, step: list[Any], flags: RankFlags) -> None:
        self._is_last = is_last
        self._step = step
        self._flags = flags
        self._must_accompany = False

    def begin(self) -> None:
        self._must_accompany = has_collectives(self._step)

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        return tf.compat.v1.train.SessionRunArgs(
            [self._is_last, self._flags.fed_idle, self._flags.totals]
        )

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        is_last, is_idle, totals = run_values.results
        self._check_data(is_idle[0], totals)
        if is_last and not self._must_accompany:
            feeds = {self._flags.fed_last: [True], self._flags.fed_idle: [True]}
            with collectives.named_losses():
                while not self._have_all_ended(totals):
                    totals = run_context.session.run(self._flags.totals, feeds)
        if self._have_all_ended(totals):
            run_context.request_stop()

    def _check_data(self, is_idle: bool, totals: Any) -> None:
        """Refuses steps that nobody has data for, or in which this rank cannot be left out."""
        check_active(self._flags.read(totals))
        if is_idle and not self._must_accompany:
            raise errors.ConfigError(
                f"Rank {collectives.rank()} has no data, and the steps of this model have nothing "
                "that ranks do together; give each rank at least one batch."
            )

    def _have_all_ended(self, totals: Any) -> bool:
        return self._flags.read(totals).num_ended == collectives.size()


def has_collectives(fetches: list[Any]) -> bool:
    """Returns whether running some ops or tensors takes all ranks."""
    meetings = set(tf.compat.v1.get_collection(server_collectives.MEETINGS))
    pending = [getattr(fetch, "op", fetch) for fetch in tf.nest.flatten(fetches)]
    seen = set()
    while pending:
        op = pending.pop()
        if op is None or op in seen:
            continue
        if op.type.startswith(_COLLECTIVE_OPS) or op in meetings:
            return True
        seen.add(op)
        pending += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return False


def _join(parts: tuple[Any, ...]) -> Any:
    """Undoes that `map` hands the parts of a tuple to a function as its arguments."""
    return parts[0] if len(parts) == 1 else parts


def _flatten(element: Any) -> tuple[tf.Tensor, ...]:
    return tuple(tf.nest.flatten(element, expand_composites=True))


def make_empty_batch(spec: Any) -> Any:
    """Returns an element that looks like those of a dataset, of zeros and of examples without ids.

    Where the size of a batch is not known it has one example: means over none are NaN.

    Raises:
        errors.ConfigError: There are parts that this cannot be made of.
    """

    def make(part: Any) -> Any:
        if isinstance(part, tf.TensorSpec):
            return tf.zeros(_fill_in(part.shape), part.dtype)
        if isinstance(part, tf.RaggedTensorSpec):
            return _make_ragged(part)
        if isinstance(part, tf.SparseTensorSpec):
            dense_shape = _fill_in(part.shape) or [1]
            indices = tf.zeros([0, len(dense_shape)], tf.int64)
            return tf.SparseTensor(indices, tf.zeros([0], part.dtype), dense_shape)
        raise errors.ConfigError(
            f"Batches with a part of type {type(part).__name__} cannot be looked ahead at; give "
            "tensors, ragged tensors or sparse tensors."
        )

    return tf.nest.map_structure(make, spec)


def _fill_in(shape: tf.TensorShape) -> list[int]:
    if shape.rank is None:
        return []
    return [1 if size is None else size for size in shape]


def _make_ragged(spec: tf.RaggedTensorSpec) -> tf.RaggedTensor:
    values = tf.zeros([0, *_fill_in(spec.shape[spec.ragged_rank + 1 :])], spec.dtype)
    (num_rows,) = _fill_in(spec.shape[:1])
    for depth in reversed(range(spec.ragged_rank)):
        count = num_rows if depth == 0 else 0
        values = tf.RaggedTensor.from_row_splits(
            values, tf.zeros([count + 1], spec.row_splits_dtype), validate=False
        )
    return values
