"""The tide: the hours of the day in which spare machines may be used.

A window is given in UTC and may reach over midnight. Hooks stop workers outside of it, and the
saver saves at another pace.

Example:
    >>> noon = datetime.datetime(2022, 9, 16, 12, 0, tzinfo=datetime.timezone.utc)
    >>> tide_available_now(11, 0, 13, 30, now=noon)
    True
    >>> tide_available_now(22, 0, 6, 0, now=noon)
    False
"""

import datetime

from monolith import errors


def before(hour1: int, minute1: int, hour2: int, minute2: int) -> bool:
    """Returns whether the first time of day is earlier than the second."""
    return (hour1, minute1) < (hour2, minute2)


def tide_available_now(
    start_hour: int,
    start_minute: int,
    end_hour: int,
    end_minute: int,
    *,
    now: datetime.datetime | None = None,
) -> bool:
    """Returns whether it is tide: from the start, inclusive, to the end, exclusive, in UTC.

    A window whose start is later than its end reaches over midnight; one whose start is its end is
    the whole day.

    Args:
        start_hour: Hour at which the tide comes in.
        start_minute: Minute of that hour.
        end_hour: Hour at which it goes out.
        end_minute: Minute of that hour.
        now: The time to ask about, with its time zone; None is the present.
    """
    now = (now or datetime.datetime.now(datetime.timezone.utc)).astimezone(datetime.timezone.utc)
    has_come = not before(now.hour, now.minute, start_hour, start_minute)
    has_not_gone = before(now.hour, now.minute, end_hour, end_minute)
    if before(start_hour, start_minute, end_hour, end_minute):
        return has_come and has_not_gone
    return has_come or has_not_gone


def check_time_of_day(what: str, hour: int, minute: int) -> None:
    """Refuses what is not a time from 00:00 to 24:00.

    Raises:
        errors.ConfigError: The time is not on a clock; the message begins with `what`.
    """
    if not (0 <= hour < 24 and 0 <= minute < 60) and (hour, minute) != (24, 0):
        raise errors.ConfigError(
            f"{what} must be a time from 00:00 to 24:00, got hour {hour} and minute {minute}."
        )
