"""TFRecords of tf.train.Example, with real files of every kind."""

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import columns, examples
from monolith.data.schema import Dense, Ids, Label, StringIds
from monolith.data.string_ids import hash_string

SCHEMA = [
    Ids("user"),
    StringIds("genres"),
    Dense("price", 2, default=0.5),
    Label("click"),
]


def make_example(**features):
    """Makes an example of lists of int, float or str."""
    example = tf.train.Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        if isinstance(values[0], str):
            feature.bytes_list.value.extend(value.encode() for value in values)
        elif isinstance(values[0], int):
            feature.int64_list.value.extend(values)
        else:
            feature.float_list.value.extend(values)
    return example.SerializeToString()


def write(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


RECORDS = [
    make_example(user=[-7, 2**63 - 1], genres=["Horror", "Crime"], price=[1.5, 2.0], click=[1.0]),
    make_example(click=[0.0]),
    make_example(user=[42], genres=["Zoë"], price=[100.0, -3.0], click=[0.25], unused=[1]),
]


def check_batch(batch):
    assert list(batch) == ["user", "genres", "price", "click"]
    assert batch["user"].dtype == tf.int64
    assert batch["user"].row_splits.dtype == tf.int64
    assert batch["user"].to_list() == [[-7, 2**63 - 1], [], [42]]
    names = [["Horror", "Crime"], [], ["Zoë"]]
    assert batch["genres"].to_list() == [[hash_string(n) for n in row] for row in names]
    assert batch["price"].dtype == batch["click"].dtype == tf.float32
    assert batch["price"].numpy().tolist() == [[1.5, 2], [0.5, 0.5], [100, -3]]
    assert batch["click"].numpy().tolist() == [1, 0, 0.25]


def test_all_kinds_of_features(tmp_path):
    [batch] = examples.dataset(write(tmp_path / "a.tfrecord", RECORDS), SCHEMA)
    check_batch(batch)


def test_gzip(tmp_path):
    path = write(tmp_path / "a.tfrecord.gz", RECORDS, "GZIP")
    [batch] = examples.dataset(path, SCHEMA)
    check_batch(batch)


def test_serialized_examples_from_elsewhere():
    check_batch(examples.parse_examples(tf.constant(RECORDS), SCHEMA))


def test_integers_may_be_labels_and_dense_numbers(tmp_path):
    path = write(tmp_path / "a.tfrecord", [make_example(click=[1], age=[31, 7])])
    [batch] = examples.dataset(path, [Label("click"), Dense("age", 2, default=1)])
    assert batch["click"].numpy().tolist() == [1]
    assert batch["age"].numpy().tolist() == [[31, 7]]


def test_several_features_read_one_column(tmp_path):
    path = write(tmp_path / "a.tfrecord", [make_example(x=[5]), make_example(x=[6])])
    [batch] = examples.dataset(path, [Ids("a", column="x"), Ids("x")])
    assert batch["a"].to_list() == batch["x"].to_list() == [[5], [6]]
    [batch] = examples.dataset(path, [Label("a", column="x"), Dense("x")])
    assert batch["a"].numpy().tolist() == [5, 6]
    assert batch["x"].numpy().tolist() == [[5], [6]]
    with pytest.raises(errors.ConfigError, match="'a' and 'x' read column 'x' in different ways"):
        examples.dataset(path, [Label("a", column="x"), Ids("x")])


def make_numbered(numbers):
    return [make_example(id=[i], click=[float(i % 2)]) for i in numbers]


def test_batches_go_on_across_files(tmp_path):
    write(tmp_path / "1.tfrecord", make_numbered(range(70)))
    write(tmp_path / "2.tfrecord.gz", make_numbered(range(70, 100)), "GZIP")
    write(tmp_path / "3.tfrecord", [])
    schema = [Ids("id"), Label("click")]
    batches = list(
        examples.dataset(
            f"{tmp_path}/*.tfrecord*", schema, batching=columns.Batching(batch_size=30)
        )
    )
    assert [len(batch["click"]) for batch in batches] == [30, 30, 30, 10]
    ids = np.concatenate([batch["id"].flat_values for batch in batches])
    assert ids.tolist() == list(range(100))
    whole = examples.dataset(
        f"{tmp_path}/*.tfrecord*",
        schema,
        batching=columns.Batching(batch_size=30, drop_remainder=True),
    )
    assert [len(batch["click"]) for batch in whole] == [30, 30, 30]
    assert whole.element_spec["click"].shape == [30]


def test_shuffling(tmp_path):
    path = write(tmp_path / "a.tfrecord", make_numbered(range(100)))
    batching = columns.Batching(batch_size=7, shuffle_rows=50, seed=4)

    def read(dataset):
        return np.concatenate([batch["id"].flat_values for batch in dataset]).tolist()

    dataset = examples.dataset(path, [Ids("id")], batching=batching)
    first, second = read(dataset), read(dataset)
    for ids in (first, second):
        assert sorted(ids[:50]) == list(range(50))
        assert sorted(ids[50:]) == list(range(50, 100))
        assert ids != list(range(100))
    assert first != second
    assert read(examples.dataset(path, [Ids("id")], batching=batching)) == first


@pytest.mark.usefixtures("graph_mode")
def test_works_in_a_graph(tmp_path):
    path = write(tmp_path / "a.tfrecord", RECORDS)
    dataset = examples.dataset(path, SCHEMA)
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    with tf.compat.v1.Session() as session:
        found = session.run(batch)
        assert found["user"].to_list() == [[-7, 2**63 - 1], [], [42]]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch)


@pytest.mark.parametrize(
    ("feature", "record", "message"),
    [
        pytest.param(
            Label("clicks"),
            {"click": [1.0]},
            "a.tfrecord' holds a record without the feature 'clicks', it has 'click'; correct",
            id="missing_label",
        ),
        pytest.param(
            Ids("usr"),
            {"user": [1], "click": [1.0]},
            "None of the first 1 records of '.*a.tfrecord' has a feature named 'usr', they have "
            "'click', 'user'; correct the schema .* or make it optional",
            id="missing_ids",
        ),
        pytest.param(
            Dense("prise", default=0),
            {"price": [1.0]},
            "None of the first 1 records of '.*a.tfrecord' has a feature named 'prise'",
            id="missing_everywhere_despite_default",
        ),
        pytest.param(
            Ids("user"),
            {"user": ["bob"]},
            "a.tfrecord' holds a record with strings in feature 'user', but Ids reads "
            "integers; use StringIds for strings",
            id="string_for_id",
        ),
        pytest.param(
            StringIds("user"),
            {"user": [7]},
            "with integers in feature 'user', but StringIds reads strings; use Ids",
            id="id_for_string",
        ),
        pytest.param(
            Label("click"),
            {"click": ["yes"]},
            "with strings in feature 'click', but Label reads floats or integers",
            id="string_for_label",
        ),
        pytest.param(
            Dense("price", 3),
            {"price": [1.0, 2.0]},
            "with 2 numbers in feature 'price', but Dense reads 3; correct its width",
            id="wrong_width",
        ),
    ],
)
def test_bad_files_are_named_with_their_feature(tmp_path, feature, record, message):
    path = write(tmp_path / "a.tfrecord", [make_example(**record)])
    with pytest.raises(errors.DataError, match=message):
        examples.dataset(path, [feature])


def test_optional_ids_may_be_missing_everywhere(tmp_path):
    path = write(tmp_path / "a.tfrecord", RECORDS)
    [batch] = examples.dataset(path, [Label("click"), Ids("coupon", optional=True)])
    assert batch["coupon"].to_list() == [[], [], []]


def test_error_further_on_names_file_and_feature(tmp_path):
    write(tmp_path / "1.tfrecord", [make_example(user=[1])] * 1500)
    write(tmp_path / "2.tfrecord", [make_example(user=[1]), make_example(user=["bob"])])
    dataset = examples.dataset(f"{tmp_path}/*.tfrecord", [Ids("user")])
    message = "Name: .*/2.tfrecord, Key: user.* Data types don't match"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(dataset)


def test_unreadable_files_are_named(tmp_path):
    schema = [Ids("user")]
    with pytest.raises(errors.DataError, match=r"No file matches '.*missing.tfrecord'"):
        examples.dataset(tmp_path / "missing.tfrecord", schema)
    path = tmp_path / "a.tfrecord"
    path.write_text("this is not a record\n" * 10)
    with pytest.raises(errors.DataError, match=r"a.tfrecord' cannot be read: corrupted record"):
        examples.dataset(path, schema)
    path = write(tmp_path / "b.tfrecord", RECORDS, "GZIP")
    with pytest.raises(errors.DataError, match=r"b.tfrecord' cannot be read: corrupted record"):
        examples.dataset(path, schema)
    path = write(tmp_path / "c.tfrecord.gz", RECORDS)
    with pytest.raises(errors.DataError, match=r"c.tfrecord.gz' cannot be read: .*inflate"):
        examples.dataset(path, schema)
    path = write(tmp_path / "d.tfrecord", [])
    with pytest.raises(errors.DataError, match=r"There are no records in '.*d.tfrecord'"):
        examples.dataset(path, schema)
    path = write(tmp_path / "e.tfrecord", [b"\xff\xff\xff"])
    with pytest.raises(errors.DataError, match=r"e.tfrecord' holds a record that is not a tf"):
        examples.dataset(path, schema)


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damage_further_on_names_the_file(tmp_path, damage):
    path = write(tmp_path / "a.tfrecord", [make_example(user=[1])] * 2000)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        del content[-5:]
    else:
        content[-10] ^= 255
    path.write_bytes(content)
    dataset = examples.dataset(path, [Ids("user")])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a.tfrecord' cannot be read"):
        list(dataset)
