"""Members that were told different numbers of members; see also the tests with processes."""

import pytest

from monolith import errors
from monolith.cluster import heartbeat
from monolith.cluster.members import Membership
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import sizes


@pytest.fixture(autouse=True)
def _members(tmp_path):
    (tmp_path / "members").mkdir()
    yield
    heartbeat._stop_all()


def make_member(tmp_path, role, index, **settings):
    config = DistributedCpuTrainingConfig(**{"num_ps": 2, "num_workers": 3, **settings})
    details = {sizes.SIZES: sizes.describe(config)}
    return Membership(str(tmp_path), role, index, "a:1", details=details)


@pytest.mark.parametrize(
    ("role", "settings", "difference"),
    [
        ("worker", {}, None),
        ("worker", {"num_ps": 4}, "setting 'num_ps' is `2` at the chief and `4` here"),
        ("worker", {"num_workers": 4}, "setting 'num_workers' is `3` at the chief and `4` here"),
        ("ps", {"num_extra_ps": 1}, "setting 'num_extra_ps' is `0` at the chief and `1` here"),
        ("ps", {"num_workers": 4}, None),
    ],
)
def test_difference_from_a_living_chief(tmp_path, role, settings, difference):
    chief = make_member(tmp_path, "worker", 0)
    chief.join()
    check = sizes.SizeCheck(make_member(tmp_path, role, 1, **settings))
    check()  # It may be dead.
    chief.update()
    if difference is None:
        check()
        return
    with pytest.raises(errors.ConfigError) as caught:
        check()
    name = "Ps 1" if role == "ps" else "Worker 1"
    assert str(caught.value) == (
        f"{name} does not fit the job in {tmp_path}: {difference}; start all members with the same "
        "code and settings."
    )


def test_chief_that_is_silent_does_not_count(tmp_path):
    chief = make_member(tmp_path, "worker", 0, num_ps=7)
    chief._write()
    check = sizes.SizeCheck(make_member(tmp_path, "ps", 1))
    for _ in range(3):
        check()
    # But the next one does, at once.
    make_member(tmp_path, "worker", 0, num_ps=8)._write()
    with pytest.raises(errors.ConfigError, match="`8` at the chief"):
        check()


def test_later_chief_does_not_end_a_server_that_is_in_use(tmp_path):
    chief = make_member(tmp_path, "worker", 0)
    chief._write()
    check = sizes.SizeCheck(make_member(tmp_path, "ps", 1))
    check()
    chief._write()
    check()
    make_member(tmp_path, "worker", 0, num_ps=8)._write()
    check()


def test_chief_that_does_not_say(tmp_path):
    check = sizes.SizeCheck(make_member(tmp_path, "ps", 1))
    chief = Membership(str(tmp_path), "worker", 0, "c:1")
    for _ in range(2):
        chief._write()
        check()
