"""Inputs of ranks end together, begin again together, and may be empty for some of them."""

import numpy as np
import pytest
from support import ranks, sync_models
from support.jobs import Job

from monolith.graph import collectives

pytestmark = pytest.mark.distributed

NUM_TIMES = 2
# Batches of each rank.
CASES = {"uneven": [4, 2], "nothing_for_rank_0": [0, 3]}


@pytest.mark.slow
def test_a_training_after_the_end_begins_at_the_beginning(tmp_path):
    """And a rank that has nothing trains nothing."""
    with Job(tmp_path / "logs") as job:
        arguments = (str(tmp_path), CASES, NUM_TIMES)
        members = ranks.start(job, 2, "train_again", *arguments, module="support.sync_inputs")
        job.expect_success()
    # No step is counted in which no rank has a batch.
    steps = {"uneven": [4, 8], "nothing_for_rank_0": [3, 6]}
    assert ranks.read_all(tmp_path, "steps", 2) == [steps] * 2
    for member in members:
        assert member.log.count("was saved after its last batch") == 2
    # Of the examples, which ranks have in turns, those of rank 1.
    users = sync_models.make_examples(3)["user"][1::2]
    collectives.init()
    try:
        estimator = sync_models.make_estimator(
            tmp_path / "nothing_for_rank_0", "adagrad", sync=False
        )
        rows = np.array(sync_models.describe(estimator)["rows"])[:, :4]
    finally:
        collectives.shutdown()
    # Rows begin with zeros.
    assert np.flatnonzero(np.abs(rows).max(1)).tolist() == sorted(set(users))


def test_inputs_that_are_all_empty_are_an_error(tmp_path):
    with Job(tmp_path / "logs") as job:
        ranks.start(job, 2, "train_on_nothing", str(tmp_path), module="support.sync_inputs")
        job.expect_success()
    for problem in ranks.read_all(tmp_path, "problem", 2):
        assert problem.startswith("Nothing was trained: the input ended before its first batch.")
    assert not list((tmp_path / "model").glob("model.ckpt-*"))
