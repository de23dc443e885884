"""Where the members of a job meet, from one word of the command line.

| word | where |
| --- | --- |
| `file`, `file:///shared/jobs/7` | files, by default in the model directory; all share the disk |
| `zk://host:2181,host:2181/job` | ZooKeeper |
| `consul`, `consul://job` | Consul |
| `tf_config` | the variable TF_CONFIG says who is who, this process included |

Without a name, a job is called after its model directory.

Example:
    >>> with open_discovery("file", "/tmp/ads") as discovery:
    ...     type(discovery).__name__
    'FileServiceDiscovery'
"""

import contextlib
import json
import logging
import os
import time
import urllib.parse
from collections.abc import Iterator

from monolith import errors
from monolith.cluster.discovery import (
    ConsulServiceDiscovery,
    FileServiceDiscovery,
    ServiceDiscovery,
    TfConfigServiceDiscovery,
    ZKServiceDiscovery,
)
from monolith.cluster.zookeeper import KazooException, KazooTimeoutError
from monolith.core import environment

TF_CONFIG = "tf_config"

_VARIABLE = "TF_CONFIG"
_FORMS = "file, file:///DIRECTORY, zk://HOST:PORT/JOB, consul, consul://JOB or tf_config"
_POLL_SEC = 0.1
_PATIENCE_SEC = 5.0


@contextlib.contextmanager
def open_discovery(where: str, model_dir: str) -> Iterator[ServiceDiscovery]:
    """Opens a discovery during a block.

    Args:
        where: The word.
        model_dir: Model directory of the job.

    Raises:
        ConfigError: It is no such word, or nobody answers there.
    """
    try:
        discovery = _open(where, model_dir)
    except errors.MonolithError:
        raise
    except Exception as error:
        raise _make_error(repr(where), error) from error
    with contextlib.closing(discovery):
        yield discovery


@contextlib.contextmanager
def explaining(discovery: ServiceDiscovery) -> Iterator[None]:
    """Says in one sentence that the place of a discovery cannot be used, if that shows in a block.

    Many need no more than their name to be opened, and notice only when they are used.

    Raises:
        ConfigError: It cannot be used.
    """
    try:
        yield
    except (OSError, KazooException, KazooTimeoutError) as error:
        if isinstance(error, errors.MonolithError):
            raise
        raise _make_error(discovery.describe(), error) from error


def read_tf_config() -> TfConfigServiceDiscovery:
    """Returns what the variable TF_CONFIG says.

    Raises:
        ConfigError: It is not set, or is no JSON object with "cluster" and "task".
    """
    text = os.environ.get(_VARIABLE)
    if not text:
        raise errors.ConfigError(
            f"--discovery tf_config reads the variable {_VARIABLE}, which is not set; the "
            "scheduler must set it for each process."
        )
    try:
        return TfConfigServiceDiscovery(json.loads(text))
    except json.JSONDecodeError as error:
        raise errors.ConfigError(f"{_VARIABLE} must be JSON, got {text!r}: {error}.") from error


def _open(where: str, model_dir: str) -> ServiceDiscovery:
    if where == TF_CONFIG:
        return read_tf_config()
    scheme, _, rest = where.partition("://")
    job = os.path.basename(os.path.normpath(model_dir))
    if scheme == "file":
        if not rest and "://" in model_dir:
            raise errors.ConfigError(
                f"Members cannot meet in files of {model_dir!r}, which is no directory of a disk; "
                "give --discovery file:///DIRECTORY, zk://, consul or tf_config."
            )
        if rest and not os.path.isabs(rest):
            # Each member would look below its own current directory.
            raise errors.ConfigError(
                f"--discovery {where} names no absolute directory; write it with three slashes, "
                "file:///DIRECTORY."
            )
        return FileServiceDiscovery(rest or os.path.join(model_dir, "discovery_dir", "job"))
    if scheme == "consul":
        return ConsulServiceDiscovery(environment.generate_psm_from_uuid(rest or job))
    if scheme == "zk":
        found = urllib.parse.urlsplit(where)
        if found.netloc:
            # A warning of it would tell of every try, and the error says the same.
            logging.getLogger("kazoo").setLevel(logging.ERROR)
            return ZKServiceDiscovery(found.path.strip("/") or job, found.netloc)
    raise errors.ConfigError(f"--discovery must be {_FORMS}; got {where!r}.")


def _make_error(where: str, error: Exception) -> errors.ConfigError:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return errors.ConfigError(
        f"The members cannot meet at {where} ({text}); see whether it can be reached from this "
        "machine."
    )


class LocalDiscovery(FileServiceDiscovery):
    """Files of a cluster on one machine, whose members are there in a moment: it waits for them.

    Args:
        directory: Where the files are.
        sizes: How many members there are of each role.
    """

    def __init__(self, directory: str, sizes: dict[str, int]) -> None:
        super().__init__(directory)
        self._sizes = sizes

    def query(self, name: str) -> dict[int, str]:
        """Returns the addresses of a role; waits for a moment if one is missing."""
        # Of workers only the chief is asked for.
        wanted = self._sizes["ps"] if name == "ps" else 1
        deadline_sec = time.monotonic() + _PATIENCE_SEC
        while True:
            found = super().query(name)
            is_there = len(found) >= wanted and (name == "ps" or 0 in found)
            if is_there or time.monotonic() >= deadline_sec:
                return found
            time.sleep(_POLL_SEC)

    def find(self, name: str, index: int) -> str | None:
        """Returns the address known for one index now; this does not wait."""
        return super().query(name).get(index)
