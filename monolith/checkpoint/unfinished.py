"""A checkpoint on its way: what is kept meanwhile, and what goes if it does not get there.

From the first to the last moment of a save there is a mark, `<prefix>.unfinished`. It goes when the
file `checkpoint` names the new checkpoint. An old checkpoint gets such a mark before it leaves that
list to be deleted. So what has a mark and is not listed belongs to a process that failed or was
killed, and the next owner of the directory deletes it.

A step that is listed already may be saved again: training may have gone back to an older
checkpoint. Several files cannot be replaced in one instant, a line in a list can. So the old files
get second names first, those are listed instead, the new checkpoint is written under the usual
names and listed, and then the second names go. At each instant the list names something whole.

Example:
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     prefix = f"{directory}/model.ckpt-1"
    ...     save = UnfinishedSave(prefix)
    ...     _ = pathlib.Path(f"{prefix}.index").write_text("half of the va")
    ...     # The process is killed here. The next one does this at its start:
    ...     clean_up(directory, "model.ckpt")
    ...     os.listdir(directory)
    []
"""

import contextlib
import logging
import os
import re
import socket
import uuid
from collections.abc import Iterator

import tensorflow as tf

from monolith.checkpoint import delta_chain, durable_files, failpoints, manifest
from monolith.checkpoint import state as checkpoint_state
from monolith.checkpoint.state import COUNTS_PREFIX, REPLACED_PREFIX, UNFINISHED_SUFFIX

logger = logging.getLogger(__name__)

_ASSETS = ".assets"

# What belongs to a checkpoint, by what follows its name; and what is there only while it is saved.
_PARTS = re.compile(
    r"\.(?:index|meta|manifest|unfinished|assets|data-\d{5}-of-\d{5})"
    rf"(?:{durable_files.TEMPORARY_SUFFIX.pattern})?|_temp",
    re.ASCII,
)
# What follows a name that is a file's own, or one's that is not complete.
_OWN = re.compile(rf"(?:{durable_files.TEMPORARY_SUFFIX.pattern})?", re.ASCII)
# Small files of a run, as they are called until they are complete.
_TEMPORARY = re.compile(
    r"(?:checkpoint|monolith_checkpoint|graph\.pbtxt|meta_graph_for_debugging\.pb"
    rf"|{re.escape(COUNTS_PREFIX)}\d+)"
    rf"(?:{durable_files.TEMPORARY_SUFFIX.pattern})",
    re.ASCII,
)


class UnfinishedSave:
    """One checkpoint from before its first file until it is listed.

    Args:
        prefix: What the names of its files begin with. Files of this name that are there are
            removed; if they are listed, they stay under other names until `finish`.
        list_name: Name of the list of checkpoints, `checkpoint` if None.
        keep_files: Whether tables and filters that are there stay, and unlisted files, too.

    Raises:
        tf.errors.OpError: A file cannot be written or removed.
    """

    def __init__(self, prefix: str, list_name: str | None = None, keep_files: bool = False) -> None:
        self._prefix = prefix
        self._list_name = list_name
        self._directory = os.path.dirname(prefix)
        self._replaced: str | None = None
        self._token: str | None = None
        try:
            if is_listed(prefix, list_name):
                _set_aside(prefix, list_name)
                self._replaced = _get_replaced(prefix)
                _remove(prefix, but_assets=keep_files)
            elif not keep_files:
                _remove(prefix)
            self._token = _mark(prefix)
            failpoints.reach(failpoints.MARKED)
        except BaseException:
            self.abandon(keep_files=True)
            raise

    @property
    def prefix(self) -> str:
        """What the names of the files begin with."""
        return self._prefix

    @property
    def replaced(self) -> str | None:
        """What the names of the files of the same step that were listed before begin with now."""
        return self._replaced

    def check_owned(self) -> None:
        """Refuses to go on if another process has taken the files for leftovers.

        Raises:
            tf.errors.FailedPreconditionError: It has.
        """
        if not self._is_owned():
            raise tf.errors.FailedPreconditionError(
                None,
                None,
                f"{self._prefix}{UNFINISHED_SUFFIX} was removed by another process that saves to "
                f"{self._directory}; let only one process save there.",
            )

    def finish(self) -> None:
        """Removes what is needed no more; called when the checkpoint is listed."""
        # The checkpoint is there. What cannot be removed now is removed by `clean_up`.
        with _logged("could not remove what is left of an older %s", self._prefix):
            if self._replaced is not None:
                _remove(self._replaced)
                failpoints.reach(failpoints.COPY_REMOVED)
            unmark(self._prefix)
            failpoints.reach(failpoints.UNMARKED)

    def abandon(self, keep_files: bool = False) -> None:
        """Removes what was written, and lists again under its name what was listed before.

        Args:
            keep_files: Whether files stay, if none were replaced: nothing was written yet.
        """
        if not self._is_owned():
            logger.warning("%s is left to the other process that saves it", self._prefix)
            return
        replaced = _get_replaced(self._prefix)
        with _logged("could not remove what was written of %s", self._prefix):
            # The list knows how far this came, whatever has failed.
            if is_listed(replaced, self._list_name):
                _bring_back(replaced, self._prefix, self._list_name)
            else:
                _remove(replaced)
                if keep_files or is_listed(self._prefix, self._list_name):
                    unmark(self._prefix)
                else:
                    _remove_unlisted(self._prefix)
            self._replaced = None
            remove_temporary_files(self._directory)

    def _is_owned(self) -> bool:
        return self._token is None or _read_mark(self._prefix) == self._token


def is_listed(prefix: str, list_name: str | None = None) -> bool:
    """Returns whether the list beside the checkpoint `prefix` names it."""
    directory = os.path.dirname(prefix)
    state = checkpoint_state.read_list(directory, list_name)
    listed = checkpoint_state.get_listed(directory, state)
    return any(checkpoint_state.is_same(path, prefix) for path in listed)


def clean_up(directory: str, basename: str, list_name: str | None = None) -> None:
    """Removes what saves that were killed have left in a directory.

    Only the process that saves there may call this. Nothing that is listed or exempt from deletion
    goes, and nothing that a save has not marked as its own.

    Args:
        directory: The model directory.
        basename: What names of checkpoints in it begin with, such as `model.ckpt`.
        list_name: Name of the list of checkpoints, `checkpoint` if None.

    Raises:
        tf.errors.DataLossError: The list is damaged, so nobody knows what is a checkpoint.
    """
    state = checkpoint_state.read_list(directory, list_name)
    listed = {
        os.path.basename(path)
        for path in checkpoint_state.get_listed(directory, state)
        if checkpoint_state.is_same(os.path.dirname(path), directory)
    }
    own = re.compile(rf"(?:{REPLACED_PREFIX})?{re.escape(basename)}(?:-\d+)?", re.ASCII)
    for name in sorted(listed):
        if own.fullmatch(name) and name.startswith(REPLACED_PREFIX):
            prefix = os.path.join(directory, name.removeprefix(REPLACED_PREFIX))
            logger.warning("a save of %s was killed, the one before stays", prefix)
            # If that fails, it stays listed, and whole, under the name that it has.
            with _logged("could not rename the files of %s", prefix):
                _bring_back(os.path.join(directory, name), prefix, list_name)
                listed = {*listed - {name}, os.path.basename(prefix)}
    exempt = checkpoint_state.get_exempt_names(directory)
    marked, replaced = _find_leftovers(directory, own)
    for name in sorted(marked | replaced):
        prefix = os.path.join(directory, name)
        if name in listed:
            unmark(prefix)
        elif exempt is None or name in exempt:
            logger.warning(
                "%s is not complete and is left as it is: it may be exempt from deletion", prefix
            )
        else:
            logger.warning("removing what a killed process has left of %s", prefix)
            with _logged("could not remove all that is left of %s", prefix):
                _remove_unlisted(prefix)


def mark_for_deletion(prefix: str) -> None:
    """Says that a listed checkpoint is to be deleted as soon as it is not listed any more.

    Otherwise nobody would know, if this process were killed between the two.
    """
    # A full disk may have no place for the mark; then the files go a moment later anyway.
    with contextlib.suppress(tf.errors.OpError):
        _mark(prefix)


def unmark(prefix: str) -> None:
    """Takes the mark from a checkpoint."""
    # One that stays on a listed checkpoint means nothing, and goes with the next `clean_up`.
    with contextlib.suppress(tf.errors.OpError):
        tf.io.gfile.remove(prefix + UNFINISHED_SUFFIX)


def remove_temporary_files(directory: str) -> None:
    """Removes small files of a run that a killed process, or a full disk, left incomplete."""
    for entry in _list(directory):
        if _TEMPORARY.fullmatch(entry):
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.remove(os.path.join(directory, entry))


def _get_replaced(prefix: str) -> str:
    """Returns what the names of files begin with that were called `prefix` before."""
    directory, name = os.path.split(prefix)
    return os.path.join(directory, REPLACED_PREFIX + name)


def _set_aside(prefix: str, list_name: str | None) -> None:
    """Gives a listed checkpoint other names, and lists those."""
    replaced = _get_replaced(prefix)
    _remove(replaced)
    _mark(replaced)
    _link(prefix, replaced)
    failpoints.reach(failpoints.COPY_LINKED)
    checkpoint_state.rename_in_list(os.path.dirname(prefix), prefix, replaced, list_name)
    failpoints.reach(failpoints.COPY_LISTED)
    unmark(replaced)


def _bring_back(replaced: str, prefix: str, list_name: str | None) -> None:
    """Undoes `_set_aside`, and with it whatever was written under the old names since."""
    _remove(prefix)
    _mark(prefix)
    _link(replaced, prefix)
    failpoints.reach(failpoints.OLD_LINKED)
    checkpoint_state.rename_in_list(os.path.dirname(prefix), replaced, prefix, list_name)
    failpoints.reach(failpoints.OLD_LISTED)
    unmark(prefix)
    _remove(replaced)


def _link(source: str, target: str) -> None:
    """Gives all files of a checkpoint, and of its deltas, second names."""
    directories = {os.path.dirname(target) or "."}
    manifest_name = os.path.basename(manifest.get_path(source))
    for entry in _find_entries(source):
        if entry.startswith(manifest_name):
            if entry == manifest_name:  # And not complete otherwise.
                durable_files.link_or_copy(manifest.get_path(source), manifest.get_path(target))
            continue
        suffix = entry.removeprefix(os.path.basename(source))
        if suffix == UNFINISHED_SUFFIX:
            continue
        if not tf.io.gfile.isdir(source + suffix):
            durable_files.link_or_copy(source + suffix, target + suffix)
            continue
        for directory, _, files in tf.io.gfile.walk(source + suffix):
            copies = target + directory.rstrip("/").removeprefix(source)
            tf.io.gfile.makedirs(copies)
            directories.add(copies)
            for file in files:
                durable_files.link_or_copy(
                    os.path.join(directory, file), os.path.join(copies, file)
                )
    durable_files.sync(directories)


def _remove(prefix: str, but_assets: bool = False) -> None:
    name = os.path.basename(prefix)
    kept = name + _ASSETS if but_assets else None
    checkpoint_state.remove_entries(
        prefix, [entry for entry in _find_entries(prefix) if entry != kept]
    )


def _remove_unlisted(prefix: str) -> None:
    """Removes a checkpoint that was never complete, with the counts beside it."""
    counts = checkpoint_state.get_counts_name(prefix)
    if counts is not None:
        with contextlib.suppress(tf.errors.NotFoundError):
            tf.io.gfile.remove(os.path.join(os.path.dirname(prefix), counts))
    _remove(prefix)


def _find_entries(prefix: str) -> list[str]:
    """Returns the names in the directory that belong to a checkpoint, and to no other file."""
    directory, name = os.path.split(prefix)
    manifest_name = os.path.basename(manifest.get_path(prefix))
    parts = [
        entry
        for entry in _list(directory)
        if (entry.startswith(name) and _PARTS.fullmatch(entry.removeprefix(name)))
        or (entry.startswith(manifest_name) and _OWN.fullmatch(entry.removeprefix(manifest_name)))
    ]
    return [*parts, *delta_chain.find_entries(directory, name)]


def _find_leftovers(directory: str, own: re.Pattern[str]) -> tuple[set[str], set[str]]:
    """Returns the names of checkpoints that have a mark, and of those that were replaced."""
    marked, replaced = set(), set()
    for entry in _list(directory):
        if entry.endswith(UNFINISHED_SUFFIX):
            if own.fullmatch(entry.removesuffix(UNFINISHED_SUFFIX)):
                marked.add(entry.removesuffix(UNFINISHED_SUFFIX))
        elif entry.startswith(REPLACED_PREFIX):
            name = own.match(entry)
            if name and _PARTS.fullmatch(entry[name.end() :]):
                replaced.add(name[0])
    return marked, replaced


def _list(directory: str) -> list[str]:
    try:
        # Some file systems list a directory with a slash at its end.
        return [entry.rstrip("/") for entry in tf.io.gfile.listdir(directory or ".")]
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError):
        return []


def _mark(prefix: str) -> str | None:
    """Marks a checkpoint; returns what tells the mark from those of others."""
    token = f"{socket.gethostname()} {os.getpid()} {uuid.uuid4().hex}\n"
    try:
        with tf.io.gfile.GFile(prefix + UNFINISHED_SUFFIX, "w") as file:
            file.write(token)
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError):
        return None  # There is no such directory. Who writes there makes it, or says so.
    return token


def _read_mark(prefix: str) -> str | None:
    try:
        with tf.io.gfile.GFile(prefix + UNFINISHED_SUFFIX, "rb") as file:
            return str(file.read(), errors="replace")
    except tf.errors.NotFoundError:
        return None


@contextlib.contextmanager
def _logged(message: str, prefix: str) -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as e:
        logger.warning(message + ": %s", prefix, e)
