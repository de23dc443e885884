"""Example, ExampleBatch and Instance, each made of the other."""

import pytest

from monolith import errors
from monolith.data import conversions, fids
from monolith.proto import example_pb2, line_id_pb2, proto_parser_pb2

FID = fids.make_v1(slot=200, signature=5)


def make_batch():
    batch = example_pb2.ExampleBatch(batch_size=2, data_source_key=9)
    user = batch.named_feature_list.add(name="user", id=3, type=example_pb2.SHARED)
    user.feature.add().fid_v2_list.value.append(7)
    item = batch.named_feature_list.add(name="item")
    item.feature.add().fid_v1_list.value.append(FID)
    item.feature.add().float_list.value.extend([0.5, 2])
    labels = batch.named_feature_list.add(name="__LABEL__")
    labels.feature.add().float_list.value.append(1)
    labels.feature.add().float_list.value.append(0)
    lines = batch.named_feature_list.add(name="__LINE_ID__")
    for uid in (11, 12):
        serialized = line_id_pb2.LineId(uid=uid).SerializeToString()
        lines.feature.add().bytes_list.value.append(serialized)
    weights = batch.named_feature_list.add(name="instance_weight")
    weights.feature.add().float_list.value.append(3)
    weights.feature.add().float_list.SetInParent()
    return batch


def test_rows_of_a_batch():
    first, second = conversions.split_batch(make_batch())
    assert [named.name for named in first.named_feature] == ["user", "item"]
    assert [named.id for named in first.named_feature] == [3, 0]
    for row in (first, second):
        assert row.named_feature[0].feature.fid_v2_list.value == [7]
        assert row.data_source_key == 9
    assert first.named_feature[1].feature.fid_v1_list.value == [FID]
    assert second.named_feature[1].feature.float_list.value == [0.5, 2]
    assert (first.label, second.label) == ([1], [0])
    assert (first.line_id.uid, second.line_id.uid) == (11, 12)
    # A weight that is not there is 1.
    assert (first.instance_weight, second.instance_weight) == (3, 1)


def test_a_batch_with_a_wrong_column_is_refused():
    batch = make_batch()
    batch.batch_size = 3
    with pytest.raises(
        errors.DataError,
        match="ExampleBatch batch_size should be equal to named_feature size, while got 3 vs 2 for "
        "feature_name item",
    ):
        conversions.split_batch(batch)
    batch = make_batch()
    batch.named_feature_list[3].feature[1].bytes_list.value[0] = b"\xff"
    with pytest.raises(errors.DataError, match="Failed to parse the LineId"):
        conversions.split_batch(batch)
    batch = make_batch()
    del batch.named_feature_list[0].feature[:]
    with pytest.raises(errors.DataError, match="shared column user"):
        conversions.split_batch(batch)


def test_an_example_as_an_instance_and_back():
    first, second = (
        conversions.example_to_instance(r) for r in conversions.split_batch(make_batch())
    )
    assert (first.fid, second.fid) == ([FID], [])
    assert first.feature[0].fid == [7]
    assert [(f.name, list(f.float_value)) for f in second.feature] == [
        ("user", []),
        ("item", [0.5, 2]),
    ]
    assert (first.label, first.instance_weight, first.line_id.uid) == ([1], 3, 11)
    back = conversions.instance_to_example(first)
    assert [(named.name, named.id) for named in back.named_feature] == [
        ("fc_slot_200", 0),
        ("user", 1),
    ]
    assert back.named_feature[0].feature.fid_v1_list.value == [FID]
    assert (back.label, back.instance_weight, back.line_id.uid) == ([1], 3, 11)


def test_an_instance_without_weight_and_with_values():
    instance = proto_parser_pb2.Instance(value=[0.25])
    instance.feature.add(name="history").fid_list.add(value=[1, 2])
    example = conversions.instance_to_example(instance)
    assert example.instance_weight == 1
    assert [named.name for named in example.named_feature] == ["value", "history"]
    assert example.named_feature[0].feature.float_list.value == [0.25]
    assert example.named_feature[1].feature.fid_v2_lists.list[0].value == [1, 2]


def test_what_an_instance_cannot_hold_is_refused():
    example = example_pb2.Example()
    example.named_feature.add(name="price").feature.double_list.value.append(1)
    with pytest.raises(errors.DataError, match="'price' of an Example is a double_list"):
        conversions.example_to_instance(example)


def test_converters():
    assert conversions.make_converter("example", "example") is None
    serialized = make_batch().SerializeToString()
    rows = conversions.split_batch(make_batch())
    to_examples = conversions.make_converter("examplebatch", "example")
    assert [example_pb2.Example.FromString(row) for row in to_examples(serialized)] == rows
    to_instances = conversions.make_converter("examplebatch", "instance")
    instances = [proto_parser_pb2.Instance.FromString(row) for row in to_instances(serialized)]
    assert instances == [conversions.example_to_instance(row) for row in rows]
    to_instance = conversions.make_converter("example", "instance")
    assert to_instance(rows[0].SerializeToString()) == [instances[0].SerializeToString()]
    back = conversions.make_converter("instance", "example")(instances[0].SerializeToString())
    assert example_pb2.Example.FromString(back[0]).label == [1]
    with pytest.raises(errors.DataError, match="is no ExampleBatch"):
        to_examples(b"\xff")
    with pytest.raises(errors.ConfigError, match="plaintext do not become example"):
        conversions.make_converter("plaintext", "example")
