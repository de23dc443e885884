"""A process that waits to be dismissed as a parameter server."""

import tensorflow as tf

from monolith.cluster.members import MemberState
from monolith.training.distributed import server


def run(is_over, grace_sec):
    tf.compat.v1.disable_eager_execution()
    server.TERM_GRACE_SEC = grace_sec
    tf_server = tf.distribute.Server({"local": ["127.0.0.1:0"]})
    start = server._Waiter.start

    def start_and_say(self):
        start(self)
        print("waits", flush=True)

    server._Waiter.start = start_and_say
    end = MemberState.FINISHED if is_over else None
    server.wait_for_dismissal(tf_server.target, 0, find_end=lambda: end)
