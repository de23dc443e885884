"""CSV files, with real files of every kind."""

import gzip

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import columns, csv_files
from monolith.data.schema import Dense, Label, RaggedIds, StringIds
from monolith.data.string_ids import hash_string

SCHEMA = [
    RaggedIds("user"),
    StringIds("genres"),
    Dense("price", 2, default=0.5),
    Label("click"),
]

TEXT = """click,genres,user,price,unused
1,Horror|Science Fiction,-7|9223372036854775807,1.5|2,x
0,,,,"a, b"

0.25,"Film, noir",42,1e2|-3,
"""


def write(path, text):
    path.write_text(text)
    return path


def check_batch(batch):
    assert list(batch) == ["user", "genres", "price", "click"]
    assert batch["user"].dtype == tf.int64
    assert batch["user"].row_splits.dtype == tf.int64
    assert batch["user"].to_list() == [[-7, 2**63 - 1], [], [42]]
    names = [["Horror", "Science Fiction"], [], ["Film, noir"]]
    assert batch["genres"].to_list() == [[hash_string(n) for n in row] for row in names]
    assert batch["price"].dtype == batch["click"].dtype == tf.float32
    assert batch["price"].numpy().tolist() == [[1.5, 2], [0.5, 0.5], [100, -3]]
    assert batch["click"].numpy().tolist() == [1, 0, 0.25]


@pytest.mark.parametrize("encode", [str.encode, lambda text: text.replace("\n", "\r\n").encode()])
def test_all_kinds_of_columns(tmp_path, encode):
    (tmp_path / "a.csv").write_bytes(encode(TEXT))
    [batch] = csv_files.dataset(tmp_path / "a.csv", SCHEMA)
    check_batch(batch)


def test_gzip_and_byte_order_mark(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + TEXT.encode()))
    [batch] = csv_files.dataset(tmp_path / "a.csv.gz", SCHEMA)
    check_batch(batch)


def test_other_separators_and_no_header(tmp_path):
    write(tmp_path / "a.tsv", "7 8\tyes, I do\n9\tno\n")
    [batch] = csv_files.dataset(
        tmp_path / "a.tsv",
        [RaggedIds("ids"), StringIds("text", column="answer")],
        delimiter="\t",
        list_separator=" ",
        column_names=["ids", "answer"],
    )
    assert batch["ids"].to_list() == [[7, 8], [9]]
    words = [["yes,", "I", "do"], ["no"]]
    assert batch["text"].to_list() == [[hash_string(word) for word in row] for row in words]


def test_batches_go_on_across_files_with_columns_in_any_order(tmp_path):
    # Two chunks of the reader, then another file.
    write(tmp_path / "1.csv", "id,click\n" + "".join(f"{i},{i % 2}\n" for i in range(1500)))
    write(tmp_path / "2.csv", "click,id\n" + "".join(f"{i % 2},{i}\n" for i in range(1500, 2000)))
    write(tmp_path / "3.csv", "click,id\n")
    batching = columns.Batching(batch_size=300)
    dataset = csv_files.dataset(
        f"{tmp_path}/*.csv", [RaggedIds("id"), Label("click")], batching=batching
    )
    batches = list(dataset)
    assert [len(batch["click"]) for batch in batches] == [300] * 6 + [200]
    ids = np.concatenate([batch["id"].flat_values for batch in batches])
    assert ids.tolist() == list(range(2000))
    assert np.concatenate([batch["click"] for batch in batches]).tolist() == [0, 1] * 1000


def test_optional_column_may_be_missing(tmp_path):
    write(tmp_path / "a.csv", "user\n1\n2\n")
    [batch] = csv_files.dataset(
        tmp_path / "a.csv", [RaggedIds("user"), StringIds("coupon", optional=True)]
    )
    assert batch["coupon"].to_list() == [[], []]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "users,click\n1,0\n",
            r"a.csv' has no column named 'user', its columns are 'users', 'click'; correct",
            id="wrong_column",
        ),
        pytest.param("user,user,click\n1,1,0\n", "two columns named 'user'", id="double_column"),
        pytest.param(
            "user,click\n1,0\nbob,1\n",
            r"a.csv', line 3, column 'user' holds 'bob', but RaggedIds reads .* use StringIds",
            id="string_for_id",
        ),
        pytest.param(
            "user,click\n9223372036854775808,1\n",
            "line 2, column 'user' holds '922",
            id="too_large",
        ),
        pytest.param("user,click\n1||2,1\n", r"column 'user' holds '1\|\|2'", id="empty_id"),
        pytest.param(
            "user,click\n1,yes\n",
            "line 2, column 'click' holds 'yes', but Label reads one number",
            id="string_for_label",
        ),
        pytest.param("user,click\n1,\n", "column 'click' holds '', but Label", id="no_label"),
        pytest.param("user,click\n1,nan\n", "column 'click' holds 'nan', but Label", id="nan"),
        pytest.param("user,click\n1,0|1\n", "column 'click' holds '0|1', but Label", id="two"),
        pytest.param(
            "user,click\n1,0\n2\n",
            "a.csv', line 3, has 1 fields where 2 columns are named",
            id="short_line",
        ),
        pytest.param('user,click\n1,"0\n', "a.csv', line 2, is not CSV", id="open_quote"),
        pytest.param("user,click\n", "There are no rows in '.*a.csv'; check", id="no_rows"),
        pytest.param("", "There are no rows in '.*a.csv'; check", id="empty"),
    ],
)
def test_bad_files_are_named_with_line_and_column(tmp_path, text, message):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(errors.DataError, match=message):
        csv_files.dataset(path, [RaggedIds("user"), Label("click")])


def test_wrong_width_without_a_default(tmp_path):
    path = write(tmp_path / "a.csv", "price\n1|2\n\n3\n")
    message = r"line 4, column 'price' holds '3', but Dense reads 2 numbers, .* give a default"
    with pytest.raises(errors.DataError, match=message):
        csv_files.dataset(path, [Dense("price", 2)])


def test_error_further_on_is_raised_while_reading(tmp_path):
    write(tmp_path / "1.csv", "user\n" + "7\n" * 5000)
    write(tmp_path / "2.csv", "user\n8\nbob\n")
    dataset = csv_files.dataset(f"{tmp_path}/*.csv", [RaggedIds("user")])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"2.csv', line 3, column 'user' holds 'bob'"
    ):
        list(dataset)


def test_unreadable_files_are_named(tmp_path):
    schema = [RaggedIds("user")]
    with pytest.raises(errors.DataError, match=r"No file matches '.*missing.csv'"):
        csv_files.dataset(tmp_path / "missing.csv", schema)
    path = write(tmp_path / "a.csv.gz", "user\n1\n")
    with pytest.raises(errors.DataError, match=r"a.csv.gz' is not a whole gzip file .* rename it"):
        csv_files.dataset(path, schema)
    path.write_bytes(gzip.compress(np.random.default_rng(0).bytes(1000))[:500])
    with pytest.raises(errors.DataError, match=r"a.csv.gz' is not"):
        csv_files.dataset(path, schema)
    path = tmp_path / "b.csv"
    path.write_bytes(gzip.compress(b"user\n1\n"))
    with pytest.raises(errors.DataError, match=r"b.csv' is not UTF-8 text .* add `.gz`"):
        csv_files.dataset(path, schema)


def test_file_that_vanishes_is_named(tmp_path):
    path = write(tmp_path / "a.csv", "user\n1\n")
    dataset = csv_files.dataset(path, [RaggedIds("user")])
    path.unlink()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a.csv' does not exist"):
        list(dataset)


@pytest.mark.parametrize(("delimiter", "separator"), [("|", "|"), ("", "|"), (",", "")])
def test_bad_separators_are_refused(tmp_path, delimiter, separator):
    with pytest.raises(errors.ConfigError, match="delimiter must be one character"):
        csv_files.dataset("x", SCHEMA, delimiter=delimiter, list_separator=separator)
