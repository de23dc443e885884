"""What TensorFlow says about itself is left out of a block, and nothing else is."""

import logging
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf
from tensorflow.python.util import deprecation

from monolith.graph import quiet

v1 = tf.compat.v1


@pytest.fixture
def logger(monkeypatch):
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(logging.INFO)
    # Notices come once in a process; here, each time.
    monkeypatch.setattr(deprecation, "_PRINTED_WARNING", {})
    yield logger
    logger.setLevel(level)


def use_tensorflow():
    """Calls what is deprecated, and runs a session that logs its life."""
    with tf.Graph().as_default():
        v1.to_float(1)
        v1.train.get_or_create_global_step()
        with v1.train.MonitoredTrainingSession() as session:
            session.run(v1.train.get_global_step())


def test_notices_are_left_out(logger, caplog):
    with caplog.at_level(logging.INFO), quiet.quiet_tensorflow():
        use_tensorflow()
        logger.warning("a warning")
        logger.info("an info")
        logging.getLogger("somebody.else").info("of somebody else")
    assert [r.getMessage() for r in caplog.records] == ["a warning", "an info", "of somebody else"]


def test_they_come_back(logger, caplog):
    with caplog.at_level(logging.INFO), quiet.quiet_tensorflow(), quiet.quiet_tensorflow():
        pass
    filters = list(logger.filters)
    with caplog.at_level(logging.INFO):
        use_tensorflow()
    assert "is deprecated" in caplog.text
    assert "Graph was finalized." in caplog.text
    with pytest.raises(ZeroDivisionError), quiet.quiet_tensorflow():
        raise ZeroDivisionError
    assert logger.filters == filters


def test_blocks_inside_of_each_other(logger, caplog):
    with caplog.at_level(logging.INFO), quiet.quiet_tensorflow():
        with quiet.quiet_tensorflow():
            pass
        use_tensorflow()
    assert caplog.records == []


PROGRAM = textwrap.dedent(
    """
    import sys
    sys.ps1 = ">>> "  # As in a notebook, where TensorFlow's logger starts with INFO.
    import numpy as np
    import tensorflow as tf
    import monolith as ml
    from monolith.graph import quiet

    class Clicks(ml.Model):
        def __init__(self):
            super().__init__()
            self.embed = ml.Embedding("user", dim=4)
            self.mlp = ml.MLP([8, 1])

        def call(self, batch):
            return ml.BinaryHead("click", self.mlp(self.embed(batch)), batch.get("click"))

    def data():
        columns = {"user": np.arange(64) % 8, "click": np.float32(np.arange(64) % 2)}
        return tf.data.Dataset.from_tensor_slices(columns).batch(16)

    with quiet.quiet_tensorflow():
        estimator = ml.Estimator(Clicks(), sys.argv[1], progress=False)
        estimator.train(data, epochs=30).evaluate(data)
        assert len(list(estimator.predict(data))) == 64
    """
)


@pytest.mark.slow
def test_a_program_says_nothing(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    # What is said in C++, about the machine, cannot be left out.
    said = [
        line
        for line in (run.stdout + run.stderr).splitlines()
        if "0000 00:00:" not in line and not line.startswith(("WARNING: All log", "To enable the"))
    ]
    assert said == []
