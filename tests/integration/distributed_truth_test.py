"""Two servers and two workers train what one process does, however they find each other."""

import pathlib

import numpy as np
import pytest
from support import counting, jobs, movies_job

from monolith.training import cpu
from monolith.training.estimator import Estimator, RunConfig

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("graph_mode")]


def check_counts(model_dir, num_batches, passes=1):
    counts, steps = counting.read_counts(model_dir)
    expected = counting.count_expected(num_batches)
    for name in expected:
        np.testing.assert_array_equal(counts[name], passes * expected[name], err_msg=name)
    assert steps == passes * num_batches


@pytest.fixture
def settings(tmp_path):
    return counting.Settings(model_dir=str(tmp_path / "model"), num_batches=50)


@pytest.fixture
def job(tmp_path):
    with jobs.Job(tmp_path / "logs") as job:
        yield job


class TestDiscovery:
    """Two servers, the chief and two workers meet."""

    @pytest.fixture
    def settings(self, settings):
        settings.num_workers = 3
        return settings

    def test_files(self, settings, job):
        counting.start_job(job, settings)
        job.expect_success()
        check_counts(settings.model_dir, 50)

    def test_tf_config(self, settings, job):
        plans = counting.plan_tf_config(settings)
        for name, tf_config in plans.items():
            # What this process is, TF_CONFIG alone says.
            counting.start_member(
                job, settings, "worker", 0, name, discovery="tf_config", tf_config=tf_config
            )
        job.expect_success()
        check_counts(settings.model_dir, 50)

    def test_mlp(self, settings, job):
        for name, variables in counting.plan_mlp(settings).items():
            # As with TF_CONFIG: what the config says of role and index does not count.
            counting.start_member(
                job, settings, "worker", 0, name, environment=variables, discovery="mlp"
            )
        job.expect_success()
        check_counts(settings.model_dir, 50)

    @pytest.mark.external
    def test_zookeeper(self, settings, job, zookeeper_server):
        counting.start_job(job, settings, discovery="zk", zk_server=zookeeper_server.hosts)
        job.expect_success()
        check_counts(settings.model_dir, 50)


class TestTruth:
    def test_one_process_counts_the_same(self, settings):
        params = counting.CountingTask.params().set(settings=settings)
        config = cpu.CpuTrainingConfig(num_ps=2)
        cpu.local_train_internal(params, config, settings.model_dir, steps=None)
        check_counts(settings.model_dir, 50)

    def test_merged_tables_without_queues(self, settings, job):
        counting.start_job(job, settings, native=False, queues=False)
        job.expect_success()
        check_counts(settings.model_dir, 50)

    def test_input_is_files(self, settings, job, tmp_path):
        files = []
        for number, lines in enumerate(np.array_split(np.arange(200), 5)):
            path = tmp_path / f"numbers-{number}"
            path.write_text("".join(f"{line}\n" for line in lines))
            files.append(str(path))
        members = counting.start_job(job, settings, files=files)
        job.expect_success()
        # 3 files of 40 lines for the first, 2 for the second.
        assert "step 30." in members["worker-0"].log
        assert "step 31." not in members["worker-0"].log
        check_counts(settings.model_dir, 50)

    def test_servers_change_in_number_between_runs(self, settings, job, tmp_path):
        counting.start_job(job, settings)
        job.expect_success()
        with jobs.Job(tmp_path / "more") as more:
            counting.start_job(more, settings, num_ps=3, num_workers=1)
            more.expect_success()
        check_counts(settings.model_dir, 50, passes=2)
        with jobs.Job(tmp_path / "fewer") as fewer:
            counting.start_job(fewer, settings, num_ps=1, num_workers=3)
            fewer.expect_success()
        check_counts(settings.model_dir, 50, passes=3)

    def test_steps_are_counted_over_all_workers_and_from_the_checkpoint(
        self, settings, job, tmp_path
    ):
        counting.start_job(job, settings, steps=8)
        job.expect_success()
        _, first = counting.read_counts(settings.model_dir)
        # Each of two workers may have begun a step when the last one ended.
        assert 8 <= first <= 9
        with jobs.Job(tmp_path / "again") as again:
            counting.start_job(again, settings, steps=8)
            again.expect_success()
        _, second = counting.read_counts(settings.model_dir)
        assert first + 8 <= second <= first + 9


class TestAdagrad:
    def test_asynchronous_training_reaches_the_auc_of_one_process(self, job, tmp_path):
        num_examples = 150_000
        one, four = (str(tmp_path / name) for name in ("one", "four"))
        for role in ("ps", "worker"):
            for index in range(2):
                arguments = (four, role, index, num_examples)
                job.start(f"{role}-{index}", "support.movies_job", "run_member", *arguments)
        config = RunConfig(is_local=True, model_dir=one)
        estimator = Estimator(movies_job.make_model(num_examples), config).train()
        expected = estimator.evaluate()
        job.expect_success()
        config = RunConfig(is_local=True, model_dir=four)
        found = Estimator(movies_job.make_model(num_examples), config).evaluate()
        assert found["global_step"] == expected["global_step"]
        # The bar. What is learned at all is far from 0.5.
        assert expected["click_auc"] > 0.85
        assert abs(found["click_auc"] - expected["click_auc"]) < 0.005


class TestEnd:
    def test_chief_with_few_steps_waits_for_a_worker_that_is_still_starting(self, settings, job):
        for role, index in (("ps", 0), ("ps", 1), ("worker", 0)):
            counting.start_member(job, settings, role, index)
        chief = job.members[-1]
        chief.wait_for_log("the chief waits for workers [1] to finish")
        counting.start_member(job, settings, "worker", 1)
        job.expect_success()
        check_counts(settings.model_dir, 50)

    def test_pushes_that_wait_are_in_the_last_checkpoint(self, settings, job):
        # With queues, each worker ends with gradients of its last batch that are not pushed yet.
        counting.start_job(job, settings, num_batches=2)
        job.expect_success()
        check_counts(settings.model_dir, 2)

    def test_chief_does_not_wait_for_ever(self, settings, job):
        members = {
            f"{role}-{index}": counting.start_member(
                job, settings, role, index, chief_timeout_secs=1
            )
            for role, index in (("ps", 0), ("ps", 1), ("worker", 0))
        }
        job.expect_success()
        assert "workers [1] have not finished" in members["worker-0"].log
        assert pathlib.Path(settings.model_dir, "checkpoint").exists()
