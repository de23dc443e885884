"""Who must answer before training starts."""

import pytest

from monolith.training.tables.members import NodeAliveCheckerError, _get_blocked_addrs

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1", "a:1"]}


@pytest.mark.parametrize(
    ("ignored", "expected"),
    [
        ((), ["a:1", "b:1", "b:2", "c:1"]),
        # The chief's address is that of a parameter server, too, and stays.
        (["worker", "chief"], ["a:1", "c:1"]),
        (["worker", "chief", "ps"], []),
        (["nobody"], ["a:1", "b:1", "b:2", "c:1"]),
    ],
)
def test_blocked_addresses(ignored, expected):
    assert _get_blocked_addrs(CLUSTER, ignored) == expected


def test_error_is_its_message():
    error = NodeAliveCheckerError("ps 3 does not answer")
    assert str(error) == error.msg == "ps 3 does not answer"
