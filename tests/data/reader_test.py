"""Readers: what they check, give and say.

Covers monolith/data/__init__.py, monolith/data/eager.py.
"""

import pickle
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import monolith.data as data
from monolith import errors

SCHEMA = [data.Ids("user"), data.Label("click")]
USERS = list(range(10))


@pytest.fixture(params=["csv", "parquet", "tfrecord"])
def kind(request):
    return request.param


def write(kind, path, users=USERS):
    if kind == "csv":
        path.write_text("user,click\n" + "".join(f"{user},{user % 2}\n" for user in users))
    elif kind == "parquet":
        clicks = [float(user % 2) for user in users]
        pq.write_table(pa.table({"user": users, "click": clicks}), path)
    else:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for user in users:
                example = tf.train.Example()
                example.features.feature["user"].int64_list.value.append(user)
                example.features.feature["click"].float_list.value.append(user % 2)
                writer.write(example.SerializeToString())
    return path


@pytest.fixture
def make(kind, tmp_path):
    path = write(kind, tmp_path / "a")
    return lambda **settings: getattr(data, kind)(path, SCHEMA, **settings)


def get_users(batches):
    return [user for batch in batches for [user] in batch["user"].to_list()]


class TestReading:
    def test_in_a_loop_as_often_as_one_likes(self, make):
        reader = make(batch_size=4)
        for _ in range(2):
            assert [len(batch["click"]) for batch in reader] == [4, 4, 2]
            assert get_users(reader) == USERS

    def test_called_it_is_a_dataset(self, make):
        dataset = make(batch_size=4, drop_remainder=True)()
        assert isinstance(dataset, tf.data.Dataset)
        assert dataset.element_spec["click"].shape == [4]
        assert get_users(dataset.take(1)) == USERS[:4]

    def test_in_a_graph_of_a_program_that_runs_eagerly(self, make):
        reader = make(batch_size=4)
        for _ in range(2):
            with tf.Graph().as_default():
                batch = tf.compat.v1.data.make_one_shot_iterator(reader()).get_next()
                with tf.compat.v1.Session() as session:
                    assert session.run(batch["user"]).to_list() == [[0], [1], [2], [3]]

    def test_in_a_function(self, make):
        reader = make(batch_size=4)

        @tf.function
        def total():
            result = tf.constant(0, tf.int64)
            for batch in reader():
                result += tf.reduce_sum(batch["user"].flat_values)
            return result

        assert total() == sum(USERS)

    def test_shuffled(self, make):
        reader = make(batch_size=4, shuffle=10, seed=1)
        users = get_users(reader)
        assert users != USERS
        assert sorted(users) == USERS
        assert get_users(make(batch_size=4, shuffle=10, seed=1)) == users

    def test_a_loop_in_a_graph_is_refused(self, make):
        reader = make()
        message = "in a graph or a tf.function call it, and read the tf.data.Dataset"
        with tf.Graph().as_default(), pytest.raises(errors.ConfigError, match=message):
            iter(reader)

    def test_a_file_that_goes_bad_is_one_sentence(self, kind, make, tmp_path):
        reader = make()
        (tmp_path / "a").unlink()
        with pytest.raises(errors.DataError, match="a' does not exist; check the path") as caught:
            list(reader)
        assert "\n" not in str(caught.value)

    def test_bad_rows_further_on_are_one_sentence(self, tmp_path):
        write("csv", tmp_path / "1.csv", range(2000))
        (tmp_path / "2.csv").write_text("user,click\nbob,1\n")
        reader = data.csv(f"{tmp_path}/*.csv", SCHEMA)
        with pytest.raises(errors.DataError, match="line 2, column 'user' holds 'bob'") as caught:
            list(reader)
        assert "\n" not in str(caught.value)

    def test_keras_takes_its_dataset(self, make):
        inputs = tf.keras.Input([1])
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
        dataset = make(batch_size=4)().map(
            lambda b: (b["user"].to_tensor(shape=[None, 1]), b["click"])
        )
        history = model.fit(dataset, epochs=2, verbose=0)
        assert len(history.history["loss"]) == 2


class TestChecks:
    def test_files_and_schema(self, kind, tmp_path):
        read = getattr(data, kind)
        with pytest.raises(errors.DataError, match=r"No file matches '.*/missing'; check the path"):
            read(tmp_path / "missing", SCHEMA)
        with pytest.raises(errors.DataError, match="is a directory; name the files in it"):
            read(tmp_path, SCHEMA)
        (tmp_path / "inner").mkdir()
        with pytest.raises(errors.DataError, match="inner' is a directory; name the files in it"):
            read(tmp_path / "*", SCHEMA)
        with pytest.raises(errors.DataError, match="named by a path, a pattern, or a list"):
            read(7, SCHEMA)
        path = write(kind, tmp_path / "a")
        with pytest.raises(errors.ConfigError, match="A schema is a list, as in"):
            read(path, data.Ids("user"))
        with pytest.raises(errors.ConfigError, match="two features named 'user'; remove one"):
            read(path, [data.Ids("user"), data.Ids("user")])
        with pytest.raises(errors.DataError, match="named 'movie'"):
            read(path, [data.Ids("movie")])

    def test_empty_file(self, kind, tmp_path):
        (tmp_path / "a").touch()
        with pytest.raises(errors.DataError, match=r"a' cannot be read as Parquet|There are no r"):
            getattr(data, kind)(tmp_path / "a", SCHEMA)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"batch_size": 0}, "batch_size must be positive, got 0"),
            ({"shuffle": True}, "must be positive, as in 100_000, got True"),
            ({"shuffle": 0}, "must be positive, as in 100_000, got 0; None does not shuffle"),
            ({"seed": 1}, "seed=1 decides nothing without shuffle; give both"),
            ({"seed": -1, "shuffle": 5}, "A seed is an integer from 0 to"),
        ],
    )
    def test_settings(self, make, settings, message):
        with pytest.raises(errors.ConfigError, match=message):
            make(**settings)

    def test_unknown_settings(self, make):
        with pytest.raises(TypeError, match="shuffle_rows"):
            make(shuffle_rows=5)


class TestObject:
    def test_knows_files_and_schema(self, kind, tmp_path):
        for name in ("b", "a"):
            write(kind, tmp_path / name)
        reader = getattr(data, kind)(f"{tmp_path}/*", SCHEMA)
        write(kind, tmp_path / "c")
        assert reader.files == (f"{tmp_path}/a", f"{tmp_path}/b")
        assert reader.schema == tuple(SCHEMA)
        assert isinstance(reader, data.Reader)

    def test_cannot_be_changed(self, make):
        with pytest.raises(AttributeError):
            make().files = ()

    def test_says_what_it_is(self, kind, make, tmp_path):
        assert repr(make(batch_size=4, shuffle=7, seed=3)) == (
            f"monolith.data.{kind}(['{tmp_path}/a'], [Ids('user'), Label('click')], batch_size=4, "
            "seed=3, shuffle=7)"
        )
        many = getattr(data, kind)([tmp_path / "a"] * 5, SCHEMA, drop_remainder=True)
        assert repr(many) == (
            f"monolith.data.{kind}(['{tmp_path}/a', '{tmp_path}/a', '{tmp_path}/a', ... 2 more], "
            "[Ids('user'), Label('click')], batch_size=512, drop_remainder=True)"
        )

    def test_says_its_options(self, tmp_path):
        (tmp_path / "a").write_text("7\t1\n")
        reader = data.csv(
            tmp_path / "a",
            SCHEMA,
            delimiter="\t",
            list_separator=" ",
            column_names=["user", "click"],
        )
        assert repr(reader).endswith(
            "batch_size=512, delimiter='\\t', list_separator=' ', column_names=['user', 'click'])"
        )

    def test_can_be_sent_to_another_process(self, make):
        reader = pickle.loads(pickle.dumps(make(batch_size=4)))
        assert get_users(reader) == USERS
        assert reader == make(batch_size=4)
        assert hash(reader) == hash(make(batch_size=4))

    def test_methods_of_a_dataset_are_pointed_at(self, make):
        with pytest.raises(AttributeError, match=r"write reader\(\)\.repeat\."):
            make().repeat(2)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = make().nothing


class TestPackage:
    def test_import_is_cheap(self):
        program = """
import sys
import monolith.data
assert set(monolith.data.__all__) <= set(dir(monolith.data))
assert "tensorflow" not in sys.modules and "numpy" not in sys.modules
monolith.data.Ids("user")
assert "tensorflow" not in sys.modules
from monolith.data import *
assert monolith.data.movies is movies and callable(csv)
"""
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

    def test_every_name_is_there(self):
        for name in data.__all__:
            assert getattr(data, name) is not None

    def test_other_names_are_not(self):
        with pytest.raises(AttributeError, match="no attribute 'jsonl'"):
            _ = data.jsonl
        with pytest.raises(AttributeError, match="no attribute 'RaggedIds'; it is called Ids"):
            _ = data.RaggedIds
