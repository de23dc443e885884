"""`monolith train` and `ml.Estimator` with real clusters of processes.

Covers monolith/training/launch/cluster.py and monolith/cluster/local/start.py.
"""

import json
import logging
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import numpy as np
import pytest
import tensorflow as tf
from cluster import consul_agent
from support import counting, jobs, launch_jobs, partial_sync_job, warm

import monolith as ml
from monolith.cluster import members
from monolith.cluster.local import nursery, processes
from monolith.cluster.local import start as local_start
from monolith.cluster.members import MemberState
from monolith.training.distributed import choice, plan
from monolith.training.distributed.exporter import METRICS
from monolith.training.estimator import Estimator, RunConfig

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

TESTS = pathlib.Path(__file__).parents[1]
JOBS = "support.launch_jobs"
PATIENCE_SEC = 200


def start(*arguments, environment=None, cwd=None):
    paths = [str(TESTS), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return warm.Program(
        ["-m", "monolith.cli.app", "train", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def finish(process):
    """Returns its exit code and what it has written."""
    try:
        output, log = process.communicate(timeout=PATIENCE_SEC)
    finally:
        process.kill()
    return process.returncode, output, log


def wait_for_member(model_dir, role, index, launcher, other_than=None):
    deadline_sec = time.monotonic() + PATIENCE_SEC
    while True:
        record = members.read_member(str(model_dir), role, index)
        if record is not None and record.pid != other_than and record.state is MemberState.RUNNING:
            return record
        assert launcher.poll() is None, launcher.communicate()
        assert time.monotonic() < deadline_sec
        time.sleep(0.02)


def read_step(model_dir):
    checkpoint = tf.train.latest_checkpoint(str(model_dir))
    return int(tf.train.load_variable(checkpoint, "global_step"))


@pytest.fixture
def others():
    """The processes that are no matter of the test: those of earlier ones, and who forks."""
    jobs.prepare_server()
    return set(nursery.find_descendants())


def test_a_model_from_the_command_to_the_next_day(tmp_path, others):
    model_dir = tmp_path / "clicks"
    launcher = start(f"{JOBS}:make_estimator", "--ps", 2, "--workers", 2, "--model-dir", model_dir)
    code, output, log = finish(launcher)
    assert code == 0, log
    assert output == f"clicks is trained; its checkpoints are in {model_dir}.\n"
    names = {line.partition(" |")[0].strip() for line in log.splitlines() if " | " in line}
    assert names == {"ps 0", "ps 1", "chief", "worker 1"}
    assert "Traceback" not in log
    # Each worker has read its half.
    steps = launch_jobs.NUM_EXAMPLES // launch_jobs.BATCH_SIZE
    assert read_step(model_dir) == steps

    # What two servers have saved is used, and trained on, by one process, and the other way round.
    local = ml.Estimator(launch_jobs.Clicks(), model_dir, ml.Adagrad(0.1), progress=False)
    assert local.evaluate(launch_jobs.read)["global_step"] == steps
    first = [p["click"] for p in local.predict(launch_jobs.read)][:16]
    exported = ml.load(local.export(tmp_path / "export"))
    np.testing.assert_allclose(exported(user=np.arange(16))["click"], first, rtol=1e-5)
    local.train(launch_jobs.read, epochs=10)

    config = ml.RunConfig(num_ps=1, num_workers=2)
    on_cluster = ml.Estimator(
        launch_jobs.Clicks(), model_dir, ml.Adagrad(0.1), config=config, progress=False
    )
    metrics = on_cluster.train(launch_jobs.read, epochs=2).evaluate(launch_jobs.read)
    assert metrics["global_step"] == (1 + 10 + 2) * steps
    assert metrics["click_auc"] > 0.99
    assert set(nursery.find_descendants()) <= others


def test_a_script_whose_model_no_module_has(tmp_path):
    (tmp_path / "job.py").write_text(
        (TESTS / "support" / "launch_jobs.py").read_text()
        + """
config = ml.RunConfig(num_ps=1, num_workers=2)
estimator = ml.Estimator(Clicks(), "here", config=config, progress=False)
try:
    lock = __import__("threading").Lock()
    estimator.train(lambda: lock and read())
except ml.errors.ConfigError as error:
    print(error)
print(estimator.train(read, max_steps=6).evaluate(read)["global_step"])
estimator.train(read, max_steps=6)
print(len(list(estimator.predict(read))))
"""
    )
    script = warm.run(
        ["job.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        timeout=PATIENCE_SEC,
    )
    assert script.returncode == 0, script.stderr
    refusal, step, number = script.stdout.splitlines()
    assert refusal.startswith("`data` of the job cannot be handed to other processes")
    # Workers see the end of the other's steps only when they come to their own next one.
    assert 6 <= int(step) <= 7
    assert int(number) == launch_jobs.NUM_EXAMPLES


@pytest.mark.usefixtures("graph_mode")
def test_the_estimator_of_a_task(tmp_path, others, caplog):
    config = RunConfig(num_ps=2, num_workers=2, model_dir=str(tmp_path / "counting"))
    estimator = Estimator(launch_jobs.PARAMS, config).train()
    counts, steps = counting.read_counts(config.model_dir)
    assert steps == 20
    for name, expected in counting.count_expected(20).items():
        np.testing.assert_array_equal(counts[name], expected)
    assert len(members.read_members(config.model_dir)) == 4
    with caplog.at_level(logging.INFO):
        estimator.train(max_steps=20)
    assert "nothing to train: step 20 is reached already" in caplog.text
    assert estimator.get_step() == 20
    assert set(nursery.find_descendants()) <= others


def test_a_job_that_only_writes_features_says_so(tmp_path):
    model_dir = tmp_path / "counting"
    arguments = [f"{JOBS}:make_features", "--ps", 1, "--workers", 2, "--model-dir", model_dir]
    code, output, log = finish(start(*arguments))
    assert code == 0, log
    assert output == f"The features of counting are in {model_dir}/features; nothing was trained.\n"
    written = {path.name.partition("_")[0] for path in (model_dir / "features").iterdir()}
    assert written == {"chief", "worker1"}
    assert tf.train.latest_checkpoint(str(model_dir)) is None


def test_servers_beyond_those_that_are_needed(tmp_path):
    model_dir = tmp_path / "counting"
    code, _, log = finish(start(f"{JOBS}:make_spares", "--model-dir", model_dir))
    assert code == 0, log
    names = {line.partition(" |")[0].strip() for line in log.splitlines() if " | " in line}
    assert names == {"ps 0", "ps 1", "ps 2", "chief"}
    # The redundant one is not on the list, and of the two on it the measuring has left one.
    (written,) = (model_dir / "ps_cluster_dir").iterdir()
    assert len(written.read_text().split(",")) == 2
    chief = members.read_member(str(model_dir), "worker", 0)
    assert len(chief.details[choice.CHOICE]["servers"]) == 1
    # Nothing of the measurement is taken for a part of the model, its step above all.
    assert "initialized 2 of 2 variables" in log
    assert read_step(model_dir) == 20


@pytest.mark.usefixtures("graph_mode")
def test_workers_that_train_the_dense_part_together(tmp_path):
    model_dir = tmp_path / "linear"
    code, _, log = finish(start(f"{JOBS}:make_partial_sync", "--model-dir", model_dir))
    assert code == 0, log
    settings = partial_sync_job.Settings(model_dir=str(model_dir))
    steps = [(i, i + 1) for i in range(0, settings.num_batches, 2)]
    step, dense = partial_sync_job.read_saved(model_dir)
    assert step == len(steps)
    expected = partial_sync_job.compute_dense(steps, settings.batch_size)
    np.testing.assert_allclose(dense, expected, atol=1e-5)


def test_members_have_the_code_that_was_loaded_before_the_first(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    with local_start.open_nursery() as made:
        assert made.wait(PATIENCE_SEC) == processes.Ready()
        member = made.start(JOBS, "tell_code", {})
        while not isinstance(made.wait(PATIENCE_SEC), processes.Ended):
            pass
        told = json.loads(os.read(member.report, 1 << 16))
        member.close()
    # What is on disk: this process may have asked long ago, and somebody have edited since.
    assert told == plan.describe_code.__wrapped__()


def test_members_that_are_killed(tmp_path):
    model_dir = tmp_path / "counting"
    launcher = start(
        f"{JOBS}:PARAMS",
        *("--ps", 1, "--workers", 2, "--model-dir", model_dir),
        environment={"BATCHES": "400", "STEP_SEC": "0.02"},
    )
    worker = wait_for_member(model_dir, "worker", 1, launcher)
    os.kill(worker.pid, signal.SIGKILL)
    wait_for_member(model_dir, "worker", 1, launcher, other_than=worker.pid)
    server = members.read_member(str(model_dir), "ps", 0)
    # It announces the address that it is narrowed to.
    host, _, port = server.address.rpartition(":")
    assert host == "127.0.0.1"
    own = next(iter(socket.gethostbyname_ex(socket.gethostname())[2]), host)
    if not own.startswith("127."):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((own, int(port)), timeout=5)
    os.kill(server.pid, signal.SIGKILL)
    code, _, log = finish(launcher)
    assert code == 0, log
    assert "worker 1 was killed by SIGKILL; starting it again (restart 1 of at most 10)" in log
    assert "ps 0 was killed by SIGKILL; starting it again (restart 2 of at most 10)" in log
    assert read_step(model_dir) > 0


def test_ctrl_c_saves_once_and_a_kill_leaves_nobody(tmp_path, others):
    model_dir = tmp_path / "counting"
    arguments = [f"{JOBS}:PARAMS", "--ps", 1, "--workers", 2, "--model-dir", model_dir]
    environment = {"BATCHES": "100000", "STEP_SEC": "0.02"}
    launcher = start(*arguments, environment=environment)
    wait_for_member(model_dir, "worker", 1, launcher)
    wait_for_member(model_dir, "worker", 0, launcher)
    launcher.send_signal(signal.SIGINT)
    code, _, log = finish(launcher)
    assert code == 130, log
    assert "monolith: SIGINT has stopped the job. The same command goes on" in log
    assert "Traceback" not in log
    assert len(re.findall("saved 1 hash tables to", log)) == 1
    step = read_step(model_dir)
    assert step > 0
    assert set(nursery.find_descendants()) <= others

    launcher = start(*arguments, environment=environment)
    pids = [wait_for_member(model_dir, r, i, launcher).pid for r, i in (("worker", 1), ("ps", 0))]
    pids += nursery.find_descendants(launcher.pid)
    launcher.kill()
    launcher.communicate(timeout=PATIENCE_SEC)
    deadline_sec = time.monotonic() + 30
    while any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline_sec
        time.sleep(0.02)
    assert read_step(model_dir) >= step


class TestOneMember:
    """`--role`: the same command on each machine."""

    def test_a_job_and_who_does_not_fit_in(self, tmp_path):
        model_dir, files = tmp_path / "counting", f"file://{tmp_path}/meet"
        common = [f"{JOBS}:PARAMS", "--ps", 1, "--workers", 2, "--model-dir", model_dir]
        common += ["--discovery", files, "--address", "127.0.0.1"]
        common += ["--metrics-port", 0, "--controller-host", "127.0.0.2", "--transfer-float16"]
        server = start(*common, "--role", "ps", "--index", 0)
        chief = start(*common, "--role", "chief")
        record = wait_for_member(model_dir, "worker", 0, chief)
        assert record.details[METRICS].startswith("127.0.0.1:")
        assert (model_dir / "controller_server_addr.txt").read_text().startswith("127.0.0.2:")
        second = start(*common, "--role", "worker", "--index", 0)
        beyond = start(*common, "--role", "worker", "--index", 2)
        expect_refusal(second, "Worker 0, the chief, of this model directory is running already")
        expect_refusal(beyond, "`index` of a worker must be in 0..1, since the job has 2 of them")
        worker = start(*common, "--role", "worker", "--index", 1)
        for member in (worker, chief, server):
            code, _, log = finish(member)
            assert code == 0, log
        assert read_step(model_dir) == 20

    def test_members_that_meet_in_consul(self, tmp_path):
        agent = consul_agent.ConsulAgent(stock=True)
        model_dir = tmp_path / "counting"
        common = [f"{JOBS}:PARAMS", "--ps", 1, "--workers", 1, "--model-dir", model_dir]
        common += ["--discovery", "consul://counting", "--address", "127.0.0.1"]
        with consul_agent.serving(agent) as port:
            environment = {
                "CONSUL_HTTP_HOST": "127.0.0.1",
                "CONSUL_HTTP_PORT": str(port),
                "MONOLITH_CONSUL_LOOKUP": "health",
            }
            members = [
                start(*common, *role, environment=environment)
                for role in (("--role", "ps", "--index", 0), ("--role", "chief"))
            ]
            for member in members:
                code, _, log = finish(member)
                assert code == 0, log
        assert read_step(model_dir) == 20
        assert {service["name"] for service in agent.services.values()} == {"counting"}
        assert len(agent.services) == 2

    @pytest.mark.external
    def test_members_that_meet_in_zookeeper(self, tmp_path, zookeeper_server):
        model_dir = tmp_path / "counting"
        common = [f"{JOBS}:PARAMS", "--ps", 1, "--workers", 1, "--model-dir", model_dir]
        common += ["--discovery", f"zk://{zookeeper_server.hosts}/ranking"]
        common += ["--address", "127.0.0.1"]
        members = [
            start(*common, *role) for role in (("--role", "ps", "--index", 0), ("--role", "chief"))
        ]
        for member in members:
            code, _, log = finish(member)
            assert code == 0, log
        assert read_step(model_dir) == 20

    def test_places_where_nobody_can_meet(self, tmp_path):
        (tmp_path / "file").touch()
        with socket.socket() as bound:  # It does not listen.
            bound.bind(("127.0.0.1", 0))
            port = str(bound.getsockname()[1])
            environment = {"CONSUL_HTTP_HOST": "127.0.0.1", "CONSUL_HTTP_PORT": port}
            common = [f"{JOBS}:PARAMS", "--ps", 1, "--workers", 1, "--role", "ps", "--index", 0]
            common += ["--address", "127.0.0.1", "--discovery"]
            below = f"{tmp_path}/file/x/discovery_dir/job"
            zookeeper = f"zk://127.0.0.1:{port}/x"
            cases = {
                "/proc/nope, a directory": ["file:///proc/nope", "--model-dir", tmp_path / "m"],
                f"{tmp_path}/file, a": [f"file://{tmp_path}/file", "--model-dir", tmp_path / "m"],
                f"{below}, a directory": ["file", "--model-dir", tmp_path / "file" / "x"],
                f"Consul at 127.0.0.1:{port}": ["consul", "--model-dir", tmp_path / "m"],
                f"'{zookeeper}'": [zookeeper, "--model-dir", tmp_path / "m"],
            }
            members = {
                where: start(*common, *arguments, environment=environment)
                for where, arguments in cases.items()
            }
            for where, member in members.items():
                expect_refusal(member, f"The members cannot meet at {where}")

    def test_tf_config_and_a_port_that_is_taken(self, tmp_path):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            tf_config = {
                "cluster": {"ps": [address], "chief": ["127.0.0.1:1"]},
                "task": {"type": "ps", "index": 0},
            }
            member = start(
                *(f"{JOBS}:PARAMS", "--model-dir", tmp_path / "m", "--discovery", "tf_config"),
                environment={"TF_CONFIG": json.dumps(tf_config)},
            )
            expect_refusal(member, f"Ps 0 is to listen at {address}, but port")


def expect_refusal(process, sentence):
    """Sees that it ends with one sentence, and with a code."""
    code, _, log = finish(process)
    assert code == 1, log
    assert "Traceback" not in log
    last = log.strip().splitlines()[-1]
    assert last.startswith(f"error: {sentence}"), log
    assert last.count("error: ") == 1
