"""Ranks of which one is told to stop, or leaves: all end together, or the others name it.

Covers monolith/training/tables/dense_ranks.py.
"""

import os
import signal

import pytest
import tensorflow as tf
from support import ranks
from support.jobs import Job

pytestmark = pytest.mark.distributed


@pytest.fixture
def job(tmp_path):
    with Job(tmp_path / "logs") as job:
        yield job


def start(job, function, *args, **environment):
    return ranks.start(job, 2, function, *args, module="support.sync_stops", **environment)


def read_names(tmp_path):
    """Returns the step of the last checkpoint, and the names of its files beside variables."""
    prefix = tf.train.latest_checkpoint(str(tmp_path / "model"))
    return int(prefix.rpartition("-")[2]), set(os.listdir(f"{prefix}.assets"))


def test_a_hook_of_one_rank_stops_all(job, tmp_path):
    start(job, "stop_alone", str(tmp_path), "dense")
    job.expect_success()
    # It has asked after step 3, and the others hear of it in the next one; a limit that all have is
    # kept.
    assert ranks.read_all(tmp_path, "steps", 2) == [[4, 7]] * 2


@pytest.mark.parametrize("kind", ["dense", "embeddings"])
def test_sigterm_of_one_rank_stops_all(job, tmp_path, kind):
    members = start(job, "train_until_told", str(tmp_path), kind)
    for member in members:
        member.wait_for_log("it trains")
    members[1].send(signal.SIGTERM)
    for member in members:
        assert member.wait(60) == 128 + signal.SIGTERM, member.tail()
        assert "a rank was told to stop: all stop after step" in member.log
    step, names = read_names(tmp_path)
    assert f"all stop after step {step}" in members[0].log
    assert names >= {"input_worker_0", "input_worker_1"}


@pytest.mark.parametrize("place", ["session", "save"])
def test_who_leaves_outside_of_a_step_is_not_waited_for_forever(job, tmp_path, place):
    members = start(job, "train_until_left", str(tmp_path), place)
    assert members[0].wait(60) == 1
    assert f"rank 1 (process {members[1].pid} on" in members[0].log
    assert "has left while others go on" in members[0].log
