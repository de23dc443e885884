"""The short form of `make chaos`: a job that is attacked keeps its promises, and ends by itself."""

import pytest
from chaos import rounds

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.usefixtures("graph_mode")]


@pytest.mark.parametrize("recovery", rounds.RECOVERIES)
def test_no_update_is_lost_or_made_up(tmp_path, recovery):
    result = rounds.attack_job(
        tmp_path, recovery, seed=3, seconds=25, mean_gap_sec=4, say=lambda text: None
    )
    assert not result.problems, "\n".join(result.problems)
    assert len(result.outcome.faults) >= 3
    assert len(result.outcome.copies) >= 2
    assert result.findings.num_sent >= result.findings.num_batches
