"""Collectives between real processes, by TensorFlow's own ops.

Covers monolith/graph/tensorflow_collectives.py.
"""

import concurrent.futures
import signal
import sys
import time

import numpy as np
import pytest
from support import ranks
from support.jobs import Job

from monolith.graph import rank_library

pytestmark = pytest.mark.distributed


@pytest.fixture
def job(tmp_path):
    with Job(tmp_path / "logs") as job:
        yield job


@pytest.mark.parametrize("size", [2, 3])
def test_every_collective(job, tmp_path, size):
    ranks.start(job, size, "do_everything", str(tmp_path))
    job.expect_success()
    for rank, results in enumerate(ranks.read_all(tmp_path, "results", size)):
        for step, result in zip((0, 1, 40), results, strict=True):
            check(result, rank, size, step)


def check(result, rank, size, step):
    total = sum(range(size))

    def count(sender, to):
        return (sender + to) % 3 * step

    assert result["sum"] == [total] * (3 + step)
    np.testing.assert_allclose(result["average"], [total / size] * (3 + step), rtol=1e-6)
    assert result["integers"] == total
    np.testing.assert_allclose(result["half"], [0.1], rtol=1e-3)
    assert result["half"] != [0.1]
    assert result["empty"] == []
    assert result["grouped"] == [[[total], [total]], total, [2 * total]]
    # 6 / size by each rank, rank r for rows 0 to r.
    assert result["indices"] == [row for r in range(size) for row in range(r + 1)]
    assert result["slices"] == [[6 / size]] * len(result["indices"])
    assert result["gathered"] == [
        [r * 10 + to, step] for r in range(size) for to in range(size) for _ in range(count(r, to))
    ]
    assert result["received"] == [count(r, rank) for r in range(size)]
    assert result["exchanged"] == [
        [r * 10 + rank, step] for r in range(size) for _ in range(count(r, rank))
    ]
    assert result["even"] == [rank + 10 * r for r in range(size)]
    assert result["broadcast"] == [size - 1] * 3
    assert result["flag"] is True
    # Each rank's loss has the scale rank + 1 times, and there are `size` losses.
    assert result["gather_gradient"] == (rank + 1) * size
    # What this rank sends is number rank + 1 in what every rank receives.
    assert result["exchange_gradient"] == (rank + 1) * size


def test_what_cannot_travel_is_refused(job, tmp_path):
    ranks.start(job, 2, "refuse_what_cannot_travel", str(tmp_path))
    job.expect_success()
    for problems in ranks.read_all(tmp_path, "problems", 2):
        text, scalar, odd, root, eager = problems
        assert "of type string, which ranks cannot exchange" in text
        assert "a tensor of a known rank above 0; got one of shape ()" in scalar
        assert "cannot send equal parts of 3 rows to 2 ranks" in odd
        assert "There is no rank 7 to broadcast from, of 2." in root
        assert "Collectives between ranks run in a session" in eager


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_train_as_one_process_does(job, tmp_path, size):
    ranks.start(job, size, "train", str(tmp_path), 30)
    job.expect_success()
    # The mean of the parts' means is the mean of all: the parts are of one size.
    w, b, x = 0.5, 0.1, np.linspace(-1, 1, 12)
    for _ in range(30):
        error = w * x + b - (3 * x + 1)
        w, b = w - 0.1 * np.mean(2 * error * x), b - 0.1 * np.mean(2 * error)
    for trained in ranks.read_all(tmp_path, "trained", size):
        np.testing.assert_allclose(trained, [w, b], rtol=1e-5)


def test_with_which_code_a_program_ends_is_noted():
    noted, exit_before = [], sys.exit
    stop = rank_library._listen_to_exits(noted.append)
    for code in (3, "no data"):
        with pytest.raises(SystemExit, match=str(code)):
            sys.exit(code)
    with concurrent.futures.ThreadPoolExecutor() as pool:  # Ends that thread alone.
        assert isinstance(pool.submit(sys.exit, 4).exception(), SystemExit)
    stop()
    assert noted == [3, "no data"]
    assert sys.exit is exit_before


class TestDeadRanks:
    @pytest.mark.parametrize(("size", "victim"), [(2, 0), (2, 1), (3, 1)])
    def test_the_others_end_and_name_it(self, job, tmp_path, size, victim):
        members = ranks.start(job, size, "train_until_somebody_dies", str(tmp_path), victim, "kill")
        self.expect_others_to_end(members, victim, "its connection has ended without a word")

    def test_a_frozen_rank_is_gone_after_a_while(self, job, tmp_path):
        members = ranks.start(job, 3, "train_until_somebody_dies", str(tmp_path), 2, "freeze")
        self.expect_others_to_end(members, 2, "it has been silent for 3 s", is_dead=False)
        members[2].send(signal.SIGCONT)

    def test_who_has_ended_well_is_not_waited_for_forever(self, job, tmp_path):
        members = ranks.start(job, 3, "train_until_somebody_dies", str(tmp_path), 1, "leave")
        self.expect_others_to_end(members, 1, "has left while others go on")

    def test_waits_outside_of_collectives_end_too(self, job, tmp_path):
        members = ranks.start(job, 2, "wait_outside_of_sessions", str(tmp_path), 1)
        assert members[0].wait(60) == 1
        assert "rank 0 ends: rank 1 (process" in members[0].log

    def expect_others_to_end(self, members, victim, why, *, is_dead=True):
        members[victim].wait_for_log("the victim goes") if not is_dead else members[victim].wait()
        start_sec = time.monotonic()
        others = [member for rank, member in enumerate(members) if rank != victim]
        for member in others:
            assert member.wait(60) == 1
            assert f"rank {victim} (process {members[victim].pid} on" in member.log
            assert why in member.log
        assert time.monotonic() - start_sec < 10
        if why.startswith("its"):
            assert "RankLostError" in others[0].log
