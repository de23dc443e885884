"""The public surface: a change of it is a change of the list below, in the same commit.

Covers monolith/__init__.py.
"""

import importlib
import inspect
import pathlib
import pkgutil
import re
import statistics
import subprocess
import sys

import pytest

import monolith

# Names and their arguments, with `=` where they may be left out; the type of what cannot be called.
# ruff: noqa: E501 - signatures
SURFACE = {
    "AMSGrad": "learning_rate, beta1=, beta2=, epsilon=, weight_decay=",
    "Adadelta": "learning_rate, rho=, epsilon=, weight_decay=",
    "Adagrad": "learning_rate, initial_accumulator=, weight_decay=",
    "Adam": "learning_rate, beta1=, beta2=, epsilon=, weight_decay=",
    "BinaryHead": "name, logits, labels=, *, weights=, sample_rate=, loss_weight=",
    "CrossNet": "num_layers, projection_dim=, *, use_bias=, kernel_initializer=, bias_initializer=, name=",
    "Dense": "units, activation=, *, use_bias=, kernel_initializer=, bias_initializer=, name=",
    "Dropout": "rate, *, name=",
    "Embedding": "features, dim, optimizer=, *, combiner=, max_length=, output=, admit_after=, expire_after_days=, table=, initializer=, compressor=, storage=",
    "Estimator": "model, model_dir=, optimizer=, *, clip_norm=, config=, progress=",
    "FM": "keep_dim=, *, name=",
    "FTRL": "learning_rate, l1=, l2=, beta=, initial_accumulator=",
    "MLP": "units, activation=, output_activation=, *, use_bias=, kernel_initializer=, bias_initializer=, name=",
    "MMoE": "num_tasks, num_experts, expert_units, activation=, *, kernel_initializer=, name=",
    "Model": "name=",
    "Momentum": "learning_rate, momentum=, nesterov=, weight_decay=",
    "Output": "name, value",
    "RMSprop": "learning_rate, rho=, momentum=, epsilon=, weight_decay=",
    "RegressionHead": "name, prediction, labels=, *, weights=, loss_weight=",
    "RunConfig": "settings",
    "SGD": "learning_rate",
    "SoftmaxHead": "name, logits, labels=, *, weights=, loss_weight=",
    "Table": "name, dim, optimizer=, *, initializer=, admit_after=, expire_after_days=, compressor=, storage=",
    "__version__": "str",
    "data": "module",
    "errors": "module",
    "keras": "module",
    "layers": "module",
    "load": "path",
    "version": "module",
}

# The same of the modules among them.
MODULES = {
    "data": {
        "Dense": "name, width=, default=, *, column=",
        "Framing": "has_sort_id=, kafka_dump=, kafka_dump_prefix=, lagrangex_header=",
        "Ids": "name, *, column=, optional=",
        "Label": "name, *, column=",
        "Reader": "_format, _source, _batching, _options=",
        "StreamReader": "stream, text",
        "StringIds": "name, *, column=, optional=",
        "csv": "paths, schema, *, batch_size=, shuffle=, seed=, drop_remainder=, delimiter=, list_separator=, column_names=",
        "hash_string": "string",
        "hash_strings": "strings",
        "kafka": "topics, schema, *, servers, group_id=, format=, start=, batch_size=, max_wait_sec=, idle_timeout_sec=, stop_file=, refuse_damaged=, config=",
        "movies": "module",
        "parquet": "paths, schema, *, batch_size=, shuffle=, seed=, drop_remainder=",
        "tail": "paths, schema, *, format=, framing=, batch_size=, max_wait_sec=, idle_timeout_sec=, stop_file=, refuse_damaged=",
        "tfrecord": "paths, schema, *, batch_size=, shuffle=, seed=, drop_remainder=",
    },
    "keras": {
        "Embedding": "dim=, optimizer=, combiner=, *, initializer=, admit_after=, expire_after_days=, compressor=, storage=, mask_zero=, share=, table=, kwargs",
        "MLP": "units, activation=, output_activation=, *, use_bias=, kernel_initializer=, bias_initializer=, kernel_regularizer=, kwargs",
    },
}

METHODS = {
    "Estimator": [
        "config",
        "evaluate",
        "export",
        "export_parts",
        "get_variable_names",
        "get_variable_value",
        "latest_checkpoint",
        "model",
        "model_dir",
        "predict",
        "train",
        "train_and_evaluate",
    ],
    "Model": ["call", "name"],
    "Table": [
        "apply_gradients",
        "assign",
        "check_place",
        "config",
        "dim",
        "dtype",
        "evict",
        "from_config",
        "get_config",
        "ids",
        "load",
        "look_up",
        "look_up_bags",
        "memory",
        "name",
        "ref",
        "restore",
        "save",
        "size",
        "trainable",
    ],
}

PACKAGES = [name for _, name, is_package in pkgutil.iter_modules(monolith.__path__) if is_package]


def describe(value: object) -> str:
    if value is monolith.RunConfig:
        return "settings"  # Many, each with its test.
    if not callable(value):
        return type(value).__name__
    shown, is_keyword_only = [], False
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            shown.append("*")
        optional = parameter.default is not parameter.empty
        shown.append(f"{parameter.name}=" if optional else parameter.name)
    return ", ".join(shown)


def list_methods(kind: type) -> list[str]:
    return sorted(name for name in vars(kind) if not name.startswith("_"))


def test_surface():
    assert {name: describe(getattr(monolith, name)) for name in monolith.__all__} == SURFACE


@pytest.mark.parametrize("module", MODULES)
def test_modules(module):
    found = getattr(monolith, module)
    assert {name: describe(getattr(found, name)) for name in found.__all__} == MODULES[module]


@pytest.mark.parametrize("module", MODULES)
def test_reference_lists_the_names_of_modules(module):
    page = (pathlib.Path(__file__).parents[1] / "docs" / "api.md").read_text()
    members = re.search(rf"::: monolith\.{module}\n    options:\n      members: \[(.*)\]", page)
    listed = {*members[1].split(", "), *re.findall(rf"::: monolith\.{module}\.(\w+)", page)}
    assert listed == MODULES[module].keys()


@pytest.mark.parametrize("name", METHODS)
def test_methods(name):
    assert list_methods(getattr(monolith, name)) == METHODS[name]


def test_names_are_listed_before_they_are_loaded():
    program = "import monolith, sys; names = {n for n in dir(monolith) if n[:2] != '__'}"
    program += "; print(names | {'__version__'} == set(monolith.__all__))"
    program += "; print('tensorflow' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["True", "False"]


def test_unknown_name():
    with pytest.raises(AttributeError, match="module 'monolith' has no attribute 'Tabel'"):
        monolith.Tabel  # noqa: B018


def test_importing_it_takes_a_fifth_of_a_second_at_most():
    # The time of the processor, which others on a busy machine do not add to.
    program = (
        "import time; t = time.process_time(); import monolith; print(time.process_time() - t)"
    )
    times = [
        float(subprocess.check_output([sys.executable, "-c", program], text=True)) for _ in range(3)
    ]
    assert statistics.median(times) < 0.2


def test_version_is_a_release_number():
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", monolith.__version__)


@pytest.mark.parametrize("name", PACKAGES)
def test_package_says_what_it_is_for_and_exports_what_it_lists(name):
    package = importlib.import_module(f"monolith.{name}")
    assert package.__doc__
    missing = [n for n in getattr(package, "__all__", []) if not hasattr(package, n)]
    assert not missing
