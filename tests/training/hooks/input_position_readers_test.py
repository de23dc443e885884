"""Files are gone on with at every batch: nothing is skipped, nothing is read twice.

Every kind of input is read without a stop, and its position is saved at each batch; then it is read
on from each of these positions by somebody who knows nothing but the file of the position. In
processes of their own, which are killed, and in a training that is killed, too.
"""

import gzip
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from support import reading, warm

from monolith.data import columns, csv_files, examples, movies, parquet_files
from monolith.data.schema import Dense, Ids, Label, StringIds
from monolith.training import cpu
from monolith.training.config.job import CpuTrainingConfig
from monolith.training.hooks.input_position import Found, InputPosition

v1 = tf.compat.v1

TESTS = os.fspath(pathlib.Path(__file__).parents[2])
TIMEOUT_SEC = 120
SCHEMA = [Ids("id"), StringIds("tags"), Ids("more"), Dense("price", 2, default=0), Label("click")]
NUM_ROWS = 100


def make_row(i):
    tags = [f"tag {i}", 'a "quoted"\nline, and another'][: i % 3]
    return i, tags, [i * 10 + k for k in range(i % 4)], [i, -i] if i % 5 else None, i % 2


def write_csv(path, numbers, encode=str.encode):
    def quote(cell):
        return '"' + cell.replace('"', '""') + '"' if set(cell) & set(',"\n') else cell

    lines = ["click,unused,id,tags,more,price"]
    for number in numbers:
        i, tags, more, price, click = make_row(number)
        cells = ["|".join(tags), "|".join(map(str, more)), "|".join(map(str, price or []))]
        lines.append(",".join([str(click), "é" * (i % 7), str(i), *map(quote, cells)]))
        lines += [""] * (i % 11 == 0)
    path.write_bytes(encode("\n".join(lines) + "\n"))


def write_parquet(path, numbers):
    ids, tags, more, price, click = zip(*map(make_row, numbers), strict=True)
    table = pa.table(
        {
            "id": ids,
            "tags": pa.array(tags, pa.list_(pa.string())),
            "more": pa.array(more, pa.list_(pa.int64())),
            "price": pa.array(price, pa.list_(pa.float32())),
            "click": click,
        }
    )
    pq.write_table(table, path, row_group_size=13)


def write_records(path, numbers, compression=""):
    with tf.io.TFRecordWriter(os.fspath(path), compression) as writer:
        for number in numbers:
            i, tags, more, price, click = make_row(number)
            example = tf.train.Example()
            features = example.features.feature
            features["id"].int64_list.value.append(i)
            features["tags"].bytes_list.value.extend(tag.encode() for tag in tags)
            features["more"].int64_list.value.extend(more)
            if price:
                features["price"].float_list.value.extend(price)
            features["click"].float_list.value.append(click)
            writer.write(example.SerializeToString())


def write_files(directory):
    """Writes the same rows in each format, in three files."""
    for kind in ("csv", "parquet", "tfrecord"):
        (directory / kind).mkdir()
    parts = [range(37), range(37, 38), range(38, NUM_ROWS)]
    write_csv(directory / "csv" / "1", parts[0], lambda t: b"\xef\xbb\xbf" + t.encode())
    write_csv(directory / "csv" / "2", parts[1], lambda t: t.replace("\n", "\r\n").encode())
    write_csv(directory / "csv" / "3.gz", parts[2], lambda t: gzip.compress(t.encode()))
    for i, numbers in enumerate(parts):
        write_parquet(directory / "parquet" / f"{i}", numbers)
    write_records(directory / "tfrecord" / "1", parts[0])
    write_records(directory / "tfrecord" / "2.gz", parts[1], "GZIP")
    write_records(directory / "tfrecord" / "3", parts[2])


READERS = {"csv": csv_files, "parquet": parquet_files, "tfrecord": examples}


def make_dataset(directory, kind, **batching):
    module = READERS[kind]
    # Many chunks and blocks of small files.
    module._CHUNK_ROWS = 9
    csv_files._BLOCK_BYTES = 200
    batching = columns.Batching(**{"batch_size": 7, **batching})
    return module.dataset(f"{directory}/{kind}/*", SCHEMA, batching=batching)


@pytest.fixture(autouse=True)
def chunk_sizes(monkeypatch):
    for module in READERS.values():
        monkeypatch.setattr(module, "_CHUNK_ROWS", module._CHUNK_ROWS)
    monkeypatch.setattr(csv_files, "_BLOCK_BYTES", csv_files._BLOCK_BYTES)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    write_files(path)
    return path


class Session:
    """Reads a dataset in a graph of its own."""

    def __init__(self, make):
        self._graph = tf.Graph()
        options = tf.data.Options()
        options.autotune.enabled = False  # Its thread is slow to end, and there are many here.
        with self._graph.as_default():
            iterator = v1.data.make_initializable_iterator(make().with_options(options))
            self._batch = iterator.get_next()
            self.position = InputPosition()
            self.session = v1.Session()
            self.session.run(iterator.initializer)

    def read(self):
        """Returns the rows of a batch as plain values; None at the end."""
        try:
            batch = self.session.run(self._batch)
        except tf.errors.OutOfRangeError:
            return None
        lists = [
            value.to_list() if hasattr(value, "to_list") else np.asarray(value).tolist()
            for value in tf.nest.flatten(batch)
        ]
        return [list(row) for row in zip(*lists, strict=True)]

    def read_all(self):
        batches = []
        while (batch := self.read()) is not None:
            batches.append(batch)
        return batches

    def save(self, path):
        assert self.position.save(self.session, os.fspath(path))

    def restore(self, path):
        return self.position.restore(self.session, os.fspath(path))


def check_every_position(make, tmp_path, num_batches):
    """Reads without a stop, and on from each position."""
    whole = Session(make)
    assert whole.position.why_unknown == ""
    batches = []
    while (batch := whole.read()) is not None:
        batches.append(batch)
        whole.save(tmp_path / str(len(batches)))
    assert len(batches) == num_batches
    assert Session(make).read_all() == batches  # To save disturbs nobody.
    for i in range(1, len(batches)):
        other = Session(make)
        assert other.restore(tmp_path / str(i)) is Found.UNFINISHED
        assert other.read_all() == batches[i:], f"after {i} batches"
    other = Session(make)
    assert other.restore(tmp_path / str(len(batches))) is Found.FINISHED
    assert other.read() == batches[0]
    return batches


@pytest.mark.parametrize("kind", READERS)
class TestEveryBatch:
    def test_in_the_order_of_the_files(self, directory, tmp_path, kind):
        batches = check_every_position(lambda: make_dataset(directory, kind), tmp_path, 15)
        rows = [row for batch in batches for row in batch]
        assert [row[1] for row in rows] == [[i] for i in range(NUM_ROWS)]
        assert [row[2] for row in rows] == [make_row(i)[2] for i in range(NUM_ROWS)]
        assert [row[3] for row in rows] == [list(make_row(i)[3] or [0, 0]) for i in range(NUM_ROWS)]

    def test_shuffled_over_several_passes(self, directory, tmp_path, kind):
        def make():
            dataset = make_dataset(directory, kind, shuffle_rows=30, seed=5, batch_size=20)
            return dataset.repeat(2)

        batches = check_every_position(make, tmp_path, 2 * 5)
        ids = [row[1][0] for batch in batches for row in batch]
        assert sorted(ids[:100]) == sorted(ids[100:]) == list(range(NUM_ROWS))
        assert ids[:100] != ids[100:]


@pytest.mark.parametrize(
    ("change", "num_batches"),
    [
        pytest.param(
            lambda d: d.unbatch().shuffle(30, seed=2).ragged_batch(11).prefetch(3),
            10,
            id="shuffled_rows",
        ),
        pytest.param(
            lambda d: tf.data.Dataset.range(2).interleave(lambda _: d, cycle_length=2),
            10,
            id="interleave",
        ),
        pytest.param(
            lambda d: (
                d.filter(lambda b: b["id"].flat_values[0] > 30)
                .map(lambda b: b, num_parallel_calls=2)
                .prefetch(tf.data.AUTOTUNE)
            ),
            3,
            id="filter",
        ),
    ],
)
def test_behind_other_parts_of_a_pipeline(directory, tmp_path, change, num_batches):
    def make():
        return change(make_dataset(directory, "csv", batch_size=20))

    check_every_position(make, tmp_path, num_batches)


def test_synthetic_stream(tmp_path):
    world = movies.World(movies.WorldConfig(num_users=50, num_movies=20, num_examples=30_000))
    check_every_position(lambda: movies.dataset(world, batch_size=2_500, start=1_000), tmp_path, 11)


class TestWhichInput:
    @pytest.fixture
    def own(self, tmp_path):
        (tmp_path / "own").mkdir()
        write_files(tmp_path / "own")
        return tmp_path / "own"

    @pytest.fixture
    def saved(self, own, tmp_path):
        session = Session(lambda: make_dataset(own, "csv"))
        session.read()
        session.save(tmp_path / "saved")
        return tmp_path / "saved"

    @pytest.mark.parametrize(
        "make",
        [
            pytest.param(lambda d: make_dataset(d, "csv", batch_size=8), id="batch_size"),
            pytest.param(lambda d: make_dataset(d, "csv", shuffle_rows=8, seed=1), id="shuffled"),
            pytest.param(lambda d: make_dataset(d, "csv").repeat(2), id="repeated"),
            pytest.param(lambda d: make_dataset(d, "tfrecord"), id="format"),
            pytest.param(
                lambda d: csv_files.dataset(
                    [d / "csv" / "1", d / "csv" / "3.gz"],
                    SCHEMA,
                    batching=columns.Batching(batch_size=7),
                ),
                id="files",
            ),
            pytest.param(
                lambda d: csv_files.dataset(
                    d / "csv" / "*", SCHEMA[:-1], batching=columns.Batching(batch_size=7)
                ),
                id="schema",
            ),
        ],
    )
    def test_another_one_starts_at_its_beginning(self, own, saved, make):
        session = Session(lambda: make(own))
        assert session.restore(saved) is Found.OTHER_INPUT
        assert session.read() == Session(lambda: make(own)).read()

    def test_also_if_a_file_was_written_anew(self, own, saved):
        path = own / "csv" / "2"
        content, times = path.read_bytes(), path.stat()
        path.write_bytes(content.replace(b"37", b"38"))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
        session = Session(lambda: make_dataset(own, "csv"))
        assert session.restore(saved) is Found.OTHER_INPUT

    def test_another_seed_is_the_same_one(self, own, tmp_path):
        """A position brings its order along."""
        first = Session(lambda: make_dataset(own, "csv", shuffle_rows=50, seed=1))
        batches = [first.read()]
        first.save(tmp_path / "shuffled")
        batches += first.read_all()
        other = Session(lambda: make_dataset(own, "csv", shuffle_rows=50, seed=2))
        assert other.restore(tmp_path / "shuffled") is Found.UNFINISHED
        assert other.read_all() == batches[1:]

    def test_a_damaged_position_is_one_line_in_the_log(self, own, saved, caplog):
        saved.write_bytes(saved.read_bytes()[:-1])
        session = Session(lambda: make_dataset(own, "csv"))
        with caplog.at_level(logging.WARNING):
            assert session.restore(saved) is Found.UNREADABLE
        [record] = caplog.records
        assert record.getMessage().endswith("saved is of no use: its content is not what was saved")
        assert session.read()[0][1] == [0]


class TestWithoutPosition:
    def test_one_that_tensorflow_cannot_save_is_one_line_in_the_log(self, tmp_path, caplog):
        def make():
            copy = tf.data.experimental.copy_to_device("/cpu:0")
            return tf.data.Dataset.range(9).apply(copy)

        session = Session(make)
        with caplog.at_level(logging.INFO):
            for _ in range(3):
                assert not session.position.save(session.session, f"{tmp_path}/position")
        [record] = caplog.records
        assert record.getMessage() == (
            "a training that starts again reads its input from the beginning, since it has no "
            "position to save: GeneratorDataset does not support checkpointing."
        )
        assert not (tmp_path / "position").exists()

    def test_a_python_function_says_what_to_do(self):
        def make():
            spec = tf.TensorSpec([], tf.int64)
            return tf.data.Dataset.from_generator(lambda: iter(range(3)), output_signature=spec)

        why = Session(make).position.why_unknown
        assert why.startswith("its pipeline calls a Python function (PyFunc)")
        assert why.endswith("read files with `monolith.data` or with ops of `tf.data` alone")

    @pytest.mark.slow
    @pytest.mark.distributed
    def test_a_training_with_one_has_no_trace_in_its_log(self, tmp_path):
        file = reading.write_numbers(tmp_path / "numbers.txt", range(30))
        for _ in range(2):
            child = reading.start_child(
                model_dir=tmp_path / "model", files=[file], steps=12, task={"python": True}
            )
            _, log = child.communicate(timeout=TIMEOUT_SEC)
            assert child.returncode == 0, log
            assert "Traceback" not in log
            assert log.count("from the beginning") == 1


@pytest.mark.slow
@pytest.mark.distributed
def test_in_processes_that_are_killed(directory, tmp_path):
    """Each reads some batches of all formats, saves, and is killed; the next one goes on."""
    for steps in (4, 1, 6, None):
        job = {"files": directory, "out": tmp_path, "steps": steps}
        arguments = [__file__, json.dumps(job, default=os.fspath)]
        env = {**os.environ, "PYTHONPATH": TESTS}
        if steps == 1:
            # A new interpreter, whose `hash` differs from that of those before and after it.
            child = subprocess.run(
                [sys.executable, *arguments],
                env={**env, "PYTHONHASHSEED": "1"},
                capture_output=True,
                timeout=TIMEOUT_SEC,
                check=False,
            )
        else:
            child = warm.run(arguments, env=env, timeout=TIMEOUT_SEC)
        assert child.returncode == (0 if steps is None else -signal.SIGKILL), child
    for kind in READERS:
        for settings in ({}, {"shuffle_rows": 30, "seed": 5}):
            lines = (tmp_path / f"{kind}{len(settings)}.seen").read_text().splitlines()
            whole = Session(lambda k=kind, s=settings: make_dataset(directory, k, **s)).read_all()
            assert [json.loads(line) for line in lines] == whole


def run_child(job):
    v1.disable_eager_execution()
    for kind in READERS:
        for settings in ({}, {"shuffle_rows": 30, "seed": 5}):
            session = Session(lambda k=kind, s=settings: make_dataset(job["files"], k, **s))
            name = f"{job['out']}/{kind}{len(settings)}"
            found = session.restore(f"{name}.position")
            assert found in (Found.UNFINISHED, Found.NOTHING), found
            with open(f"{name}.seen", "a") as file:
                num_read = 0
                while num_read != job["steps"] and (batch := session.read()) is not None:
                    file.write(json.dumps(batch) + "\n")
                    num_read += 1
            session.save(f"{name}.position")
    if job["steps"] is not None:
        os.kill(os.getpid(), signal.SIGKILL)


class ReaderTask(reading.ReadingTask):
    """Reads a number per batch from CSV files."""

    def create_input_fn(self, mode):
        if mode == "infer":
            return super().create_input_fn(mode)

        def input_fn():
            batching = columns.Batching(batch_size=1, shuffle_rows=30, seed=1)
            dataset = csv_files.dataset(self.p.files, [Ids("feature")], batching=batching)
            return dataset.map(lambda b: {**b, "number": b["feature"].flat_values[0]})

        return input_fn


class DieHook(v1.train.SessionRunHook):
    def __init__(self, num_steps):
        self._num_steps = num_steps

    def after_run(self, run_context, run_values):
        self._num_steps -= 1
        if self._num_steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def train(model_dir, files, die_after=None):
    task = ReaderTask.params()
    task.set(files=files)
    hooks = [] if die_after is None else [DieHook(die_after)]
    config = CpuTrainingConfig(save_checkpoints_steps=4)
    cpu.local_train_internal(task, config, os.fspath(model_dir), user_hooks=hooks)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("graph_mode")
def test_in_a_training_that_is_killed(tmp_path):
    """Every row of the file has been trained on once, whatever the process was doing."""
    for part in range(2):
        numbers = range(part * 25, part * 25 + 25)
        (tmp_path / f"{part}.csv").write_text("feature\n" + "".join(f"{n}\n" for n in numbers))
    files = [f"{tmp_path}/0.csv", f"{tmp_path}/1.csv"]
    for die_after in (6, 15, 11):
        job = {"model_dir": tmp_path / "model", "files": files, "die_after": die_after}
        child = warm.Program(
            [__file__, json.dumps(job, default=os.fspath)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": TESTS},
        )
        output = child.communicate(timeout=TIMEOUT_SEC)
        assert child.returncode == -signal.SIGKILL, output
    train(tmp_path / "model", files)
    assert reading.read_rows(tmp_path / "model") == [1] * 50 + [0] * 50


if __name__ == "__main__":
    JOB = json.loads(sys.argv[1])
    if "model_dir" in JOB:
        v1.disable_eager_execution()
        train(**JOB)
    else:
        run_child(JOB)
