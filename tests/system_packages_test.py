"""`tools/system_packages.sh`: what `make test` brings, and what its last line says is missing."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = ROOT / "tools" / "system_packages.sh"
COMPLETE = (
    "usr/include/gtest/gtest.h",
    "usr/include/benchmark/benchmark.h",
    "usr/share/java/zookeeper.jar",
    "usr/bin/zsh",
)


class Machine:
    """A system with some files, its user, and an apt-get that writes down what it is asked."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._system = directory / "system"
        self._bin = directory / "bin"
        self._bin.mkdir()
        self._log = directory / "apt.log"
        (self._bin / "bash").symlink_to("/bin/bash")
        self.set_user(1000)

    def add(self, *names: str) -> None:
        for name in names:
            path = self._system / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def set_user(self, number: int) -> None:
        self._write("id", f"echo {number}")

    def add_apt(self, code: int = 0) -> None:
        self._write("apt-get", f'echo "$@" >>"{self._log}"; exit {code}')

    def run(self, *arguments: str) -> str:
        environment = {"PATH": str(self._bin), "SYSTEM_ROOT": str(self._system)}
        return subprocess.check_output(
            [SCRIPT, *arguments], env=environment, text=True, stderr=subprocess.STDOUT
        )

    @property
    def asked(self) -> str:
        """What apt-get was asked for."""
        return self._log.read_text() if self._log.exists() else ""

    def _write(self, name: str, program: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/bash\n{program}\n")
        path.chmod(0o755)


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def test_root_gets_what_is_missing_and_nothing_else(machine):
    machine.set_user(0)
    machine.add_apt()
    machine.add(COMPLETE[1], COMPLETE[3])
    assert machine.run() == "Installing libgtest-dev zookeeper for the tests\n"
    updated, installed = machine.asked.splitlines()
    assert updated.startswith("update ")
    assert installed.startswith("install --yes --no-install-recommends libgtest-dev zookeeper ")


def test_a_failure_of_apt_is_told_and_is_no_failure(machine):
    machine.set_user(0)
    machine.add_apt(code=100)
    machine.add(*COMPLETE[1:])
    assert machine.run().splitlines() == [
        "Installing libgtest-dev for the tests",
        "Could not install libgtest-dev: the tests that need them are left out",
    ]


@pytest.mark.parametrize("has_apt", [True, False])
def test_nothing_is_installed_for_others(machine, has_apt):
    machine.set_user(1000 if has_apt else 0)
    if has_apt:
        machine.add_apt()
    assert machine.run() == ""
    assert machine.asked == ""


def test_the_last_line_names_what_was_left_out_and_one_command(machine):
    machine.add_apt()
    assert machine.run("left-out") == (
        "Left out: the C++ tests (googletest), the tests with a real ZooKeeper, the completion in "
        "zsh. To run them, too: sudo apt-get install --yes libgtest-dev zookeeper zsh\n"
    )
    assert machine.asked == ""
    # Benchmarks are no tests: without their library nothing is left out.
    machine.add(COMPLETE[0], *COMPLETE[3:])
    assert machine.run("left-out") == (
        "Left out: the tests with a real ZooKeeper. To run them, too: "
        "sudo apt-get install --yes zookeeper\n"
    )


def test_without_apt_the_names_are_told(machine):
    machine.add(*COMPLETE[1:])
    assert machine.run("left-out") == (
        "Left out: the C++ tests (googletest). To run them, too, install what Debian calls "
        "libgtest-dev\n"
    )


def test_a_complete_run_ends_with_its_summary(machine):
    machine.add(*COMPLETE)
    assert machine.run("left-out") == ""


@pytest.mark.parametrize("code", [0, 1])
def test_make_test_ends_with_that_line_and_the_code_of_the_tests(machine, tmp_path, code):
    """The recipe itself, with a program in the place of pytest."""
    machine.add_apt()
    (tmp_path / "tools").symlink_to(SCRIPT.parent)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/bash\necho 1 passed\nexit {code}\n")
    python.chmod(0o755)
    makefile = (ROOT / "Makefile").read_text()
    recipe = makefile[makefile.index("\ntest: setup test-core\n") :].splitlines()[2]
    (tmp_path / "Makefile").write_text(f"BIN := .\nWORKERS := 2\ntest:\n{recipe}\n")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "SYSTEM_ROOT": str(tmp_path / "system")}
    result = subprocess.run(
        ["make", "test"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (result.returncode == 0) == (code == 0)
    first, last = result.stdout.splitlines()
    assert first == "1 passed"
    assert last.startswith("Left out: the C++ tests (googletest), ")
