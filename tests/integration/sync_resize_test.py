"""Another number of ranks goes on from a checkpoint, and trains as one process does."""

import json
import shutil

import numpy as np
import pytest
from support import ranks, sync_models
from support.jobs import Job

from monolith.graph import collectives

NUM_BATCHES = 3


def train(tmp_path, size):
    """Trains in a job of its own; returns what the ranks have learned then."""
    with Job(tmp_path / f"logs{size}") as job:
        arguments = (str(tmp_path), ["adagrad"], NUM_BATCHES)
        ranks.start(job, size, "train_from", *arguments, module="support.sync_models")
        job.expect_success()
    return json.loads((tmp_path / "adagrad-0.json").read_text())


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
def test_another_number_of_ranks_goes_on(tmp_path, before, after):
    """It begins the data anew, which it divides in another way; one process is the measure."""
    first = train(tmp_path, before)
    shutil.copytree(tmp_path / "adagrad", tmp_path / "alone")
    found = train(tmp_path, after)
    collectives.init()
    try:
        alone = sync_models.make_estimator(tmp_path / "alone", "adagrad", sync=False)
        alone.train(sync_models.Data(NUM_BATCHES))
        expected = sync_models.describe(alone)
    finally:
        collectives.shutdown()
    np.testing.assert_allclose(found["rows"], expected["rows"], atol=1e-5)
    assert found["dense"].keys() == expected["dense"].keys()
    for name, values in expected["dense"].items():
        np.testing.assert_allclose(found["dense"][name], values, atol=1e-5, err_msg=name)
    # Something has been learned meanwhile.
    assert np.abs(np.subtract(found["rows"], first["rows"])).max() > 0.01
