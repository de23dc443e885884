"""A process that has a member's place, for tests of who else may have it."""

import os
import time

from monolith.cluster import members


def hold(model_dir, addr, leave_path):
    """Claims the place of the chief, and holds it until `leave_path` is there."""
    members.BEAT_SEC = 0.05
    member = members.Membership(model_dir, "worker", 0, addr)
    member.join()
    print("joined", flush=True)
    while not os.path.exists(leave_path):
        time.sleep(0.02)
    member.leave(members.MemberState.FINISHED)
