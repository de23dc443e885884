"""Files that grow: read as they do, gone on with at any batch, in the order of their names.

Covers monolith/data/streams.py.
"""

import itertools
import json
import threading

import pytest
import tensorflow as tf
from support.waiting import wait_for

import monolith as ml
from monolith import errors
from monolith.core import metrics
from monolith.data import division, growing_files, identity, seekable
from monolith.proto import example_pb2

SCHEMA = [ml.data.Ids("id")]


def append(path, numbers, end="\n"):
    with open(path, "a") as file:
        file.write("\n".join(json.dumps({"id": n}) for n in numbers) + end)


def make_stream(directory, **settings):
    settings = {"batch_size": 3, "max_wait_sec": 0, "idle_timeout_sec": 0, **settings}
    return ml.data.tail(directory / "*.jsonl", SCHEMA, **settings)


def read(batches):
    return [batch["id"].values.numpy().tolist() for batch in batches]


def read_all(batches):
    return list(itertools.chain.from_iterable(read(batches)))


def test_what_is_written_is_read_in_batches_and_what_is_half_written_is_not(tmp_path):
    append(tmp_path / "b.jsonl", [4, 5])
    append(tmp_path / "a.jsonl", [1, 2, 3, 9], end="")  # Nobody writes to it after there is 'b'.
    assert read(make_stream(tmp_path)) == [[1, 2, 3], [9, 4, 5]]
    with open(tmp_path / "b.jsonl", "a") as file:
        file.write('{"id":')
    assert read_all(make_stream(tmp_path)) == [1, 2, 3, 9, 4, 5]


def test_empty_lines_are_no_records_however_many(tmp_path):
    append(tmp_path / "a.jsonl", [1])
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write("\n" * 3000)
    append(tmp_path / "a.jsonl", [2])
    stream = make_stream(tmp_path)
    assert read_all(stream) == [1, 2]
    assert stream.num_skipped == 0


def test_a_dataset_sees_what_is_written_while_it_is_read(tmp_path):
    append(tmp_path / "a.jsonl", [1, 2])
    stream = make_stream(tmp_path, batch_size=1, idle_timeout_sec=60)
    batches = iter(stream())
    assert read([next(batches), next(batches)]) == [[1], [2]]
    append(tmp_path / "a.jsonl", [3])
    append(tmp_path / "c.jsonl", [4])
    assert read([next(batches), next(batches)]) == [[3], [4]]


def test_reading_goes_on_from_every_batch_even_if_files_are_gone(tmp_path):
    append(tmp_path / "a.jsonl", [1, 2, 3, 4])
    append(tmp_path / "b.jsonl", [5, 6, 7])
    stream = make_stream(tmp_path, batch_size=2)
    dataset, iterator = stream(), iter(stream())
    saved, given = [], []
    for batch in iterator:
        given += batch["id"].values.numpy().tolist()
        saved.append(tf.train.Checkpoint(i=iterator).write(str(tmp_path / f"at-{len(saved)}")))
        if len(given) == 7:
            break
    assert given == [1, 2, 3, 4, 5, 6, 7]
    append(tmp_path / "b.jsonl", [8])
    num_read = 0
    for path in saved:
        again = iter(dataset)
        tf.train.Checkpoint(i=again).read(path)
        rest = read_all(again)
        # The batches before have an even number, but for the last one of a file.
        assert rest == list(range(9 - len(rest), 9))
        assert len(rest) < 8 - num_read
        num_read = 8 - len(rest)
    (tmp_path / "a.jsonl").unlink()
    again = iter(dataset)
    tf.train.Checkpoint(i=again).read(saved[-1])
    assert read_all(again) == [8]


def test_the_stop_file_ends_a_stream_that_would_wait_for_ever(tmp_path):
    append(tmp_path / "a.jsonl", [1])
    (tmp_path / "stop").touch()
    settings = {"idle_timeout_sec": None, "stop_file": tmp_path / "stop"}
    assert read(make_stream(tmp_path, **settings)) == [[1]]


@pytest.mark.parametrize("batch_size", [1, 3])
def test_at_the_stop_file_a_line_without_an_end_is_one(tmp_path, batch_size):
    append(tmp_path / "a.jsonl", [1, 2], end="")
    assert read_all(make_stream(tmp_path)) == [1]
    (tmp_path / "stop").touch()
    settings = {"stop_file": tmp_path / "stop", "batch_size": batch_size, "max_wait_sec": 60}
    assert read_all(make_stream(tmp_path, **settings)) == [1, 2]
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('\n{"id": 3')
    stream = make_stream(tmp_path, **settings)
    assert read_all(stream) == [1, 2]
    assert stream.num_skipped == 1


def test_after_a_line_without_an_end_the_position_is_behind_it(tmp_path):
    append(tmp_path / "a.jsonl", [1, 2], end="")
    (tmp_path / "stop").touch()
    stream = make_stream(tmp_path, stop_file=tmp_path / "stop", max_wait_sec=60)
    dataset, iterator = stream(), iter(stream())
    assert read([next(iterator)]) == [[1, 2]]
    path = tf.train.Checkpoint(i=iterator).write(str(tmp_path / "at"))
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write("\n")
    append(tmp_path / "b.jsonl", [3], end="")
    again = iter(dataset)
    tf.train.Checkpoint(i=again).read(path)
    assert read_all(again) == [3]


def test_a_pattern_that_nothing_matches_is_a_warning(tmp_path, caplog, monkeypatch):
    sentence = f"no file matches '{tmp_path}/*.jsonl' yet; one is waited for"
    batches = iter(make_stream(tmp_path, batch_size=1, idle_timeout_sec=60)())
    thread = threading.Thread(target=next, args=(batches,))
    thread.start()
    wait_for(lambda: sentence in caplog.text)
    append(tmp_path / "a.jsonl", [1])
    thread.join()
    assert caplog.text.count(sentence) == 1
    caplog.clear()
    monkeypatch.setattr(growing_files, "_WARN_EVERY_SEC", 0.01)
    stream = ml.data.tail(tmp_path / "*.none", SCHEMA, idle_timeout_sec=0.5)
    assert read(stream) == []
    assert caplog.text.count("no file matches") > 1
    caplog.clear()
    stream = make_stream(tmp_path)
    # The file is the other worker's, but there is one.
    parts = [division.divide(stream, division.Part(i, of=2)) for i in range(2)]
    assert sorted(read_all(part) for part in parts) == [[], [1]]
    assert not caplog.records


def test_framed_examples_are_read(tmp_path):
    framing = ml.data.Framing(has_sort_id=True, kafka_dump=True)
    records = []
    for number in (7, 8):
        example = example_pb2.Example()
        example.named_feature.add(name="id").feature.fid_v2_list.value.append(number)
        records.append(framing.make_record(example.SerializeToString()))
    content = b"".join([*records, framing.make_record(b"\xff\xff"), records[0][:-1]])
    (tmp_path / "a.jsonl").write_bytes(content)
    stream = make_stream(tmp_path, format="example", framing=framing)
    assert read(stream) == [[7, 8]]
    assert stream.num_skipped == 1


@pytest.fixture
def unread():
    """How many bytes the metric has counted."""

    class Sink:
        num_bytes = 0

        def emit(self, kind, name, value, tags):
            assert (kind, name) == ("counter", "data_bytes_unread")
            self.num_bytes += value

    sink = Sink()
    metrics.set_sink(sink)
    yield sink
    metrics.set_sink(None)


def test_what_is_written_where_nobody_reads_is_counted(tmp_path, caplog, monkeypatch, unread):
    monkeypatch.setattr(growing_files, "_LOOK_BACK_SEC", 0)
    append(tmp_path / "a.jsonl", [1])
    append(tmp_path / "c.jsonl", [3])
    stream = make_stream(tmp_path, batch_size=1)._stream
    records = stream.open(stream.start, division.Part(0, of=1))
    assert records.poll(9) == [b'{"id": 1}']
    assert records.poll(9) == [b'{"id": 3}']
    assert unread.num_bytes == 0
    append(tmp_path / "a.jsonl", [4])  # It was passed.
    append(tmp_path / "b.jsonl", [5, 6])  # It comes before the file that is read.
    assert records.poll(9) == []
    one = len('{"id": 4}\n')
    assert unread.num_bytes == 3 * one
    for name, count in [("a", one), ("b", 2 * one)]:
        sentence = f"{count} bytes of '{tmp_path}/{name}.jsonl' are not read: they were written"
        assert sentence in caplog.text
    append(tmp_path / "b.jsonl", [7])
    append(tmp_path / "c.jsonl", [8])
    assert records.poll(9) == [b'{"id": 8}']
    assert unread.num_bytes == 4 * one
    assert len(caplog.records) == 2  # Once for each file.
    (tmp_path / "a.jsonl").unlink()
    # A process that is started again does not know what was read before.
    again = stream.open(records.get_place(), division.Part(0, of=1))
    assert again.poll(9) == records.poll(9) == []
    assert unread.num_bytes == 4 * one
    append(tmp_path / "a.jsonl", [1])  # And that one is new again.
    assert again.poll(9) == []
    assert unread.num_bytes == 5 * one


@pytest.mark.parametrize("number", [0, 39])
def test_of_many_passed_files_new_ones_and_the_last_ones_are_noticed(
    tmp_path, monkeypatch, unread, number
):
    monkeypatch.setattr(growing_files, "_LOOK_BACK_SEC", 0)
    for i in range(1, 40):
        append(tmp_path / f"{i:02}.jsonl", [i])
    append(tmp_path / "99.jsonl", [99])
    stream = make_stream(tmp_path)._stream
    records = stream.open(stream.start, division.Part(0, of=1))
    while records.poll(9):
        pass
    append(tmp_path / f"{number:02}.jsonl", [7])
    assert records.poll(9) == []
    assert unread.num_bytes == len('{"id": 7}\n')


def test_half_a_framed_record_before_a_later_file_is_counted(tmp_path):
    framing = ml.data.Framing(has_sort_id=False)
    example = example_pb2.Example()
    example.named_feature.add(name="id").feature.fid_v2_list.value.append(7)
    record = framing.make_record(example.SerializeToString())
    (tmp_path / "a.jsonl").write_bytes(record + record[:-1])
    settings = {"format": "example", "framing": framing}
    stream = make_stream(tmp_path, **settings)
    assert read_all(stream) == [7]
    assert stream.num_skipped == 0  # Its end may come.
    (tmp_path / "b.jsonl").write_bytes(record)
    stream = make_stream(tmp_path, **settings)
    assert read_all(stream) == [7, 7]
    assert stream.num_skipped == 1
    sentence = r"a.jsonl' ends in the middle of a record, \d+ bytes behind byte"
    with pytest.raises(errors.DataError, match=sentence):
        read_all(make_stream(tmp_path, **settings, refuse_damaged=True))
    # Nor does one come once nobody writes any more.
    (tmp_path / "b.jsonl").write_bytes(record + record[:-1])
    (tmp_path / "stop").touch()
    stream = make_stream(tmp_path, **settings, stop_file=tmp_path / "stop")
    assert read_all(stream) == [7, 7]
    assert stream.num_skipped == 2


def test_a_file_that_goes_before_it_was_read_is_a_warning(tmp_path, caplog, monkeypatch, unread):
    monkeypatch.setattr(growing_files, "_READ_BYTES", 15)
    one = len('{"id": 1}\n')
    append(tmp_path / "a.jsonl", [1, 2, 3, 4])
    stream = make_stream(tmp_path)._stream
    records = stream.open(stream.start, division.Part(0, of=1))
    assert records.poll(1) == [b'{"id": 1}']
    place = records.get_place()
    (tmp_path / "a.jsonl").unlink()
    while records.poll(9):
        pass
    num_lost = 4 * one - 15
    assert f"'{tmp_path}/a.jsonl' is gone, and {num_lost} of its bytes were not read" in caplog.text
    assert unread.num_bytes == num_lost
    assert len(caplog.records) == 1
    again = stream.open(place, division.Part(0, of=1))
    assert again.poll(9) == again.poll(9) == []
    assert f"is gone, of which {one} bytes were read before" in caplog.text
    assert len(caplog.records) == 2
    assert unread.num_bytes == num_lost


def test_workers_divide_the_files_among_themselves(tmp_path):
    for number in range(8):
        append(tmp_path / f"{number}.jsonl", [number])
    stream = make_stream(tmp_path)
    parts = [division.divide(stream, division.Part(i, of=2)) for i in range(2)]
    found = [read_all(part) for part in parts]
    assert all(found)
    assert sorted([*found[0], *found[1]]) == list(range(8))


def test_a_stream_is_the_same_input_after_it_has_grown(tmp_path):
    def identify():
        with tf.Graph().as_default():
            variant = make_stream(tmp_path)()._variant_tensor
            return identity.identify([variant]), seekable.reads_stream()

    append(tmp_path / "a.jsonl", [1])
    before, reads_stream = identify()
    append(tmp_path / "a.jsonl", [2])
    assert (before, reads_stream) == identify()
    assert reads_stream
    assert before.startswith(identity.STREAM)


def test_a_file_that_was_cut_is_refused(tmp_path):
    append(tmp_path / "a.jsonl", [1, 2])
    batches = iter(make_stream(tmp_path, batch_size=2, idle_timeout_sec=60)())
    assert read([next(batches)]) == [[1, 2]]
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(tf.errors.InvalidArgumentError, match="files of a stream only grow"):
        next(batches)


def test_bad_records_are_refused_if_they_are_to_be(tmp_path):
    (tmp_path / "a.jsonl").write_text("{\n")
    assert read(make_stream(tmp_path)) == []
    with pytest.raises(errors.DataError, match="A record cannot be read: it is no JSON"):
        read(make_stream(tmp_path, refuse_damaged=True))


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(errors.ConfigError, match="'example' need a framing"):
        make_stream(tmp_path, format="example")
    with pytest.raises(errors.ConfigError, match="are lines; leave out the framing"):
        make_stream(tmp_path, framing=ml.data.Framing())
    with pytest.raises(errors.ConfigError, match="is compressed"):
        ml.data.tail("a.jsonl.gz", SCHEMA)
    with pytest.raises(errors.ConfigError, match="must not be negative"):
        make_stream(tmp_path, max_wait_sec=-1)
    with pytest.raises(errors.ConfigError, match="batch_size must be positive"):
        make_stream(tmp_path, batch_size=0)
    with tf.Graph().as_default(), pytest.raises(errors.ConfigError, match="eager mode only"):
        iter(make_stream(tmp_path))
