"""Trainings on streams are killed, and no message is lost.

A job trains on a stream while messages are written; it is killed, more are written, and it is
started again. The bar: each message is trained on at least once, at most twice, and a kill doubles
one batch at most. In the model each one counts exactly once, since a checkpoint holds the rows and
the position of the stream together. `MONOLITH_STREAM_KILLS=50` is the long form.
"""

import contextlib
import json
import os
import time

import pytest
from support import reading, stream_job
from support.kafka_mock import MockCluster

NUM_KILLS = int(os.environ.get("MONOLITH_STREAM_KILLS", "2"))
BATCH_SIZE = 4
PATIENCE_SEC = 240
# What `reading.read_rows` looks up.
NUM_IDS = 96


class Tail:
    """Writes to files; a new one now and then, and lines in two parts."""

    def __init__(self, directory):
        self._directory = directory
        self._number = 0
        self.kind = "tail"
        self.arguments = {"paths": os.fspath(directory / "clicks-*.jsonl")}

    def produce(self, numbers):
        self._number += 1
        with open(self._directory / f"clicks-{self._number // 3:04}.jsonl", "a") as file:
            for number in numbers:
                line = json.dumps({"id": number}) + "\n"
                file.write(line[:5])
                file.flush()
                file.write(line[5:])


class Topic:
    def __init__(self, cluster):
        self._cluster = cluster
        self.kind = "kafka"
        self.arguments = {"topics": "clicks", "servers": cluster.servers, "format": "json"}

    def produce(self, numbers):
        self._cluster.produce("clicks", numbers)


@contextlib.contextmanager
def open_stream(kind, directory):
    if kind == "tail":
        yield Tail(directory)
        return
    with MockCluster() as cluster:
        yield Topic(cluster)


def read_steps(log):
    if not log.exists():
        return []
    return [list(map(int, line.split())) for line in log.read_text().splitlines()]


def wait_for_steps(child, log, count):
    give_up_sec = time.monotonic() + PATIENCE_SEC
    while len(read_steps(log)) < count:
        assert child.poll() is None, child.stderr.read()[-3000:]
        assert time.monotonic() < give_up_sec, f"{len(read_steps(log))} of {count} steps"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(300 + 60 * NUM_KILLS)
@pytest.mark.parametrize("kind", ["tail", "kafka"])
def test_a_killed_training_loses_nothing_and_doubles_a_batch_at_most(tmp_path, kind):
    model_dir, log, stop = tmp_path / "model", tmp_path / "log", tmp_path / "stop"
    # Three batches between two kills; with many kills ids come again, and rows count that.
    groups = [[(12 * i + k) % NUM_IDS for k in range(12)] for i in range(NUM_KILLS + 1)]
    with open_stream(kind, tmp_path) as stream:
        stream.produce(groups[0])
        arguments = {
            **stream.arguments,
            "batch_size": BATCH_SIZE,
            "max_wait_sec": 0.2,
            "stop_file": stop,
        }
        job = {"model_dir": model_dir, "log": log, "kind": stream.kind, "arguments": arguments}
        for i, group in enumerate(groups[1:]):
            child = stream_job.start_child(**job)
            try:
                # Some steps further each time: after a step, in a save, or while it waits.
                wait_for_steps(child, log, len(read_steps(log)) + 1 + i % 3)
            finally:
                child.kill()
                child.communicate()
            stream.produce(group)
        stop.touch()
        child = stream_job.start_child(**job)
        try:
            _, errors = child.communicate(timeout=PATIENCE_SEC)
        finally:
            child.kill()
        assert child.returncode == 0, errors[-3000:]
    written = [number for group in groups for number in group]
    trained = [number for step in read_steps(log) for number in step]
    for number in range(NUM_IDS):
        count = written.count(number)
        assert count <= trained.count(number) <= 2 * count, number
    assert len(trained) - len(written) <= NUM_KILLS * BATCH_SIZE
    in_model = reading.read_rows(model_dir)[:NUM_IDS]
    assert in_model == [written.count(number) for number in range(NUM_IDS)]
