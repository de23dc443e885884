"""The REST side: how HTTP requests travel; what they mean is in `rest_api`."""

import logging
from typing import Any

import tornado.httpserver as httpserver
import tornado.netutil as netutil
import tornado.web as web

from monolith import errors
from monolith.serving.server import rest_api, security, status
from monolith.serving.server.config import ServerConfig
from monolith.serving.server.requests import Requests

logger = logging.getLogger(__name__)

_MAX_HEADER_BYTES = 64 << 10
# What is read of a request that is too large: a client that is cut off while it sends does not get
# to see the answer.
_LINGER_BYTES = 1 << 20
_UNLIMITED = 1 << 62
_PAYLOAD_TOO_LARGE = 413


class RestServer:
    """Answers HTTP requests. Must be made in a running event loop, and lives there.

    Args:
        config: Where to listen, and with what limits.
        requests: Answers.

    Raises:
        errors.ConfigError: The port cannot be listened on, or a file of TLS cannot be used.
    """

    def __init__(self, config: ServerConfig, requests: Requests) -> None:
        assert config.rest_port is not None
        settings = {
            "api": rest_api.RestApi(requests),
            "max_body_bytes": config.limits.max_request_bytes,
        }
        self._server = httpserver.HTTPServer(
            web.Application([(r".*", _Handler, settings)], log_function=_log_nothing),
            ssl_options=security.make_ssl_context(config.security),
            idle_connection_timeout=config.limits.client_timeout_sec,
            body_timeout=config.limits.client_timeout_sec,
            max_header_size=_MAX_HEADER_BYTES,
            # The handler counts itself, and answers with the right status.
            max_body_size=_UNLIMITED,
        )
        self._sockets = _listen(config.host, config.rest_port)
        self.port: int = self._sockets[0].getsockname()[1]

    def start(self) -> None:
        self._server.add_sockets(self._sockets)

    async def stop(self) -> None:
        """Closes all connections."""
        self._server.stop()
        for socket in self._sockets:
            socket.close()
        await self._server.close_all_connections()


@web.stream_request_body
class _Handler(web.RequestHandler):
    """Collects a request, and sends what the API answers."""

    def initialize(self, api: rest_api.RestApi, max_body_bytes: int) -> None:
        self._api = api
        self._max_body_bytes = max_body_bytes
        self._body: list[bytes] = []
        self._size = 0
        self._is_too_large = False

    def prepare(self) -> None:
        length = self.request.headers.get("Content-Length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            self._is_too_large = True
            if "Expect" in self.request.headers:  # The client waits to be told.
                self._refuse()

    def data_received(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if not self._is_too_large:
            self._body.append(chunk)
            if self._size > self._max_body_bytes:
                self._is_too_large = True
                self._body.clear()
                self._size = 0
        elif self._size > _LINGER_BYTES and not self._finished:
            self._refuse()

    async def _answer(self) -> None:
        if self._is_too_large:
            self._refuse()
            return
        request = rest_api.Request(
            method=self.request.method or "",
            path=self.request.path,
            body=b"".join(self._body),
            token=self.request.headers.get(security.HEADER),
            encoding=self.request.headers.get("Content-Encoding", "identity"),
        )
        self._body.clear()
        self._send(await self._api.answer(request))

    get = head = post = delete = patch = put = options = _answer

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answers what the HTTP library itself refuses, as JSON like everything else."""
        error = status.RequestError(status.Code.INVALID_ARGUMENT, self._reason)
        self._send(rest_api.make_error(error, status_code))

    def set_default_headers(self) -> None:
        self.set_header("Server", "monolith")

    def _refuse(self) -> None:
        error = status.RequestError(
            status.Code.RESOURCE_EXHAUSTED,
            f"A request may have at most {self._max_body_bytes} bytes.",
        )
        self.set_header("Connection", "close")
        self._send(rest_api.make_error(error, _PAYLOAD_TOO_LARGE))

    def _send(self, response: rest_api.Response) -> None:
        self.set_status(response.status)
        for name, value in response.headers.items():
            self.set_header(name, value)
        self.finish(response.body)


def _listen(host: str, port: int) -> list[Any]:
    try:
        return netutil.bind_sockets(port, host.strip("[]"))
    except OSError as e:
        raise errors.ConfigError(f"REST cannot listen on {host}:{port}: {e.strerror}.") from e


def _log_nothing(handler: web.RequestHandler) -> None:
    """Metrics count requests; a line for each would fill the log."""
