"""How many ids were looked up in this process, and how many of them had a row.

Ids without a row are new, expired or held back by a filter. On a server that follows a training,
many of them mean that rows do not arrive.

Example:
    >>> from monolith.embedding.tables import single
    >>> table = single.test_hash_table(1, name_suffix="counted").assign([7], [[1.0]])
    >>> rate = HitRate()
    >>> _ = table.lookup([7, 8, 9, 7])
    >>> rate.take()
    0.5
    >>> rate.take() is None  # Nothing was looked up since.
    True
"""

import ctypes
import threading

from monolith.native import ops

_library = ctypes.CDLL(str(ops.LIBRARY_PATH))
_library.MonolithLookupCounts.argtypes = [ctypes.POINTER(ctypes.c_int64)] * 2
_library.MonolithLookupCounts.restype = None


def read() -> tuple[int, int]:
    """Returns how many ids were looked up since the process began, and how many had a row."""
    asked, found = ctypes.c_int64(), ctypes.c_int64()
    _library.MonolithLookupCounts(ctypes.byref(asked), ctypes.byref(found))
    return asked.value, found.value


class HitRate:
    """The share of ids that had a row, from one time it is asked for to the next. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = read()

    def take(self) -> float | None:
        """Returns the share since the last call; None if no id was looked up."""
        with self._lock:
            last, self._last = self._last, read()
            asked, found = self._last[0] - last[0], self._last[1] - last[1]
        return found / asked if asked > 0 else None
