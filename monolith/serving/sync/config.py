"""How often changes are sent to the serving side, and how.

Example:
    >>> SyncConfig(interval_sec=0)
    Traceback (most recent call last):
        ...
    monolith.errors.ConfigError: `interval_sec` must be positive, got 0.
"""

import dataclasses

from monolith import errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """How changes are sent.

    Attributes:
        interval_sec: Seconds between two rounds in which changed rows are sent.
        dense_interval_sec: Seconds between two times that all variables are sent.
        timeout_sec: How long a server may take to answer.
        flush_sec: How long the end of a training waits for servers to get the last changes.
        token_file: A file with the token that servers ask for, in its first line.
        server_authority: Certificates (PEM) of who vouches for the servers; None: no TLS.
    """

    interval_sec: float = 10.0
    dense_interval_sec: float = 60.0
    timeout_sec: float = 3.0
    flush_sec: float = 20.0
    token_file: str | None = None
    server_authority: str | None = None

    def __post_init__(self) -> None:
        for name in ("interval_sec", "dense_interval_sec", "timeout_sec"):
            if not getattr(self, name) > 0:
                raise errors.ConfigError(f"`{name}` must be positive, got {getattr(self, name)}.")
        if self.flush_sec < 0:
            raise errors.ConfigError(f"`flush_sec` must not be negative, got {self.flush_sec}.")
