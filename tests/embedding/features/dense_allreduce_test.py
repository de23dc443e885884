"""The average of dense gradients over workers, with the library that the environment names."""

import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding.features import dense_allreduce
from monolith.graph import collectives


class FakeLibrary(types.ModuleType):
    """The calls of Horovod and BytePS, neither of which builds with this TensorFlow.

    What they return is made recognizable by doubling it.
    """

    Average = "average"
    Compression = types.SimpleNamespace(fp16="fp16")

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def _double(self, tensor, op, compression=None):
        self.calls.append((op, compression))
        return tf.convert_to_tensor(tensor) * 2


class FakeHorovod(FakeLibrary):
    def allreduce(self, tensor, op, compression=None):
        return self._double(tensor, op, compression)

    def grouped_allreduce(self, tensors, op, compression=None):
        self.calls.append((op, compression))
        return [tensor * 2 for tensor in tensors]


class FakeByteps(FakeLibrary):
    def push_pull(self, tensor, op, compression=None):
        return self._double(tensor, op, compression)


@pytest.fixture
def horovod(monkeypatch):
    module = FakeHorovod("horovod.tensorflow")
    monkeypatch.setitem(sys.modules, "horovod", types.ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", module)
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "True")
    return module


@pytest.fixture
def byteps(horovod, monkeypatch):
    module = FakeByteps("byteps.tensorflow")
    monkeypatch.setitem(sys.modules, "byteps", types.ModuleType("byteps"))
    monkeypatch.setitem(sys.modules, "byteps.tensorflow", module)
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "1")
    return module


GRADIENTS = [np.float32([[1, 2], [3, 4]]), np.float32(5), np.float32([6])]


def check_average():
    averaged = dense_allreduce.average([tf.constant(g) for g in GRADIENTS])
    assert [a.shape for a in averaged] == [g.shape for g in GRADIENTS]
    for actual, gradient in zip(averaged, GRADIENTS, strict=True):
        np.testing.assert_array_equal(actual, 2 * gradient)


@pytest.mark.parametrize(
    ("value", "enabled"),
    [(None, False), ("", False), ("0", False), ("False", False), ("True", True), ("1", True)],
)
def test_is_enabled(monkeypatch, value, enabled):
    monkeypatch.delenv("MONOLITH_WITH_HOROVOD", raising=False)
    if value is not None:
        monkeypatch.setenv("MONOLITH_WITH_HOROVOD", value)
    assert dense_allreduce.is_enabled() is enabled


@pytest.mark.parametrize(("fusion", "calls"), [(None, 3), ("none", 3), ("one", 1), ("grouped", 1)])
def test_average(horovod, monkeypatch, fusion, calls):
    if fusion:
        monkeypatch.setenv("MONOLITH_WITH_ALLREDUCE_FUSION", fusion)
    check_average()
    assert horovod.calls == [("average", None)] * calls


@pytest.mark.usefixtures("horovod")
@pytest.mark.parametrize("fusion", ["none", "one", "grouped"])
def test_slices_of_a_gathered_variable(monkeypatch, fusion):
    monkeypatch.setenv("MONOLITH_WITH_ALLREDUCE_FUSION", fusion)
    slices = tf.IndexedSlices(tf.constant([[3.0]]), tf.constant([1]), tf.constant([2, 1]))
    (averaged,) = dense_allreduce.average([slices])
    assert averaged.numpy().tolist() == [[0], [6]]


def test_half_precision(horovod, monkeypatch):
    monkeypatch.setenv("MONOLITH_WITH_ALLREDUCE_FP16", "1")
    check_average()
    assert horovod.calls == [("average", "fp16")] * 3


def test_skip(horovod, monkeypatch):
    monkeypatch.setenv("MONOLITH_SKIP_ALLREDUCE", "1")
    gradients = [tf.constant(1.0)]
    assert dense_allreduce.average(gradients) == gradients
    assert horovod.calls == []


def test_byteps_instead_of_horovod(horovod, byteps):
    check_average()
    assert (len(byteps.calls), len(horovod.calls)) == (3, 0)


def test_byteps_but_not_for_gradients(horovod, byteps, monkeypatch):
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS_ALLREDUCE", "0")
    check_average()
    assert (len(byteps.calls), len(horovod.calls)) == (0, 3)


@pytest.mark.usefixtures("byteps")
def test_byteps_has_no_groups(monkeypatch):
    monkeypatch.setenv("MONOLITH_WITH_ALLREDUCE_FUSION", "grouped")
    with pytest.raises(
        RuntimeError, match=r"MONOLITH_WITH_ALLREDUCE_FUSION is 'grouped', but the .+ 'none' or "
    ):
        check_average()


def count_calls_of_a_synchronous_job(library):
    """Returns in how many calls a graph averages the gradients, whose ranks do so by default."""
    with tf.Graph().as_default():
        collectives.average_gradients()
        dense_allreduce.average([tf.constant(g) for g in GRADIENTS])
    return len(library.calls)


def test_a_synchronous_job_reduces_groups_where_there_are_some(horovod):
    assert count_calls_of_a_synchronous_job(horovod) == 1


def test_a_synchronous_job_of_byteps_reduces_one_by_one(byteps):
    assert count_calls_of_a_synchronous_job(byteps) == len(GRADIENTS)


def test_what_the_environment_says(monkeypatch):
    names = ["MONOLITH_WITH_ALLREDUCE_FUSION", "MONOLITH_WITH_ALLREDUCE_FP16"]
    for name in names:
        monkeypatch.delenv(name, raising=False)
    unset = dense_allreduce.describe_environment()
    assert set(names) < set(unset)
    monkeypatch.setenv(names[1], "False")  # Which is what it is without it.
    assert dense_allreduce.describe_environment() == unset
    monkeypatch.setenv(names[1], "1")
    assert dense_allreduce.describe_environment() == {**unset, names[1]: "on"}


@pytest.mark.usefixtures("horovod")
@pytest.mark.parametrize("fusion", ["multi", "some"])
def test_fusions_that_do_not_exist(monkeypatch, fusion):
    monkeypatch.setenv("MONOLITH_WITH_ALLREDUCE_FUSION", fusion)
    with pytest.raises(RuntimeError, match=f"'none', 'one' or 'grouped', got '{fusion}'"):
        check_average()


def test_library_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "byteps", None)
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "True")
    with pytest.raises(
        errors.ConfigError,
        match=r"MONOLITH_WITH_BYTEPS asks for byteps\.tensorflow, which cannot be imported \(.+\); "
        r"install it, or unset MONOLITH_WITH_BYTEPS\.",
    ):
        check_average()


@pytest.mark.parametrize("byteps", ["0", "false", "False", ""])
def test_without_any_library_tensorflow_does_it(monkeypatch, byteps):
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", byteps)
    monkeypatch.setenv("MONOLITH_WITH_HOROVOD", "True")
    gradients = [tf.constant(g) for g in GRADIENTS]
    collectives.init()
    try:
        for fusion in ("none", "one", "grouped"):
            monkeypatch.setenv("MONOLITH_WITH_ALLREDUCE_FUSION", fusion)
            for actual, expected in zip(dense_allreduce.average(gradients), gradients, strict=True):
                np.testing.assert_array_equal(actual, expected)
    finally:
        collectives.shutdown()


def test_no_gradients():
    assert dense_allreduce.average([]) == []
