"""What importing a module of `core` costs, and its historical names."""

import importlib
import subprocess
import sys

import pytest

WITHOUT_TENSORFLOW = [
    "core.alerts",
    "core.environment",
    "core.flags",
    "core.hyperparams",
    "core.metrics",
    "core.naming",
    "core.paths",
    "core.signals",
    "graph.mpi",
    "graph.task_context",
    "model.base_task",
    "model.registry",
    "native_training.legacy.model_imports",
]


def test_most_modules_do_not_need_tensorflow():
    imports = "\n".join(f"import monolith.{name}" for name in WITHOUT_TENSORFLOW)
    program = f"{imports}\nimport sys\nassert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)


@pytest.mark.parametrize(
    ("old_path", "home"),
    [
        ("monolith.path_utils", "monolith.core.paths"),
        ("monolith.utils", "monolith.core.files"),
        ("monolith.core.base_layer", "monolith.core.naming"),
        ("monolith.core.base_model_params", "monolith.model.registry"),
        ("monolith.native_training.distribution_utils", "monolith.graph.mpi"),
        ("monolith.native_training.env_utils", "monolith.core.environment"),
        ("monolith.native_training.gflags_utils", "monolith.core.flags"),
        ("monolith.native_training.graph_meta", "monolith.graph.metadata"),
        ("monolith.native_training.graph_utils", "monolith.graph.metadata"),
        ("monolith.native_training.input", "monolith.data.ffm"),
        ("monolith.native_training.metric.cli", "monolith.core.metrics"),
        ("monolith.native_training.remote_predict_ops", "monolith.serving.remote_predict"),
        ("monolith.native_training.signal_utils", "monolith.core.signals"),
        ("monolith.native_training.utils", "monolith.native_training.legacy.utils"),
    ],
)
def test_historical_path(old_path, home):
    assert importlib.import_module(old_path) is importlib.import_module(home)
