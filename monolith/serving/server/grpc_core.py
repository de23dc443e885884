"""Takes calls over gRPC, with as little work as possible between the network and their answers.

This stands on the part of the package grpcio that its own servers in Python stand on
(`grpc._cython.cygrpc`; tested with 1.74 and 1.85), and does not use those servers. The one with an
event loop wakes a thread and the loop several times for each call; the one with threads keeps a
thread for each call whose message has not come. Here a few threads take what comes from gRPC's
queue of events, whatever call it belongs to.

Example:
    >>> def echo(call, content):
    ...     call.answer(content)
    >>> with CallPool(max_calls=1) as pool:
    ...     server = CoreServer({"/a.Service/Echo": echo}, pool, threads=2, max_silent=10)
    ...     port = server.listen("127.0.0.1:0", None)
    ...     server.start()
    ...     with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    ...         print(channel.unary_unary("/a.Service/Echo")(b"hello"))
    ...     server.stop(grace_sec=0)
    b'hello'
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc

from monolith import errors
from monolith.serving.server.call_pool import CallPool

logger = logging.getLogger(__name__)

_NO_FLAGS = 0
_OK = 0
# A call without a deadline has one at the end of all times.
_FOR_EVER_SEC = 1e12
# So many calls are fetched ahead.
_FETCHED = 16


class Call:
    """A call of a client, to be answered once. Thread-safe.

    Args:
        event: What gRPC says about it.
        on_over: Called when it has ended, in whatever way.
    """

    def __init__(self, event: Any, on_over: Callable[["Call"], None]) -> None:
        self._call = event.call
        self._details = event.call_details
        self._metadata = event.invocation_metadata
        self._on_over = on_over
        self._on_gone: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._has_begun = False  # Has sent something.
        self._is_over = False  # Nothing may be sent any more.

    @property
    def method(self) -> str:
        """The path of the method, such as `/tensorflow.serving.PredictionService/Predict`."""
        return bytes(self._details.method).decode("utf-8", "replace")

    @property
    def left_sec(self) -> float | None:
        """How long the client waits from now on; None: as long as it takes."""
        left_sec = float(self._details.deadline) - time.time()
        return None if left_sec > _FOR_EVER_SEC else left_sec

    def get_header(self, name: str) -> str | None:
        """Returns the header of a name, in small letters."""
        for key, value in self._metadata or ():
            if key == name:
                return str(value)
        return None

    def notice_gone(self, on_gone: Callable[[], None]) -> None:
        """Calls a function, from any thread, when the client does not wait any more."""
        with self._lock:
            self._on_gone = on_gone
            is_over = self._is_over
        if is_over:
            on_gone()

    def answer(self, content: bytes, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        """Sends the answer, and metadata behind it."""
        self._end(
            cygrpc.SendMessageOperation(content, _NO_FLAGS),
            cygrpc.SendStatusFromServerOperation(metadata, _OK, b"", _NO_FLAGS),
        )

    def refuse(self, code: grpc.StatusCode, message: str) -> None:
        """Tells the client that there is no answer, and why."""
        details = message.encode("utf-8", "replace")
        self._end(cygrpc.SendStatusFromServerOperation((), code.value[0], details, _NO_FLAGS))

    def send(self, content: bytes, on_sent: Callable[[], None]) -> None:
        """Sends one of several messages; the next one may be sent after `on_sent` was called."""
        with self._lock:
            if not self._is_over:
                message = cygrpc.SendMessageOperation(content, _NO_FLAGS)
                self._start([*self._begin(), message], lambda event: on_sent())

    def give_up(self) -> None:
        """Sends nothing from now on."""
        with self._lock:
            self._is_over = True
            on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            on_gone()

    def receive(self, on_message: Callable[[bytes | None], None]) -> None:
        """Waits for the message, which is None if there is none, and for the end."""

        def received(event: Any) -> None:
            on_message(event.batch_operations[0].message() if event.success else None)

        def closed(event: Any) -> None:
            self._on_over(self)
            if event.batch_operations[0].cancelled():
                self.give_up()

        with self._lock:
            if not self._is_over:
                self._start([cygrpc.ReceiveMessageOperation(_NO_FLAGS)], received)
                self._start([cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS)], closed)

    def _end(self, *operations: Any) -> None:
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._on_gone = None  # Who would be told holds on to this object.
                self._start([*self._begin(), *operations], _ignore)

    def _begin(self) -> list[Any]:
        if self._has_begun:
            return []
        self._has_begun = True
        return [cygrpc.SendInitialMetadataOperation((), _NO_FLAGS)]

    def _start(self, operations: Sequence[Any], on_event: Callable[[Any], None]) -> None:
        self._call.start_server_batch(operations, on_event)


Handler = Callable[[Call, bytes], None]


class CoreServer:
    """Takes calls.

    Args:
        handlers: What answers, by the path of the method; called with the call and its message.
        pool: Is lent the threads, to call models in.
        threads: How many take calls.
        max_silent: How many calls may be there whose message is not; the oldest of more than
            these is refused.
        options: Of gRPC's core.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        pool: CallPool,
        threads: int,
        max_silent: int,
        options: Sequence[tuple[str, Any]] = (),
    ) -> None:
        self._handlers = handlers
        self._pool = pool
        self._max_silent = max_silent
        self._server = cygrpc.Server(tuple(options), False)
        self._queue = cygrpc.CompletionQueue()
        self._server.register_completion_queue(self._queue)
        self._threads = [
            threading.Thread(target=self._take_calls, name=f"grpc-{number}", daemon=True)
            for number in range(threads)
        ]
        self._lock = threading.Lock()
        self._has_started = False
        self._is_stopping = False
        self._has_ended = threading.Event()  # All calls have.
        self._calls: set[Call] = set()
        self._silent: dict[Call, None] = {}  # In the order of their arrival.

    def listen(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Takes a port.

        Args:
            address: Host and port; port 0 takes a free one.
            credentials: With which to encrypt; None: not at all.

        Returns:
            The port.

        Raises:
            errors.ConfigError: It cannot be had.
        """
        try:
            if credentials is None:
                port = self._server.add_http2_port(address.encode())
            else:
                port = self._server.add_http2_port(address.encode(), credentials._credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise errors.ConfigError(
                f"gRPC cannot listen on {address}: is another server there, or the address one of "
                "another machine?"
            )
        return int(port)

    def start(self) -> None:
        """Begins to take calls."""
        self._has_started = True
        self._server.start()
        for _ in range(_FETCHED):
            self._fetch()
        for thread in self._threads:
            thread.start()

    def stop(self, grace_sec: float) -> None:
        """Takes no more calls, gives the others some time, and ends."""
        if not self._has_started:
            self._server.start()  # What has not begun cannot be ended.
            for thread in self._threads:
                thread.start()
        with self._lock:
            self._is_stopping = True
        self._server.shutdown(self._queue, lambda event: self._has_ended.set())
        if not self._has_ended.wait(grace_sec):
            self._server.cancel_all_calls()
        # A model may still run for somebody who is gone, and must not send what comes of it.
        for call in list(self._calls):
            call.give_up()
        self._has_ended.wait()
        self._server.destroy()
        self._queue.shutdown()
        for thread in self._threads:
            thread.join()

    def _fetch(self) -> None:
        with self._lock:
            if not self._is_stopping:
                self._server.request_call(self._queue, self._queue, self._take)

    def _take_calls(self) -> None:
        with self._pool.take_requests() as make_calls:
            while True:
                event = self._queue.poll(None)
                if event.completion_type == cygrpc.CompletionType.queue_shutdown:
                    return
                try:
                    event.tag(event)
                except Exception:
                    # Whatever is wrong with one call, the thread is there for the next.
                    logger.exception("a call over gRPC failed")
                # It holds on to its call, which gRPC waits for.
                event = None
                make_calls()

    def _take(self, event: Any) -> None:
        """Takes a call; its message comes later."""
        if not event.success:  # There are no more.
            return
        self._fetch()
        call = Call(event, self._forget)
        handler = self._handlers.get(call.method)
        oldest = None
        with self._lock:
            if self._is_stopping:
                call.give_up()
            self._calls.add(call)
            self._silent[call] = None
            if len(self._silent) > self._max_silent:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
        call.receive(lambda content: self._answer(call, handler, content))
        if handler is None:
            call.refuse(grpc.StatusCode.UNIMPLEMENTED, f"There is no method {call.method}.")
        if oldest is not None:
            oldest.refuse(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._max_silent} calls have not sent their message, which is the limit.",
            )

    def _answer(self, call: Call, handler: Handler | None, content: bytes | None) -> None:
        with self._lock:
            self._silent.pop(call, None)
        if content is None:
            call.refuse(
                grpc.StatusCode.UNIMPLEMENTED, f"{call.method} takes one message, got none."
            )
        elif handler is not None:
            try:
                handler(call, content)
            except Exception:
                call.refuse(grpc.StatusCode.INTERNAL, "The server failed; its log says more.")
                raise

    def _forget(self, call: Call) -> None:
        with self._lock:
            self._calls.discard(call)
            self._silent.pop(call, None)


def _ignore(event: Any) -> None:
    """What was sent needs no more attention."""
