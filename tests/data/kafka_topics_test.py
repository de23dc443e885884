"""Kafka topics, against librdkafka's mock cluster in a process of its own."""

import gc
import itertools
import threading
import time

import pytest
import tensorflow as tf
from support.kafka_mock import MockCluster, find_clients

import monolith as ml
from monolith import errors
from monolith.data import columns, division, identity, kafka_topics, seekable
from monolith.graph.spec import GraphSpec
from monolith.training.graph.estimator import GraphEstimator

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

SCHEMA = [ml.data.Ids("id")]


@pytest.fixture(scope="module")
def cluster():
    with MockCluster() as running:
        yield running


def make_stream(cluster, topic, **settings):
    settings = {"format": "json", "batch_size": 4, "max_wait_sec": 0, **settings}
    if "stop_file" not in settings:
        settings.setdefault("idle_timeout_sec", 60)
    return ml.data.kafka(topic, SCHEMA, servers=cluster.servers, **settings)


def read(batches):
    found = [batch["id"].values.numpy().tolist() for batch in batches]
    return list(itertools.chain.from_iterable(found))


@pytest.fixture
def stop(tmp_path):
    path = tmp_path / "stop"
    path.touch()
    return str(path)


def test_all_messages_are_read_and_bad_ones_counted(cluster, stop):
    cluster.produce("all", range(30))
    cluster.produce_raw("all", b"{")
    cluster.produce_raw("all", b"")
    stream = make_stream(cluster, "all", stop_file=stop)
    assert sorted(read(stream)) == list(range(30))
    assert stream.num_skipped == 2
    assert repr(stream).startswith("monolith.data.kafka(['all'], [Ids('id')], servers=")


def test_reading_goes_on_from_every_batch(cluster, stop, tmp_path):
    cluster.produce("positions", range(20))
    stream = make_stream(cluster, "positions", stop_file=stop)
    dataset = stream()
    iterator, before, saved = iter(dataset), [], []
    for number, batch in enumerate(itertools.islice(iterator, 3)):
        before += batch["id"].values.numpy().tolist()
        path = tf.train.Checkpoint(i=iterator).write(str(tmp_path / f"at-{number}"))
        saved.append((path, list(before)))
    cluster.produce("positions", [99])
    for path, seen in saved:
        again = iter(dataset)
        tf.train.Checkpoint(i=again).read(path)
        assert sorted(seen + read(again)) == [*range(20), 99]


def test_partitions_are_merged_by_time(cluster, stop):
    # One after the other, each with a time of its own: a burst would put equal times into one.
    for number in range(12):
        cluster.produce("times", [number])
        time.sleep(0.002)
    first = read(make_stream(cluster, "times", stop_file=stop))
    assert first == list(range(12))


def test_a_partition_far_ahead_is_not_fetched_further(cluster, stop, monkeypatch):
    monkeypatch.setattr(kafka_topics, "_MOST_AHEAD", 3)
    monkeypatch.setattr(kafka_topics, "_FEW_AHEAD", 1)
    cluster.produce("ahead", range(60))
    assert sorted(read(make_stream(cluster, "ahead", stop_file=stop))) == list(range(60))


def test_a_partition_with_many_bytes_ahead_is_not_fetched_further(cluster, stop, monkeypatch):
    monkeypatch.setattr(kafka_topics, "_MOST_BYTES_AHEAD", 20)
    monkeypatch.setattr(kafka_topics, "_FEW_BYTES_AHEAD", 5)
    cluster.produce("bytes", range(60))
    stream = make_stream(cluster, "bytes", stop_file=stop)
    records = stream._stream.open(stream._stream.start, division.Part(0, of=1))
    while not records._paused:
        records._fetch(60)
    found = []
    while len(found) < 60:
        found += records.poll(60)
    # All that was counted is taken off again.
    assert records._bytes == [0] * 4
    assert not records._paused
    records.close()


def test_a_silent_partition_is_not_waited_for(cluster, stop, monkeypatch):
    """As when its broker is gone: nothing says where it ends."""
    monkeypatch.setattr(kafka_topics, "_ANSWER_SEC", 1.0)
    monkeypatch.setattr(kafka_topics, "_SILENT_SEC", 0.2)
    cluster.produce("silent", range(20))
    stream = make_stream(cluster, "silent", idle_timeout_sec=5)._stream
    records = stream.open(stream.start, division.Part(0, of=1))
    monkeypatch.setattr(records, "_fetch", lambda most: None)
    records._order.add(0, 1, records._consumer.consume(1, timeout=60)[0])
    found = []
    while not found:
        found = records.poll(1)
    records.close()


def test_latest_begins_behind_what_is_there(cluster):
    cluster.produce("late", range(8))
    dataset = make_stream(cluster, "late", start="latest", batch_size=1)()
    found = []
    # A thread, since the first batch is waited for; written until it comes.
    thread = threading.Thread(target=lambda: found.append(next(iter(dataset))))
    thread.start()
    while thread.is_alive():
        cluster.produce("late", [100, 101])
        thread.join(0.5)
    assert read(found)[0] in (100, 101)


def test_a_partition_that_was_added_is_read_from_its_first_message_on(cluster):
    cluster.produce("added", range(40))
    stream = make_stream(cluster, "added", start="latest")._stream

    def open_at(place):
        records = stream.open(place, division.Part(0, of=1))
        records.close()
        return records.get_place()

    ends = open_at(stream.start)
    assert sum(ends[:4]) == 40
    # The place of a time when there was no fourth partition.
    assert open_at((*ends[:3], -1, *ends[4:])) == (*ends[:3], 0, *ends[4:])


def test_more_partitions_move_none_to_another_worker():
    def divide(counts, of):
        return [
            set(kafka_topics.divide_partitions(counts, division.Part(index, of)))
            for index in range(of)
        ]

    before, after = divide({"a": 2, "b": 3}, 2), divide({"a": 5, "b": 3}, 2)
    assert all(some <= more for some, more in zip(before, after, strict=True))
    assert set.union(*after) == {*(("a", i) for i in range(5)), *(("b", i) for i in range(3))}
    assert len(after[0]) + len(after[1]) == 8
    # Of small topics not all go to the first worker.
    assert divide({"a": 1, "b": 1}, 2) == [{("a", 0)}, {("b", 0)}]
    assert all(len(found) == 1 for found in divide({"a": 2, "b": 2}, 4))
    with pytest.raises(errors.DataError, match="2 partitions cannot be divided among 3 workers"):
        divide({"a": 1, "b": 1}, 3)


def test_workers_divide_the_partitions(cluster, stop):
    cluster.produce("shared", range(40))
    stream = make_stream(cluster, "shared", stop_file=stop)
    parts = [read(division.divide(stream, division.Part(i, of=2))) for i in range(2)]
    assert all(parts)
    assert sorted([*parts[0], *parts[1]]) == list(range(40))
    with pytest.raises(tf.errors.InvalidArgumentError, match="cannot be divided among 99 workers"):
        read(division.divide(stream, division.Part(0, of=99)))


def test_the_address_is_no_part_of_what_a_position_belongs_to(cluster):
    cluster.produce("address", [1])

    def identify(servers):
        cluster_of = type("Cluster", (), {"servers": servers})
        with tf.Graph().as_default():
            return identity.identify([make_stream(cluster_of, "address")()._variant_tensor])

    first, second = cluster.servers.split(",")
    assert identify(first) == identify(second)


def test_a_topic_or_broker_that_is_not_there_is_one_sentence(cluster, monkeypatch):
    cluster.produce("there", [1])
    with pytest.raises(errors.DataError, match=r"There is no topic 'nowhere' at .*'there'"):
        make_stream(cluster, "nowhere")
    monkeypatch.setattr(kafka_topics, "_ANSWER_SEC", 1.0)
    with pytest.raises(errors.DataError, match=r"No Kafka broker answers at '127.0.0.1:1'"):
        ml.data.kafka("there", SCHEMA, servers="127.0.0.1:1")


def test_a_broker_that_goes_away_is_waited_for():
    with MockCluster() as cluster:
        cluster.produce("gone", [1, 2, 3, 4])
        batches = iter(make_stream(cluster, "gone", idle_timeout_sec=3)())
        first = read([next(batches)])
        cluster.kill()
        rest = read(batches)  # What was fetched already, and then nothing until the timeout.
        assert first
        assert len(set(first + rest)) == len(first + rest)
        assert set(first + rest) <= {1, 2, 3, 4}


class TestWhatIsLeftHalfReadIsClosed:
    """At once, without a collection: a client fetches, logs and holds what it has fetched."""

    @pytest.fixture(autouse=True)
    def without_collections(self):
        gc.disable()
        yield
        gc.enable()

    @pytest.mark.parametrize("derive", [lambda dataset: dataset, lambda dataset: dataset.map(dict)])
    def test_with_its_dataset(self, cluster, derive):
        cluster.produce("half", range(20))
        dataset = derive(make_stream(cluster, "half")())
        iterator = iter(dataset)
        next(iterator)
        del dataset
        assert find_clients()
        next(iterator)
        del iterator
        assert not find_clients()

    def test_with_the_loop(self, cluster):
        cluster.produce("half", range(20))
        stream = make_stream(cluster, "half")
        batches = iter(stream)
        next(batches)
        assert find_clients()
        del batches
        assert not find_clients()

    def test_at_the_end_of_a_job(self, cluster, tmp_path):
        cluster.produce("half", range(20))
        seen = []

        class Look(tf.compat.v1.train.SessionRunHook):
            def after_run(self, run_context, run_values):
                seen.append(len(find_clients()))

        def model_fn(features, mode):
            step = tf.compat.v1.train.get_global_step()
            loss = tf.cast(tf.reduce_sum(features["id"].values), tf.float32)
            train_op = tf.compat.v1.assign_add(step, 1)
            return GraphSpec(mode, loss=loss, train_op=train_op, eval_metric_ops={})

        estimator = GraphEstimator(model_fn, str(tmp_path / "model"))
        estimator.train(make_stream(cluster, "half"), steps=2, hooks=[Look()])
        assert not find_clients()
        estimator.evaluate(make_stream(cluster, "half"), steps=2, hooks=[Look()])
        assert not find_clients()
        assert seen == [1, 1, 1, 1]

    def test_while_it_is_being_read(self, cluster):
        """As when a session ends in which another thread fetches."""
        cluster.produce("closing", range(20))
        stream = make_stream(cluster, "closing")._stream
        reading = seekable.Reading(stream, columns.Batching())
        decode = stream.codec.decode

        def close_and_read(records):
            reading.close()
            return decode(records)

        stream.codec.decode = close_and_read
        dataset = reading.make_dataset()
        iterator = iter(dataset)
        first = next(iterator)
        assert not find_clients()
        stream.codec.decode = decode
        found = read([first])
        while len(found) < 20:  # A batch may have less than 4.
            found += read([iterator.get_next()])
        assert sorted(found) == list(range(20))


def test_a_consumer_whose_broker_is_gone_closes_soon():
    with MockCluster() as cluster:
        cluster.produce("gone", range(8))
        stream = make_stream(cluster, "gone")._stream
        records = stream.open(stream.start, division.Part(0, of=1))
        while not records.poll(1):
            pass
        cluster.kill()
        records.acknowledge()
        records.close()
        # Not after the 45 seconds for which librdkafka would ask for its broker.
        assert not find_clients()


def test_bad_arguments_are_refused(cluster):
    with pytest.raises(errors.ConfigError, match="'earliest' or 'latest', got 'middle'"):
        make_stream(cluster, "x", start="middle")
    with pytest.raises(errors.ConfigError, match="Topics are one name or several that differ"):
        make_stream(cluster, ["x", "x"])
    with pytest.raises(errors.ConfigError, match='No such configuration property: "nonsense"'):
        make_stream(cluster, "x", config={"nonsense": 1})
    with pytest.raises(errors.ConfigError, match="`start` is 'latest', but auto"):
        make_stream(cluster, "x", start="latest", config={"auto.offset.reset": "earliest"})
