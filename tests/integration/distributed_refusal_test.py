"""Members that do not fit into a job end with one sentence and a code, and the job goes on."""

import socket

import numpy as np
import pytest
from support import counting, jobs

from monolith.training.distributed import status

pytestmark = [pytest.mark.distributed, pytest.mark.usefixtures("graph_mode")]


@pytest.fixture
def job(tmp_path):
    with jobs.Job(tmp_path / "logs") as job:
        yield job


def expect_refusal(member, error, *parts):
    assert member.wait() == 1
    # The last line of the trace, which is all that most people read.
    last = member.log.strip().splitlines()[-1]
    assert last.startswith(error), member.tail()
    for part in parts:
        assert part in last


def test_wrong_members_do_not_disturb_the_others(tmp_path, job):
    settings = counting.Settings(model_dir=str(tmp_path / "model"), num_ps=1, num_batches=20)
    for role in ("ps", "worker"):
        counting.start_member(job, settings, role, 0)
    chief = job.members[-1]
    chief.wait_for_log("the chief waits for workers [1] to finish")

    second_chief = counting.start_member(job, settings, "worker", 0, name="second-chief")
    expect_refusal(
        second_chief,
        "monolith.cluster.members.MemberConflictError: Worker 0, the chief, of this model",
        f"is running already: process {chief.pid} on",
    )
    other_features = counting.start_member(job, settings, "worker", 1, name="features", dims=3)
    expect_refusal(
        other_features,
        "monolith.errors.ConfigError: Worker 1 does not fit the job in",
        "feature 'item' is `...dims [2] in",
        "start all members with the same code and settings.",
    )
    other_number = counting.start_member(job, settings, "worker", 1, name="number", native=False)
    expect_refusal(
        other_number,
        "monolith.errors.ConfigError: Worker 1 does not fit the job in",
        "setting 'use_native_multi_hash_table' is `True` at the chief and `False` here",
    )
    beyond = counting.start_member(job, settings, "worker", 2, name="beyond")
    expect_refusal(
        beyond,
        "monolith.errors.ConfigError: `index` of a worker must be in 0..1, since the job has 2",
    )
    more_servers = counting.start_member(job, settings, "worker", 1, name="servers", num_ps=2)
    spare_server = counting.start_member(job, settings, "ps", 1, name="spare", num_ps=2)
    for member, name in ((more_servers, "Worker 1"), (spare_server, "Ps 1")):
        expect_refusal(
            member,
            f"monolith.errors.ConfigError: {name} does not fit the job in {settings.model_dir}: "
            "setting 'num_ps' is `1` at the chief and `2` here; start all members with the same",
        )
    wrong = [second_chief, other_features, other_number, beyond, more_servers, spare_server]
    job.members[:] = [member for member in job.members if member not in wrong]
    counting.start_member(job, settings, "worker", 1)
    job.expect_success()
    counts, _ = counting.read_counts(settings.model_dir)
    for name, expected in counting.count_expected(20).items():
        np.testing.assert_array_equal(counts[name], expected)


def test_job_that_meets_where_another_one_does(tmp_path, job):
    settings = counting.Settings(
        model_dir=str(tmp_path / "model"), num_ps=1, num_workers=1, num_batches=60, step_sec=0.05
    )
    started = counting.start_job(job, settings)
    started["worker-0"].wait_for_log("step 1.")
    other = tmp_path / "other"
    other.mkdir()
    (other / "discovery_dir").symlink_to(tmp_path / "model" / "discovery_dir")
    for role in ("worker", "ps"):
        strayed = counting.start_member(
            job, settings, role, 0, name=f"strayed-{role}", model_dir=str(other)
        )
        expect_refusal(
            strayed,
            "monolith.cluster.members.MemberConflictError: ",
            f"of a job with another model directory than {other} lives at 127.0.0.1:",
            "end that job, or have this one meet elsewhere.",
        )
        job.members.remove(strayed)
    assert started["worker-0"].is_alive
    job.expect_success()
    assert "had lost its file" not in started["worker-0"].log + started["ps-0"].log
    assert counting.read_counts(settings.model_dir)[1] == 60
    # What is told of a job that has finished is how it ended.
    found = status.read_status(settings.model_dir)
    facts = {(member.role, member.index): member.facts for member in found.members}
    assert found.global_step == facts["chief", 0]["steps"] == 60
    assert facts["ps", 0]["rows"] == sum(counting.NUM_IDS.values())


def test_members_that_do_not_see_each_other(tmp_path, job):
    """The model directory, in which they meet, is not shared."""
    for role in ("ps", "worker"):
        model_dir = str(tmp_path / role)
        settings = counting.Settings(
            model_dir=model_dir, num_ps=1, num_workers=1, session_creation_timeout_secs=2
        )
        counting.start_member(job, settings, role, 0)
    server, chief = job.members
    expect_refusal(
        chief,
        "monolith.errors.ConfigError: Waiting for parameter servers, 0 of 1 registered, 1 more "
        f"needed; missing: ps 0; looking in {tmp_path}/worker/discovery_dir/",
        ", a directory that all members must share; nobody has come in 2 s",
    )
    expect_refusal(
        server,
        "monolith.errors.ConfigError: Ps 0 waits for the chief, of which there is no sign in "
        f"{tmp_path}/ps/members, a directory that all members must share; none has come in 2 s",
    )


@pytest.mark.parametrize("name", ["worker-0", "worker-1"])
def test_model_directory_that_is_not_shared(tmp_path, job, name):
    settings = counting.Settings(
        model_dir=str(tmp_path / "model"), num_ps=1, discovery="tf_config", shared_wait_sec=0.5
    )
    members = {
        member: counting.start_member(
            job,
            settings,
            "worker",
            0,
            member,
            tf_config=tf_config,
            model_dir=str(tmp_path / ("other" if member == "ps-0" else "model")),
            # A chief that gives up dismisses the server, which the other worker then waits for.
            shared_wait_sec=settings.shared_wait_sec if member == name else 10 * jobs.PATIENCE_SEC,
        )
        for member, tf_config in counting.plan_tf_config(settings).items()
    }
    expect_refusal(
        members[name],
        "monolith.errors.ConfigError: The parameter server at 127.0.0.1:",
        "lives but has left no record in",
        "all members must have the same model directory, on a disk that they share.",
    )
    if name == "worker-0":
        # The chief has told the server, which it can reach, that it ends.
        expect_refusal(
            members["ps-0"],
            "monolith.training.distributed.recovery.JobFailedError: Ps 0 ends, since the chief has",
            "failed; start the job again, it goes on from its last checkpoint.",
        )


def test_port_in_use(tmp_path, job):
    settings = counting.Settings(
        model_dir=str(tmp_path / "model"), num_ps=1, num_workers=1, discovery="tf_config"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tf_config = (
            f'{{"cluster": {{"ps": ["127.0.0.1:{port}"], "chief": ["127.0.0.1:1"]}}, '
            '"task": {"type": "ps", "index": 0}}'
        )
        member = counting.start_member(job, settings, "ps", 0, tf_config=tf_config)
        expect_refusal(
            member,
            f"monolith.errors.ConfigError: Ps 0 is to listen at 127.0.0.1:{port}, but port {port}",
            "(Address already in use); end the process that has it, or plan another port.",
        )
