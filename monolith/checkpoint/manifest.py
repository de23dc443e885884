"""The manifest of a checkpoint: which files it has, and how to see that they are what was saved.

`manifest-NAME`, beside the checkpoint NAME, is written when everything else is there. It lists each
file with its size. Small files, such as index and meta graph, are listed with their SHA-256. Files
that check themselves while they are read (variables, tables and filters have checksums inside) may
be large, and are not read a second time for it: the SHA-256 of a few samples, spread over the file,
tells a file from that of another run or another step. A restore looks at the manifest before it
loads anything.

Its name does not begin with that of the checkpoint, whose files are those of TensorFlow to whoever
looks for them; the manifest of a delta is `NAME.delta-STEP.manifest`.

Example:
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     prefix = f"{directory}/model.ckpt-1"
    ...     _ = pathlib.Path(f"{prefix}.index").write_bytes(b"0123")
    ...     write(prefix)
    ...     verify(prefix)
    ...     _ = pathlib.Path(f"{prefix}.index").write_bytes(b"0x23")
    ...     try:
    ...         verify(prefix)
    ...     except tf.errors.DataLossError as e:
    ...         print(e.message.replace(directory, ""))
    True
    /model.ckpt-1.index is damaged: its content is not what was saved. Restore another checkpoint.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.training import py_checkpoint_reader

from monolith.checkpoint import delta_chain, durable_files

_FORMAT = 1
_CHUNK_BYTES = 1 << 20
# Of a large file so many pieces are compared, the first and the last among them.
_NUM_SAMPLES = 16
_SAMPLE_BYTES = 1 << 14
# Files wait for the disk, and those of a model may be thousands.
_NUM_THREADS = 8

_NAME_PREFIX = "manifest-"
# Of deltas, and of checkpoints of earlier versions.
_SUFFIX = ".manifest"
_CHECKS_ITSELF = re.compile(r"-\d{5}-of-\d{5}$", re.ASCII)
_NAMED_SHARD = re.compile(r"TensorBundle at .* shard (\d+) ")
# Tables write with and without compression, and no file says which.
_COMPRESSIONS = ("", "SNAPPY")

_ASSETS = ".assets"
_PARTS = re.compile(r"\.(index|meta|assets|data-\d{5}-of-\d{5})", re.ASCII)


def get_path(prefix: str) -> str:
    """Returns where `write` puts the manifest of a checkpoint, or of a delta.

    Example:
        >>> get_path("/models/ads/model.ckpt-100")
        '/models/ads/manifest-model.ckpt-100'
    """
    if delta_chain.is_delta(prefix):
        return prefix + _SUFFIX
    directory, name = os.path.split(prefix)
    return os.path.join(directory, _NAME_PREFIX + name)


def write(prefix: str) -> None:
    """Lists the files of a checkpoint that is complete, when all of them are on disk.

    Args:
        prefix: What the names of its files begin with.

    Raises:
        tf.errors.OpError: A file cannot be read, or the manifest not be written.
    """
    suffixes = _find_files(prefix)
    with futures.ThreadPoolExecutor(_NUM_THREADS) as threads:
        described = threads.map(lambda suffix: _describe(prefix, suffix), suffixes)
        files = dict(zip(suffixes, described, strict=True))
    durable_files.sync(prefix + suffix for suffix in files)
    durable_files.sync({os.path.dirname(prefix + suffix) or "." for suffix in files})
    body = json.dumps({"format": _FORMAT, "files": files}, indent=1)
    durable_files.write_atomically(get_path(prefix), _seal(body))


def verify(prefix: str) -> bool:
    """Compares the files of a checkpoint with its manifest; reads little of large ones.

    Deltas that follow the checkpoint are compared with theirs.

    Args:
        prefix: What the names of its files begin with.

    Returns:
        Whether there is a manifest; checkpoints from before there were some have none.

    Raises:
        tf.errors.DataLossError: A file is missing, has another size, or other content, or is a
            table's or filter's that was not saved with the others; the message names it.
    """
    return _verify_all(prefix, lambda suffix: True)


def read_sizes(prefix: str) -> dict[str, int] | None:
    """Returns how many bytes each file of a checkpoint was saved with, by its path.

    Args:
        prefix: What the names of its files begin with.

    Returns:
        None if there is no manifest.

    Raises:
        tf.errors.DataLossError: The manifest is damaged.
    """
    files = _read(prefix)
    return None if files is None else {prefix + name: int(f["bytes"]) for name, f in files.items()}


def verify_assets(prefix: str) -> bool:
    """As `verify`, but only of tables and filters: for who restores them without the variables.

    Args:
        prefix: What the names of the checkpoint's files begin with.

    Returns:
        Whether there is a manifest.

    Raises:
        tf.errors.DataLossError: As of `verify`.
    """
    return _verify_all(prefix, _is_asset)


def verify_thoroughly(prefix: str) -> None:
    """Reads all of a checkpoint, as a restore does, and compares all checksums.

    Args:
        prefix: What the names of its files begin with.

    Raises:
        tf.errors.DataLossError: Something is missing or damaged; the message names the file.
    """
    verify_variables(prefix)
    for saved in (prefix, *delta_chain.get_prefixes(prefix)):
        for suffix in _find_files(saved):
            if _is_asset(suffix) and _CHECKS_ITSELF.search(suffix):
                _read_records(saved + suffix)


def verify_variables(prefix: str) -> None:
    """As `verify`, and reads all variables, but no tables.

    Args:
        prefix: What the names of its files begin with.

    Raises:
        tf.errors.DataLossError: Something is missing or damaged; the message names the file.
    """
    verify(prefix)
    for saved in (prefix, *delta_chain.get_prefixes(prefix)):
        _read_variables(saved)


def open_variables(prefix: str) -> Any:
    """Returns a reader of the variables of a checkpoint.

    Args:
        prefix: What the names of its files begin with.

    Raises:
        tf.errors.DataLossError: The list of them is missing or damaged; the message names its file.
    """
    if not tf.io.gfile.exists(prefix + ".index"):
        raise _data_loss(f"{prefix}.index is missing. Restore another checkpoint.")
    try:
        return py_checkpoint_reader.NewCheckpointReader(prefix)
    except (tf.errors.OpError, ValueError) as e:
        message = e.message if isinstance(e, tf.errors.OpError) else e
        raise _data_loss(
            f"{prefix}.index cannot be read: {message}. Restore another checkpoint."
        ) from e


def read_variable(prefix: str, reader: Any, name: str) -> Any:
    """Returns the value of a variable.

    Args:
        prefix: What the names of the checkpoint's files begin with.
        reader: What `open_variables` has returned.
        name: The variable, which the checkpoint has.

    Raises:
        tf.errors.DataLossError: Its file is missing or damaged; the message names it.
    """
    try:
        return reader.get_tensor(name)
    except (tf.errors.OpError, IndexError) as e:  # The latter of a file that was cut short.
        raise _name_damaged_file(prefix, e) from e


@contextlib.contextmanager
def named_damage(prefix: str) -> Iterator[None]:
    """Says which file is damaged, if TensorFlow finds out about one in the block.

    Args:
        prefix: The checkpoint whose variables are read.

    Raises:
        tf.errors.DataLossError: What TensorFlow has said, with the name of the file.
    """
    try:
        yield
    except tf.errors.OpError as e:
        # Reading a checkpoint in Python gives errors without a kind.
        if isinstance(e, tf.errors.DataLossError) or "hecksum does not match" in e.message:
            raise _name_damaged_file(prefix, e) from e
        raise


def _verify_all(prefix: str, is_wanted: Callable[[str], bool]) -> bool:
    """Compares the files of a checkpoint and of its deltas, by what follows the prefix."""
    has_manifest = _verify(prefix, is_wanted)
    for delta in delta_chain.get_prefixes(prefix):
        _verify(delta, is_wanted)
    return has_manifest


def _verify(prefix: str, is_wanted: Callable[[str], bool]) -> bool:
    files = _read(prefix)
    if files is None:
        return False
    # A shard more would be read as well.
    for suffix in _find_below(prefix, _ASSETS):
        if _CHECKS_ITSELF.search(suffix) and suffix not in files:
            raise _data_loss(
                f"{prefix}{suffix} was not saved with this checkpoint: {_find_path(prefix)} does "
                "not list it. Remove the file, or restore another checkpoint."
            )
    wanted = [suffix for suffix in files if is_wanted(suffix)]
    with futures.ThreadPoolExecutor(_NUM_THREADS) as threads:
        for _ in threads.map(lambda suffix: _compare(prefix, suffix, files[suffix]), wanted):
            pass
    return True


def _describe(prefix: str, suffix: str) -> dict[str, Any]:
    """Returns what the manifest says about a file."""
    path = prefix + suffix
    num_bytes = tf.io.gfile.stat(path).length
    if _CHECKS_ITSELF.search(suffix):
        return {"bytes": num_bytes, "samples": _hash_samples(path, num_bytes)}
    return {"bytes": num_bytes, "sha256": _hash_file(path)}


def _compare(prefix: str, suffix: str, expected: dict[str, Any]) -> None:
    """Raises unless a file is as the manifest says."""
    path = prefix + suffix
    try:
        num_bytes = tf.io.gfile.stat(path).length
        if num_bytes != expected["bytes"]:
            raise _data_loss(
                f"{path} is damaged: it has {num_bytes} bytes, {expected['bytes']} were saved. "
                "Restore another checkpoint."
            )
        if "sha256" in expected:
            is_same = _hash_file(path) == expected["sha256"]
        elif "samples" in expected:
            is_same = _hash_samples(path, num_bytes) == expected["samples"]
        else:
            is_same = True  # Earlier versions list only the size of large files.
    except tf.errors.NotFoundError:
        raise _data_loss(
            f"{path} is missing. Restore another checkpoint; if the file was removed on purpose, "
            f"remove {_find_path(prefix)}, too."
        ) from None
    if not is_same:
        raise _data_loss(
            f"{path} is damaged: its content is not what was saved. Restore another checkpoint."
        )


def _find_files(prefix: str) -> list[str]:
    """Returns the files of a checkpoint by what follows `prefix` in their names, sorted."""
    directory, name = os.path.split(prefix)
    found: list[str] = []
    for entry in tf.io.gfile.listdir(directory or "."):
        suffix = entry.rstrip("/").removeprefix(name)
        if not entry.startswith(name) or not _PARTS.fullmatch(suffix):
            continue
        if suffix == _ASSETS:
            found += _find_below(prefix, suffix)
        else:
            found.append(suffix)
    return sorted(found)


def _find_below(prefix: str, suffix: str) -> Iterable[str]:
    for directory, _, files in tf.io.gfile.walk(prefix + suffix):
        for file in files:
            yield os.path.join(directory, file).removeprefix(prefix)


def _is_asset(suffix: str) -> bool:
    return suffix.startswith(f"{_ASSETS}/")


def _find_path(prefix: str) -> str | None:
    """Returns the path of the manifest, None if there is none."""
    return next((p for p in (get_path(prefix), prefix + _SUFFIX) if tf.io.gfile.exists(p)), None)


def _read(prefix: str) -> dict[str, dict[str, Any]] | None:
    path = _find_path(prefix)
    if path is None:
        return None
    with tf.io.gfile.GFile(path, "rb") as file:
        content = file.read()
    try:
        text = content.decode("ascii")
        body = text[: text.rindex("\n", 0, -1)]
        if _seal(body) != text:
            raise ValueError("The checksum does not match.")
        manifest = json.loads(body)
    except ValueError:  # Also what is no text, and what is no JSON.
        raise _data_loss(
            f"{path} is damaged: its content is not what was saved. Restore another checkpoint."
        ) from None
    if manifest["format"] != _FORMAT:
        raise _data_loss(
            f"{path} has the format {manifest['format']}, this version of Monolith knows {_FORMAT}."
        )
    files: dict[str, dict[str, Any]] = manifest["files"]
    return files


def _seal(body: str) -> str:
    return f"{body}\nsha256 {hashlib.sha256(body.encode()).hexdigest()}\n"


def _hash_file(path: str) -> str:
    digest = hashlib.sha256()
    with tf.io.gfile.GFile(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _hash_samples(path: str, num_bytes: int) -> str:
    """Returns the SHA-256 of a small file, or of pieces at equal distances of a large one."""
    if num_bytes <= _NUM_SAMPLES * _SAMPLE_BYTES:
        return _hash_file(path)
    digest = hashlib.sha256()
    try:
        with _open_unbuffered(path) as file:
            for i in range(_NUM_SAMPLES):
                file.seek(i * (num_bytes - _SAMPLE_BYTES) // (_NUM_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    except OSError as e:
        raise tf.errors.UnknownError(None, None, f"{path}: {e.strerror}") from e
    return digest.hexdigest()


def _open_unbuffered(path: str) -> Any:
    local = durable_files.get_local(path)
    # TensorFlow's file reads half a megabyte ahead of each sample.
    return tf.io.gfile.GFile(path, "rb") if local is None else open(local, "rb", buffering=0)


def _read_variables(prefix: str) -> None:
    reader = open_variables(prefix)
    for name, dtype in reader.get_variable_to_dtype_map().items():
        if dtype in (tf.variant, tf.resource):
            continue  # The state of an iterator, which Python cannot hold.
        read_variable(prefix, reader, name)


def _name_damaged_file(prefix: str, error: Exception) -> tf.errors.DataLossError:
    """Returns an error that says which file TensorFlow found damaged in `error`."""
    files = [prefix + s for s in _find_files(prefix) if s.startswith(".data-")]
    # TensorFlow tells the file for numbers only. A device has one, so in most models it is clear.
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    shard = _NAMED_SHARD.search(message)
    if shard:
        files = [f for f in files if f"{prefix}.data-{int(shard[1]):05d}-of-" in f]
    lines = message.strip().splitlines() or [""]
    reason = next((line for line in lines if "hecksum" in line), lines[0])
    return _data_loss(
        f"{' or '.join(files) or prefix} is damaged: {reason}. Restore another checkpoint."
    )


def _read_records(path: str) -> None:
    error: tf.errors.OpError | None = None
    for compression in _COMPRESSIONS:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            records = tf.data.TFRecordDataset(path, compression)
            count = records.reduce(np.int64(0), lambda n, _: n + 1)
            try:
                session.run(count)
                return
            except tf.errors.OpError as e:
                error = e
    raise _data_loss(f"{path} is damaged. Restore another checkpoint.") from error


def _data_loss(message: str) -> tf.errors.DataLossError:
    return tf.errors.DataLossError(None, None, message)
