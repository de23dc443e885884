"""What may be the matter with a CSV file whose columns are not those that were expected.

Example:
    >>> print(describe_columns("a", ["x\\ty"], "x", ["x", "y"], ",", None))
    'a' has no column named 'x': the header is one column with tabs in it, 'x\\ty'; ...
"""

from collections.abc import Sequence

_DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}


def describe_columns(
    path: str,
    names: Sequence[str],
    missing: str,
    wanted: Sequence[str],
    delimiter: str,
    column_names: Sequence[str] | None,
) -> str:
    """Returns the sentence for a column that is not there, or there twice.

    Args:
        path: The file.
        names: What its columns are called.
        missing: The column.
        wanted: All columns that must be there.
        delimiter: What was taken to stand between two fields.
        column_names: The names that were given, None if the first line has them.
    """
    found = ", ".join(map(repr, names))
    if missing in names:
        start = f"{path!r} has two columns named {missing!r}"
    else:
        start = f"{path!r} has no column named {missing!r}"
        if column_names is None:
            if (other := _guess_delimiter(names, wanted, delimiter)) is not None:
                what = "one column" if len(names) == 1 else f"{len(names)} columns"
                text = delimiter.join(names)
                return (
                    f"{start}: the header is {what} with {_DELIMITERS[other]} in it, {text!r}; "
                    f"is it delimiter={other!r}?"
                )
            if any(map(_looks_like_data, names)):
                return (
                    f"{start}: its first line looks like data, {found}; if no line names the "
                    "columns, give `column_names`."
                )
    if column_names is not None:
        return f"{start}: `column_names` are {found}; correct them or the schema (`column=`)."
    return (
        f"{start}, its columns are {found}; correct the schema (`column=`) or the file's first "
        "line, or give `column_names`."
    )


def find_in_line(line: str, delimiter: str) -> str:
    """Returns a question if a line has no delimiter but what could be another one."""
    if delimiter not in line:
        for other, name in _DELIMITERS.items():
            if other in line:
                return f"there are {name} in it: is it delimiter={other!r}?"
    return ""


def find_delimiter(row: Sequence[str], width: int, delimiter: str) -> str:
    """Returns a question if a row of another width has the right one with another delimiter."""
    text = delimiter.join(row)
    for other, name in _DELIMITERS.items():
        if other != delimiter and text.count(other) == width - 1 and width > 1:
            return f"there are {name} in it: is it delimiter={other!r}?"
    return ""


def find_header(row: Sequence[str], line: int, column_names: Sequence[str] | None) -> str:
    """Returns a remark if a row is the line that names the columns."""
    if column_names is not None and line == 1 and set(row) & set(column_names):
        return " The file's first line names the columns: leave `column_names` out?"
    return ""


def _guess_delimiter(names: Sequence[str], wanted: Sequence[str], delimiter: str) -> str | None:
    text = delimiter.join(names)
    for other in _DELIMITERS:
        parts = [part.strip(" \"'") for part in text.split(other)]
        if other != delimiter and len(parts) > 1 and set(wanted) <= set(parts):
            return other
    if len(names) > 1:
        return None
    # Not all that is wanted is there, either; but that it is only one column is odd enough.
    return next((other for other in _DELIMITERS if other != delimiter and other in text), None)


def _looks_like_data(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
