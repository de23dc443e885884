"""Settings of calls to other servers."""

import pytest

from monolith import errors
from monolith.serving.remote.config import RemoteConfig


@pytest.mark.parametrize(
    "settings",
    [{"timeout_ms": -1.0}, {"hedge_ms": 0.0}, {"retries": -1}, {"timeout_ms": float("nan")}],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_make_no_sense(settings):
    with pytest.raises(errors.ConfigError, match=f"`{next(iter(settings))}` must"):
        RemoteConfig(**settings)


def test_what_is_off():
    assert RemoteConfig(timeout_ms=None, hedge_ms=None).default_row is None
