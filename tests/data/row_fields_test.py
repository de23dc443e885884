"""Fields of serialized rows, against protobuf's own reading."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import row_fields
from monolith.proto import line_id_pb2, proto_parser_pb2

BOTH = pytest.mark.parametrize("kind", ["instance", "example"])


def make_rows(kind):
    rows = [row_fields.MESSAGES[kind]() for _ in range(3)]
    rows[0].label.extend([1, -0.5])
    rows[0].line_id.actions.extend([0, -3])
    rows[0].line_id.uid = (1 << 63) + 5
    rows[0].line_id.special_strategies.extend([4, 5])
    rows[2].line_id.user_id = "seven"
    rows[2].line_id.sample_rate = 0.25
    rows[2].line_id.is_draw = True
    return [row.SerializeToString() for row in rows]


@BOTH
def test_labels(kind):
    assert row_fields.read_labels(make_rows(kind), kind).to_list() == [[1, -0.5], [], []]


@BOTH
@pytest.mark.parametrize(
    ("name", "expected", "dtype"),
    [
        ("actions", [[0, -3], [], []], tf.int64),
        ("uid", [[5 - (1 << 63)], [], []], tf.int64),  # The same bits.
        ("special_strategies", [[4, 5], [], []], tf.int64),
        ("user_id", [[], [], [b"seven"]], tf.string),
        ("sample_rate", [[], [], [0.25]], tf.float32),
        ("is_draw", [[], [], [1]], tf.int64),
    ],
)
def test_line_ids(kind, name, expected, dtype):
    found = row_fields.read_line_id(make_rows(kind), name, kind)
    assert found.dtype == dtype
    assert found.to_list() == expected


def test_every_field_of_a_line_id_can_be_read():
    for field in line_id_pb2.LineId.DESCRIPTOR.fields:
        found = row_fields.read_line_id([b""], field.name, "example")
        assert found.to_list() == [[]]


def test_in_a_graph():
    row = proto_parser_pb2.Instance(label=[3]).SerializeToString()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        rows = tf.compat.v1.placeholder(tf.string, [None])
        labels = row_fields.read_labels(rows, "instance")
        assert session.run(labels.values, {rows: [row, row]}).tolist() == [3, 3]


def test_what_is_refused():
    with pytest.raises(errors.ConfigError, match="nobody is not in line id, pls check!"):
        row_fields.read_line_id([b""], "nobody", "example")
    with pytest.raises(errors.ConfigError, match="make rows of batches first"):
        row_fields.read_labels([b""], "example_batch")
    with pytest.raises(tf.errors.DataLossError):
        row_fields.read_labels([b"\xff\xff"], "example")
