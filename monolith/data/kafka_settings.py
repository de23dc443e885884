"""Settings of librdkafka: as programs write them, and those that reading a stream decides itself.

Example:
    >>> given = read_settings(["conf.topic.auto.offset.reset=latest"], "fetch.min.bytes=1")
    >>> given
    {'auto.offset.reset': 'latest', 'fetch.min.bytes': '1'}
    >>> choose_start(None, given)
    'latest'
    >>> make_consumer_settings("broker:9092", "group", given)["fetch.min.bytes"]
    '1'
"""

from collections.abc import Mapping, Sequence
from typing import Any

from monolith import errors

_TOPIC_PREFIX = "conf.topic."
_LAST_COMMIT_MS = 1000
_RESET = "auto.offset.reset"
# By the values of `auto.offset.reset`.
_STARTS = {
    "earliest": "earliest",
    "smallest": "earliest",
    "beginning": "earliest",
    "latest": "latest",
    "largest": "latest",
    "end": "latest",
}
# What each has to be, and why.
_SWITCHES = {
    "enable.auto.commit": (False, "offsets are committed behind batches that were asked for"),
    "enable.auto.offset.store": (False, "offsets are committed behind batches that were asked for"),
    "enable.partition.eof": (True, "partitions are merged by time, for which their ends are told"),
}
_YES = frozenset({"true", "t", "1"})


def read_settings(configuration: Sequence[str], other_metadata: str | None) -> dict[str, str]:
    """Returns settings that are written as `name=value`.

    Args:
        configuration: Such texts; `conf.topic.x=y` sets `x` of topics.
        other_metadata: Such texts with commas between.

    Raises:
        errors.ConfigError: One is no such text.
    """
    found = {}
    for text in [*configuration, *(other_metadata or "").split(",")]:
        name, is_there, value = text.partition("=")
        if not text.strip():
            continue
        if not is_there:
            raise errors.ConfigError(f"A setting of Kafka is name=value, got {text!r}.")
        found[name.strip().removeprefix(_TOPIC_PREFIX)] = value.strip()
    return found


def choose_start(start: str | None, given: Mapping[str, Any]) -> str:
    """Returns where a training without a checkpoint begins, `earliest` or `latest`.

    Args:
        start: One of them; None leaves it to `auto.offset.reset`, and is the earliest without.
        given: Settings of a consumer.

    Raises:
        errors.ConfigError: That is no such place, or these are two.
    """
    if start not in (None, "earliest", "latest"):
        raise errors.ConfigError(f"`start` is 'earliest' or 'latest', got {start!r}.")
    if _RESET not in given:
        return start or "earliest"
    found = _STARTS.get(str(given[_RESET]).lower())
    if found is None:
        raise errors.ConfigError(
            f"{_RESET}={given[_RESET]} is no place to begin at; it is 'earliest' or 'latest'."
        )
    if start not in (None, found):
        raise errors.ConfigError(
            f"`start` is {start!r}, but {_RESET}={given[_RESET]}; leave one of them out."
        )
    return found


def make_consumer_settings(servers: str, group_id: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all settings of a consumer.

    Args:
        servers: Brokers to ask first.
        group_id: The consumer group.
        given: More settings; `auto.offset.reset` is left to `choose_start`.

    Raises:
        errors.ConfigError: One of them contradicts what is decided here.
    """
    for name, (argument, value) in {
        "bootstrap.servers": ("servers", servers),
        "metadata.broker.list": ("servers", servers),
        "group.id": ("group_id", group_id),
    }.items():
        if given.get(name, value) != value:
            raise errors.ConfigError(
                f"{name}={given[name]}, but `{argument}` is {value!r}; say it there, and leave the "
                "setting out."
            )
    for name, (is_on, why) in _SWITCHES.items():
        if name in given and (str(given[name]).lower() in _YES) != is_on:
            raise errors.ConfigError(
                f"{name} is always {str(is_on).lower()}, since {why}, but {name}={given[name]}; "
                "leave it out."
            )
    return {
        # A broker that is gone is waited for; what it means is said in one line a minute, not by
        # each attempt to connect.
        "log_level": 2,
        # Nobody else can take a partition that is assigned by hand, so nothing depends on this,
        # except how long a consumer that closes keeps asking for a broker that is gone to take its
        # last offsets. A while behind that it would go on, and log.
        "session.timeout.ms": _LAST_COMMIT_MS,
        **given,
        "bootstrap.servers": servers,
        "group.id": group_id,
        **{name: is_on for name, (is_on, _) in _SWITCHES.items()},
        # A place that is gone is an error: to go on elsewhere would lose messages.
        _RESET: "error",
    }
