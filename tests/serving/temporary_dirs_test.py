"""What exports that died leave is removed, and nothing else."""

import os
import subprocess
import time

import pytest

from monolith.serving import temporary_dirs

DAY_SEC = 24 * 60 * 60


def make_dir(base, name, age_sec=0.0):
    file = base / name / "assets" / "rows"
    file.parent.mkdir(parents=True)
    file.write_text("rows")
    then = time.time() - age_sec
    for path in (file, file.parent, base / name):
        os.utime(path, (then, then))


def make_name(monkeypatch, pid, version="7"):
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: pid)
        return temporary_dirs.make_name(version)


@pytest.fixture
def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_processes_of_this_machine(tmp_path, monkeypatch, dead_pid):
    living = make_name(monkeypatch, os.getppid())
    dead = make_name(monkeypatch, dead_pid)
    make_dir(tmp_path, living, age_sec=10 * DAY_SEC)
    make_dir(tmp_path, temporary_dirs.make_name("8"), age_sec=10 * DAY_SEC)
    make_dir(tmp_path, dead)
    make_dir(tmp_path, "7")
    temporary_dirs.remove_dead(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(["7", living, temporary_dirs.make_name("8")])


def test_others_go_when_nobody_writes_to_them(tmp_path):
    make_dir(tmp_path, "temp-5", age_sec=2 * DAY_SEC)
    make_dir(tmp_path, "temp-6.elsewhere-1.7", age_sec=2 * DAY_SEC)
    make_dir(tmp_path, "temp-7.elsewhere-1.7")
    make_dir(tmp_path, "temp-8")
    # The directory is old, and a file in it is not.
    make_dir(tmp_path, "temp-9.elsewhere-1.7", age_sec=2 * DAY_SEC)
    (tmp_path / "temp-9.elsewhere-1.7" / "assets" / "rows").write_text("more")
    make_dir(tmp_path, "temporary", age_sec=2 * DAY_SEC)
    temporary_dirs.remove_dead(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == [
        "temp-7.elsewhere-1.7",
        "temp-8",
        "temp-9.elsewhere-1.7",
        "temporary",
    ]


def test_no_directory(tmp_path):
    temporary_dirs.remove_dead(str(tmp_path / "none"))
