"""Files that workers take as they go: none is lost, and none is read twice if nobody dies."""

import json
import pathlib
import re
import time

import numpy as np
import pytest
import tensorflow as tf
from support import counting, jobs

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("graph_mode")]

NUM_FILES = 24
LINES = 20
NUM_BATCHES = NUM_FILES * LINES // 4


@pytest.fixture
def settings(tmp_path):
    files = []
    for number, lines in enumerate(np.split(np.arange(NUM_FILES * LINES), NUM_FILES)):
        path = tmp_path / f"numbers-{number:02d}"
        path.write_text("".join(f"{line}\n" for line in lines))
        files.append(str(path))
    return counting.Settings(
        model_dir=str(tmp_path / "model"),
        num_workers=3,
        num_batches=NUM_BATCHES,
        files=files,
        dynamic_splits=True,
        step_sec=0.02,
        save_steps=20,
        max_retry_times=5,
    )


@pytest.fixture
def job(tmp_path):
    with jobs.Job(tmp_path / "logs") as job:
        yield job


def count_steps(member):
    return len(re.findall(r"^step \d+\.$", member.log, re.M))


def check_exact(settings):
    counts, steps = counting.read_counts(settings.model_dir)
    expected = counting.count_expected(NUM_BATCHES)
    for name in expected:
        np.testing.assert_array_equal(counts[name], expected[name], err_msg=name)
    assert steps == NUM_BATCHES


def check_at_least_once(settings, job, max_again):
    """Everything is trained, and at most so many batches more than once."""
    counts, _ = counting.read_counts(settings.model_dir)
    expected = counting.count_expected(NUM_BATCHES)
    for name in expected:
        assert (counts[name] >= expected[name]).all(), name
    num_again = sum(counts["user"] - expected["user"]) / 4
    assert num_again <= max_again, num_again


def wait_for_step(settings, step, job):
    deadline_sec = time.monotonic() + jobs.PATIENCE_SEC
    while True:
        checkpoint = tf.train.latest_checkpoint(settings.model_dir)
        if checkpoint and int(checkpoint.rpartition("-")[2]) >= step:
            return checkpoint
        for member in job.members:
            assert member.is_alive or member.wait() == 0, jobs.describe_failure(member)
        assert time.monotonic() < deadline_sec, "\n".join(m.tail() for m in job.members)
        time.sleep(0.02)


def read_finished(checkpoint):
    text = pathlib.Path(f"{checkpoint}.assets", "input_splits").read_text()
    return json.loads(text)["finished"]


@pytest.mark.slow
def test_slow_worker_takes_fewer(settings, job, tmp_path):
    for role, index in (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)):
        counting.start_member(job, settings, role, index)
    counting.start_member(job, settings, "worker", 2, step_sec=0.3)
    job.expect_success()
    steps = {member.name: count_steps(member) for member in job.members}
    # Of equal parts each would have had 40.
    assert steps["worker-2"] <= 30, steps
    assert min(steps["worker-0"], steps["worker-1"]) >= 35, steps
    check_exact(settings)
    # All files are finished, so that the next run reads all of them again.
    assert len(read_finished(tf.train.latest_checkpoint(settings.model_dir))) == NUM_FILES
    with jobs.Job(tmp_path / "again") as again:
        counting.start_job(again, settings)
        again.expect_success()
    _, steps = counting.read_counts(settings.model_dir)
    assert steps == 2 * NUM_BATCHES


@pytest.mark.slow
def test_killed_worker_s_files_go_to_others(settings, job):
    started = counting.start_job(job, settings)
    started["worker-1"].wait_for_log("step 7.")  # The first file has 5.
    started["worker-1"].kill()
    job.members.remove(started["worker-1"])
    # Nobody comes back for it until the others have read everything.
    started["worker-2"].wait_for_log("done")
    counting.start_member(job, settings, "worker", 1, name="worker-1-again")
    job.expect_success()
    # The one that it reads, and, if it was quick, the one that it had asked for.
    assert re.search("worker 1 has not finished [12] input files", started["worker-0"].log)
    check_at_least_once(settings, job, max_again=5)


@pytest.mark.slow
def test_killed_chief_goes_on_with_what_the_checkpoint_has_not_finished(settings, job):
    started = counting.start_job(job, settings)
    checkpoint = wait_for_step(settings, 40, job)
    assert read_finished(checkpoint)
    started["worker-0"].kill()
    job.members.remove(started["worker-0"])
    before = tf.train.latest_checkpoint(settings.model_dir)
    num_finished = len(read_finished(before))
    again = counting.start_member(job, settings, "worker", 0, name="worker-0-again")
    job.expect_success()
    assert f"{NUM_FILES - num_finished} of {NUM_FILES} input files are to be read" in again.log
    # The model went back with the input. Only files that were under way count twice.
    check_at_least_once(settings, job, max_again=3 * 5)


@pytest.mark.slow
def test_killed_chief_of_servers_that_keep_the_model_goes_on_where_it_was(settings, job):
    settings.partial_recovery, settings.save_steps = True, None
    started = counting.start_job(job, settings)
    started["worker-0"].wait_for_log("step 12.")  # Two files, of 5 each.
    started["worker-0"].kill()
    job.members.remove(started["worker-0"])
    again = counting.start_member(job, settings, "worker", 0, name="worker-0-again")
    job.expect_success()
    assert f"of {NUM_FILES} input files are still to be read" in again.log
    # There is no checkpoint to go back to. The chief's own file is read again, and, if it was
    # quick, the one that it had asked for.
    check_at_least_once(settings, job, max_again=2 * 5)


@pytest.mark.slow
def test_killed_server(settings, job):
    settings.partial_recovery = True
    started = counting.start_job(job, settings)
    wait_for_step(settings, 40, job)
    started["ps-1"].kill()
    job.members.remove(started["ps-1"])
    counting.start_member(job, settings, "ps", 1, name="ps-1-again")
    job.expect_success()
    check_at_least_once(settings, job, max_again=NUM_BATCHES)


def test_workers_that_see_other_files_are_refused(settings, job):
    for role, index in (("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)):
        counting.start_member(job, settings, role, index)
    other = counting.start_member(job, settings, "worker", 2, files=settings.files[1:])
    assert other.wait() == 1
    assert "finds 23 input files, which are not the 24 that the chief finds" in other.log
