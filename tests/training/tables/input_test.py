"""What `CpuTraining` says about models and configs that cannot work, before anything runs."""

import os

import pytest
import tensorflow as tf

from monolith import errors
from monolith.native_training import cpu_training, feature, native_task
from monolith.training.graph.estimator import GraphSpec

pytestmark = pytest.mark.usefixtures("graph_mode")

RAGGED = tf.RaggedTensorSpec([None, None], tf.int64)


class SomeTask(native_task.NativeTask):
    """Uses some features, with embeddings and without, of an input of some kind."""

    @classmethod
    def params(cls):
        p = super().params()
        p.define("input_spec", {"user": RAGGED}, "What the input gives.")
        p.define("embedded", ["user"], "Features with embeddings.")
        p.define("dense", [], "Features without.")
        p.define("slots", {}, "Slot of each feature, if not its own.")
        p.define("learning_rate_fn", lambda: None, "Makes the learning rate.")
        return p

    def create_input_fn(self, mode):
        def input_fn():
            return tf.data.Dataset.from_generator(
                lambda: iter(()), output_signature=self.p.input_spec
            )

        return input_fn

    def create_model_fn(self):
        def model_fn(features, mode, config):
            slots = {}
            for name in self.p.embedded:
                slot_name = self.p.slots.get(name, name)
                if slot_name not in slots:
                    slots[slot_name] = self.ctx.create_feature_slot(
                        feature.FeatureSlotConfig(name=slot_name)
                    )
                    slots[slot_name].add_feature_slice(
                        4, learning_rate_fn=self.p.learning_rate_fn()
                    )
                feature.FeatureColumn(slots[slot_name], name)
            used = [features[name] for name in self.p.dense]
            with tf.control_dependencies(used):
                step = tf.compat.v1.train.get_global_step().assign_add(1).op
            return GraphSpec(mode, loss=tf.constant(0.0), train_op=step)

        return model_fn


def make_training(config=None, **settings):
    params = SomeTask.params().set(**settings)
    return cpu_training.CpuTraining(
        config or cpu_training.CpuTrainingConfig(), params.instantiate()
    )


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        pytest.param(
            {"embedded": ["usr"]},
            r"feature 'usr', which the input does not have \(did you mean 'user'\?\); it has "
            r"'user'\. Add it to what input_fn gives, or correct the name\.",
            id="embedding_of_a_missing_feature",
        ),
        pytest.param(
            {"dense": ["label"]},
            r"feature 'label', which the input does not have; it has 'user'",
            id="dense_feature_is_missing",
        ),
        pytest.param(
            {"input_spec": {"user": tf.TensorSpec([None], tf.int64)}},
            r"Feature 'user' has embeddings.*gives a dense int64 tensor of shape \(None,\): "
            r"convert it with tf\.RaggedTensor\.from_tensor",
            id="dense_tensor_instead_of_ids",
        ),
        pytest.param(
            {"input_spec": {"user": tf.SparseTensorSpec([None, None], tf.int64)}},
            r"gives a sparse int64 tensor: convert it with tf\.RaggedTensor\.from_sparse",
            id="sparse_tensor_instead_of_ids",
        ),
        pytest.param(
            {"input_spec": {"user": tf.RaggedTensorSpec([None, None], tf.int32)}},
            r"its ids are int32; cast them with tf\.cast",
            id="ids_of_another_type",
        ),
        pytest.param(
            {"input_spec": {"user": tf.RaggedTensorSpec([None, None, None], tf.int64)}},
            r"more dimensions than \[batch, ids\]; flatten the inner ones",
            id="ids_with_too_many_dimensions",
        ),
        pytest.param(
            {"input_spec": tf.TensorSpec([None], tf.int64)},
            r"embeddings of 'user', so input_fn must give a dict of features; it gives a dense "
            r"int64 tensor of shape \(None,\)",
            id="input_is_no_dict",
        ),
        pytest.param(
            {"learning_rate_fn": lambda: tf.constant(0.1)},
            r"learning rate of slot 'user' is a tensor.*give a number, or a function",
            id="learning_rate_of_one_graph",
        ),
    ],
)
def test_input_that_does_not_fit(settings, sentence):
    with pytest.raises(errors.ConfigError, match=f"(?s){sentence}"):
        make_training(**settings)


def test_missing_feature_is_a_key_error_too():
    with pytest.raises(KeyError) as info:
        make_training(dense=["label"])
    # KeyError would print the repr of the sentence.
    assert str(info.value).startswith("The model uses feature 'label'")


def test_long_lists_of_features_are_cut():
    spec = {f"f{i:02}": RAGGED for i in range(30)}
    with pytest.raises(errors.ConfigError, match=r"'f19', 10 more\. Add it"):
        make_training(input_spec=spec, embedded=["user"])


def test_feature_in_two_slots():
    class TwoSlotsTask(SomeTask):
        def create_model_fn(self):
            def model_fn(features, mode, config):
                for name in ("a", "b"):
                    slot = self.ctx.create_feature_slot(feature.FeatureSlotConfig(name=name))
                    slot.add_feature_slice(4)
                    feature.FeatureColumn(slot, "user")
                return GraphSpec(mode, loss=tf.constant(0.0), train_op=tf.no_op())

            return model_fn

    with pytest.raises(AssertionError, match=r"Feature must only belongs to one table\..*'user'"):
        cpu_training.CpuTraining(
            cpu_training.CpuTrainingConfig(), TwoSlotsTask.params().instantiate()
        )


def test_only_a_worker_trains():
    with pytest.raises(ValueError, match=r"^server_type in CpuTraining must be `worker`$"):
        make_training(cpu_training.CpuTrainingConfig(server_type="ps"))


def test_settings_of_other_kinds_of_job_are_refused():
    with pytest.raises(errors.ConfigError, match="`enable_gpu_training` is True, which asks for"):
        make_training(cpu_training.CpuTrainingConfig(enable_gpu_training=True))


def test_local_train_needs_graph_mode():
    from tensorflow.python.eager import context

    with (
        context.eager_mode(),
        pytest.raises(
            EnvironmentError,
            match=r"^Local train is not supported in the eager mode\. Please call "
            r"`tf\.compat\.v1\.disable_eager_execution\(\)`$",
        ),
    ):
        cpu_training.local_train(SomeTask.params())


def test_export_on_save_is_refused_with_a_sentence(tmp_path):
    params = SomeTask.params()
    params.serving.export_when_saving = True
    with pytest.raises(errors.ConfigError, match=r"`serving\.export_when_saving` is set, but"):
        cpu_training.local_train(params, model_dir=os.fspath(tmp_path))


def test_two_intervals_for_one_save(tmp_path):
    conf = cpu_training.CpuTrainingConfig(save_checkpoints_secs=5, save_checkpoints_steps=5)
    with pytest.raises(
        ValueError,
        match=r"Can not provide both save_checkpoints_secs and save_checkpoints_steps\.",
    ):
        cpu_training.local_train_internal(SomeTask.params(), conf, os.fspath(tmp_path))


def test_config_is_filled_in():
    config = cpu_training.CpuTrainingConfig()
    training = make_training(config)
    assert config.model_name == "di_name_SomeTask"
    assert config.use_native_multi_hash_table is True
    assert training.config.model_name == "di_name_SomeTask"
    assert training.config is not config


def test_deep_insight_name_is_the_model_name():
    params = SomeTask.params()
    params.metrics.deep_insight_name = "ranking"
    config = cpu_training.CpuTrainingConfig()
    cpu_training.CpuTraining(config, params.instantiate())
    assert config.model_name == "ranking"


def test_feature_configs_are_those_of_serving_while_exporting():
    from monolith.graph import export_mode
    from monolith.proto import embedding_hash_table_pb2 as proto

    config = cpu_training.CpuTrainingConfig(
        embedding_prefetch_capacity=1,
        enable_embedding_postpush=True,
        skip_zero_embedding_when_serving=True,
    )
    training = make_training(config)
    table = training.feature_configs[0]["user"].table_config
    assert table.entry_config.entry_type == proto.EntryConfig.TRAINING
    with export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE):
        assert training.config.embedding_prefetch_capacity == 0
        assert training.config.enable_embedding_postpush is False
        table = training.feature_configs[0]["user"].table_config
        assert table.entry_config.entry_type == proto.EntryConfig.SERVING
        assert table.skip_zero_embedding
    assert training.config.embedding_prefetch_capacity == 1


def test_get_blocked_addrs():
    cluster = {"chief": ["a:1"], "worker": ["b:1", "b:2"], "ps": ["c:1", "a:1"]}
    assert set(cpu_training._get_blocked_addrs(cluster)) == {"a:1", "b:1", "b:2", "c:1"}
    blocked = cpu_training._get_blocked_addrs(cluster, ignored_jobs={"worker"})
    assert sorted(blocked) == ["a:1", "c:1"]


def test_node_alive_checker_error():
    assert str(cpu_training.NodeAliveCheckerError("a:1 is unreachable")) == "a:1 is unreachable"


@pytest.mark.parametrize("num_ps", [0, 1])
@pytest.mark.parametrize("queues", [True, False], ids=["prefetch", "no_queue"])
def test_empty_input(num_ps, queues, tmp_path):
    spec = {"user": RAGGED, "label": tf.TensorSpec([None], tf.float32)}
    params = SomeTask.params().set(input_spec=spec, dense=["label"])
    with pytest.raises(errors.ConfigError, match="the input ended before its first batch"):
        cpu_training.local_train(
            params,
            num_ps=num_ps,
            model_dir=os.fspath(tmp_path),
            enable_embedding_prefetch=queues,
        )
