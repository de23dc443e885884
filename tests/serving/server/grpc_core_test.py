"""Calls over gRPC."""

import contextlib
import threading

import grpc
import pytest
from support.waiting import wait_for

from monolith import errors
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.grpc_core import CoreServer

LONG_SEC = 60


@contextlib.contextmanager
def running(handlers, max_silent=100, options=(), grace_sec=LONG_SEC):
    with CallPool(max_calls=4, takers=2) as pool:
        server = CoreServer(
            {f"/s/{name}": handler for name, handler in handlers.items()},
            pool,
            threads=2,
            max_silent=max_silent,
            options=options,
        )
        port = server.listen("127.0.0.1:0", None)
        server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            server.stop(grace_sec)


def echo(call, content):
    call.answer(content)


def ask(channel, name, content=b"", **settings):
    return channel.unary_unary(f"/s/{name}")(content, timeout=LONG_SEC, **settings)


def expect(code, words):
    return pytest.raises(grpc.RpcError, match=f"(?s){code.name}.*{words}")


def test_answers():
    # All calls of the second part may be there before one of their messages is.
    with running({"Echo": echo}, max_silent=200) as channel:
        for size in (0, 1, 100_000):
            assert ask(channel, "Echo", b"x" * size) == b"x" * size
        method = channel.unary_unary("/s/Echo")
        calls = [method.future(str(n).encode()) for n in range(200)]
        assert [int(call.result(LONG_SEC)) for call in calls] == list(range(200))


def test_refusals():
    def refuse(call, content):
        call.refuse(grpc.StatusCode.NOT_FOUND, "nothing für you")
        call.answer(b"too late")

    def fail(call, content):
        raise KeyError

    with running({"Refuse": refuse, "Fail": fail, "Echo": echo}) as channel:
        with expect(grpc.StatusCode.NOT_FOUND, "nothing für you"):
            ask(channel, "Refuse")
        with expect(grpc.StatusCode.UNIMPLEMENTED, "no method /s/Other"):
            ask(channel, "Other")
        with expect(grpc.StatusCode.UNIMPLEMENTED, "takes one message, got none"):
            channel.stream_unary("/s/Echo")(iter(()), timeout=LONG_SEC)
        # Nobody answers, and the client does not wait for ever.
        with expect(grpc.StatusCode.INTERNAL, "The server failed"):
            ask(channel, "Fail")
        assert ask(channel, "Echo", b"still there") == b"still there"


def test_what_is_known_of_a_call():
    seen = {}

    def look(call, content):
        seen.update(left=call.left_sec, method=call.method)
        call.answer((call.get_header("name") or "nobody").encode())

    with running({"Look": look}) as channel:
        assert ask(channel, "Look", metadata=[("name", "me")]) == b"me"
        # On the wire, timeouts are rounded up.
        assert 0 < seen["left"] < LONG_SEC + 1
        assert seen["method"] == "/s/Look"
        assert channel.unary_unary("/s/Look")(b"") == b"nobody"
        assert seen["left"] is None


def test_several_messages():
    def count(call, content):
        left = list(range(int(content)))

        def send_next():
            if left:
                call.send(str(left.pop()).encode(), send_next)
            else:
                call.refuse(grpc.StatusCode.OK, "")

        send_next()

    with running({"Count": count}) as channel:
        answers = channel.unary_stream("/s/Count")(b"5", timeout=LONG_SEC)
        assert list(answers) == [b"4", b"3", b"2", b"1", b"0"]


def test_a_client_that_goes_is_noticed():
    gone = threading.Event()
    calls = []

    def wait(call, content):
        calls.append(call)
        call.notice_gone(gone.set)

    with running({"Wait": wait, "Echo": echo}) as channel:
        future = channel.unary_unary("/s/Wait").future(b"")
        wait_for(lambda: calls)
        assert not gone.is_set()
        future.cancel()
        assert gone.wait(LONG_SEC)
        calls[0].answer(b"too late")
        # Whoever asks late is told at once.
        told = []
        calls[0].notice_gone(lambda: told.append(1))
        assert told == [1]
        # A deadline that passes is the same.
        gone.clear()
        with expect(grpc.StatusCode.DEADLINE_EXCEEDED, ""):
            channel.unary_unary("/s/Wait")(b"", timeout=0.05)
        assert gone.wait(LONG_SEC)
        assert ask(channel, "Echo", b"hello") == b"hello"


def test_calls_that_send_nothing_give_way():
    let_go = threading.Event()

    def be_silent():
        let_go.wait(LONG_SEC)
        return
        yield

    with running({"Echo": echo}, max_silent=4) as channel:
        # One after another, so that it is known which is the oldest; who asks is the fifth.
        method = channel.stream_unary("/s/Echo")
        try:
            silent = []
            for number in range(6):
                silent.append(method.future(be_silent()))
                assert ask(channel, "Echo", b"hello") == b"hello"
                wait_for(lambda number=number: sum(c.done() for c in silent) == max(0, number - 2))
            assert [call.done() for call in silent] == [True] * 3 + [False] * 3
            assert silent[0].code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "have not sent their message" in silent[0].details()
        finally:
            for call in silent:
                call.cancel()
            let_go.set()


def test_a_message_that_is_too_large():
    with running({"Echo": echo}, options=[("grpc.max_receive_message_length", 100)]) as channel:
        assert ask(channel, "Echo", b"x" * 100) == b"x" * 100
        with expect(grpc.StatusCode.RESOURCE_EXHAUSTED, "larger than max"):
            ask(channel, "Echo", b"x" * 101)


def test_stopping_waits_for_answers_but_not_for_ever():
    waiting = []
    for is_answered in (True, False):
        with running(
            {"Wait": lambda call, content: waiting.append(call)},
            grace_sec=LONG_SEC if is_answered else 0.05,
        ) as channel:
            future = channel.unary_unary("/s/Wait").future(b"", timeout=LONG_SEC)
            wait_for(lambda: waiting)
            call = waiting.pop()
            if is_answered:
                threading.Timer(0.05, call.answer, [b"in time"]).start()
                assert future.result(LONG_SEC) == b"in time"
        # Whatever comes after the end harms nobody.
        call.answer(b"too late")
        call.refuse(grpc.StatusCode.OK, "")
        call.send(b"", lambda: None)


def test_a_server_that_never_started_can_be_stopped():
    before = set(threading.enumerate())
    with CallPool(max_calls=1) as pool:
        server = CoreServer({}, pool, threads=2, max_silent=1)
        server.listen("127.0.0.1:0", None)
        server.stop(grace_sec=0)
    assert set(threading.enumerate()) == before


def test_a_port_that_is_taken():
    with CallPool(max_calls=1) as pool:
        options = [("grpc.so_reuseport", 0)]
        first, second = (CoreServer({}, pool, 1, 1, options) for _ in range(2))
        port = first.listen("127.0.0.1:0", None)
        with pytest.raises(errors.ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            second.listen(f"127.0.0.1:{port}", None)
        first.stop(grace_sec=0)
        second.stop(grace_sec=0)
