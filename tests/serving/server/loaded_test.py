"""One version in memory."""

import gc
import os
import pathlib
import threading
import weakref

import numpy as np
import pytest
import tensorflow as tf
from support.serving import save_model

from monolith.serving.server import status
from monolith.serving.server.loaded import LoadedModel, LoadError


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> str:
    return save_model(tmp_path_factory.mktemp("models") / "1", factor=3.0)


@pytest.fixture
def model(saved):
    model = LoadedModel.load(saved)
    yield model
    model.close()


def test_a_function_is_called(model):
    signature = model.get_signature("serving_default")
    (output,) = model.run(signature, ("output",), [np.array([1.0, 2.0], np.float32)])
    assert output.tolist() == [3, 6]
    (total,) = model.run(model.get_signature("total"), ("total",), [np.ones([4], np.float32)])
    assert total.shape == ()
    assert total == 4


def test_outputs_in_the_order_that_is_asked_for(model):
    signature = model.get_signature("pair")
    inputs = [np.array([2.0], np.float32), np.array([5.0], np.float32)]
    assert model.run(signature, ("sum", "product"), inputs) == [7, 10]
    assert model.run(signature, ("product", "sum"), inputs) == [10, 7]
    assert model.run(signature, ("product",), inputs) == [10]


def test_any_number_of_subsets(tmp_path):
    """Clients may ask for more subsets of the outputs than are worth preparing."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        outputs = {f"y{i}": x + float(i) for i in range(8)}
        tf.compat.v1.saved_model.simple_save(session, str(tmp_path / "1"), {"x": x}, outputs)
    model = LoadedModel.load(str(tmp_path / "1"))
    signature = model.get_signature("serving_default")
    for mask in range(1, 256):
        names = tuple(f"y{i}" for i in range(8) if mask >> i & 1)
        values = model.run(signature, names, [np.zeros([1], np.float32)])
        assert values == [int(name[1:]) for name in names]
    model.close()


def test_an_unknown_function(model):
    with pytest.raises(status.RequestError, match="no signature 'nothing'; it has 'classify'"):
        model.get_signature("nothing")


def test_an_error_of_the_model(model):
    signature = model.get_signature("failing")
    with pytest.raises(status.RequestError, match="bad x") as raised:
        model.run(signature, ("output",), [np.array([np.nan], np.float32)])
    assert raised.value.code is status.Code.INVALID_ARGUMENT


def test_an_error_that_is_no_text(model):
    """It quotes a key of an example that is no UTF-8."""
    signature = model.get_signature("regress")
    example = np.array([b"\n\r\n\x0b\n\x01\xb4\x12\x06\x12\x04\n\x02\x00\x00"], object)
    with pytest.raises(status.RequestError) as raised:
        model.run(signature, ("outputs",), [example])
    assert raised.value.code is status.Code.INVALID_ARGUMENT
    example[0] = b"\n\x0f\n\r\n\xb4x\x12\x08\x12\x06\n\x04\x00\x00\x80?"
    with pytest.raises(status.RequestError, match="Could not parse example") as raised:
        model.run(signature, ("outputs",), [example])
    assert raised.value.code is status.Code.INVALID_ARGUMENT


def test_many_threads(model):
    signature = model.get_signature("serving_default")
    wrong = []

    def call(number: int) -> None:
        for i in range(20):
            x = np.full([3], number * 100 + i, np.float32)
            if not np.array_equal(model.run(signature, ("output",), [x])[0], x * 3):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=[n]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_models_of_tensorflow_2(tmp_path):
    class Doubler(tf.Module):
        def __init__(self):
            self.factor = tf.Variable(2.0)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def __call__(self, x):
            return {"y": x * self.factor}

    doubler = Doubler()
    tf.saved_model.save(doubler, str(tmp_path / "1"), signatures=doubler.__call__)
    model = LoadedModel.load(str(tmp_path / "1"))
    # What TensorFlow needs for itself is not listed.
    assert list(model.signatures) == ["serving_default"]
    signature = model.get_signature("serving_default")
    assert model.run(signature, ("y",), [np.array([4.0], np.float32)])[0].tolist() == [8]
    model.close()


def break_graph(path: pathlib.Path) -> None:
    content = (path / "saved_model.pb").read_bytes()
    (path / "saved_model.pb").write_bytes(content[: len(content) // 2])


def break_variables(path: pathlib.Path) -> None:
    (file,) = (path / "variables").glob("*.data-*")
    file.write_bytes(b"")


def break_op(path: pathlib.Path) -> None:
    content = (path / "saved_model.pb").read_bytes()
    (path / "saved_model.pb").write_bytes(content.replace(b"CheckNumerics", b"NobodyHasThis"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "saved_model.pb").unlink(), "does not exist"),
        (lambda path: (path / "saved_model.pb").write_bytes(b""), "MetaGraphDef"),
        (lambda path: (path / "saved_model.pb").write_bytes(b"\xff" * 99), "."),
        (break_graph, "."),
        (break_variables, "."),
        (break_op, "NobodyHasThis"),
        (
            lambda path: (path / "variables" / "variables.index").unlink(),
            "variables",
        ),
    ],
)
def test_a_damaged_model(tmp_path, damage, message):
    path = pathlib.Path(save_model(tmp_path / "1"))
    damage(path)
    with pytest.raises(LoadError, match=message) as raised:
        LoadedModel.load(str(path))
    assert "\n" not in str(raised.value)


def test_closing_gives_the_memory_back(saved):
    model = LoadedModel.load(saved)
    graph = weakref.ref(model._session.graph)
    model.close()
    del model
    gc.collect()
    assert graph() is None


def test_two_versions_of_a_table_do_not_share_rows(tmp_path):
    """Resources of equal names in two sessions are two resources."""
    from monolith.embedding.tables import single
    from monolith.testing import generate_test_hash_table_config

    paths = []
    for number in (1, 2):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            config = generate_test_hash_table_config(dim=1)
            table = single.hash_table_from_config(config, name_suffix="t")
            filled = table.assign([7], [[float(number)]])
            x = tf.compat.v1.placeholder(tf.int64, [None])
            builder = tf.compat.v1.saved_model.Builder(str(tmp_path / str(number)))
            make = tf.compat.v1.saved_model.predict_signature_def
            rows = table.lookup(x)
            with tf.control_dependencies([table.initializer] if table.initializer else []):
                main_op = tf.group(filled.as_op())
            builder.add_meta_graph_and_variables(
                session,
                [tf.saved_model.SERVING],
                {"serving_default": make({"x": x}, {"rows": rows})},
                main_op=main_op,
            )
            builder.save()
            paths.append(os.fspath(tmp_path / str(number)))
    models = [LoadedModel.load(path) for path in paths]
    for number, model in enumerate(models, start=1):
        signature = model.get_signature("serving_default")
        assert model.run(signature, ("rows",), [np.array([7])])[0].tolist() == [[number]]
    for model in models:
        model.close()
