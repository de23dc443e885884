"""Models by name."""

import re

import pytest

from monolith.core import base_model_params
from monolith.model import registry
from monolith.model.registry import SingleTaskModelParams


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


def make_model(module="my.project", name="Ranking"):
    def task(self):
        return f"task of {name}"

    return type(name, (SingleTaskModelParams,), {"__module__": module, "task": task})


@pytest.mark.parametrize(
    ("module", "short_name"),
    [
        ("my.project", "my.project.Ranking"),
        ("monolith.tasks.movies", "movies.Ranking"),
        ("monolith.tasks.movies.params.small", "movies.small.Ranking"),
        ("my.params.small", "my.small.Ranking"),
        ("my.hyperparams.small", "my.hyperparams.small.Ranking"),
    ],
)
def test_model_is_found_by_full_and_short_name(module, short_name):
    model = make_model(module)
    assert registry.RegisterSingleTaskModel(model) is model
    assert registry.GetAllRegisteredClasses() == {
        f"{module}.Ranking": model,
        short_name: model,
    }
    assert registry.GetClass(f"{module}.Ranking") is model
    assert registry.GetClass(short_name) is model
    assert registry.GetParams(short_name) == "task of Ranking"


def test_duplicates_are_refused():
    registry.RegisterSingleTaskModel(make_model())
    message = "Duplicate model registered for key my.project.Ranking: my.project.Ranking"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        registry.RegisterSingleTaskModel(make_model())


def test_duplicate_short_name_registers_nothing():
    registry.RegisterSingleTaskModel(make_model("movies.small"))
    with pytest.raises(ValueError, match=r"key movies\.small\.Ranking"):
        registry.RegisterSingleTaskModel(make_model("monolith.tasks.movies.params.small"))
    assert list(registry.GetAllRegisteredClasses()) == ["movies.small.Ranking"]


@pytest.mark.parametrize("not_a_model", [int, "Ranking"])
def test_other_classes_are_refused(not_a_model):
    with pytest.raises(TypeError, match=r"is not a SingleTaskModelParams!$"):
        registry.RegisterSingleTaskModel(not_a_model)


@pytest.mark.parametrize("lookup", [registry.GetClass, registry.GetParams])
def test_unknown_model(lookup):
    with pytest.raises(LookupError) as raised:
        lookup("no.Model")
    assert str(raised.value) == "Model no.Model not found from list of above known models."


def test_known_models_are_logged(caplog):
    registry.RegisterSingleTaskModel(make_model())
    with caplog.at_level("INFO"), pytest.raises(LookupError):
        registry.GetClass("no.Model")
    assert "my.project.Ranking" in caplog.text


def test_task_is_abstract():
    with pytest.raises(NotImplementedError, match=r"^Abstract method$"):
        SingleTaskModelParams().task()


def test_historical_path():
    assert base_model_params.SingleTaskModelParams is SingleTaskModelParams
