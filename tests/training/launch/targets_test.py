"""What MODULE:NAME may stand for."""

import pytest
import tensorflow as tf
from support import counting, launch_jobs

import monolith as ml
from monolith import errors
from monolith.training import estimator, model_estimator
from monolith.training.launch import targets, work

JOBS = "support.launch_jobs"


def find(name, data=None, **settings):
    settings = {"model_dir": "/models/a", **settings}
    return targets.find_work(f"{JOBS}:{name}", data, **settings)


@pytest.mark.parametrize("name", ["Clicks", "CLICKS"])
def test_a_model_and_its_data(name):
    found = find(name, "read", steps=3, epochs=2)
    assert isinstance(found, work.ModelWork)
    assert isinstance(found.model, launch_jobs.Clicks)
    assert found.data is launch_jobs.read
    assert found.optimizer is model_estimator.DEFAULT_OPTIMIZER
    assert (found.steps, found.max_steps, found.epochs) == (3, None, 2)
    assert (found.name, found.config.model_dir) == ("clicks", "/models/a")


def test_data_of_another_module():
    assert find("Clicks", "support.launch_jobs:read").data is launch_jobs.read


@pytest.mark.parametrize("name", ["PARAMS", "make_params"])
def test_a_task(name):
    found = find(name, max_steps=7)
    assert isinstance(found, work.TaskWork)
    assert isinstance(found.make_model("worker").instantiate(), counting.CountingTask)
    assert found.max_steps == 7


def test_the_class_of_a_task():
    found = targets.find_work("support.counting:CountingTask", model_dir="/models/a")
    assert (found.make_model("ps").name, found.name) == ("counting", "counting")


def test_a_function_that_makes_an_estimator_and_its_data():
    found = find("make_estimator")
    assert isinstance(found, work.ModelWork)
    assert found.data is launch_jobs.read
    assert found.optimizer == ml.Adagrad(0.1)
    assert (found.config.model_dir, found.config.is_local) == ("/models/a", False)


class TestEstimators:
    def find(self, monkeypatch, value, data=None, **settings):
        monkeypatch.setattr(launch_jobs, "NOTHING", value)
        return find("NOTHING", data, **settings)

    def test_of_a_model(self, monkeypatch, tmp_path):
        config = ml.RunConfig(num_ps=2, num_workers=3, save_checkpoints_steps=5)
        made = ml.Estimator(launch_jobs.Clicks(), str(tmp_path), config=config)
        found = self.find(monkeypatch, made, "read", model_dir=None)
        assert (found.config.num_ps, found.config.num_workers) == (2, 3)
        assert found.config.save_checkpoints_steps == 5
        assert found.config.model_dir == str(tmp_path)

    def test_what_the_command_line_says_counts(self, monkeypatch, tmp_path):
        config = ml.RunConfig(num_ps=2, num_workers=3, metrics_port=9100, metrics_host="0.0.0.0")
        made = ml.Estimator(launch_jobs.Clicks(), str(tmp_path), config=config)
        found = self.find(
            monkeypatch,
            made,
            "read",
            model_dir=None,
            settings={"metrics_port": 0, "transfer_float16": True},
        )
        conf = found.make_config()
        assert (conf.metrics_port, conf.metrics_host) == (0, "0.0.0.0")
        assert conf.transfer_float16

    @pytest.mark.parametrize("port", [None, 9100])
    def test_a_host_of_metrics_needs_a_port(self, monkeypatch, tmp_path, port):
        config = ml.RunConfig(num_workers=2, num_ps=1, metrics_port=port)
        made = ml.Estimator(launch_jobs.Clicks(), str(tmp_path), config=config)
        arguments = {"model_dir": None, "settings": {"metrics_host": "0.0.0.0"}}
        if port is None:
            with pytest.raises(
                errors.ConfigError, match=r"^--metrics-host is '0.0.0.0', but nothing"
            ):
                self.find(monkeypatch, made, "read", **arguments)
        else:
            found = self.find(monkeypatch, made, "read", **arguments)
            assert (found.config.metrics_port, found.config.metrics_host) == (9100, "0.0.0.0")

    def test_of_a_model_that_names_no_directory(self, monkeypatch):
        made = ml.Estimator(launch_jobs.Clicks())
        assert self.find(monkeypatch, made, "read").config.model_dir == "/models/a"
        with pytest.raises(errors.ConfigError, match="names no model directory; give --model-dir"):
            self.find(monkeypatch, made, "read", model_dir=None)

    def test_of_a_task(self, monkeypatch, tmp_path):
        config = estimator.RunConfig(is_local=True, num_ps=2, model_dir=str(tmp_path))
        made = estimator.Estimator(launch_jobs.make_params(), config)
        found = self.find(monkeypatch, made, model_dir=None)
        assert isinstance(found, work.TaskWork)
        assert (found.config.num_ps, found.config.model_dir) == (2, str(tmp_path))
        assert found.make_config().num_ps == 2

    def test_two_model_directories(self, monkeypatch, tmp_path):
        made = ml.Estimator(launch_jobs.Clicks(), str(tmp_path))
        with pytest.raises(errors.ConfigError, match=r"two model directories, .* give one"):
            self.find(monkeypatch, made, "read")


@pytest.mark.parametrize(
    ("target", "settings", "message"),
    [
        ("jobs", {}, "given as MODULE:NAME, such as jobs.ranking:make_estimator; got 'jobs'"),
        (":x", {}, "given as MODULE:NAME"),
        ("no.such:x", {}, "There is no module 'no.such'; start the command where"),
        (f"{JOBS}:x.y", {}, f"Module '{JOBS}' has no 'x.y'"),
        (f"{JOBS}:NOTHING", {}, "is 7; name a task, an ml.Model"),
        (f"{JOBS}:tf.Graph", {}, "name a task, an ml.Model"),
        (f"{JOBS}:NeedsArguments", {}, r"needs arguments \(missing a required argument: 'dim'\)"),
        (f"{JOBS}:needs_arguments", {}, r"needs arguments \(missing a required argument: 'dim'\)"),
        (f"{JOBS}:Clicks", {}, "is an ml.Model, which has no data; name it with --data"),
        (f"{JOBS}:Clicks", {"data": "NOTHING"}, "Data is a function .* got 7"),
        (f"{JOBS}:Clicks", {"data": "x"}, f"Module '{JOBS}' has no 'x'"),
        (f"{JOBS}:PARAMS", {"data": "read"}, "is a task, which brings its own input; leave --data"),
        (f"{JOBS}:PARAMS", {"epochs": 2}, "leave --epochs out"),
        (f"{JOBS}:PARAMS", {"steps": 1, "max_steps": 1}, "`steps` or `max_steps`, not both"),
        (f"{JOBS}:PARAMS", {"model_dir": None}, "names no model directory"),
        (f"{JOBS}:make_estimator", {"model_dir": None}, "takes a `model_dir`; give --model-dir"),
        (f"{JOBS}:make_estimator", {"data": "read"}, "brings data of its own, and --data names"),
    ],
)
def test_refusals(target, settings, message):
    with pytest.raises(errors.ConfigError, match=message):
        targets.find_work(target, **{"model_dir": "/models/a", **settings})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_thing", "broken_1' cannot be imported: ModuleNotFoundError: No module"),
        ("1 / 0", r"cannot be imported: ZeroDivisionError: division by zero at .*broken_1.py:1\."),
        ("def f(:", r"cannot be imported: SyntaxError: .* at .*broken_1.py:1\."),
    ],
)
def test_modules_that_cannot_be_imported(tmp_path, monkeypatch, source, message):
    (tmp_path / "broken_1.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.ConfigError, match=message):
        targets.find("broken_1:x")
    assert tf.executing_eagerly()
