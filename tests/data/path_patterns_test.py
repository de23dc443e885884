"""Paths with days, hours and numbers in them."""

import pytest

from monolith import errors
from monolith.data import path_patterns


def test_both_ends_of_a_range_are_included():
    assert path_patterns.fill_in("a/{DATE(20240228,20240301)}/x") == [
        "a/20240228/x",
        "a/20240229/x",
        "a/20240301/x",
    ]
    assert path_patterns.fill_in("{DATE(2026013123,2026020100)}") == ["2026013123", "2026020100"]
    assert path_patterns.fill_in("{INT(9,10)}-{INT(0,0)}") == ["9-0", "10-0"]
    assert path_patterns.fill_in("plain*") == ["plain*"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{INT(2,1)}", "is empty"),
        ("{DATE(20260101,2026010100)}", "two days or two hours"),
        ("{DATE(20261301,20261302)}", "is no date"),
        ("{INT(a,b)}", "is no range"),
        ("{INT(0,9999999)}", "10000000 patterns"),
    ],
)
def test_a_range_that_is_none_is_refused(pattern, message):
    with pytest.raises(errors.ConfigError, match=message):
        path_patterns.fill_in(pattern)


def test_only_patterns_with_files_stay(tmp_path):
    for day in ("20260101", "20260103"):
        (tmp_path / day).touch()
    pattern = f"{tmp_path}/{{DATE(20260101,20260103)}}"
    found = path_patterns.expand_patterns(f"{pattern},{tmp_path}/none")
    assert found == [f"{tmp_path}/20260101", f"{tmp_path}/20260103"]
    with pytest.raises(AssertionError, match="no match files"):
        path_patterns.expand_patterns(f"{tmp_path}/none")


def test_days_and_hours_without_the_end():
    days = path_patterns.gen_patterns("/logs/", 20260131, 5, 20260202, 3)
    assert days == ["/logs/20260131/*", "/logs/20260201/*"]
    hours = path_patterns.gen_patterns(
        "/logs", "20260131", 23, 20260201, 1, is_hourly=True, wildcard="_*"
    )
    assert hours == ["/logs/20260131/23_*", "/logs/20260201/00_*"]
    assert path_patterns.gen_patterns("/logs", 20260131, 0, 20260131, 0) == []
