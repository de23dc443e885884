"""CSV files, with real files of every kind."""

import csv
import gzip
import io
import pathlib
import tempfile

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import assume, given
from hypothesis import strategies as st

from monolith import errors
from monolith.data import columns, csv_files
from monolith.data.schema import Dense, Ids, Label, StringIds
from monolith.data.string_ids import hash_string

SCHEMA = [
    Ids("user"),
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
        [Ids("ids"), StringIds("text", column="answer")],
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
    dataset = csv_files.dataset(f"{tmp_path}/*.csv", [Ids("id"), Label("click")], batching=batching)
    batches = list(dataset)
    assert [len(batch["click"]) for batch in batches] == [300] * 6 + [200]
    ids = np.concatenate([batch["id"].flat_values for batch in batches])
    assert ids.tolist() == list(range(2000))
    assert np.concatenate([batch["click"] for batch in batches]).tolist() == [0, 1] * 1000


def test_optional_column_may_be_missing(tmp_path):
    write(tmp_path / "a.csv", "user\n1\n2\n")
    [batch] = csv_files.dataset(
        tmp_path / "a.csv", [Ids("user"), StringIds("coupon", optional=True)]
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
            r"a.csv', line 3, column 'user' holds 'bob', but Ids reads .* use StringIds",
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
        csv_files.dataset(path, [Ids("user"), Label("click")])


def test_wrong_width_without_a_default(tmp_path):
    path = write(tmp_path / "a.csv", "price\n1|2\n\n3\n")
    message = r"line 4, column 'price' holds '3', but Dense reads 2 numbers, .* give a default"
    with pytest.raises(errors.DataError, match=message):
        csv_files.dataset(path, [Dense("price", 2)])


def test_error_further_on_is_raised_while_reading(tmp_path):
    write(tmp_path / "1.csv", "user\n" + "7\n" * 5000)
    write(tmp_path / "2.csv", "user\n8\nbob\n")
    dataset = csv_files.dataset(f"{tmp_path}/*.csv", [Ids("user")])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"2.csv', line 3, column 'user' holds 'bob'"
    ):
        list(dataset)


def test_unreadable_files_are_named(tmp_path):
    schema = [Ids("user")]
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
    dataset = csv_files.dataset(path, [Ids("user")])
    path.unlink()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a.csv' does not exist"):
        list(dataset)


@pytest.mark.parametrize(
    ("delimiter", "separator"),
    [("|", "|"), ("", "|"), (",", ""), ("\n", "|"), ('"', "|"), (None, "|"), (b",", "|"), (",", 7)],
)
def test_bad_separators_are_refused(delimiter, separator):
    with pytest.raises(errors.ConfigError, match="delimiter must be one character"):
        csv_files.dataset("x", SCHEMA, delimiter=delimiter, list_separator=separator)


def test_a_long_delimiter_has_a_way_out():
    with pytest.raises(errors.ConfigError, match="got '::'; replace it in the files by a tab"):
        csv_files.dataset("x", SCHEMA, delimiter="::")


@pytest.mark.parametrize("names", [[], "user", ["user", 7]])
def test_bad_column_names_are_refused(names):
    with pytest.raises(errors.ConfigError, match="column_names are a list of names"):
        csv_files.dataset("x", SCHEMA, column_names=names)


CELLS = st.text(st.sampled_from('ab|,"\r\n\0 é\u2028\x0b\x1c'), max_size=6)


@given(
    st.lists(st.tuples(st.integers(0, 99), CELLS), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.integers(1, 5),
    st.integers(1, 40),
    st.sampled_from(["a.csv", "a.csv.gz"]),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_any_text_in_any_blocks_is_what_python_reads(
    rows, end, is_open, chunk, block, name, quoting
):
    """Quotes, line breaks of all kinds and unusual characters; from each chunk on, too."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end, quoting=quoting)
    writer.writerows([("id", "tag"), *rows])
    content = text.getvalue().removesuffix(end if is_open else "").encode()
    expected = list(csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8", newline="")))[1:]
    expected = [row for row in expected if row]
    # Python does not quote a carriage return, at which it ends a line.
    assume(all(len(row) == 2 and row[0].isdigit() for row in expected))
    with (
        tempfile.TemporaryDirectory() as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        path = pathlib.Path(directory) / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        patch.setattr(csv_files, "_CHUNK_ROWS", chunk)
        patch.setattr(csv_files, "_BLOCK_BYTES", block)
        source = csv_files.CsvFiles(
            (str(path),), (Ids("id"), StringIds("tag")), ",", "#", column_names=None
        )
        chunks = list(source.read(source.start))
        for i, (_, place) in enumerate([(None, source.start), *chunks]):
            found = [c for c, _ in source.read(place)]
            ids = [v for c in found for v in c["id"].values.tolist()]
            tags = [v for c in found for v in c["tag"].values.tolist()]
            num_before = sum(columns.num_rows(c) for c, _ in chunks[:i])
            assert ids == [int(number) for number, _ in expected[num_before:]]
            assert tags == [tag.encode() for _, tag in expected[num_before:] if tag]


def test_lines_of_errors_count_from_the_beginning_of_the_file(tmp_path, monkeypatch):
    """Also where quoted fields have several lines, lines are empty, and rows come in chunks."""
    monkeypatch.setattr(csv_files, "_CHUNK_ROWS", 2)
    text = 'user,x\n1,"a\nb"\n\n2,c\n3,"d\n\ne"\n4,f\n5,g\nbob,h\n'
    path = write(tmp_path / "a.csv", text)
    source = csv_files.open_files(path, [Ids("user")])
    with pytest.raises(errors.DataError, match=r"a.csv', line 11, column 'user' holds 'bob'"):
        list(source.read(source.start))
    path.write_text(text.replace("bob,h", "6,h,i"))
    with pytest.raises(errors.DataError, match=r"a.csv', line 11, has 3 fields where 2 columns"):
        list(source.read(source.start))
    path.write_text(text.replace("bob,h", '6,"h'))
    with pytest.raises(errors.DataError, match=r"a.csv', line 11, is not CSV"):
        list(source.read(source.start))


def test_a_line_longer_than_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", 100)
    names = "|".join(f"name{i}" for i in range(5000))
    path = write(tmp_path / "a.csv", f"id,names\n1,{names}\n2,\n")
    [batch] = csv_files.dataset(path, [Ids("id"), StringIds("names")])
    assert batch["names"].row_lengths().numpy().tolist() == [5000, 0]


def test_a_file_of_one_endless_line_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"x" * 10_000_000)
    with pytest.raises(errors.DataError, match=r"a.csv', line 1, is not CSV \(field larger"):
        csv_files.dataset(path, [Ids("id")])


def test_a_file_that_grows_while_it_is_read_is_named(tmp_path):
    path = write(tmp_path / "a.csv", "user\n" + "7\n" * 5000)
    batches = iter(csv_files.dataset(path, [Ids("user")]))
    next(batches)
    with path.open("a") as file:
        file.write("8\n")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a.csv' has changed while it was re"):
        list(batches)
