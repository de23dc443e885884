"""How long a call of another server may take, and what happens when it does not answer.

Example:
    >>> RemoteConfig(timeout_ms=0)
    Traceback (most recent call last):
        ...
    monolith.errors.ConfigError: `timeout_ms` must be positive, got 0; None takes what the model \
was exported with.
"""

import dataclasses

from monolith import errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """How parameter servers are called.

    Attributes:
        timeout_ms: How long a call may take, with all its attempts; None: what the model was
            exported with, `max_rpc_deadline_millis`.
        retries: How often a call that failed is sent again, to another replica if there is one.
        hedge_ms: A call without an answer after so long is sent to another replica, too, and the
            first answer counts; None: never.
        default_row: What each number of the rows of a server without an answer is; None: the
            request fails.
        token_file: A file with the token that the servers ask for, in its first line.
        server_authority: Certificates (PEM) of who vouches for the servers; None: no TLS.
    """

    timeout_ms: float | None = 200.0
    retries: int = 2
    hedge_ms: float | None = 50.0
    default_row: float | None = None
    token_file: str | None = None
    server_authority: str | None = None

    def __post_init__(self) -> None:
        if self.timeout_ms is not None and not self.timeout_ms > 0:
            raise errors.ConfigError(
                f"`timeout_ms` must be positive, got {self.timeout_ms}; None takes what the model "
                "was exported with."
            )
        if self.hedge_ms is not None and not self.hedge_ms > 0:
            raise errors.ConfigError(
                f"`hedge_ms` must be positive, got {self.hedge_ms}; None never sends a call twice."
            )
        if self.retries < 0:
            raise errors.ConfigError(f"`retries` must not be negative, got {self.retries}.")
