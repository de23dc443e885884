"""A save of two ranks in which one cannot write; kills are in tests/integration."""

import json

import pytest
from support import ranks
from support.jobs import Job


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("num_failures", "expected"), [(0, "saved"), (1, "saved"), (2, "not saved")]
)
def test_a_rank_that_cannot_write_fails_the_attempt(tmp_path, num_failures, expected):
    with Job(tmp_path / "logs") as job:
        members = ranks.start(
            job, 2, "save", str(tmp_path), num_failures, module="support.rank_savers"
        )
        job.expect_success()
    leader, follower = (
        json.loads((tmp_path / f"saved-{rank}.json").read_text()) for rank in range(2)
    )
    assert leader["result"] == expected
    assert leader["attempts"] == min(2, 1 + num_failures)
    # The other rank writes in each attempt, and knows at the end how it went.
    assert follower["writes"] == min(2, 1 + num_failures)
    assert follower["is_told"] is (expected == "saved")
    assert (tmp_path / "model" / "checkpoint").exists() is (expected == "saved")
    if num_failures:
        assert "Rank 1 could not write its part of step 1" in members[0].log
        assert "no space here" in members[1].log
