"""What a model of a user's own becomes: an inspection, a batch, a task."""

import copy
import threading

import keras
import pytest
import tensorflow as tf

from monolith import errors, layers
from monolith.embedding import optimizers
from monolith.embedding.table import Table
from monolith.model.embedding import Embedding
from monolith.model.model import Model, ModelTask, inspect
from monolith.model.objectives import BinaryHead


class Ranking(Model):
    def __init__(self):
        super().__init__()
        self.embed = Embedding(["user", "genres"], dim=4)
        self.mlp = layers.MLP([8, 1])

    def call(self, batch):
        inputs = tf.concat([self.embed(batch), batch["age"]], axis=1)
        return BinaryHead("click", self.mlp(inputs), batch.get("click"), weights=batch.get("w"))


def make_data(**changes):
    columns = {
        "user": tf.constant([1, 2], tf.int32),
        "genres": tf.ragged.constant([[1], [2, 3]], dtype=tf.int64),
        "age": tf.constant([[0.5], [0.7]]),
        "click": tf.constant([1.0, 0.0]),
        "unused": tf.constant(["a", "b"]),
        **changes,
    }
    columns = {name: value for name, value in columns.items() if value is not None}
    # Made eagerly, and read in a graph: as arrays and nested lists.
    plain = {
        n: v.to_list() if isinstance(v, tf.RaggedTensor) else v.numpy() for n, v in columns.items()
    }

    def data():
        tensors = {
            name: tf.ragged.constant(value, dtype=tf.int64, ragged_rank=1)
            if isinstance(value, list)
            else tf.constant(value)
            for name, value in plain.items()
        }
        return tf.data.Dataset.from_tensors(tensors)

    return data


class TestInspect:
    def test_tells_what_is_looked_up_read_and_asked_for(self):
        found = inspect(Ranking(), make_data())
        assert set(found.embedded) == {"user", "genres"}
        assert (set(found.read), found.asked) == ({"age"}, ["click", "w"])
        assert set(found.inputs) == {"user", "genres", "age"}
        assert found.heads == ["click"]

    def test_works_eagerly_and_leaves_no_graph_behind(self):
        assert tf.executing_eagerly()
        inspect(Ranking(), make_data())
        assert not tf.compat.v1.get_default_graph().get_operations()

    def test_missing_column(self):
        with pytest.raises(errors.ConfigError, match="uses feature 'age', which the input"):
            inspect(Ranking(), make_data(age=None))

    def test_column_that_cannot_be_ids(self):
        with pytest.raises(errors.ConfigError, match=r"Feature 'user' .* they are float32"):
            inspect(Ranking(), make_data(user=tf.constant([0.5, 1.5])))

    @pytest.mark.parametrize(
        ("dataset", "message"),
        [
            (lambda: None, "returned None"),
            (lambda: tf.data.Dataset.range(3), "gives dicts, columns by name"),
            (lambda: tf.data.Dataset.from_tensors(({"a": 1}, 2)), "Put the label into the dict"),
        ],
    )
    def test_data_that_is_none(self, dataset, message):
        with pytest.raises(errors.ConfigError, match=message):
            inspect(Ranking(), dataset)

    def test_no_head(self):
        class Empty(Model):
            def call(self, batch):
                return batch["age"]

        with pytest.raises(errors.ConfigError, match="`call` of Empty must return a head"):
            inspect(Empty(), make_data())

    def test_no_call(self):
        with pytest.raises(NotImplementedError, match="Model has no `call`"):
            inspect(Model(), make_data())


class TestPrepare:
    def test_ids_become_ragged_and_there_is_a_time(self):
        found = inspect(Ranking(), make_data())
        before = int(tf.timestamp())
        prepared = found.prepare(next(iter(make_data()())))
        assert prepared["user"].to_list() == [[1], [2]]
        assert int(prepared["req_time"][0]) >= before

    def test_padding_that_the_data_leaves_out_is_no_id(self):
        def leave_out_padding(batch):
            ids = tf.constant([[1, 0, 0], [0, 2, 3]], tf.int64)
            return {**batch, "genres": tf.ragged.boolean_mask(ids, tf.not_equal(ids, 0))}

        given = make_data()

        def data():
            return given().map(leave_out_padding)

        prepared = inspect(Ranking(), data).prepare(next(iter(data())))
        assert prepared["genres"].to_list() == [[1], [2, 3]]

    def test_the_time_of_the_data_counts(self):
        data = make_data(req_time=tf.constant([5, 5], tf.int64))
        prepared = inspect(Ranking(), data).prepare(next(iter(data())))
        assert prepared["req_time"].numpy().tolist() == [5, 5]

    def test_a_model_that_also_reads_ids_gets_them_as_they_were_given(self):
        class Both(Ranking):
            def call(self, batch):
                batch["user"]
                return super().call(batch)

        found = inspect(Both(), make_data())
        batch = found.restore(found.prepare(next(iter(make_data()()))), training=False)
        assert batch["user"].numpy().tolist() == [1, 2]


class TestKeras:
    def test_a_layer_is_refused_when_it_is_made_an_attribute(self):
        model = Ranking()
        with pytest.raises(
            errors.ConfigError, match=r"Ranking\.top is a Keras layer \(Dense\)"
        ) as e:
            model.top = keras.layers.Dense(1)
        assert "use ml.layers.Dense" in str(e.value)
        with pytest.raises(errors.ConfigError, match="is a Keras layer"):
            model.tops = [keras.layers.Dense(1)]

    @pytest.mark.parametrize(
        ("layer", "instead"),
        [
            (keras.layers.Dropout(0.5), "use ml.layers.Dropout, and call it with `training=batch"),
            (keras.layers.BatchNormalization(), "has no counterpart: bring the columns to one"),
            (keras.layers.Flatten(), "use the layers of ml.layers and functions of TensorFlow"),
        ],
    )
    def test_a_refused_layer_is_named_with_what_takes_its_place(self, layer, instead):
        with pytest.raises(errors.ConfigError, match=r"which an ml\.Model cannot hold; ") as e:
            Ranking().other = layer
        assert instead in str(e.value)

    def test_a_layer_that_is_used_anyway_is_refused(self):
        dense = keras.layers.Dense(1)

        class Hidden(Ranking):
            def call(self, batch):
                return BinaryHead("click", dense(self.embed(batch)), batch.get("click"))

        with pytest.raises(errors.ConfigError, match="uses a layer of Keras"):
            inspect(Hidden(), make_data())

    def test_a_variable_of_eager_mode_is_refused(self):
        weight = tf.Variable([[1.0]])

        class Hidden(Ranking):
            def call(self, batch):
                return BinaryHead("click", batch["age"] @ weight, batch.get("click"))

        with pytest.raises(errors.ConfigError, match="uses a value of eager mode"):
            inspect(Hidden(), make_data())


class TestTables:
    """Nothing would train them, and nobody would notice."""

    def test_a_table_is_refused_when_it_is_made_an_attribute(self):
        model = Ranking()
        with pytest.raises(errors.ConfigError, match=r"Ranking\.users is an ml\.Table"):
            model.users = Table("users", 4)

    def test_a_table_that_is_made_in_the_call_is_refused(self):
        class Hidden(Ranking):
            def call(self, batch):
                rows = Table("users", 1)(batch["user"])
                return BinaryHead("click", rows, batch.get("click"))

        with pytest.raises(errors.ConfigError, match=r"`call` of Hidden makes an ml\.Table"):
            inspect(Hidden(), make_data())


class TestModelTask:
    def make(self, model, data=None):
        data = data or make_data()
        return ModelTask(model, data, optimizers.Adagrad(0.1), None, inspect(model, data))

    def test_is_named_after_the_model(self):
        assert self.make(Ranking()).name == "ranking"
        model = Ranking()
        model._name = "mine"
        assert self.make(model).name == "mine"

    def test_a_copy_shares_the_model_which_may_hold_what_cannot_be_copied(self):
        model = Ranking()
        model.lock = threading.Lock()
        task = self.make(model)
        copied = copy.deepcopy(task)
        assert copied._model is model
        assert copied.p is not task.p

    def test_an_exported_model_is_fed_by_column(self):
        task = self.make(Ranking())
        with tf.Graph().as_default():
            receiver = task.serving_input_receiver_fn()
        shapes = {n: (t.dtype, t.shape.rank) for n, t in receiver.receiver_tensors.items()}
        assert shapes == {
            "user": (tf.int32, 1),
            "genres": (tf.int64, 1),
            "genres_lengths": (tf.int64, 1),
            "age": (tf.float32, 2),
        }
