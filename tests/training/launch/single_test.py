"""What a scheduler learns from the exit code of a member."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.training.config.run import RunConfig
from monolith.training.distributed.recovery import JobFailedError
from monolith.training.launch import member, single, targets, work
from monolith.training.tables.members import NodeAliveCheckerError


@pytest.fixture
def take_part(monkeypatch, tmp_path):
    """Takes part in a job that ends with an error."""
    config = RunConfig(model_dir=str(tmp_path))
    monkeypatch.setattr(
        targets, "find_work", lambda target: work.TaskWork(model="model", config=config)
    )
    # Would change the logging of the tests.
    monkeypatch.setattr(member, "set_up_logging", lambda level: None)

    def take_part(error):
        def fail(*unused):
            raise error

        monkeypatch.setattr(member, "take_part", fail)
        single.take_part(
            {"target": "jobs:Ranking"},
            role="ps",
            index=0,
            num_ps=1,
            num_workers=1,
            where="file",
        )

    return take_part


def test_job_that_has_ended_before_it_had_finished(take_part, capfd):
    with pytest.raises(SystemExit) as caught:
        take_part(JobFailedError("Ps 0 ends, since the chief was stopped."))
    assert caught.value.code == single.RETRY_EXIT_CODE
    assert capfd.readouterr().err == "monolith: Ps 0 ends, since the chief was stopped.\n"


@pytest.mark.parametrize(
    "error", [NodeAliveCheckerError("ps 1 is gone"), tf.errors.UnavailableError(None, None, "gone")]
)
def test_members_that_were_lost_too_often(take_part, capfd, error):
    with pytest.raises(SystemExit) as caught:
        take_part(error)
    assert caught.value.code == single.RETRY_EXIT_CODE
    assert "gone" in capfd.readouterr().err


def test_what_is_wrong_stays_wrong(take_part):
    with pytest.raises(SystemExit) as caught:
        take_part(ZeroDivisionError("division by zero"))
    assert caught.value.code == 1
    with pytest.raises(errors.ConfigError, match="no such table"):
        take_part(errors.ConfigError("no such table"))


@pytest.mark.parametrize(("error", "code"), [(SystemExit(143), 143), (KeyboardInterrupt(), 130)])
def test_signal(take_part, error, code):
    with pytest.raises(SystemExit) as caught:
        take_part(error)
    assert caught.value.code == code
