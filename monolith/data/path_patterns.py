"""Paths with days, hours and numbers in them.

Example:
    >>> fill_in("/logs/{DATE(20260130,20260201)}/part-{INT(0,1)}*")[:3]
    ['/logs/20260130/part-0*', '/logs/20260130/part-1*', '/logs/20260131/part-0*']
    >>> gen_patterns("/logs", 20260131, 22, 20260201, 0, is_hourly=True)
    ['/logs/20260131/22*', '/logs/20260131/23*']
"""

import datetime
import itertools
import re

import tensorflow as tf

from monolith import errors

_DATE = re.compile(r"\{DATE\((\d{8}|\d{10}),\s*(\d{8}|\d{10})\)\}")
_INT = re.compile(r"\{INT\((\d+),\s*(\d+)\)\}")
_BRACES = re.compile(r"(\{(?:DATE|INT)\([^}]*\)\})")
_DAY, _HOUR = "%Y%m%d", "%Y%m%d%H"
_MAX_PATTERNS = 1_000_000


def fill_in(pattern: str) -> list[str]:
    """Returns a pattern with all days, hours or numbers of its `{DATE(a,b)}` and `{INT(a,b)}`.

    Dates have 8 digits, or 10 with the hour; both ends are included.

    Raises:
        errors.ConfigError: A range is none.
    """
    choices = [_list_values(part) for part in _BRACES.split(pattern)]
    count = 1
    for values in choices:
        count *= len(values)
    if count > _MAX_PATTERNS:
        raise errors.ConfigError(f"{pattern!r} stands for {count} patterns; name fewer days.")
    return ["".join(parts) for parts in itertools.product(*choices)]


def expand_patterns(patterns: str) -> list[str]:
    """Returns those of the filled-in patterns, with commas between, that match a file.

    Raises:
        AssertionError: None does.
    """
    found = [p for pattern in _split(patterns) for p in fill_in(pattern) if tf.io.gfile.glob(p)]
    assert found, f"no match files: {patterns!r}"
    return found


def gen_patterns(
    input_path: str,
    start_date: int | str,
    start_hour: int,
    end_date: int | str,
    end_hour: int,
    is_hourly: bool = False,
    wildcard: str = "*",
) -> list[str]:
    """Returns patterns of days, `PATH/20260131/*`, or of hours, `PATH/20260131/07*`.

    Args:
        input_path: Where the folders of days are.
        start_date: The first day, as 20260131.
        start_hour: The first hour of it.
        end_date: The day that is the first not to be read.
        end_hour: The hour of it; of days, hours do not count.
        is_hourly: Whether there are files for each hour.
        wildcard: What matches the rest of the name.
    """
    start, end = _read_date(f"{start_date}"), _read_date(f"{end_date}")
    step = datetime.timedelta(days=1)
    if is_hourly:
        start += datetime.timedelta(hours=start_hour)
        end += datetime.timedelta(hours=end_hour)
        step = datetime.timedelta(hours=1)
    form = f"{_DAY}/%H" if is_hourly else f"{_DAY}/"
    patterns = []
    while start < end:
        patterns.append(f"{input_path.rstrip('/')}/{start.strftime(form)}{wildcard}")
        start += step
    return patterns


def _split(patterns: str) -> list[str]:
    # Not at the commas in braces.
    return [p for p in re.split(r",(?![^{]*\})", patterns) if p]


def _list_values(part: str) -> list[str]:
    if (dates := _DATE.fullmatch(part)) is not None:
        if len(dates[1]) != len(dates[2]):
            raise errors.ConfigError(f"{part} must have two days or two hours.")
        form = _DAY if len(dates[1]) == len("20260131") else _HOUR
        step = datetime.timedelta(days=1) if form == _DAY else datetime.timedelta(hours=1)
        first, last = _read_date(dates[1]), _read_date(dates[2])
        _check_order(part, first <= last)
        count = (last - first) // step + 1
        return [(first + i * step).strftime(form) for i in range(count)]
    if (numbers := _INT.fullmatch(part)) is not None:
        begin, end = int(numbers[1]), int(numbers[2])
        _check_order(part, begin <= end)
        return [str(number) for number in range(begin, end + 1)]
    if _BRACES.fullmatch(part):
        raise errors.ConfigError(
            f"{part} is no range; write {{DATE(20260101,20260131)}}, with 10 digits for hours, or "
            "{INT(0,7)}."
        )
    return [part]


def _check_order(part: str, is_in_order: bool) -> None:
    if not is_in_order:
        raise errors.ConfigError(f"{part} is empty: its end comes before its start.")


def _read_date(text: str) -> datetime.datetime:
    try:
        return datetime.datetime.strptime(text, _DAY if len(text) == 8 else _HOUR)
    except ValueError:
        raise errors.ConfigError(f"{text!r} is no date; write it as 20260131.") from None
