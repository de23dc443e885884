"""What one rank decides alone; `tests/integration/sync_training_test.py` has several."""

import signal

import pytest
import tensorflow as tf

from monolith.checkpoint.timer import SecondOrStepTimerWithTideSetting
from monolith.graph import collectives
from monolith.training.hooks import rank_flags

pytestmark = pytest.mark.usefixtures("graph_mode")


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(collectives, "_lib", collectives._Lib())
    collectives.init()
    yield
    collectives.shutdown()


@pytest.fixture
def agreement():
    tf.compat.v1.train.create_global_step()
    flags = rank_flags.RankFlags()
    return rank_flags.AgreementHook(flags, rank_flags.StopTogetherHook())


def run(agreement, num_steps, before_step=lambda number: None, hooks=()):
    """Returns after which steps ranks save, and how many steps there were."""
    step = tf.compat.v1.assign_add(tf.compat.v1.train.get_global_step(), 1)
    saves, number = [], 0
    hooks = [agreement._stop_hook, agreement, *hooks]
    with tf.compat.v1.train.SingularMonitoredSession(hooks=hooks) as session:
        while number < num_steps and not session.should_stop():
            number += 1
            before_step(number)
            session.run(step)
            if agreement.must_save:
                saves.append(number)
    return saves, number


def test_saves_when_rank_0_wants_to(agreement):
    agreement.wants_save = lambda step: step in (2, 3, 5)
    assert run(agreement, 6) == ([2, 3, 5], 6)
    assert agreement.received is None


def test_timer(agreement):
    timer = SecondOrStepTimerWithTideSetting(every_steps=2)
    agreed = rank_flags.AgreedTimer(timer, agreement)
    timer.update_last_triggered_step(0)

    def before_step(number):
        if agreed.should_trigger_for_step(number):
            agreed.update_last_triggered_step(number - 1)

    assert run(agreement, 6, before_step)[0] == [2, 4, 6]
    assert agreed.last_triggered_step() == 4


def test_stops_after_the_step_in_which_all_know(agreement):
    def before_step(number):
        if number == 3:
            signal.raise_signal(signal.SIGTERM)

    assert run(agreement, 10, before_step) == ([], 3)
    assert agreement.received is signal.SIGTERM


def test_signal_of_another_rank():
    agreed = rank_flags.RankFlags.read([0, 2, 1, 0, 1])
    assert agreed == rank_flags.Agreed(0, 2, True, False, True)


class After(tf.compat.v1.train.SessionRunHook):
    """Does something after a step, once."""

    def __init__(self, step, act=lambda run_context: run_context.request_stop()):
        self._left = step
        self._act = act

    def after_run(self, run_context, run_values):
        self._left -= 1
        if self._left == 0:
            self._act(run_context)


def test_a_hook_that_asks_to_stop_stops_all_after_one_more_step(agreement):
    hooks = [After(3), rank_flags.LocalStopHook(agreement)]
    assert run(agreement, 10, hooks=hooks) == ([], 4)
    # Nobody has sent a signal, with whose code the program would end.
    assert agreement.received is None


def test_a_stop_of_all_is_not_delayed(agreement):
    hooks = [rank_flags.LocalStopHook(agreement), After(3)]
    assert run(agreement, 10, hooks=hooks) == ([], 3)


def test_a_signal_during_the_last_step_is_not_forgotten(agreement):
    told = After(4, lambda run_context: signal.raise_signal(signal.SIGTERM))
    hooks = [After(3), told, rank_flags.LocalStopHook(agreement)]
    assert run(agreement, 10, hooks=hooks) == ([], 4)
    assert agreement.received is signal.SIGTERM
