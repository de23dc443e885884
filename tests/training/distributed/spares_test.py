"""Who takes the place of a server that is gone; tests with processes are those of recovery."""

import contextlib
import socket

import pytest

from monolith import errors
from monolith.cluster import heartbeat, manager, members
from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.cluster.members import MemberConflictError, Membership, MemberState
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import plan, recovery, spares


@pytest.fixture(autouse=True)
def _stop_heartbeats():
    yield
    heartbeat._stop_all()


class Job:
    """A job with a list of two servers, of which any may live."""

    def __init__(self, directory, stack):
        self.model_dir = str(directory / "model")
        self.discovery = FileServiceDiscovery(str(directory / "meet"), stale_after_secs=None)
        stack.callback(self.discovery.close)
        self._stack = stack
        self.path = manager._get_ps_cluster_file_name(self.model_dir, "")

    def open_address(self):
        """Returns an address at which somebody listens."""
        server = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        return f"127.0.0.1:{server.getsockname()[1]}"

    def start_server(self, index, address=None):
        """Returns the address of a server that lives."""
        address = address or self.open_address()
        Membership(self.model_dir, "ps", index, address).join()
        self.discovery.register("ps", index, address)
        return address

    def list_servers(self, *addrs):
        manager._save_ps_cluster_to_file(self.path, addrs)

    def read_list(self):
        return manager._read_ps_cluster_file(self.path, None)[0]

    def start_worker(self, index):
        worker = Membership(self.model_dir, "worker", index, f"w:{index + 1}")
        worker.join()
        return worker

    def settle(self, index=0, member=None, discovery=None, **settings):
        values = {"num_ps": 2, "num_redundant_ps": 1, "num_workers": 2, **settings}
        config = DistributedCpuTrainingConfig(index=index, model_dir=self.model_dir, **values)
        spares.settle(config, discovery or self.discovery, member or self.start_worker(index))


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(manager, "_cluster_query_failure_handler", lambda: None)
    with contextlib.ExitStack() as stack:
        yield Job(tmp_path, stack)


def find_closed_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_one_that_is_gone_is_replaced_where_it_stood(job):
    gone = find_closed_address()
    stays, free = job.start_server(1), job.start_server(2)
    job.list_servers(gone, stays)
    job.settle()
    assert job.read_list() == [free, stays]


def test_the_list_of_an_earlier_run(job):
    job.list_servers(find_closed_address(), find_closed_address())
    started = [job.start_server(index) for index in range(3)]
    job.settle()
    assert job.read_list() == started[:2]


def test_a_port_that_is_of_somebody_else_by_now(job):
    stays, free = job.start_server(0), job.start_server(2)
    job.list_servers(stays, job.open_address())
    job.settle()
    assert job.read_list() == [stays, free]


def test_those_that_live_stay_whoever_is_free(job):
    both = [job.start_server(0), job.start_server(2)]
    job.start_server(1)
    job.list_servers(*both)
    job.settle()
    assert job.read_list() == both


def test_one_whose_connections_are_cut_stays(job, monkeypatch):
    both = [job.start_server(0), job.start_server(1)]
    job.start_server(2)
    job.list_servers(*both)
    monkeypatch.setattr(members, "is_reachable", lambda address: address != both[0])
    job.settle()
    assert job.read_list() == both


def test_one_whose_machine_has_vanished(job, monkeypatch):
    both = [job.start_server(0), job.start_server(1)]
    free = job.start_server(2)
    job.list_servers(*both)
    monkeypatch.setattr(members, "is_reachable", lambda address: address != both[0])
    monkeypatch.setattr(spares.liveness, "look", lambda *_: spares.Life.SILENT)
    job.settle()
    assert job.read_list() == [free, both[1]]


def test_worker_waits_for_the_chief_and_writes_nothing(job, monkeypatch):
    gone, stays = find_closed_address(), job.start_server(1)
    free = job.start_server(2)
    job.list_servers(gone, stays)
    seen = []

    def wait():
        seen.append(job.read_list())
        if len(seen) == 3:
            job.list_servers(free, stays)

    monkeypatch.setattr(manager, "_cluster_query_failure_handler", wait)
    job.settle(index=1)
    assert seen == [[gone, stays]] * 3


def test_nobody_is_free_until_the_successor_comes(job, monkeypatch, caplog):
    caplog.set_level("INFO")
    gone, stays = find_closed_address(), job.start_server(1)
    job.list_servers(gone, stays)
    started = []
    monkeypatch.setattr(
        manager, "_cluster_query_failure_handler", lambda: started.append(job.start_server(0))
    )
    job.settle()
    assert job.read_list() == [started[0], stays]
    assert f"Waiting for parameter servers in the place of {gone}; looking in" in caplog.text


def test_the_wait_has_an_end(job):
    gone, stays = find_closed_address(), job.start_server(1)
    job.list_servers(gone, stays)
    with pytest.raises(errors.ConfigError, match=rf"in the place of {gone}; .*come in 0 s"):
        job.settle(session_creation_timeout_secs=0)


def test_the_wait_ends_with_the_job(job):
    job.list_servers(find_closed_address(), job.start_server(1))
    chief = Membership(job.model_dir, "worker", 0, "c:1", details={plan.RUN: "r"})
    chief.join()
    worker = Membership(job.model_dir, "worker", 1, "w:1", details={plan.RUN: "r"})
    worker.join()
    chief.leave(MemberState.FINISHED)
    with pytest.raises(recovery.JobIsOver):
        job.settle(index=1, member=worker)


def test_the_wait_of_a_chief_that_was_replaced(job):
    job.list_servers(find_closed_address(), job.start_server(1))

    class Replaced:
        record = job.start_worker(0).record
        superseded_by = record

    with pytest.raises(MemberConflictError):
        job.settle(member=Replaced())


def test_a_discovery_that_does_not_answer(job):
    class Away(FileServiceDiscovery):
        def query(self, name):
            raise OSError("no such disk")

    both = [job.start_server(0), job.start_server(1)]
    job.list_servers(*both)
    with contextlib.closing(Away(job.model_dir)) as away:
        job.settle(discovery=away)
    assert job.read_list() == both


@pytest.mark.parametrize("settings", [{"num_redundant_ps": 0}, {"num_ps": 0}, {"num_ps": 3}])
def test_without_a_list(job, settings):
    gone = find_closed_address()
    job.list_servers(gone, gone)
    job.settle(**settings)
    assert job.read_list() == [gone, gone]
