"""Ranks train as one process does, their checkpoints are anybody's, and a dead rank is no loss.

`MONOLITH_SYNC_KILLS=50` kills a random rank fifty times; the short form is in the suite.
"""

import json
import os
import random
import re
import shutil
import socket
import time
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from support import ranks, sync_models
from support.jobs import PATIENCE_SEC, Job
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from monolith.checkpoint import failpoints, manifest
from monolith.graph import collectives

NUM_STEPS = 50
OPTIMIZERS = ("sgd", "adagrad")
# After a kill, of the other ranks.
LONGEST_END_SEC = 10
# What only a process that was killed leaves in a model directory.
LEFTOVER = re.compile(r"^replaced-|\.unfinished$|\.tmp")


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
def test_ranks_of_tf_config_may_evaluate_before_they_train(tmp_path, one_process):
    copy_model(one_process[0] / "adagrad", tmp_path / "adagrad")
    with socket.create_server(("127.0.0.1", 0)) as skt:
        address = f"127.0.0.1:{skt.getsockname()[1]}"
    cluster = {"worker": [address, "127.0.0.1:1"]}
    with Job(tmp_path / "logs") as job:
        for rank in range(2):
            tf_config = {"cluster": cluster, "task": {"type": "worker", "index": rank}}
            job.start(
                f"rank{rank}",
                "support.sync_models",
                "evaluate_and_train",
                str(tmp_path),
                2,
                environment={"TF_CONFIG": json.dumps(tf_config)},
            )
        job.expect_success()
    assert ranks.read_all(tmp_path, "place", 2) == [[0, 2], [1, 2]]
    assert read_step(tmp_path / "adagrad") == 1 + 2


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
    """The kill comes from outside, at any moment since the ranks have met.

    Every third hits a job that starts: it builds its graph, restores, fills its input, and has not
    saved yet. The others hit one that trains, most of whose time goes into saves.
    """
    num_kills = int(os.environ.get("MONOLITH_SYNC_KILLS", "2"))
    chance = random.Random(num_kills)
    model_dir = tmp_path / "model"
    last_step = 0
    start_sec = 4.0
    ends_sec = []
    num_started = 0
    for kill in range(num_kills):
        # Each time another number of ranks goes on with the checkpoint of the last.
        size = 3 - kill % 2
        victim = chance.randrange(size)
        with Job(tmp_path / f"logs{kill}") as job:
            members = start(job, size, "train_until_killed", str(tmp_path))
            members[victim].wait_for_log("the ranks have met")
            met_sec = time.monotonic()
            if kill % 3 == 1:
                time.sleep(chance.uniform(0, start_sec))
            else:
                wait_for_step(model_dir, last_step + 1, members)
                start_sec = time.monotonic() - met_sec
                time.sleep(chance.uniform(0, 1))
            members[victim].kill()
            ends_sec.append(expect_loss(members, victim))
        step = read_step(model_dir)
        if step > 0:
            manifest.verify(tf.train.latest_checkpoint(str(model_dir)))
        assert step > last_step or (kill % 3 == 1 and step == last_step)
        num_started += step > last_step
        last_step = step
    print(f"{num_kills} kills, {num_started} after a save of the job, {last_step} steps;")
    print("the others have ended after, in seconds:", *[f"{sec:.1f}" for sec in sorted(ends_sec)])
    with Job(tmp_path / "last") as job:
        start(job, 2, "train_until_killed", str(tmp_path), None, last_step + 10)
        job.expect_success()
    assert read_step(model_dir) == last_step + 10
    assert max(ends_sec) < LONGEST_END_SEC


def expect_loss(members, victim):
    """Waits until the others have ended with the name of the victim; returns how long it took."""
    gone_sec = time.monotonic()
    others = [member for rank, member in enumerate(members) if rank != victim]
    for member in others:
        assert member.wait() != 0
    end_sec = time.monotonic() - gone_sec
    for member in others:
        assert f"rank {victim} (process" in member.log, member.tail()
    return end_sec


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


class Kill(NamedTuple):
    """A rank is killed when one comes to a point of a save; each job saves every 4 steps.

    Attributes:
        point: One of `failpoints`, or one that every rank passes, see `train_until_killed`.
        num_saved: How many checkpoints of the job are there then; one may become more, if it is
            not the victim that comes to the point.
        hits: For which time it comes to the point.
        at: The rank that does.
        victim: The rank that is killed.
        goes_back: Whether the job starts from the older of two checkpoints, as users may: it then
            saves a step again that is listed.
    """

    point: str
    num_saved: int
    hits: int = 2
    at: int = 0
    victim: int = 0
    goes_back: bool = False


# All of `failpoints` are those of the process that makes checkpoints visible, rank 0: the others
# write their rows and the position of their input, and wait for it. Where they wait is said by
# where it is.
POINTS = [
    Kill(failpoints.LISTED, 2),
    Kill(failpoints.MARKED, 1),
    Kill("position_written", 1),
    Kill("position_written", 1, at=1, victim=1),
    Kill("rows_written", 1),
    Kill("rows_written", 1, at=1, victim=1),
    Kill(failpoints.TABLES_WRITTEN, 1),
    Kill(failpoints.VARIABLES_WRITTEN, 1),
    Kill(failpoints.MANIFEST_WRITTEN, 1),
    # Small files that are renamed: the manifest, the list, the time of the save.
    Kill(failpoints.TEMPORARY_WRITTEN, 0, hits=1),
    Kill(failpoints.TEMPORARY_WRITTEN, 0, hits=2),
    Kill(failpoints.TEMPORARY_WRITTEN, 1, hits=3),
    Kill(failpoints.UNMARKED, 2),
    # Of two checkpoints, the older one goes when a third is listed. What a kill leaves of it goes
    # at the next start, past the same points; a save that only lost rank 1 leaves nothing.
    Kill(failpoints.LISTED, 2, victim=1),
    Kill(failpoints.INDEX_REMOVED, 2),
    Kill(failpoints.PARTLY_REMOVED, 0, hits=1),
    Kill(failpoints.UNMARKED, 2, victim=1),
    Kill(failpoints.PARTLY_REMOVED, 1, hits=3),
    Kill(failpoints.INDEX_REMOVED, 2, victim=1),
    Kill(failpoints.PARTLY_REMOVED, 1, hits=5),
    # Rank 1 waits: for the word to write,
    Kill(failpoints.MARKED, 1, victim=1),
    # until all have written,
    Kill("rows_written", 1, victim=1),
    # and until the checkpoint is there.
    Kill(failpoints.TABLES_WRITTEN, 1, victim=1),
    Kill(failpoints.VARIABLES_WRITTEN, 1, victim=1),
    Kill(failpoints.MANIFEST_WRITTEN, 1, victim=1),
    Kill(failpoints.COPY_LINKED, 0, hits=1, goes_back=True),
    Kill(failpoints.COPY_LISTED, 0, hits=1, goes_back=True),
    Kill(failpoints.COPY_REMOVED, 1, hits=1, goes_back=True),
    Kill(failpoints.COPY_LINKED, 0, hits=1, victim=1, goes_back=True),
    Kill(failpoints.COPY_LISTED, 0, hits=1, victim=1, goes_back=True),
    Kill(failpoints.COPY_REMOVED, 1, hits=1, victim=1, goes_back=True),
    # What was replaced, and is listed under another name, gets its own back: at the next start.
    Kill(failpoints.TABLES_WRITTEN, 0, hits=1, goes_back=True),
    Kill(failpoints.OLD_LINKED, 0, hits=1),
    Kill(failpoints.OLD_LISTED, 0, hits=1),
]
# One of each kind: a rank writes, waits, replaces what is listed, and undoes that when it starts.
SHORT = [
    Kill("rows_written", 1, at=1, victim=1),
    Kill(failpoints.MANIFEST_WRITTEN, 1, victim=1),
    Kill(failpoints.TABLES_WRITTEN, 0, hits=1, goes_back=True),
    Kill(failpoints.OLD_LISTED, 0, hits=1),
]


@pytest.mark.slow
@pytest.mark.distributed
def test_a_kill_at_any_point_of_a_save_leaves_a_checkpoint(tmp_path, one_process):
    """Each job goes on from what the one before has left; all points in the long form."""
    assert {kill.point for kill in POINTS} >= set(failpoints.ALL)
    model_dir = tmp_path / "model"
    for name in ("model", "whole"):
        copy_model(one_process[0] / "adagrad", tmp_path / name)
    kills = POINTS if "MONOLITH_SYNC_KILLS" in os.environ else SHORT
    ends_sec = []
    for number, kill in enumerate(kills):
        if kill.goes_back:
            go_back(model_dir)
        step = read_step(model_dir)
        with Job(tmp_path / f"logs{number}") as job:
            called = (kill.at, kill.point, kill.hits, kill.victim)
            members = start(job, 2, "train_until_killed", str(tmp_path), called)
            members[kill.at].wait_for_log("the victim goes")
            ends_sec.append(expect_loss(members, kill.victim))
        manifest.verify(tf.train.latest_checkpoint(str(model_dir)))
        most = kill.num_saved + (kill.at != kill.victim)
        saved = (read_step(model_dir) - step) // 4
        assert kill.num_saved <= saved <= most, kill
    last_step = read_step(model_dir) + 6
    with Job(tmp_path / "last") as job:
        start(job, 2, "train_until_killed", str(tmp_path), None, last_step)
        job.expect_success()
    print(f"{len(kills)} kills, {last_step} steps;")
    print("the other has ended after, in seconds:", *[f"{sec:.1f}" for sec in sorted(ends_sec)])
    assert not [path for path in model_dir.iterdir() if LEFTOVER.search(path.name)]
    # Whatever was killed, each batch counts once: rows and dense variables are those of nobody who
    # was ever killed.
    collectives.init()
    try:
        killed = sync_models.make_estimator(model_dir, "adagrad", sync=False)
        whole = sync_models.make_estimator(tmp_path / "whole", "adagrad", sync=False)
        whole.train(sync_models.Data(sync_models.NUM_BATCHES), max_steps=last_step)
        assert_same(sync_models.describe(killed), sync_models.describe(whole))
    finally:
        collectives.shutdown()
    assert max(ends_sec) < LONGEST_END_SEC


def copy_model(source, target):
    """Copies a model directory so that who deletes an old checkpoint deletes that of the copy."""
    shutil.copytree(source, target)
    listed = target / "checkpoint"
    listed.write_text(listed.read_text().replace(str(source), str(target)))


def go_back(model_dir):
    """Has the next job start from the older one of two checkpoints."""
    path = model_dir / "checkpoint"
    state = text_format.Parse(path.read_text(), CheckpointState())
    older, _ = state.all_model_checkpoint_paths
    state.model_checkpoint_path = older
    path.write_text(text_format.MessageToString(state))
