"""Whatever happens to a process that saves, or to its disk, the newest checkpoint is whole.

Processes are killed at random instants and at each point of the protocol of a save; what the next
one restores is compared with what was saved. Bytes are flipped, the disk runs full.

Covers monolith/checkpoint/failpoints.py.
"""

import concurrent.futures
import contextlib
import importlib.util
import json
import os
import pathlib
import random
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import defaultdict

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from monolith.checkpoint import failpoints, manifest

CHILD = pathlib.Path(__file__).with_name("checkpoint_crash_child.py")
SEED = 20260117
# The full run: MONOLITH_SAVE_KILLS=200.
NUM_KILLS = int(os.environ.get("MONOLITH_SAVE_KILLS", "60"))
NUM_LANES = 2

IN_EACH_SAVE = (
    failpoints.MARKED,
    failpoints.TABLES_WRITTEN,
    failpoints.VARIABLES_WRITTEN,
    failpoints.MANIFEST_WRITTEN,
    failpoints.LISTED,
    failpoints.UNMARKED,
)

# Everything that a model directory may hold when nobody saves.
_KNOWN_FILE = re.compile(
    r"checkpoint|monolith_checkpoint|graph\.pbtxt|meta_graph_for_debugging\.pb|ckpt\.info-\d+"
    r"|events\.out\..*"
)


def load_child_module():
    spec = importlib.util.spec_from_file_location("checkpoint_crash_child", CHILD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Server:
    """The process that forks children, and one child of it at a time."""

    def __init__(self, log):
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._unread = b""
        self._pid = None

    def wait_until_ready(self):
        assert self.read(120) == {"event": "ready"}

    def start(self, **job):
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        event = self.read(60)
        assert event["event"] == "started"
        self._pid = event["pid"]
        return self._pid

    def read(self, timeout_sec):
        """Returns the next event, None if there is none in time."""
        deadline = time.monotonic() + timeout_sec
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                return None
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            assert data, "the process that forks has ended"
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        event = json.loads(line)
        if event["event"] == "ended":
            self._pid = None
        return event

    def close(self):
        if self._pid is not None:  # A test has failed.
            os.kill(self._pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self._selector.close()


class Run:
    """A model directory whose owners are killed one after the other.

    It follows what was saved, and so knows what each new owner must find.
    """

    def __init__(self, server, model_dir):
        self._server = server
        self.model_dir = pathlib.Path(model_dir)
        self._next_tag = 1
        # What a step may hold: what was saved last, and what may have been since.
        self._tags = defaultdict(set, {0: {0}})
        # The steps that may be the newest.
        self._newest = {0}
        self.num_restores = 0
        self._save_began_sec = 0.0
        # How long the last save took: a busy machine takes many times as long as a quiet one.
        self.save_sec = 0.1

    def start(self, num_saves=1000, **job):
        tag, self._next_tag = self._next_tag, self._next_tag + num_saves
        return self._server.start(
            model_dir=str(self.model_dir), first_tag=tag, num_saves=num_saves, **job
        )

    def follow(self, timeout_sec, until=None):
        """Takes notice of what the child does until an event, or for some time."""
        deadline = time.monotonic() + timeout_sec
        while True:
            event = self._server.read(max(0, deadline - time.monotonic()))
            if event is None:
                assert until is None, f"the child did not get as far as {until!r}"
                return None
            self._note(**event)
            if event["event"] in (until, "ended"):
                return event

    def _note(self, event, step=0, tag=0, error=None, **_):
        assert event != "failed", error
        if event == "restored":
            assert step in self._newest, f"restored step {step}, expected one of {self._newest}"
            assert tag in self._tags[step], f"step {step} has {tag}, not of {self._tags[step]}"
            self._newest, self._tags[step] = {step}, {tag}
            self.num_restores += 1
        elif event == "saving":
            self._save_began_sec = time.monotonic()
            self._newest.add(step)
            self._tags[step].add(tag)
        elif event == "saved":
            self.save_sec = time.monotonic() - self._save_began_sec
            self._newest, self._tags[step] = {step}, {tag}

    def finish(self):
        """Has a last child restore, save, and end by itself; then nothing is left over."""
        self.start(num_saves=3)
        assert self.follow(120, until="ended")["signal"] == 0
        assert_no_leftovers(self.model_dir)

    def go_back(self):
        """Lets the next child start from the older one of two checkpoints, as users may."""
        path = self.model_dir / "checkpoint"
        if not path.exists():
            return
        state = text_format.Parse(path.read_text(), CheckpointState())
        if len(state.all_model_checkpoint_paths) == 2:
            state.model_checkpoint_path = state.all_model_checkpoint_paths[0]
            path.write_text(text_format.MessageToString(state))
            self._newest = {int(state.model_checkpoint_path.rpartition("-")[2])}

    def has_unfinished(self):
        return any(self.model_dir.glob("*.unfinished"))


def assert_no_leftovers(model_dir):
    state = text_format.Parse((model_dir / "checkpoint").read_text(), CheckpointState())
    listed = {os.path.basename(path) for path in state.all_model_checkpoint_paths}
    assert not [name for name in listed if name.startswith("replaced-")]
    counted = {path.name.removeprefix("ckpt.info-") for path in model_dir.glob("ckpt.info-*")}
    assert counted == {name.rpartition("-")[2] for name in listed}
    names = {path.name for path in model_dir.iterdir() if not _KNOWN_FILE.fullmatch(path.name)}
    parts = ("assets", "data-00000-of-00001", "index", "meta")
    manifests = {f"manifest-{name}" for name in listed}
    assert names == manifests | {f"{name}.{part}" for name in listed for part in parts}
    for name in listed:
        files = json.loads((model_dir / f"manifest-{name}").read_text().rpartition("\nsha256")[0])
        inside = {f".assets/{path.name}" for path in (model_dir / f"{name}.assets").iterdir()}
        assert inside == {suffix for suffix in files["files"] if suffix.startswith(".assets/")}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Processes that have imported everything, one for each lane."""
    with contextlib.ExitStack() as stack:
        log = open(tmp_path_factory.mktemp("children") / "log", "wb")  # noqa: SIM115
        stack.enter_context(log)
        started = [stack.enter_context(contextlib.closing(Server(log))) for _ in range(NUM_LANES)]
        for server in started:
            server.wait_until_ready()
        yield started


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.timeout(900)
class TestKilled:
    def test_at_random_instants(self, tmp_path, servers):
        runs = [Run(server, tmp_path / f"lane{i}") for i, server in enumerate(servers)]
        with concurrent.futures.ThreadPoolExecutor(NUM_LANES) as executor:
            results = list(executor.map(kill_at_random, runs, range(NUM_LANES)))
        num_kills, num_restores, num_unfinished = (sum(r) for r in zip(*results, strict=True))
        print(f"{num_kills} kills, {num_unfinished} in a save, {num_restores} restores")
        assert num_kills == NUM_KILLS
        # Kills that hit a process while it starts are not followed by a restore of their own.
        assert num_restores > 0.8 * NUM_KILLS
        # Otherwise the kills have missed what they are meant for.
        assert num_unfinished > 0.3 * NUM_KILLS

    def test_at_each_point_of_the_protocol(self, tmp_path, servers):
        kills = [
            *((point, 1) for point in failpoints.ALL),
            # The third save of a child is one of a step that is listed already.
            *((point, 3) for point in IN_EACH_SAVE),
            *((failpoints.TEMPORARY_WRITTEN, hits) for hits in range(2, 10)),
            *((failpoints.PARTLY_REMOVED, hits) for hits in (2, 4, 6, 8)),
        ]
        run = Run(servers[0], tmp_path / "model")
        run.model_dir.mkdir()
        for point, hits in kills:
            if point in (failpoints.OLD_LINKED, failpoints.OLD_LISTED):
                # What is killed here is undone at the next start.
                kill_at(run, failpoints.TABLES_WRITTEN, 3)
            kill_at(run, point, hits)
        run.finish()
        print(f"{len(kills)} kills, {run.num_restores} restores")
        assert run.num_restores > len(kills) / 2


def kill_at_random(run, lane):
    rng = random.Random(SEED + lane)
    num_unfinished = 0
    run.model_dir.mkdir()
    num_kills = NUM_KILLS // NUM_LANES
    for _ in range(num_kills):
        if rng.random() < 0.2:
            run.go_back()
        pid = run.start()
        if rng.random() < 0.9:
            run.follow(120, until="restored")
            if rng.random() < 0.7:
                run.follow(120, until="saving")
            run.follow(rng.uniform(0, 1.2 * run.save_sec))
        else:
            run.follow(rng.uniform(0, 0.6))
        os.kill(pid, signal.SIGKILL)
        assert run.follow(120, until="ended")["signal"] == signal.SIGKILL
        num_unfinished += run.has_unfinished()
    run.finish()
    return num_kills, run.num_restores, num_unfinished


def kill_at(run, point, hits):
    run.start(num_saves=6, point=point, hits=hits)
    ended = run.follow(120, until="ended")
    assert ended["signal"] == signal.SIGKILL, f"{point} was not reached {hits} times"


@pytest.fixture(scope="module")
def child():
    return load_child_module()


def save(child, model_dir, contents):
    """Trains and saves once for each step and tag; returns the prefix of the last checkpoint."""
    with tf.Graph().as_default():
        model = child.Model(model_dir)
        with model.open_session(model_dir) as monitored:
            session = monitored._tf_sess()
            for step, tag in contents:
                model.train(session, step, tag)
                model.saver_hook.trigger_save(session)
            model.saver_hook.timer.update_last_triggered_step(step)
    return os.path.join(model_dir, f"model.ckpt-{step}")


def find_files(prefix):
    directory, name = os.path.split(prefix)
    files = [path for path in pathlib.Path(directory).glob(f"{name}.*") if path.is_file()]
    files.append(pathlib.Path(manifest.get_path(prefix)))
    return sorted([*files, *pathlib.Path(f"{prefix}.assets").iterdir()])


class TestDamaged:
    def test_flipped_byte_anywhere_is_found_and_the_file_named(self, child, tmp_path):
        rng = random.Random(SEED)
        prefix = save(child, str(tmp_path), [(1, 11)])
        num_flips = 0
        with tf.Graph().as_default():
            model = child.Model(str(tmp_path))
            with model.open_session(str(tmp_path)) as monitored:
                session = monitored._tf_sess()

                def restore_all():
                    model.saver.restore(session, prefix)
                    for restorer in model.restorers:
                        restorer.before_restore(session)

                files = find_files(prefix)
                assert len(files) == 4 + 2 * 2 + 2 + 5  # Two tables, their lists, one filter.
                for path in files:
                    content = path.read_bytes()
                    size = len(content)
                    offsets = {0, size // 2, size - 1, *(rng.randrange(size) for _ in range(8))}
                    for offset in sorted(offsets):
                        damaged = bytearray(content)
                        damaged[offset] ^= 1 << rng.randrange(8)
                        path.write_bytes(damaged)
                        with pytest.raises(tf.errors.DataLossError) as error:
                            restore_all()
                        assert str(path) in error.value.message, offset
                        num_flips += 1
                    for damaged in (content[:-1], content + b"\0", b""):
                        path.write_bytes(damaged)
                        with pytest.raises(tf.errors.DataLossError) as error:
                            restore_all()
                        assert str(path) in error.value.message, f"{len(damaged)} bytes"
                    path.unlink()
                    if path.suffix != ".index" and not path.name.startswith("manifest-"):
                        with pytest.raises(tf.errors.DataLossError) as error:
                            restore_all()
                        assert str(path) in error.value.message, "no file"
                    path.write_bytes(content)
                restore_all()
                assert model.read(session) == (1, 11)

                # Of a large file the manifest knows samples; the rest is up to its own checksums.
                os.remove(manifest.get_path(prefix))
                for path in files:
                    if not re.search(r"-\d{5}-of-\d{5}$", path.name):
                        continue
                    content = path.read_bytes()
                    for offset in sorted({0, len(content) // 2, len(content) - 1}):
                        damaged = bytearray(content)
                        damaged[offset] ^= 1 << rng.randrange(8)
                        path.write_bytes(damaged)
                        with pytest.raises(tf.errors.DataLossError) as error:
                            restore_all()
                        assert str(path) in error.value.message, offset
                    path.write_bytes(content)
        print(f"{num_flips} flipped bytes in {len(files)} files")
        assert num_flips > 10 * len(files)

    @pytest.mark.parametrize(
        "damaged",
        [
            "index",
            "meta",
            "data-00000-of-00001",
            "assets/MonolithHashTable_single-00000-of-00001",
            "assets/MonolithMultiHashTable_multi-00000-of-00001",
            "assets/MonolithMultiHashTable_multi.meta-00000-of-00001",
            "assets/hash_filter_0-00003-of-00005",
            None,
        ],
    )
    def test_older_checkpoint_is_restored_only_if_asked_for(self, child, tmp_path, caplog, damaged):
        prefix = save(child, str(tmp_path), [(1, 11), (2, 12)])
        path = pathlib.Path(f"{prefix}.{damaged}" if damaged else manifest.get_path(prefix))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

        with tf.Graph().as_default():
            model = child.Model(str(tmp_path))
            with pytest.raises(tf.errors.DataLossError) as error:
                model.open_session(str(tmp_path))
        assert str(path) in error.value.message

        with tf.Graph().as_default():
            model = child.Model(str(tmp_path), fall_back_to_older_checkpoint=True)
            with model.open_session(str(tmp_path)) as monitored:
                session = monitored._tf_sess()
                assert model.read(session) == (1, 11)
                assert f"skipping checkpoint {prefix}, it is damaged: {path}" in caplog.text
                assert read_listed(tmp_path) == ["model.ckpt-1"]
                model.train(session, 3, 13)
                model.saver_hook.trigger_save(session)
                model.saver_hook.timer.update_last_triggered_step(3)
        assert read_listed(tmp_path) == ["model.ckpt-1", "model.ckpt-3"]
        assert path.read_bytes() == content  # For somebody to look at.

    def test_shard_of_another_run_is_refused(self, child, tmp_path):
        """It is whole, of the same table, the same step and the same size."""
        shard = "MonolithHashTable_single-00000-of-00001"
        (tmp_path / "mine").mkdir()
        (tmp_path / "other").mkdir()
        prefix = save(child, str(tmp_path / "mine"), [(1, 11)])
        other = save(child, str(tmp_path / "other"), [(1, 12)])
        mine = pathlib.Path(f"{prefix}.assets", shard)
        size = mine.stat().st_size
        os.replace(f"{other}.assets/{shard}", mine)
        assert mine.stat().st_size == size
        with tf.Graph().as_default():
            model = child.Model(str(tmp_path / "mine"))
            with pytest.raises(tf.errors.DataLossError, match=f"{mine} is damaged: its content"):
                model.open_session(str(tmp_path / "mine"))

    def test_no_older_checkpoint(self, child, tmp_path):
        prefix = save(child, str(tmp_path), [(1, 11)])
        os.remove(f"{prefix}.assets/hash_table_shards.json")
        with tf.Graph().as_default():
            model = child.Model(str(tmp_path), fall_back_to_older_checkpoint=True)
            with pytest.raises(tf.errors.DataLossError, match="no older checkpoint") as error:
                model.open_session(str(tmp_path))
        assert f"{prefix}.assets/hash_table_shards.json is missing" in error.value.message

    @pytest.mark.parametrize("content", ["", "model_checkpoint_path: 1", "\xff", "a\0b"])
    def test_list_that_cannot_be_read_is_no_new_beginning(self, child, tmp_path, content):
        save(child, str(tmp_path), [(1, 11)])
        (tmp_path / "checkpoint").write_text(content, encoding="latin-1")
        with tf.Graph().as_default():
            model = child.Model(str(tmp_path))
            with pytest.raises(tf.errors.DataLossError, match=f"{tmp_path}/checkpoint is no list"):
                model.open_session(str(tmp_path))

    def test_checkpoint_without_a_manifest_is_restored_as_before(self, child, tmp_path):
        prefix = save(child, str(tmp_path), [(1, 11)])
        os.remove(manifest.get_path(prefix))
        assert restore(child, tmp_path) == (1, 11)


def read_listed(model_dir):
    state = text_format.Parse((model_dir / "checkpoint").read_text(), CheckpointState())
    assert state.model_checkpoint_path == state.all_model_checkpoint_paths[-1]
    return [os.path.basename(path) for path in state.all_model_checkpoint_paths]


def find_saved(model_dir):
    """Returns all names of files below the directory that belong to checkpoints."""
    names = {str(path.relative_to(model_dir)) for path in model_dir.rglob("*")}
    return {name for name in names if not _KNOWN_FILE.fullmatch(name)}


class TestFailed:
    @pytest.mark.parametrize("step", [2, 3], ids=["listed_step", "new_step"])
    def test_save_that_fails_anywhere_leaves_what_was_there(
        self, child, tmp_path, monkeypatch, step
    ):
        save(child, str(tmp_path), [(1, 10), (2, 11)])
        before = find_saved(tmp_path)
        points = failpoints.ALL[: failpoints.ALL.index(failpoints.LISTED)]
        if step == 3:
            points = points[points.index(failpoints.MARKED) :]
        reached = set()

        def fail(name):
            if name == point:
                reached.add(name)
                raise tf.errors.InternalError(None, None, f"failed at {name}")

        with tf.Graph().as_default():
            model = child.Model(str(tmp_path))
            with model.open_session(str(tmp_path)) as monitored:
                session = monitored._tf_sess()
                model.train(session, step, 12)
                for point in points:
                    with monkeypatch.context() as patch:
                        patch.setattr(failpoints, "on_reach", fail)
                        with pytest.raises(tf.errors.InternalError, match=f"failed at {point}"):
                            model.saver_hook.trigger_save(session)
                    assert find_saved(tmp_path) == before, point
                    assert read_listed(tmp_path) == ["model.ckpt-1", "model.ckpt-2"], point
                model.saver_hook.trigger_save(session)
                model.saver_hook.timer.update_last_triggered_step(step)
        assert reached == set(points)
        assert_no_leftovers(tmp_path)
        assert restore(child, tmp_path) == (step, 12)

    def test_full_disk(self, child, tmp_path):
        """With less and less free space the save fails at one place after the other."""
        disk = tmp_path / "disk"
        disk.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True
        )
        if mounted.returncode:
            pytest.skip(f"no small disk to fill: {mounted.stderr.decode().strip()}")
        try:
            num_failures = fill_disk(child, disk, disk / "model")
        finally:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
        print(f"{num_failures} saves failed on a full disk")
        assert num_failures >= 5


def fill_disk(child, disk, model_dir):
    save(child, str(model_dir), [(1, 10), (2, 11)])
    before = find_saved(model_dir)
    num_failures = 0
    with tf.Graph().as_default():
        model = child.Model(str(model_dir))
        with model.open_session(str(model_dir)) as monitored:
            session = monitored._tf_sess()
            step = 2
            for free_kb in (0, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192):
                step += 1
                model.train(session, step, 100 + step)
                fill(disk, free_kb << 10)
                model.saver_hook.trigger_save(session, ignore_save_errors=True)
                if read_listed(model_dir)[-1] != f"model.ckpt-{step}":
                    num_failures += 1
                    assert find_saved(model_dir) == before, f"with {free_kb} KB"
                    message = f"Step {step} was not saved, the disk of {model_dir} is full: .*No sp"
                    with pytest.raises(tf.errors.ResourceExhaustedError, match=message):
                        model.saver_hook.trigger_save(session)
                    assert find_saved(model_dir) == before, f"with {free_kb} KB"
                    (disk / "ballast").unlink()
                    model.saver_hook.trigger_save(session)
                (disk / "ballast").unlink(missing_ok=True)
                assert_no_leftovers(model_dir)
                before = find_saved(model_dir)
            model.saver_hook.timer.update_last_triggered_step(step)
    assert restore(child, model_dir) == (step, 100 + step)
    return num_failures


def fill(disk, free_bytes):
    """Writes a file that leaves so much space."""
    status = os.statvfs(disk)
    with open(disk / "ballast", "wb") as file:
        file.write(bytes(status.f_bavail * status.f_frsize - free_bytes))


def restore(child, model_dir):
    """Returns the step and the tag that a new process would start from."""
    with tf.Graph().as_default():
        model = child.Model(str(model_dir))
        with model.open_session(str(model_dir)) as monitored:
            content = model.read(monitored._tf_sess())
            model.saver_hook.timer.update_last_triggered_step(content[0])
    return content
