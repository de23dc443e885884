"""Conditions on a field of a LineId."""

import pytest

from monolith import errors
from monolith.data import line_conditions
from monolith.proto import example_pb2
from monolith.proto.line_id_pb2 import LineId

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
    ],
)
def test_conditions(field, op, operand, expected):
    assert line_conditions.make_condition(field, op, operand)(LINE) is expected


@pytest.mark.parametrize("keep_empty", [False, True])
def test_an_empty_field(keep_empty):
    # Repeated, but not packed.
    for field in ("special_strategies", "actions"):
        holds = line_conditions.make_condition(field, "any", [1], keep_empty=keep_empty)
        assert holds(LineId()) is keep_empty


def test_operands_of_a_file(tmp_path):
    path = tmp_path / "values"
    values = example_pb2.FilterValues()
    values.int64_list.value.extend([9, 10])
    path.write_bytes(values.SerializeToString())
    holds = line_conditions.make_condition("req_time", "in", None, operand_filepath=str(path))
    assert [holds(LineId(req_time=time)) for time in (8, 9, 10)] == [False, True, True]
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
        ("actions", "diff", [1], "'diff' does not fit"),
        ("uid", "startswith", "1", "which is a number"),
        ("device_type", "gt", "a", "which is a text"),
        ("uid", "between", [1], "two operands"),
        ("uid", "eq", "1", "'1' cannot be compared with uid"),
        ("device_type", "eq", 1, "1 cannot be compared with device_type"),
        ("uid", "eq", None, "either `operand` or"),
    ],
)
def test_what_is_no_condition_is_refused(field, op, operand, message):
    with pytest.raises(errors.ConfigError, match=message):
        line_conditions.make_condition(field, op, operand)
