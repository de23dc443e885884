"""The module is empty; only its path matters."""

import subprocess
import sys

from monolith.native_training import remote_predict_ops
from monolith.serving import remote_predict


def test_module_is_empty():
    assert remote_predict_ops is remote_predict
    public = [name for name in vars(remote_predict) if name.isidentifier() and name[0] != "_"]
    assert public == []


def test_import_prints_nothing():
    process = subprocess.run(
        [sys.executable, "-c", "import monolith.native_training.remote_predict_ops"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert process.stdout == ""
