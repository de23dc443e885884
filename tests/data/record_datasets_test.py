"""`PBDataset` and the datasets that it makes, those of files; see kafka_messages_test for Kafka."""

import gzip
import zlib

import pytest
import tensorflow as tf
from absl import flags

from monolith import errors
from monolith.data import parsers, record_datasets, row_filters
from monolith.data.framing import Framing
from monolith.data.record_datasets import (
    CompressType,
    DistributedFilePBDataset,
    FeaturePruningType,
    FilePBDataset,
    PBDataset,
    PbType,
)
from monolith.proto import example_pb2, proto_parser_pb2

PLAIN = {"input_pb_type": PbType.PLAINTEXT}


def write(path, records, compress=bytes, **framing):
    content = b"".join(map(Framing(**framing).make_record, records))
    path.write_bytes(compress(content))
    return str(path)


def read(dataset):
    assert dataset.element_spec == tf.TensorSpec([], tf.string)
    return list(dataset.as_numpy_iterator())


def test_the_historical_path():
    from monolith.native_training.data import datasets

    assert datasets is record_datasets


class TestFactory:
    def test_kinds(self, tmp_path):
        path = write(tmp_path / "a", [b"x"])
        assert isinstance(PBDataset(""), FilePBDataset)
        assert isinstance(PBDataset(), FilePBDataset)
        assert isinstance(PBDataset(path), FilePBDataset)
        assert isinstance(PBDataset(file_name=path), FilePBDataset)
        assert isinstance(PBDataset(topics_or_files=path), FilePBDataset)
        assert isinstance(PBDataset([path]), DistributedFilePBDataset)
        assert isinstance(PBDataset(patterns=[path]), DistributedFilePBDataset)
        both = PBDataset(
            path, buffer_size_or_group_id=10, input_pb_type_or_servers=PbType.PLAINTEXT
        )
        assert read(both) == [b"x"]

    def test_the_flag_replaces_the_files(self, tmp_path):
        for day in (1, 3):
            write(tmp_path / f"2026010{day}", [b"%d" % day])
        flags.FLAGS["dataset_input_patterns"].value = f"{tmp_path}/{{DATE(20260101,20260103)}}"
        dataset = PBDataset("elsewhere", None, PbType.PLAINTEXT)
        assert isinstance(dataset, DistributedFilePBDataset)
        assert read(dataset) == [b"1", b"3"]
        assert read(PBDataset(["topic"], "group", "servers", **PLAIN)) == [b"1", b"3"]
        flags.FLAGS["dataset_input_patterns"].value = f"{tmp_path}/none"
        with pytest.raises(AssertionError, match="no match files"):
            PBDataset("elsewhere")

    def test_flags_of_the_program_say_which_topics(self, monkeypatch):
        values = flags.FlagValues()
        for name in ("kafka_topics", "kafka_group_id", "kafka_servers"):
            flags.DEFINE_string(name, None, "", flag_values=values)
        values.mark_as_parsed()
        monkeypatch.setattr(record_datasets, "KafkaDataset", lambda **settings: settings)
        for name in ("dataset_input_patterns", "dataset_input_compression_type"):
            values[name] = flags.FLAGS[name]
        monkeypatch.setattr(record_datasets.flags, "FLAGS", values)
        assert isinstance(PBDataset(""), FilePBDataset)
        values["kafka_topics"].value, values["kafka_group_id"].value = "a,b", "group"
        assert isinstance(PBDataset(""), FilePBDataset)
        values["kafka_servers"].value = "host:1"
        assert PBDataset("a file", file_name="other", variant_type="example") == {
            "topics": "a,b",
            "group_id": "group",
            "servers": "host:1",
            "variant_type": "example",
        }

    def test_flags_of_the_program_say_what_records_are(self, tmp_path, monkeypatch):
        values = flags.FlagValues()
        flags.DEFINE_string("data_type", "Example", "", flag_values=values)
        flags.DEFINE_bool("sort_id", False, "", flag_values=values)
        values.mark_as_parsed()
        for name in ("dataset_input_patterns", "dataset_input_compression_type"):
            values[name] = flags.FLAGS[name]
        monkeypatch.setattr(record_datasets.flags, "FLAGS", values)
        example = example_pb2.Example(label=[1]).SerializeToString()
        path = write(tmp_path / "a", [example], has_sort_id=False)
        with tf.Graph().as_default() as graph:
            PBDataset(path)
            assert graph.get_collection(record_datasets.OUTPUT_PB_TYPE_GRAPH_KEY) == ["example"]
        assert read(PBDataset(path)) == [example]

    def test_bad_arguments(self):
        with pytest.raises(errors.ConfigError, match="but got 7"):
            PBDataset(7)
        with pytest.raises(errors.ConfigError, match="`topics_or_files` is given twice"):
            PBDataset("a", topics_or_files="b")

    def test_patterns_of_days(self):
        assert PBDataset.gen_patterns("a", 20260131, 0, 20260201, 0) == ["a/20260131/*"]


@pytest.mark.parametrize(
    "framing",
    [
        {},
        {"has_sort_id": False},
        {"kafka_dump": True},
        {"kafka_dump_prefix": True},
        {"lagrangex_header": True},
    ],
)
def test_framings(tmp_path, framing):
    path = write(tmp_path / "a", [b"one", b""], **framing)
    assert read(FilePBDataset(path, **PLAIN, **framing)) == [b"one", b""]


def test_compression(tmp_path):
    by_name = write(tmp_path / "a.gz", [b"one"], gzip.compress)
    assert read(FilePBDataset(by_name, **PLAIN)) == [b"one"]
    path = write(tmp_path / "a", [b"one"], gzip.compress)
    assert read(FilePBDataset(path, compression_type=CompressType.GZIP, **PLAIN)) == [b"one"]
    path = write(tmp_path / "b", [b"one"], zlib.compress)
    assert read(FilePBDataset(path, compression_type=CompressType.ZLIB, **PLAIN)) == [b"one"]
    flags.FLAGS["dataset_input_compression_type"].value = "ZLIB"
    assert read(FilePBDataset(path, **PLAIN)) == [b"one"]
    path = write(tmp_path / "plain.gz", [b"one"])
    assert read(FilePBDataset(path, compression_type=CompressType.NO, **PLAIN)) == [b"one"]


def test_elements_are_what_parsers_take(tmp_path):
    batch = example_pb2.ExampleBatch(batch_size=2)
    users = batch.named_feature_list.add(name="user")
    for user in (7, 8):
        users.feature.add().fid_v2_list.value.append(user)
    path = write(tmp_path / "batches", [batch.SerializeToString()])
    rows = FilePBDataset(path, input_pb_type=PbType.EXAMPLEBATCH).batch(2)
    (found,) = [parsers.parse_examples(strings, ["user"]) for strings in rows]
    assert found["user"].to_list() == [[7], [8]]
    batches = FilePBDataset(path, None, PbType.EXAMPLEBATCH, PbType.EXAMPLEBATCH)
    (found,) = [parsers.parse_example_batch(string, ["user"]) for string in batches]
    assert found["user"].to_list() == [[7], [8]]
    instance = proto_parser_pb2.Instance(label=[1])
    instance.feature.add(name="user", fid=[9])
    path = write(tmp_path / "instances", [instance.SerializeToString()])
    (found,) = [
        parsers.parse_instances(strings, None, ["user"], ["label"])
        for strings in FilePBDataset(path).batch(2)
    ]
    assert (found["user"].to_list(), found["label"].numpy().tolist()) == ([[9]], [[1]])


def test_many_files(tmp_path):
    for name in "abc":
        write(tmp_path / name, [f"{name}{i}".encode() for i in range(2)])
    patterns = [f"{tmp_path}/a", f"{tmp_path}/[bc]"]
    # Two files in turns, a record of each.
    found = read(DistributedFilePBDataset(patterns, **PLAIN))
    assert found == [b"a0", b"b0", b"a1", b"b1", b"c0", b"c1"]
    found = read(DistributedFilePBDataset(patterns, block_length=2, **PLAIN))
    assert found == [b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]
    without_b = DistributedFilePBDataset(patterns, exclude_fn=lambda p: p.endswith("b"), **PLAIN)
    assert read(without_b) == [b"a0", b"c0", b"a1", b"c1"]
    parallel = DistributedFilePBDataset(
        patterns, num_parallel_calls=2, deterministic=False, **PLAIN
    )
    assert sorted(read(parallel)) == sorted(found)


def test_workers_by_flags(tmp_path):
    for name in "abc":
        write(tmp_path / name, [name.encode()])
    flags.FLAGS["dataset_worker_idx"].value = 0
    flags.FLAGS["dataset_num_workers"].value = 2
    assert read(DistributedFilePBDataset(f"{tmp_path}/*", **PLAIN)) == [b"a", b"c"]
    flags.FLAGS["dataset_num_workers"].value = 4
    with pytest.raises(errors.DataError, match="3 files cannot be divided among 4 workers"):
        DistributedFilePBDataset(f"{tmp_path}/*", **PLAIN)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_snappy": True}, "not snappy"),
        ({"compression_type": CompressType.ZSTD}, "not zstd"),
        ({"disable_iterator_save_restore": True}, "always saved"),
        ({"feature_pruning_type": FeaturePruningType.PRUNING_FEATURE}, "name the features"),
        ({"has_sort_ids": True}, "no arguments \\['has_sort_ids'\\]"),
        ({"buffer_size": 0}, "must be positive"),
        ({"output_pb_type": PbType.PLAINTEXT}, "instance do not become plaintext"),
    ],
)
def test_what_would_do_nothing_is_refused(tmp_path, arguments, message):
    path = write(tmp_path / "a", [])
    with pytest.raises(errors.ConfigError, match=message):
        FilePBDataset(path, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_parquet": True}, "ml.data.parquet"),
        ({"use_tfrecord": True}, "TFRecordDataset"),
        ({"deterministic": True}, "give `num_parallel_calls`"),
        ({"cycle_length": 0}, "must be positive"),
        ({"exclude_fn": lambda path: True}, "leaves no file"),
    ],
)
def test_what_would_do_nothing_with_many_files_is_refused(tmp_path, arguments, message):
    path = write(tmp_path / "a", [])
    with pytest.raises((errors.ConfigError, errors.DataError), match=message):
        DistributedFilePBDataset([path], **arguments)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(errors.DataError, match="No file matches"):
        FilePBDataset(str(tmp_path / "none"))
    with pytest.raises(errors.ConfigError, match=r"a\.snappy"):
        FilePBDataset(write(tmp_path / "a.snappy", []))
    with pytest.raises(errors.ConfigError, match="zcat"):
        FilePBDataset("", compression_type=CompressType.GZIP)


def test_reading_goes_on_between_two_files_and_behind_a_filter(tmp_path):
    paths = []
    for name in (1, 2, 3):
        rows = [example_pb2.Example(label=[name, i]).SerializeToString() for i in range(100)]
        paths.append(write(tmp_path / f"{name}", rows))

    def make_dataset():
        dataset = PBDataset(paths, input_pb_type=PbType.EXAMPLE)
        return dataset.filter(lambda row: row_filters.filter_by_label(row, [2.0])).batch(7)

    passed = [batch.tolist() for batch in make_dataset().as_numpy_iterator()]
    # Two of three files, each of whose rows comes once.
    assert len({row for batch in passed for row in batch}) == 200
    iterator = iter(make_dataset())
    for _ in range(5):
        next(iterator)
    saved = tf.train.Checkpoint(i=iterator).write(str(tmp_path / "position"))
    again = iter(make_dataset())
    tf.train.Checkpoint(i=again).read(saved)
    assert [batch.numpy().tolist() for batch in again] == passed[5:]
