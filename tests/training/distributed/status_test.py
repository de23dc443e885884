"""What is known of a job from its records; real processes are in tests/cli/status_test.py."""

import dataclasses
import json
import socket
import time

import pytest

from monolith.cluster import members
from monolith.cluster.members import MemberRecord, MemberState
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.controller import files
from monolith.training.distributed import sizes, status
from monolith.training.distributed.status import JobState

ELSEWHERE = "elsewhere boot pid:[1] 1 2"


def write_record(model_dir, role, index, **changes):
    directory = model_dir / members.DIRECTORY
    directory.mkdir(exist_ok=True)
    record = MemberRecord(
        role=role,
        index=index,
        address="127.0.0.1:1",
        host="other",
        pid=1,
        process=ELSEWHERE,
        incarnation="a",
        started_sec=time.time() - 100,
        beat=1,
        beat_sec=time.time(),
        state=MemberState.RUNNING,
    )
    record = dataclasses.replace(record, **changes)
    (directory / f"{role}-{index}.json").write_text(record.to_json())
    return record


def write_chief(model_dir, **settings):
    told = sizes.describe(DistributedCpuTrainingConfig(num_workers=1, **settings))
    write_record(model_dir, "worker", 0, details={sizes.SIZES: told})


def refuse_to_sleep(seconds):
    raise AssertionError("nobody is silent")


def read(model_dir, sleep=refuse_to_sleep):
    return status.read_status(str(model_dir), sleep=sleep)


def test_members_of_other_machines_that_beat(tmp_path):
    write_record(tmp_path, "ps", 0)
    write_record(tmp_path, "worker", 0, details={"global_step": 7, "secret": 1})
    job = read(tmp_path)
    assert (job.state, job.global_step) == (JobState.RUNNING, 7)
    assert [(m.role, m.index, m.state) for m in job.members] == [
        ("ps", 0, "running"),
        ("chief", 0, "running"),
    ]
    assert job.members[1].facts == {"global_step": 7}
    assert json.loads(json.dumps(job.to_dict()))["state"] == "running"


def test_another_clock_is_not_taken_for_silence(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        late_sec = time.time() - 1000
        write_record(tmp_path, "ps", 0, address=address, beat_sec=late_sec)
        write_record(tmp_path, "worker", 0, address=address, beat_sec=late_sec)

        def beat_once(seconds):
            write_record(tmp_path, "ps", 0, address=address, beat_sec=late_sec + 6, beat=3)

        job = read(tmp_path, sleep=beat_once)
    assert [m.state for m in job.members] == ["running", "silent"]
    assert [m.is_alive for m in job.members] == [True, False]
    assert job.state is JobState.IMPAIRED


def test_dead_members_and_how_far_the_job_went_without_them(tmp_path):
    long_ago_sec = time.time() - 1000
    for index, step in ((0, 90), (1, 60)):
        details = {"global_step": step}
        write_record(tmp_path, "worker", index, beat_sec=long_ago_sec, details=details)
    job = read(tmp_path)
    assert job.state is JobState.DEAD
    assert [(m.state, m.steps_missed) for m in job.members] == [("gone", 0), ("gone", 30)]


@pytest.mark.parametrize(
    ("chief", "expected"),
    [
        (MemberState.FINISHED, JobState.FINISHED),
        (MemberState.STOPPED, JobState.STOPPED),
        (MemberState.FAILED, JobState.FAILED),
    ],
)
def test_job_ends_as_its_chief(tmp_path, chief, expected):
    write_record(tmp_path, "worker", 0, state=chief, message="why")
    write_record(tmp_path, "worker", 1, state=MemberState.FINISHED)
    job = read(tmp_path)
    assert job.state is expected
    assert job.members[0].message == "why"


def test_servers_without_a_chief_are_a_dead_job(tmp_path):
    write_record(tmp_path, "ps", 0, beat_sec=0.0)
    assert read(tmp_path).state is JobState.DEAD


def test_leftovers_of_a_larger_job_do_not_count(tmp_path):
    write_record(tmp_path, "ps", 0)
    write_record(tmp_path, "ps", 1, beat_sec=0.0)
    write_record(tmp_path, "ps", 2)  # Which lives.
    write_chief(tmp_path, num_ps=1)
    write_record(tmp_path, "worker", 1, beat_sec=0.0)
    job = read(tmp_path)
    assert job.state is JobState.RUNNING
    assert [m.is_past for m in job.members] == [False, True, False, False, True]


def test_spare_servers_that_have_died_are_of_this_job(tmp_path):
    for index in range(4):
        write_record(tmp_path, "ps", index, beat_sec=0.0)
    write_chief(tmp_path, num_ps=1, num_extra_ps=1, num_redundant_ps=1)
    job = read(tmp_path)
    assert job.state is JobState.IMPAIRED
    assert [m.is_past for m in job.members] == [False, False, False, True, False]


def test_controller_that_is_gone(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    files.write_address(str(tmp_path), address)
    controller = read(tmp_path).controller
    assert (controller.address, controller.problem) == (address, "nobody answers there")
    assert read(tmp_path).state is JobState.UNKNOWN


def test_address_that_is_none(tmp_path):
    files.write_address(str(tmp_path), "nonsense")
    assert "nonsense" in read(tmp_path).controller.problem


def test_damaged_plan_does_not_hide_the_members(tmp_path):
    write_record(tmp_path, "worker", 0)
    (tmp_path / members.DIRECTORY / "plan.json").write_text("{")
    assert read(tmp_path).state is JobState.RUNNING
