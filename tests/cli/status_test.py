"""`monolith status`, of jobs that run, are hurt, or are dead."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest
from support import counting, jobs
from typer import testing

from monolith.cli import app, status
from monolith.cluster import members
from monolith.training.distributed import status as job_status

TIMEOUT_SEC = 120


def run(*args):
    result = testing.CliRunner().invoke(app.app, ["status", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


def read_json(model_dir):
    code, out, _ = run(model_dir, "--json")
    assert code == 0
    return json.loads(out)


def by_name(job):
    return {f"{m['role']} {m['index']}": m for m in job["members"]}


def wait_for(model_dir, is_there):
    """Looks until a job is as a test expects it; returns it as JSON has it."""
    deadline_sec = time.monotonic() + TIMEOUT_SEC
    while True:
        job = job_status.read_status(str(model_dir)).to_dict()
        if is_there(job):
            return job
        assert time.monotonic() < deadline_sec, json.dumps(job, indent=1)
        time.sleep(0.1)


def scrape(member):
    with urllib.request.urlopen(f"http://{member['facts']['metrics']}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        lines = answer.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def tells_everything(job):
    found = by_name(job)
    workers = [found.get("chief 0"), found.get("worker 1")]
    servers = [found.get("ps 0"), found.get("ps 1")]
    return (
        all(workers)
        and all(servers)
        and all(w["facts"].get("requests_per_step") is not None for w in workers)
        and all(w["facts"].get("examples_per_sec") for w in workers)
        and all(w["facts"].get("steps_behind") is not None for w in workers)
        and sum(s["facts"].get("rows", 0) for s in servers) == sum(counting.NUM_IDS.values())
        and any(checkpoint["is_newest"] for checkpoint in job["checkpoints"])
        and job["controller"]["global_step"]
    )


@pytest.mark.distributed
@pytest.mark.slow
def test_job_that_runs_is_hurt_and_dies(tmp_path):
    model_dir = tmp_path / "model"
    settings = counting.Settings(
        model_dir=str(model_dir),
        num_batches=1_000_000,
        step_sec=0.01,
        save_steps=50,
        metrics_port=0,
    )
    with jobs.Job(tmp_path / "logs") as job:
        started = counting.start_job(job, settings)
        running = wait_for(model_dir, tells_everything)
        assert running["state"] == "running"
        found = by_name(running)
        assert list(found) == ["ps 0", "ps 1", "chief 0", "worker 1"]
        for name, member in found.items():
            assert member["pid"] == started[name.replace("chief", "worker").replace(" ", "-")].pid
            assert member["state"] == "running"
            assert running["time_sec"] - member["seen_sec"] < 10
            assert member["facts"]["resident_bytes"] > 1e7
        worker = found["worker 1"]["facts"]
        assert worker["examples"] == settings.batch_size * worker["steps"]
        # A lookup and an update of two servers: ids and rows, ids again behind the queue, and
        # gradients are 8 tensors; the dense part and the hooks have few.
        assert 8 <= worker["requests_per_step"] <= 40
        # A batch has up to 12 ids of 8 bytes, and rows of 2 floats, in both directions.
        assert 12 * 8 < worker["sent_bytes_per_step"] < 50_000
        assert 12 * 8 < worker["received_bytes_per_step"] < 50_000
        # Both workers are about as fast, and a batch is on its way for 4 steps of its worker.
        assert 1 <= worker["steps_behind"] < 40

        server, worker = scrape(found["ps 1"]), scrape(found["worker 1"])
        assert float(server["monolith_training_rows"]) == found["ps 1"]["facts"]["rows"]
        assert float(server["monolith_training_table_bytes"]) > 0
        assert 'role="ps"' in next(key for key in server if "member_info" in key)
        assert float(worker["monolith_training_steps_total"]) > 0
        assert float(worker["monolith_training_examples_per_sec"]) > 0
        assert worker['monolith_training_state{state="running"}'] == "1.0"
        assert float(worker["process_resident_memory_bytes"]) > 1e7

        code, out, _ = run(model_dir)
        assert code == 0
        assert "job          running" in out
        assert f"{found['ps 0']['address']}" in out
        assert "restored next" in out

        started["worker-1"].send(signal.SIGSTOP)
        wait_for(model_dir, lambda job: by_name(job)["worker 1"]["state"] == "frozen")
        started["worker-1"].kill()
        hurt = wait_for(model_dir, lambda job: (by_name(job)["worker 1"]["steps_missed"] or 0) > 10)
        assert hurt["state"] == "impaired"
        assert by_name(hurt)["worker 1"]["state"] == "gone"
        assert by_name(hurt)["chief 0"]["state"] == "running"
        assert "impaired: worker 1 gone" in run(model_dir)[1]
        # The chief first: one that loses its servers withdraws the address of its controller.
        for name in ("worker-0", "ps-0", "ps-1"):
            started[name].kill()
    dead = read_json(model_dir)
    assert dead["state"] == "dead"
    assert {m["state"] for m in dead["members"]} == {"gone"}
    assert sum(m["facts"]["rows"] for m in dead["members"] if m["role"] == "ps") == 36
    assert dead["controller"]["problem"] == "nobody answers there"
    # The controller knew it better than what members wrote last.
    assert dead["global_step"] >= by_name(hurt)["chief 0"]["facts"]["global_step"]
    (newest,) = [c for c in dead["checkpoints"] if c["is_newest"]]
    assert newest["state"] == "complete"
    out = run(model_dir)[1]
    assert "dead: ps 0 gone, ps 1 gone, chief gone, worker 1 gone, last sign of life " in out


def join(model_dir, role="worker", index=0, **details):
    member = members.Membership(str(model_dir), role, index, "127.0.0.1:1", details=details)
    member.join()
    return member


def test_missing_directory(tmp_path):
    code, _, err = run(tmp_path / "missing")
    assert code == 1
    assert err.startswith("error: There is no directory ")


def test_empty_directory(tmp_path):
    code, out, _ = run(tmp_path)
    assert code == 0
    assert "no job of several processes has left a record here" in out
    assert "checkpoints  none" in out
    assert read_json(tmp_path)["members"] == []


def test_damaged_records_are_named_and_the_others_shown(tmp_path):
    join(tmp_path).leave(members.MemberState.FINISHED)
    text = (tmp_path / "members" / "worker-0.json").read_text()
    values = json.loads(text)
    damaged = {
        "ps-0": "",
        "ps-1": "{",
        "ps-2": "[]",
        "ps-3": text.replace('"index": 0', '"index": "zero"'),
        "ps-4": json.dumps({**values, "beat_sec": None}),
        "ps-5": json.dumps({**values, "state": "happy"}),
        "ps-6": json.dumps({**values, "details": ["rows"]}),
    }
    for name, content in damaged.items():
        (tmp_path / "members" / f"{name}.json").write_text(content)
    (tmp_path / "members" / "ps-7.json").write_bytes(b"\xff\xfe\x00")
    odd = {"rows": "many", "table_bytes": [], "resident_bytes": True, "sent_bytes": None}
    (tmp_path / "members" / "ps-8.json").write_text(
        json.dumps({**values, "role": "ps", "index": 8, "details": odd})
    )
    code, out, _ = run(tmp_path)
    assert code == 0
    for name in (*damaged, "ps-7"):
        assert f"members/{name}.json cannot be read: " in out
    assert "job          finished" in out
    assert "ps 8" in out
    assert len(read_json(tmp_path)["damaged"]) == 8


def test_failed_member_says_why(tmp_path):
    join(tmp_path).leave(members.MemberState.FAILED, "the disk is full")
    code, out, _ = run(tmp_path)
    assert code == 0
    assert "job          failed" in out
    assert "chief: the disk is full" in out


def test_watching_a_job_from_a_pipe_until_ctrl_c(tmp_path):
    join(tmp_path, rows=5).leave(members.MemberState.STOPPED)
    command = [sys.executable, "-m", "monolith.cli.app", "status", str(tmp_path)]
    command += ["--watch", "--json", "--every", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=TIMEOUT_SEC)
    assert process.returncode == 130
    assert looks[0]["time_sec"] < looks[2]["time_sec"]
    assert {look["state"] for look in looks} == {"stopped"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s ago"),
        (119, "119 s ago"),
        (120, "2 min ago"),
        (90_000, "25 h ago"),
        (2e5, "2 d ago"),
    ],
)
def test_ages(seconds, text):
    assert status._ago(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.7, "1 KB"),
        (2.5e9, "2.5 GB"),
        (4e15, "4,000 TB"),
        ("x", "-"),
    ],
)
def test_sizes(size, text):
    assert status._size(size) == text
