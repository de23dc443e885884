"""The tasks of the tests of synchronous training, and what a rank does with them."""

import json
import os
import pathlib
from unittest import mock

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.graph import collectives
from monolith.graph.devices import default_device_fn
from monolith.graph.run_config import GraphRunConfig
from monolith.native_training import cpu_training, embedding_combiners, entry, feature, native_task
from monolith.native_training.data.training_instance.python.parser_utils import advanced_parse
from monolith.training.distributed import start
from monolith.training.graph.estimator import GraphEstimator, GraphSpec, ModeKeys

DIM = 5


class FeatureTask(native_task.NativeTask):
    """One feature of four ids; the loss is the sum of their rows."""

    def make_features(self):
        return {"feature": tf.ragged.constant([[1, 2, 3, 4]], dtype=tf.int64)}

    def create_input_fn(self, mode):
        def input_fn():
            # Each batch anew: ranks get their parts of five for each of them.
            dataset = tf.data.Dataset.from_tensors(self.make_features())
            return dataset.repeat(5 * collectives.size()).map(advanced_parse)

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(self.make_slot())
            vector = slot.add_feature_slice(DIM)
            column = feature.FeatureColumnV1(slot, "feature", self.combiner)
            embedding = column.embedding_lookup(vector)
            predictions = self.predict(features, embedding)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions=predictions)
            loss = tf.reduce_sum(embedding)
            rows = column.get_all_embeddings_concat()
            update = self.ctx.feature_factory.apply_gradients(
                list(zip(tf.gradients(loss, [rows]), [rows], strict=True))
            )
            step = tf.compat.v1.train.get_or_create_global_step()
            with tf.control_dependencies([update, tf.identity(predictions)]):
                return GraphSpec(
                    mode,
                    loss=loss,
                    train_op=tf.compat.v1.assign_add(step, 1),
                    predictions=predictions,
                )

        return model_fn

    combiner = None

    def make_slot(self):
        return feature.FeatureSlotConfig(name="slot")

    def predict(self, features, embedding):
        return tf.reduce_sum(embedding)


class FloatFeatureTask(FeatureTask):
    """Has floats beside the ids, which are what it predicts with."""

    def make_features(self):
        return {**super().make_features(), "float_feature": tf.constant([[1.0, 2.0]])}

    def predict(self, features, embedding):
        return tf.reduce_sum(features["float_feature"])


class TimedFeatureTask(FeatureTask):
    """Its batches are from 1000 seconds after 1970."""

    def make_features(self):
        return {**super().make_features(), "req_time": tf.constant([1000], tf.int64)}


class SequenceFeatureTask(FeatureTask):
    """Takes the first two ids of each example."""

    combiner = embedding_combiners.FirstN(2)

    def predict(self, features, embedding):
        values = features["feature"]
        return tf.reduce_sum(tf.cast(getattr(values, "flat_values", values), tf.float32))


class NonFeatureTask(native_task.NativeTask):
    """Has no embeddings."""

    def create_input_fn(self, mode):
        return lambda: tf.data.Dataset.from_tensors(1).repeat(5 * collectives.size())

    def create_model_fn(self):
        def model_fn(features, mode, config):
            step = tf.compat.v1.train.get_or_create_global_step()
            with tf.control_dependencies([features]):
                train_op = tf.compat.v1.assign_add(step, 1)
            return GraphSpec(mode, loss=tf.constant(0.0), train_op=train_op)

        return model_fn


class NarrowTask(NonFeatureTask):
    """Has a variable."""

    width = 1

    def create_model_fn(self):
        inner = super().create_model_fn()

        def model_fn(features, mode, config):
            tf.compat.v1.get_variable("w", [self.width])
            return inner(features, mode, config)

        return model_fn


class WideTask(NarrowTask):
    """Its variable is a wider one."""

    width = 2


class EmbeddingUpdateTask(FeatureTask):
    """Compares rows with those of a variable that TensorFlow's own optimizer trains."""

    def create_input_fn(self, mode):
        def input_fn():
            dataset = tf.data.Dataset.from_tensors(self.make_features())
            return dataset.repeat(10 * collectives.size()).map(advanced_parse)

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(
                feature.FeatureSlotConfig(
                    name="slot",
                    default_vec_initializer=entry.ConstantsInitializer(0),
                    default_vec_optimizer=entry.AdagradOptimizer(0.1, initial_accumulator_value=1),
                )
            )
            vector = slot.add_feature_slice(DIM)
            column = feature.FeatureColumnV1(slot, "feature")
            embedding = column.embedding_lookup(vector)
            with tf.compat.v1.variable_scope("tensorflow", use_resource=True):
                variable = tf.compat.v1.get_variable(
                    "rows", [5, DIM], initializer=tf.compat.v1.zeros_initializer()
                )
            expected = tf.reduce_sum(tf.nn.embedding_lookup(variable, [[1, 2, 3, 4]]), 1)
            check = tf.debugging.assert_near(embedding, expected, atol=1e-5)
            with tf.control_dependencies([check]):
                # Its gradient depends on where the rows are, so that each step is another one.
                loss = tf.reduce_sum(tf.square(embedding - 1.0))
                own_loss = tf.reduce_sum(tf.square(expected - 1.0))
            rows = column.get_all_embeddings_concat()
            update = self.ctx.feature_factory.apply_gradients(
                list(zip(tf.gradients(loss, [rows]), [rows], strict=True))
            )
            # All ranks have the same batch, and a row gets the sum of their gradients.
            optimizer = tf.compat.v1.train.AdagradOptimizer(0.1, 1.0)
            own_update = optimizer.minimize(own_loss * collectives.size(), var_list=[variable])
            step = tf.compat.v1.train.get_or_create_global_step()
            with tf.control_dependencies([update, own_update]):
                train_op = tf.compat.v1.assign_add(step, 1)
            return GraphSpec(mode, loss=loss, train_op=train_op)

        return model_fn


TASKS = {
    task.__name__: task
    for task in (
        FeatureTask,
        FloatFeatureTask,
        TimedFeatureTask,
        SequenceFeatureTask,
        NonFeatureTask,
        NarrowTask,
        WideTask,
        EmbeddingUpdateTask,
    )
}


def train(directory, name, steps, settings):
    """What one rank does: `CpuTraining` in an estimator, as the original's tests have it."""
    collectives.init()
    training = cpu_training.CpuTraining(
        cpu_training.CpuTrainingConfig(
            index=collectives.rank(),
            num_workers=collectives.size(),
            num_ps=0,
            reorder_fids_in_data_pipeline=True,
            enable_sync_training=True,
            **settings,
        ),
        TASKS[name].params().instantiate(),
    )
    has_model_dir_alone = name == "NonFeatureTask" and collectives.size() > 1
    model_dir = f"{directory}/{collectives.rank()}" if has_model_dir_alone else directory
    estimator = GraphEstimator(
        training.create_model_fn(),
        config=GraphRunConfig(model_dir=os.fspath(model_dir), device_fn=default_device_fn),
    )
    estimator.train(training.create_input_fn(ModeKeys.TRAIN), steps=steps)
    return estimator


def train_everything(directory, cases, sync_cases):
    """Trains all cases one after the other, since ranks take long to start."""
    tf.compat.v1.disable_eager_execution()
    steps = {}
    for case, (name, num_steps, settings) in cases.items():
        estimator = train(f"{directory}/{case}", name, num_steps, settings)
        steps[case] = int(estimator.get_variable_value("global_step"))
    write(directory, "steps", {**steps, **_sync_train(directory, sync_cases)})
    collectives.shutdown()


def sync_train(directory, cases):
    """Calls `distributed_sync_train` for several cases."""
    write(directory, "steps", _sync_train(directory, cases))


def _sync_train(directory, cases):
    steps = {}
    for case, (max_steps, settings) in cases.items():
        config = cpu_training.DistributedCpuTrainingConfig(
            model_dir=f"{directory}/{case}", enable_sync_training=True, **settings
        )
        cpu_training.init_sync_train_and_update_conf(config)
        params = FeatureTask.params()
        params.train.max_steps = max_steps
        estimator = cpu_training.distributed_sync_train(config, params)
        steps[case] = int(estimator.get_variable_value("global_step"))
    return steps


def train_apart(directory, cases):
    """Trains case by case with ranks that differ; writes what each was told.

    A case is the task of rank 0, and task, settings and environment of the other ranks.
    """
    tf.compat.v1.disable_eager_execution()
    start.SHARED_WAIT_SEC = 0.0
    collectives.init()
    told = {}
    for case, (task_of_rank_0, *others) in cases.items():
        name, settings, environment = others if collectives.rank() else (task_of_rank_0, {}, {})
        settings = {"model_dir": f"{directory}/{case}", "enable_sync_training": True, **settings}
        config = cpu_training.DistributedCpuTrainingConfig(**settings)
        cpu_training.init_sync_train_and_update_conf(config)
        params = TASKS[name].params()
        params.train.max_steps = 2
        with mock.patch.dict(os.environ, environment):
            try:
                cpu_training.distributed_sync_train(config, params)
                told[case] = "trained"
            except errors.ConfigError as error:
                told[case] = str(error)
    write(directory, "told", told)
    collectives.shutdown()


def write(directory, name, value):
    pathlib.Path(directory).mkdir(parents=True, exist_ok=True)
    path = pathlib.Path(directory) / f"{name}-{collectives.rank()}.json"
    path.write_text(json.dumps(value, default=np.ndarray.tolist))
