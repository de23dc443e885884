"""Settings of librdkafka: how they are written, and which contradict what reading depends on."""

import pytest

from monolith import errors
from monolith.data import kafka_settings


def test_settings_are_read_from_texts():
    texts = ["conf.topic.a.b=1", "c=d=e"]
    found = kafka_settings.read_settings(texts, "f=g, h=i")
    assert found == {"a.b": "1", "c": "d=e", "f": "g", "h": "i"}
    with pytest.raises(errors.ConfigError, match="is name=value, got 'x'"):
        kafka_settings.read_settings(["x"], None)


@pytest.mark.parametrize(
    ("start", "reset", "expected"),
    [
        (None, None, "earliest"),
        ("latest", None, "latest"),
        (None, "latest", "latest"),
        (None, "largest", "latest"),
        (None, "beginning", "earliest"),
        ("latest", "end", "latest"),
    ],
)
def test_where_reading_begins(start, reset, expected):
    given = {} if reset is None else {"auto.offset.reset": reset}
    assert kafka_settings.choose_start(start, given) == expected


@pytest.mark.parametrize(
    ("start", "reset", "message"),
    [
        ("middle", "latest", "'earliest' or 'latest', got 'middle'"),
        ("earliest", "latest", "`start` is 'earliest', but auto.offset.reset=latest"),
        (None, "error", "auto.offset.reset=error is no place to begin at"),
    ],
)
def test_a_start_that_is_none_or_two_is_refused(start, reset, message):
    with pytest.raises(errors.ConfigError, match=message):
        kafka_settings.choose_start(start, {"auto.offset.reset": reset})


def test_settings_that_say_the_same_are_taken():
    given = {
        "enable.auto.commit": "false",
        "enable.auto.offset.store": False,
        "enable.partition.eof": "True",
        "group.id": "g",
        "metadata.broker.list": "s:1",
        "auto.offset.reset": "latest",
        "session.timeout.ms": 6000,
    }
    found = kafka_settings.make_consumer_settings("s:1", "g", given)
    assert found["enable.auto.commit"] is False
    assert found["enable.partition.eof"] is True
    assert found["session.timeout.ms"] == 6000
    # A place that is gone is an error, wherever reading has begun.
    assert found["auto.offset.reset"] == "error"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"enable.auto.commit": "true"}, "enable.auto.commit is always false, since offsets"),
        ({"enable.auto.offset.store": True}, "enable.auto.offset.store is always false"),
        ({"enable.partition.eof": "false"}, "enable.partition.eof is always true, since"),
        ({"group.id": "h"}, "group.id=h, but `group_id` is 'g'; say it there"),
        ({"bootstrap.servers": "t:1"}, "bootstrap.servers=t:1, but `servers` is 's:1'"),
        ({"metadata.broker.list": "t:1"}, "metadata.broker.list=t:1, but `servers`"),
    ],
)
def test_settings_that_contradict_are_refused(given, message):
    with pytest.raises(errors.ConfigError, match=message):
        kafka_settings.make_consumer_settings("s:1", "g", given)
