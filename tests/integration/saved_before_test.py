"""What an earlier version has saved restores: tables, filters and deltas.

The files are in `tests/data/checkpoint_before`; what they hold follows from the step by the rules
of `support.saved_before`, which wrote them.
"""

import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from support import saved_before

from monolith.checkpoint import delta_chain, manifest
from monolith.training import cpu

pytestmark = pytest.mark.usefixtures("graph_mode")

SAVED = pathlib.Path(__file__).parents[1] / "data" / "checkpoint_before"


@pytest.fixture
def copy(tmp_path):
    """Returns a function that copies what was saved to where it may be changed."""

    def copy(name: str) -> str:
        return str(shutil.copytree(SAVED / name, tmp_path / name))

    return copy


def get_sgd_rows(last_step: int) -> dict[int, list[float]]:
    """Each update subtracts the gradient."""
    ids = [row_id for step in range(1, last_step + 1) for row_id in saved_before.IDS_OF_STEP[step]]
    return {i: (-ids.count(i) * np.asarray(saved_before.GRADIENT)).tolist() for i in ids}


def get_adagrad_rows(last_step: int) -> dict[int, list[float]]:
    """The n-th update of a row subtracts `g / sqrt(1 + n * g * g)`."""
    gradient = np.asarray(saved_before.GRADIENT)
    counts = {i: int(-row[0]) for i, row in get_sgd_rows(last_step).items()}
    return {
        i: -sum(gradient / np.sqrt(1 + n * gradient**2) for n in range(1, count + 1))
        for i, count in counts.items()
    }


def check_tables(session, model, last_step):
    ids = sorted(get_sgd_rows(last_step))
    rows, dense, step = session.run([model.rows, model.dense, model.step], {model.ids: ids})
    sgd = [get_sgd_rows(last_step)[i] for i in ids]
    assert int(step) == last_step
    assert dense.tolist() == [-g * last_step for g in saved_before.GRADIENT]
    assert rows["single"].tolist() == sgd
    assert rows["sgd"].tolist() == sgd
    adagrad = [get_adagrad_rows(last_step)[i] for i in ids]
    np.testing.assert_allclose(rows["adagrad"], adagrad, rtol=1e-6)
    assert session.run(model.size) == len(ids)


def test_saver_and_listeners_restore_tables_filter_and_deltas(copy):
    model_dir = copy("tables")
    base = tf.train.latest_checkpoint(model_dir)
    assert [delta.step for delta in delta_chain.read(base)] == [2, 3]
    assert manifest.verify(base)
    model = saved_before.Tables(model_dir)
    with model.open_session(model_dir) as monitored:
        session = monitored._tf_sess()
        check_tables(session, model, saved_before.LAST_STEP)
        # Optimizer state came along: the next step is that of an undisturbed run.
        model.train(session, saved_before.LAST_STEP + 1)
        check_tables(session, model, saved_before.LAST_STEP + 1)
        # An id passes when it was counted three times before.
        both = [saved_before.COUNTED_TWICE, saved_before.COUNTED_ONCE]
        passed = [session.run(model.count, {model.ids: both}).tolist() for _ in range(3)]
        assert passed == [[False, False], [True, False], [True, True]]


@pytest.mark.parametrize("name", ["job_single", "job_multi"])
def test_training_goes_on_from_what_was_saved(copy, name):
    model_dir = copy(name)
    # The filter of step 1 has counted one occurrence; filters are not in deltas.
    steps = saved_before.JOB_THRESHOLD
    estimator = saved_before.train_job(model_dir, name == "job_multi", steps)
    last_step = saved_before.LAST_STEP + steps
    assert estimator.get_variable_value("global_step") == last_step

    training = cpu.CpuTraining(
        cpu.CpuTrainingConfig(use_native_multi_hash_table=name == "job_multi"),
        saved_before.Job.params().set(name="job").instantiate(),
    )
    input_fn = training.create_input_fn(saved_before.ModeKeys.PREDICT)
    (prediction,) = estimator.predict(lambda: input_fn().take(1))
    learning_rate = saved_before.JOB_LEARNING_RATE
    assert prediction["bias"].tolist() == [-learning_rate * last_step]
    assert prediction["shown"].tolist() == [-learning_rate * last_step] * 2
    num_updates = saved_before.FULL_STEP + steps - saved_before.JOB_THRESHOLD
    assert num_updates == 1
    assert prediction["clicked"].tolist() == [-learning_rate * num_updates] * 2


def test_files_name_no_machine():
    places = [b"/tmp/", b"/home/", bytes(pathlib.Path.home()) + b"/"]
    for path in SAVED.rglob("*"):
        assert path.is_dir() or not any(place in path.read_bytes() for place in places), path
