"""Ranks train as one process does, their checkpoints are anybody's, and a dead rank is no loss.

`MONOLITH_SYNC_KILLS=50` kills a random rank fifty times; the short form is in the suite.
"""

import json
import os
import random
import shutil
import time

import numpy as np
import pytest
import tensorflow as tf
from support import ranks, sync_models
from support.jobs import PATIENCE_SEC, Job

from monolith.checkpoint import failpoints, manifest
from monolith.graph import collectives

NUM_STEPS = 50
ENDLESS = 20000
OPTIMIZERS = ("sgd", "adagrad")


def start(job, size, function, *args):
    return ranks.start(job, size, function, *args, module="support.sync_models")


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """The checkpoints of a process that has trained on one batch, and what it is after more."""
    base = tmp_path_factory.mktemp("base")
    collectives.init()
    try:
        expected = {}
        for optimizer in OPTIMIZERS:
            first = sync_models.make_estimator(base / optimizer, optimizer, sync=False)
            first.train(sync_models.Data(1))
            copied = tmp_path_factory.mktemp("whole") / optimizer
            shutil.copytree(base / optimizer, copied)
            whole = sync_models.make_estimator(copied, optimizer, sync=False)
            whole.train(sync_models.Data(NUM_STEPS))
            expected[optimizer] = sync_models.describe(whole)
    finally:
        collectives.shutdown()
    return base, expected


def assert_same(found, expected):
    np.testing.assert_allclose(found["rows"], expected["rows"], atol=1e-5)
    assert found["dense"].keys() == expected["dense"].keys()
    assert found["dense"]
    for name, values in expected["dense"].items():
        np.testing.assert_allclose(found["dense"][name], values, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_train_as_one_process_does(tmp_path, one_process, size):
    """They also start from its checkpoint, and it reads theirs."""
    base, expected = one_process
    shutil.copytree(base, tmp_path / "ranks")
    with Job(tmp_path / "logs") as job:
        start(job, size, "train_from", str(tmp_path / "ranks"), OPTIMIZERS, NUM_STEPS)
        job.expect_success()
    for optimizer in OPTIMIZERS:
        found = json.loads((tmp_path / "ranks" / f"{optimizer}-0.json").read_text())
        assert_same(found, expected[optimizer])
        # Something has been learned, so that it means something to be equal.
        assert np.abs(found["rows"]).max() > 0.01
    model_dir = tmp_path / "ranks" / "adagrad"
    prefix = tf.train.latest_checkpoint(str(model_dir))
    assert prefix.endswith(f"-{1 + NUM_STEPS}")
    files = {path.name for path in (model_dir / f"{os.path.basename(prefix)}.assets").iterdir()}
    for rank in range(size):
        assert any(name.startswith(f"MonolithMultiHashTable_{rank}-") for name in files), files
        assert f"input_worker_{rank}" in files
    # Parameter servers, of another number, read what ranks have written; no step changes them.
    servers = sync_models.make_estimator(model_dir, "adagrad", sync=False, num_ps=4)
    collectives.init()
    try:
        assert_same(sync_models.describe(servers), expected["adagrad"])
    finally:
        collectives.shutdown()


@pytest.mark.slow
@pytest.mark.distributed
def test_ranks_go_on_from_a_checkpoint_of_parameter_servers(tmp_path):
    """As one process does that reads the same checkpoint: rows and state of their optimizer."""
    num_before, num_after = 3, 6
    of_servers = tmp_path / "ranks" / "adagrad"
    collectives.init()
    try:
        servers = sync_models.make_estimator(of_servers, "adagrad", sync=False, num_ps=2)
        servers.train(sync_models.Data(num_before))
        (assets,) = of_servers.glob(f"*-{num_before}.assets")
        names = {path.name for path in assets.iterdir()}
        for server in range(2):
            assert any(name.startswith(f"MonolithMultiHashTable_{server}-") for name in names)
        shutil.copytree(of_servers, tmp_path / "alone")
        alone = sync_models.make_estimator(tmp_path / "alone", "adagrad", sync=False)
        before = sync_models.describe(alone)
        alone.train(sync_models.Data(num_after))
        expected = sync_models.describe(alone)
    finally:
        collectives.shutdown()
    with Job(tmp_path / "logs") as job:
        start(job, 2, "train_from", str(tmp_path / "ranks"), ["adagrad"], num_after)
        job.expect_success()
    found = json.loads((tmp_path / "ranks" / "adagrad-0.json").read_text())
    assert_same(found, expected)
    prefix = tf.train.latest_checkpoint(str(of_servers))
    assert prefix.endswith(f"-{num_before + num_after}")
    # The servers had learned something, and the ranks have learned more.
    assert np.abs(before["rows"]).max() > 0.01
    assert np.abs(np.subtract(expected["rows"], before["rows"])).max() > 0.01


@pytest.mark.slow
@pytest.mark.distributed
def test_a_killed_rank_is_named_and_a_restart_goes_on(tmp_path):
    """The kill comes from outside, at any moment: most of the time of this job goes into saves."""
    num_kills = int(os.environ.get("MONOLITH_SYNC_KILLS", "2"))
    chance = random.Random(num_kills)
    model_dir = tmp_path / "model"
    last_step = 0
    ends_sec = []
    for kill in range(num_kills):
        # Each time another number of ranks goes on with the checkpoint of the last.
        size = 3 - kill % 2
        victim = chance.randrange(size)
        with Job(tmp_path / f"logs{kill}") as job:
            members = start(job, size, "train_until_killed", str(tmp_path), -1, None, ENDLESS)
            wait_for_step(model_dir, last_step + 1, members)
            time.sleep(chance.uniform(0, 1))
            members[victim].kill()
            gone_sec = time.monotonic()
            for rank, member in enumerate(members):
                if rank != victim:
                    assert member.wait() != 0
                    assert f"rank {victim} (process" in member.log
            ends_sec.append(time.monotonic() - gone_sec)
        prefix = tf.train.latest_checkpoint(str(model_dir))
        manifest.verify(prefix)
        assert read_step(model_dir) > last_step
        last_step = read_step(model_dir)
    print(f"{num_kills} kills, {last_step} steps; the others ended after at most, in seconds:")
    print(*[f"{sec:.1f}" for sec in sorted(ends_sec)])
    with Job(tmp_path / "last") as job:
        start(job, 2, "train_until_killed", str(tmp_path), -1, None, last_step + 10)
        job.expect_success()
    assert read_step(model_dir) == last_step + 10
    assert max(ends_sec) < 10


def read_step(model_dir):
    prefix = tf.train.latest_checkpoint(str(model_dir))
    return 0 if prefix is None else int(prefix.rpartition("-")[2])


def wait_for_step(model_dir, step, members):
    deadline_sec = time.monotonic() + PATIENCE_SEC
    while read_step(model_dir) < step:
        for member in members:
            assert member.is_alive, f"{member.name} has ended:\n{member.tail()}"
        assert time.monotonic() < deadline_sec, f"no checkpoint:\n{members[0].tail()}"
        time.sleep(0.02)


POINTS = [
    ("rows_written", 1),
    (failpoints.TABLES_WRITTEN, 0),
    (failpoints.MANIFEST_WRITTEN, 0),
    (failpoints.MARKED, 0),
    ("rows_written", 0),
    (failpoints.VARIABLES_WRITTEN, 0),
    (failpoints.LISTED, 0),
]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_kill_at_any_point_of_a_save_leaves_a_checkpoint(tmp_path):
    """Each job goes on from what the one before has left; all points in the long form."""
    points = POINTS if "MONOLITH_SYNC_KILLS" in os.environ else POINTS[:3]
    steps = [0]
    for number, (point, victim) in enumerate(points):
        with Job(tmp_path / f"logs{number}") as job:
            members = start(job, 2, "train_until_killed", str(tmp_path), victim, point)
            members[victim].wait_for_log("the victim goes")
            assert members[1 - victim].wait() != 0
            assert f"rank {victim} (process" in members[1 - victim].log
        prefix = tf.train.latest_checkpoint(str(tmp_path / "model"))
        manifest.verify(prefix)
        steps.append(int(prefix.rpartition("-")[2]))
    # Saves come every 4 steps: the first of each job is there, the second only if it was listed.
    expected = [8 if point == failpoints.LISTED else 4 for point, _ in points]
    assert np.diff(steps).tolist() == expected
    with Job(tmp_path / "last") as job:
        start(job, 3, "train_until_killed", str(tmp_path), -1)
        job.expect_success()
