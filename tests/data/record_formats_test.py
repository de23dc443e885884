"""Records of each format, and those that nobody can read."""

import json

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import fids
from monolith.data.record_formats import Codec
from monolith.data.schema import Dense, Ids, Label, StringIds
from monolith.proto import example_pb2, proto_parser_pb2

SCHEMA = (Ids("user"), StringIds("tag"), Dense("price", 2, default=0.5), Label("click"))


def make_json(user, tag, click):
    return json.dumps({"user": user, "tag": tag, "click": click}).encode()


def make_tf_example(user, tag, click):
    example = tf.train.Example()
    example.features.feature["user"].int64_list.value.extend(user)
    example.features.feature["tag"].bytes_list.value.extend(t.encode() for t in tag)
    example.features.feature["click"].float_list.value.append(click)
    return example.SerializeToString()


@pytest.mark.parametrize(
    ("record_format", "make"), [("json", make_json), ("tf_example", make_tf_example)]
)
def test_rows_are_what_was_written(record_format, make):
    codec = Codec(record_format, SCHEMA)
    rows = codec.decode([make([7, -8], ["é"], 1), make([], [], 0), b"\xff{"])
    assert rows["user"].values.tolist() == [7, -8]
    assert rows["user"].lengths.tolist() == [2, 0]
    assert rows["tag"].values.tolist() == ["é".encode()]
    assert rows["price"].tolist() == [[0.5, 0.5]] * 2
    assert rows["click"].tolist() == [1, 0]
    assert rows["click"].dtype == np.float32
    assert codec.num_skipped == 1


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"[1]", "no JSON object"),
        (b"[" * 100_000, "no JSON"),
        (b'{"user": 7}', "column 'click' is missing"),
        (b'{"user": "x", "click": 1}', "column 'user' holds 'x', which Ids does not read"),
        (b'{"user": true, "click": 1}', "holds True"),
        (b'{"user": 9223372036854775808, "click": 1}', "holds 9223372036854775808"),
        (b'{"user": 1, "click": [1, 0]}', "column 'click' has 2 values, not 1"),
        (b'{"user": 1, "click": 1e300}', "column 'click' holds 1e.300"),
        (b'{"user": 1, "click": NaN}', "column 'click' holds nan"),
        (b'{"user": 1, "tag": 5, "click": 1}', "column 'tag' holds 5, which StringIds"),
    ],
)
def test_a_bad_record_is_skipped_or_refused_in_one_sentence(record, why):
    codec = Codec("json", SCHEMA)
    assert codec.decode([record, make_json([1], [], 1)])["user"].values.tolist() == [1]
    assert codec.num_skipped == 1
    with pytest.raises(errors.DataError, match=why):
        Codec("json", SCHEMA, refuse_damaged=True).decode([record])


def test_examples_and_instances_are_parsed_by_the_op():
    example = example_pb2.Example(label=[1])
    example.named_feature.add(name="user").feature.fid_v2_list.value.append(7)
    schema = (Ids("user"), Label("click"))
    codec = Codec("example", schema)
    without_ids = example_pb2.Example(label=[0])
    rows = codec.decode([example.SerializeToString(), b"\xff\xff", without_ids.SerializeToString()])
    assert rows["user"].lengths.tolist() == [1, 0]
    assert rows["click"].tolist() == [1, 0]
    assert codec.num_skipped == 1
    instance = proto_parser_pb2.Instance(fid=[fids.make_v1(3, 9)], label=[1])
    rows = Codec("instance", (Ids("u", column="slot_3"), Label("click"))).decode(
        [instance.SerializeToString()]
    )
    assert rows["u"].values.tolist() == [fids.make_v1(3, 9)]
    with pytest.raises(errors.DataError, match="Record 0 is no Example that could be read"):
        Codec("example", schema, refuse_damaged=True).decode([b"\xff\xff"])


@pytest.mark.parametrize("record_format", ["json", "tf_example", "example", "instance"])
@pytest.mark.parametrize("others", [[], [b"\xff\xff"]], ids=["whole", "beside_a_damaged_one"])
def test_records_without_content_or_label_are_skipped(record_format, others):
    """Not rows with the label 0: a message without a value deletes its key."""
    unlabelled = example_pb2.Example(named_feature=[example_pb2.NamedFeature(name="user")])
    good, bad = {
        "json": (b'{"click": 1}', b"{}"),
        "tf_example": (make_tf_example([], [], 1), tf.train.Example().SerializeToString()),
        "example": (
            example_pb2.Example(label=[1]).SerializeToString(),
            unlabelled.SerializeToString(),
        ),
        "instance": (
            proto_parser_pb2.Instance(label=[1]).SerializeToString(),
            proto_parser_pb2.Instance(instance_weight=1).SerializeToString(),
        ),
    }[record_format]
    codec = Codec(record_format, (Ids("user"), Label("click")))
    rows = codec.decode([b"", good, bad, *others, good])
    assert rows["click"].tolist() == [1, 1]
    assert rows["user"].lengths.tolist() == [0, 0]
    assert codec.num_skipped == 2 + len(others)
    # Without a label among the features, content is all that a record needs.
    codec = Codec(record_format, (Ids("user"),))
    assert codec.decode([b"", good, bad or good])["user"].lengths.tolist() == [0, 0]
    assert codec.num_skipped == 1
    for record in (b"", bad):
        with pytest.raises(errors.DataError, match="A record cannot be read"):
            Codec(record_format, (Label("click"),), refuse_damaged=True).decode([record])


def test_what_does_not_exist_is_refused():
    with pytest.raises(errors.ConfigError, match="There is no format 'xml'; records are json, "):
        Codec("xml", SCHEMA)
    with pytest.raises(errors.ConfigError, match="are fids; use Ids"):
        Codec("example", SCHEMA)
    with pytest.raises(errors.ConfigError, match="but what an instance lacks is zeros"):
        Codec("instance", SCHEMA[2:])
