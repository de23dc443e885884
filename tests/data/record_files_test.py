"""Files of framed records and standard input, read as single strings."""

import gzip
import itertools
import os
import zlib

import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import division, identity, record_files
from monolith.data.framing import Framing
from monolith.proto import example_pb2

FRAMING = Framing()
PLAIN = ("plaintext", "plaintext")


def frame(records, framing=FRAMING):
    return b"".join(map(framing.make_record, records))


def make_source(tmp_path, contents, compression="", types=PLAIN):
    paths = []
    for number, content in enumerate(contents):
        path = tmp_path / f"part-{number}"
        path.write_bytes(content)
        paths.append(str(path))
    return record_files.RecordFiles(tuple(paths), (), FRAMING, *types, compression)


def read(dataset):
    return list(dataset.as_numpy_iterator())


@pytest.mark.parametrize(
    ("compression", "compress"),
    [("none", bytes), ("gzip", gzip.compress), ("zlib", zlib.compress)],
)
def test_reading_goes_on_from_anywhere(tmp_path, compression, compress):
    records = [b"%d" % i for i in range(150)] + [bytes(100_000)]
    source = make_source(tmp_path, [compress(frame(records))], compression)
    dataset = record_files.make_dataset(source, cycle_length=1)
    assert read(dataset) == records
    iterator = iter(dataset)
    for _ in range(100):
        next(iterator)
    saved = tf.train.Checkpoint(i=iterator).write(str(tmp_path / "position"))
    # Another dataset, as after a restart: nobody stands there any more.
    again = iter(record_files.make_dataset(source, cycle_length=1))
    tf.train.Checkpoint(i=again).read(saved)
    assert [element.numpy() for element in again] == records[100:]


def test_files_take_turns(tmp_path):
    contents = [frame([b"%s%d" % (name, i) for i in range(3)]) for name in (b"a", b"b", b"c")]
    source = make_source(tmp_path, contents)
    found = read(record_files.make_dataset(source, cycle_length=2, block_length=1))
    assert found == [b"a0", b"b0", b"a1", b"b1", b"a2", b"b2", b"c0", b"c1", b"c2"]
    found = read(record_files.make_dataset(source, cycle_length=3, block_length=2))
    assert found[:4] == [b"a0", b"a1", b"b0", b"b1"]


def test_workers_read_their_parts_in_a_graph(tmp_path):
    source = make_source(tmp_path, [frame([b"%d" % i]) for i in range(4)])

    def read_part(input_fn, count):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            dataset = input_fn()
            # It can be told from others, so that its position is saved.
            assert identity.identify([dataset._variant_tensor])
            element = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
            return [session.run(element) for _ in range(count)]

    def build():
        return record_files.make_dataset(source, cycle_length=2)

    for index, expected in ((0, [b"0", b"2"]), (1, [b"1", b"3"])):
        part = division.Part(index, of=2)
        assert read_part(lambda part=part: division.divide(build, part), 2) == expected
    dataset, files = division.build_split(build, tf.constant(3, tf.int64))
    assert (read(dataset), files) == ([b"3"], list(source.paths))


def test_batches_become_rows(tmp_path):
    batch = example_pb2.ExampleBatch(batch_size=3)
    column = batch.named_feature_list.add(name="__LABEL__")
    for label in range(3):
        column.feature.add().float_list.value.append(label)
    serialized = batch.SerializeToString()
    source = make_source(tmp_path, [frame([serialized] * 2)], types=("examplebatch", "example"))
    rows = read(record_files.make_dataset(source, cycle_length=1))
    labels = [example_pb2.Example.FromString(row).label[0] for row in rows]
    assert labels == [0, 1, 2, 0, 1, 2]
    source = make_source(tmp_path, [frame([serialized] * 2)], types=("examplebatch",) * 2)
    assert read(record_files.make_dataset(source, cycle_length=1)) == [serialized] * 2


@pytest.mark.parametrize(
    ("content", "compression", "types", "message"),
    [
        (frame([b"one"])[:-1], "", PLAIN, "part-0' has a truncated record at byte 0"),
        (frame([b"one"]) + b"\0\0\0", "", PLAIN, "truncated record at byte 19"),
        (bytes(8) + b"\xfe\xfe\xfe\xfe" + bytes(4), "", PLAIN, "DEADBEEF value found"),
        (frame([b"\xff"]), "", ("example", "instance"), "part-0', before byte 17: .*no Example"),
        (b"plain", "gzip", PLAIN, "is not a whole gzip file"),
        (zlib.compress(frame([b"one"]))[:-6], "zlib", PLAIN, "part-0"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, content, compression, types, message):
    source = make_source(tmp_path, [content], compression, types)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        read(record_files.make_dataset(source, cycle_length=1))


class TestStandardInput:
    @pytest.fixture
    def pipe(self):
        """Yields the end to write to of a pipe that is standard input."""
        before = os.dup(0)
        source, target = os.pipe()
        os.dup2(source, 0)
        os.close(source)
        with os.fdopen(target, "wb") as file:
            yield file
        os.dup2(before, 0)
        os.close(before)

    def test_records_come_as_they_are_written(self, pipe):
        rows = iter(record_files.read_standard_input(FRAMING, *PLAIN))
        for record in (b"one", b"two"):
            pipe.write(frame([record]))
            pipe.flush()
            assert next(rows).numpy() == record
        pipe.close()
        assert list(itertools.islice(rows, 1)) == []

    def test_a_truncated_record_is_refused(self, pipe):
        pipe.write(frame([b"one"])[:-1])
        pipe.close()
        with pytest.raises(tf.errors.InvalidArgumentError, match="standard input has a truncated"):
            read(record_files.read_standard_input(FRAMING, *PLAIN))

    def test_its_position_is_not_saved(self):
        with tf.Graph().as_default():
            dataset = record_files.read_standard_input(FRAMING, *PLAIN)
            with pytest.raises(identity.UnknownInputError):
                identity.identify([dataset._variant_tensor])


def test_converting_to_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(errors.ConfigError, match="do not become"):
        record_files.read_standard_input(FRAMING, "plaintext", "example")
