"""Places in the protocol of a save where a test lets something happen, such as a kill.

A save passes these points in the order below, as far as they concern it. In a run nobody listens,
and passing costs a comparison. To see what a crash at one of them does, set `on_reach`:

Example:
    >>> from monolith.checkpoint import failpoints
    >>> failpoints.on_reach = print
    >>> failpoints.reach(MANIFEST_WRITTEN)
    manifest_written
    >>> failpoints.on_reach = None
    >>> failpoints.reach(MANIFEST_WRITTEN)
"""

from collections.abc import Callable

# A step that is listed already is saved again: its files got a second name, the list has that name.
COPY_LINKED = "copy_linked"
COPY_LISTED = "copy_listed"
# The save has begun, and nothing of it is there but the mark that says so.
MARKED = "marked"
# Tables and filters are written; variables and meta graph are; the manifest is.
TABLES_WRITTEN = "tables_written"
VARIABLES_WRITTEN = "variables_written"
MANIFEST_WRITTEN = "manifest_written"
# A small file is complete under its temporary name, and not yet renamed.
TEMPORARY_WRITTEN = "temporary_written"
# The file `checkpoint` names the new one; the second names are gone; the mark is.
LISTED = "listed"
COPY_REMOVED = "copy_removed"
UNMARKED = "unmarked"
# An old checkpoint is being deleted: it has no index any more; it lacks one more file.
INDEX_REMOVED = "index_removed"
PARTLY_REMOVED = "partly_removed"
# A save that failed or was killed is undone: the old files have their own names again; are listed.
OLD_LINKED = "old_linked"
OLD_LISTED = "old_listed"

ALL = (
    COPY_LINKED,
    COPY_LISTED,
    MARKED,
    TABLES_WRITTEN,
    VARIABLES_WRITTEN,
    MANIFEST_WRITTEN,
    TEMPORARY_WRITTEN,
    LISTED,
    COPY_REMOVED,
    UNMARKED,
    INDEX_REMOVED,
    PARTLY_REMOVED,
    OLD_LINKED,
    OLD_LISTED,
)

# Called with the name of each point that is passed.
on_reach: Callable[[str], None] | None = None


def reach(point: str) -> None:
    """Says that `point` is passed."""
    if on_reach is not None:
        on_reach(point)
