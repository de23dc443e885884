"""The hours in which spare machines may be used."""

import datetime
import time

import freezegun
import pytest

from monolith import errors
from monolith.checkpoint import tide


def at(hour, minute=0, second=0):
    return datetime.datetime(2022, 9, 16, hour, minute, second, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1, 30), (2, 0), True),
        ((2, 0), (1, 30), False),
        ((1, 30), (1, 31), True),
        ((1, 31), (1, 30), False),
        pytest.param((1, 30), (1, 30), False, id="a_time_is_not_before_itself"),
    ],
)
def test_before(first, second, expected):
    assert tide.before(*first, *second) is expected


@pytest.mark.parametrize(
    ("window", "now", "expected"),
    [
        pytest.param((1, 30, 3, 15), at(1, 29, 59), False, id="a_second_before_the_start"),
        pytest.param((1, 30, 3, 15), at(1, 30), True, id="at_the_start"),
        pytest.param((1, 30, 3, 15), at(3, 14, 59), True, id="a_second_before_the_end"),
        pytest.param((1, 30, 3, 15), at(3, 15), False, id="at_the_end"),
        pytest.param((22, 0, 6, 0), at(23), True, id="over_midnight_in_the_evening"),
        pytest.param((22, 0, 6, 0), at(5, 59), True, id="over_midnight_in_the_morning"),
        pytest.param((22, 0, 6, 0), at(6), False, id="over_midnight_at_the_end"),
        pytest.param((22, 0, 6, 0), at(12), False, id="over_midnight_at_noon"),
        pytest.param((22, 0, 6, 0), at(21, 59), False, id="over_midnight_before_the_start"),
        pytest.param((22, 0, 24, 0), at(23, 59), True, id="to_midnight"),
        pytest.param((22, 0, 24, 0), at(0), False, id="to_midnight_and_no_further"),
        pytest.param((8, 0, 8, 0), at(7, 59), True, id="empty_window_is_the_whole_day"),
        pytest.param((8, 0, 8, 0), at(8), True, id="empty_window_is_the_whole_day_at_its_start"),
    ],
)
def test_tide_available_now(window, now, expected):
    assert tide.tide_available_now(*window, now=now) is expected


def test_other_time_zones_are_converted():
    tokyo = datetime.timezone(datetime.timedelta(hours=9))
    # 10:00 in Tokyo is 01:00 UTC.
    now = datetime.datetime(2022, 9, 16, 10, 0, tzinfo=tokyo)
    assert tide.tide_available_now(1, 0, 2, 0, now=now)
    assert not tide.tide_available_now(10, 0, 11, 0, now=now)


@freezegun.freeze_time("2022-09-16 02:00:00")
def test_the_present_is_what_the_clock_says():
    assert tide.tide_available_now(1, 0, 3, 0)
    assert not tide.tide_available_now(9, 0, 11, 0)


def test_the_present_is_read_in_utc(monkeypatch):
    now = datetime.datetime.now(datetime.timezone.utc)
    # From an hour ago to in an hour; a clock read in the local time below would be outside.
    window = ((now.hour - 1) % 24, now.minute, (now.hour + 1) % 24, now.minute)
    monkeypatch.setenv("TZ", "XYZ-12")
    time.tzset()
    try:
        assert tide.tide_available_now(*window)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("hour", "minute"), [(0, 0), (23, 59), (24, 0)])
def test_times_on_a_clock(hour, minute):
    tide.check_time_of_day("The start", hour, minute)


@pytest.mark.parametrize(("hour", "minute"), [(-1, 0), (24, 1), (25, 0), (3, 60), (3, -1)])
def test_times_not_on_a_clock(hour, minute):
    message = f"The start must be .* got hour {hour} and minute {minute}"
    with pytest.raises(errors.ConfigError, match=message):
        tide.check_time_of_day("The start", hour, minute)
