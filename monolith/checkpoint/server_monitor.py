"""Which parameter servers have lost their memory.

A server that starts anew holds nothing and must be restored from the checkpoint. The others have
trained on since that checkpoint: restoring them, too, would throw that work away. A queue in the
memory of each server tells the two apart: it holds an element once the server was set up, and is
empty again in the process that replaces it.

Example:
    >>> with tf.Graph().as_default():
    ...     monitor = PsMonitor(2)
    >>> monitor.num_ps
    2
"""

import tensorflow as tf

from monolith.graph import devices

# Job, task, and the number of the CPU in a session that stands for its servers itself.
_Task = tuple[str, int, int]


class PsMonitor:
    """Remembers, in each parameter server itself, that the server was set up.

    Make it while the graph is built, with the same `ps_num` in all processes that use it.

    Args:
        ps_num: Number of parameter servers.
    """

    def __init__(self, ps_num: int) -> None:
        self._sizes: dict[_Task, tf.Tensor] = {}
        self._enqueues: dict[_Task, tf.Operation] = {}
        for i in range(ps_num):
            device = devices.ps_device(i)
            with tf.device(device):
                queue = tf.queue.FIFOQueue(
                    1, tf.int32, shapes=[()], shared_name=f"ps_monitor_{i}", name="ps_monitor"
                )
                self._sizes[_get_task(device)] = queue.size()
                self._enqueues[_get_task(device)] = queue.enqueue(1)

    @property
    def num_ps(self) -> int:
        """Number of parameter servers."""
        return len(self._sizes)

    def is_ps_uninitialized(self, sess: tf.compat.v1.Session, device: str) -> bool:
        """Returns whether what lies on `device` has to be restored.

        Any device of a server stands for the server; a device that is no parameter server always
        has to be restored.
        """
        size = self._sizes.get(_get_task(device))
        return size is None or int(sess.run(size)) == 0

    def setup_ps_initialized_state(self, sess: tf.compat.v1.Session) -> None:
        """Marks all servers as set up; call it when everything is restored or initialized."""
        sizes = sess.run(self._sizes)
        # A queue takes one element: enqueueing a second one would wait forever.
        sess.run([self._enqueues[task] for task, size in sizes.items() if size == 0])


def _get_task(device: str) -> _Task:
    # Variables may lie on "/job:ps/task:0", their restore ops on "/job:ps/replica:0/task:0/...".
    spec = tf.DeviceSpec.from_string(device or "")
    if spec.job is None:
        return "", -1, spec.device_index or 0
    return spec.job, -1 if spec.task is None else spec.task, 0
