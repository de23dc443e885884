"""What callers can rely on when they catch errors."""

import inspect

import pytest

from monolith import errors
from monolith.training.hooks.nan_loss import NanLossError
from monolith.training.tables.members import NodeAliveCheckerError


@pytest.mark.parametrize(
    "kind",
    [
        *[kind for _, kind in inspect.getmembers(errors, inspect.isclass)],
        NanLossError,
        NodeAliveCheckerError,
    ],
)
def test_one_class_catches_them_all(kind):
    assert issubclass(kind, errors.MonolithError)


@pytest.mark.parametrize("kind", [errors.ConfigError, errors.DataError])
def test_wrong_values_are_value_errors_too(kind):
    with pytest.raises(ValueError, match="got 7"):
        raise kind("There must be 6, got 7.")
