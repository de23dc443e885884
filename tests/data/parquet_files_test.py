"""Parquet files, with real files of every kind."""

import decimal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import columns, parquet_files
from monolith.data.schema import Dense, Ids, Label, StringIds
from monolith.data.string_ids import hash_string


def write(path, **table):
    pq.write_table(pa.table(table), path)
    return path


def read(path, *schema):
    [batch] = parquet_files.dataset(path, schema)
    return batch


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param(pa.array([[1, 2], [], None, [3]], pa.list_(pa.int64())), id="lists"),
        pytest.param(pa.array([[1, 2], [], None, [3]], pa.large_list(pa.int32())), id="large"),
        pytest.param(pa.array([[1, 2], [], None, [3]], pa.list_(pa.uint64())), id="unsigned"),
    ],
)
def test_lists_of_ids(tmp_path, ids):
    batch = read(write(tmp_path / "a.parquet", user=ids), Ids("user"))
    assert batch["user"].dtype == tf.int64
    assert batch["user"].to_list() == [[1, 2], [], [], [3]]


def test_single_ids_and_nulls(tmp_path):
    path = write(tmp_path / "a.parquet", user=pa.array([5, None, 2**63 - 1]), other=[1, 2, 3])
    assert read(path, Ids("user"))["user"].to_list() == [[5], [], [2**63 - 1]]


def test_fixed_size_lists_of_ids_with_a_null_row(tmp_path):
    ids = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int64(), 2))
    batch = read(write(tmp_path / "a.parquet", user=ids), Ids("user"))
    assert batch["user"].to_list() == [[1, 2], [], [3, 4]]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(pa.array(["Zoë", None, ""]), id="strings"),
        pytest.param(pa.array(["Zoë".encode(), None, b""]), id="bytes"),
        pytest.param(pa.array(["Zoë", None, ""]).dictionary_encode(), id="dictionary"),
        pytest.param(pa.array([["Zoë"], [], [""]]), id="lists"),
        pytest.param(pa.array(["Zoë", None, ""], pa.large_string()), id="large_strings"),
    ],
)
def test_strings_are_hashed(tmp_path, names):
    batch = read(write(tmp_path / "a.parquet", name=names), StringIds("name"))
    assert batch["name"].to_list() == [[hash_string("Zoë")], [], [hash_string("")]]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(pa.array([0.0, 1.0]), id="doubles"),
        pytest.param(pa.array([0, 1], pa.int8()), id="integers"),
        pytest.param(pa.array([False, True]), id="booleans"),
        pytest.param(pa.array([decimal.Decimal("0.0"), decimal.Decimal("1.0")]), id="decimals"),
    ],
)
def test_labels_and_dense_numbers(tmp_path, values):
    path = write(tmp_path / "a.parquet", x=values)
    batch = read(path, Label("click", column="x"), Dense("price", column="x"))
    assert batch["click"].dtype == batch["price"].dtype == tf.float32
    assert batch["click"].numpy().tolist() == [0, 1]
    assert batch["price"].numpy().tolist() == [[0], [1]]


@pytest.mark.parametrize("list_type", [pa.list_(pa.float64()), pa.list_(pa.float32(), 2)])
def test_dense_lists_with_a_default(tmp_path, list_type):
    path = write(tmp_path / "a.parquet", price=pa.array([[1, 2], None, [3, 4]], list_type))
    batch = read(path, Dense("price", 2, default=-1))
    assert batch["price"].numpy().tolist() == [[1, 2], [-1, -1], [3, 4]]


def test_batches_go_on_across_row_groups_and_files(tmp_path):
    for name, first in (("1", 0), ("2", 7000)):
        ids = [[i] * (i % 3) for i in range(first, first + 7000)]
        table = pa.table({"row": range(first, first + 7000), "ids": ids})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=999)
    dataset = parquet_files.dataset(
        f"{tmp_path}/*.parquet",
        [Ids("ids"), Label("row")],
        batching=columns.Batching(batch_size=1000),
    )
    batches = list(dataset)
    assert [len(batch["row"]) for batch in batches] == [1000] * 14
    assert np.concatenate([batch["row"] for batch in batches]).tolist() == list(range(14000))
    rows = [row for batch in batches for row in batch["ids"].to_list()]
    assert rows == [[i] * (i % 3) for i in range(14000)]


def test_optional_column_may_be_missing(tmp_path):
    path = write(tmp_path / "a.parquet", user=[1, 2])
    batch = read(path, Ids("user"), Ids("coupon", optional=True))
    assert batch["coupon"].to_list() == [[], []]


@pytest.mark.parametrize(
    ("feature", "table", "message"),
    [
        pytest.param(
            Ids("user"),
            {"users": [1], "click": [0.0]},
            "a.parquet' has no column named 'user', its columns are 'users', 'click'; correct",
            id="wrong_column",
        ),
        pytest.param(
            Ids("user"),
            {"user": ["bob"]},
            "a.parquet', column 'user' holds string, but Ids reads .*; use StringIds",
            id="string_for_id",
        ),
        pytest.param(Ids("user"), {"user": [1.5]}, "'user' holds double, but Ids", id="float"),
        pytest.param(
            Ids("user"),
            {"user": pa.array([2**63], pa.uint64())},
            "column 'user' holds a row with .*9223372036854775808.* below 2\\^63",
            id="too_large",
        ),
        pytest.param(
            Ids("user"),
            {"user": [[1, None]]},
            "'user' holds a row with a null inside a list",
            id="null_in_list",
        ),
        pytest.param(
            StringIds("user"),
            {"user": [1]},
            "holds int64, but StringIds reads strings .*; use Ids for integers",
            id="id_for_string",
        ),
        pytest.param(
            Dense("price", 2),
            {"price": [[1.0, 2.0], [1.0]]},
            "'price' holds a row with 1 values, but Dense reads lists of 2 numbers",
            id="wrong_width",
        ),
        pytest.param(
            Dense("price"),
            {"price": [1.0, None]},
            "'price' holds a row with 0 values, .* or give a default",
            id="null_number",
        ),
        pytest.param(
            Label("click"), {"click": [[1.0]]}, "holds list.*, but Label reads one", id="list_label"
        ),
        pytest.param(
            Label("click"), {"click": ["yes"]}, "'click' holds string, but Label", id="str_label"
        ),
        pytest.param(
            Label("click"), {"click": pa.array([], pa.float32())}, "There are no rows", id="no_rows"
        ),
    ],
)
def test_bad_files_are_named_with_their_column(tmp_path, feature, table, message):
    path = write(tmp_path / "a.parquet", **table)
    with pytest.raises(errors.DataError, match=message):
        parquet_files.dataset(path, [feature])


def test_unreadable_files_are_named(tmp_path):
    schema = [Ids("user")]
    with pytest.raises(errors.DataError, match=r"No file matches '.*\*.parquet'"):
        parquet_files.dataset(tmp_path / "*.parquet", schema)
    path = tmp_path / "a.parquet"
    path.write_text("user\n1\n")
    with pytest.raises(errors.DataError, match=r"a.parquet' cannot be read as Parquet"):
        parquet_files.dataset(path, schema)
    write(path, user=list(range(1000)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(errors.DataError, match=r"a.parquet' cannot be read as Parquet"):
        parquet_files.dataset(path, schema)


def test_error_in_a_later_file_is_raised_while_reading(tmp_path):
    write(tmp_path / "1.parquet", user=[1])
    write(tmp_path / "2.parquet", user=["bob"])
    dataset = parquet_files.dataset(f"{tmp_path}/*.parquet", [Ids("user")])
    message = "2.parquet', column 'user' holds string, but Ids"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(dataset)


def test_missing_pyarrow_says_what_to_install():
    program = """
import sys
sys.modules["pyarrow"] = None  # An import of it fails from here on.
from monolith.data import parquet_files, schema
try:
    parquet_files.dataset("a.parquet", [schema.Ids("user")])
except ImportError as e:
    print(e)
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == (
        "Reading Parquet needs the package pyarrow, which is not installed; "
        'run `pip install "monolith-recsys[parquet]"`.\n'
    )
