"""Which datasets are the same input."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from monolith.data import columns, csv_files, identity
from monolith.data.schema import Ids

pytestmark = pytest.mark.usefixtures("graph_mode")


def identify(*datasets):
    return identity.identify([dataset._variant_tensor for dataset in datasets])


def make_pipeline(files, factor=2):
    """Has functions, constants, a nested dataset and a shuffle."""
    dataset = tf.data.Dataset.list_files(files).interleave(
        lambda path: tf.data.TextLineDataset(path).filter(lambda line: line != b""),
        cycle_length=2,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    dataset = dataset.map(lambda line: tf.strings.to_number(line, tf.int64) * factor)
    return dataset.shuffle(10).batch(2).prefetch(tf.data.AUTOTUNE)


@pytest.fixture
def files(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("1\n2\n")
    return str(tmp_path / "*.txt")


def test_is_the_same_in_another_process(files):
    """What was built before does not matter, nor how things are called."""
    before = (
        "tf.data.Dataset.range(3).map(lambda x: x + 1).batch(2)\n"
        "tf.compat.v1.set_random_seed(7)\n"
        "tf.name_scope('other').__enter__()\n"
    )
    children = []
    for prelude in ("", before):
        program = (
            f"import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})\n"
            "import tensorflow as tf; tf.compat.v1.disable_eager_execution()\n"
            f"import identity_test\n{prelude}"
            f"print(identity_test.identify(identity_test.make_pipeline({files!r})))\n"
        )
        children.append(
            subprocess.Popen(
                [sys.executable, "-c", program],
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONHASHSEED": str(len(children))},
            )
        )
    first, second = (child.communicate(timeout=120)[0].strip() for child in children)
    assert len(first) == 64
    assert first == second


def test_seeds_have_no_part_in_it():
    def make(seed, op_seed):
        with tf.Graph().as_default():
            tf.compat.v1.set_random_seed(seed)
            return identify(tf.data.Dataset.range(5).shuffle(3, seed=op_seed).repeat(2))

    assert make(1, None) == make(2, None) == make(1, 7)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda i: tf.data.Dataset.range(3 + i), id="constant"),
        pytest.param(lambda i: tf.data.Dataset.range(3).repeat(1 + i), id="length"),
        pytest.param(lambda i: tf.data.Dataset.range(3).map(lambda x: x * (2 + i)), id="function"),
        pytest.param(lambda i: tf.data.Dataset.range(4).shard(2, i), id="shard"),
        pytest.param(lambda i: tf.data.Dataset.from_tensors({"a": [i, 2, 3]}), id="array"),
        pytest.param(
            lambda i: tf.data.Dataset.range(9).flat_map(
                lambda x: tf.data.Dataset.range(x).map(lambda y: y + i)
            ),
            id="function_of_a_function",
        ),
        pytest.param(
            lambda i: tf.data.Dataset.range(9).map(
                lambda x: tf.cond(x > 3, lambda: x + i, lambda: x)
            ),
            id="branch",
        ),
        pytest.param(
            lambda i: [tf.data.Dataset.range, tf.data.Dataset.from_tensors][i](3), id="source"
        ),
    ],
)
def test_each_part_of_the_pipeline_counts(make):
    assert identify(make(0)) == identify(make(0))
    assert identify(make(0)) != identify(make(1))


class TestFiles:
    def test_the_same(self, files):
        assert identify(make_pipeline(files)) == identify(make_pipeline(files))

    def test_one_more(self, files, tmp_path):
        before = identify(make_pipeline(files))
        (tmp_path / "c.txt").write_text("3\n")
        assert identify(make_pipeline(files)) != before

    def test_one_that_has_grown(self, files, tmp_path):
        path = tmp_path / "a.txt"
        before, times = identify(make_pipeline(files)), path.stat()
        path.write_text("1\n2\n3\n")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert identify(make_pipeline(files)) != before

    def test_one_that_was_written_again(self, files, tmp_path):
        before = identify(make_pipeline(files))
        os.utime(tmp_path / "a.txt", (1, 1))
        assert identify(make_pipeline(files)) != before

    def test_other_names(self, tmp_path):
        for name in ("a", "b"):
            (tmp_path / name).write_text("1\n")
            os.utime(tmp_path / name, (1, 1))
        first, second = (identify(tf.data.TextLineDataset(str(tmp_path / n))) for n in "ab")
        assert first != second

    def test_strings_that_are_no_paths(self):
        strings = [b"", b"\xff\xfe", b"a\0b", b"x" * 5000, b"nothing://there", b"/", b"[", b"*/\n"]
        dataset = tf.data.Dataset.from_tensor_slices(strings)
        assert identify(dataset) == identify(dataset)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(
            lambda: tf.data.Dataset.from_generator(
                lambda: iter(range(3)), output_signature=tf.TensorSpec([], tf.int64)
            ),
            "calls a Python function",
            id="generator",
        ),
        pytest.param(
            lambda: tf.data.Dataset.range(3).map(
                lambda x: tf.numpy_function(lambda y: y, [x], tf.int64)
            ),
            "calls a Python function",
            id="function",
        ),
        pytest.param(
            lambda: tf.data.TextLineDataset(tf.compat.v1.placeholder(tf.string, [])),
            "is fed from outside",
            id="placeholder",
        ),
    ],
)
def test_what_cannot_be_told_from_others(make, reason):
    with pytest.raises(identity.UnknownInputError, match=reason):
        identify(make())


class TestReaders:
    """The readers of this package call a Python function, but say what it reads."""

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "a.csv"
        path.write_text("id,other\n1,5\n2,6\n")
        return path

    def make(self, path, schema=None, options=None, **batching):
        batching = columns.Batching(**batching)
        return csv_files.dataset(path, schema or [Ids("id")], batching=batching, **(options or {}))

    def test_are_known(self, path):
        assert identify(self.make(path)) == identify(self.make(path))
        assert identify(self.make(path).repeat(2)) != identify(self.make(path))

    def test_whatever_was_built_before(self, path):
        first = identify(self.make(path))
        with tf.Graph().as_default():
            tf.numpy_function(lambda x: x, [1], tf.int64)
            with tf.name_scope("other"):
                assert identify(self.make(path)) == first

    @pytest.mark.parametrize(
        "changes",
        [
            {"schema": [Ids("id"), Ids("other")]},
            {"schema": [Ids("id", column="other")]},
            {"schema": [Ids("id", optional=True)]},
            {"options": {"delimiter": ",", "list_separator": ";"}},
            {"options": {"column_names": ["id", "b"]}, "schema": [Ids("id", column="b")]},
            {"batch_size": 8},
            {"drop_remainder": True},
            {"shuffle_rows": 8},
        ],
    )
    def test_settings_count(self, path, changes):
        if "column_names" in changes.get("options", {}):
            path.write_text("1,5\n2,6\n")
            before = identify(self.make(path, [Ids("b")], {"column_names": ["id", "b"]}))
        else:
            before = identify(self.make(path))
        assert identify(self.make(path, **changes)) != before

    def test_seeds_do_not(self, path):
        first, second = (self.make(path, shuffle_rows=8, seed=seed) for seed in (1, 2))
        assert identify(first) == identify(second)

    def test_files_count(self, path, tmp_path):
        before = identify(self.make(path))
        assert identify(self.make([path, path])) != before
        os.utime(path, (1, 1))
        assert identify(self.make(path)) != before

    def test_another_python_function_behind_one_is_not_known(self, path):
        dataset = self.make(path).map(
            lambda batch: tf.numpy_function(lambda x: x, [batch["id"].flat_values], tf.int64)
        )
        with pytest.raises(identity.UnknownInputError, match="calls a Python function"):
            identify(dataset)


def test_long_pipelines_and_loops():
    dataset = tf.data.Dataset.range(1)
    for i in range(1200):
        dataset = dataset.concatenate(tf.data.Dataset.range(i))
    assert identify(dataset) == identify(dataset)
    with tf.Graph().as_default():
        tf.compat.v1.disable_control_flow_v2()
        try:
            count = tf.while_loop(lambda i: i < 3, lambda i: i + 1, [tf.constant(0)])
            assert identify(tf.data.Dataset.from_tensors(count))
        finally:
            tf.compat.v1.enable_control_flow_v2()
