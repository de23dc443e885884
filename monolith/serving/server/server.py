"""The prediction server as a whole.

A few threads take requests over gRPC, and call the models; one thread, with an event loop, does all
of REST but the calls, for which there is a pool; a thread for each model looks for new versions.

Example:
    With versions of a model below `exported_models`,

        models = (ModelConfig(name="ads", base_path="exported_models"),)
        with PredictionServer(ServerConfig(models=models, port=0, rest_port=0)) as server:
            server.wait_until_loaded()
            print(server.port, server.rest_port)
"""

import asyncio
import logging
import sys
import threading
import types
from collections.abc import Coroutine
from typing import Any, TypeVar

from monolith.serving import remote
from monolith.serving.server import grpc_service, security
from monolith.serving.server.admission import Admission
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import ServerConfig
from monolith.serving.server.grpc_service import GrpcServer
from monolith.serving.server.manager import ModelManager
from monolith.serving.server.metrics import ServerMetrics
from monolith.serving.server.requests import Requests
from monolith.serving.server.rest import RestServer

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

# Threads take turns that often. With Python's default of 5 ms, a request whose model has just
# answered would wait for that long while another thread loads a version or reads a large request.
_SWITCH_SEC = 0.0005


class PredictionServer:
    """Serves models until it is stopped.

    Args:
        config: What to serve, and how.

    Raises:
        errors.ConfigError: A port cannot be listened on, or a file cannot be used.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        tokens = security.read_tokens(config.security)
        self._pool = CallPool(config.limits.max_calls, grpc_service.THREADS)
        self._metrics = ServerMetrics()
        self._models = ModelManager(
            config.models,
            config.loading,
            self._pool,
            config.batching,
            self._metrics,
            config.limits.max_request_bytes,
            self._report_health,
            config.allow_writes,
        )
        self._remote: remote.RemoteClient | None = None
        if config.servers is not None:
            self._remote = remote.connect(config.servers, config.remote, self._metrics.registry)
        self._is_stopping = False
        self._grpc: GrpcServer | None = None
        self._rest: RestServer | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
        self._thread.start()
        try:
            self._run(self._listen(tokens))
        except BaseException:
            self._end_loop()
            self._pool.shutdown()
            self._disconnect()
            raise
        _warn_if_open(config)

    @property
    def models(self) -> ModelManager:
        return self._models

    @property
    def port(self) -> int | None:
        """The port of gRPC."""
        return None if self._grpc is None else self._grpc.port

    @property
    def rest_port(self) -> int | None:
        """The port of REST."""
        return None if self._rest is None else self._rest.port

    def start(self) -> None:
        """Begins to load models and to answer; until a model is there, it is unavailable."""
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SEC))
        if self._grpc is not None:
            self._grpc.start()
        if self._rest is not None:
            self._loop.call_soon_threadsafe(self._rest.start)
        self._models.start()

    def wait_until_loaded(self, timeout_sec: float | None = None) -> bool:
        """Waits until each model has loaded what was there; returns whether all are available."""
        return self._models.wait_until_looked_at(timeout_sec) and self._models.is_available

    def stop(self) -> None:
        """Refuses new requests, gives the others their answers, and ends."""
        self._is_stopping = True
        if self._grpc is not None:
            self._grpc.set_serving(False)
        if not self._admission.close(self._config.grace_sec):
            logger.warning(
                "requests took longer than %g seconds and are given up", self._config.grace_sec
            )
        if self._grpc is not None:
            # What is left are answers on their way.
            self._grpc.stop(min(1.0, self._config.grace_sec))
        if self._rest is not None:
            self._run(self._rest.stop())
        self._end_loop()
        self._pool.shutdown()
        self._models.stop()
        self._disconnect()

    def __enter__(self) -> "PredictionServer":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        self.stop()

    async def _listen(self, tokens: security.Tokens) -> None:
        config = self._config
        self._admission = Admission(config.limits.max_concurrent)
        requests = Requests(
            self._models,
            self._admission,
            self._metrics,
            tokens,
            config.limits,
            config.allow_reload,
        )
        try:
            if config.port is not None:
                self._grpc = GrpcServer(config, requests, self._pool)
            if config.rest_port is not None:
                self._rest = RestServer(config, requests)
        except BaseException:
            if self._grpc is not None:
                self._grpc.stop(0)
            raise

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _disconnect(self) -> None:
        if self._remote is not None:
            remote.disconnect(self._remote)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _report_health(self) -> None:
        """Called from any thread."""
        if self._grpc is not None and not self._is_stopping:
            self._grpc.set_serving(self._models.is_available)


def _warn_if_open(config: ServerConfig) -> None:
    if config.is_loopback:
        return
    who = config.security
    if who.token_file is None and who.client_authority is None:
        logger.warning(
            "everybody who can reach %s may ask this server; a token or mutual TLS would keep "
            "others out",
            config.host,
        )
    elif who.certificate is None:
        logger.warning("tokens are sent as plain text; TLS would hide them")
