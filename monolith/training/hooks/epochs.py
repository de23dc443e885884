"""Which epoch of several a training is in: noted in its graph, and with the position of its input.

So a training that is started again learns from its checkpoint how many epochs are left: one that
was not read to its end goes on, and after one that was comes the next.

Example:
    >>> import tensorflow as tf
    >>> with tf.Graph().as_default():
    ...     note(Epoch(1, 3))
    ...     get_noted()
    Epoch(number=1, total=3)
    >>> go_on(Epoch(2, 3), is_over=False, total=3), go_on(Epoch(2, 3), is_over=True, total=3)
    (2, 3)
    >>> go_on(Epoch(3, 3), is_over=True, total=3)  # All were done; these are others.
    1
"""

from typing import NamedTuple

from monolith.graph import metadata

_KEY = "epoch"


class Epoch(NamedTuple):
    """An epoch.

    Attributes:
        number: Which it is, from 1 on.
        total: How many there are to be.
    """

    number: int
    total: int


def note(epoch: Epoch) -> None:
    """Notes which epoch the input of the default graph is."""
    _get_list()[:] = [epoch]


def get_noted() -> Epoch | None:
    """Returns what was noted in the default graph."""
    noted = _get_list()
    return noted[0] if noted else None


def go_on(saved: Epoch, *, is_over: bool, total: int) -> int:
    """Returns the number of the epoch with which a training goes on.

    Args:
        saved: The epoch of the checkpoint.
        is_over: Whether that was read to its end.
        total: How many epochs there are to be now.
    """
    if not is_over:
        return saved.number
    return saved.number + 1 if saved.number < min(saved.total, total) else 1


def _get_list() -> list[Epoch]:
    noted: list[Epoch] = metadata.get_meta(_KEY, list)
    return noted
