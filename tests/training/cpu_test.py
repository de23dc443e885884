"""Local training of small tasks, over one multi table and over merged tables.

Covers monolith/training/local.py, monolith/training/tables/collect.py,
monolith/training/tables/hooks.py and monolith/training/tables/training.py.
"""

import json
import logging
import math
import os
import struct

import grpc
import numpy as np
import pytest
import tensorflow as tf

from monolith.graph.run_config import GraphRunConfig
from monolith.native_training import cpu_training, entry, feature, native_task
from monolith.proto import example_pb2, service_pb2
from monolith.training.controller import client
from monolith.training.graph.estimator import GraphEstimator, GraphSpec, ModeKeys

pytestmark = pytest.mark.usefixtures("graph_mode")

DIM = 5
# Adagrad with the defaults of a slot: learning rate 0.001, accumulator 1.
LEARNING_RATE = 0.001


@pytest.fixture(params=[True, False], ids=["native_multi_table", "merged_tables"])
def native(request):
    return request.param


class FeatureTask(native_task.NativeTask):
    """Sums the embeddings of one feature; the loss is that sum, so every gradient is 1."""

    @classmethod
    def params(cls):
        p = super().params()
        p.define("ids", [[0, 0]], "Ids of the examples.")
        p.define("repeat", 1, "Number of batches.")
        p.define("slot_config", {}, "Settings of the slot.")
        p.define("combiner", None, "Combiner of the feature.")
        return p

    def create_input_fn(self, mode):
        def input_fn():
            ids = tf.ragged.constant(self.p.ids, dtype=tf.int64, ragged_rank=1)
            data = {"feature": ids, **self.extra_features()}
            return tf.data.Dataset.from_tensors(data).repeat(self.p.repeat)

        return input_fn

    def extra_features(self):
        return {}

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slot = self.ctx.create_feature_slot(
                feature.FeatureSlotConfig(
                    **{
                        "name": "slot",
                        "default_vec_initializer": entry.ZerosInitializer(),
                        **self.p.slot_config,
                    }
                )
            )
            vector = slot.add_feature_slice(DIM)
            column = feature.FeatureColumnV1(slot, "feature", self.p.combiner)
            embedding = column.embedding_lookup(vector)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions={"embedding": embedding})
            loss = tf.reduce_sum(embedding)
            rows = column.get_all_embeddings_concat()
            update = self.ctx.apply_embedding_gradients(
                zip(tf.gradients(loss, [rows]), [rows], strict=True)
            )
            with tf.control_dependencies([update]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            seen = self.use_features(features)
            return GraphSpec(mode, loss=loss, train_op=tf.group(step, seen))

        return model_fn

    def use_features(self, features):
        return tf.identity(
            features["feature"].values if _is_ragged(features) else features["feature"]
        )


def _is_ragged(features):
    return isinstance(features["feature"], tf.RaggedTensor)


class FloatFeatureTask(FeatureTask):
    """Has a dense feature beside the ids."""

    def extra_features(self):
        return {"float_feature": tf.constant([[1.5, 2.5]])}

    def use_features(self, features):
        return tf.debugging.assert_equal(tf.reduce_sum(features["float_feature"]), 4.0)


class NonFeatureTask(native_task.NativeTask):
    """Has no embeddings at all, and an input that is not a dict."""

    def create_input_fn(self, mode):
        return lambda: tf.data.Dataset.from_tensors([1])

    def create_model_fn(self):
        def model_fn(features, mode, config):
            with tf.control_dependencies([features]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            return GraphSpec(mode, loss=tf.constant(0.0), train_op=step)

        return model_fn


def make_estimator(training, model_dir):
    return GraphEstimator(
        training.create_model_fn(),
        config=GraphRunConfig(model_dir=os.fspath(model_dir)),
    )


def train(params, model_dir, **config):
    training = cpu_training.CpuTraining(
        cpu_training.CpuTrainingConfig(**config), params.instantiate()
    )
    estimator = make_estimator(training, model_dir).train(training.create_input_fn(ModeKeys.TRAIN))
    return training, estimator


def predict(training, estimator):
    """Predicts the first batch in a new session, so from the last checkpoint."""
    input_fn = training.create_input_fn(ModeKeys.PREDICT)
    predictions = estimator.predict(lambda: input_fn().take(1))
    return np.stack([prediction["embedding"] for prediction in predictions])


def adagrad_steps(gradients, accumulator=1.0):
    """Returns how far a weight has come from 0, computed in float64."""
    weight = 0.0
    for gradient in gradients:
        accumulator += gradient * gradient
        weight -= LEARNING_RATE * gradient / math.sqrt(accumulator)
    return weight


def test_feature(native, tmp_path):
    training, estimator = train(FeatureTask.params(), tmp_path, use_native_multi_hash_table=native)
    assert estimator.get_variable_value("global_step") == 1
    # Id 0 twice in an example: its gradient is 1 + 1, and its row is added twice.
    np.testing.assert_allclose(
        predict(training, estimator), np.full([1, DIM], 2 * adagrad_steps([2.0])), rtol=1e-5
    )


def test_checkpoint_has_tables_and_says_of_which_kind(native, tmp_path):
    train(FeatureTask.params(), tmp_path, use_native_multi_hash_table=native)
    assert tf.train.latest_checkpoint(os.fspath(tmp_path)) == str(tmp_path / "model.ckpt-1")
    files = [path.name for path in (tmp_path / "model.ckpt-1.assets").iterdir()]
    prefix = "MonolithMultiHashTable_" if native else "MonolithHashTable_"
    assert any(name.startswith(prefix) for name in files), files
    kind = "MULTI_CUCKOO_HASH_MAP" if native else "CUCKOO_HASH_MAP"
    state = (tmp_path / "monolith_checkpoint").read_text()
    assert f"builtin_hash_table_type: {kind}" in state
    for name in ("meta_graph_for_debugging.pb", "graph.pbtxt"):
        assert (tmp_path / name).exists(), name
    assert "input_worker_0" in files


def test_misc(native, tmp_path):
    params = FeatureTask.params().set(repeat=3)
    training, estimator = train(
        params,
        tmp_path,
        use_native_multi_hash_table=native,
        feature_eviction_on_save=True,
        hashtable_init_capacity=1000,
        save_checkpoints_steps=1,
        enable_model_ckpt_info=True,
    )
    # Reloading the tables after each save takes nothing away that has not expired.
    np.testing.assert_allclose(
        predict(training, estimator), np.full([1, DIM], 2 * adagrad_steps([2.0] * 3)), rtol=1e-5
    )
    assert (tmp_path / "ckpt.info-3").exists()


def test_prefetch_and_postpush(native, tmp_path):
    params = FeatureTask.params().set(repeat=4)
    training, estimator = train(
        params,
        tmp_path,
        use_native_multi_hash_table=native,
        embedding_prefetch_capacity=1,
        enable_embedding_postpush=True,
        enable_variable_prefetch=True,
        enable_variable_postpush=True,
    )
    assert estimator.get_variable_value("global_step") == 4
    # Late, but all of them: the gradient does not depend on the embedding.
    np.testing.assert_allclose(
        predict(training, estimator), np.full([1, DIM], 2 * adagrad_steps([2.0] * 4)), rtol=1e-5
    )


def test_float_feature(native, tmp_path):
    _, estimator = train(FloatFeatureTask.params(), tmp_path, use_native_multi_hash_table=native)
    assert estimator.get_variable_value("global_step") == 1


def test_float_feature_goes_through_the_prefetch_queue(native, tmp_path):
    params = FloatFeatureTask.params().set(repeat=3)
    _, estimator = train(
        params, tmp_path, use_native_multi_hash_table=native, embedding_prefetch_capacity=1
    )
    assert estimator.get_variable_value("global_step") == 3


def test_sequence_feature(native, tmp_path):
    params = FeatureTask.params().set(
        ids=[[7], [], [8, 9, 10]], combiner=feature.FeatureColumnV1.first_n(2)
    )
    training, estimator = train(params, tmp_path, use_native_multi_hash_table=native)
    moved = adagrad_steps([1.0])
    expected = np.zeros([3, 2, DIM])
    expected[0, 0] = moved
    # Id 10 is the third, so it has no part in the loss.
    expected[2, :] = moved
    np.testing.assert_allclose(predict(training, estimator), expected, rtol=1e-5)


def test_non_feature(native, tmp_path):
    _, estimator = train(NonFeatureTask.params(), tmp_path, use_native_multi_hash_table=native)
    assert estimator.get_variable_value("global_step") == 1


def test_occurrence_threshold(native, tmp_path):
    params = FeatureTask.params().set(
        slot_config={"slot_id": 2021, "occurrence_threshold": 3},
        ids=[[2021 << 48 | 1, 2021 << 48 | 2, 2021 << 48 | 2]],
        repeat=3,
    )
    training, estimator = train(params, tmp_path, use_native_multi_hash_table=native)
    assert training._slot_to_occurrence_threshold == {2021: 3}
    # Before the third batch id 2 was seen 4 times, more than 3, so that batch, with the gradient
    # 1 + 1, counts. Id 1 was seen twice and has no row.
    np.testing.assert_allclose(
        predict(training, estimator), np.full([1, DIM], 2 * adagrad_steps([2.0])), rtol=1e-5
    )
    assert list((tmp_path / "model.ckpt-3.assets").glob("hash_filter_0-*"))


def test_occurrence_threshold_of_a_model_that_had_none(native, tmp_path, caplog):
    """The checkpoint has no filters: they start empty, and rows that are there learn on."""
    params = FeatureTask.params().set(
        slot_config={"slot_id": 2021}, ids=[[2021 << 48 | 1, 2021 << 48 | 1]]
    )
    train(params, tmp_path, use_native_multi_hash_table=native)
    assert "hash filters start empty" not in caplog.text
    params.slot_config = {"slot_id": 2021, "occurrence_threshold": 3}
    training, estimator = train(params, tmp_path, use_native_multi_hash_table=native)
    assert f"hash filters start empty: {tmp_path}/model.ckpt-1 has none" in caplog.text
    assert estimator.get_variable_value("global_step") == 2
    np.testing.assert_allclose(
        predict(training, estimator), np.full([1, DIM], 2 * adagrad_steps([2.0, 2.0])), rtol=1e-5
    )
    assert list((tmp_path / "model.ckpt-2.assets").glob("hash_filter_0-*"))


class ExpireTimeTask(native_task.NativeTask):
    """Two slots: rows of slot 1 expire at once, those of slot 2 after a day."""

    EXPIRE_TIME = {1: 0, 2: 1}

    def create_input_fn(self, mode):
        def input_fn():
            return tf.data.Dataset.from_tensors(
                {
                    f"feature_{slot}": tf.ragged.constant(
                        [[slot << 48 | 1, slot << 48 | 2]], tf.int64
                    )
                    for slot in self.EXPIRE_TIME
                }
            )

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            columns, embeddings = [], []
            for slot_id, expire_time in self.EXPIRE_TIME.items():
                slot = self.ctx.create_feature_slot(
                    feature.FeatureSlotConfig(
                        slot_id=slot_id,
                        expire_time=expire_time,
                        default_vec_initializer=entry.ZerosInitializer(),
                    )
                )
                vector = slot.add_feature_slice(DIM)
                columns.append(feature.FeatureColumnV1(slot, f"feature_{slot_id}"))
                embeddings.append(columns[-1].embedding_lookup(vector))
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions={"embedding": tf.concat(embeddings, 0)})
            loss = tf.add_n([tf.reduce_sum(embedding) for embedding in embeddings])
            rows = [column.get_all_embeddings_concat() for column in columns]
            update = self.ctx.apply_embedding_gradients(
                zip(tf.gradients(loss, rows), rows, strict=True)
            )
            with tf.control_dependencies([update]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            return GraphSpec(mode, loss=loss, train_op=step)

        return model_fn


def test_expire_time(native, tmp_path):
    training, estimator = train(
        ExpireTimeTask.params(), tmp_path, use_native_multi_hash_table=native
    )
    assert training._slot_to_expire_time == {1: 0, 2: 1}
    # Two ids in each example, each moved by 0.001 / sqrt(1 + 1); slot 1 is not in the checkpoint.
    moved = -2 * LEARNING_RATE / math.sqrt(2)
    assert moved == pytest.approx(-0.001414, abs=1e-6)
    np.testing.assert_allclose(
        predict(training, estimator), [[0.0] * DIM, [moved] * DIM], rtol=1e-5
    )


@pytest.mark.parametrize("num_ps", [0, 2])
@pytest.mark.parametrize("queues", [True, False], ids=["prefetch_and_postpush", "in_step"])
def test_local_train(num_ps, queues, tmp_path):
    params = FeatureTask.params().set(ids=[[0, 1], [1, 2, 3]], repeat=6)
    estimator = cpu_training.local_train(
        params,
        num_ps=num_ps,
        model_dir=os.fspath(tmp_path / "model"),
        steps=5,
        save_checkpoints_steps=2,
        enable_embedding_prefetch=queues,
        enable_embedding_postpush=queues,
    )
    assert estimator.get_variable_value("global_step") == 5
    assert "TF_CONFIG" not in os.environ
    state = tf.train.get_checkpoint_state(os.fspath(tmp_path / "model"))
    assert [os.path.basename(path) for path in state.all_model_checkpoint_paths] == [
        "model.ckpt-2",
        "model.ckpt-4",
        "model.ckpt-5",
    ]


def test_rows_do_not_depend_on_the_number_of_servers(native, tmp_path):
    """Five steps on 0, 1 and 3 servers; then the rows that predictions find in the checkpoint."""
    for num_ps in (0, 1, 3):
        params = FeatureTask.params().set(ids=[[0, 1], [1, 2, 3]], repeat=5)
        estimator = cpu_training.local_train_internal(
            params,
            cpu_training.CpuTrainingConfig(num_ps=num_ps, use_native_multi_hash_table=native),
            os.fspath(tmp_path / str(num_ps)),
            steps=5,
        )
        input_fn = params.instantiate().create_input_fn(ModeKeys.PREDICT)
        predictions = [p["embedding"][0] for p in estimator.predict(lambda f=input_fn: f().take(1))]
        once, twice = adagrad_steps([1.0] * 5), adagrad_steps([2.0] * 5)
        np.testing.assert_allclose(predictions, [once + twice, twice + 2 * once], rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({}, id="no_server"),
        pytest.param({"num_ps": 2, "partial_recovery": True}, id="new_servers"),
    ],
)
def test_training_goes_on_where_it_ended(native, config, tmp_path):
    params = FeatureTask.params().set(ids=[[0, 0, 1]], repeat=10)
    for steps in (2, 3):
        conf = cpu_training.CpuTrainingConfig(use_native_multi_hash_table=native, **config)
        estimator = cpu_training.local_train_internal(params, conf, os.fspath(tmp_path), steps)
    assert estimator.get_variable_value("global_step") == 5
    input_fn = params.instantiate().create_input_fn(ModeKeys.PREDICT)
    (prediction,) = estimator.predict(lambda: input_fn().take(1))
    row_0, row_1 = adagrad_steps([2.0] * 5), adagrad_steps([1.0] * 5)
    np.testing.assert_allclose(prediction["embedding"], [2 * row_0 + row_1] * DIM, rtol=1e-5)


def test_old_checkpoints_keep_their_kind_of_table(tmp_path):
    params = FeatureTask.params().set(repeat=4)
    old = cpu_training.CpuTrainingConfig(use_native_multi_hash_table=False)
    cpu_training.local_train_internal(params, old, os.fspath(tmp_path), steps=2)
    estimator = cpu_training.local_train(
        params, model_dir=os.fspath(tmp_path), steps=2, remove_model_dir_if_exists=False
    )
    assert estimator.get_variable_value("global_step") == 4
    files = os.listdir(tmp_path / "model.ckpt-4.assets")
    assert any(name.startswith("MonolithHashTable_") for name in files), files


def test_local_train_removes_the_old_model(tmp_path):
    params = FeatureTask.params().set(repeat=2)
    for _ in range(2):
        estimator = cpu_training.local_train(params, model_dir=os.fspath(tmp_path / "model"))
    assert estimator.get_variable_value("global_step") == 2


def test_user_hooks_see_every_step(tmp_path):
    class CountHook(tf.compat.v1.train.SessionRunHook):
        count = 0

        def after_run(self, run_context, run_values):
            self.count += 1

    hook = CountHook()
    params = FeatureTask.params().set(repeat=3)
    conf = cpu_training.CpuTrainingConfig()
    cpu_training.local_train_internal(params, conf, os.fspath(tmp_path), user_hooks=[hook])
    assert hook.count == 3


@pytest.mark.parametrize(
    ("config", "interval"),
    [
        pytest.param({"save_checkpoints_steps": 2}, [2, 4, 5], id="of_the_config"),
        pytest.param({}, [3, 5], id="of_the_params"),
    ],
)
def test_save_interval(config, interval, tmp_path):
    params = FeatureTask.params().set(repeat=5)
    params.train.save_checkpoints_steps = 3
    train(params, tmp_path, **config)
    state = tf.train.get_checkpoint_state(os.fspath(tmp_path))
    steps = [int(path.rpartition("-")[2]) for path in state.all_model_checkpoint_paths]
    assert steps == interval


def test_dense_only_checkpoints_are_beside_the_full_ones(tmp_path):
    train(
        FeatureTask.params().set(repeat=5),
        tmp_path,
        save_checkpoints_steps=4,
        dense_only_save_checkpoints_steps=2,
    )
    dense_only = tf.train.get_checkpoint_state(os.fspath(tmp_path / "dense_only"))
    assert len(dense_only.all_model_checkpoint_paths) >= 2
    assert not list((tmp_path / "dense_only").glob("*.assets"))
    assert tf.train.latest_checkpoint(os.fspath(tmp_path)).endswith("model.ckpt-5")


def test_controller_answers_who_can_read_its_token(tmp_path):
    class StatusHook(tf.compat.v1.train.SessionRunHook):
        def after_run(self, run_context, run_values):
            with client.connect(os.fspath(tmp_path)) as stub:
                self.step = stub.GetTrainingStatus(service_pb2.GetTrainingStatusRequest())
            self.mode = (tmp_path / "controller_server_token.txt").stat().st_mode & 0o777
            (tmp_path / "controller_server_token.txt").rename(tmp_path / "elsewhere")
            with client.connect(os.fspath(tmp_path)) as stub, pytest.raises(grpc.RpcError) as info:
                stub.StopTraining(service_pb2.StopTrainingRequest())
            self.refusal = info.value.code()

    hook = StatusHook()
    cpu_training.local_train_internal(
        FeatureTask.params(),
        cpu_training.CpuTrainingConfig(),
        os.fspath(tmp_path),
        user_hooks=[hook],
    )
    assert hook.step.global_step == 1
    assert hook.mode == 0o600
    assert hook.refusal == grpc.StatusCode.UNAUTHENTICATED


def test_no_controller_where_others_could_read_its_token(caplog):
    model_dir = "ram:///test_no_controller_where_others_could_read_its_token"
    with caplog.at_level(logging.WARNING, logger="monolith.training.tables.save"):
        estimator = cpu_training.local_train_internal(
            FeatureTask.params(), cpu_training.CpuTrainingConfig(), model_dir
        )
    assert estimator.latest_checkpoint() == f"{model_dir}/model.ckpt-1"
    assert f"no controller: others might read its token in {model_dir}" in caplog.text


class GraphHook(tf.compat.v1.train.SessionRunHook):
    """Keeps the graph of a training."""

    def begin(self):
        self.graph = tf.compat.v1.get_default_graph()


def test_each_server_is_a_cpu_device_with_its_tables_and_variables(native, tmp_path):
    hook = GraphHook()
    conf = cpu_training.CpuTrainingConfig(num_ps=2, use_native_multi_hash_table=native)
    estimator = cpu_training.local_train_internal(
        FeatureTask.params(), conf, os.fspath(tmp_path), user_hooks=[hook]
    )
    kind = "ReadMonolithMultiHashTable" if native else "MonolithHashTable"
    tables = [op.device for op in hook.graph.get_operations() if op.type == kind]
    assert sorted(tables) == ["/device:CPU:1", "/device:CPU:2"]
    (step,) = hook.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_STEP)
    assert step.device == "/device:CPU:1"
    assert not [op.name for op in hook.graph.get_operations() if "/job:" in op.device]
    assert (estimator.config.master, estimator.config.num_local_servers) == ("", 2)


def test_a_cluster_of_the_environment_is_not_that_of_a_local_job(monkeypatch, tmp_path):
    cluster = {"chief": ["localhost:1"], "ps": ["localhost:2"]}
    task = {"type": "chief", "index": 0}
    tf_config = json.dumps({"cluster": cluster, "task": task})
    monkeypatch.setenv("TF_CONFIG", tf_config)
    conf = cpu_training.CpuTrainingConfig(num_ps=2)
    estimator = cpu_training.local_train_internal(FeatureTask.params(), conf, os.fspath(tmp_path))
    assert estimator.config.master == ""
    # It may be that of a job which this process joins later.
    assert os.environ["TF_CONFIG"] == tf_config
    assert estimator.get_variable_value("global_step") == 1


def test_profile_is_written_on_request(tmp_path):
    cpu_training.local_train(FeatureTask.params(), model_dir=os.fspath(tmp_path), profiling=True)
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


class EvaluatedTask(FeatureTask):
    """Learns nothing new in an evaluation, and measures the mean of its embeddings."""

    def create_model_fn(self):
        train_fn = super().create_model_fn()

        def model_fn(features, mode, config):
            spec = train_fn(features, ModeKeys.PREDICT if mode == ModeKeys.EVAL else mode, config)
            if mode != ModeKeys.EVAL:
                return spec
            embedding = spec.predictions["embedding"]
            return GraphSpec(
                mode,
                loss=tf.reduce_sum(embedding),
                eval_metric_ops={"mean": tf.compat.v1.metrics.mean(embedding)},
            )

        return model_fn


def test_evaluate_reads_the_tables_of_the_checkpoint(native, tmp_path):
    params = EvaluatedTask.params().set(repeat=2)
    # Queues are for training: an evaluation has nobody to fill them.
    training, estimator = train(
        params, tmp_path, use_native_multi_hash_table=native, embedding_prefetch_capacity=1
    )
    metrics = estimator.evaluate(training.create_input_fn(ModeKeys.EVAL))
    mean = 2 * adagrad_steps([2.0] * 2)
    assert metrics["mean"] == pytest.approx(mean, rel=1e-5)
    assert metrics["loss"] == pytest.approx(DIM * mean, rel=1e-5)
    assert metrics["global_step"] == 2


def test_loss_is_summarized(tmp_path):
    train(FeatureTask.params(), tmp_path)
    (events,) = tmp_path.glob("events.out.tfevents.*")
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(os.fspath(events))
        for value in event.summary.value
    }
    assert "loss" in tags


class SharedSlotTask(native_task.NativeTask):
    """Two features of one slot, and one of another; the loss is the sum of all embeddings."""

    def create_input_fn(self, mode):
        def input_fn():
            return tf.data.Dataset.from_tensors(
                {
                    "clicked": tf.ragged.constant([[1, 2], []], tf.int64, ragged_rank=1),
                    "shown": tf.ragged.constant([[2], [2, 3]], tf.int64, ragged_rank=1),
                    "user": tf.ragged.constant([[1], [1]], tf.int64, ragged_rank=1),
                }
            )

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            columns, embeddings = [], {}
            for slot_name, names in (("item", ("clicked", "shown")), ("user", ("user",))):
                slot = self.ctx.create_feature_slot(
                    feature.FeatureSlotConfig(
                        name=slot_name, default_vec_initializer=entry.ZerosInitializer()
                    )
                )
                vector = slot.add_feature_slice(1)
                for name in names:
                    columns.append(feature.FeatureColumn(slot, name))
                    embeddings[name] = columns[-1].embedding_lookup(vector)
            if mode == ModeKeys.PREDICT:
                return GraphSpec(mode, predictions=embeddings)
            loss = tf.add_n([tf.reduce_sum(embedding) for embedding in embeddings.values()])
            rows = [column.get_all_embeddings_concat() for column in columns]
            update = self.ctx.apply_embedding_gradients(
                zip(tf.gradients(loss, rows), rows, strict=True)
            )
            with tf.control_dependencies([update]):
                step = tf.compat.v1.train.get_or_create_global_step().assign_add(1).op
            return GraphSpec(mode, loss=loss, train_op=step)

        return model_fn


@pytest.mark.parametrize("num_ps", [0, 2])
def test_features_of_one_slot_share_its_rows(num_ps, tmp_path):
    params = SharedSlotTask.params()
    estimator = cpu_training.local_train_internal(
        params, cpu_training.CpuTrainingConfig(num_ps=num_ps), os.fspath(tmp_path)
    )
    predictions = list(estimator.predict(params.instantiate().create_input_fn(ModeKeys.PREDICT)))
    # Item 1 is in the batch once, item 2 three times in two features, item 3 once; user 1, twice,
    # has nothing to do with item 1.
    item_1, item_2, item_3 = (adagrad_steps([g]) for g in (1.0, 3.0, 1.0))
    user = adagrad_steps([2.0])
    expected = {
        "clicked": [item_1 + item_2, 0.0],
        "shown": [item_2, item_2 + item_3],
        "user": [user, user],
    }
    for name, values in expected.items():
        np.testing.assert_allclose([p[name][0] for p in predictions], values, rtol=1e-5)


def test_only_feature_engineering_writes_features(tmp_path):
    params = FeatureTask.params().set(ids=[[7], [8, 9]], repeat=3)
    estimator = cpu_training.local_train(
        params, model_dir=os.fspath(tmp_path), only_feature_engineering=True
    )
    assert estimator is None
    (path,) = (tmp_path / "features").glob("chief_*.pb")
    data, batches = path.read_bytes(), []
    while data:
        zero, size = struct.unpack("<QQ", data[:16])
        assert zero == 0
        batches.append(example_pb2.ExampleBatch.FromString(data[16 : 16 + size]))
        data = data[16 + size :]
    assert len(batches) == 3
    for batch in batches:
        (named,) = batch.named_feature_list
        assert (named.name, batch.batch_size) == ("feature", 2)
        assert [list(f.fid_v2_list.value) for f in named.feature] == [[7], [8, 9]]
    # Nothing was trained.
    assert tf.train.latest_checkpoint(os.fspath(tmp_path)) is None
