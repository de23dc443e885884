"""Servers that wait to be dismissed, and the chief that does it; in this process, and in others."""

import os
import signal
import socket
import threading
import time

import pytest
import tensorflow as tf
from support import jobs

from monolith import errors
from monolith.cluster import heartbeat, members
from monolith.cluster.members import MemberConflictError, Membership, MemberState
from monolith.native import logging_ops
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import server
from monolith.training.distributed.recovery import JobFailedError
from monolith.training.hooks import server_health

pytestmark = pytest.mark.usefixtures("graph_mode")


@pytest.fixture(scope="module")
def tf_servers():
    """Two servers, of which the first is that of the chief."""
    return [tf.distribute.Server({"local": ["127.0.0.1:0"]}) for _ in range(2)]


def get_addr(tf_server):
    return tf_server.target.removeprefix("grpc://")


def dismiss(tf_servers, addrs, chief="", end=MemberState.FINISHED):
    cluster = {"chief": [get_addr(tf_servers[0])], "worker": [], "ps": addrs}
    task = {"type": "chief", "index": 0}
    server.dismiss_servers(tf_servers[0].target, cluster, task, len(addrs), chief, end)


def test_dismissal(tf_servers, caplog):
    waits = threading.Thread(target=server.wait_for_dismissal, args=(tf_servers[1].target, 0))
    waits.start()
    dismiss(tf_servers, [get_addr(tf_servers[1])])
    waits.join(jobs.PATIENCE_SEC)
    assert not waits.is_alive()
    assert "could not" not in caplog.text


def test_only_its_own_chief_dismisses_a_server(tf_servers, tmp_path, caplog):
    member = Membership(str(tmp_path), "ps", 5, get_addr(tf_servers[1]))
    chief = Membership(str(tmp_path), "worker", 0, get_addr(tf_servers[0]))
    chief.join()
    waits = threading.Thread(
        target=server.wait_for_dismissal, args=(tf_servers[1].target, 5, member)
    )
    waits.start()
    addrs = [get_addr(tf_servers[0])] * 5 + [get_addr(tf_servers[1])]
    try:
        # One that this chief has replaced, or that of another model directory.
        dismiss(tf_servers, addrs, "other")
        deadline_sec = time.monotonic() + jobs.PATIENCE_SEC
        while "ps 5 stays: a chief has dismissed it that is not its own" not in caplog.text:
            assert time.monotonic() < deadline_sec
            time.sleep(0.01)
        assert waits.is_alive()
        dismiss(tf_servers, addrs, chief.record.incarnation)
        waits.join(jobs.PATIENCE_SEC)
        assert not waits.is_alive()
    finally:
        heartbeat._stop_all()


@pytest.mark.parametrize(
    ("end", "how"), [(MemberState.STOPPED, "was stopped"), (MemberState.FAILED, "has failed")]
)
def test_dismissal_before_the_job_has_finished(tf_servers, end, how):
    addrs = [get_addr(tf_servers[0])] * 6 + [get_addr(tf_servers[1])]
    dismiss(tf_servers, addrs, end=end)
    with pytest.raises(JobFailedError) as caught:
        server.wait_for_dismissal(tf_servers[1].target, 6)
    assert str(caught.value) == (
        f"Ps 6 ends, since the chief {how}; start the job again, it goes on from its last "
        "checkpoint."
    )


def test_server_that_is_gone_does_not_hold_up_others(tf_servers, caplog):
    waits = threading.Thread(target=server.wait_for_dismissal, args=(tf_servers[1].target, 1))
    waits.start()
    with socket.socket() as skt:
        skt.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{skt.getsockname()[1]}"
        dismiss(tf_servers, [gone, get_addr(tf_servers[1])])
    waits.join(jobs.PATIENCE_SEC)
    assert not waits.is_alive()
    assert f"ps 0 at {gone} could not be dismissed: nobody listens there" in caplog.text


def test_server_that_does_not_answer(tf_servers, caplog, monkeypatch):
    monkeypatch.setattr(server, "_DISMISS_TIMEOUT_SEC", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        dismiss(tf_servers, [f"127.0.0.1:{frozen.getsockname()[1]}"])
    assert "could not be dismissed" in caplog.text


def test_place_that_is_taken_ends_a_server(tf_servers, tmp_path, monkeypatch):
    monkeypatch.setattr(members, "BEAT_SEC", 0.02)
    member = Membership(str(tmp_path), "ps", 7, "a:1")
    member.join()
    try:
        other = Membership(str(tmp_path), "ps", 7, "b:1")
        other._write()
        with pytest.raises(MemberConflictError, match=r"^Ps 7 at a:1 gives way"):
            server.wait_for_dismissal(tf_servers[1].target, 7, member)
    finally:
        heartbeat._stop_all()


class TestChiefEnd:
    @pytest.fixture(autouse=True)
    def _stop_heartbeats(self):
        yield
        heartbeat._stop_all()

    def test_chief_of_an_earlier_job_does_not_count(self, tmp_path):
        end = server.ChiefEnd(str(tmp_path))
        assert end() is None
        chief = Membership(str(tmp_path), "worker", 0, "a:1")
        chief.join()
        chief.leave(MemberState.FINISHED)
        assert end() is None
        chief = Membership(str(tmp_path), "worker", 0, "a:1")
        chief.join()
        assert end() is None
        chief.leave(MemberState.FAILED)
        assert end() is MemberState.FAILED

    def test_forgotten_server_leaves(self, tf_servers, monkeypatch, caplog):
        monkeypatch.setattr(server, "FORGOTTEN_AFTER_SEC", 0.1)
        monkeypatch.setattr(server, "_LOOK_SEC", 0.01)
        over = MemberState.FINISHED
        answers = iter([None, over, None, *[over] * 1000])
        server.wait_for_dismissal(tf_servers[1].target, 9, find_end=lambda: next(answers))
        assert "ps 9 leaves: the job is over" in caplog.text

    def test_forgotten_server_of_a_job_that_has_not_finished(self, tf_servers, monkeypatch):
        monkeypatch.setattr(server, "FORGOTTEN_AFTER_SEC", 0.1)
        monkeypatch.setattr(server, "_LOOK_SEC", 0.01)
        with pytest.raises(JobFailedError, match="Ps 10 ends, since the chief was stopped"):
            server.wait_for_dismissal(
                tf_servers[1].target, 10, find_end=lambda: MemberState.STOPPED
            )


class TestChiefWait:
    def test_none_comes(self, tf_servers, tmp_path, monkeypatch, caplog):
        caplog.set_level("INFO")
        monkeypatch.setattr(server, "_LOOK_SEC", 0.01)
        member = Membership(str(tmp_path), "ps", 3, "a:1")
        check = server.ChiefWait(member, 0.5)
        with pytest.raises(errors.ConfigError) as caught:
            server.wait_for_dismissal(tf_servers[1].target, 30, checks=[check])
        sentence = (
            f"Ps 3 waits for the chief, of which there is no sign in {tmp_path}/members, a "
            "directory that all members must share"
        )
        assert str(caught.value) == (
            f"{sentence}; none has come in 0.5 s (`session_creation_timeout_secs`)."
        )
        assert caplog.text.count(f"{sentence}. (waited 0 s)") == 1

    def test_one_has_come(self, tmp_path, caplog):
        caplog.set_level("INFO")
        check = server.ChiefWait(Membership(str(tmp_path), "ps", 3, "a:1"), 0)
        chief = Membership(str(tmp_path), "worker", 0, "c:1")
        chief.join()
        check()
        chief.leave(MemberState.FAILED)
        check()  # Whether it is over, others say.
        assert "waits for the chief" not in caplog.text


class TestSignals:
    def start(self, tmp_path, job, is_over=False, grace_sec=60.0):
        member = job.start("ps", "support.waiting_server", "run", is_over, grace_sec)
        member.wait_for_log("waits")
        return member

    def test_stays_for_the_chief_until_the_second_one(self, tmp_path):
        with jobs.Job(tmp_path) as job:
            member = self.start(tmp_path, job)
            member.send(signal.SIGTERM)
            member.wait_for_log("SIGTERM: ps 0 stays up to 60 s, for the chief to save")
            assert member.is_alive
            member.send(signal.SIGTERM)
            assert member.wait() == 128 + signal.SIGTERM

    def test_goes_when_the_job_is_over(self, tmp_path):
        with jobs.Job(tmp_path) as job:
            member = self.start(tmp_path, job, is_over=True)
            member.send(signal.SIGINT)
            assert member.wait() == 128 + signal.SIGINT

    def test_alone_it_goes_when_the_chief_has_saved(self, tf_servers, tmp_path, monkeypatch):
        monkeypatch.setattr(server, "_LOOK_SEC", 0.01)
        member = Membership(str(tmp_path), "ps", 13, get_addr(tf_servers[1]))
        chief = Membership(str(tmp_path), "worker", 0, get_addr(tf_servers[0]))
        member.join()
        chief.join()
        steps = iter([lambda: signal.raise_signal(signal.SIGTERM)])

        def train():
            next(steps, lambda: None)()
            found = members.read_member(str(tmp_path), "ps", 13)
            if found.details.get(server.STOPPING):
                chief.update(details={server.SAVED_FOR: [found.incarnation]})

        try:
            with pytest.raises(SystemExit) as caught:
                server.wait_for_dismissal(tf_servers[1].target, 13, member, checks=[train])
        finally:
            heartbeat._stop_all()
        assert caught.value.code == 128 + signal.SIGTERM

    @pytest.mark.parametrize("end", [MemberState.STOPPED, MemberState.FINISHED])
    def test_dismissed_with_all_others_it_ends_as_told(self, tf_servers, monkeypatch, end):
        monkeypatch.setattr(server, "_LOOK_SEC", 60.0)
        index = 11 if end is MemberState.STOPPED else 12
        addrs = [get_addr(tf_servers[0])] * index + [get_addr(tf_servers[1])]

        def tell_all():
            signal.raise_signal(signal.SIGTERM)
            dismiss(tf_servers, addrs, end=end)

        def wait():
            server.wait_for_dismissal(tf_servers[1].target, index, find_end=tell_all)

        if end is MemberState.FINISHED:
            wait()  # What was to be done is done.
            return
        with pytest.raises(SystemExit) as caught:
            wait()
        assert caught.value.code == 128 + signal.SIGTERM

    def test_goes_after_a_while(self, tmp_path):
        with jobs.Job(tmp_path) as job:
            member = self.start(tmp_path, job, grace_sec=0.1)
            member.send(signal.SIGTERM)
            assert member.wait() == 128 + signal.SIGTERM

    def test_handlers_are_put_back(self):
        before = signal.getsignal(signal.SIGTERM)
        with server._SignalNote() as note:
            os.kill(os.getpid(), signal.SIGTERM)
            assert note.number is signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is before


def test_prepared_server_knows_its_limit(tf_servers):
    config = DistributedCpuTrainingConfig(server_type="ps", index=3)
    server.prepare_server(tf_servers[1].target, config)
    with tf.Graph().as_default(), tf.compat.v1.Session(tf_servers[1].target) as session:
        info = logging_ops.machine_info(
            mem_limit=0, shared_name=server_health.get_ps_machine_info_shared_name(3)
        )
        # What was there first counts: this process is far below the default limit.
        assert session.run(logging_ops.check_machine_health(info)) == b""


def test_workers_are_not_prepared():
    server.prepare_server("grpc://nowhere:1", DistributedCpuTrainingConfig(server_type="worker"))
