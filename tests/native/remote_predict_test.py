"""The op that calls models on other servers, with senders that answer from this process."""

import threading

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

from monolith.native import ops, remote_predict


@pytest.fixture
def calls():
    """Takes calls, and answers none."""
    taken = []
    remote_predict.set_sender(taken.append)
    yield taken
    remote_predict.set_sender(None)


def answer_with(**outputs):
    def send(call):
        response = predict_pb2.PredictResponse()
        for name, array in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(array))
        call.finish(response.SerializeToString())

    return send


@pytest.fixture
def answered():
    """Sets who answers."""
    yield remote_predict.set_sender
    remote_predict.set_sender(None)


def predict(inputs=None, outputs=("rows",), **kwargs):
    inputs = inputs or {"id": np.array([1, 2])}
    options = {"model_name": "ads:ps_1", "task": 1, "old_model_name": "ps_1", **kwargs}
    return remote_predict.call_op(list(inputs), list(inputs.values()), outputs, **options)


def test_request_and_answer(answered):
    seen = []

    def send(call):
        seen.append(call)
        answer_with(rows=np.array([[1.5], [2.5]], np.float32))(call)

    answered(send)
    text = np.array([b"a", b"\x00"], object)
    code, message, (rows,) = predict(
        {"id": np.array([[1, 2]]), "text": text}, signature_name="lookup", model_version=7
    )
    assert (int(code), message.numpy(), rows.numpy().tolist()) == (0, b"", [[1.5], [2.5]])
    (call,) = seen
    assert (call.model_name, call.old_model_name, call.task) == ("ads:ps_1", "ps_1", 1)
    assert (call.signature_name, call.version, call.deadline_ms) == ("lookup", 7, 30)
    request = predict_pb2.PredictRequest.FromString(call.request)
    assert tf.make_ndarray(request.inputs["id"]).tolist() == [[1, 2]]
    assert tf.make_ndarray(request.inputs["text"]).tolist() == [b"a", b"\x00"]
    assert list(request.output_filter) == ["rows"]
    assert not request.HasField("model_spec")


def test_outputs_in_the_form_of_other_servers(answered):
    """TensorFlow Serving itself writes floats one by one, not as one string of bytes."""

    def send(call):
        response = predict_pb2.PredictResponse()
        proto = response.outputs["rows"]
        proto.dtype = tf.float32.as_datatype_enum
        proto.tensor_shape.dim.add().size = 3
        proto.float_val.extend([1, 2, 3])
        call.finish(response.SerializeToString())

    answered(send)
    assert predict()[2][0].numpy().tolist() == [1, 2, 3]


def test_many_calls_at_once_are_answered_in_any_order(calls):
    results = []

    def ask(number):
        ids = np.array([number], np.int64)
        results.append((number, predict({"id": ids}, output_types=[tf.int64])[2][0].numpy()))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    while len(calls) < 20:
        threads[0].join(0.001)
    for call in reversed(calls):
        ids = predict_pb2.PredictRequest.FromString(call.request).inputs["id"]
        answer_with(rows=tf.make_ndarray(ids) * 2)(call)
        answer_with(rows=np.array([-1]))(call)  # A second answer is passed over.
    for thread in threads:
        thread.join()
    assert sorted((number, rows.tolist()) for number, rows in results) == [
        (i, [2 * i]) for i in range(20)
    ]


class TestFailure:
    def test_fails_the_op(self, answered):
        answered(lambda call: call.fail(14, "away"))
        with pytest.raises(tf.errors.UnavailableError, match="away"):
            predict()

    def test_where_the_op_would_go_on_the_sender_decides(self, answered):
        answered(lambda call: call.fail(4, "late"))
        with pytest.raises(tf.errors.DeadlineExceededError, match="late"):
            predict(fail_op_on_rpc_error=False)

    def test_goes_on_with_a_default(self, answered):
        answered(lambda call: call.fail(4, "late", default_value=0.25))
        types = [tf.float32, tf.int64, tf.string]
        code, message, outputs = predict(
            outputs=("a", "b", "c"), output_types=types, fail_op_on_rpc_error=False
        )
        assert (int(code), message.numpy()) == (4, b"late")
        assert [output.numpy() for output in outputs] == [0.25, 0, b""]

    def test_sender_that_raises(self, answered):
        def send(call):
            raise RuntimeError("broken")

        answered(send)
        with pytest.raises(tf.errors.InternalError, match="could not be sent: broken"):
            predict()

    def test_without_a_sender(self):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"import monolith\.serving"):
            predict()

    @pytest.mark.parametrize(
        ("response", "why"),
        [
            (b"\xff", "malformed"),
            (b"\x0a\x02\xff\xff", "an output is malformed"),
            (b"", "it has no output rows"),
            (b"\x0a\x08\x0a\x04rows\x12\x00", "output rows is no tensor of type float"),
        ],
    )
    def test_answer_that_cannot_be_read(self, answered, response, why):
        """Whatever the server says, it is there: default rows would hide a bug."""
        answered(lambda call: call.finish(response))
        with pytest.raises(tf.errors.InternalError, match=why):
            predict(fail_op_on_rpc_error=False)


class TestInputs:
    def test_lengths_are_compared_when_the_graph_is_built(self, graph_mode):
        with pytest.raises(ValueError, match="must be 1 but is 2"):
            ops.tf_serving_remote_predict(["a", "b"], [1], ["c"], output_types=[tf.float32])
        with pytest.raises(ValueError, match="must be 2 but is 1"):
            ops.tf_serving_remote_predict(["a"], [1], ["c"], output_types=[tf.float32] * 2)

    def test_handles_stay_in_the_process(self, answered):
        answered(answer_with(rows=np.zeros(1, np.float32)))
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[])
        with pytest.raises(tf.errors.InvalidArgumentError, match="cannot leave this process"):
            predict({"handle": handle})

    def test_a_model_has_a_name(self):
        with pytest.raises(ValueError, match="model_name must be specified"):
            remote_predict.remote_predict(["a"], [1], ["b"], None, 0, "ps_0")

    def test_returns_the_outputs(self, answered):
        answered(answer_with(rows=np.ones(2, np.float32)))
        (rows,) = remote_predict.remote_predict(["a"], [1], ["rows"], "m", 0, None)
        assert rows.numpy().tolist() == [1, 1]
