"""The loop that trains: which hooks a session gets, in which order, and how the loop ends.

In every phase the hooks run in this order; workers that are not the chief have only the second
part:

1. the chief's: the one that saves, those of the model for the chief, speed, summaries;
2. the input's, those given to `train`, the limit of steps, the check of the loss, the log line,
   those of the model for every worker.

So what the chief restores is there before any other hook of it acts. Among ranks that agree when to
stop, the limit of steps goes last: it is the same in all of them, and what other hooks ask is not.

Where a `WatchHook` shows or writes how training is getting on, the loop does not do so as well:
there is no log line and no count of steps, and no summary of the loss if the hook writes one.
"""

import contextlib
import copy
import itertools
import logging
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.timer import SecondOrStepTimerWithTideSetting
from monolith.data.errors import describe_empty_input, find_sentence
from monolith.graph import collectives
from monolith.graph.run_config import GraphRunConfig
from monolith.graph.spec import GraphSpec, Hook
from monolith.training.hooks import interrupt
from monolith.training.hooks.cached_fetches import CachedFetchesHook
from monolith.training.hooks.evaluation import EvaluationHook
from monolith.training.hooks.interrupt import StopOnSignalHook
from monolith.training.hooks.nan_loss import NanLossHook
from monolith.training.hooks.rank_flags import AgreementHook, LocalStopHook
from monolith.training.hooks.saved_steps import SavedStepsHook
from monolith.training.hooks.serving_sync import ServingSyncHook
from monolith.training.hooks.summaries import SummaryWriter
from monolith.training.hooks.sync_training import ParameterSyncHook
from monolith.training.hooks.watch import WatchHook

logger = logging.getLogger(__name__)

_CLOSED = (EvaluationHook, ParameterSyncHook, ServingSyncHook, WatchHook)


def make_stop_hooks(steps: int | None, max_steps: int | None) -> list[Hook]:
    """Returns the hook that ends training after `steps`, or at the global step `max_steps`.

    Raises:
        errors.ConfigError: Both are given, or one is not positive.
    """
    if steps is not None and max_steps is not None:
        raise errors.ConfigError("Can not provide both steps and max_steps.")
    for name, value in (("steps", steps), ("max_steps", max_steps)):
        if value is not None and value <= 0:
            raise errors.ConfigError(f"Must specify {name} > 0, given: {value}")
    if steps is None and max_steps is None:
        return []
    return [tf.compat.v1.train.StopAtStepHook(num_steps=steps, last_step=max_steps)]


def run_training(
    spec: GraphSpec,
    config: GraphRunConfig,
    session_config: Any,
    input_hooks: Sequence[Hook],
    user_hooks: Sequence[Hook],
) -> None:
    """Trains the model of the default graph until its input ends or a hook asks to stop.

    Ctrl-C and SIGTERM, unless the program handles or ignores them, stop training after the step
    that is going on; the hooks that save do so, and then the program ends.

    Args:
        spec: What the model function built.
        config: How to run; has a `model_dir`.
        session_config: `ConfigProto` of the session.
        input_hooks: Hooks of the input.
        user_hooks: Hooks given by the caller.

    Raises:
        errors.ConfigError: The spec lacks a loss or a train op, or the input is empty.
        errors.DataError: The input is not what it was said to be.
        NanLossError: The loss became NaN.
        RankLostError: Another rank of a synchronous job is gone.
        KeyboardInterrupt: Ctrl-C has stopped the training, which is saved.
        SystemExit: SIGTERM has, with the code 143.
    """
    if spec.loss is None or spec.train_op is None:
        raise errors.ConfigError(
            "To train, the model function must give a loss and a train_op; got loss "
            f"{spec.loss!r} and train_op {spec.train_op!r}."
        )
    model_dir = config.model_dir
    assert model_dir is not None
    own_hooks = (*user_hooks, *spec.training_hooks, *spec.training_chief_hooks)
    watchers = [hook for hook in own_hooks if isinstance(hook, WatchHook)]
    log_steps = None if watchers else config.log_step_count_steps
    summary_steps = config.save_summary_steps
    if any(isinstance(reporter, SummaryWriter) for hook in watchers for reporter in hook.reporters):
        # Beside what the hook writes, only what the model adds is left to write.
        if not tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES):
            summary_steps = None
    else:
        _add_loss_summary(spec.loss)
    tf.compat.v1.add_to_collection(tf.compat.v1.GraphKeys.LOSSES, spec.loss)
    global_step = tf.compat.v1.train.get_global_step()
    nan_hook = NanLossHook(spec.loss, spec.train_op)
    hooks = [CachedFetchesHook(), *input_hooks, *user_hooks, nan_hook]
    stop_hook = None
    if not any(isinstance(hook, StopOnSignalHook) for hook in own_hooks):
        stop_hook = StopOnSignalHook(only_default=True)
        hooks.insert(0, stop_hook)
    if log_steps is not None:
        shown = {"loss": spec.loss, "step": global_step}
        hooks.append(tf.compat.v1.train.LoggingTensorHook(shown, every_n_iter=log_steps))
    hooks += spec.training_hooks
    agreements = [hook for hook in own_hooks if isinstance(hook, AgreementHook)]
    if agreements:
        hooks = _stop_together(hooks, agreements[0])
    chief_hooks = [
        # Before all others, which may do much after a step: what the ranks watch is the step alone.
        *collectives.make_watch_hooks(),
        *_make_saver_hooks(spec, config, hooks),
        *spec.training_chief_hooks,
    ]
    savers = _find_savers(hooks, chief_hooks)
    for hook in user_hooks:
        if isinstance(hook, SavedStepsHook) and savers:
            hook.let_save(savers[0])
    # Each rank of a synchronous job has a session of its own, and makes its own variables.
    target = collectives.get_session_target()
    if target:
        session_config = copy.deepcopy(session_config)
        collectives.update_session_config(session_config)
    session_args = {
        "master": target or config.master,
        "is_chief": config.is_chief or bool(target),
        "checkpoint_dir": model_dir,
        "summary_dir": config.summary_dir,
        "scaffold": spec.scaffold,
        "hooks": hooks,
        "chief_only_hooks": chief_hooks,
        "save_checkpoint_secs": 0,
        "save_summaries_steps": summary_steps,
        "config": session_config,
        "max_wait_secs": config.session_creation_timeout_secs,
        "log_step_count_steps": log_steps,
    }
    num_steps, input_ended = 0, False
    with (
        collectives.named_losses(),
        named_data_errors(),
        released([*hooks, *chief_hooks]),
        tf.compat.v1.train.MonitoredTrainingSession(**session_args) as session,
    ):
        try:
            while not session.should_stop():
                session.run([spec.train_op, spec.loss])
                num_steps += 1
        except tf.errors.OutOfRangeError as e:
            # One that a hook raises, to end training before its first step, names no op.
            input_ended = e.op is not None
            raise  # The session takes it as a normal end.
        except tf.errors.InvalidArgumentError as e:
            if not nan_hook.is_cause_of(e):
                raise
            step = session.run_step_fn(lambda step_context: step_context.session.run(global_step))
            nan_hook.explain(int(step), tf.train.latest_checkpoint(model_dir), e)
    if stop_hook is not None and stop_hook.received is not None:
        _report_stop(stop_hook.received, model_dir, bool(savers))
        interrupt.end_as_told(stop_hook.received)
    if input_ended and num_steps == 0:
        _report_empty_input(config)


def _stop_together(hooks: Sequence[Hook], agreement: AgreementHook) -> list[Hook]:
    """Returns hooks with which all ranks stop if one of them is asked to by a hook."""
    # The limits of steps are those of all ranks.
    limits = [hook for hook in hooks if isinstance(hook, tf.compat.v1.train.StopAtStepHook)]
    others = [hook for hook in hooks if hook not in limits]
    return [*others, LocalStopHook(agreement), *limits]


def _find_savers(*hooks: Sequence[Hook]) -> list[Hook]:
    return [
        hook
        for hook in itertools.chain(*hooks)
        if isinstance(hook, tf.compat.v1.train.CheckpointSaverHook)
    ]


def _report_stop(number: signal.Signals, model_dir: str, is_saved: bool) -> None:
    """Says where training has stopped, and how it goes on."""
    checkpoint = tf.train.latest_checkpoint(model_dir) if is_saved else None
    if checkpoint is None:
        logger.warning("%s: training has stopped, and saves nothing", number.name)
        return
    logger.warning(
        "%s: training has stopped at step %d, which is saved in %s; the same program goes on from "
        "there",
        number.name,
        SaveHelper.get_global_step_value(checkpoint),
        model_dir,
    )


@contextlib.contextmanager
def released(hooks: Sequence[Hook]) -> Iterator[None]:
    """Makes hooks let go of signals, of the terminal and of their threads after a block.

    If it fails, nobody tells them of its end.
    """
    with contextlib.ExitStack() as ending:  # Reaches all, whatever becomes of one.
        for hook in reversed(hooks):
            if isinstance(hook, StopOnSignalHook):
                ending.callback(hook.restore_handlers)
            elif isinstance(hook, _CLOSED):
                ending.callback(hook.close)
        yield


@contextlib.contextmanager
def named_data_errors() -> Iterator[None]:
    """Makes of what TensorFlow says about bad data the sentence that a reader has said about it.

    Raises:
        errors.DataError: A reader has found bad data in the block.
    """
    try:
        yield
    # TensorFlow quotes data in messages, of which not all are text.
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        sentence = find_sentence(error)
        if sentence is None:
            raise
        raise errors.DataError(sentence) from error


def _add_loss_summary(loss: tf.Tensor) -> None:
    summaries = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)
    if not any(summary.op.name == "loss" for summary in summaries):
        tf.compat.v1.summary.scalar("loss", loss)


def _make_saver_hooks(spec: GraphSpec, config: GraphRunConfig, hooks: Sequence[Hook]) -> list[Hook]:
    """Returns the hook that saves, unless the model has its own or nothing is to be saved."""
    savers = tf.compat.v1.GraphKeys.SAVERS
    if not spec.scaffold.saver and not tf.compat.v1.get_collection(savers):
        tf.compat.v1.add_to_collection(
            savers,
            tf.compat.v1.train.Saver(
                sharded=True,
                max_to_keep=config.keep_checkpoint_max,
                defer_build=True,
                save_relative_paths=True,
            ),
        )
    saves = config.save_checkpoints_steps or config.save_checkpoints_secs
    own = (*hooks, *spec.training_chief_hooks)
    if not saves or _find_savers(own):
        return []
    secs, steps = config.save_checkpoints_secs, config.save_checkpoints_steps
    saver_hook = tf.compat.v1.train.CheckpointSaverHook(
        config.model_dir, save_secs=secs, save_steps=steps, scaffold=spec.scaffold
    )
    saver_hook._timer = SecondOrStepTimerWithTideSetting(secs, steps)
    return [saver_hook]


def _report_empty_input(config: GraphRunConfig) -> None:
    """Raises, unless this worker's share of the input can be empty for a good reason."""
    message = describe_empty_input("trained")
    # Beside other workers there may be nothing left for this one.
    if config.is_chief:
        raise errors.ConfigError(message)
    logger.warning(message)
