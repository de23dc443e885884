"""Ranks save together, and rank 0 exports the rows of all of them."""

import os

import numpy as np
import pytest
from support import ranks
from support.jobs import Job
from support.serving import call_in_parts
from support.sync_exports import LEARNING_RATE

from monolith.serving import export_state
from monolith.serving.loading import import_saved_model

NUM_RANKS = 2
NUM_STEPS = 2
# Of ids 0, 7 and 3, and of no id.
INPUTS = {"ids": [0, 7, 3], "splits": [0, 1, 2, 3, 3]}
# Each rank has id 0 twice and id 7 once in each batch; all numbers fit into 16 bits.
EXPECTED = np.array([-2, -1, 0, 0]) * NUM_RANKS * NUM_STEPS * LEARNING_RATE


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("graph_mode")
def test_export_when_saving(tmp_path):
    with Job(tmp_path / "logs") as job:
        arguments = (str(tmp_path), NUM_STEPS)
        members = ranks.start(
            job, NUM_RANKS, "train_and_export", *arguments, module="support.sync_exports"
        )
        job.expect_success()
    for member in members:
        assert "Traceback" not in member.log
    # One model with all rows.
    whole = str(tmp_path / "STANDALONE" / "exported_models")
    check_steps(whole)
    with import_saved_model(whole) as infer:
        np.testing.assert_array_equal(infer(INPUTS)["output"][:, 0], EXPECTED)
    # A part for the rows of each rank.
    parts = str(tmp_path / "DISTRIBUTED" / "exported_models")
    assert sorted(os.listdir(parts)) == ["entry", "ps_0", "ps_1"]
    for part in os.listdir(parts):
        check_steps(os.path.join(parts, part))
    (found,) = call_in_parts(parts, NUM_RANKS, INPUTS).values()
    np.testing.assert_array_equal(found[:, 0], EXPECTED)


def check_steps(directory):
    """Fails unless there is an export of each save."""
    entries = export_state.get_export_saver_listener_state(directory).entries
    assert [entry.global_step for entry in entries] == list(range(1, NUM_STEPS + 1))
