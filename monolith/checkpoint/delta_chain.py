"""The small checkpoints that follow a full one: their names, and the file that lists them.

Between two full checkpoints a run may save only what has changed. The delta of step 120 after the
full checkpoint `model.ckpt-100` is `model.ckpt-100.delta-120.*`, in the form of a checkpoint:
variables, and tables in `.assets/`. `model.ckpt-100.deltas` lists those that are complete, in
order. To restore `model.ckpt-100` means: its rows, then those of each listed delta, and the
variables of the last one.

Example:
    >>> get_delta_prefix("/models/ads/model.ckpt-100", 120)
    '/models/ads/model.ckpt-100.delta-120'
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     base = f"{directory}/model.ckpt-100"
    ...     before = read(base)
    ...     with open(get_list_path(base), "w") as file:
    ...         _ = file.write(serialize([Delta(step=120, num_rows=7)]))
    ...     before, read(base)
    ([], [Delta(step=120, num_rows=7)])
"""

import dataclasses
import json
import os
import re
import zlib
from collections.abc import Sequence

import tensorflow as tf

LIST_SUFFIX = ".deltas"

_FORMAT = 1
_DELTA_PREFIX = re.compile(r"\.delta-\d+$", re.ASCII)
_DELTA_ENTRY = re.compile(r"\.(?:deltas|delta-\d+)(?:[._].*)?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Delta:
    """One listed delta.

    Attributes:
        step: The global step at which it was saved.
        num_rows: How many rows of tables it holds; removed ones count, too.
    """

    step: int
    num_rows: int


def get_list_path(base_prefix: str) -> str:
    """Returns the path of the file that lists the deltas of a full checkpoint."""
    return base_prefix + LIST_SUFFIX


def get_delta_prefix(base_prefix: str, step: int) -> str:
    """Returns what the names of the files of a delta begin with."""
    return f"{base_prefix}.delta-{step}"


def is_delta(prefix: str) -> bool:
    """Returns whether a prefix is one that `get_delta_prefix` gives."""
    return _DELTA_PREFIX.search(prefix) is not None


def read(base_prefix: str) -> list[Delta]:
    """Returns the deltas of a full checkpoint in order; none, if there is no list.

    Raises:
        tf.errors.DataLossError: The list is damaged; the message names it.
    """
    path = get_list_path(base_prefix)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except tf.errors.NotFoundError:
        return []
    try:
        chain = json.loads(content)
        if chain["crc32"] != _checksum(chain["format"], chain["deltas"]):
            raise ValueError("The checksum does not match.")
        if chain["format"] != _FORMAT:
            raise ValueError(f"The format is {chain['format']}, expected {_FORMAT}.")
        return [Delta(**delta) for delta in chain["deltas"]]
    except (ValueError, KeyError, TypeError) as error:
        raise tf.errors.DataLossError(
            None,
            None,
            f"{path} is damaged, so the deltas of {base_prefix} are not known: {error} Remove "
            "the file to restore the full checkpoint alone.",
        ) from error


def serialize(deltas: Sequence[Delta]) -> str:
    """Returns the content of a list file."""
    listed = [dataclasses.asdict(delta) for delta in deltas]
    chain = {"format": _FORMAT, "deltas": listed, "crc32": _checksum(_FORMAT, listed)}
    return json.dumps(chain, indent=1) + "\n"


def get_prefixes(base_prefix: str) -> list[str]:
    """Returns the prefixes of the deltas of a full checkpoint, in order.

    Raises:
        tf.errors.DataLossError: The list is damaged.
    """
    return [get_delta_prefix(base_prefix, delta.step) for delta in read(base_prefix)]


def get_newest_prefix(prefix: str) -> str:
    """Returns where the newest variables of a checkpoint are: in its last delta, or in itself.

    Raises:
        tf.errors.DataLossError: The list of deltas is damaged.
    """
    return (get_prefixes(prefix) or [prefix])[-1]


def find_entries(directory: str, base_name: str) -> list[str]:
    """Returns the names in `directory` that belong to deltas of a full checkpoint, list first.

    Args:
        directory: The model directory.
        base_name: Name of the full checkpoint, such as `model.ckpt-100`.
    """
    own = [
        entry
        for entry in _list(directory)
        if entry.startswith(base_name) and _DELTA_ENTRY.fullmatch(entry.removeprefix(base_name))
    ]
    list_name = os.path.basename(get_list_path(base_name))
    return sorted(own, key=lambda entry: (entry != list_name, entry))


def find_bases(directory: str, basename: str) -> list[str]:
    """Returns the names of full checkpoints of which `directory` has files of deltas.

    Args:
        directory: The model directory.
        basename: What names of checkpoints begin with, such as `model.ckpt`.
    """
    own = re.compile(rf"({re.escape(basename)}-\d+)({_DELTA_ENTRY.pattern})", re.ASCII)
    return sorted({match[1] for match in map(own.fullmatch, _list(directory)) if match})


def _list(directory: str) -> list[str]:
    try:
        # Some file systems list a directory with a slash at its end.
        return [entry.rstrip("/") for entry in tf.io.gfile.listdir(directory or ".")]
    except tf.errors.NotFoundError:
        return []


def _checksum(file_format: int, deltas: object) -> int:
    return zlib.crc32(json.dumps([file_format, deltas], sort_keys=True).encode())
