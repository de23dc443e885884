"""The short form of `make chaos`: a job that is attacked keeps its promises, and ends by itself.

Faults are made for 25 seconds in each of the two jobs, which with start and end take two minutes of
the suite's twenty; `MONOLITH_CHAOS_SEC=60` makes it two minutes of faults.
"""

import os

import pytest
from chaos import faults, rounds

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.usefixtures("graph_mode")]

SECONDS = float(os.environ.get("MONOLITH_CHAOS_SEC", "25"))


@pytest.mark.parametrize("recovery", rounds.RECOVERIES)
def test_no_update_is_lost_or_made_up(tmp_path, recovery):
    result = rounds.attack_job(
        tmp_path, recovery, seed=3, seconds=SECONDS, mean_gap_sec=4, say=lambda text: None
    )
    assert not result.problems, "\n".join(result.problems)
    assert len(result.outcome.faults) >= 3
    assert len(result.outcome.copies) >= 2
    assert result.findings.num_sent >= result.findings.num_batches


def test_who_is_cut_off():
    """A server from all workers; a worker from whom it asks; the chief, which is both."""
    ends = {place: faults.find_links(place) for place in faults.PLACES}
    assert {client for client, _ in ends["ps", 1]} == set(faults.WORKERS)
    assert {asked for _, asked in ends["worker", 2]} == set(faults.ASKED)
    assert {client for client, _ in ends["worker", 2]} == {("worker", 2)}
    assert len(ends["worker", 0]) == 2 + 2
    planned = [fault for fault, _ in zip(faults.plan(1), range(200), strict=False)]
    disturbed = {fault.role for fault in planned if fault.kind is faults.Kind.CUT}
    assert disturbed == {"chief", "worker", "ps"}
