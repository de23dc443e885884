"""A program that imports this package and TensorFlow, in any order, can load models with tables."""

import pathlib
import subprocess
import sys

import pytest
import tensorflow as tf

import monolith as ml

ROOT = pathlib.Path(ml.__file__).parents[1]
LOAD = """
import sys
model = tf.saved_model.load(sys.argv[1])
print(model.look_up(tf.constant([7, 8], tf.int64)).numpy().tolist())
"""


@pytest.fixture
def exported(tmp_path):
    """A SavedModel with a table in which id 7 has a row."""
    module = tf.Module()
    module.table = ml.Table("scores", dim=1, optimizer=ml.SGD(1.0))
    module.table.assign([7], [[1.5]])
    signature = [tf.TensorSpec([None], tf.int64)]
    module.look_up = tf.function(lambda ids: module.table(ids), input_signature=signature)
    path = str(tmp_path / "exported")
    tf.saved_model.save(module, path)
    return path


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("import monolith\nimport tensorflow as tf", id="before_tensorflow"),
        pytest.param("import tensorflow as tf\nimport monolith", id="after_it"),
    ],
)
def test_a_plain_load_of_a_saved_model(exported, imports):
    run = subprocess.run(
        [sys.executable, "-c", imports + LOAD, exported],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout == "[[1.5], [0.0]]\n"


def test_the_import_itself_stays_without_tensorflow():
    program = "import sys, monolith; print('tensorflow' in sys.modules, 'keras' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout == "False False\n"


def test_without_tensorflow_its_import_fails_as_ever():
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import monolith\n"
        "try:\n    import tensorflow\nexcept ModuleNotFoundError as e:\n    print(e)\n"
    )
    run = subprocess.run(  # Without any installed package.
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert run.stdout == "No module named 'tensorflow'\n", run.stderr
