"""Trainings on streams are killed, and no message is lost.

A job trains on a stream while messages are written; it is killed, more are written, and it is
started again. Each message has an id of its own. The bar: each is trained on at least once, and a
second time only if it was in the batch that a kill has hit; never more often. In the model each one
counts exactly once, since a checkpoint holds the rows and the position of the stream together.
`MONOLITH_STREAM_KILLS=50` is the long form.
"""

import collections
import contextlib
import json
import os
import time

import pytest
from support import reading, stream_job
from support.kafka_mock import MockCluster

NUM_KILLS = int(os.environ.get("MONOLITH_STREAM_KILLS", "2"))
BATCH_SIZE = 4
# A run is killed after 2 to 4 steps at the earliest.
MESSAGES_PER_KILL = 4 * BATCH_SIZE
PATIENCE_SEC = 240


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
    num_messages = MESSAGES_PER_KILL * (NUM_KILLS + 1)
    starts = range(0, num_messages, MESSAGES_PER_KILL)
    groups = [range(start, start + MESSAGES_PER_KILL) for start in starts]
    runs = []  # The steps of each, up to its kill.
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
            before = len(read_steps(log))
            child = stream_job.start_child(**job)
            try:
                # After a step, in its save, or while the job waits. Some steps further each time,
                # but never in the first one: what two kills have hit would be trained on thrice.
                wait_for_steps(child, log, before + 2 + i % 3)
            finally:
                child.kill()
                child.communicate()
            runs.append(read_steps(log)[before:])
            stream.produce(group)
        stop.touch()
        child = stream_job.start_child(**job)
        try:
            _, errors = child.communicate(timeout=PATIENCE_SEC)
        finally:
            child.kill()
        assert child.returncode == 0, errors[-3000:]
    runs.append(read_steps(log)[sum(map(len, runs)) :])
    check_runs(kind, runs, num_messages)
    assert reading.read_rows(model_dir, num_messages) == [1] * num_messages


def check_runs(kind, runs, num_messages):
    """Counts each message, and what each kill has doubled: the last step of a run, or nothing.

    What was read last is read first by the next run, whose first step no kill hits: so nothing is
    trained on more than twice.
    """
    trained = collections.Counter(number for run in runs for step in run for number in step)
    assert set(trained) == set(range(num_messages)), "lost, or never written"
    assert max(trained.values()) <= 2, trained.most_common(3)
    doubled = []
    for i, run in enumerate(runs):
        later = {number for other in runs[i + 1 :] for step in other for number in step}
        seen = [number for step in run for number in step]
        assert len(set(seen)) == len(seen), f"run {i} reads {seen}"
        assert later.intersection(seen) <= set(run[-1] if run else ()), f"kill {i} of {run}"
        doubled.append(len(later.intersection(seen)))
    assert max(doubled) <= BATCH_SIZE
    times = collections.Counter(trained.values())
    print(
        f"{kind}: {len(runs) - 1} kills, {num_messages} messages, none lost; trained on so often: "
        f"{dict(sorted(times.items()))}; {sum(map(bool, doubled))} kills have doubled some, "
        f"{max(doubled)} at most; a batch has {BATCH_SIZE}"
    )


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        pytest.param([[[0, 1]], [[3]]], "lost", id="lost"),
        pytest.param([[[0, 1]], [[0, 1, 2, 3, 4]]], "never written", id="made_up"),
        pytest.param([[[0]], [[0]], [[0, 1, 2, 3]]], r"\(0, 3\)", id="three_times"),
        pytest.param([[[0, 1], [2, 3]], [[0, 1], [2, 3]]], "kill 0", id="two_batches"),
        pytest.param([[[0, 1], [2, 3], [0]]], "run 0", id="twice_in_a_run"),
    ],
)
def test_the_check_refuses(runs, message):
    check_runs("tail", [[[0, 1], [2, 3]], [], [[2, 3]]], 4)
    with pytest.raises(AssertionError, match=message):
        check_runs("tail", runs, 4)
