"""A model whose embeddings are layouts, trained by one process or by ranks together."""

import numpy as np
import tensorflow as tf
from support.ranks import make_session, make_tables
from support.sync_tasks import write

from monolith.data.parser_context import ParserCtx
from monolith.embedding import entry
from monolith.embedding.features.combiners import ReduceSum
from monolith.embedding.sharding.factory import create_in_worker_partitioned_hash_table
from monolith.embedding.sharding.partitioned import SHARDING_FEATURE_CONFIGS, PartitionedHashTable
from monolith.embedding.sharding.ranks import get_first_owner
from monolith.graph import collectives
from monolith.graph.mode_keys import ModeKeys
from monolith.model.ranking import EstimatorSpec, MonolithModel, get_sigmoid_loss_and_pred
from monolith.native_training import cpu_training
from monolith.proto import example_pb2
from monolith.testing import generate_test_hash_table_config

BATCH = 6  # Divided by 1, 2 and 3 ranks.
STEPS = 20
FEATURES = ("age", "city", "clicked", "item", "tags", "words")


class Ranking(MonolithModel):
    """Sums, a mean, a sequence, and two features that share a slot."""

    def input_fn(self, mode):
        """Returns this rank's part of each batch."""
        rng = np.random.default_rng(5)
        num_examples = STEPS * BATCH
        data = {"label": rng.integers(0, 2, num_examples).astype(np.float32)}
        for number, name in enumerate(FEATURES):
            # Few ids, so that many repeat; none, in some examples. Those of other slots differ,
            # since merged tables have one row for equal ids.
            lengths = rng.integers(0, 4, num_examples)
            ids = rng.integers(0, 15, lengths.sum()) + 100 * (3 if name == "clicked" else number)
            data[name] = tf.RaggedTensor.from_row_lengths(ids.astype(np.int64), lengths)
        data["req_time"] = np.full([num_examples], 1_700_000_000, np.int64)
        dataset = tf.data.Dataset.from_tensor_slices(data)
        if mode != ModeKeys.TRAIN or not collectives.is_initialized():
            return dataset.batch(BATCH, drop_remainder=True)
        size, rank = collectives.size(), collectives.rank()
        return dataset.shard(size, rank).batch(BATCH // size, drop_remainder=True)

    def make_optimizer(self):
        return entry.AdagradOptimizer(0.3, initial_accumulator_value=0.5)

    def model_fn(self, features, mode):
        for name in ("age", "city", "item", "words"):
            self.create_embedding_feature_column(name)
        self.create_embedding_feature_column("tags", combiner="reduce_mean")
        self.create_embedding_feature_column("clicked", shared_name="item", max_seq_length=2)
        settings = {
            "initializer": entry.ConstantsInitializer(0.1),
            "optimizer": self.make_optimizer(),
        }
        bias = self.lookup_embedding_slice(
            ["age", "city", "tags"], "bias", 1, out_type="add_n", **settings
        )
        deep = self.lookup_embedding_slice(
            {"item": 3, "age": 2, "words": 4}, "deep", out_type="concat", **settings
        )
        pairs = self.lookup_embedding_slice(
            ["tags", "city"], "pair", 3, out_type="stack", **settings
        )
        (sequence,) = self.lookup_embedding_slice(["clicked"], "deep", 3, **settings)
        parts = [deep, tf.reshape(pairs, [-1, 6]), tf.reshape(sequence, [-1, 6])]
        weights = tf.compat.v1.get_variable(
            "weights", [21, 1], initializer=tf.compat.v1.constant_initializer(0.2)
        )
        hidden = tf.tanh(tf.matmul(tf.concat(parts, 1), weights))
        label = features["label"]
        loss, pred = get_sigmoid_loss_and_pred("ctr", hidden + bias, label, None, mode=mode)
        if loss is not None:
            # A mean, as ranks need it, and as large as the sum over a whole batch.
            loss *= BATCH / tf.cast(tf.shape(label)[0], tf.float32)
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        return EstimatorSpec(label, pred, "ctr", loss, optimizer)

    def serving_input_receiver_fn(self):
        raise NotImplementedError


class SgdRanking(Ranking):
    """The same with an optimizer that has no state."""

    def make_optimizer(self):
        return entry.SgdOptimizer(0.3)


class UnevenRanking(Ranking):
    """Rank 1 of 2 has fewer batches; one process then has smaller ones."""

    def input_fn(self, mode):
        dataset, fewer = super().input_fn(mode), STEPS - 3
        if mode != ModeKeys.TRAIN:
            return dataset
        if collectives.is_initialized() and collectives.size() == 2:
            return dataset.take(fewer) if collectives.rank() == 1 else dataset
        rest = dataset.unbatch().shard(2, 0).batch(BATCH // 2)
        return dataset.take(fewer).concatenate(rest.skip(fewer))


MODELS = {"adagrad": Ranking, "sgd": SgdRanking, "uneven": UnevenRanking}


def predict(estimator) -> np.ndarray:
    input_fn = Ranking().create_input_fn(ModeKeys.PREDICT)
    return np.concatenate([np.ravel(p) for p in estimator.predict(input_fn)])


def train_ranks(directory, cases):
    """What one rank does that is a process of its own, see `train_rank`."""
    tf.compat.v1.disable_eager_execution()
    train_rank(directory, cases)


def train_rank(directory, cases):
    """Trains each case, a model with settings, as one rank does, and predicts; in graph mode.

    Args:
        directory: Has a model directory for each case.
        cases: By name: which of `MODELS`, and settings of the job.
    """
    collectives.init()
    for name, (model, settings) in cases.items():
        config = cpu_training.DistributedCpuTrainingConfig(
            model_dir=f"{directory}/{name}", enable_sync_training=True, **settings
        )
        cpu_training.init_sync_train_and_update_conf(config)
        estimator = cpu_training.distributed_sync_train(config, MODELS[model].params())
        if collectives.rank() == 0:
            found = {
                "step": int(estimator.get_variable_value("global_step")),
                "weights": estimator.get_variable_value("weights"),
                "predictions": predict(estimator),
            }
            write(directory, name, found)
    collectives.shutdown()


def make_table(num_ranks, **options):
    """Returns tables of one feature, and their only layout is called bias."""
    bias = example_pb2.OutConfig()
    bias.slice_configs.add(feature_name="user", start=0, end=1)
    bias.shape.add(dims=[-1, 1])
    ctx = ParserCtx(enable_fused_layout=True)
    configs = PartitionedHashTable.gen_feature_configs(
        num_ranks - get_first_owner(num_ranks),
        {"user": generate_test_hash_table_config(dim=1, learning_rate=1.0)},
        {"bias": bias},
        {"user": [1]},
        {"user": ReduceSum()},
        use_native_multi_hash_table=True,
        **options,
    )
    ctx.set(SHARDING_FEATURE_CONFIGS, configs)
    return create_in_worker_partitioned_hash_table(num_ranks, True, parser_ctx=ctx)


IDS = [[1, 2], [2]]


def update_rows(directory):
    """What one rank does: gives each example a gradient of 1, and looks the examples up again."""
    collectives.init()
    with tf.Graph().as_default():
        table = make_table(collectives.size())
        bias = table.lookup({"user": tf.ragged.constant(IDS, tf.int64)})["bias"]
        update = table.apply_gradients([(tf.ones_like(bias), bias)], 0)
        with make_session() as session:
            session.run(make_tables())
            session.run(update)
            write(directory, "bias", session.run(bias))
    collectives.shutdown()
