"""The records of a job's members: who has a place, who is alive, who must give way."""

import json
import os
import signal
import socket
import time

import pytest
from support import jobs

from monolith import errors
from monolith.cluster import heartbeat, members
from monolith.cluster.members import (
    MemberConflictError,
    MemberRecord,
    Membership,
    MemberState,
    read_member,
    read_members,
)


@pytest.fixture(autouse=True)
def _short_times(monkeypatch):
    monkeypatch.setattr(members, "BEAT_SEC", 0.02)
    monkeypatch.setattr(members, "SILENT_AFTER_SEC", 0.3)
    yield
    heartbeat._stop_all()


@pytest.fixture
def listener():
    """An address at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing():
    """An address at which nobody listens."""
    with socket.socket() as skt:
        skt.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{skt.getsockname()[1]}"


@pytest.fixture
def other_process(tmp_path, listener):
    """A process that is the chief of the model directory `tmp_path`, at `listener`."""
    with jobs.Job(tmp_path / "logs") as job:
        arguments = (str(tmp_path), listener, str(tmp_path / "leave"))
        process = job.start("other", "support.places", "hold", *arguments)
        process.wait_for_log("joined")
        yield process


def rewrite(model_dir, role, index, **changes):
    """Writes a record as another process would."""
    path = model_dir / members.DIRECTORY / f"{role}-{index}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class TestRecord:
    def test_round_trip(self):
        record = MemberRecord(
            role="ps",
            index=3,
            address="10.0.0.1:80",
            host="h",
            pid=7,
            process="h b n 7 1",
            incarnation="abc",
            started_sec=1.5,
            beat=9,
            beat_sec=2.5,
            state=MemberState.FAILED,
            message="gone",
            details={"rows": 3, "nested": {"a": [1]}},
        )
        assert MemberRecord.from_json(record.to_json()) == record

    def test_facts_of_a_later_version_are_left_out(self):
        text = Membership("/m", "ps", 0, "a:1").record.to_json()
        later = json.dumps({**json.loads(text), "weather": "fine"})
        assert MemberRecord.from_json(later) == MemberRecord.from_json(text)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "Expecting value"),
            ("[]", "must be a JSON object"),
            ("{}", "None is not a valid MemberState"),
            ('{"state": "asleep"}', "'asleep' is not a valid MemberState"),
            ('{"state": "running"}', "lacks a fact"),
        ],
    )
    def test_text_that_is_no_record_is_refused(self, text, message):
        with pytest.raises(ValueError, match=message):
            MemberRecord.from_json(text)

    def test_names(self):
        assert members.get_name("worker", 0) == "worker 0, the chief,"
        assert members.get_name("worker", 1) == "worker 1"
        assert members.get_name("ps", 0) == "ps 0"


class TestReading:
    def test_nobody(self, tmp_path):
        assert read_members(str(tmp_path)) == []
        assert read_member(str(tmp_path), "ps", 0) is None

    def test_all_in_order(self, tmp_path):
        for role, index in [("worker", 10), ("ps", 2), ("worker", 9), ("ps", 0)]:
            Membership(str(tmp_path), role, index, "a:1").join()
        found = [(record.role, record.index) for record in read_members(str(tmp_path))]
        assert found == [("ps", 0), ("ps", 2), ("worker", 9), ("worker", 10)]

    def test_damaged_and_other_files_are_passed_over(self, tmp_path, caplog):
        Membership(str(tmp_path), "ps", 0, "a:1").join()
        directory = tmp_path / members.DIRECTORY
        (directory / "ps-1.json").write_text('{"role": "ps"')
        (directory / "plan.json").write_text("{}")
        (directory / "notes.txt").write_text("x")
        assert [record.index for record in read_members(str(tmp_path))] == [0]
        assert "ps-1.json" in caplog.text


class TestMembership:
    def test_life_of_a_member(self, tmp_path, eventually):
        member = Membership(str(tmp_path), "ps", 1, "a:1", details={"code": "1"})
        member.join()
        record = read_member(str(tmp_path), "ps", 1)
        assert record.pid == os.getpid()
        assert record.host == socket.gethostname()
        assert (record.state, record.is_active) == (MemberState.STARTING, True)
        member.update(MemberState.RUNNING, "busy", {"rows": 3, "code": None})
        record = read_member(str(tmp_path), "ps", 1)
        assert (record.state, record.message) == (MemberState.RUNNING, "busy")
        assert record.details == {"rows": 3}
        member.note({"rows": 4})
        eventually(lambda: read_member(str(tmp_path), "ps", 1).details == {"rows": 4})
        before = read_member(str(tmp_path), "ps", 1).beat
        eventually(lambda: read_member(str(tmp_path), "ps", 1).beat > before + 2)
        member.leave(MemberState.FINISHED)
        last = read_member(str(tmp_path), "ps", 1)
        assert (last.state, last.is_active) == (MemberState.FINISHED, False)
        time.sleep(5 * members.BEAT_SEC)
        assert read_member(str(tmp_path), "ps", 1) == last

    def test_a_place_that_was_left_is_free(self, tmp_path, listener, other_process):
        (tmp_path / "leave").touch()
        assert other_process.wait() == 0
        Membership(str(tmp_path), "worker", 0, listener).join()

    def test_a_place_whose_process_was_killed_is_free_at_once(
        self, tmp_path, listener, other_process
    ):
        other_process.kill()
        assert read_member(str(tmp_path), "worker", 0).is_active
        Membership(str(tmp_path), "worker", 0, listener).join()

    def test_two_chiefs(self, tmp_path, listener, other_process):
        message = (
            f"^Worker 0, the chief, of this model directory is running already: process "
            f"{other_process.pid} on {socket.gethostname()}, at {listener}. End that process, or "
            "give this one another index or another model directory.$"
        )
        with pytest.raises(MemberConflictError, match=message):
            Membership(str(tmp_path), "worker", 0, "a:1").join()

    def test_a_chief_that_stands_still_keeps_its_place(self, tmp_path, other_process, eventually):
        other_process.send(signal.SIGSTOP)
        eventually(lambda: members._is_stopped(read_member(str(tmp_path), "worker", 0)))
        with pytest.raises(MemberConflictError, match="It is stopped, by SIGSTOP or a debugger"):
            Membership(str(tmp_path), "worker", 0, "a:1").join()

    def test_the_same_process_may_come_again(self, tmp_path):
        first = Membership(str(tmp_path), "worker", 0, "a:1")
        first.join()
        second = Membership(str(tmp_path), "worker", 0, "a:2")
        second.join()
        assert read_member(str(tmp_path), "worker", 0).address == "a:2"

    def test_a_late_beat_of_an_earlier_job_changes_nothing(self, tmp_path, caplog):
        earlier = Membership(str(tmp_path), "worker", 0, "a:1")
        earlier.join()
        Membership(str(tmp_path), "worker", 0, "c:1").join()
        # What a beat does that had begun before the second one joined.
        earlier._beat()
        assert read_member(str(tmp_path), "worker", 0).address == "c:1"
        assert earlier.superseded_by is None
        assert "gives way" not in caplog.text

    def test_who_asks_need_not_wait_for_a_heartbeat(self, tmp_path):
        member = Membership(str(tmp_path), "worker", 0, "a:1")
        member.join()
        assert member.has_place()
        # As after a long sleep: no heartbeat has looked since.
        heartbeat.stop(member._path)
        rewrite(tmp_path, "worker", 0, incarnation="other", address="b:1")
        assert member.superseded_by is None
        assert not member.has_place()
        assert member.superseded_by.address == "b:1"

    def test_a_newer_process_has_the_place(self, tmp_path, eventually, caplog):
        told = []
        member = Membership(str(tmp_path), "worker", 0, "a:1", on_superseded=told.append)
        member.join()
        # As a file system does that was away while another machine took over.
        other = {"incarnation": "other", "address": "b:1", "host": "h", "pid": 9}
        # Again and again, since a heartbeat that is under way may write behind it.
        eventually(lambda: told or rewrite(tmp_path, "worker", 0, **other))
        assert member.superseded_by.address == "b:1"
        assert [record.incarnation for record in told] == ["other"]
        assert "gives way: process 9 on h, at b:1, has taken its place" in caplog.text
        # It writes nothing any more.
        member.update(MemberState.RUNNING, "still here")
        member.leave(MemberState.FINISHED)
        assert read_member(str(tmp_path), "worker", 0).incarnation == "other"

    def test_a_file_that_vanished_is_written_again(self, tmp_path, eventually):
        Membership(str(tmp_path), "ps", 0, "a:1").join()
        (tmp_path / members.DIRECTORY / "ps-0.json").unlink()
        eventually(lambda: read_member(str(tmp_path), "ps", 0))

    def test_directory_that_cannot_be_written(self, tmp_path):
        (tmp_path / "model").write_text("a file")
        with pytest.raises(errors.ConfigError, match=r"^Ps 0 cannot write"):
            Membership(str(tmp_path / "model"), "ps", 0, "a:1").join()

    def test_a_file_system_that_is_away_does_not_end_a_member(self, tmp_path, caplog):
        member = Membership(str(tmp_path), "ps", 0, "a:1")
        member.join()
        heartbeat._stop_all()
        path = tmp_path / members.DIRECTORY
        (path / "ps-0.json").unlink()
        path.rmdir()
        path.write_text("no directory")
        member.update(MemberState.RUNNING)
        assert "could not write" in caplog.text


class TestOtherMachines:
    """Of a process on another machine only its heartbeat tells."""

    def claim_after(self, tmp_path, address):
        Membership(str(tmp_path), "worker", 1, address).join()
        heartbeat._stop_all()
        rewrite(
            tmp_path, "worker", 1, process="elsewhere b n 1 1", incarnation="x", address=address
        )
        return Membership(str(tmp_path), "worker", 1, "a:1")

    def test_silent_one_is_replaced_after_a_while(self, tmp_path, listener):
        member = self.claim_after(tmp_path, listener)
        start_sec = time.monotonic()
        member.join()
        assert time.monotonic() - start_sec >= 0.3

    def test_one_whose_port_is_closed_is_replaced_at_once(self, tmp_path, refusing, monkeypatch):
        monkeypatch.setattr(members, "SILENT_AFTER_SEC", 1000)
        self.claim_after(tmp_path, refusing).join()

    def test_living_one_keeps_its_place(self, tmp_path, listener, monkeypatch):
        monkeypatch.setattr(members, "SILENT_AFTER_SEC", 1000)
        member = self.claim_after(tmp_path, listener)
        monkeypatch.setattr(
            members.time, "sleep", lambda seconds: rewrite(tmp_path, "worker", 1, beat=77)
        )
        with pytest.raises(MemberConflictError, match="running already"):
            member.join()


def test_reachable_and_refused(listener, refusing):
    assert members.is_reachable(listener)
    assert not members.is_refused(listener)
    assert not members.is_reachable(refusing)
    assert members.is_refused(refusing)
    # What cannot be an address says nothing about anybody.
    assert not members.is_reachable("nowhere")
    assert not members.is_refused("nowhere")
