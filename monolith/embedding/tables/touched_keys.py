"""The set of ids that training has touched since somebody last asked.

Real-time serving asks every few seconds which rows have changed and sends only those. The set is
bounded: when nobody asks for so long that it overflows, everything in it is dropped and the insert
says how much, so that the follower knows to start over.

Example:
    >>> touched = TouchedKeySet(capacity=1000, concurrency_level=1, name_suffix="_example")
    >>> touched.insert([3, 1, 3]).numpy().tolist()  # Keys dropped: none.
    [0]
    >>> sorted(touched.steal().numpy().tolist())
    [1, 3]
    >>> touched.steal().numpy().tolist()
    []
"""

import tensorflow as tf

from monolith.native import ops

# So many keys fit into 64 MiB at four words of 8 bytes each.
TOUCHED_KEY_SET_CAPACITY = 64 * 1024 * 1024 // (8 * 4)
TOUCHED_KEY_SET_CONCURRENCY_LEVEL = 1024


def create_touched_key_set(
    capacity: int, concurrency_level: int, name_suffix: str = ""
) -> tf.Tensor:
    """Makes a set, or finds the one of the same name.

    Args:
        capacity: An insert that finds more keys than this drops them all first.
        concurrency_level: About so many threads can insert without waiting for each other.
        name_suffix: Tells sets on one device apart.

    Returns:
        The handle of the set, a scalar of type resource.
    """
    return ops.monolith_touched_key_set(
        capacity=capacity,
        concurrency_level=concurrency_level,
        shared_name="MonolithTouchedKeySet" + name_suffix,
    )


class TouchedKeySet:
    """A set of 64-bit keys that any number of threads fill and empty.

    Args:
        capacity: An insert that finds more keys than this drops them all first.
        concurrency_level: About so many threads can insert without waiting for each other.
        name_suffix: Becomes part of the set's name, and so tells sets on one device apart.
    """

    def __init__(
        self,
        capacity: int = TOUCHED_KEY_SET_CAPACITY,
        concurrency_level: int = TOUCHED_KEY_SET_CONCURRENCY_LEVEL,
        name_suffix: str = "",
    ) -> None:
        self._capacity = capacity
        self._concurrency_level = concurrency_level
        self._set = create_touched_key_set(capacity, concurrency_level, name_suffix)

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def concurrency_level(self) -> int:
        return self._concurrency_level

    @property
    def handle(self) -> tf.Tensor:
        return self._set

    def insert(self, ids: tf.Tensor) -> tf.Tensor:
        """Adds `ids`, an int64 tensor of any shape, one after another.

        Returns:
            How many keys were dropped because the set had overflowed: int64, shape `[1]`.
        """
        return ops.monolith_touched_key_set_insert(self._set, ids)

    def steal(self) -> tf.Tensor:
        """Empties the set and returns what was in it, int64 `[n]`, in no particular order."""
        return ops.monolith_touched_key_set_steal(self._set)
