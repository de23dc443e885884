"""Which servers take part; a job whose chosen server dies is in tests/integration."""

import pytest

from monolith.cluster import heartbeat, members
from monolith.cluster.members import Membership, MemberState
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import choice, plan, recovery
from monolith.training.distributed.choice import CHOICE
from monolith.training.tables.members import NodeAliveCheckerError

NUM_PS = 2


@pytest.fixture(autouse=True)
def _stop_heartbeats():
    yield
    heartbeat._stop_all()


class Worker:
    """A worker, or the chief, that measures as it was told."""

    def __init__(self, model_dir, index, **details):
        self._model_dir = str(model_dir)
        self._index = index
        details = {plan.RUN: "r", **details}
        self.member = Membership(self._model_dir, "worker", index, "c:1", details=details)
        self.member.join()
        self.num_measured = 0
        self.seen = None  # Of the chief, when a measurement begins.

    def choose(self, *servers, measures=(), look=None):
        """Chooses among servers; measurements end as told. Whenever it waits, it looks."""

        def measure(hooks):
            self.num_measured += 1
            self.seen = members.read_member(self._model_dir, "worker", 0).details
            for hook in hooks:
                hook.after_create_session(None, None)
            return measures() if callable(measures) else measures

        config = DistributedCpuTrainingConfig(
            index=self._index, num_ps=NUM_PS, num_workers=2, model_dir=self._model_dir
        )
        cluster = {"chief": ["c:1"], "worker": [], "ps": list(servers)}
        return choice.choose_servers(
            config, cluster, self.member, measure, sleep=lambda seconds: look()
        )


@pytest.fixture
def chief(tmp_path):
    return Worker(tmp_path, 0)


@pytest.fixture
def worker(tmp_path):
    return Worker(tmp_path, 1)


def raise_lost():
    raise NodeAliveCheckerError("a:1 is unreachable")


def test_worker_takes_over_what_the_chief_has_measured(chief, worker):
    assert chief.choose("a:1", "b:1", "c:1", measures=["c:1", "a:1"]) == ["c:1", "a:1"]
    assert worker.choose("a:1", "b:1", "c:1") == ["c:1", "a:1"]
    # Another attempt with the same servers.
    assert chief.choose("a:1", "b:1", "c:1") == ["c:1", "a:1"]
    assert (chief.num_measured, worker.num_measured) == (1, 0)


def test_worker_does_not_go_on_with_a_server_that_has_moved(chief, worker):
    chief.choose("a:1", "b:1", "c:1", measures=["c:1", "a:1"])
    # The chief has not noticed yet; then it has, and the worker has not.
    with pytest.raises(NodeAliveCheckerError, match="trains with a:1, which this worker does not"):
        worker.choose("x:1", "b:1", "c:1")
    assert chief.choose("x:1", "b:1", "c:1") == ["c:1", "x:1"]
    with pytest.raises(NodeAliveCheckerError, match="trains with x:1, which"):
        worker.choose("a:1", "b:1", "c:1")
    assert worker.choose("x:1", "b:1", "c:1") == ["c:1", "x:1"]
    assert chief.num_measured == 1


def test_chief_measures_anew_when_nobody_is_left(chief, worker):
    chief.choose("a:1", "b:1", "c:1", measures=["a:1", "b:1"])
    assert chief.choose("x:1", "y:1", "c:1", measures=["c:1", "x:1"]) == ["c:1", "x:1"]
    assert CHOICE not in chief.seen
    assert worker.choose("x:1", "y:1", "c:1") == ["c:1", "x:1"]


def test_worker_helps_once_in_each_measurement(chief, worker):
    servers = ["a:1", "b:1", "c:1"]
    seen = []

    def look():
        seen.append(worker.num_measured)
        if len(seen) == 2:
            begin()  # The first one has failed.
        elif len(seen) == 4:
            chief.choose(*servers, measures=["a:1", "b:1"])

    def begin():
        with pytest.raises(NodeAliveCheckerError):
            chief.choose(*servers, measures=raise_lost)

    begin()
    assert worker.choose(*servers, measures=["none:1"], look=look) == ["a:1", "b:1"]
    assert seen == [1, 1, 2, 2]


def test_measurement_that_has_failed_is_over_until_the_chief_is_ready_again(chief):
    with pytest.raises(NodeAliveCheckerError):
        chief.choose("a:1", "b:1", "c:1", measures=raise_lost)
    assert "measuring" in chief.member.record.details
    chief.choose("a:1", "b:1", "c:1", measures=["a:1", "b:1"])
    assert "measuring" not in chief.seen
    assert "measuring" not in chief.member.record.details


def test_helper_that_has_failed_helps_again(chief, worker):
    servers = ["a:1", "b:1", "c:1"]
    with pytest.raises(NodeAliveCheckerError):
        chief.choose(*servers, measures=raise_lost)
    with pytest.raises(NodeAliveCheckerError):
        worker.choose(*servers, measures=raise_lost)

    def look():
        chief.choose(*servers, measures=["a:1", "b:1"])

    assert worker.choose(*servers, measures=["none:1"], look=look) == ["a:1", "b:1"]
    assert worker.num_measured == 2


@pytest.mark.parametrize("state", [None, MemberState.FAILED, MemberState.STOPPED])
def test_chief_that_takes_the_place_of_another_keeps_to_its_choice(chief, tmp_path, state):
    chief.choose("a:1", "b:1", "c:1", measures=["c:1", "a:1"])
    if state is not None:
        chief.member.leave(state)
    successor = Worker(tmp_path, 0, **inherit(tmp_path))
    assert successor.choose("a:1", "x:1", "c:1") == ["c:1", "a:1"]
    assert successor.num_measured == 0


def test_the_next_job_measures(chief, tmp_path):
    assert inherit(tmp_path) == {}
    chief.choose("a:1", "b:1", "c:1", measures=["c:1", "a:1"])
    chief.member.leave(MemberState.FINISHED)
    assert inherit(tmp_path) == {}


@pytest.mark.parametrize("servers", [["a:1", "b:1", "c:1", "d:1"], ["a:1", "b:1"]])
def test_choice_among_another_number(chief, servers):
    chief.choose("a:1", "b:1", "c:1", measures=["c:1", "a:1"])
    assert chief.choose(*servers, measures=["b:1", "a:1"]) == ["b:1", "a:1"]


def test_worker_whose_chief_is_gone(worker, monkeypatch):
    monkeypatch.setattr(members, "is_refused", lambda address: address == "c:1")
    with pytest.raises(NodeAliveCheckerError, match="the chief at c:1 is unreachable"):
        worker.choose("a:1", "b:1", "c:1")


def test_worker_whose_chief_has_finished(chief, worker):
    chief.choose("a:1", "b:1", "c:1", measures=["c:1", "a:1"])
    chief.member.leave(MemberState.FINISHED)
    with pytest.raises(recovery.JobIsOver):
        worker.choose("a:1", "b:1", "c:1")


def inherit(model_dir):
    return choice.inherit(str(model_dir))
