"""Members that die, freeze or lose their connections, and a job that goes on."""

import json
import pathlib
import re
import signal
import time

import numpy as np
import pytest
import tensorflow as tf
from support import counting, jobs, proxies

from monolith.cluster import members
from monolith.training.distributed import choice

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("graph_mode")]

NUM_BATCHES = 150


@pytest.fixture
def settings(tmp_path):
    return counting.Settings(
        model_dir=str(tmp_path / "model"), num_batches=NUM_BATCHES, step_sec=0.02, save_steps=20
    )


@pytest.fixture
def job(tmp_path):
    with jobs.Job(tmp_path / "logs") as job:
        yield job


def wait_for_step(settings, step, job):
    """Waits until a checkpoint of at least this step is complete."""
    deadline_sec = time.monotonic() + jobs.PATIENCE_SEC
    while True:
        checkpoint = tf.train.latest_checkpoint(settings.model_dir)
        if checkpoint and int(checkpoint.rpartition("-")[2]) >= step:
            return
        for member in job.members:
            assert member.is_alive or member.wait() == 0, jobs.describe_failure(member)
        assert time.monotonic() < deadline_sec, "\n".join(m.tail() for m in job.members)
        time.sleep(0.02)


def count_sent(started):
    """Returns how many steps the workers have made, those that were lost included."""
    return sum(len(re.findall(r"^step \d+\.$", m.log, re.M)) for m in started if "worker" in m.name)


def check_exact(settings):
    counts, steps = counting.read_counts(settings.model_dir)
    expected = counting.count_expected(NUM_BATCHES)
    for name in expected:
        np.testing.assert_array_equal(counts[name], expected[name], err_msg=name)
    assert steps == NUM_BATCHES


def check_bounds(settings, job, exact_server=None):
    """No update of the input is missing, and there are not more than were sent."""
    counts, _ = counting.read_counts(settings.model_dir)
    expected = counting.count_expected(NUM_BATCHES)
    num_again = count_sent(job.members) - NUM_BATCHES
    for name, first_id in counting.FIRST_ID.items():
        server = (first_id + np.arange(counting.NUM_IDS[name])) % settings.num_ps
        assert (counts[name] >= expected[name]).all(), name
        # A batch has each user at most once, each item at most twice per example.
        assert (counts[name] <= expected[name] + 8 * max(0, num_again)).all(), name
        if exact_server is not None:
            is_there = server == exact_server
            np.testing.assert_array_equal(counts[name][is_there], expected[name][is_there])


class TestServer:
    def test_killed_and_replaced_elsewhere_only_its_shard_is_restored(self, settings, job):
        settings.partial_recovery = True
        started = counting.start_job(job, settings)
        wait_for_step(settings, 40, job)
        started["ps-1"].kill()
        counting.start_member(job, settings, "ps", 1, name="ps-1-again")
        job.members.remove(started["ps-1"])
        job.expect_success()
        chief = started["worker-0"].log
        assert re.search(r"restoring \d+ of \d+ devices", chief)
        assert "restored 1 hash tables" in chief
        # The workers went back to the checkpoint with the shard, which has all updates once.
        check_bounds(settings, job, exact_server=1)

    def test_told_to_end_it_is_saved_before(self, settings, job):
        settings.partial_recovery, settings.save_steps = True, None
        started = counting.start_job(job, settings)
        started["worker-1"].wait_for_log("step 10.")
        started["ps-1"].send(signal.SIGTERM)
        assert started["ps-1"].wait() == 128 + signal.SIGTERM
        # There was no other reason to save.
        (checkpoint,) = tf.train.get_checkpoint_state(settings.model_dir).all_model_checkpoint_paths
        assert int(checkpoint.rpartition("-")[2]) >= 10
        counting.start_member(job, settings, "ps", 1, name="ps-1-again")
        job.members.remove(started["ps-1"])
        job.expect_success()
        assert "restored 1 hash tables" in started["worker-0"].log
        check_bounds(settings, job, exact_server=1)

    def test_killed_and_everything_is_restored(self, settings, job):
        settings.max_retry_times = 3
        started = counting.start_job(job, settings)
        wait_for_step(settings, 40, job)
        started["ps-0"].kill()
        counting.start_member(job, settings, "ps", 0, name="ps-0-again")
        job.members.remove(started["ps-0"])
        job.expect_success()
        check_exact(settings)

    def test_killed_before_the_first_checkpoint_only_its_variables_are_initialized(
        self, settings, job
    ):
        settings.partial_recovery, settings.save_steps = True, None
        started = counting.start_job(job, settings)
        started["worker-1"].wait_for_log("step 10.")
        started["ps-1"].kill()
        counting.start_member(job, settings, "ps", 1, name="ps-1-again")
        job.members.remove(started["ps-1"])
        job.expect_success()
        first, second = re.findall(r"initialized (\d+) of (\d+) variables", started["worker-0"].log)
        assert first[0] == first[1]
        assert 0 < int(second[0]) < int(second[1])
        check_bounds(settings, job, exact_server=1)

    def test_redundant_one_takes_the_place_of_a_killed_one(self, settings, job):
        settings.partial_recovery, settings.num_redundant_ps = True, 1
        # Two of them are taken, by the order of their numbers.
        started = {f"ps-{i}": counting.start_member(job, settings, "ps", i) for i in range(3)}
        addrs = [wait_for_record(settings, "ps", i).address for i in range(3)]
        for index in range(2):
            name = f"worker-{index}"
            started[name] = counting.start_member(job, settings, "worker", index)
        wait_for_step(settings, 40, job)
        started["ps-1"].kill()
        job.members.remove(started["ps-1"])
        job.expect_success()
        chief = started["worker-0"].log
        assert f"the parameter server at {addrs[2]} takes the place of {addrs[1]}" in chief
        assert re.search(r"restoring \d+ of \d+ devices", chief)
        check_bounds(settings, job, exact_server=1)

    def test_one_of_those_that_were_chosen_is_replaced_where_it_stood(self, settings, job):
        settings.partial_recovery, settings.num_extra_ps = True, 1
        started = counting.start_job(job, settings)
        wait_for_step(settings, 40, job)
        chosen = wait_for_record(settings, "worker", 0).details[choice.CHOICE]["servers"]
        servers = [wait_for_record(settings, "ps", index) for index in range(3)]
        (index,) = [server.index for server in servers if server.address == chosen[1]]
        started[f"ps-{index}"].kill()
        counting.start_member(job, settings, "ps", index, name="ps-again")
        job.members.remove(started[f"ps-{index}"])
        job.expect_success()
        chief = started["worker-0"].log
        assert chief.count("chosen parameter servers") == 1
        assert re.search(r"restoring \d+ of \d+ devices", chief)
        check_bounds(settings, job, exact_server=1)

    def test_redundant_ones_of_the_next_run(self, settings, job, tmp_path):
        settings.num_redundant_ps, settings.num_batches, settings.step_sec = 1, 20, 0
        counting.start_job(job, settings)
        job.expect_success()
        with jobs.Job(tmp_path / "next") as following:
            # What the last run has chosen is on the list still.
            members = counting.start_job(following, settings)
            following.expect_success()
        assert members["worker-0"].log.count("takes the place of 127.0.0.1:") == 2
        counts, steps = counting.read_counts(settings.model_dir)
        assert steps == 40
        for name, expected in counting.count_expected(20).items():
            np.testing.assert_array_equal(counts[name], 2 * expected)

    def test_too_many_changes_end_the_job(self, settings, job):
        started = counting.start_job(job, settings)
        wait_for_step(settings, 20, job)
        started["ps-1"].kill()
        counting.start_member(job, settings, "ps", 1, name="ps-1-again")
        assert started["worker-0"].wait() == 1
        assert "`max_retry_times` allows 0" in started["worker-0"].log
        assert started["worker-1"].wait() == 1

    def test_frozen_is_not_dead(self, settings, job):
        started = counting.start_job(job, settings)
        started["worker-1"].wait_for_log("step 10.")
        started["ps-1"].send(signal.SIGSTOP)
        started["worker-0"].wait_for_log("ps 1 at")
        started["worker-0"].wait_for_log("is frozen: it takes connections but has been silent")
        started["ps-1"].send(signal.SIGCONT)
        job.expect_success()
        assert "is back" in started["worker-0"].log
        assert "tries again" not in started["worker-0"].log + started["worker-1"].log
        check_exact(settings)

    def test_frozen_and_replaced_on_another_machine(self, settings, job):
        settings.partial_recovery = True
        started = counting.start_job(job, settings)
        wait_for_step(settings, 40, job)
        frozen = started["ps-1"]
        frozen.send(signal.SIGSTOP)
        again = counting.start_member(
            job, settings, "ps", 1, name="ps-1-again", pretends_other_machine=True
        )
        again.wait_for_log("waiting up to 1.5 s for a sign of life")
        job.members.remove(frozen)
        job.expect_success()
        check_bounds(settings, job, exact_server=1)
        frozen.send(signal.SIGCONT)
        assert frozen.wait() == 1
        assert "gives way: process" in frozen.log


class TestWorkers:
    def test_killed_worker_goes_on_at_its_saved_position(self, settings, job):
        started = counting.start_job(job, settings)
        wait_for_step(settings, 40, job)
        started["worker-1"].kill()
        job.members.remove(started["worker-1"])
        before = len(re.findall(r"step \d+\.", started["worker-0"].log))
        again = counting.start_member(job, settings, "worker", 1, name="worker-1-again")
        again.wait_for_log("session")
        # Nobody waited for it.
        assert "session" in started["worker-0"].log
        assert len(re.findall(r"step \d+\.", started["worker-0"].log)) > before
        assert started["worker-0"].log.count("session\n") == 1
        job.expect_success()
        assert "worker 1 goes on reading its input" in again.log
        job.members.append(started["worker-1"])
        check_bounds(settings, job)

    def test_frozen_worker_does_not_hold_up_saves(self, settings, job):
        started = counting.start_job(job, settings)
        wait_for_step(settings, 20, job)
        started["worker-1"].send(signal.SIGSTOP)
        wait_for_step(settings, 60, job)
        started["worker-1"].send(signal.SIGCONT)
        job.expect_success()
        check_exact(settings)

    def test_killed_chief_and_everything_is_restored(self, settings, job):
        settings.max_retry_times = 3
        started = counting.start_job(job, settings)
        wait_for_step(settings, 40, job)
        started["worker-0"].kill()
        job.members.remove(started["worker-0"])
        counting.start_member(job, settings, "worker", 0, name="worker-0-again")
        job.expect_success()
        check_exact(settings)

    def test_killed_chief_and_servers_keep_what_they_have(self, settings, job):
        settings.partial_recovery = True
        started = counting.start_job(job, settings)
        wait_for_step(settings, 40, job)
        started["worker-0"].kill()
        job.members.remove(started["worker-0"])
        counting.start_member(job, settings, "worker", 0, name="worker-0-again")
        job.expect_success()
        job.members.append(started["worker-0"])
        check_bounds(settings, job)

    def test_frozen_chief_that_wakes_up_leaves_the_job_to_its_successor(self, settings, job):
        settings.partial_recovery = True
        started = counting.start_job(job, settings)
        wait_for_step(settings, 40, job)
        frozen = started["worker-0"]
        frozen.send(signal.SIGSTOP)
        again = counting.start_member(
            job, settings, "worker", 0, name="worker-0-again", pretends_other_machine=True
        )
        again.wait_for_log("step 5.")
        frozen.send(signal.SIGCONT)
        assert frozen.wait() == 1
        assert "gives way: process" in frozen.log
        assert "the servers stay, since the job has another chief" in frozen.log
        job.members.remove(frozen)
        job.expect_success()
        job.members.append(frozen)
        check_bounds(settings, job)

    def test_worker_that_has_finished_is_not_waited_for_by_a_new_chief(self, settings, job):
        settings.max_retry_times = 3
        settings.step_sec = 0.05
        # The second worker has nothing to read, and ends before the first step is done.
        settings.files = [
            write_numbers(settings, range(4 * NUM_BATCHES)),
            write_numbers(settings, []),
        ]
        started = counting.start_job(job, settings)
        assert started["worker-1"].wait() == 0
        wait_for_step(settings, 40, job)
        started["worker-0"].kill()
        job.members.remove(started["worker-0"])
        counting.start_member(job, settings, "worker", 0, name="worker-0-again")
        job.expect_success()
        check_exact(settings)


class TestSignals:
    def test_job_that_is_told_to_end_is_saved(self, settings, job):
        settings.save_steps = None
        started = counting.start_job(job, settings)
        started["worker-1"].wait_for_log("step 10.")
        # As a scheduler does it: all at once, the servers, too, which must wait for the chief.
        for member in started.values():
            member.send(signal.SIGTERM)
        codes = {name: member.wait() for name, member in started.items()}
        assert codes == dict.fromkeys(started, 128 + signal.SIGTERM)
        counts, steps = counting.read_counts(settings.model_dir)
        # Everything that was trained is there.
        assert steps == count_sent(job.members)
        assert sum(counts["user"]) == 4 * steps

    def test_chief_alone_is_told_to_end_and_all_are_started_again(self, settings, job, tmp_path):
        settings.save_steps = None
        # The chief does not wait until the others have read everything.
        started = counting.start_job(job, settings, chief_timeout_secs=0, step_sec=0.2)
        started["worker-1"].wait_for_log("step 5.")
        started["worker-0"].send(signal.SIGTERM)
        assert started.pop("worker-0").wait() == 128 + signal.SIGTERM
        for name, member in started.items():
            # What makes a scheduler start it again.
            assert member.wait() == 1
            what = re.escape(name.replace("-", " ").capitalize())
            assert re.search(rf"JobFailedError: {what} ends, since the chief", member.tail())
            assert "was stopped; start the job again" in member.tail()
        with jobs.Job(tmp_path / "again") as again:
            counting.start_job(again, settings)
            again.expect_success()
        check_exact(settings)


class TestConnections:
    @pytest.fixture
    def proxied(self, settings, job, tmp_path):
        """The members of a job whose workers reach server 1 through a proxy, and the proxy."""
        settings.proxies = str(tmp_path / "proxies.json")
        pathlib.Path(settings.proxies).write_text("{}")
        started = {f"ps-{i}": counting.start_member(job, settings, "ps", i) for i in range(2)}
        addrs = [wait_for_record(settings, "ps", i).address for i in range(2)]
        with proxies.Proxy(addrs[1]) as proxy:
            instead = {addrs[0]: addrs[0], addrs[1]: proxy.address}
            pathlib.Path(settings.proxies).write_text(json.dumps(instead))
            for index in range(2):
                name = f"worker-{index}"
                started[name] = counting.start_member(job, settings, "worker", index)
            yield started, proxy

    def test_network_that_loses_everything_for_a_while(self, settings, job, proxied):
        started, proxy = proxied
        started["worker-1"].wait_for_log("step 10.")
        proxy.stall()
        time.sleep(2 * settings.silent_sec)
        proxy.flow()
        job.expect_success()
        assert "tries again" not in started["worker-0"].log + started["worker-1"].log
        check_exact(settings)

    def test_connections_that_are_cut_for_ten_seconds(self, settings, job, proxied):
        started, proxy = proxied
        wait_for_step(settings, 40, job)
        proxy.cut()
        for index in range(2):
            started[f"worker-{index}"].wait_for_log("has lost a member and tries again")
        time.sleep(10)
        proxy.mend()
        job.expect_success()
        # Of the same members, which does not count as a try; everything was restored.
        check_exact(settings)


def wait_for_record(settings, role, index):
    deadline_sec = time.monotonic() + jobs.PATIENCE_SEC
    while (record := members.read_member(settings.model_dir, role, index)) is None:
        assert time.monotonic() < deadline_sec
        time.sleep(0.02)
    return record


def write_numbers(settings, numbers):
    """Writes a file with one number per line; returns its path."""
    directory = pathlib.Path(settings.model_dir).parent
    path = directory / f"numbers-{len(list(directory.glob('numbers-*')))}"
    path.write_text("".join(f"{number}\n" for number in numbers))
    return str(path)
