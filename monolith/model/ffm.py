"""A field-aware factorization machine on made-up data: the smallest task with several tables.

Demos, exports and tests of the training loop use it; `monolith.model.ranking` is where to start a
model of one's own.

Example:
    >>> params = FFMParams().task()
    >>> params.instantiate().p.train.per_replica_batch_size
    64
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from monolith.core.hyperparams import InstantiableParams
from monolith.data import ffm
from monolith.embedding import entry
from monolith.embedding.features.slots import FeatureColumn, FeatureSlotConfig
from monolith.graph.mode_keys import ModeKeys
from monolith.graph.signatures import ServingInputReceiver
from monolith.graph.spec import GraphSpec
from monolith.model import registry
from monolith.model.task import NativeTask

_NUM_SLOTS = 6
# Pairs of slots whose embeddings are multiplied, and their dim.
_FFM_SLOT = ((0, 3, 16), (0, 4, 16), (1, 5, 16), (2, 3, 16), (2, 5, 16))
_VOCAB_SIZES = [5] * _NUM_SLOTS
_NUM_EXAMPLES = 64

_LAST_SLOT_WITH_BIAS = 3
_LABEL = "label"


class TestFFMModel(NativeTask):
    """Predicts a label that is always 0 from the ids of six slots."""

    __test__ = False  # Named like a test, but it is none.

    def create_input_fn(self, mode: str) -> Callable[[], tf.data.Dataset]:
        """Returns the input: 64 examples, over and over in training.

        In other modes they come once, so that an evaluation ends.
        """
        batch_size = self.p.train.per_replica_batch_size

        def input_fn() -> tf.data.Dataset:
            dataset = tf.data.Dataset.from_tensor_slices(_generate_examples())
            dataset = dataset.batch(batch_size, drop_remainder=True).map(_parse).cache()
            return dataset.repeat() if mode == ModeKeys.TRAIN else dataset

        return input_fn

    def create_model_fn(self) -> Callable[..., GraphSpec]:
        """Returns the model: dot products of pairs of slots, plus biases, through a sigmoid."""

        def model_fn(features: Any, mode: str, config: Any) -> GraphSpec:
            columns = [self._create_column(slot) for slot in range(_NUM_SLOTS)]
            logits = _add_dot_products(columns) + tf.add_n(
                [column.get_bias() for column in columns[: _LAST_SLOT_WITH_BIAS + 1]]
            )
            logits = tf.squeeze(logits, axis=1)
            predictions = tf.sigmoid(logits)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions=predictions)
            label = tf.reshape(features[_LABEL], [-1])
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits)
            loss = tf.reduce_sum(losses)
            return GraphSpec(
                mode,
                predictions=predictions,
                loss=loss,
                train_op=self._create_train_op(columns, loss),
            )

        return model_fn

    def create_serving_input_receiver_fn(self) -> Callable[[], ServingInputReceiver]:
        """Returns the input of an exported model: serialized examples."""

        def receiver_fn() -> ServingInputReceiver:
            instances = tf.compat.v1.placeholder(tf.string, [None], name="instances")
            return ServingInputReceiver(_parse(instances), {"instances": instances})

        return receiver_fn

    def _create_column(self, slot: int) -> FeatureColumn:
        config = FeatureSlotConfig(
            name=str(slot),
            has_bias=slot <= _LAST_SLOT_WITH_BIAS,
            bias_optimizer=entry.FtrlOptimizer(
                learning_rate=0.1, initial_accumulator_value=1e-6, beta=1.0
            ),
            default_vec_optimizer=entry.SgdOptimizer(learning_rate=0.1),
        )
        return FeatureColumn(self.ctx.create_feature_slot(config), ffm.slot_to_key(slot))

    def _create_train_op(self, columns: list[FeatureColumn], loss: tf.Tensor) -> tf.Operation:
        embeddings = [column.get_all_embeddings_concat() for column in columns]
        gradients = tf.gradients(loss, embeddings)
        update = self.ctx.apply_embedding_gradients(zip(gradients, embeddings, strict=True))
        with tf.control_dependencies([update]):
            step = tf.compat.v1.train.get_or_create_global_step()
            return step.assign_add(1).op


@registry.RegisterSingleTaskModel
class FFMParams(registry.SingleTaskModelParams):
    """The settings of `TestFFMModel`."""

    def task(self) -> InstantiableParams:
        p = TestFFMModel.params()
        p.name = "test_ffm_model"
        p.train.per_replica_batch_size = _NUM_EXAMPLES
        return p


def _add_dot_products(columns: list[FeatureColumn]) -> tf.Tensor:
    products = []
    for left, right, dim in _FFM_SLOT:
        vectors = [
            columns[slot].embedding_lookup(columns[slot].feature_slot.add_feature_slice(dim))
            for slot in (left, right)
        ]
        products.append(tf.reduce_sum(vectors[0] * vectors[1], axis=1, keepdims=True))
    return tf.add_n(products)


def _generate_examples() -> list[bytes]:
    """Returns the same examples every time, and leaves NumPy's random state as it was."""
    state = np.random.get_state()
    np.random.seed(0)
    examples = [ffm.generate_ffm_example(_VOCAB_SIZES) for _ in range(_NUM_EXAMPLES)]
    np.random.set_state(state)
    return examples


def _parse(serialized: tf.Tensor) -> dict[str, Any]:
    # Requests have no label, which is then not used.
    spec: dict[str, Any] = {_LABEL: tf.io.FixedLenFeature([], tf.float32, default_value=0.0)}
    for slot in range(_NUM_SLOTS):
        spec[ffm.slot_to_key(slot)] = tf.io.RaggedFeature(tf.int64)
    parsed: dict[str, Any] = tf.io.parse_example(serialized, spec)
    for slot in range(_NUM_SLOTS):
        key = ffm.slot_to_key(slot)
        parsed[key] = tf.cast(parsed[key].with_row_splits_dtype(tf.int64), tf.int64)
    return parsed
