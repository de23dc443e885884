"""An exported model as a function: columns in, predictions out, and what it refuses."""

import threading

import numpy as np
import pytest
import tensorflow as tf

import monolith as ml
from monolith.embedding import entry


class Scores(ml.Model):
    """The sum of a user's row, of those of the genres, and an age."""

    def __init__(self):
        super().__init__()
        settings = {"initializer": entry.ZerosInitializer(), "compressor": entry.Fp32Compressor()}
        self.embed = ml.Embedding(["user", "genres"], dim=1, output="dict", **settings)

    def call(self, batch):
        rows = self.embed(batch)
        score = rows["user"] + rows["genres"] + batch["age"]
        return ml.RegressionHead("score", score, batch.get("label"))


def data():
    columns = {
        "user": tf.constant([1, 2], tf.int64),
        "genres": tf.ragged.constant([[7, 8], []], dtype=tf.int64, row_splits_dtype=tf.int64),
        "age": tf.constant([[0.0], [0.0]]),
        "label": tf.constant([3.0, 5.0]),
    }
    return tf.data.Dataset.from_tensors(columns)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("scores")
    estimator = ml.Estimator(Scores(), path, ml.SGD(0.5), progress=False)
    estimator.train(data)
    return estimator.export(path / "versions")


@pytest.fixture
def served(exported):
    with ml.load(exported) as model:
        yield model


def test_predicts_what_was_learned(served):
    # Mean of squares: the gradient of example 1 is 2 * (0 - 3) / 2 = -3, of example 2 it is -5.
    # With SGD(0.5), user 1 and genres 7 and 8 are 1.5 each, user 2 is 2.5.
    scores = served(user=[1, 2, 9], genres=[[7], [], [8, 8]], age=[[0.0], [1.0], [2.0]])["score"]
    np.testing.assert_allclose(scores, [3.0, 3.5, 5.0])


def test_takes_a_dict_and_tensors(served):
    batch = next(iter(data()))
    scores = served({name: batch[name] for name in served.inputs})["score"]
    np.testing.assert_allclose(scores, [4.5, 2.5])


def test_one_value_for_each_example_needs_no_inner_list(served):
    scores = served(user=[1, 2], genres=[7, 8], age=[0.0, 0.0])["score"]
    np.testing.assert_allclose(scores, [3.0, 4.0])


def test_says_what_it_is(served, exported):
    assert served.inputs == ["age", "genres", "user"]
    assert served.path == exported
    assert "outputs=['score']" in repr(served)


def test_the_newest_version_is_taken(exported):
    import os

    with ml.load(os.path.dirname(exported)) as model:
        assert model.path == exported


def test_an_empty_batch(served):
    age = np.zeros([0, 1])
    assert served(user=np.zeros([0], np.int64), genres=[], age=age)["score"].shape == (0,)


def test_threads_may_call_it_at_once(served):
    results = []

    def call():
        for _ in range(20):
            results.append(float(served(user=[1], genres=[[7]], age=[[0.0]])["score"][0]))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [3.0] * 80


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"user": [1], "age": [[0.0]]}, "needs the columns age, genres, user; 'genres' is missing"),
        (
            {"user": [1], "genres": [[]], "age": [[0.0]], "x": [1]},
            "has no columns x; it has age, genres, user",
        ),
        ({"user": [1, 2], "genres": [[7], 7], "age": [[0.0]] * 2}, "'genres', so it is a list"),
        ({"user": [1], "genres": 7, "age": [[0.0]]}, "'genres', so it is a list of lists"),
        ({"user": ["a"], "genres": [[7]], "age": [[0.0]]}, "takes integers of 64 bits as 'user'"),
        ({"user": [1.5], "genres": [[7]], "age": [[0.0]]}, r"'user', got .*1\.5"),
        ({"user": [None], "genres": [[7]], "age": [[0.0]]}, "'user', got None"),
        ({"user": [2**70], "genres": [[7]], "age": [[0.0]]}, "'user', got 11805916"),
        ({"user": [1], "genres": [[7.5]], "age": [[0.0]]}, r"'genres', got .*7\.5"),
        ({"user": [[1], []], "genres": [[7]] * 2, "age": [[0.0]] * 2}, "one value of 'user' each"),
        ({"user": [1, 2], "genres": [[7]], "age": [[0.0]]}, "one value for each example"),
        ({"user": [1], "genres": [[7]], "age": [[[0.0]]]}, "cannot use these columns"),
    ],
)
def test_columns_that_do_not_fit(served, columns, message):
    with pytest.raises(ml.errors.ConfigError, match=message):
        served(columns)


def test_no_model(tmp_path):
    with pytest.raises(ml.errors.ConfigError, match="There is no exported model in"):
        ml.load(tmp_path)
