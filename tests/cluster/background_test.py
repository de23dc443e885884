"""Calls that outlive what began them do not take the process down at its end."""

import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent(
    """
    import sys
    import tensorflow as tf
    from monolith.cluster import background

    background.EXIT_WAIT_SEC = float(sys.argv[2])

    class Call(background.BackgroundCall):
        def run(self):
            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                queue = tf.queue.FIFOQueue(1, tf.int32)
                if sys.argv[1] == "answered":
                    session.run(tf.py_function(lambda: time.sleep(0.5), [], []))
                else:
                    print("asked", flush=True)
                    session.run(queue.dequeue())
            print("done", flush=True)

    import time
    Call("call").start()
    """
)


@pytest.mark.parametrize(
    ("kind", "wait_sec", "said"),
    [
        pytest.param("answered", 60, "done", id="the_exit_waits_for_a_call"),
        pytest.param("unanswered", 0.2, "asked", id="but_not_for_ever"),
    ],
)
def test_end_of_a_process(kind, wait_sec, said):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, str(wait_sec)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [said]
