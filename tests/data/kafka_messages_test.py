"""`KafkaDataset` and plain messages, against librdkafka's mock cluster."""

import itertools
import threading

import pytest
import tensorflow as tf
from support.kafka_mock import MockCluster

from monolith import errors
from monolith.data import kafka_messages, kafka_topics, record_datasets
from monolith.data.framing import Framing
from monolith.data.record_datasets import KafkaDataset, PBDataset
from monolith.proto import example_pb2

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

# Milliseconds. Datasets are asked for as many elements as there are, so that no test waits so long.
FOREVER = 60_000


@pytest.fixture(scope="module")
def cluster():
    with MockCluster() as running:
        yield running


def read(dataset, count):
    return sorted(itertools.islice(dataset.as_numpy_iterator(), count))


def test_records_of_messages(cluster):
    framing = Framing(lagrangex_header=True)
    for content in (b"one", b"", b"two"):
        cluster.produce_raw("framed", framing.make_record(content))
    cluster.produce_raw("framed", b"damaged")
    cluster.produce_raw("framed", framing.make_record(b"three") + framing.make_record(b"four"))
    arguments = {
        "variant_type": "plaintext",
        "lagrangex_header": True,
        "stream_timeout": FOREVER,
    }
    dataset = PBDataset(["framed"], "group", cluster.servers, **arguments)
    assert isinstance(dataset, KafkaDataset)
    assert dataset.element_spec == tf.TensorSpec([], tf.string)
    assert read(dataset, 5) == [b"", b"four", b"one", b"three", b"two"]
    arguments["filter_empty"] = True
    dataset = PBDataset(topics=["framed"], group_id="g", servers=[cluster.servers], **arguments)
    assert read(dataset, 4) == [b"four", b"one", b"three", b"two"]


def test_messages_without_header(cluster):
    cluster.produce_raw("bare", b"one")
    dataset = KafkaDataset(
        "bare", "group", cluster.servers, has_header=False, variant_type="plaintext"
    )
    assert read(dataset, 1) == [b"one"]


def test_damaged_and_empty_payloads_are_skipped_and_counted(cluster):
    """Not passed on: a training that parses them would stop there at every restart."""
    framing = Framing(lagrangex_header=True)
    good = example_pb2.Example(label=[1]).SerializeToString()
    named = example_pb2.Example()
    named.named_feature.add(name="user").feature.fid_v2_list.value.append(7)
    # Only the bytes inside of the feature are damaged: its list has no whole number of fids.
    inner = named.SerializeToString()[:-1]
    inner = inner.replace(b"\x12\x0c\x12\x0a\x0a\x08", b"\x12\x0b\x12\x09\x0a\x07")
    inner = bytes([inner[0], inner[1] - 1]) + inner[2:]
    message = framing.make_record(inner) + framing.make_record(good) + framing.make_record(b"")
    messages = [framing.make_record(b"\xff\xff"), b"", message]
    for content in messages:
        cluster.produce_raw("payloads", content)
    broker = kafka_topics.Broker(cluster.servers, "group", {})
    codec = kafka_messages.RecordCodec(framing, "example", "example", filter_empty=False)
    pace = kafka_messages.read_pace(FOREVER, 0, 8)
    assert read(kafka_messages.read_records(["payloads"], broker, pace, codec), 1) == [good]
    # The same without a broker, since messages of several partitions come in any order.
    codec = kafka_messages.RecordCodec(framing, "example", "example", filter_empty=False)
    assert codec.decode(messages)["record"].tolist() == [good]
    assert codec.num_skipped == 4
    codec = kafka_messages.RecordCodec(framing, "example", "example", filter_empty=True)
    assert codec.decode(messages)["record"].tolist() == [good]
    assert codec.num_skipped == 2


def test_a_batch_with_a_column_of_other_rows_is_skipped():
    batch = example_pb2.ExampleBatch(batch_size=2)
    batch.named_feature_list.add(name="user").feature.add()
    codec = kafka_messages.RecordCodec(None, "examplebatch", "examplebatch", filter_empty=False)
    assert codec.decode([batch.SerializeToString()])["record"].tolist() == []
    assert codec.num_skipped == 1


def test_reading_begins_where_the_settings_say(cluster):
    """Programs for the original say it like this."""
    cluster.produce_raw("reset", b"old")
    dataset = KafkaDataset(
        "reset",
        "group",
        cluster.servers,
        has_header=False,
        variant_type="plaintext",
        configuration=["conf.topic.auto.offset.reset=latest"],
    )
    found = []
    # A thread, since the first message is waited for; written until it comes.
    thread = threading.Thread(target=lambda: found.extend(read(dataset, 1)))
    thread.start()
    while thread.is_alive():
        cluster.produce_raw("reset", b"new")
        thread.join(0.2)
    assert found == [b"new"]


def test_plain_messages(cluster):
    for content in (b"one", b"two"):
        cluster.produce_raw("plain", content)
    dataset = record_datasets.create_plain_kafka_dataset(
        ["plain"],
        "group",
        cluster.servers,
        stream_timeout=FOREVER,
        poll_batch_size=1,
        configuration=["conf.topic.auto.offset.reset=earliest", "fetch.min.bytes=1"],
    )
    found = list(itertools.islice(dataset, 2))
    messages = [m for element in found for m in element.message.numpy()]
    assert sorted(messages) == [b"one", b"two"]
    assert all(element.key.shape == element.message.shape for element in found)
    assert {int(element.continue_fetch) for element in found} == {1}


def test_keys():
    class Message:
        def __init__(self, key, value):
            self.key, self.value = (lambda: key), (lambda: value)

    codec = kafka_messages.PlainCodec()
    packed = [
        kafka_messages.pack_key(Message(*m)) for m in ((b"k", b"v"), (None, b"w"), (b"", None))
    ]
    found = codec.decode(packed)
    assert found["key"].tolist() == [b"k", b"", b""]
    assert found["message"].tolist() == [b"v", b"w", b""]


def test_pace():
    assert kafka_messages.read_pace(-1, 10_000, 8).idle_timeout_sec is None
    # The longer one of both, in seconds.
    assert kafka_messages.read_pace(5_000, 10_000, 8).idle_timeout_sec == 10
    assert kafka_messages.read_pace(20_000, 10_000, 8).idle_timeout_sec == 20
    with pytest.raises(ValueError, match="stream_timeout=-2"):
        kafka_messages.read_pace(-2, 10_000, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"container": "c"}, "leave them out"),
        ({"shared_name": "s"}, "leave them out"),
        ({"variant_type": "tensor"}, "got 'tensor'"),
        ({"has_header": False, "has_sort_id": True}, "`has_header` is False"),
        ({"kafka_other_metadata": "no.such.setting=1"}, "settings of the consumer are refused"),
        ({"kafka_other_metadata": "enable.auto.commit=true"}, "enable.auto.commit is always false"),
        ({"configuration": ["group.id=other"]}, "group.id=other, but `group_id` is 'group'"),
    ],
)
def test_what_would_do_nothing_is_refused(cluster, arguments, message):
    with pytest.raises(errors.ConfigError, match=message):
        KafkaDataset(["framed"], "group", cluster.servers, **arguments)


def test_a_topic_that_is_not_there_is_refused(cluster):
    with pytest.raises(errors.DataError, match="There is no topic 'none'"):
        KafkaDataset(["none"], "group", cluster.servers)
