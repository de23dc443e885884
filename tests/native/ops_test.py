"""The loader of the op library: one real op end to end, and what it says when it cannot load."""

import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from monolith import native
from monolith.native import ops

REBUILD = re.escape("`make native` in a checkout, or `pip install --force-reinstall")


@pytest.fixture
def library(tmp_path) -> pathlib.Path:
    """A copy of the real library, beside it the version that it was built for."""
    found = ops._find_library()
    for path in (found, found.with_name("built_for.txt")):
        shutil.copy(path, tmp_path)
    return tmp_path / found.name


def test_every_op_says_what_it_does():
    undocumented = [name for name in ops._names if getattr(ops, name).__doc__.startswith("TODO")]
    assert ops._names
    assert not undocumented


class TestLoad:
    def test_missing_library(self, tmp_path, monkeypatch):
        monkeypatch.setattr(native, "__path__", [str(tmp_path), "/elsewhere"])
        with pytest.raises(
            ImportError,
            match=rf"libmonolith_ops\.so is missing from {tmp_path}, /elsewhere "
            rf"\(running TensorFlow {re.escape(tf.__version__)}\); build it with {REBUILD}",
        ):
            ops._find_library()

    def test_any_directory_of_the_package_may_hold_the_library(self, library, monkeypatch):
        monkeypatch.setattr(native, "__path__", ["/elsewhere", str(library.parent)])
        assert ops._find_library() == library

    @pytest.mark.parametrize(
        ("built_for", "running"),
        [
            pytest.param("2.20.0", tf.__version__, id="older_library"),
            pytest.param("2.22.1", tf.__version__, id="newer_library"),
            pytest.param("3.21.0", tf.__version__, id="same_minor_of_another_major"),
            pytest.param("2.2.1", "2.21.0", id="minor_that_starts_alike"),
        ],
    )
    def test_library_for_another_tensorflow(self, library, built_for, running):
        library.with_name("built_for.txt").write_text(f"{built_for}\n")
        with pytest.raises(
            ImportError,
            match=rf"{library} was built for TensorFlow {re.escape(built_for)} but "
            rf"TensorFlow {re.escape(running)} is running; rebuild it with {REBUILD}",
        ):
            ops._load(library, running)

    def test_library_that_does_not_say_what_it_was_built_for(self, library):
        library.with_name("built_for.txt").unlink()
        with pytest.raises(ImportError, match="was built for TensorFlow unknown but"):
            ops._load(library, tf.__version__)

    @pytest.mark.parametrize("content", [b"", b"not a library"], ids=["empty", "garbage"])
    def test_damaged_library(self, library, content):
        library.write_bytes(content)
        with pytest.raises(
            ImportError,
            match=rf"{library}, built for TensorFlow {re.escape(tf.__version__)}, does not load "
            rf"into TensorFlow {re.escape(tf.__version__)}; rebuild it with {REBUILD}.*"
            "The loader said: .+",
        ) as caught:
            ops._load(library, tf.__version__)
        assert isinstance(caught.value.__cause__, tf.errors.OpError)

    def test_another_patch_release_is_fine(self):
        major, minor, _ = tf.__version__.split(".", 2)
        module = ops._load(ops._find_library(), f"{major}.{minor}.99")
        assert module.monolith_static_reshape_n is ops.monolith_static_reshape_n


class TestNames:
    def test_an_op_is_there_as_function_and_as_raw_op(self):
        by_function = ops.monolith_fused_value_rowids([0, 1, 3])
        by_raw_op = ops.MonolithFusedValueRowids(splits=[0, 1, 3])
        np.testing.assert_array_equal(by_function, [0, 1, 1])
        np.testing.assert_array_equal(by_raw_op, by_function)

    def test_unknown_op(self):
        assert not hasattr(ops, "monolith_no_such_op")
        with pytest.raises(AttributeError, match=f"no op 'monolith_no_such_op'.*{REBUILD}"):
            ops.monolith_no_such_op  # noqa: B018


class TestStaticReshapeWithItsGradient:
    """d(sum(w * reshape(x)))/dx is w, reshaped back."""

    X = np.arange(6, dtype=np.float32).reshape(2, 3)
    W = np.array([[1, 2], [3, 4], [5, 6]], np.float32)

    @staticmethod
    def weighted(x, w):
        outputs, sizes = ops.monolith_static_reshape_n(inputs=[x], shapes=[[3, None]])
        return outputs[0], sizes, tf.reduce_sum(outputs[0] * w)

    def check(self, reshaped, sizes, gradient):
        np.testing.assert_array_equal(reshaped, self.X.reshape(3, 2))
        np.testing.assert_array_equal(sizes, [6])
        np.testing.assert_array_equal(gradient, self.W.reshape(2, 3))

    def test_eager(self):
        x = tf.constant(self.X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            reshaped, sizes, loss = self.weighted(x, self.W)
        self.check(reshaped, sizes, tape.gradient(loss, x))

    def test_graph(self, graph_mode):
        x = tf.compat.v1.placeholder(tf.float32, [None, 3])
        reshaped, sizes, loss = self.weighted(x, self.W)
        (gradient,) = tf.gradients(loss, [x])
        with tf.compat.v1.Session() as session:
            self.check(*session.run([reshaped, sizes, gradient], {x: self.X}))

    def test_function(self):
        @tf.function
        def step(x):
            reshaped, sizes, loss = self.weighted(x, self.W)
            return reshaped, sizes, tf.gradients(loss, [x])[0]

        self.check(*step(tf.constant(self.X)))
