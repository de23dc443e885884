"""Members that die, fail, refuse, hang or are told to stop; and that none is ever left.

Covers monolith/cluster/local/nursery.py and monolith/cluster/local/processes.py.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from support import small_members
from support.waiting import wait_for

from monolith import errors
from monolith.cluster.local import nursery, processes, supervisor

pytestmark = pytest.mark.distributed

SERVER = [["wait_for", "over"]]


@pytest.fixture
def run(tmp_path):
    return lambda does, **settings: small_members.launch(tmp_path, does, **settings)


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start(tmp_path, does):
    """Starts a launcher as a process of its own."""
    return subprocess.Popen(
        [sys.executable, small_members.__file__, str(tmp_path), json.dumps(does)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(pathlib.Path(small_members.__file__).parents[1])},
    )


def read_pid(path):
    wait_for(lambda: path.exists() and path.read_text())
    return int(path.read_text())


class TestOutcome:
    def test_it_ends_with_its_chief(self, run):
        does = {
            "ps 0": SERVER,
            "chief": [["tell", "figures", {"step": 3}], ["touch", "over"]],
            "worker 1": [],
        }
        outcome, log, display = run(does)
        assert (outcome.code, outcome.message, outcome.num_restarts) == (0, "", 0)
        assert sorted(log.splitlines()) == [
            "chief    | chief is here",
            "ps 0     | ps 0 is here",
            "worker 1 | worker 1 is here",
        ]
        assert display.reports == [("chief", {"step": 3})]
        assert display.is_closed

    def test_members_that_are_killed_are_started_again(self, run):
        does = {
            "ps 0": [["once", "ps-died", "die"], *SERVER],
            "chief": [
                ["wait_for", "worker-died"],
                ["once", "chief-died", "die", signal.SIGSEGV],
                ["wait_for", "ps-died"],
                ["wait_for", "worker-done"],
                ["touch", "over"],
            ],
            "worker 1": [["once", "worker-died", "die"], ["touch", "worker-done"]],
        }
        outcome, log, _ = run(does)
        assert (outcome.code, outcome.num_restarts) == (0, 3)
        assert "chief was killed by SIGSEGV; starting it again (restart" in log
        assert "worker 1 was killed by SIGKILL; starting it again" in log

    def test_a_limit_of_restarts(self, run):
        does = {"ps 0": [["die"]], "chief": [["save_on_signal", "saved"]]}
        outcome, log, _ = run(does, max_restarts=2)
        assert outcome.code == 1
        assert outcome.message.startswith(
            "Ps 0 was killed by SIGKILL, and members were started again 2 times already"
        )
        assert log.count("starting it again") == 2

    def test_who_refuses_is_not_started_again(self, run):
        does = {
            "ps 0": SERVER,
            "chief": [["sleep"]],
            "worker 1": [["tell", "refused", "No."], ["exit", 1]],
        }
        outcome, log, _ = run(does)
        assert (outcome.code, outcome.message, outcome.is_refused) == (1, "No.", True)
        assert "starting it again" not in log

    def test_a_chief_that_fails_ends_the_job_and_a_worker_does_not(self, run):
        does = {
            "ps 0": SERVER,
            "chief": [["wait_for", "again"], ["tell", "failed", "Oh."], ["exit", 1]],
            "worker 1": [["once", "failed", "fail"], ["touch", "again"], ["sleep"]],
        }
        outcome, log, _ = run(does)
        assert (outcome.code, outcome.message, outcome.num_restarts) == (1, "Oh.", 1)
        assert "worker 1 has ended with" in log

    def test_a_chief_that_somebody_stops(self, run, tmp_path):
        does = {"chief": [["touch", "over"], ["exit", 143]], "ps 0": SERVER}
        outcome, _, _ = run(does)
        assert outcome.code == 143
        assert outcome.message.startswith("The chief was stopped by SIGTERM")

    @pytest.mark.parametrize(
        ("code", "ends_with"), [(200, 200), (-1, 255), (137, 137), (1000, 232)]
    )
    def test_a_chief_that_ends_with_a_code_of_its_own(self, run, code, ends_with):
        outcome, _, _ = run({"chief": [["leave", code]]})
        assert (outcome.code, outcome.received) == (1, None)
        assert outcome.message == f"The chief has ended with {ends_with}."

    def test_a_chief_that_leaves_with_a_text(self, run):
        outcome, log, _ = run({"chief": [["leave", "No such file."]]})
        assert (outcome.code, outcome.message) == (1, "The chief has ended with 1.")
        assert "chief | No such file." in log.splitlines()

    def test_a_chief_that_leaves_with_nothing_to_say(self, run):
        outcome, _, _ = run({"chief": [["leave"]]})
        assert (outcome.code, outcome.message) == (0, "")

    def test_forgotten_servers_and_deaf_workers_are_ended(self, run, monkeypatch):
        monkeypatch.setattr(supervisor, "_FAILED_GRACE_SEC", 0.3)
        monkeypatch.setattr(supervisor, "_SERVER_GRACE_SEC", 0.1)
        monkeypatch.setattr(supervisor, "_KILL_AFTER_SEC", 0.3)
        deaf = [["ignore_signals", "told"], ["sleep"]]
        outcome, _, _ = run({"ps 0": deaf, "chief": [], "worker 1": deaf})
        assert outcome.code == 0


class TestSignals:
    def test_the_first_one_saves_once(self, tmp_path):
        does = {"ps 0": SERVER, "chief": [["save_on_signal", "saved"]]}
        launcher = start(tmp_path, does)
        wait_for((tmp_path / "saved-ready").exists)
        launcher.send_signal(signal.SIGINT)
        output, _ = launcher.communicate(timeout=60)
        assert launcher.returncode == 130
        assert (tmp_path / "saved").read_text() == "saved\n"
        assert "SIGINT: the members stop and save" in output
        assert "SIGINT has stopped the job." in output

    def test_the_second_one_ends_at_once(self, tmp_path):
        deaf = [["ignore_signals", "told"], ["touch", "ready"], ["sleep"]]
        launcher = start(tmp_path, {"chief": deaf})
        pid = read_pid(tmp_path / "ready")
        launcher.send_signal(signal.SIGTERM)
        wait_for((tmp_path / "told").exists)  # Signals that nobody has looked at yet are one.
        assert is_alive(pid)
        launcher.send_signal(signal.SIGTERM)
        output, _ = launcher.communicate(timeout=60)
        assert launcher.returncode == 143
        assert "once more: ending all members at once" in output
        assert not is_alive(pid)


class TestNobodyIsLeft:
    @pytest.mark.parametrize("who", ["launcher", "nursery"])
    def test_after_a_kill(self, tmp_path, who):
        does = {
            "ps 0": [["touch", "ps"], *SERVER],
            "chief": [["fork_twice", "orphan"], ["touch", "chief"], ["sleep"]],
        }
        launcher = start(tmp_path, does)
        pids = {name: read_pid(tmp_path / name) for name in ("ps", "chief", "orphan")}
        stat = pathlib.Path(f"/proc/{pids['chief']}/stat").read_text()
        parent = int(stat.rpartition(")")[2].split()[1])
        os.kill(launcher.pid if who == "launcher" else parent, signal.SIGKILL)
        output, _ = launcher.communicate(timeout=60)
        if who == "nursery":
            assert launcher.returncode == 1
            assert "The process from which the members are started has ended with -9" in output
            os.kill(pids.pop("orphan"), signal.SIGKILL)
        wait_for(lambda: not any(is_alive(pid) for pid in [parent, *pids.values()]))

    def test_at_the_end(self, run, tmp_path):
        others = set(nursery.find_descendants())  # A forkserver of earlier tests, perhaps.
        outcome, _, _ = run({"chief": [["fork_twice", "orphan"]]})
        assert outcome.code == 0
        assert not is_alive(read_pid(tmp_path / "orphan"))
        assert set(nursery.find_descendants()) <= others

    def test_what_the_program_had_started_before_is_left_alone(self):
        sleep = ["sh", "-c", "sleep 600 & echo $!; wait"]
        with subprocess.Popen(sleep, stdout=subprocess.PIPE, text=True) as before:
            below = int(before.stdout.readline())
            with supervisor.leaving_nothing():
                # One that leaves its group and its parent, too.
                independent = ["setsid", "-f", "sh", "-c", "echo $$; exec sleep 600"]
                inside = subprocess.Popen(independent, stdout=subprocess.PIPE, text=True)
                pid = int(inside.stdout.readline())
                assert is_alive(pid)
            inside.stdout.close()
            assert not is_alive(pid)
            assert before.poll() is None
            assert is_alive(below)
            before.kill()
            os.kill(below, signal.SIGKILL)


class TestNursery:
    def test_a_module_that_cannot_be_imported(self, capfd):
        with processes.Nursery(["no_such_module"]) as made:
            with pytest.raises(processes.NurseryLostError, match="has ended with 1"):
                made.wait(30)
            assert "No module named 'no_such_module'" in capfd.readouterr().err

    def test_what_is_given_and_what_is_not(self, monkeypatch, capfd):
        monkeypatch.setenv("TF_CONFIG", "{}")
        call = "monolith.cluster.local.processes", "_say"
        with processes.Nursery([], {"A": "b"}, without=["TF_CONFIG"]) as made:
            assert made.wait(30) == processes.Ready()
            environment = pathlib.Path(f"/proc/{made._process.pid}/environ").read_bytes()
            with pytest.raises(errors.ConfigError, match="more than 1048576; pass less"):
                made.start(*call, {"word": "x" * (1 << 20)})
        assert b"A=b" in environment
        assert b"TF_CONFIG" not in environment
