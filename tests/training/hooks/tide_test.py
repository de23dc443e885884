"""Stopping with the tide, and waiting for a global step."""

import logging
import time
from unittest import mock

import freezegun
import pytest
import tensorflow as tf

from monolith import errors
from monolith.native_training import session_run_hooks
from monolith.training.hooks import tide


class FakeTime:
    """A clock that moves only while somebody sleeps; `on_sleep` sees the number of each sleep."""

    def __init__(self, on_sleep=lambda count: None):
        self.now_sec = 1000.0
        self.sleeps = []
        self._on_sleep = on_sleep

    def clock(self):
        return self.now_sec

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now_sec += seconds
        self._on_sleep(len(self.sleeps))


class StepSetter:
    """The global step of a fresh graph, its session, and a way to move it."""

    def __init__(self):
        self.step = tf.compat.v1.train.get_or_create_global_step()
        self._value = tf.compat.v1.placeholder(tf.int64, [])
        self._assign = tf.compat.v1.assign(self.step, self._value)

    def open(self):
        self.session = tf.compat.v1.Session()
        self.session.run(tf.compat.v1.global_variables_initializer())
        return self.session

    def set(self, value):
        self.session.run(self._assign, {self._value: value})


def make_context(session):
    return tf.compat.v1.train.SessionRunContext(
        original_args=tf.compat.v1.train.SessionRunArgs(None), session=session
    )


def fail_on_sleep(seconds):
    raise AssertionError(f"The hook waits {seconds} seconds instead of returning.")


def test_historical_path():
    assert session_run_hooks is tide


@pytest.mark.usefixtures("graph_mode")
class GlobalStepWaiterHookTest(tf.test.TestCase):
    def test_not_wait_for_step_zero(self):
        steps = StepSetter()
        hook = session_run_hooks.CustomGlobalStepWaiterHook(wait_until_step=0)
        hook.begin()
        with steps.open() as session, mock.patch.object(time, "sleep", fail_on_sleep):
            context = make_context(session)
            hook.before_run(context)
        self.assertFalse(context.stop_requested)

    def test_not_wait_if_tide_not_available(self):
        steps = StepSetter()
        hook = session_run_hooks.CustomGlobalStepWaiterHook(
            wait_until_step=1000,
            tide_start_hour=1,
            tide_start_minute=0,
            tide_end_hour=3,
            tide_end_minute=0,
        )
        hook.begin()
        with (
            freezegun.freeze_time("2022-09-16 04:00:00"),
            steps.open() as session,
            mock.patch.object(time, "sleep", fail_on_sleep),
        ):
            context = make_context(session)
            hook.before_run(context)
        self.assertTrue(context.stop_requested)

    def test_wait_for_step(self):
        steps = StepSetter()
        hook = session_run_hooks.CustomGlobalStepWaiterHook(wait_until_step=1000)
        hook.begin()
        sleeps = []

        def sleep(seconds):
            sleeps.append(seconds)
            steps.set({1: 500, 2: 1100}[len(sleeps)])

        with steps.open() as session, mock.patch.object(time, "sleep", sleep):
            context = make_context(session)
            hook.before_run(context)
            self.assertEqual(sleeps, [0.5, 0.5])
            # It has started for good, even if the step went back.
            steps.set(0)
            hook.before_run(context)
        self.assertEqual(len(sleeps), 2)
        self.assertFalse(context.stop_requested)


@pytest.mark.usefixtures("graph_mode")
class TideStoppingHookTest(tf.test.TestCase):
    def test_stop_if_tide_not_available(self):
        with freezegun.freeze_time("2022-09-16 04:00:00"):
            context = mock.Mock()
            session_run_hooks.TideStoppingHook(1, 0, 3, 0).before_run(context)
        context.request_stop.assert_called_once_with()

    def test_do_not_stop_if_tide_available(self):
        with freezegun.freeze_time("2022-09-16 02:00:00"):
            context = mock.Mock()
            session_run_hooks.TideStoppingHook(1, 0, 3, 0).before_run(context)
        context.request_stop.assert_not_called()


@pytest.mark.usefixtures("graph_mode")
class TestGlobalStepWaiterHook:
    def wait(self, steps, fake_time, **settings):
        """Runs the hook once and returns its context."""
        settings = {"wait_until_step": 1000, "extra_wait_sec": 0, **settings}
        hook = tide.CustomGlobalStepWaiterHook(
            **settings, clock=fake_time.clock, sleep=fake_time.sleep
        )
        hook.begin()
        with steps.open() as session:
            context = make_context(session)
            hook.before_run(context)
        return context

    def test_starts_anyway_after_the_longest_wait(self):
        steps = StepSetter()
        # Step 2 is there after the first sleep; from then on it takes 60 + 30 seconds, which are
        # 180 sleeps, and one more to be past them.
        fake_time = FakeTime(lambda count: steps.set(2))
        context = self.wait(steps, fake_time, max_non_tide_wait_minute=1, extra_wait_sec=30)
        assert len(fake_time.sleeps) == 1 + 180 + 1
        assert not context.stop_requested

    def test_the_longest_wait_counts_from_the_first_progress(self):
        steps = StepSetter()
        values = {600: 1, 1200: 2, 1210: 1000}
        # Five minutes at step 0 and five at step 1, each far more than the longest wait.
        fake_time = FakeTime(lambda count: count in values and steps.set(values[count]))
        self.wait(steps, fake_time, max_non_tide_wait_minute=1)
        assert len(fake_time.sleeps) == 1210

    @pytest.mark.parametrize(("drawn", "sleeps"), [(0, 122), (60, 242)])
    def test_what_is_drawn_is_added_to_the_longest_wait(self, monkeypatch, drawn, sleeps):
        bounds = []
        monkeypatch.setattr(
            tide.random, "uniform", lambda low, high: bounds.append((low, high)) or drawn
        )
        steps = StepSetter()
        fake_time = FakeTime(lambda count: steps.set(2))
        self.wait(steps, fake_time, max_non_tide_wait_minute=1, extra_wait_sec=None)
        assert bounds == [(0, 600)]
        assert len(fake_time.sleeps) == sleeps

    def test_ten_minutes_are_the_default(self):
        steps = StepSetter()
        fake_time = FakeTime(lambda count: steps.set(2))
        self.wait(steps, fake_time)
        # 600 seconds after the first sleep, and one sleep to be past them.
        assert len(fake_time.sleeps) == 1 + 1200 + 1

    def test_stops_when_the_tide_goes_out_while_waiting(self):
        steps = StepSetter()
        with freezegun.freeze_time("2022-09-16 02:59:00") as frozen:
            fake_time = FakeTime(lambda count: count == 3 and frozen.tick(60))
            context = self.wait(steps, fake_time, tide_start_hour=1, tide_end_hour=3)
        assert len(fake_time.sleeps) == 3
        assert context.stop_requested

    def test_waits_in_the_tide_like_without_one(self):
        steps = StepSetter()
        with freezegun.freeze_time("2022-09-16 02:00:00"):
            fake_time = FakeTime(lambda count: count == 2 and steps.set(1000))
            context = self.wait(steps, fake_time, tide_start_hour=1, tide_end_hour=3)
        assert len(fake_time.sleeps) == 2
        assert not context.stop_requested

    def test_says_once_a_minute_what_it_waits_for(self, caplog):
        steps = StepSetter()
        # 0.5 seconds each: 300 sleeps are two and a half minutes.
        fake_time = FakeTime(lambda count: count == 300 and steps.set(1000))
        with caplog.at_level(logging.INFO, logger=tide.__name__):
            self.wait(steps, fake_time)
        lines = [record.getMessage() for record in caplog.records]
        assert lines.count("waiting for global step 1000, it is 0") == 2

    def test_missing_global_step(self):
        hook = tide.CustomGlobalStepWaiterHook(10)
        with pytest.raises(RuntimeError, match="Global step should be created"):
            hook.begin()

    def test_in_a_monitored_session(self):
        step = tf.compat.v1.train.get_or_create_global_step()
        advance = tf.compat.v1.assign_add(step, 1)
        sessions = []

        class KeepSession(tf.compat.v1.train.SessionRunHook):
            def after_create_session(self, session, coord):
                sessions.append(session)

        # The sleep stands for the other workers, who make two steps meanwhile.
        fake_time = FakeTime(lambda count: sessions[0].run([advance]) and sessions[0].run(advance))
        hook = tide.CustomGlobalStepWaiterHook(5, clock=fake_time.clock, sleep=fake_time.sleep)
        with tf.compat.v1.train.MonitoredSession(hooks=[KeepSession(), hook]) as session:
            assert session.run(advance) == 7
            assert session.run(advance) == 8
        assert len(fake_time.sleeps) == 3


@pytest.mark.usefixtures("graph_mode")
def test_tide_stopping_hook_ends_a_loop():
    hook = tide.TideStoppingHook(1, 0, 3, 0)
    step = tf.compat.v1.train.get_or_create_global_step()
    advance = tf.compat.v1.assign_add(step, 1)
    seen = []
    with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
        with freezegun.freeze_time("2022-09-16 02:59:59"):
            seen.append((session.run(advance), session.should_stop()))
        with freezegun.freeze_time("2022-09-16 03:00:00"):
            seen.append((session.run(advance), session.should_stop()))
    assert seen == [(1, False), (2, True)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0, None, None), "tide_start_hour=1 and tide_end_hour=None; give both"),
        ((None, None, 3, 0), "tide_start_hour=None and tide_end_hour=3; give both"),
        ((25, 0, 3, 0), "The start of the tide must be .* got hour 25"),
        ((1, 0, 3, 60), "The end of the tide must be .* minute 60"),
    ],
)
def test_bad_tides_are_refused(arguments, message):
    with pytest.raises(errors.ConfigError, match=message):
        tide.TideStoppingHook(*arguments)
    with pytest.raises(errors.ConfigError, match=message):
        tide.CustomGlobalStepWaiterHook(1, *arguments)


def test_stopping_hook_without_a_tide_is_refused():
    with pytest.raises(errors.ConfigError, match="got None for both"):
        tide.TideStoppingHook(None, None, None, None)
