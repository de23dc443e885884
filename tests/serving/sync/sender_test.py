"""One server gets its rows, in a form that it takes, and costs nothing while it is silent."""

import socket
import time

import numpy as np
import pytest
import tensorflow as tf
from support.row_server import RowServer
from support.waiting import wait_for
from tensorflow_serving.apis import predict_pb2

from monolith.serving.sync.channel import SyncChannel
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.sender import RowSender, name_in_part
from monolith.serving.sync.targets import Target


class OneRow:
    """Has the row of id 7 to send, until it has arrived.

    Attributes:
        taken: In which form it was taken, each time.
        start_overs: How often a server was said to be another one.
    """

    def __init__(self):
        self.taken = []
        self.start_overs = 0
        self.is_due = True

    def take(self, number, target, packed):
        if not self.is_due:
            return []
        self.taken.append("packed" if packed else "floats")
        request = predict_pb2.PredictRequest()
        inputs = {"id": np.array([7])}
        if packed:
            inputs["packed"] = np.array([1.5, 0], np.float16).view(np.uint8)
        else:
            inputs["value"] = np.array([[1.5]], np.float32)
        for name, array in inputs.items():
            request.inputs[f"MonolithHashTable_t_{name}"].CopyFrom(tf.make_tensor_proto(array))
        name = "hashtable_assign" + ("_packed" if packed else "")
        return [(name, request.SerializeToString(), 1)]

    def settle(self, number, target, has_arrived, start_over):
        self.is_due = not has_arrived or start_over
        self.start_overs += start_over


class OneQuestion(OneRow):
    """Has nothing to send, and one question for ids.

    Attributes:
        answers: The ids, where they go on, and whether the server knows how to answer.
    """

    def __init__(self):
        super().__init__()
        self.is_due = False
        self.answers = []

    def take(self, number, target, packed):
        if self.is_due:
            return super().take(number, target, packed)
        if self.answers:
            return []
        request = predict_pb2.PredictRequest()
        for name, value in {"table": 0, "place": 0, "max_ids": 2}.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(np.int64(value)))
        return [("hashtable_list_ids/MonolithHashTable_t", request.SerializeToString(), 0)]

    def compare(self, number, target, ids, next_place, is_known):
        self.answers.append((ids.tolist(), next_place, is_known))


@pytest.fixture
def start():
    """Starts a sender that looks for something to send all the time."""
    senders = []

    def start_one(steps, target, timeout_sec=60):
        config = SyncConfig(timeout_sec=timeout_sec)
        senders.append(RowSender(steps, 0, target, config, time.monotonic))
        return senders[-1]

    yield start_one
    for sender in senders:
        sender.close()


def wake_until(sender, condition):
    def wake():
        sender.wake(time.monotonic())
        return condition()

    wait_for(wake)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("ps_0", "MonolithMultiHashTable_0/raw_assign"),
        ("m:ps_12", "MonolithMultiHashTable_12/raw_assign"),
        ("apps_rank:ps_1", "MonolithMultiHashTable_1/raw_assign"),
        ("gps", "MonolithMultiHashTable_/raw_assign"),
        ("apps_rank", "MonolithMultiHashTable_/raw_assign"),
        ("clips_2", "MonolithMultiHashTable_/raw_assign"),
        ("ps_v2", "MonolithMultiHashTable_/raw_assign"),
        ("m:entry", "MonolithMultiHashTable_/raw_assign"),
    ],
)
def test_only_parts_have_a_number(model, name):
    assert name_in_part("MonolithMultiHashTable_/raw_assign", model) == name
    assert name_in_part("hashtable_assign", model) == "hashtable_assign"


def test_a_server_that_takes_no_packed_rows_gets_floats(start, caplog):
    caplog.set_level("INFO")
    steps = OneRow()
    with RowServer() as server:
        sender = start(steps, server.target)
        wake_until(sender, lambda: server.rows == {7: 1.5})
        assert steps.taken == ["packed", "floats"]
        assert "gets its rows as floats, since it does not take them as they are" in caplog.text
        assert "does not get changes" not in caplog.text
        # And goes on with floats, until it has another export.
        steps.is_due = True
        wake_until(sender, lambda: len(steps.taken) == 3)
        assert steps.taken[2] == "floats"
        server.version, server.takes_packed = 2, True
        steps.is_due = True
        wake_until(sender, lambda: steps.start_overs == 1 and not steps.is_due)
        assert steps.taken[3:] == ["floats", "packed"]


def test_rows_are_not_taken_for_a_server_that_is_silent(start, monkeypatch):
    questions = []
    ask = SyncChannel.ask

    def note(self):
        answer = ask(self)
        questions.append(answer.is_ok)
        return answer

    monkeypatch.setattr(SyncChannel, "ask", note)
    steps = OneRow()
    # As a process that is stopped: connections are taken by the system, and nobody reads.
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        sender = start(steps, Target(f"127.0.0.1:{port}", "m"), timeout_sec=0.2)
        wake_until(sender, lambda: len(questions) >= 3)
        assert (steps.taken, set(questions)) == (["packed"], {False})
    with RowServer(port) as server:
        server.takes_packed = True
        wake_until(sender, lambda: server.rows == {7: 1.5})
        assert True in questions


class TestWithNothingToSend:
    @pytest.fixture
    def idle(self):
        steps = OneRow()
        steps.is_due = False
        return steps

    @pytest.mark.parametrize("change", [{"incarnation": "second"}, {"version": 2}])
    def test_another_server_is_noticed(self, idle, start, change):
        with RowServer() as server:
            sender = start(idle, server.target)
            wake_until(sender, lambda: server.questions >= 2)
            assert idle.start_overs == 0
            for name, value in change.items():
                setattr(server, name, value)
            wake_until(sender, lambda: server.rows == {7: 1.5})
            assert idle.start_overs == 1

    def test_a_server_is_fresh_when_it_says_so(self, idle, start):
        with RowServer() as server:
            server.hold.clear()
            sender = start(idle, server.target)
            before_sec = sender.fresh_as_of_sec
            wake_until(sender, lambda: server.questions == 1)
            assert sender.fresh_as_of_sec == before_sec
            server.hold.set()
            wake_until(sender, lambda: sender.fresh_as_of_sec > before_sec)
            port = server.port
        gone_sec = time.monotonic()
        for _ in range(20):
            sender.wake(time.monotonic())
            time.sleep(0.01)
        assert sender.fresh_as_of_sec <= gone_sec
        with RowServer(port):
            wake_until(sender, lambda: sender.fresh_as_of_sec > gone_sec)

    def test_who_takes_rows_is_asked_nothing_else(self, start):
        steps = OneRow()
        with RowServer() as server:
            sender = start(steps, server.target)
            sender.wake(time.monotonic())
            wait_for(lambda: server.rows == {7: 1.5} and not steps.is_due)
            time.sleep(0.1)
            assert server.questions == 0


class TestIdsOfAServer:
    def test_they_are_handed_over(self, start):
        steps = OneQuestion()
        with RowServer() as server:
            server.rows = {3: 1.0, 5: 1.0, 8: 1.0}
            sender = start(steps, server.target)
            wake_until(sender, lambda: steps.answers)
        assert steps.answers == [([3, 5], 6, True)]

    def test_an_older_export_does_not_know_them_which_is_said_once(self, start, caplog):
        steps = OneQuestion()
        with RowServer() as server:
            server.lists_ids = False
            sender = start(steps, server.target)
            for _ in range(2):
                wake_until(sender, lambda: steps.answers == [([], 0, False)])
                steps.answers.clear()
            steps.answers.append(None)
            steps.is_due = True
            wake_until(sender, lambda: server.rows == {7: 1.5})
        said = [r.getMessage() for r in caplog.records if "does not say" in r.getMessage()]
        assert len(said) == 1
        assert "which rows it has; export its model with this version: The model has no" in said[0]

    def test_those_of_another_server_do_not_count(self, start):
        steps = OneQuestion()
        steps.is_due = True
        with RowServer() as server:
            sender = start(steps, server.target)
            wake_until(sender, lambda: len(steps.answers) == 1)
            server.incarnation = "second"
            steps.answers.clear()
            wake_until(sender, lambda: steps.start_overs == 1 and steps.answers)
            # After the rows that it got then.
            assert steps.taken == ["packed", "floats", "packed", "floats"]
