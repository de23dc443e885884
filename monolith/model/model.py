"""A model of one's own: embeddings, a network, heads.

Example:
    >>> from monolith import layers
    >>> class Ranking(Model):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed = Embedding(["user", "movie"], dim=8)
    ...         self.mlp = layers.MLP([16, 1])
    ...     def call(self, batch):
    ...         return BinaryHead("click", self.mlp(self.embed(batch)), batch.get("click"))
    >>> columns = {"user": [7, 8], "movie": [1, 1], "click": [1.0, 0.0]}
    >>> found = inspect(Ranking(), lambda: tf.data.Dataset.from_tensor_slices(columns).batch(2))
    >>> sorted(found.embedded), found.heads
    (['movie', 'user'], ['click'])

    `monolith.training.model_estimator` trains it.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.framework import ops as framework_ops

from monolith import errors
from monolith.checkpoint.changed_model import OnChange
from monolith.core import naming
from monolith.embedding import optimizers
from monolith.embedding.features.dry_run import DummyFeatureFactory
from monolith.embedding.table import Table
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.signatures import LENGTHS_NAME, ServingInputReceiver
from monolith.model import objectives
from monolith.model.base import MonolithBaseModel
from monolith.model.batch import Batch, to_ids
from monolith.model.embedding import Build, Embedding, building
from monolith.model.heads import EstimatorSpec
from monolith.model.objectives import BinaryHead, Head, Output, RegressionHead, SoftmaxHead

__all__ = [
    "BinaryHead",
    "Embedding",
    "Head",
    "Inspection",
    "Model",
    "ModelTask",
    "Output",
    "RegressionHead",
    "SoftmaxHead",
    "inspect",
]

# What stands in the batch beside the ids of a feature that the model also reads itself.
_AS_GIVEN = "{} (as given)"

_REQ_TIME = "req_time"

# Makes the input of a model, in whatever graph is the current one.
Data: TypeAlias = Callable[[], tf.data.Dataset]

MADE_EAGERLY = (
    "The tf.data.Dataset, or a tensor that it reads, was made before an Estimator asked for it, "
    "and an Estimator reads data in a graph of its own; give the function that makes it, as in "
    "train(make_dataset), and make all of it in there."
)
_NOT_TRAINED = (
    "an ml.Table, which an Estimator does not train; use an ml.Embedding, which has tables of its "
    "own, or names one for all of its features, `table='items'`"
)
_KERAS_MODEL = "train a Keras model over ml.keras.Embedding with its own `fit`"
_INSTEAD_OF_KERAS = (
    f"use the layers of ml.layers and functions of TensorFlow such as tf.concat, or {_KERAS_MODEL}"
)
_INSTEAD_OF_LAYERS = {
    "BatchNormalization": "ml.layers has no counterpart: bring the columns to one scale in the "
    f"data, or {_KERAS_MODEL}",
    "Dense": "use ml.layers.Dense",
    "Dropout": "use ml.layers.Dropout, and call it with `training=batch.training`",
    "Embedding": "use ml.Embedding",
}
# What TensorFlow says of a value of eager mode in a graph.
_EAGER_IN_GRAPH = ("EagerTensor", "eager tensor", "out of scope")


class Model:
    """Base of models: make layers in `__init__`, use them in `call`.

    A model is built in several graphs (training, evaluation, export), each time by a call of
    `call`; layers find their weights again by themselves. In between it holds no numbers: these
    are in the model directory of its Estimator.

    Args:
        name: Of the model; by default that of the class in snake case.
    """

    def __init__(self, name: str | None = None) -> None:
        self._name = name

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.__dict__.get("_name") or naming.to_snake_case(type(self).__name__)

    def call(self, batch: Batch) -> Any:
        """Builds the network.

        Args:
            batch: The columns of the data by name. What is there in training only, labels and
                weights, is read with `batch.get(name)`, which gives None in prediction.
                `batch.training` tells training from evaluation and prediction.

        Returns:
            A head, such as `BinaryHead`, or a list of heads.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no `call`; write `def call(self, batch)`, which returns a "
            "head, such as ml.BinaryHead."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        for part in value if isinstance(value, list | tuple) else [value]:
            _refuse_keras(type(self).__name__, name, part)
            if isinstance(part, Table):
                raise errors.ConfigError(f"{type(self).__name__}.{name} is {_NOT_TRAINED}.")
        super().__setattr__(name, value)


@dataclasses.dataclass(frozen=True)
class Inspection:
    """What a model does with its input.

    Attributes:
        embedded: The features that are looked up in tables, and what the data gives for each.
        read: What the model reads itself, as the data gives it.
        asked: What it asks for, and can do without.
        heads: Names of its heads.
        training: Whether this is what it does when it trains.
    """

    embedded: Mapping[str, tf.TypeSpec]
    read: Mapping[str, tf.TypeSpec]
    asked: list[str]
    heads: list[str]
    training: bool = False

    @property
    def inputs(self) -> dict[str, tf.TypeSpec]:
        """What the model cannot do without."""
        return {**self.embedded, **self.read}

    def prepare(self, features: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a batch as tables want it: ids ragged, and the time, if it has none."""
        prepared = dict(features)
        for name in self.embedded:
            if name in self.read:
                prepared[_AS_GIVEN.format(name)] = features[name]
            prepared[name] = to_ids(name, features[name])
        if _REQ_TIME not in prepared:
            # When rows were updated last tells when they expire.
            prepared[_REQ_TIME] = tf.cast(tf.timestamp(), tf.int64)[tf.newaxis]
        return prepared

    def restore(self, prepared: Mapping[str, Any], *, training: bool) -> Batch:
        """Returns a batch as the model wants it: as the data gives it."""
        given = {name: _AS_GIVEN.format(name) for name in self.embedded}
        features = {name: value for name, value in prepared.items() if name not in given.values()}
        features.update({n: prepared[key] for n, key in given.items() if key in prepared})
        return Batch(features, training=training)


def inspect(model: Model, data: Data, *, training: bool = False) -> Inspection:
    """Builds a model once, in a graph that is thrown away, to learn what it does with its input.

    Args:
        model: The model.
        data: Returns a `tf.data.Dataset` of dicts.
        training: Whether it is to be trained, what `batch.training` says.

    Raises:
        ConfigError: The data is something else, has not what the model wants, or the model returns
            no head.
    """
    with tf.Graph().as_default() as graph:
        dataset = make_dataset(data)
        spec = dataset.element_spec
        tf.compat.v1.train.create_global_step()
        # Never run: the model needs tensors of the right kind, not data.
        features = dataset.get_single_element()
        batch = Batch(features, training=training)
        build = Build(DummyFeatureFactory(None).create_feature_slot, optimizers.SGD(0.0))
        with building(build), tf.variable_creator_scope(_refuse_variables_of_keras):
            result = _call(model, batch)
        if any(op.type == "MonolithHashTable" for op in graph.get_operations()):
            raise errors.ConfigError(f"`call` of {type(model).__name__} makes {_NOT_TRAINED}.")
        for name in build.columns:
            to_ids(name, features[name])
        made = objectives.as_spec(result, type(model).__name__, None)
    return Inspection(
        embedded={name: spec[name] for name in build.columns},
        read={name: spec[name] for name in sorted(batch.read)},
        asked=sorted(batch.asked),
        heads=list(made.head_name),
        training=training,
    )


def make_dataset(data: Data) -> tf.data.Dataset:
    """Calls a data function in the current graph, and returns what models are fed with.

    Raises:
        ConfigError: It gave something else.
    """
    try:
        dataset = data()
    except (RuntimeError, TypeError) as error:
        if _is_about_eager_values(error):
            raise errors.ConfigError(MADE_EAGERLY) from error
        raise
    if not isinstance(dataset, tf.data.Dataset):
        raise errors.ConfigError(
            "Data is a function that returns a tf.data.Dataset of dicts, or a reader such as "
            f"ml.data.csv; this one returned {dataset!r}."
        )
    if isinstance(dataset._variant_tensor, framework_ops.EagerTensor):
        raise errors.ConfigError(MADE_EAGERLY)
    if not isinstance(dataset.element_spec, Mapping):
        raise errors.ConfigError(
            'A tf.data.Dataset for a model gives dicts, columns by name, as in {"user": ids, '
            f'"click": labels}}; this one gives {dataset.element_spec}. Put the label into the '
            "dict as well."
        )
    return dataset


class ModelTask(MonolithBaseModel):
    """A model and its data as the task that training runs.

    Args:
        model: The model.
        data: Returns a `tf.data.Dataset` of dicts.
        optimizer: Of dense variables, and of rows whose layer has none.
        clip_norm: Limit of the norm of all gradients; None: no limit.
        found: What the model does with the data.
    """

    def __init__(
        self,
        model: Model,
        data: Data,
        optimizer: Any,
        clip_norm: float | None,
        found: Inspection,
    ) -> None:
        params = type(self).params()
        params.name = model.name
        params.clip_norm = clip_norm
        params.train.changed_model = OnChange.REFUSE
        super().__init__(params)
        self._model = model
        self._data = data
        self._optimizer = optimizer
        self._found = found

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModelTask":
        # A model and its data hold nothing of a graph, and may hold what cannot be copied.
        for shared in (self._model, self._data, self._optimizer, self._found):
            memo[id(shared)] = shared
        copied = super().__deepcopy__(memo)
        assert isinstance(copied, ModelTask)
        return copied

    def input_fn(self, mode: str) -> tf.data.Dataset:
        return make_dataset(self._data).map(self._found.prepare)

    def model_fn(self, features: Mapping[str, Any], mode: str) -> EstimatorSpec:
        build = Build(self.ctx.create_feature_slot, self._optimizer)
        # An export builds graphs in mode TRAIN, too, to find the tables of the checkpoint.
        training = self._found.training and mode == ModeKeys.TRAIN
        batch = self._found.restore(features, training=training)
        with building(build):
            result = _call(self._model, batch)
        self.fc_dict.update(build.columns)
        optimizer = optimizers.to_dense_optimizer(self._optimizer)
        spec = objectives.as_spec(result, type(self._model).__name__, optimizer)
        if spec.loss is None and mode != ModeKeys.PREDICT:
            asked = ", ".join(map(repr, self._found.asked)) or "no column"
            raise errors.ConfigError(
                f"No head of {type(self._model).__name__} has labels, so there is nothing to learn "
                f"or to measure: `call` asks for {asked} with batch.get, and hands it to a head; "
                "the data must have it."
            )
        return spec

    def serving_input_receiver_fn(self) -> ServingInputReceiver:
        """Returns what an exported model is fed with: its features by name.

        Ragged and sparse ones are two inputs: all values of the batch one after another, and how
        many each example has, `<name>_lengths`.
        """
        features: dict[str, Any] = {}
        receivers: dict[str, tf.Tensor] = {}
        for name, part in self._found.inputs.items():
            if isinstance(part, tf.RaggedTensorSpec | tf.SparseTensorSpec):
                values = tf.compat.v1.placeholder(part.dtype, [None], name=name)
                lengths = tf.compat.v1.placeholder(tf.int64, [None], name=LENGTHS_NAME.format(name))
                receivers.update({name: values, LENGTHS_NAME.format(name): lengths})
                features[name] = tf.RaggedTensor.from_row_lengths(values, lengths)
            else:
                shape = [None, *part.shape.as_list()[1:]]
                features[name] = tf.compat.v1.placeholder(part.dtype, shape, name=name)
                receivers[name] = features[name]
        return ServingInputReceiver(self._found.prepare(features), receivers)


def _refuse_variables_of_keras(create: Callable[..., Any], **settings: Any) -> Any:
    # Keras makes the weights of a layer in the first graph that it meets, and models are built in
    # several: it would fail in the second one, with words that help nobody.
    frame = sys._getframe(1)
    while frame is not None:
        if _is_keras(frame.f_globals.get("__name__", "")):
            raise errors.ConfigError(
                "`call` of an ml.Model uses a layer of Keras, whose variables it cannot hold; "
                f"{_INSTEAD_OF_KERAS}."
            )
        frame = frame.f_back  # type: ignore[assignment]
    return create(**settings)


def _call(model: Model, batch: Batch) -> Any:
    try:
        return model.call(batch)
    except (RuntimeError, TypeError) as error:
        if not _is_about_eager_values(error):
            raise
        raise errors.ConfigError(
            f"`call` of {type(model).__name__} uses a value of eager mode, such as a tf.Variable, "
            f"which a model that an Estimator trains cannot hold; {_INSTEAD_OF_KERAS}."
        ) from error


def _is_about_eager_values(error: Exception) -> bool:
    return any(words in str(error) for words in _EAGER_IN_GRAPH)


def _refuse_keras(model: str, attribute: str, value: Any) -> None:
    bases = {base.__name__ for base in type(value).__mro__ if _is_keras(base.__module__)}
    if "Layer" in bases:
        kind = type(value).__name__
        raise errors.ConfigError(
            f"{model}.{attribute} is a Keras layer ({kind}), which an ml.Model cannot hold; "
            f"{_INSTEAD_OF_LAYERS.get(kind, _INSTEAD_OF_KERAS)}."
        )


def _is_keras(module: str) -> bool:
    return module.split(".")[0] in ("keras", "tf_keras")
