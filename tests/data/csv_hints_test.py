"""What people do wrong with CSV files, and what they are told."""

import pytest

from monolith import errors
from monolith.data import csv_files
from monolith.data.schema import Ids, Label, StringIds

SCHEMA = [Ids("user"), StringIds("genres"), Label("click")]


def complain(tmp_path, text, schema=SCHEMA, **options):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(errors.DataError) as caught:
        csv_files.dataset(path, schema, **options)
    return str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("delimiter", "other", "name"),
    [
        (",", "\t", "tabs"),
        (",", ";", "semicolons"),
        (",", "|", "bars"),
        ("\t", ",", "commas"),
        (";", ",", "commas"),
        (";", "\t", "tabs"),
    ],
)
def test_another_delimiter_in_the_header(tmp_path, delimiter, other, name):
    header = other.join(["user", "genres", "click"])
    text = f"{header}\n{other.join(['7', 'Horror', '1'])}\n"
    assert complain(tmp_path, text, delimiter=delimiter, list_separator=" ") == (
        f"'/a.csv' has no column named 'user': the header is one column with {name} in it, "
        f"{header!r}; is it delimiter={other!r}?"
    )


def test_another_delimiter_with_the_right_one_in_a_name(tmp_path):
    message = complain(tmp_path, "user;genres;click;from, to\n7;Horror;1;x\n")
    assert "the header is 2 columns with semicolons in it" in message
    assert message.endswith("is it delimiter=';'?")


def test_one_column_with_a_delimiter_of_others_in_it(tmp_path):
    message = complain(tmp_path, "User\tGenres\tClick\n7\tHorror\t1\n")
    assert message.endswith("is it delimiter='\\t'?")


def test_quoted_names(tmp_path):
    message = complain(tmp_path, '"user";"genres";"click"\n7;Horror;1\n')
    assert message.endswith("is it delimiter=';'?")


def test_no_guess_where_none_is_due(tmp_path):
    """A column that is missing is that, whatever its neighbours hold."""
    for header in ("users,genres;tags,click", "user id,genres,click", ",genres,click"):
        message = complain(tmp_path, f"{header}\n7,Horror,1\n")
        assert "delimiter" not in message
        assert "looks like data" not in message
        assert "correct the schema (`column=`)" in message


def test_no_header(tmp_path):
    assert complain(tmp_path, "7,Horror|Crime,1\n8,Crime,0\n") == (
        "'/a.csv' has no column named 'user': its first line looks like data, '7', 'Horror|Crime', "
        "'1'; if no line names the columns, give `column_names`."
    )


def test_column_names_that_are_not_those_of_the_schema(tmp_path):
    message = complain(tmp_path, "7,Horror,1\n", column_names=["user", "genre", "click"])
    assert message == (
        "'/a.csv' has no column named 'genres': `column_names` are 'user', 'genre', 'click'; "
        "correct them or the schema (`column=`)."
    )


def test_column_names_beside_a_header(tmp_path):
    text = "user,genres,click\n7,Horror,1\n"
    message = complain(tmp_path, text, column_names=["user", "genres", "click"])
    assert "line 1, column 'user' holds 'user'" in message
    assert message.endswith("names the columns: leave `column_names` out?")


@pytest.mark.parametrize(("other", "name"), [("\t", "tabs"), (";", "semicolons")])
def test_another_delimiter_in_the_rows(tmp_path, other, name):
    text = f"7{other}Horror{other}1\n"
    message = complain(tmp_path, text, column_names=["user", "genres", "click"])
    assert message == (
        "'/a.csv', line 1, has 1 fields where 3 columns are named; there are "
        f"{name} in it: is it delimiter={other!r}?"
    )


def test_label_in_words(tmp_path):
    message = complain(tmp_path, "user,genres,click\n7,Horror,yes\n")
    assert message == (
        "'/a.csv', line 2, column 'click' holds 'yes', but Label reads one number, such as 0 or 1; "
        "correct the schema or the file."
    )
