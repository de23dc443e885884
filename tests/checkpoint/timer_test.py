"""When it is time to save, with and without a tide."""

import datetime

import freezegun
import pytest
import tensorflow as tf

from monolith.native_training import save_utils

Timer = save_utils.SecondOrStepTimerWithTideSetting
TIDE = {"tide_start_hour": 1, "tide_start_minute": 0, "tide_end_hour": 3, "tide_end_minute": 0}


class SecondOrStepTimerWithTideSettingTest(tf.test.TestCase):
    def testNoTideSetting(self):
        start = datetime.datetime(2021, 1, 1, 2, 0, 0)
        with freezegun.freeze_time(start) as clock:
            timer = Timer(every_secs=10)
            self.assertTrue(timer.should_trigger_for_step(0))
            timer.update_last_triggered_step(0)
            clock.move_to(start + datetime.timedelta(seconds=5))
            self.assertFalse(timer.should_trigger_for_step(1))
            clock.move_to(start + datetime.timedelta(seconds=15))
            self.assertFalse(timer.should_trigger_for_step(0))
            self.assertTrue(timer.should_trigger_for_step(1))

    def testTideAvailable(self):
        start = datetime.datetime(2021, 1, 1, 2, 0, 0)
        with freezegun.freeze_time(start) as clock:
            timer = Timer(every_secs=10, **TIDE, tide_every_secs=5)
            timer.update_last_triggered_step(0)
            clock.move_to(start + datetime.timedelta(seconds=6))
            self.assertFalse(timer.should_trigger_for_step(1))
            clock.move_to(start + datetime.timedelta(seconds=15))
            self.assertTrue(timer.should_trigger_for_step(1))

    def testTideNotAvailable(self):
        start = datetime.datetime(2021, 1, 1, 4, 0, 0)
        with freezegun.freeze_time(start) as clock:
            timer = Timer(every_secs=10, **TIDE, tide_every_secs=5)
            self.assertTrue(timer.should_trigger_for_step(0))
            timer.update_last_triggered_step(0)
            clock.move_to(start + datetime.timedelta(seconds=2))
            self.assertFalse(timer.should_trigger_for_step(1))
            clock.move_to(start + datetime.timedelta(seconds=9))
            self.assertFalse(timer.should_trigger_for_step(0))
            self.assertTrue(timer.should_trigger_for_step(1))


def test_outside_of_the_tide_steps_do_not_count():
    start = datetime.datetime(2021, 1, 1, 4, 0, 0)
    with freezegun.freeze_time(start) as clock:
        timer = Timer(every_steps=10, **TIDE, tide_every_secs=100)
        timer.update_last_triggered_step(0)
        assert not timer.should_trigger_for_step(1000)
        clock.move_to(start + datetime.timedelta(seconds=100))
        assert timer.should_trigger_for_step(1)


@pytest.mark.parametrize("missing", ["tide_start_hour", "tide_end_hour", "tide_every_secs"])
def test_tide_that_is_not_fully_given_is_ignored(missing):
    settings = {**TIDE, "tide_every_secs": 100}
    del settings[missing]
    with freezegun.freeze_time("2021-01-01 04:00:00"):
        timer = Timer(every_steps=10, **settings)
        timer.update_last_triggered_step(0)
        assert not timer.should_trigger_for_step(9)
        assert timer.should_trigger_for_step(10)


def test_minutes_may_be_left_out():
    with freezegun.freeze_time("2021-01-01 00:59:59") as clock:
        timer = Timer(every_steps=1, tide_start_hour=1, tide_end_hour=3, tide_every_secs=100)
        timer.update_last_triggered_step(0)
        assert not timer.should_trigger_for_step(1)
        clock.move_to("2021-01-01 01:00:00")
        assert timer.should_trigger_for_step(1)


def test_disabled_never_triggers():
    timer = Timer(every_steps=1)
    timer.disable()
    assert not timer.should_trigger_for_step(0)
    timer.enable()
    assert timer.should_trigger_for_step(0)


@pytest.mark.parametrize("settings", [{"every_secs": 1000}, {"every_steps": 1000}])
def test_steps_beside_the_pace(settings):
    timer = Timer(**settings, **TIDE, tide_every_secs=100)
    timer.also_trigger_every(10)
    assert timer.should_trigger_for_step(7)
    triggered = []
    timer.update_last_triggered_step(7)
    for step in (8, 16, 17, 18, 26, 39):  # As if nobody had asked at 27 and 37.
        if timer.should_trigger_for_step(step):
            triggered.append(step)
            timer.update_last_triggered_step(step)
    assert triggered == [17, 39]
    timer.disable()
    assert not timer.should_trigger_for_step(47)


@pytest.mark.parametrize("settings", [{}, {"every_secs": 1, "every_steps": 1}])
def test_one_of_seconds_and_steps(settings):
    with pytest.raises(ValueError, match="every_secs"):
        Timer(**settings)


def test_time_that_is_not_on_a_clock():
    with pytest.raises(ValueError, match=r"start of the tide must be a time .* got hour 25"):
        Timer(every_secs=1, tide_start_hour=25, tide_end_hour=3)
