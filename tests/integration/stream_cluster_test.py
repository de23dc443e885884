"""Jobs with parameter servers train on streams that have nothing to say for a while.

A worker that waits for its stream stands at the barrier as the others do, and its position is in
every checkpoint: killed while the stream is quiet, a job trains on no message twice.
`MONOLITH_STREAM_KILLS=50` is the long form.
"""

import json
import os
import pathlib
import signal
import time

import pytest
import tensorflow as tf
from integration import stream_kills_test
from support import jobs, reading, stream_cluster

NUM_KILLS = int(os.environ.get("MONOLITH_STREAM_KILLS", "1"))
BATCH_SIZE = 4
MESSAGES_PER_RUN = 16

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("graph_mode")]


class Tail:
    """Writes several files at a time, so that each worker has some."""

    def __init__(self, directory):
        self._directory = directory
        self._number = 0
        self.kind = "tail"
        self.arguments = {"paths": os.fspath(directory / "clicks-*.jsonl")}

    def produce(self, numbers):
        for first in range(0, len(numbers), BATCH_SIZE):
            lines = [json.dumps({"id": number}) + "\n" for number in numbers[first:][:BATCH_SIZE]]
            path = self._directory / f"clicks-{self._number:04}.jsonl"
            path.write_text("".join(lines))
            self._number += 1


@pytest.fixture(params=["tail", "kafka"])
def stream(request, tmp_path):
    if request.param == "tail":
        yield Tail(tmp_path)
        return
    with stream_kills_test.open_stream(request.param, tmp_path) as stream:
        yield stream


@pytest.fixture
def settings(stream, tmp_path):
    arguments = {
        **stream.arguments,
        "batch_size": BATCH_SIZE,
        "max_wait_sec": 0.2,
        "stop_file": os.fspath(tmp_path / "stop"),
    }
    return stream_cluster.Settings(
        model_dir=os.fspath(tmp_path / "model"),
        log=os.fspath(tmp_path / "log"),
        kind=stream.kind,
        arguments=arguments,
    )


@pytest.fixture
def job(tmp_path):
    with jobs.Job(tmp_path / "logs") as job:
        yield job


def read_trained(settings):
    """Returns the ids that the workers have trained on, those of lost steps among them."""
    trained = []
    for index in range(stream_cluster.NUM_WORKERS):
        path = f"{settings.log}-worker-{index}"
        if os.path.exists(path):
            with open(path) as file:
                trained += map(int, file.read().split())
    return trained


def count_saved(settings, num_messages):
    """Returns how often each message counts in the newest checkpoint."""
    with tf.Graph().as_default():
        return reading.read_rows(settings.model_dir, num_messages)


def has_positions(checkpoint):
    """Returns whether both workers have theirs there; one that starts late has none at first."""
    return len(list(pathlib.Path(f"{checkpoint}.assets").glob("input_worker_?"))) == 2


def wait_until_saved(settings, started, num_messages):
    """Waits for a checkpoint that has all messages, while the stream is quiet."""
    deadline_sec = time.monotonic() + jobs.PATIENCE_SEC
    seen = None
    while True:
        for member in started.values():
            assert member.is_alive, jobs.describe_failure(member)
        newest = tf.train.latest_checkpoint(settings.model_dir)
        is_trained = set(read_trained(settings)) >= set(range(num_messages))
        if newest != seen and is_trained and has_positions(newest):
            seen, counts = newest, count_saved(settings, num_messages)
            if min(counts) > 0:
                return counts
        assert time.monotonic() < deadline_sec, "\n".join(m.tail() for m in started.values())
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * NUM_KILLS)
def test_killed_while_the_stream_is_quiet_nothing_is_read_again(stream, settings, job):
    num_messages = 0
    for i in range(NUM_KILLS):
        stream.produce(range(num_messages, num_messages + MESSAGES_PER_RUN))
        num_messages += MESSAGES_PER_RUN
        started = stream_cluster.start_job(job, settings, f"{i}-")
        assert wait_until_saved(settings, started, num_messages) == [1] * num_messages
        for member in started.values():
            member.kill()
            job.members.remove(member)
            # Nobody was waited for, and everybody had a position.
            assert "not at the barrier" not in member.log
            assert "no position to save" not in member.log
    stream.produce(range(num_messages, num_messages + MESSAGES_PER_RUN))
    num_messages += MESSAGES_PER_RUN
    started = stream_cluster.start_job(job, settings)
    wait_until_saved(settings, started, num_messages)
    for index in range(stream_cluster.NUM_WORKERS):
        assert f"worker {index} goes on reading its input" in started[f"worker-{index}"].log
    # A signal ends a job that waits: nobody has to send a message for that.
    for member in started.values():
        member.send(signal.SIGTERM)
    codes = {name: member.wait() for name, member in started.items()}
    assert codes == {"ps-0": 143, "worker-0": 143, "worker-1": 143}
    assert count_saved(settings, num_messages) == [1] * num_messages
    # Also in what was lost with a kill there was nothing twice.
    assert sorted(read_trained(settings)) == list(range(num_messages))


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["kafka"], indirect=True)
def test_killed_while_messages_come_each_one_counts_once(stream, settings, job, tmp_path):
    stream.produce(range(MESSAGES_PER_RUN))
    settings.capacity = 0  # Of a stream a batch is read ahead all the same.
    started = stream_cluster.start_job(job, settings, "first-")
    while not read_trained(settings):
        assert all(member.is_alive for member in started.values())
        time.sleep(0.02)
    for member in started.values():
        member.kill()
        job.members.remove(member)
    stream.produce(range(MESSAGES_PER_RUN, 2 * MESSAGES_PER_RUN))
    (tmp_path / "stop").touch()
    stream_cluster.start_job(job, settings)
    job.expect_success()
    assert count_saved(settings, 2 * MESSAGES_PER_RUN) == [1] * (2 * MESSAGES_PER_RUN)
