"""A small server that keeps the rows it is sent, and does as a test says."""

import concurrent.futures
import threading

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from monolith.serving.server.incarnation import INCARNATION
from monolith.serving.sync.targets import Target


class RowServer(
    prediction_service_pb2_grpc.PredictionServiceServicer,
    model_service_pb2_grpc.ModelServiceServicer,
):
    """Takes the rows of a table `t`; a context.

    Attributes:
        rows: First numbers of rows, by id.
        calls: How many calls have come.
        packed: How many of them brought rows as they are served.
        questions: How often it was asked for its status.
        incarnation: What it says it is; empty: nothing, as servers of others.
        version: The version of its model.
        refusal: A sentence with which it refuses all calls; empty: it takes them.
        takes_packed: Whether its model has the function for rows as they are served; they are
            float16 then.
        lists_ids: Whether its model has the function that says which rows it has.
        listed: How many ids it has listed in each call of that.
        hold: While this is cleared, calls wait.
    """

    def __init__(self, port=0):
        self.rows = {}
        self.calls = 0
        self.packed = 0
        self.questions = 0
        self.incarnation = "first"
        self.version = 1
        self.refusal = ""
        self.takes_packed = False
        self.lists_ids = True
        self.listed = []
        self.hold = threading.Event()
        self.hold.set()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, self._server)
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self._server.start()

    @property
    def target(self):
        return Target(f"127.0.0.1:{self.port}", "m")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.hold.set()
        self._server.stop(None).wait()

    def Predict(self, request, context):
        self.calls += 1
        self.hold.wait(60)
        if self.refusal:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refusal)
        signature = request.model_spec.signature_name
        self.packed += signature.endswith("_packed")
        is_listing = signature == "hashtable_list_ids/MonolithHashTable_t"
        if (signature.endswith("_packed") and not self.takes_packed) or (
            is_listing and not self.lists_ids
        ):
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"The model has no signature {signature!r}."
            )
        self._say_who(context)
        response = predict_pb2.PredictResponse()
        response.model_spec.version.value = self.version
        arrays = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
        if is_listing:
            for name, array in self._list_ids(**arrays).items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(array))
            return response
        ids = arrays.get("MonolithHashTable_t_id", [])
        if signature == "hashtable_remove":
            for key in ids:
                self.rows.pop(int(key), None)
        else:
            values = arrays.get("MonolithHashTable_t_value", [])
            if "MonolithHashTable_t_packed" in arrays:
                values = arrays["MonolithHashTable_t_packed"].view("<f2").reshape(len(ids), -1)
            self.rows.update({int(k): float(v[0]) for k, v in zip(ids, values, strict=True)})
        return response

    def GetModelStatus(self, request, context):
        self.questions += 1
        self.hold.wait(60)
        self._say_who(context)
        response = get_model_status_pb2.GetModelStatusResponse()
        status = response.model_version_status.add(version=self.version)
        status.state = get_model_status_pb2.ModelVersionStatus.AVAILABLE
        return response

    def _say_who(self, context):
        if self.incarnation:
            context.set_trailing_metadata(((INCARNATION, self.incarnation),))

    def _list_ids(self, table, place, max_ids):
        """Its places are the ids themselves, which are not negative."""
        assert table == 0
        ids = sorted(key for key in self.rows if key >= place)
        listed = np.array(ids[: int(max_ids)], np.int64)
        self.listed.append(len(listed))
        more = len(ids) > len(listed)
        return {"id": listed, "next_place": np.int64(listed[-1] + 1 if more else -1)}
