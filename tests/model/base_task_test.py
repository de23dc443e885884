"""The settings every task has."""

import pytest

from monolith.model.base_task import BaseTask


class RankingTask(BaseTask):
    pass


def test_params():
    params = RankingTask.params()
    assert params.cls is RankingTask
    assert params.name == "RankingTask"
    assert params.accelerator is None
    assert dict(params.input.iter_params()) == {"eval_examples": None, "train_examples": None}
    assert dict(params.eval.iter_params()) == {
        "per_replica_batch_size": None,
        "steps_per_eval": 10000,
        "steps": None,
    }
    assert dict(params.train.iter_params()) == {
        "steps": None,
        "max_steps": None,
        "per_replica_batch_size": None,
        "file_pattern": None,
        "repeat": False,
        "label_key": "label",
        "save_checkpoints_steps": None,
        "save_checkpoints_secs": None,
        "dense_only_save_checkpoints_secs": None,
        "dense_only_save_checkpoints_steps": None,
    }


def test_params_of_two_calls_are_independent():
    RankingTask.params().train.steps = 5
    assert RankingTask.params().train.steps is None


def test_instantiate():
    params = RankingTask.params()
    task = params.instantiate()
    assert type(task) is RankingTask
    assert task.p is params


def test_name_is_needed():
    with pytest.raises(AssertionError, match="needs a name"):
        RankingTask.params().set(name="").instantiate()


def test_graph_functions_are_abstract():
    task = RankingTask.params().instantiate()
    with pytest.raises(NotImplementedError, match=r"^Abstract method\.$"):
        task.create_input_fn("train")
    with pytest.raises(NotImplementedError, match=r"^Abstract method\.$"):
        task.create_model_fn()
