"""The factorization machine of demos and tests, trained for real and against NumPy."""

import numpy as np
import pytest
import tensorflow as tf

from monolith.data import ffm
from monolith.embedding.features.dry_run import DummyFeatureFactory
from monolith.graph.mode_keys import ModeKeys
from monolith.model import ffm as ffm_model
from monolith.model import registry
from monolith.native_training import model as historical_model
from monolith.training import cpu

pytestmark = pytest.mark.usefixtures("graph_mode")


def test_historical_path():
    assert historical_model is ffm_model


def test_registered_params():
    params = registry.GetParams("monolith.model.ffm.FFMParams")
    assert params.cls is ffm_model.TestFFMModel
    assert params.train.per_replica_batch_size == 64


def read_batches(mode: str, count: int) -> list[dict]:
    dataset = ffm_model.FFMParams().task().instantiate().create_input_fn(mode)()
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    with tf.compat.v1.Session() as session:
        return [session.run(batch) for _ in range(count)]


class TestInput:
    def test_same_batch_over_and_over(self):
        first, second = read_batches(ModeKeys.TRAIN, 2)
        assert first.keys() == {"label", *(ffm.slot_to_key(slot) for slot in range(6))}
        np.testing.assert_array_equal(first["label"], np.zeros(64))
        for slot in range(6):
            ids = first[ffm.slot_to_key(slot)]
            np.testing.assert_array_equal(ids.values, second[ffm.slot_to_key(slot)].values)
            assert ids.row_splits.shape == (65,)
            assert set(ids.values) <= set(range(5 * slot, 5 * slot + 5))
            assert set(np.diff(ids.row_splits)) <= set(range(1, 6))

    def test_evaluation_ends(self):
        with pytest.raises(tf.errors.OutOfRangeError):
            read_batches(ModeKeys.EVAL, 2)

    def test_leaves_the_random_state_alone(self):
        np.random.seed(1)
        expected = np.random.rand()
        np.random.seed(1)
        read_batches(ModeKeys.TRAIN, 1)
        assert np.random.rand() == expected

    def test_requests_need_no_label(self):
        example = tf.train.Example()
        example.features.feature["feature_0"].int64_list.value.append(3)
        task = ffm_model.FFMParams().task().instantiate()
        receiver = task.create_serving_input_receiver_fn()()
        placeholder = receiver.receiver_tensors["instances"]
        with tf.compat.v1.Session() as session:
            features = session.run(receiver.features, {placeholder: [example.SerializeToString()]})
        assert features["feature_0"].to_list() == [[3]]
        assert features["feature_1"].to_list() == [[]]


def test_tables():
    task = ffm_model.FFMParams().task().instantiate()
    task.ctx.feature_factory = factory = DummyFeatureFactory(64)
    task.create_model_fn()(features={"label": tf.zeros([64])}, mode=ModeKeys.TRAIN, config=None)
    configs = factory.get_table_name_to_table_config()
    dims = {name: config.unmerged_slice_dims for name, config in configs.items()}
    # A bias for slots 0 to 3, and 16 for each pair that a slot is in.
    assert dims == {
        "0": [1, 16, 16],
        "1": [1, 16],
        "2": [1, 16, 16],
        "3": [1, 16, 16],
        "4": [16],
        "5": [16, 16],
    }
    bias = configs["0"].slice_configs[0].segment.opt_config.ftrl
    assert (bias.learning_rate, bias.initial_accumulator_value, bias.beta) == (
        pytest.approx(0.1),
        pytest.approx(1e-6),
        1.0,
    )


@pytest.mark.parametrize("num_ps", [0, 2])
def test_learns_that_the_label_is_zero(tmp_path, num_ps):
    losses = []

    class Losses(tf.compat.v1.train.SessionRunHook):
        def begin(self):
            (self._loss,) = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.LOSSES)

        def before_run(self, run_context):
            return tf.compat.v1.train.SessionRunArgs(self._loss)

        def after_run(self, run_context, run_values):
            losses.append(run_values.results)

    params = ffm_model.FFMParams().task()
    config = cpu.CpuTrainingConfig(num_ps=num_ps, save_checkpoints_steps=50)
    est = cpu.local_train_internal(
        params, config, str(tmp_path / "model"), steps=30, user_hooks=[Losses()]
    )
    # Rows start near 0: 64 times log(2).
    assert losses[0] == pytest.approx(64 * np.log(2), rel=0.05)
    assert losses[-1] < 0.1 * losses[0]
    input_fn = params.instantiate().create_input_fn(ModeKeys.PREDICT)
    predictions = np.array(list(est.predict(input_fn)))
    assert predictions.shape == (64,)
    assert predictions.max() < 0.2
