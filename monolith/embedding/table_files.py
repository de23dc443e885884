"""The files of an `ml.Table`: a directory that holds one table, whole at every moment.

`table.json` says which files belong together: those of the rows, and those of the filter that
counts ids before they get one. Each save writes files of new names, then replaces `table.json`,
and only then removes the old ones. Whoever is interrupted leaves the table as it was before.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = f"{directory}/users"
    ...     write(path, {"dim": 8}, {"rows": lambda basename: None})
    ...     content = read(path)
    >>> content.settings, os.path.basename(content.basenames["rows"])[:5]
    ({'dim': 8}, 'rows-')
"""

import contextlib
import dataclasses
import json
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.checkpoint import durable_files

MANIFEST = "table.json"

_FORMAT = 1
_PART = re.compile(r"[a-z]+-([0-9a-f]{12})(\.meta)?-\d{5}-of-\d{5}", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Content:
    """What a directory holds.

    Attributes:
        settings: What `write` was given.
        basenames: The path that the files of each part begin with.
    """

    settings: dict[str, Any]
    basenames: dict[str, str]


def write(
    path: str, settings: Mapping[str, Any], writers: Mapping[str, Callable[[str], Any]]
) -> None:
    """Writes a table into the directory `path`, in place of the one that is there.

    Args:
        path: The directory, on any file system of TensorFlow; it is made if it is missing.
        settings: Whatever JSON can hold.
        writers: For each part what writes its files, `<basename>-00000-of-00001` and so on.

    Raises:
        DataError: The directory or a file cannot be written.
    """
    tag = uuid.uuid4().hex[:12]
    parts = {part: f"{part}-{tag}" for part in writers}
    content = {"format": _FORMAT, "parts": parts, "settings": dict(settings)}
    text = json.dumps(content, indent=2) + "\n"
    manifest = os.path.join(path, MANIFEST)
    with _naming(path, "be saved to"):
        tf.io.gfile.makedirs(path)
        try:
            for part, write_part in writers.items():
                write_part(os.path.join(path, parts[part]))
            durable_files.write_atomically(manifest, text)
        except BaseException:
            # The last thing that can fail is to sync the directory: the new files count then.
            with contextlib.suppress(tf.errors.OpError, OSError, errors.DataError):
                if not tf.io.gfile.exists(manifest) or tag not in str(read(path).basenames):
                    _remove(path, lambda name_tag: name_tag == tag)
            raise
        _remove(path, lambda name_tag: name_tag != tag)


def read(path: str) -> Content:
    """Returns what is in the directory `path`.

    Raises:
        DataError: There is no table, or another version of this package has written it.
    """
    manifest = os.path.join(path, MANIFEST)
    with _naming(path, "be read from"):
        try:
            with tf.io.gfile.GFile(manifest, "rb") as file:
                text = file.read()
        except tf.errors.NotFoundError as e:
            raise errors.DataError(
                f"'{path}' holds no table: {MANIFEST}, which Table.save writes, is not there."
            ) from e
    try:
        content = json.loads(text)
        version = content["format"]
        if version != _FORMAT:
            raise errors.DataError(
                f"'{manifest}' has format {version!r}, where this version of Monolith reads "
                f"{_FORMAT}; load it with the version that has written it."
            )
        basenames = {part: os.path.join(path, name) for part, name in content["parts"].items()}
        return Content(dict(content["settings"]), basenames)
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as e:
        raise errors.DataError(
            f"'{manifest}' is damaged ({e}); restore the directory from a copy."
        ) from e


@contextlib.contextmanager
def _naming(path: str, action: str) -> Iterator[None]:
    try:
        yield
    except (tf.errors.OpError, OSError) as e:
        reason = e.message if isinstance(e, tf.errors.OpError) else e
        raise errors.DataError(f"The table cannot {action} '{path}': {reason}") from e


def _remove(path: str, is_old: Callable[[str], bool]) -> None:
    for name in tf.io.gfile.listdir(path):
        part = _PART.fullmatch(name)
        suffix = name.removeprefix(MANIFEST)
        is_unfinished = suffix != name and durable_files.TEMPORARY_SUFFIX.fullmatch(suffix)
        if is_unfinished or (part and is_old(part[1])):
            with contextlib.suppress(tf.errors.NotFoundError):
                tf.io.gfile.remove(os.path.join(path, name))
