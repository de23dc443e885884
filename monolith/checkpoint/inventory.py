"""Which checkpoints a model directory has, how old and large they are, and which are whole.

For who wants to know what a job could go on from. Looking changes nothing, reads no content but
that of small lists, and may be done while a job saves.

Example:
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     _ = pathlib.Path(directory, "model.ckpt-7.index").write_bytes(b"0123")
    ...     manifest.write(f"{directory}/model.ckpt-7")
    ...     _ = pathlib.Path(directory, "model.ckpt-9.unfinished").write_bytes(b"")
    ...     [(c.name, c.size_bytes, c.state.value) for c in list_checkpoints(directory)]
    [('model.ckpt-7', 4, 'complete'), ('model.ckpt-9', 0, 'unfinished')]
"""

import dataclasses
import enum
import os
import re

import tensorflow as tf

from monolith.checkpoint import delta_chain, manifest, state
from monolith.checkpoint.paths import SaveHelper

BASENAME = "model.ckpt"


class CheckpointState(enum.Enum):
    """Whether a checkpoint is whole."""

    COMPLETE = "complete"
    # Whether it is whole cannot be told: it has no manifest.
    UNCHECKED = "unchecked"
    # Being written, or left behind by a process that was killed while it wrote or deleted it.
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """A checkpoint with its deltas.

    Attributes:
        name: Such as `model.ckpt-100`.
        step: The global step that a restore goes on from: of the last delta, if there are some.
        saved_sec: When it, or its last delta, was written, in seconds since 1970.
        size_bytes: Of all its files.
        num_deltas: How many deltas follow it.
        state: Whether it is whole.
        is_listed: Whether the file `checkpoint` names it.
        is_newest: Whether it is the one that a restore takes.
        problem: What is wrong with it, empty if nothing is.
    """

    name: str
    step: int
    saved_sec: float
    size_bytes: int
    num_deltas: int = 0
    state: CheckpointState
    is_listed: bool = False
    is_newest: bool = False
    problem: str = ""


def list_checkpoints(model_dir: str, basename: str = BASENAME) -> list[CheckpointInfo]:
    """Returns the checkpoints of a directory by step; none, if there is no such directory."""
    # The list first: what it names is there when the directory is read.
    try:
        listed = state.get_listed(model_dir, state.read_list(model_dir))
        listed = [os.path.basename(path) for path in listed]
    except tf.errors.OpError:
        listed = []
    try:
        entries = [entry.rstrip("/") for entry in tf.io.gfile.listdir(model_dir)]
    except tf.errors.NotFoundError:
        return []
    named = re.compile(rf"({re.escape(basename)}(?:-\d+)?)\.(?:index|unfinished)", re.ASCII)
    names = {match[1] for match in map(named.fullmatch, entries) if match}
    described = [
        _describe(model_dir, name, entries, name in listed, name in listed[-1:]) for name in names
    ]
    # One that is deleted while it is looked at is not damaged.
    found = [info for info in described if not _is_leaving(model_dir, info, entries)]
    return sorted(found, key=lambda info: (info.step, info.name))


def _is_leaving(model_dir: str, info: CheckpointInfo, entries: list[str]) -> bool:
    index = f"{info.name}.index"
    is_whole = info.state is CheckpointState.COMPLETE
    return not is_whole and index in entries and not tf.io.gfile.exists(f"{model_dir}/{index}")


def _describe(
    model_dir: str, name: str, entries: list[str], is_listed: bool, is_newest: bool
) -> CheckpointInfo:
    prefix = os.path.join(model_dir, name)
    kind, problem = CheckpointState.COMPLETE, ""
    deltas: list[delta_chain.Delta] = []
    try:
        deltas = delta_chain.read(prefix)
        if name + state.UNFINISHED_SUFFIX in entries and not is_listed:
            kind = CheckpointState.UNFINISHED
        else:
            for part in (prefix, *(delta_chain.get_delta_prefix(prefix, d.step) for d in deltas)):
                if not _is_whole(part):
                    kind = CheckpointState.UNCHECKED
    except tf.errors.OpError as error:
        kind, problem = CheckpointState.DAMAGED, error.message.partition("\n")[0]
    newest = delta_chain.get_delta_prefix(prefix, deltas[-1].step) if deltas else prefix
    own = [entry for entry in entries if entry.startswith(f"{name}.")]
    return CheckpointInfo(
        name=name,
        step=deltas[-1].step if deltas else SaveHelper.get_global_step_value(name),
        saved_sec=_get_time(newest, model_dir, own),
        size_bytes=sum(_measure(os.path.join(model_dir, entry)) for entry in own),
        num_deltas=len(deltas),
        state=kind,
        is_listed=is_listed,
        is_newest=is_newest,
        problem=problem,
    )


def _is_whole(prefix: str) -> bool:
    """Returns whether all files of the manifest are there; False if there is none.

    Raises:
        tf.errors.DataLossError: One is not, or has another size.
    """
    sizes = manifest.read_sizes(prefix)
    for path, num_bytes in (sizes or {}).items():
        try:
            found = tf.io.gfile.stat(path).length
        except tf.errors.NotFoundError:
            raise tf.errors.DataLossError(None, None, f"{path} is missing.") from None
        if found != num_bytes:
            message = f"{path} has {found} bytes, {num_bytes} were saved."
            raise tf.errors.DataLossError(None, None, message)
    return sizes is not None


def _get_time(newest: str, model_dir: str, own: list[str]) -> float:
    """Returns when a checkpoint was written; of one without an index, its last file."""
    for paths in ([f"{newest}.index"], [os.path.join(model_dir, entry) for entry in own]):
        times = []
        for path in paths:
            try:
                times.append(tf.io.gfile.stat(path).mtime_nsec / 1e9)
            except tf.errors.OpError:
                continue  # Deleted meanwhile.
        if times:
            return float(max(times))
    return 0.0


def _measure(path: str) -> int:
    try:
        found = tf.io.gfile.stat(path)
        if not found.is_directory:
            return int(found.length)
        return sum(_measure(os.path.join(path, entry)) for entry in tf.io.gfile.listdir(path))
    except tf.errors.OpError:
        return 0  # Deleted meanwhile.
