"""A batch of the input, as a model sees it, and ids in whatever form the input has them.

Example:
    >>> batch = Batch({"user": tf.constant([7, 8]), "label": tf.constant([1.0, 0.0])})
    >>> batch["user"].numpy(), batch.get("weight") is None
    (array([7, 8], dtype=int32), True)
    >>> to_ids("user", batch["user"]).to_list()
    [[7], [8]]
    >>> sorted(batch.read), sorted(batch.asked)
    (['user'], ['weight'])
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.data import string_ids
from monolith.graph import export_mode

_MOST_NAMES_IN_ERROR = 20


class MissingFeatureError(errors.ConfigError, KeyError):
    """The model wants a feature that the input does not have."""

    # KeyError would show the sentence in quotes.
    __str__ = Exception.__str__


class InputFeatures(dict[str, Any]):
    """The features of a batch; a missing one is answered with a sentence, not with its name."""

    def __missing__(self, name: str) -> Any:
        raise MissingFeatureError(describe_missing(name, self))


class Batch(Mapping[str, Any]):
    """The features of a batch by name, which remembers what a model looks at.

    `batch[name]` is for what the model cannot do without; `batch.get(name)` for what is there in
    training only, labels and weights: an exported model is not fed with it, and gets None.

    Args:
        features: The features by name.
        training: Whether they are trained on.

    Attributes:
        read: What was read with `batch[name]`.
        asked: What was asked for with `batch.get(name)`, and not read.
    """

    def __init__(self, features: Mapping[str, Any], *, training: bool = False) -> None:
        self._features = dict(features)
        self._training = training
        self.read: set[str] = set()
        self._asked: set[str] = set()

    @property
    def training(self) -> bool:
        """Whether the graph being built trains; False in evaluation, prediction and export."""
        return self._training

    @property
    def asked(self) -> set[str]:
        return self._asked - self.read

    def __getitem__(self, name: str) -> Any:
        if name not in self._features:
            raise MissingFeatureError(describe_missing(name, self._features, "the data"))
        self.read.add(name)
        return self._features[name]

    def get(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        return self._features.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._features

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __repr__(self) -> str:
        return f"Batch({list_names(self._features)})"


def to_ids(name: str, value: Any) -> tf.RaggedTensor:
    """Returns the ids of a feature as tables want them, ragged int64 `[batch, (ids)]`.

    Args:
        name: Of the feature, for the error.
        value: Integers, or strings, which are hashed as `monolith.data.string_ids` says. A dense
            `[batch]` is one id for each example, `[batch, n]` are n; of ragged and sparse ones, all
            that are there.

    Raises:
        errors.ConfigError: It is something else.
    """
    if isinstance(value, tf.SparseTensor):
        # Not `from_sparse`, which wants the ids of an example to have no gap before them.
        value = tf.RaggedTensor.from_value_rowids(
            value.values, value.indices[:, 0], nrows=value.dense_shape[0], validate=False
        )
    elif not isinstance(value, tf.RaggedTensor):
        value = tf.convert_to_tensor(value)
    if value.dtype == tf.string:
        value = string_ids.hash_strings(value)
    elif not value.dtype.is_integer:
        raise errors.ConfigError(
            f"Feature '{name}' has embeddings, so its values must be ids, integers or strings, but "
            f"they are {value.dtype.name}; divide numbers into ranges first, with tf.searchsorted, "
            "or use the column as it is, without an embedding."
        )
    rank = value.shape.rank
    if not rank:
        raise errors.ConfigError(
            f"Feature '{name}' has embeddings, so it must be one id for each example, [batch], or "
            f"several, [batch, n], but its shape is {value.shape}; batch the data first."
        )
    value = tf.cast(value, tf.int64)
    if isinstance(value, tf.RaggedTensor):
        value = value.merge_dims(1, -1) if rank > 2 else value
        return value.with_row_splits_dtype(tf.int64)
    if rank == 1:
        splits = tf.range(tf.size(value, tf.int64) + 1)
        return tf.RaggedTensor.from_row_splits(value, splits, validate=False)
    flat = tf.reshape(value, [tf.shape(value)[0], -1]) if rank > 2 else value
    return tf.RaggedTensor.from_tensor(flat, row_splits_dtype=tf.int64)


def describe_missing(name: str, features: Mapping[str, Any], source: str | None = None) -> str:
    """Returns the sentence for a feature that the model wants and the input does not have."""
    near = difflib.get_close_matches(str(name), [str(known) for known in features], n=1)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    return (
        f"The model uses feature '{name}', which the input does not have{hint}; it has "
        f"{list_names(features)}. Add it to what {source or name_source()} gives, or correct the "
        "name."
    )


def name_source() -> str:
    """Returns the function that gives the input of the model being built."""
    return "serving_input_receiver_fn" if export_mode.is_exporting() else "input_fn"


def list_names(names: Mapping[str, Any]) -> str:
    """Returns the names of features for a message, not more than a reader can take in."""
    shown = [f"'{name}'" for name in sorted(map(str, names))]
    if len(shown) > _MOST_NAMES_IN_ERROR:
        more = len(shown) - _MOST_NAMES_IN_ERROR
        shown = shown[:_MOST_NAMES_IN_ERROR] + [f"{more} more"]
    return ", ".join(shown) or "no features at all"
