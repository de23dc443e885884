"""Conditions on a field of a LineId or on a feature."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import line_conditions
from monolith.proto import example_pb2
from monolith.proto.line_id_pb2 import LineId


def holds(condition, line_id):
    row = example_pb2.Example(line_id=line_id).SerializeToString()
    return bool(condition.test(row, "example"))


LINE = LineId(req_time=10, sample_rate=0.1, device_type="phone", actions=[1, 2], is_draw=True)


@pytest.mark.parametrize(
    ("field", "op", "operand", "expected"),
    [
        ("req_time", "gt", 9, True),
        ("req_time", "gt", 10, False),
        ("req_time", "ge", 10, True),
        ("req_time", "lt", 10, False),
        ("req_time", "le", 10, True),
        ("req_time", "eq", 10, True),
        ("req_time", "neq", 10, False),
        ("req_time", "between", [10, 11], True),
        ("req_time", "between", [9, 10], False),
        ("req_time", "in", [9, 10], True),
        ("req_time", "not-in", [9, 10], False),
        # 0.1 in 32 bits, as the field has it.
        ("sample_rate", "eq", 0.1, True),
        ("is_draw", "eq", True, True),
        # Not set: its default.
        ("uid", "eq", 0, True),
        ("device_type", "eq", "phone", True),
        ("device_type", "in", [b"phone", b"tv"], True),
        ("device_type", "startswith", "ph", True),
        ("device_type", "endswith", "ph", False),
        ("actions", "any", [2, 3], True),
        ("actions", "any", [3], False),
        ("actions", "all", [2, 1], True),
        ("actions", "all", [2, 3], False),
        ("actions", "any", 1, True),
        ("actions", "diff", [3, 4], True),
        ("actions", "diff", [1, 3], False),
        # Not set: its default.
        ("rank", "le", -1, False),
        ("user_id", "not-in", ["a"], True),
    ],
)
def test_conditions(field, op, operand, expected):
    assert holds(line_conditions.make_condition(field, op, operand), LINE) is expected


@pytest.mark.parametrize("keep_empty", [False, True])
def test_an_empty_field(keep_empty):
    # Repeated, but not packed.
    for field in ("special_strategies", "actions"):
        condition = line_conditions.make_condition(field, "any", [1], keep_empty=keep_empty)
        assert holds(condition, LineId()) is keep_empty


def test_operands_of_a_file(tmp_path):
    path = tmp_path / "values"
    values = example_pb2.FilterValues()
    values.int64_list.value.extend([9, 10])
    path.write_bytes(values.SerializeToString())
    condition = line_conditions.make_condition("req_time", "in", None, operand_filepath=str(path))
    found = [holds(condition, LineId(req_time=time)) for time in (8, 9, 10)]
    assert found == [False, True, True]
    for content, message in ((b"\xff", "is no FilterValues"), (b"", "holds no values")):
        path.write_bytes(content)
        with pytest.raises(errors.DataError, match=message):
            line_conditions.make_condition("req_time", "in", None, operand_filepath=str(path))
    with pytest.raises(errors.DataError, match="does not exist"):
        line_conditions.make_condition("req_time", "in", None, operand_filepath="none")
    with pytest.raises(errors.ConfigError, match="not for 'eq'"):
        line_conditions.make_condition("req_time", "eq", None, operand_filepath=str(path))


@pytest.mark.parametrize(
    ("field", "op", "operand", "message"),
    [
        ("uids", "eq", 1, "uids is not in line id, pls check!"),
        ("uid", "any", [1], "which is a single field"),
        ("actions", "eq", 1, "which is a repeated field"),
        ("actions", "in", [1], "'in' does not fit"),
        ("uid", "startswith", "1", "which is a number"),
        ("device_type", "gt", "a", "which is a text"),
        ("uid", "between", [1], "two operands"),
        ("uid", "eq", "1", "'1' cannot be compared with uid"),
        ("device_type", "eq", 1, "1 cannot be compared with device_type"),
        ("req_time", "eq", 0.5, "0.5 cannot be compared with req_time, which is int64"),
        ("req_time", "eq", 1 << 63, "cannot be compared with req_time"),
        ("req_time", "eq", [1, 2], "'eq' has one operand"),
        ("uid", "eq", None, "either `operand` or"),
    ],
)
def test_what_is_no_condition_is_refused(field, op, operand, message):
    with pytest.raises(errors.ConfigError, match=message):
        line_conditions.make_condition(field, op, operand)


def test_ids_have_no_sign():
    high = (1 << 63) + 5
    line = LineId(uid=high)
    assert holds(line_conditions.make_condition("uid", "gt", 5), line)
    assert holds(line_conditions.make_condition("uid", "in", [1, high]), line)
    # As a tensor of int64 has it.
    assert holds(line_conditions.make_condition("uid", "eq", high - (1 << 64)), line)


def test_fields_that_are_written_in_parts():
    # Protobuf puts parts of a message together: lists grow, of a number the last one counts.
    first = example_pb2.Example(line_id=LineId(actions=[1], req_time=5, sample_rate=0.5))
    second = example_pb2.Example(line_id=LineId(actions=[2], req_time=6))
    row = first.SerializeToString() + second.SerializeToString()
    for arguments in (
        ("actions", "all", [1, 2]),
        ("req_time", "eq", 6),
        ("sample_rate", "eq", 0.5),
    ):
        assert line_conditions.make_condition(*arguments).test(row, "example")


@pytest.fixture(scope="module")
def example():
    found = example_pb2.Example()
    for name, kind, values in (
        ("ints", "int64_list", [3, -4]),
        ("floats", "float_list", [0.1]),
        ("doubles", "double_list", [0.1]),
        ("texts", "bytes_list", [b"Rome", b"Oslo"]),
        ("none", "float_list", []),
        ("fids", "fid_v2_list", [1]),
    ):
        feature = found.named_feature.add(name=name).feature
        getattr(feature, kind).SetInParent()
        getattr(feature, kind).value.extend(values)
    found.named_feature.add(name="one").feature.int64_value = 7
    return found.SerializeToString()


@pytest.mark.parametrize(
    ("name", "op", "operand", "kind", "expected"),
    [
        ("ints", "eq", 3, "int64", True),
        ("ints", "any", [-4], "int64", True),
        ("ints", "all", [-4, 3], "int64", True),
        ("ints", "diff", [-4], "int64", False),
        ("one", "between", [7, 8], "int64", True),
        # In 32 and in 64 bits.
        ("floats", "eq", 0.1, "float", True),
        ("doubles", "eq", 0.1, "double", True),
        ("doubles", "lt", 0.1, "double", False),
        ("texts", "startswith", "Ro", "bytes", True),
        ("texts", "in", [b"Oslo"], "bytes", False),
        ("texts", "any", [b"Oslo"], "bytes", True),
        ("none", "eq", 0, "float", False),
        ("missing", "eq", 0, "float", False),
    ],
)
def test_features(example, name, op, operand, kind, expected):
    condition = line_conditions.make_feature_condition(name, op, operand, kind)
    assert bool(condition.test(example, "example")) is expected


def test_features_that_do_not_fit(example):
    for name, kind in (("ints", "float"), ("texts", "int64"), ("fids", "int64")):
        condition = line_conditions.make_feature_condition(name, "eq", 1, kind)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"it holds|another type"):
            condition.test(example, "example")
    kept = line_conditions.make_feature_condition("none", "eq", 0, "float", keep_empty=True)
    assert kept.test(example, "example")
    for arguments, message in (
        (("a", "eq", 1, "int32"), "`field_type` is int64, float, double, bytes, got 'int32'"),
        (("a", "like", 1, "int64"), "There is no 'like'"),
        (("a", "gt", "x", "bytes"), "which is a text"),
    ):
        with pytest.raises(errors.ConfigError, match=message):
            line_conditions.make_feature_condition(*arguments)
