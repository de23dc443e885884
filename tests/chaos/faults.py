"""What is done to a job, decided by a seed: to whom, when and for how long.

Example:
    >>> one, again = (list(itertools.islice(plan(7), 5)) for _ in range(2))
    >>> one == again
    True
    >>> one[0].role in ("chief", "worker", "ps")
    True
"""

import dataclasses
import enum
import itertools  # noqa: F401 - for the example
import random
from collections.abc import Iterator

# Role and index, as members have it.
Place = tuple[str, int]

PLACES: tuple[Place, ...] = (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), ("worker", 2))
WORKERS: tuple[Place, ...] = PLACES[2:]
# Connections lead to these: workers talk to servers and to the chief.
ASKED: tuple[Place, ...] = PLACES[:3]

# Who connects, and to whom.
Link = tuple[Place, Place]

# Each has a proxy of its own, so that one worker can be cut off while the others are not.
LINKS: tuple[Link, ...] = tuple(
    (worker, asked) for worker in WORKERS for asked in ASKED if worker != asked
)


class Kind(enum.Enum):
    """What can happen to a member."""

    KILL = "SIGKILL"
    FREEZE = "SIGSTOP, then SIGCONT"
    # All connections from and to it are ended, and refused for a while.
    CUT = "connections cut"
    # Nothing comes through for a while, and nobody is told.
    STALL = "connections stalled"


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        gap_sec: How long after the last one.
        kind: What happens.
        place: To whom.
        duration_sec: For how long; of a kill, how long it takes until it is started again.
        moves: Whether others see one that is started again at another address.
    """

    gap_sec: float
    kind: Kind
    place: Place
    duration_sec: float
    moves: bool

    @property
    def role(self) -> str:
        """What is attacked."""
        return "chief" if self.place == ("worker", 0) else self.place[0]


def find_links(place: Place) -> list[Link]:
    """Returns the connections that a member has, whoever has made them.

    Example:
        >>> find_links(("worker", 1))
        [(('worker', 1), ('ps', 0)), (('worker', 1), ('ps', 1)), (('worker', 1), ('worker', 0))]
    """
    return [link for link in LINKS if place in link]


def plan(seed: int, mean_gap_sec: float = 8.0) -> Iterator[Fault]:
    """Yields faults without end; some follow each other so closely that they are one disaster."""
    chance = random.Random(seed)
    while True:
        kind = chance.choice([Kind.KILL, Kind.KILL, Kind.FREEZE, Kind.CUT, Kind.STALL])
        # Each role as often as the others, so that the chief is not spared.
        role = chance.choice(("chief", "worker", "ps"))
        place = {
            "chief": ("worker", 0),
            "worker": ("worker", chance.choice((1, 2))),
            "ps": ("ps", chance.choice((0, 1))),
        }[role]
        is_burst = chance.random() < 0.15
        gap_sec = chance.uniform(0, 0.5) if is_burst else chance.uniform(0.5, 1.5) * mean_gap_sec
        duration_sec = chance.choice([chance.uniform(0, 0.5), chance.uniform(0.5, 4.0)])
        yield Fault(gap_sec, kind, place, duration_sec, chance.random() < 0.5)
