"""The sentence of a reader is found in whatever TensorFlow makes of it."""

import pytest
import tensorflow as tf

from monolith.data import columns, csv_files, examples
from monolith.data.errors import find_sentence
from monolith.data.schema import Dense, Ids, Label

CSV_SENTENCE = (
    "2.csv', line 3, column 'user' holds 'bob', but Ids reads integers of 64 bits, separated by "
    "'|'; use StringIds for strings, or correct the file."
)


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "1.csv").write_text("user\n" + "7\n" * 2000)
    (tmp_path / "2.csv").write_text("user\n8\nbob\n")
    return f"{tmp_path}/*.csv"


def catch(run):
    with pytest.raises((tf.errors.OpError, UnicodeDecodeError)) as caught:
        run()
    return caught.value


def read_in_session(make):
    with tf.Graph().as_default():
        iterator = tf.compat.v1.data.make_initializable_iterator(make())
        tf.compat.v1.add_to_collection(
            tf.compat.v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer
        )
        loss = tf.reduce_sum(iterator.get_next()["user"].flat_values)
        with tf.compat.v1.train.MonitoredTrainingSession() as session:
            while True:
                session.run(loss)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda d: d, id="plain"),
        pytest.param(lambda d: d.map(lambda b: b, num_parallel_calls=2).prefetch(2), id="map"),
        pytest.param(lambda d: d.repeat().shuffle(3), id="shuffle"),
        pytest.param(
            lambda d: tf.data.Dataset.range(2).interleave(lambda _: d, num_parallel_calls=2),
            id="interleave",
        ),
    ],
)
@pytest.mark.parametrize("graph", [False, True], ids=["eager", "session"])
def test_a_row_further_on(paths, graph, change):
    def make():
        return change(csv_files.dataset(paths, [Ids("user")]))

    error = catch(lambda: read_in_session(make) if graph else list(make()))
    assert isinstance(error, tf.errors.InvalidArgumentError)
    assert find_sentence(error).endswith(CSV_SENTENCE)


def test_inside_a_function(paths):
    @tf.function
    def total():
        result = tf.constant(0, tf.int64)
        for batch in csv_files.dataset(paths, [Ids("user")]):
            result += tf.reduce_sum(batch["user"].flat_values)
        return result

    assert find_sentence(catch(total)).endswith(CSV_SENTENCE)


def make_example(**features):
    example = tf.train.Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        kinds = {int: feature.int64_list, float: feature.float_list, bytes: feature.bytes_list}
        kinds[type(value)].value.append(value)
    return example.SerializeToString()


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "session"])
@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        pytest.param(
            make_example(user=b"bob", click=1.0, price=1.0),
            "2.tfrecord' holds a record whose feature 'user' is not what the schema says "
            "(Data types don't match. Expected type: int64, Actual type: string); correct the file "
            "or the schema.",
            id="type",
        ),
        pytest.param(
            make_example(user=1, price=1.0),
            "2.tfrecord' holds a record without the feature 'click'; correct the file or the "
            "schema.",
            id="missing",
        ),
        pytest.param(
            make_example(user=1, click=1.0, price=b"1"),
            "2.tfrecord' holds a record whose feature 'price' is not what the schema says "
            "(Data types don't match. Data type: string but expected type: float); correct the "
            "file or the schema.",
            id="number",
        ),
        pytest.param(
            b"\xff\xff\xff",
            "One of the files holds a record that is not a tf.train.Example; write it again, or "
            "leave it out.",
            id="no_example",
        ),
        pytest.param(
            b"nor text",
            "One of the files holds a record that is not a tf.train.Example; write it again, or "
            "leave it out.",
            id="text",
        ),
    ],
)
def test_a_record_further_on(tmp_path, record, sentence, graph):
    good = make_example(user=1, click=1.0, price=1.0)
    write(tmp_path / "1.tfrecord", [good] * 1500)
    write(tmp_path / "2.tfrecord", [good, record])
    schema = [Ids("user"), Label("click"), Dense("price", default=0)]

    def make():
        return examples.dataset(f"{tmp_path}/*.tfrecord", schema)

    error = catch(lambda: read_in_session(make) if graph else list(make()))
    assert find_sentence(error).endswith(sentence)


def test_a_file_of_another_kind_further_on(tmp_path):
    write(tmp_path / "1.tfrecord", [make_example(user=1)] * 1500)
    write(tmp_path / "2.tfrecord", [b"\xff\xff\xff"])
    error = catch(lambda: list(examples.dataset(f"{tmp_path}/*.tfrecord", [Ids("user")])))
    assert "2.tfrecord' holds a record that is not a tf.train.Example" in find_sentence(error)


def test_a_damaged_record(tmp_path):
    path = tmp_path / "1.tfrecord"
    write(path, [make_example(user=1)] * 2000)
    path.write_bytes(path.read_bytes()[:-5])
    batching = columns.Batching(batch_size=64)
    error = catch(lambda: list(examples.dataset(path, [Ids("user")], batching=batching)))
    assert "1.tfrecord' cannot be read: truncated record" in find_sentence(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("something else"),
        tf.errors.InvalidArgumentError(None, None, "shapes do not fit"),
        tf.errors.InvalidArgumentError(None, None, "Name: <unknown>, more"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        KeyboardInterrupt(),
    ],
)
def test_other_errors_have_none(error):
    assert find_sentence(error) is None
