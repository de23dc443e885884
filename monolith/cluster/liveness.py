"""What has become of a member, seen from outside: by its record, its process and its address.

A member says what it does (`MemberRecord.state`), until it dies without a word. On the machine of
the member its process tells; from elsewhere its silence and its address do.

Example:
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as model_dir:
    ...     member = members.Membership(model_dir, "ps", 0, "127.0.0.1:2222")
    ...     member.join()
    ...     look(member.record, now_sec=time.time())
    ...     member.leave(members.MemberState.FINISHED)
    ...     look(member.record, now_sec=time.time())
    <Life.ALIVE: 'alive'>
    <Life.LEFT: 'left'>
"""

import enum
import os
import time  # noqa: F401 - for the example

from monolith.cluster import members
from monolith.cluster.members import MemberRecord


class Life(enum.Enum):
    """What is known of a member."""

    ALIVE = "alive"
    # Its process is there but stopped, by SIGSTOP or a debugger.
    FROZEN = "frozen"
    # On another machine: says nothing, though its address takes connections or cannot be asked.
    SILENT = "silent"
    # Has ended without saying so.
    GONE = "gone"
    # Has said that it is done.
    LEFT = "left"


def look(record: MemberRecord, now_sec: float) -> Life:
    """Returns what has become of a member.

    Args:
        record: What it said last.
        now_sec: The time in seconds since 1970. A member of another machine, whose clock may
            differ, is called silent when its last sign of life is `members.SILENT_AFTER_SEC` old.
    """
    if not record.is_active:
        return Life.LEFT
    if is_here(record):
        if members._describe_process(record.pid) != record.process:
            return Life.GONE
        return Life.FROZEN if members._is_stopped(record) else Life.ALIVE
    if now_sec - record.beat_sec < members.SILENT_AFTER_SEC:
        return Life.ALIVE
    return Life.GONE if members.is_refused(record.address) else Life.SILENT


def is_here(record: MemberRecord) -> bool:
    """Returns whether a member ran on this machine, where its process can be looked at."""
    own = members._describe_process(os.getpid())
    if own is None or not record.process:
        return False
    return members._get_machine(record.process) == members._get_machine(own)
