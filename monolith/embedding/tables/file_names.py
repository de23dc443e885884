"""The names of a table's files: a valid one for every name of a table, and never one for two.

A table is written to `<file>-00000-of-0000N`, with counts beside it in `<file>.meta-…`. Letters,
digits, `_`, `-`, `~` and `.` stand for themselves, all else is escaped as in a URL. What would be
taken for the file of something else, counts or a filter, is escaped, too.

Example:
    >>> get_file_name("MonolithHashTable_user")
    'MonolithHashTable_user'
    >>> get_file_name("ads/user"), get_file_name("ads-user")
    ('ads%2Fuser', 'ads-user')
    >>> get_file_name("user.meta")
    'user%2Emeta'
"""

import hashlib
import urllib.parse

# Between a file's name and its number: how many rows it has of each table.
META = ".meta"

# What else is in the directory: filters, and positions of the input.
_OTHERS = ("hash_filter_", "input_worker_")
# A file system takes 255 bytes, of which the longest ending of a file that is being written,
# ".meta-00000-of-00001-tmp-" and a 64-bit number, needs 45.
_MAX_BYTES = 200


def get_file_name(table: str) -> str:
    """Returns what the names of a table's files begin with."""
    # An escape is a percent sign and two digits: "%" alone and "%~" come from no other name.
    name = urllib.parse.quote(table, safe="") or "%"
    if name.endswith(META):
        name = name.removesuffix(META) + "%2E" + META[1:]
    if name.startswith(_OTHERS):
        name = f"%{ord(name[0]):X}{name[1:]}"
    if len(name) > _MAX_BYTES:
        digest = "%~" + hashlib.sha256(table.encode()).hexdigest()
        name = name[: _MAX_BYTES - len(digest)] + digest
    return name


def get_possible_names(table: str) -> list[str]:
    """Returns what the files of a table may be called, those of saves from before included."""
    return [get_file_name(table), table.replace(":", "-").replace("/", "-"), table]
