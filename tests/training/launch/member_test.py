"""The settings of a member; tests/integration/launch_test.py starts real ones."""

import json

import pytest

from monolith.training.config.run import RunConfig
from monolith.training.distributed.recovery import JobFailedError
from monolith.training.launch import member, work
from monolith.training.runner import RunnerConfig


def make_config(config, **part):
    part = {"role": "ps", "index": 1, "num_ps": 2, "num_workers": 3, "model_dir": "m", **part}
    return member.make_config(work.TaskWork(model="model", config=config), member.Part(**part))


def test_what_the_process_is():
    conf = make_config(RunConfig(num_ps=9, is_local=True), run="r")
    assert (conf.server_type, conf.index, conf.is_local) == ("ps", 1, False)
    assert (conf.num_ps, conf.num_workers, conf.model_dir, conf.uuid) == (2, 3, "m", "r")


@pytest.mark.parametrize("kind", [RunConfig, RunnerConfig])
@pytest.mark.parametrize(("given", "expected"), [(None, True), (True, True), (False, False)])
def test_servers_that_live_keep_what_they_have_unless_the_settings_say_no(kind, given, expected):
    assert make_config(kind(partial_recovery=given)).partial_recovery is expected


def test_workers_that_do_steps_together_go_back_together():
    together = {"enable_sync_training": True, "enable_partial_sync_training": True}
    assert not make_config(RunnerConfig(**together)).partial_recovery


@pytest.mark.parametrize(
    ("given", "num_threads", "expected"),
    [
        ({}, None, (8, 16)),
        ({}, 2, (2, 4)),
        ({}, 64, (8, 16)),
        ({"intra_op_parallelism_threads": 1}, 4, (1, 8)),
        ({"inter_op_parallelism_threads": 3}, 4, (4, 3)),
    ],
)
def test_threads_that_the_settings_name_stay(given, num_threads, expected):
    conf = make_config(RunnerConfig(**given), num_threads=num_threads)
    found = conf.intra_op_parallelism_threads, conf.inter_op_parallelism_threads
    assert found == expected


def test_the_launcher_counts_how_often_a_worker_goes_on():
    conf = make_config(RunConfig(), max_retries=0)
    assert (conf.max_retry_times, conf.retry_wait_in_secs) == (1, 0)
    conf = make_config(RunConfig())
    assert (conf.max_retry_times, conf.retry_wait_in_secs) == (6, 5)


@pytest.mark.parametrize(("role", "code", "told"), [("ps", 0, []), ("worker", 1, ["failed"])])
def test_launcher_hears_from_workers_alone_that_the_chief_has_ended(
    monkeypatch, tmp_path, role, code, told
):
    def take_part(*unused):
        raise JobFailedError("The chief has failed.")

    task = work.TaskWork(model="model", config=RunConfig())
    monkeypatch.setattr(member, "prepare", lambda process: None)
    monkeypatch.setattr(member, "_find_work", lambda target, given: task)
    monkeypatch.setattr(member, "take_part", take_part)
    arguments = {
        "part": {"role": role, "index": 1, "num_ps": 2, "num_workers": 2, "model_dir": "m"},
        "process": {},
        "target": None,
        "discovery": str(tmp_path / "discovery"),
    }
    with open(tmp_path / "report", "wb") as report:
        assert member.run(arguments, report.fileno(), given=-1) == code
    lines = (tmp_path / "report").read_text().splitlines()
    assert [kind for line in lines for kind in json.loads(line)] == told
