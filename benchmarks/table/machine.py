"""The machine: its name, and what its memory allows at most."""

import pathlib
import subprocess

SOURCE = pathlib.Path(__file__).with_name("memory_limit.cc")
SECONDS = 1.0


def cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def available_bytes() -> int:
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable; this benchmark needs Linux.")


def memory_limits(directory: pathlib.Path, rows: int, row_bytes: int) -> list[str]:
    """Returns a line per number of threads; compiles the program that measures on first use."""
    program = directory / "memory_limit"
    if not program.exists() or program.stat().st_mtime < SOURCE.stat().st_mtime:
        subprocess.run(
            ["g++", "-O3", "-std=c++17", "-pthread", str(SOURCE), "-o", str(program)], check=True
        )
    lines = []
    for threads in (1, 2):
        command = [str(program), str(rows), str(row_bytes), str(SECONDS), str(threads)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        reads, updates = answer.split()
        lines.append(
            f"{threads} thread{'s' if threads > 1 else ''}: {reads} million random 64-byte reads, "
            f"{updates} million updates of {row_bytes}-byte rows per second, of {rows:,} rows"
        )
    return lines
