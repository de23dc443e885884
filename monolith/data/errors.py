"""What was wrong with the data; most of it is found in the error that TensorFlow made of it.

A reader that meets bad data inside a pipeline says so in one sentence, around which TensorFlow puts
the names of nodes and a stack trace.

Example:
    >>> import pathlib
    >>> import tensorflow as tf
    >>> from monolith.data import csv_files, schema
    >>> for name, rows in (("1.csv", "7\\n" * 2000), ("2.csv", "bob\\n")):
    ...     _ = pathlib.Path(name).write_text("user\\n" + rows)
    >>> try:
    ...     list(csv_files.dataset(["1.csv", "2.csv"], [schema.Ids("user")]))
    ... except tf.errors.InvalidArgumentError as error:
    ...     print(find_sentence(error))
    '2.csv', line 2, column 'user' holds 'bob', but Ids reads integers of 64 bits, ...
"""

import re

# The sentences of readers have no line breaks; those of checks in a graph stand in brackets.
_OWN = re.compile(r"(?:\[DataError: ([^\]\n]+)\]|\bDataError: ([^\n]+))")
# What TensorFlow says of an example that it cannot parse; the name is that of the file.
_EXAMPLE = re.compile(r"Name: (?P<path>[^\n]+?), (?P<rest>(?:Key|Feature): [^\n]+)")
_NO_EXAMPLE = "Could not parse example input"
_KEY = re.compile(r"Key: (?P<name>.+?), Index: \d+\.\s+(?P<what>.+)")
_REQUIRED = re.compile(r"Feature: (?P<name>.+?) \(data type: \w+\) is required")


def describe_empty_input(did: str) -> str:
    """Returns the message for an input without any batch; `did` says what was to be done."""
    return (
        f"Nothing was {did}: the input ended before its first batch. Check that the files or the "
        "stream the input function reads are there and not empty, that no filter drops every "
        "example, and that batch(drop_remainder=True) does not drop all of a small dataset."
    )


def find_sentence(error: BaseException) -> str | None:
    """Returns the sentence of a reader that an error is about, None if it is about something else.

    Args:
        error: What reading a dataset, or a session that reads one, has raised.
    """
    if isinstance(error, UnicodeDecodeError):
        # A message of TensorFlow that quotes a record, of which it has made no text.
        message = bytes(error.object).decode(errors="replace")
    else:
        message = str(error)
    if (own := _OWN.search(message)) is not None:
        return (own[1] or own[2]).strip()
    if _NO_EXAMPLE in message:
        return (
            "One of the files holds a record that is not a tf.train.Example; write it again, or "
            "leave it out."
        )
    if (found := _EXAMPLE.search(message)) is None:
        return None
    path = found["path"]
    if (required := _REQUIRED.search(found["rest"])) is not None:
        return (
            f"{path!r} holds a record without the feature {required['name']!r}; correct the file "
            "or the schema."
        )
    if (key := _KEY.search(found["rest"])) is not None:
        return (
            f"{path!r} holds a record whose feature {key['name']!r} is not what the schema says "
            f"({key['what'].strip().rstrip('.')}); correct the file or the schema."
        )
    return None
