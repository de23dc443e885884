"""Models in parts, served by processes: the same answers as in training, whatever dies."""

import contextlib
import os
import threading
import time
from concurrent import futures

import grpc
import numpy as np
import pytest
from support import jobs, parts

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.usefixtures("graph_mode")]

# Of a request; the full run, 10,000 requests of one example: MONOLITH_REQUEST_EXAMPLES=1.
EXAMPLES = int(os.environ.get("MONOLITH_REQUEST_EXAMPLES", "50"))
PATIENT = ["--ps-timeout-ms", "30000", "--ps-retries", "5"]


def test_three_ways_to_the_same_predictions(tmp_path):
    """The trainer, one server, and servers of two parts with two replicas each."""
    model_dir = str(tmp_path / "model")
    estimator = parts.train_and_export(model_dir)
    alone_dir = os.path.dirname(os.fsdecode(estimator.export_saved_model()))
    base = os.path.join(model_dir, "exported_models")
    with jobs.Job(tmp_path / "logs") as job, contextlib.ExitStack() as stack:
        servers = parts.Servers(job, base, f"file:{tmp_path / 'servers'}")
        for part in ("ps_0", "ps_1"):
            for replica in ("0", "1"):
                servers.start(part, "--replica", replica)
        entry = servers.start("entry", *PATIENT, "--batch-rows", "256")
        alone = job.start("alone", "support.parts", "run_serve", alone_dir, "--name", "alone")
        predicted = np.array(list(estimator.predict()))
        assert predicted.shape == (parts.NUM_EXAMPLES,)
        requests = parts.cut(parts.make_columns(), EXAMPLES)
        answers = []
        for member, name in ((entry, "entry"), (alone, "alone")):
            asker = stack.enter_context(parts.Asker(parts.get_port(member), name))
            asker.wait_until_ready()
            with futures.ThreadPoolExecutor(8) as pool:
                answers.append(np.concatenate(list(pool.map(asker.ask, requests))))
        for answer in answers:
            np.testing.assert_allclose(answer, predicted, rtol=0, atol=1e-6)
    assert np.ptp(predicted) > 0.1  # They say something.


# The full run, for a figure: MONOLITH_REPLICA_KILLS=20.
KILLS = int(os.environ.get("MONOLITH_REPLICA_KILLS", "4"))


class Load:
    """Threads that ask without a break; a context that counts what came back.

    Args:
        asker: Asks.
        requests: What to ask.
        expected: The right answers.
    """

    def __init__(self, asker, requests, expected, threads=3):
        self._asker = asker
        self._requests = list(zip(requests, expected, strict=True))
        self._stopped = threading.Event()
        self._pool = futures.ThreadPoolExecutor(threads)
        self._threads = threads
        self.answers = 0
        self.wrong = 0
        self.failures = []

    def __enter__(self):
        self._running = [self._pool.submit(self._run, i) for i in range(self._threads)]
        return self

    def __exit__(self, *args):
        self._stopped.set()
        self._pool.shutdown()
        for running in self._running:
            running.result()

    def _run(self, number):
        while not self._stopped.is_set():
            for columns, expected in self._requests[number :: self._threads]:
                try:
                    answer = self._asker.ask(columns)
                except grpc.RpcError as e:
                    self.failures.append(e)
                else:
                    self.answers += 1
                    self.wrong += not np.allclose(answer, expected, rtol=0, atol=1e-6)

    def wait_for_answers(self, number, timeout_sec=120):
        """Waits for so many more answers."""
        goal = self.answers + number
        deadline_sec = time.monotonic() + timeout_sec
        while self.answers < goal and not self.failures:
            assert time.monotonic() < deadline_sec, "no answers"
            time.sleep(0.005)


def test_replicas_are_killed_under_load(tmp_path):
    """No request fails: those that a killed server had are asked of its other replica."""
    model_dir = str(tmp_path / "model")
    estimator = parts.train_and_export(model_dir)
    with jobs.Job(tmp_path / "logs") as job:
        servers = parts.Servers(
            job, os.path.join(model_dir, "exported_models"), f"file:{tmp_path / 'servers'}"
        )
        running = {part: [servers.start(part) for _ in range(2)] for part in ("ps_0", "ps_1")}
        entry = servers.start("entry", *PATIENT)
        expected = np.array(list(estimator.predict()))
        requests = parts.cut(parts.make_columns(), 50)
        for member in (replica for replicas in running.values() for replica in replicas):
            member.wait_for_log("is announced")
        with parts.Asker(parts.get_port(entry), "entry") as asker:
            asker.wait_until_ready()
            with Load(asker, requests, np.split(expected, len(requests))) as load:
                for kill in range(KILLS):
                    replicas = running[f"ps_{kill % 2}"]
                    load.wait_for_answers(20)
                    replicas.pop(0).kill()
                    load.wait_for_answers(20)
                    replicas.append(servers.start(f"ps_{kill % 2}"))
                    # The entry knows of it before the next one goes.
                    entry.wait_for_log(f"127.0.0.1:{parts.get_port(replicas[-1])}")
    assert not load.failures, load.failures[:3]
    assert load.wrong == 0
    assert load.answers >= 40 * KILLS
    print(f"{KILLS} kills, {load.answers} answers, no failure")


def test_part_that_is_gone(tmp_path):
    """With default rows, requests are answered although nobody has the rows of a part."""
    model_dir = str(tmp_path / "model")
    estimator = parts.train_and_export(model_dir)
    with jobs.Job(tmp_path / "logs") as job:
        servers = parts.Servers(
            job, os.path.join(model_dir, "exported_models"), f"file:{tmp_path / 'servers'}"
        )
        lost = servers.start("ps_1")
        servers.start("ps_0")
        lenient = servers.start("entry", "--ps-default-row", "0", "--ps-timeout-ms", "5000")
        strict = servers.start("entry", *PATIENT, "--ps-retries", "1")
        columns = {name: column[1:10] for name, column in parts.make_columns().items()}
        with (
            parts.Asker(parts.get_port(lenient), "entry") as lenient_asker,
            parts.Asker(parts.get_port(strict), "entry") as strict_asker,
        ):
            strict_asker.wait_until_ready()
            lenient_asker.wait_until_ready()
            expected = strict_asker.ask(columns)
            lost.kill()
            answer = lenient_asker.ask(columns)
            with pytest.raises(grpc.RpcError, match="ps_1 did not answer") as error:
                strict_asker.ask(columns)
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE
            assert answer.shape == expected.shape
            assert not np.allclose(answer, expected)
            # Even ids have their rows, and odd ones none.
            even = {name: column - column % 2 for name, column in columns.items()}
            predicted = lenient_asker.ask(even)
    del estimator
    assert np.isfinite(predicted).all()
