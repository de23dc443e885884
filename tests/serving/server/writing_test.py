"""Functions that change tables are not for every client."""

import json
import os
import re
import urllib.error
import urllib.request

import grpc
import numpy as np
import pytest
import tensorflow as tf
from support.serving import Client, make_request, save_model, serving

import monolith as ml
from monolith.embedding.tables import single
from monolith.native import ops
from monolith.serving.server.loaded import LoadedModel
from monolith.serving.server.writing import find_writing, is_writing_op
from monolith.testing import generate_test_hash_table_config

v1 = tf.compat.v1
READING = {
    "Lookup",
    "LookupBags",
    "LookupBagsGradient",
    "LookupEntry",
    "LookupGradient",
    "FusedLookup",
    "FeatureStat",
    "GatherTouched",
    "SaveAsTensor",
    "Size",
    "Stats",
    "UnpackRows",
    "",  # Those that make or find a table.
}


def save_table(path) -> str:
    """Saves a model with a row for 7: `serving_default` reads, `harmless` overwrites."""
    with tf.Graph().as_default(), v1.Session() as session:
        table = single.hash_table_from_config(
            generate_test_hash_table_config(dim=1), name_suffix="t"
        )
        ids = v1.placeholder(tf.int64, [None])
        values = v1.placeholder(tf.float32, [None, 1])
        with tf.control_dependencies([table.assign(ids, values).as_op()]):
            written = tf.constant(0)
        filled = table.assign([7], [[7.0]])
        builder = v1.saved_model.Builder(str(path))
        make = v1.saved_model.predict_signature_def
        builder.add_meta_graph_and_variables(
            session,
            [tf.saved_model.SERVING],
            {
                "serving_default": make({"id": ids}, {"rows": table.lookup(ids)}),
                "harmless": make({"id": ids, "value": values}, {"result": written}),
            },
            main_op=tf.group(filled.as_op()),
        )
        builder.save()
    return os.fspath(path)


def write(client: Client, value: float) -> None:
    request = make_request({"id": np.array([7])}, signature="harmless")
    request.inputs["value"].CopyFrom(tf.make_tensor_proto([[value]], tf.float32))
    client.prediction.Predict(request, timeout=60)


def read(client: Client) -> list[float]:
    response = client.prediction.Predict(make_request({"id": np.array([7])}), timeout=60)
    return list(response.outputs["rows"].float_val)


def post(port: int, value: float) -> tuple[int, str]:
    body = {"signature_name": "harmless", "inputs": {"id": [7], "value": [[value]]}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/models/m:predict", json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, json.load(e)["error"]


@pytest.mark.usefixtures("graph_mode")
def test_clients_write_only_if_they_may(tmp_path):
    save_table(tmp_path / "1")
    with serving(tmp_path) as (server, client):
        with pytest.raises(grpc.RpcError, match=r"'harmless'.* --allow-writes") as error:
            write(client, 8.0)
        assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
        status, message = post(server.rest_port, 8.0)
        assert status == 403
        assert re.search("'harmless'.* --allow-writes", message)
        assert read(client) == [7]
    with serving(tmp_path, allow_writes=True) as (server, client):
        write(client, 8.0)
        assert read(client) == [8]
        assert post(server.rest_port, 9.0)[0] == 200
        assert read(client) == [9]


def test_functions_that_call_functions(tmp_path):
    """What `tf.saved_model.save` writes is functions of functions."""
    module = tf.Module()
    module.table = ml.Table("t", dim=2, optimizer=ml.SGD(1.0))
    ids = tf.TensorSpec([None], tf.int64)

    @tf.function(input_signature=[ids])
    def change(ids):
        module.table.assign(ids, tf.ones([tf.size(ids), 2]))
        return {"size": tf.size(ids)}

    @tf.function(input_signature=[ids])
    def change_sometimes(ids):
        return {"size": tf.cond(tf.size(ids) > 3, lambda: change(ids)["size"], lambda: 0)}

    @tf.function(input_signature=[ids])
    def count(ids):
        return {"size": tf.size(ids)}

    module.table.assign([7], [[1.0, 1.0]])
    path = str(tmp_path / "1")
    signatures = {"serving_default": count, "change": change, "sometimes": change_sometimes}
    tf.saved_model.save(module, path, signatures)
    model = LoadedModel.load(path)
    assert model.writing == {"change", "sometimes"}
    model.close()


def test_models_without_tables_write_nothing(tmp_path):
    model = LoadedModel.load(save_model(tmp_path / "1"))
    assert model.writing == frozenset()
    model.close()


def test_functions_that_overwrite_variables_are_known_by_their_names():
    names = ["serving_default", "variables_assign", "variables_assign/12", "variables_assigned"]
    found = find_writing(tf.compat.v1.GraphDef(), dict.fromkeys(names))
    assert found == {"variables_assign", "variables_assign/12"}


def test_each_op_of_tables_is_known():
    """A new op is either one that writes, or is listed here."""
    kinds = {name for name in _list_ops() if "Table" in name}
    assert len(kinds) > 30
    reading = {name for name in kinds if not is_writing_op(name)}
    assert {re.sub(r"^.*Table(?!.*Table)", "", name) for name in reading} <= {
        *READING,
        "Initialized",
    }


def _list_ops() -> set[str]:
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    assert ops.LIBRARY_PATH
    buffer = pywrap_tf_session.TF_GetAllOpList()
    listed = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(buffer))
    return {op.name for op in listed.op if "Monolith" in op.name}
