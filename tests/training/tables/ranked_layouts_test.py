"""Ranks that train with fused layouts learn what one process learns without them.

Covers monolith/embedding/sharding/ranked_layouts.py.
"""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from support import layout_models, ranks
from support.jobs import Job
from support.layout_models import STEPS

from monolith import errors
from monolith.graph import collectives
from monolith.native_training import cpu_training

FUSED = {"enable_fused_layout": True}
QUEUES = {
    "embedding_prefetch_capacity": 1,
    "enable_pipelined_fwda2a": True,
    "enable_pipelined_bwda2a": True,
    "enable_embedding_postpush": True,
}
# The model, and settings of the job.
NATIVE = {"native": ("adagrad", FUSED)}
MERGED = {"merged": ("adagrad", {**FUSED, "use_native_multi_hash_table": False})}
SGD = {"sgd": ("sgd", FUSED)}
UNEVEN = {"uneven": ("uneven", FUSED)}
LATE = {"late": ("adagrad", {**FUSED, **QUEUES})}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Returns what one process learns, by model."""
    found = {}
    for name, model in layout_models.MODELS.items():
        with tf.Graph().as_default():
            estimator = cpu_training.local_train_internal(
                model.params(),
                cpu_training.CpuTrainingConfig(),
                os.fspath(tmp_path_factory.mktemp(name)),
                steps=None,
            )
            weights = estimator.get_variable_value("weights")
            found[name] = weights, layout_models.predict(estimator)
    return found


@pytest.fixture
def alone(monkeypatch, graph_mode):
    """Makes this process the only rank."""
    monkeypatch.setattr(collectives, "_lib", collectives._Lib())
    yield
    collectives.shutdown()


def check(directory, cases, expected):
    for name, (model, _) in cases.items():
        found = json.loads((directory / f"{name}-0.json").read_text())
        weights, predictions = expected[model]
        # Something has been learned, so that it means something to be equal.
        assert np.std(predictions) > 0.05
        assert found["step"] == STEPS
        np.testing.assert_allclose(found["weights"], weights, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(found["predictions"], predictions, atol=1e-5, err_msg=name)


def check_late(directory):
    """Rows were trained, although each of them some steps late."""
    found = json.loads((directory / "late-0.json").read_text())
    assert found["step"] == STEPS
    assert np.std(found["predictions"]) > 0.05


@pytest.mark.usefixtures("alone", "graph_mode")
def test_one_rank(tmp_path, expected):
    layout_models.train_rank(str(tmp_path), {**MERGED, **LATE})
    check(tmp_path, MERGED, expected)
    check_late(tmp_path)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_ranks(tmp_path, expected):
    """Also where gradients are pushed late, and where one of them has fewer batches."""
    train(tmp_path, 2, {**MERGED, **UNEVEN, **LATE})
    check(tmp_path, {**MERGED, **UNEVEN}, expected)
    check_late(tmp_path)


@pytest.mark.slow
@pytest.mark.distributed
def test_three_ranks(tmp_path, expected):
    train(tmp_path, 3, {**NATIVE, **SGD})
    check(tmp_path, {**NATIVE, **SGD}, expected)


def train(directory, size, cases):
    start(directory, size, "train_ranks", str(directory), cases)


def start(directory, size, function, *args):
    with Job(directory / "logs") as job:
        ranks.start(job, size, function, *args, module="support.layout_models")
        job.expect_success()


@pytest.mark.slow
@pytest.mark.distributed
def test_five_ranks_of_which_the_first_has_no_rows(tmp_path):
    start(tmp_path, 5, "update_rows", str(tmp_path))
    for rank in range(5):
        # With a rate of 1, each rank takes 1 from id 1, which is in one example, and 2 from id 2.
        found = json.loads((tmp_path / f"bias-{rank}.json").read_text())
        assert found == [[-5.0 - 10.0], [-10.0]]


@pytest.mark.usefixtures("alone")
class TestRefusals:
    @pytest.fixture(autouse=True)
    def initialized(self, alone):
        collectives.init()

    def test_rows_are_written_by_updates_only(self):
        table = layout_models.make_table(1)
        for method in ("assign", "assign_add"):
            with pytest.raises(NotImplementedError, match=f"does not support {method}!"):
                getattr(table, method)([{"user": ([1], [[1.0]])}])
        with pytest.raises(NotImplementedError, match="does not support reinitialize!"):
            table.reinitialize("user", [1])

    def test_ranks_look_ahead_together(self):
        ids = {"user": tf.ragged.constant([[1]], tf.int64)}
        with pytest.raises(errors.ConfigError, match="is 1, but ranks look ahead together"):
            layout_models.make_table(1).lookup(ids, embedding_prefetch_capacity=1)

    def test_equal_ids_are_one_step(self):
        with pytest.raises(errors.ConfigError, match=r"^`unique` is False, but an id that"):
            layout_models.make_table(1, unique=False)

    def test_a_gradient_comes_after_a_lookup(self):
        with pytest.raises(errors.ConfigError, match="after a lookup only"):
            layout_models.make_table(1).apply_gradients([], 0)
