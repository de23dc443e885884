"""`monolith run`: ranks of one machine, by their real processes."""

import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = pytest.mark.distributed

MONOLITH = [sys.executable, "-m", "monolith.cli.app", "run"]


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture
def start():
    started = []

    def start(*args):
        process = subprocess.Popen(
            [*MONOLITH, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_gone(pids):
    deadline_sec = time.monotonic() + 30
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline_sec
        time.sleep(0.05)


def read_pids(process, count):
    return [int(re.search(r"pid (\d+)", process.stdout.readline())[1]) for _ in range(count)]


def test_ranks_know_each_other_and_are_labelled(start, write):
    script = write("""
        import os, sys
        from monolith.graph.rank_links import Links
        from monolith.graph.rank_place import find_place
        place = find_place()
        links = Links(place)
        links.meet()
        everybody = links.gather(place.rank)
        print(place.rank, place.size, place.local_rank, everybody, sys.argv[1:])
        print("no newline", end="", file=sys.stderr)
        links.leave()
    """)
    process = start("-n", "3", script, "--flag", "-n", "7")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert sorted(output.splitlines()) == [
        f"[rank {r}] {r} 3 {r} [0, 1, 2] ['--flag', '-n', '7']" for r in range(3)
    ]
    assert sorted(errors.splitlines()) == [f"[rank {r}] no newline" for r in range(3)]


def test_a_failure_is_told_to_the_others_and_is_the_result(start, write):
    script = write("""
        import atexit, sys, time
        from monolith.graph.rank_links import Links
        from monolith.graph.rank_place import find_place
        links = Links(find_place())
        links.meet()
        atexit.register(links.leave)
        links.gather(1)
        if find_place().rank == 1:
            raise LookupError("no such thing")
        links.gather(2)
    """)
    process = start("-n", "2", script)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "[rank 1] LookupError: no such thing" in errors
    assert re.search(r"\[rank 0\] .*RankLostError: rank 1 \(process \d+ on .+\) is gone", errors)
    assert "it has failed with LookupError: no such thing" in errors
    assert "error: Rank " in errors


def test_who_does_not_end_is_ended_with_all_it_has_started(start, write):
    script = write("""
        import os, signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["MONOLITH_RANK"] == "1":
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGKILL)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        print("pid", os.getpid(), flush=True)
        print("pid", child.pid, flush=True)
        time.sleep(300)
    """)
    process = start("-n", "2", "--grace", "0.1", script)
    pids = read_pids(process, 2)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "error: Rank 1 of 2 was ended by SIGKILL." in errors
    wait_until_gone(pids)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_before_it_meets_the_others_is_named_by_all(start, write, victim):
    script = write(f"""
        import os, signal, time
        from monolith.graph.rank_links import Links
        from monolith.graph.rank_place import find_place
        place = find_place()
        if place.rank == {victim}:
            time.sleep(1)
            print("it goes", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        Links(place).meet()
    """)
    process = start("-n", "3", script)
    assert "it goes" in process.stdout.readline()
    gone_sec = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert time.monotonic() - gone_sec < 10
    assert process.returncode == 128 + signal.SIGKILL
    assert f"error: Rank {victim} of 3 was ended by SIGKILL." in errors
    gone = rf"RankLostError: rank {victim} \(process \d+ on .+\) is gone: it was ended by SIGKILL"
    for rank in {0, 1, 2} - {victim}:
        assert re.search(rf"\[rank {rank}\] .*{gone} before all ranks had met", errors), errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_ranks(start, write, number):
    script = write("""
        import os, signal, sys, time
        for n in (signal.SIGINT, signal.SIGTERM):
            signal.signal(n, lambda n, _: (print("got", n, flush=True), sys.exit(0)))
        print("pid", os.getpid(), flush=True)
        time.sleep(300)
    """)
    process = start("-n", "2", script)
    pids = read_pids(process, 2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert output.count(f"got {int(number)}") == 2
    wait_until_gone(pids)


def test_ranks_do_not_outlive_the_command(start, write):
    script = write("""
        import os, time
        print("pid", os.getpid(), flush=True)
        time.sleep(300)
    """)
    process = start("-n", "2", script)
    pids = read_pids(process, 2)
    process.kill()
    wait_until_gone(pids)


def test_script_that_is_not_there(start):
    process = start("nothing.py")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "error: There is no file 'nothing.py'" in errors


def test_the_environment_of_the_ranks_has_no_listener_left(start, write):
    """What a rank starts itself must not take the ranks' socket for its own."""
    script = write("""
        import os
        from monolith.graph.rank_links import Links
        from monolith.graph.rank_place import find_place
        links = Links(find_place())
        links.meet()
        print("MONOLITH_RANKS_LISTENER" in os.environ)
        links.leave()
    """)
    process = start("-n", "2", script)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert sorted(output.splitlines()) == ["[rank 0] False", "[rank 1] False"]
