"""Tables on servers, and workers that train the dense part together: real processes."""

import dataclasses
import signal

import numpy as np
import pytest
from support import jobs, movies_job, partial_sync_job

from monolith.training.estimator import Estimator, RunConfig

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("graph_mode")]


@pytest.fixture
def settings(tmp_path):
    return partial_sync_job.Settings(model_dir=str(tmp_path / "model"), num_batches=40, num_ps=1)


@pytest.fixture
def job(tmp_path):
    with jobs.Job(tmp_path / "logs") as job:
        yield job


def divide(num_batches, num_workers):
    """Returns the batches of each step: each worker has the next one."""
    batches = range(num_batches)
    return [batches[i : i + num_workers] for i in range(0, num_batches, num_workers)]


def check_dense(settings, steps):
    """Compares what all workers ended with, and what is saved, with what NumPy has."""
    expected = partial_sync_job.compute_dense(steps, settings.batch_size)
    values = partial_sync_job.read_dense(settings)
    for value in values[1:]:
        np.testing.assert_array_equal(value, values[0])  # To the last bit.
    np.testing.assert_allclose(values[0], expected, atol=1e-5)
    step, saved = partial_sync_job.read_saved(settings.model_dir)
    assert step == len(steps)
    np.testing.assert_array_equal(saved, values[0])


def check_counts(settings, batches):
    np.testing.assert_array_equal(
        partial_sync_job.read_counts(settings.model_dir),
        partial_sync_job.count_ids(batches, settings.batch_size),
    )


@pytest.mark.parametrize("queues", [False, True], ids=["no_queues", "queues"])
def test_two_workers_train_as_one_process_with_both_batches(settings, job, queues):
    partial_sync_job.start_job(job, settings, queues=queues)
    job.expect_success()
    check_dense(settings, divide(40, 2))
    check_counts(settings, range(40))


def test_workers_with_different_amounts_of_data_end_together(settings, job):
    # Worker 0 has 14 batches, the others 5; the last nine steps average over its own alone.
    settings = dataclasses.replace(settings, num_batches=5, more_batches=9, num_workers=3, num_ps=2)
    partial_sync_job.start_job(job, settings)
    job.expect_success()
    steps = [(i, 100 + i, 200 + i) for i in range(5)] + [(i,) for i in range(5, 14)]
    check_dense(settings, steps)
    check_counts(settings, [batch for batches in steps for batch in batches])


def test_restart_goes_on_from_the_checkpoint(settings, tmp_path):
    for name, max_steps in (("first", 7), ("second", None)):
        with jobs.Job(tmp_path / name) as job:
            started = partial_sync_job.start_job(job, settings, max_steps=max_steps)
            job.expect_success()
    # Of 20 steps, seven were done before.
    assert "step 13." in started["worker-1"].log
    assert "step 14." not in started["worker-1"].log
    check_dense(settings, divide(40, 2))
    check_counts(settings, range(40))


def test_a_job_of_another_kind_may_have_written_the_checkpoint(settings, tmp_path):
    with jobs.Job(tmp_path / "first") as job:
        # Each worker at its own pace, with dense variables on the servers.
        partial_sync_job.start_job(job, settings, partial=False, num_ps=2)
        job.expect_success()
    step, dense = partial_sync_job.read_saved(settings.model_dir)
    accumulated = partial_sync_job.read_accumulated(settings.model_dir)
    assert step == 40
    with jobs.Job(tmp_path / "second") as job:
        partial_sync_job.start_job(job, settings)
        job.expect_success()
    expected = partial_sync_job.compute_dense(
        divide(40, 2), settings.batch_size, dense, accumulated
    )
    step, saved = partial_sync_job.read_saved(settings.model_dir)
    assert step == 60
    np.testing.assert_allclose(saved, expected, atol=1e-5)
    check_counts(settings, [*range(40), *range(40)])


def test_a_signal_stops_all_workers_after_the_same_step(settings, job, tmp_path):
    settings = dataclasses.replace(settings, num_batches=4000, step_sec=0.01)
    started = partial_sync_job.start_job(job, settings)
    started["worker-1"].wait_for_log("step 5.")
    started["worker-1"].send(signal.SIGTERM)
    assert [started[f"worker-{i}"].wait() for i in range(2)] == [143, 143]
    assert started["ps-0"].wait() == 1
    assert "Ps 0 ends, since the chief was stopped" in started["ps-0"].tail()
    step, _ = partial_sync_job.read_saved(settings.model_dir)
    assert 5 <= step < 2000
    check_dense(settings, divide(4000, 2)[:step])
    check_counts(settings, range(2 * step))


@pytest.mark.parametrize("victim", ["worker-1", "worker-0", "ps-0"])
def test_members_that_are_killed(settings, job, victim):
    settings = dataclasses.replace(settings, num_batches=160, step_sec=0.05, save_steps=10)
    settings.max_retry_times = 6
    started = partial_sync_job.start_job(job, settings)
    started["worker-1"].wait_for_log("step 25.")
    started[victim].kill()
    if victim == "worker-1":
        chief = started["worker-0"]
        chief.wait_for_log("tries again")
        chief.wait_for_log("The chief waits for worker 1 to do steps together.")
    role, index = victim.split("-")
    successor = partial_sync_job.start_member(job, settings, role, int(index), f"{victim}-again")
    for name, member in {**started, victim: successor}.items():
        assert member.wait() == 0, f"{name}:\n{member.tail()}"
    check_dense(settings, divide(160, 2))
    check_counts(settings, range(160))


def test_a_worker_that_does_not_come_is_named(settings, job):
    server = partial_sync_job.start_member(job, settings, "ps", 0)
    chief = partial_sync_job.start_member(
        job, settings, "worker", 0, session_creation_timeout_secs=2
    )
    assert chief.wait() == 1
    assert "workers that do every step together, 1 did not come within 2 s" in chief.log
    assert server.wait() == 1
    assert "Ps 0 ends, since the chief has failed" in server.tail()


def test_all_members_must_say_so(settings, job):
    partial_sync_job.start_member(job, settings, "ps", 0)
    partial_sync_job.start_member(job, settings, "worker", 0)
    worker = partial_sync_job.start_member(job, settings, "worker", 1, partial=False)
    assert worker.wait() == 1
    assert (
        "setting 'enable_partial_sync_training' is `True` at the chief and `False` here"
        in worker.log
    )
    half = {"MONOLITH_WITH_ALLREDUCE_FP16": "1"}
    worker = partial_sync_job.start_member(job, settings, "worker", 1, "half", environment=half)
    assert worker.wait() == 1
    assert (
        "environment variable 'MONOLITH_WITH_ALLREDUCE_FP16' is `off` at the chief and `on` here"
        in worker.log
    )


def test_one_worker_alone_and_merged_tables(settings, job):
    settings = dataclasses.replace(settings, num_workers=1, num_batches=10, native=False)
    partial_sync_job.start_job(job, settings)
    job.expect_success()
    check_dense(settings, divide(10, 1))
    check_counts(settings, range(10))


def test_a_worker_without_any_batch_keeps_company_and_the_next_job_begins_anew(settings, tmp_path):
    settings = dataclasses.replace(settings, num_batches=1)
    for name in ("first", "second"):
        with jobs.Job(tmp_path / name) as job:
            started = partial_sync_job.start_job(job, settings)
            job.expect_success()
    for index in range(2):
        assert "was saved after its last batch" in started[f"worker-{index}"].log
    check_dense(settings, [(0,), (0,)])
    check_counts(settings, [0, 0])


def test_workers_without_any_batch_are_an_error(settings, job):
    started = partial_sync_job.start_job(job, dataclasses.replace(settings, num_batches=0))
    for index in range(2):
        assert started[f"worker-{index}"].wait() == 1
        assert "Nothing was trained: the input ended before its" in started[f"worker-{index}"].log


@pytest.mark.slow
@pytest.mark.parametrize("fused", [False, True], ids=["slices", "layouts"])
def test_model_with_embeddings_in_its_network(job, tmp_path, fused):
    model_dir, num_examples = str(tmp_path / "model"), 163_840
    settings = {
        "enable_sync_training": True,
        "enable_partial_sync_training": True,
        "enable_fused_layout": fused,
    }
    for role in ("ps", "worker"):
        for index in range(2):
            arguments = (model_dir, role, index, num_examples, settings)
            job.start(f"{role}-{index}", "support.movies_job", "run_member", *arguments)
    job.expect_success()
    config = RunConfig(is_local=True, model_dir=model_dir)
    found = Estimator(movies_job.make_model(num_examples), config).evaluate()
    # With the same examples, one process has more than 0.85 in twice as many steps.
    assert found["click_auc"] > 0.8
