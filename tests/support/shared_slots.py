"""A job with several features, two of which share a slot, that stays to be looked at.

Rows count, as those of `support.counting` do.
"""

import time

import tensorflow as tf
from support import counting

from monolith.embedding import entry
from monolith.embedding.features.slots import FeatureColumnV1, FeatureSlotConfig
from monolith.graph.spec import GraphSpec
from monolith.model.task import NativeTask
from monolith.training import cpu

# Features and dim of each slot. Tables of equal dims may be merged into one.
SLOTS = {"item": (["clicked", "shown"], 1), "user": (["user"], 2), "page": (["page"], 2)}
IDS = {"clicked": [[1, 2], []], "shown": [[2], [2, 3]], "user": [[1], [1]], "page": [[7], []]}
# Item 2 is there three times, in two features.
COUNTS = {
    "clicked": {"1": 1, "2": 3, "3": 1},
    "shown": {"1": 1, "2": 3, "3": 1},
    "user": {"1": 2},
    "page": {"7": 1},
}


class SharedSlotsTask(NativeTask):
    @classmethod
    def params(cls):
        p = super().params()
        p.name = "shared_slots"
        return p

    def create_input_fn(self, mode):
        def input_fn():
            batch = {
                name: tf.ragged.constant(ids, tf.int64, ragged_rank=1) for name, ids in IDS.items()
            }
            return tf.data.Dataset.from_tensors(batch)

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            columns, losses = [], []
            for slot_name, (names, dim) in SLOTS.items():
                slot = self.ctx.create_feature_slot(
                    FeatureSlotConfig(
                        name=slot_name,
                        default_vec_initializer=entry.ZerosInitializer(),
                        default_vec_optimizer=entry.SgdOptimizer(learning_rate=1.0),
                    )
                )
                vector = slot.add_feature_slice(dim)
                for name in names:
                    columns.append(FeatureColumnV1(slot, name))
                    losses.append(tf.reduce_sum(columns[-1].embedding_lookup(vector)))
            loss = tf.add_n(losses)
            rows = [column.get_all_embeddings_concat() for column in columns]
            grads = tf.gradients(loss, rows)
            update = self.ctx.apply_embedding_gradients(zip(grads, rows, strict=True))
            with tf.control_dependencies([update]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            return GraphSpec(mode, loss=loss, train_op=step)

        return model_fn


def run_member(settings):
    """Takes part in a job, and is never dismissed; the entry of a process."""
    from monolith.cluster.discovery_base import ServiceDiscoveryType
    from monolith.training.estimator import Estimator
    from monolith.training.runner import RunnerConfig

    def stay(*args):
        print("trained", flush=True)
        while True:
            time.sleep(1)

    tf.compat.v1.disable_eager_execution()
    counting.shorten_times(settings)
    cpu._shutdown_ps = stay
    config = RunnerConfig(
        server_type=settings.role,
        index=settings.index,
        num_ps=settings.num_ps,
        num_workers=settings.num_workers,
        model_dir=settings.model_dir,
        discovery_type=ServiceDiscoveryType.FILE,
        use_native_multi_hash_table=settings.native,
    )
    Estimator(SharedSlotsTask.params(), config).train()
