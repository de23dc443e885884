"""What docs/scaling.md says is what was measured. Covers benchmarks/scaling.py."""

import json
import pathlib

from benchmarks import scaling

PAGE = pathlib.Path(scaling.__file__).parents[1] / "docs" / "scaling.md"


def test_the_page_has_the_figures_of_the_last_measurement():
    measured = json.loads(scaling.MEASURED.read_text())
    lines = "\n".join(scaling.describe(measured, rows=1e11, examples_per_sec=1e7)).splitlines()
    page = PAGE.read_text()
    missing = [line for line in lines if line not in page]
    assert not missing, "Run `python -m benchmarks.scaling`, and put what it prints there."


def test_the_measured_jobs_are_predicted_within_a_quarter():
    measured = json.loads(scaling.MEASURED.read_text())
    constants = scaling.read_constants(measured)
    for point in measured["points"][:3]:
        predicted = constants.predict_on_one_machine(point["servers"])
        assert abs(predicted / point["examples_per_sec"] - 1) < 0.25, point


def test_a_job_is_as_fast_as_what_ends_it_first():
    constants = scaling.Constants(
        batch=1000,
        cores=2,
        busy=1.0,
        worker_cores=1.0,
        worker_sec=0.01,
        worker_sec_per_server=0.001,
        server_sec=0.002,
        server_sec_per_server=0.001,
        step_bytes=1e6,
        row_bytes=100.0,
    )
    few = scaling.predict(constants, servers=10, workers=2, rows=1e9)
    # 10 + 10 ms for a step of 1000 examples: 50,000 per second and worker.
    assert (few.examples_per_sec, few.limit) == (100_000, "CPU of the workers")
    assert few.row_bytes_per_server == 1e10
    many = scaling.predict(constants, servers=10, workers=10_000, rows=1e9)
    # 0.2 + 1 ms of a server for a step of anybody, and it has 32 cores.
    assert many.limit == "CPU of the servers"
    assert round(many.examples_per_sec) == round(1000 * scaling.CORES / 0.0012)
