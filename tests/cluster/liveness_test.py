"""What has become of a member: alive, frozen, silent, gone or done."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from monolith.cluster import liveness, members
from monolith.cluster.liveness import Life

NOW_SEC = 1000.0


@pytest.fixture
def process():
    started = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield started
    started.kill()
    started.communicate()


def make_record(**changes):
    record = members.MemberRecord(
        role="ps",
        index=0,
        address="127.0.0.1:1",
        host="here",
        pid=os.getpid(),
        process=members._describe_process(os.getpid()),
        incarnation="a",
        started_sec=0.0,
        beat=1,
        beat_sec=NOW_SEC,
        state=members.MemberState.RUNNING,
    )
    return dataclasses.replace(record, **changes)


def make_record_of(process):
    return make_record(pid=process.pid, process=members._describe_process(process.pid))


def wait_until_stopped(process):
    deadline_sec = time.monotonic() + 20
    while liveness.look(make_record_of(process), NOW_SEC) is not Life.FROZEN:
        assert time.monotonic() < deadline_sec
        time.sleep(0.01)


def test_process_of_this_machine_tells_whatever_the_clock_says(process):
    record = make_record_of(process)
    assert liveness.is_here(record)
    assert liveness.look(record, NOW_SEC + 1e6) is Life.ALIVE
    os.kill(process.pid, signal.SIGSTOP)
    wait_until_stopped(process)
    process.kill()
    process.wait()
    assert liveness.look(record, NOW_SEC) is Life.GONE


def test_another_process_with_the_same_number_is_not_the_member():
    other = members._describe_process(os.getpid()) + "1"
    assert liveness.look(make_record(process=other), NOW_SEC) is Life.GONE


@pytest.mark.parametrize("state", ["finished", "stopped", "failed"])
def test_member_that_has_said_so_has_left(state):
    record = make_record(state=members.MemberState(state), process="")
    assert liveness.look(record, NOW_SEC + 1e6) is Life.LEFT


def test_member_of_another_machine_is_judged_by_silence_and_address():
    elsewhere = "elsewhere boot pid:[1] 1 2"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        record = make_record(process=elsewhere, address=f"127.0.0.1:{port}")
        assert not liveness.is_here(record)
        late_sec = NOW_SEC + members.SILENT_AFTER_SEC + 1
        assert liveness.look(record, NOW_SEC + 1) is Life.ALIVE
        assert liveness.look(record, late_sec) is Life.SILENT
    assert liveness.look(record, late_sec) is Life.GONE
    assert liveness.look(record, NOW_SEC + 1) is Life.ALIVE
