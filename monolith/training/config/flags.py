"""Flags that all processes of a job see: a boolean vector in a variable of one of them.

The chief creates the vector anew with its session, so it is never part of a checkpoint. The other
processes wait for it, as they wait for the variables of the model, and do not reset it.

Example:
    >>> with tf.Graph().as_default():
    ...     flags = SharedFlags("example/flags", 3, is_chief=True)
    ...     with tf.compat.v1.train.MonitoredSession() as session:
    ...         flags.set(session, 2, True)
    ...         flags.find(session, True), flags.find(session, False)
    ([2], [0, 1])
"""

import tensorflow as tf

from monolith import errors


def get_shared_collections(is_chief: bool) -> list[str]:
    """Returns the collections of a variable that the chief creates anew and others wait for."""
    keys = tf.compat.v1.GraphKeys
    return [keys.LOCAL_VARIABLES if is_chief else keys.GLOBAL_VARIABLES]


class SharedFlags:
    """A boolean vector, all False at first, on the device under which it is created.

    Two processes may set different flags at the same time.

    Args:
        name: Name of the variable, the same in all processes.
        size: How many flags there are.
        is_chief: Whether this process creates them.

    Raises:
        errors.ConfigError: `size` is not positive.
    """

    def __init__(self, name: str, size: int, *, is_chief: bool) -> None:
        if size <= 0:
            raise errors.ConfigError(f"{name!r} needs at least one flag, got size {size}.")
        self._size = size
        self._variable = tf.compat.v1.get_variable(
            name,
            shape=[size],
            dtype=tf.bool,
            initializer=tf.compat.v1.zeros_initializer(),
            trainable=False,
            use_resource=True,
            collections=get_shared_collections(is_chief),
        )
        # Monitored sessions finalize the graph, so every op is made here.
        self._index = tf.compat.v1.placeholder(tf.int32, [])
        self._value = tf.compat.v1.placeholder(tf.bool, [])
        self._set = tf.compat.v1.scatter_update(self._variable, self._index, self._value)
        self._read = self._variable.read_value()
        self._first = self._read[0]

    @property
    def size(self) -> int:
        """How many flags there are."""
        return self._size

    @property
    def first(self) -> tf.Tensor:
        """Flag 0, a boolean scalar."""
        return self._first

    def set(self, session: tf.compat.v1.Session, index: int, value: bool) -> None:
        """Sets one flag."""
        session.run(self._set.op, {self._index: index, self._value: value})

    def get(self, session: tf.compat.v1.Session, index: int) -> bool:
        """Returns one flag."""
        return bool(session.run(self._read)[index])

    def find(self, session: tf.compat.v1.Session, value: bool) -> list[int]:
        """Returns the indices of the flags that are `value`, in order."""
        flags = session.run(self._read)
        return [index for index in range(self._size) if bool(flags[index]) is value]
