"""What stands in for kazoo where it is not installed.

The package works without ZooKeeper, so modules that mention kazoo's names import all the same;
whoever makes a client is told what to install.
"""

from typing import Any, NoReturn


class KazooClient:
    """Refuses to be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _explain()


class KazooRetry:
    """Refuses to be made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _explain()


class KazooState:
    """The states that a client's listeners hear of."""

    SUSPENDED = "SUSPENDED"
    CONNECTED = "CONNECTED"
    LOST = "LOST"


class KazooException(Exception):
    """Never raised."""


class NodeExistsError(KazooException):
    """Never raised."""


class NoNodeError(KazooException):
    """Never raised."""


class KazooTimeoutError(Exception):
    """Never raised."""


def _explain() -> NoReturn:
    raise ImportError(
        "ZooKeeper needs the package kazoo, which is not installed; "
        'run `pip install "monolith-recsys[zookeeper]"`.'
    )
