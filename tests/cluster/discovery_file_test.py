"""Discovery through files: atomic, and without the dead."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from monolith import errors
from monolith.cluster import discovery, heartbeat
from monolith.cluster.discovery import FileServiceDiscovery


@pytest.fixture
def base(tmp_path):
    return tmp_path / "job"


@pytest.fixture
def make(base):
    """Makes discoveries of one job, as if each were in a process of its own."""
    made = []

    def make(**kwargs):
        made.append(FileServiceDiscovery(str(base), **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("FileDiscovery")]


def age(path, seconds):
    """Makes a file look as if nobody had touched it for `seconds`."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_register_query_deregister(make, base):
    ours, theirs = make(), make()
    assert ours.query("ps") == {}
    ours.register("ps", 0, "127.0.0.1:1000")
    theirs.register("ps", 1, "[::1]:1001")
    theirs.register("worker", 0, "127.0.0.1:1002")
    # The format of the seed: a file per index that holds the address.
    assert (base / "ps" / "0").read_text() == "127.0.0.1:1000"
    for each in (ours, theirs):
        assert each.query("ps") == {0: "127.0.0.1:1000", 1: "[::1]:1001"}
        assert each.query("worker") == {0: "127.0.0.1:1002"}
    ours.deregister("ps", 0, "127.0.0.1:1000")
    assert theirs.query("ps") == {1: "[::1]:1001"}
    ours.deregister("ps", 0, "127.0.0.1:1000")  # twice does no harm


def test_historical_name():
    assert discovery.HostServiceDiscovery is FileServiceDiscovery


def test_files_written_by_others_count(make, base):
    """A process of the original writes the file and never touches it again."""
    (base / "ps").mkdir(parents=True)
    (base / "ps" / "3").write_text("127.0.0.1:1000\n")
    assert make().query("ps") == {3: "127.0.0.1:1000"}
    age(base / "ps" / "3", 1e6)
    assert make().query("ps") == {}
    assert make(stale_after_secs=None).query("ps") == {3: "127.0.0.1:1000"}


def test_registering_again_replaces(make):
    ours = make()
    ours.register("ps", 0, "127.0.0.1:1000")
    ours.register("ps", 0, "127.0.0.1:1001")
    assert ours.query("ps") == {0: "127.0.0.1:1001"}


def test_close_takes_back_what_was_registered(make, base):
    ours, theirs = make(), make()
    ours.register("ps", 0, "127.0.0.1:1000")
    theirs.register("ps", 1, "127.0.0.1:1001")
    ours.close()
    ours.close()
    assert theirs.query("ps") == {1: "127.0.0.1:1001"}


def test_stale_entries_do_not_count(make, base, caplog):
    (base / "ps").mkdir(parents=True)
    (base / "ps" / "0").write_text("127.0.0.1:1000")
    ours = make(stale_after_secs=60)
    age(base / "ps" / "0", 50)
    assert ours.query("ps") == {0: "127.0.0.1:1000"}
    age(base / "ps" / "0", 70)
    assert ours.query("ps") == {}
    assert ours.query("ps") == {}
    assert caplog.text.count("127.0.0.1:1000 has been silent") == 1


def test_living_process_stays_fresh(make, base, eventually):
    ours, theirs = make(stale_after_secs=2), make(stale_after_secs=2)
    ours.register("ps", 0, "127.0.0.1:1000")
    age(base / "ps" / "0", 3600)
    eventually(lambda: theirs.query("ps") == {0: "127.0.0.1:1000"})


def test_vanished_file_comes_back(make, base, eventually, caplog):
    ours = make(stale_after_secs=0.2)
    ours.register("ps", 0, "127.0.0.1:1000")
    (base / "ps" / "0").unlink()
    eventually(lambda: ours.query("ps") == {0: "127.0.0.1:1000"})
    assert "ps 0 at 127.0.0.1:1000 had lost its file" in caplog.text


def test_two_processes_claim_one_index(make, eventually, caplog):
    """The newer registration holds, and both sides say so."""
    first, second = make(stale_after_secs=0.2), make(stale_after_secs=0.2)
    first.register("ps", 0, "127.0.0.1:1000")
    second.register("ps", 0, "127.0.0.1:2000")
    assert "ps 0 was registered at 127.0.0.1:1000 and is now at 127.0.0.1:2000" in caplog.text
    eventually(lambda: "ps 0 at 127.0.0.1:1000 is replaced by a newer" in caplog.text)
    first.close()
    assert second.query("ps") == {0: "127.0.0.1:2000"}


@pytest.mark.parametrize("ends_well", [True, False])
def test_place_comes_back_when_who_took_it_is_gone(make, base, eventually, ends_well):
    first, second = make(stale_after_secs=0.2), make(stale_after_secs=0.2)
    first.register("ps", 0, "127.0.0.1:1000")
    second.register("ps", 0, "127.0.0.1:2000")
    if ends_well:
        second.close()
    else:
        heartbeat.stop((second._token, "ps", 0))  # Its file stays, and nobody touches it.
    eventually(lambda: first.query("ps") == {0: "127.0.0.1:1000"})


@pytest.mark.parametrize("content", ["", "127.0.0.1", "127.0.0.1:99999", "\xff\xfe"])
def test_damaged_files_are_ignored(make, base, content, caplog):
    (base / "ps").mkdir(parents=True)
    (base / "ps" / "0").write_bytes(content.encode("latin-1"))
    (base / "ps" / "1").write_text("127.0.0.1:1001")
    ours = make()
    assert ours.query("ps") == {1: "127.0.0.1:1001"}
    assert ours.query("ps") == {1: "127.0.0.1:1001"}
    assert caplog.text.count(f"ignoring {base / 'ps' / '0'}: Invalid addr") == 1


def test_other_files_are_ignored(make, base):
    (base / "ps").mkdir(parents=True)
    for name in ("README", ".0-abc.tmp", "-1", "1.5", "\u0663"):
        (base / "ps" / name).write_text("127.0.0.1:1000")
    assert make().query("ps") == {}


def test_readers_never_see_half_a_file(make, base):
    """Many rewrites of one entry, while another process reads it as fast as it can."""
    long_host = "h" * 200
    addrs = {f"{long_host}:1000", "short:2000"}
    writer, reader = make(stale_after_secs=None), make()
    writer.register("ps", 0, "short:2000")
    seen, done = set(), threading.Event()

    def read():
        while not done.is_set():
            seen.update(reader.query("ps").values())

    thread = threading.Thread(target=read)
    thread.start()
    for i in range(300):
        writer.register("ps", 0, sorted(addrs)[i % 2])
    done.set()
    thread.join()
    assert seen <= addrs
    assert sorted(os.listdir(base / "ps")) == ["0"]


def test_malformed_registrations(make, base):
    ours = make()
    for name, index, addr in (
        ("ps", 0, "127.0.0.1"),
        ("ps", -1, "127.0.0.1:1"),
        ("ps", True, "127.0.0.1:1"),
        ("../ps", 0, "127.0.0.1:1"),
    ):
        with pytest.raises(errors.ConfigError):
            ours.register(name, index, addr)
    assert not base.exists()


def test_senseless_settings():
    with pytest.raises(errors.ConfigError, match="base_path must be a directory"):
        FileServiceDiscovery("")
    with pytest.raises(errors.ConfigError, match="must be positive, or None for never, got 0"):
        FileServiceDiscovery("x", stale_after_secs=0)


def test_directory_that_is_a_file(tmp_path):
    (tmp_path / "job").write_text("")
    ours = FileServiceDiscovery(str(tmp_path / "job"))
    with pytest.raises(OSError, match="job"):
        ours.register("ps", 0, "127.0.0.1:1")
    with pytest.raises(OSError, match="job"):
        ours.query("ps")


_PROGRAM = textwrap.dedent(
    """
    import sys
    from monolith.cluster.discovery_file import FileServiceDiscovery
    base, index, addr, stale_after_secs = sys.argv[1:]
    discovery = FileServiceDiscovery(base, stale_after_secs=float(stale_after_secs))
    discovery.register("ps", int(index), addr)
    print("registered", flush=True)
    sys.stdin.read()
    """
)


@pytest.fixture
def start_process(base):
    processes = []

    def start(index, addr, stale_after_secs):
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, base, str(index), addr, str(stale_after_secs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout.readline() == "registered\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.mark.distributed
def test_killed_process_leaves_and_its_successor_is_seen(make, start_process, eventually):
    stale_after_secs = 1.0
    ours = make(stale_after_secs=stale_after_secs)
    ours.register("ps", 0, "127.0.0.1:1000")
    victim = start_process(1, "127.0.0.1:1001", stale_after_secs)
    both = {0: "127.0.0.1:1000", 1: "127.0.0.1:1001"}
    eventually(lambda: ours.query("ps") == both)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    eventually(lambda: ours.query("ps") == {0: "127.0.0.1:1000"})
    start_process(1, "127.0.0.1:2001", stale_after_secs)
    eventually(lambda: ours.query("ps") == both | {1: "127.0.0.1:2001"})


def test_interpreter_exits_without_close(start_process):
    process = start_process(0, "127.0.0.1:1000", 3600)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_disk_that_goes_away_and_comes_back(make, base, tmp_path, eventually, caplog):
    ours = make(stale_after_secs=0.2)
    ours.register("ps", 0, "127.0.0.1:1000")
    # As with a dead mount, every access fails.
    base.rename(tmp_path / "elsewhere")
    base.write_text("in the way")
    eventually(lambda: "FileDiscovery-ps-0 failed" in caplog.text)
    base.unlink()
    (tmp_path / "elsewhere").rename(base)
    eventually(lambda: ours.query("ps") == {0: "127.0.0.1:1000"})
