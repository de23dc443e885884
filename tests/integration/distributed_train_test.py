"""`distributed_train` with real processes: the cases that the original's own test has.

Covers monolith/cli/row.py.
"""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from google.protobuf import text_format
from support import counting, jobs, shared_slots
from typer import testing

from monolith import errors
from monolith.cli import app
from monolith.cluster import members
from monolith.cluster.members import MemberState
from monolith.native_training import utils
from monolith.native_training.debugging import debugging_server
from monolith.proto import debugging_info_pb2, embedding_hash_table_pb2

pytestmark = pytest.mark.distributed

BINARY = pathlib.Path(jobs.__file__).with_name("distributed_binary.py")


def make_arguments(directory, case, num_ps, num_workers, native, **more):
    """Returns the arguments of each member, by its name."""
    flags = {
        "test_case": case,
        "test_dir": directory,
        "num_ps": num_ps,
        "num_workers": num_workers,
        "uuid": "job",
        "use_native_multi_hash_table": native,
        **more,
    }
    common = [f"--{name}={value}" for name, value in flags.items()]
    total_ps = num_ps + more.get("num_extra_ps", 0) + more.get("num_redundant_ps", 0)
    names = [("ps", i) for i in range(total_ps)] + [("worker", i) for i in range(num_workers)]
    return {
        f"{role}-{index}": [str(BINARY), f"--server_type={role}", f"--index={index}", *common]
        for role, index in names
    }


def start_all(job, arguments):
    return {
        name: job.start(name, "support.distributed_binary", "run", argv)
        for name, argv in arguments.items()
    }


def read_step(directory):
    checkpoint = tf.train.latest_checkpoint(str(directory / "job" / "model"))
    return int(tf.train.load_variable(checkpoint, "global_step"))


@pytest.fixture(params=[True, False], ids=["native_multi_table", "merged_tables"])
def native(request):
    return request.param


class TestDistributedTrain:
    def test_basic(self, tmp_path, native):
        with jobs.Job(tmp_path / "logs") as job:
            start_all(job, make_arguments(tmp_path, 0, 4, 3, native))
            job.expect_success()
        # There is one batch, for the first worker; the others have nothing to read.
        assert read_step(tmp_path) == 1
        records = members.read_members(str(tmp_path / "job" / "model"))
        assert [(r.role, r.index) for r in records] == [
            *[("ps", i) for i in range(4)],
            *[("worker", i) for i in range(3)],
        ]
        assert {r.state for r in records} == {MemberState.FINISHED}

    def test_extra_ps(self, tmp_path, native):
        with jobs.Job(tmp_path / "logs") as job:
            start_all(job, make_arguments(tmp_path, 0, 2, 1, native, num_extra_ps=2))
            job.expect_success()
        assert read_step(tmp_path) == 1
        assert len(read_debugging_info(tmp_path).cluster.ps_addrs) == 2

    def test_extra_ps_that_several_workers_measure(self, tmp_path):
        with jobs.Job(tmp_path / "logs") as job:
            start_all(job, make_arguments(tmp_path, 0, 1, 3, True, num_extra_ps=2))
            job.expect_success()
        assert read_step(tmp_path) == 1
        assert len(read_debugging_info(tmp_path).cluster.ps_addrs) == 1

    def test_redundant_ps(self, tmp_path, native):
        with jobs.Job(tmp_path / "logs") as job:
            start_all(job, make_arguments(tmp_path, 0, 4, 2, native, num_redundant_ps=2))
            job.expect_success()
        assert read_step(tmp_path) == 1
        chosen = read_debugging_info(tmp_path).cluster.ps_addrs
        assert len(chosen) == 4
        shared = tmp_path / "job" / "model" / "ps_cluster_dir" / "job"
        assert shared.read_text().split(",") == list(chosen)

    def test_debugging_server(self, tmp_path, native):
        model_dir = str(tmp_path / "job" / "model")
        with jobs.Job(tmp_path / "logs") as job:
            # The servers are never dismissed in this case, nor does the chief end.
            chief = start_all(job, make_arguments(tmp_path, 1, 2, 1, native))["worker-0"]
            chief.wait_for_log("the controller on")
            chief.wait_for_log("has stopped")
            info = read_debugging_info(tmp_path)
            assert info.num_workers == 1
            assert len(info.cluster.ps_addrs) == 2
            assert [config.feature_name for config in info.feature_name_configs] == ["feature"]
            with debugging_server.DebuggingWorker(model_dir) as worker:
                variables = worker.fetch_variables(["global_step:0", "test"])
                assert variables == {"global_step:0": "1"}
                rows = worker.fetch_features(["feature"] * 3 + ["test"], ["0", "1", "2", "0"])
                assert worker.fetch_features([], []) == {}
                with pytest.raises(errors.ConfigError, match="one feature for each id, got 1 f"):
                    worker.fetch_features(["feature"], [])
                with pytest.raises(errors.ConfigError, match="An id is a whole number, got 'x'"):
                    worker.fetch_features(["feature"], ["x"])
            found = run_row(model_dir, "feature", "1")
            assert (found.exit_code, found.output) == (0, rows["feature"]["1"])
            missing = run_row(model_dir, "feature", "2")
            assert (missing.exit_code, missing.output) == (
                1,
                "error: Feature 'feature' has no row of id 2.\n",
            )
            # An id above 2^63 is negative, which is no option of the command.
            negative = run_row(model_dir, "feature", "-1")
            assert (negative.exit_code, negative.output) == (
                1,
                "error: Feature 'feature' has no row of id -1.\n",
            )
            unknown = run_row(model_dir, "test", "0")
            assert unknown.exit_code == 1
            assert "The job has no feature 'test'; it has feature." in unknown.output
        assert rows.keys() == {"feature"}
        assert rows["feature"].keys() == {"0", "1"}
        for number, text in rows["feature"].items():
            entry = read_entry(text)
            assert len(entry.num) == 5
            assert entry.id == int(number)
        with pytest.raises(errors.ConfigError, match=r"servers of the job in .* are gone"):
            debugging_server.DebuggingWorker(model_dir)

    def test_rows_of_features_that_share_a_slot(self, tmp_path, native):
        settings = counting.Settings(
            model_dir=str(tmp_path / "model"), num_ps=2, num_workers=1, native=native
        )
        with jobs.Job(tmp_path / "logs") as job:
            for role, index in (("ps", 0), ("ps", 1), ("worker", 0)):
                member = dataclasses.replace(settings, role=role, index=index)
                started = job.start(f"{role}-{index}", "support.shared_slots", "run_member", member)
            started.wait_for_log("trained")
            ids = sorted({i for counts in shared_slots.COUNTS.values() for i in counts})
            asked = [(name, i) for name in shared_slots.COUNTS for i in ids]
            with debugging_server.DebuggingWorker(settings.model_dir) as worker:
                assert worker.features == shared_slots.COUNTS.keys()
                rows = worker.fetch_features(*zip(*asked, strict=True))
            found = run_row(settings.model_dir, "shown", "2")
            assert (found.exit_code, found.output) == (0, rows["shown"]["2"])
            info = tmp_path / "model" / "debugging_info.pb"
            info.write_bytes(info.read_bytes()[:-3])
            damaged = run_row(settings.model_dir, "shown", "2")
            assert (damaged.exit_code, len(damaged.output.splitlines())) == (1, 1)
            assert damaged.output.startswith(f"error: '{info}' is damaged; the chief")
        counts = {
            name: {i: -read_entry(text).num[0] for i, text in found.items()}
            for name, found in rows.items()
        }
        expected = dict(shared_slots.COUNTS)
        if not native:
            # Their tables are made of the same, and are one.
            expected["user"] = expected["page"] = {**expected["user"], **expected["page"]}
        assert counts == expected

    def test_temporary_error(self, tmp_path, native):
        with jobs.Job(tmp_path / "logs") as job:
            member = start_all(job, make_arguments(tmp_path, 2, 1, 1, native))["worker-0"]
            job.expect_success()
        assert "tries again every 0.2 s: DeadlineExceededError: Not a real one." in member.log
        assert read_step(tmp_path) == 1

    def test_members_that_are_started_from_a_shell(self, tmp_path):
        processes = {
            name: subprocess.Popen(
                [sys.executable, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for name, argv in make_arguments(tmp_path, 0, 1, 2, True).items()
        }
        try:
            for name, process in processes.items():
                output, _ = process.communicate(timeout=jobs.PATIENCE_SEC)
                assert process.returncode == 0, f"{name}:\n{output[-3000:]}"
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        assert read_step(tmp_path) == 1


def test_features_alone_are_written_by_all_workers(tmp_path):
    settings = counting.Settings(model_dir=str(tmp_path / "model"), only_features=True, num_ps=1)
    with jobs.Job(tmp_path / "logs") as job:
        counting.start_member(job, settings, "ps", 0)
        chief = counting.start_member(job, settings, "worker", 0)
        # The job ends with its chief, so that it must not end while others write.
        chief.wait_for_log("The chief waits for workers [1] to finish.")
        worker = counting.start_member(job, settings, "worker", 1)
        job.expect_success()
    written = {
        member.name: sum(map(int, re.findall(r"wrote (\d+) batches of features", member.log)))
        for member in (chief, worker)
    }
    assert written == {"worker-0": 20, "worker-1": 20}
    assert tf.train.latest_checkpoint(settings.model_dir) is None


def read_entry(text):
    return text_format.Parse(text, embedding_hash_table_pb2.EntryDump())


def run_row(*arguments):
    return testing.CliRunner().invoke(app.app, ["row", *arguments])


def read_debugging_info(directory):
    path = utils.get_debugging_info_file_name(os.fspath(directory / "job" / "model"))
    return debugging_info_pb2.DebuggingInfo.FromString(pathlib.Path(path).read_bytes())


def test_job_that_never_ran(tmp_path):
    with pytest.raises(errors.ConfigError, match="no job of several processes has run in that"):
        debugging_server.DebuggingWorker(str(tmp_path))
    refused = run_row(str(tmp_path), "feature", "1")
    assert refused.exit_code == 1
    assert refused.output.startswith("error: There is no")
