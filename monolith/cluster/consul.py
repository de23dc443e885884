"""A small Consul client: look services up, register them, keep their health check passing.

It talks to the Consul agent of this machine over TCP, or over a Unix socket when the host is a
path. Two kinds of agents are understood, chosen by `lookup_api` or the environment variable
`MONOLITH_CONSUL_LOOKUP`:

* `name` (default): `GET /v1/lookup/name`, agents with a lookup by name;
* `health`: `GET /v1/health/service/NAME?passing=true`, stock Consul.

Both give the same answer, a list of `{"Host": ..., "Port": ..., "Tags": {...}}`.

Example:
    >>> from unittest import mock
    >>> with mock.patch.dict("os.environ", {"CONSUL_HTTP_HOST": "/run/consul.sock"}):
    ...     Client(lookup_api="health").address
    '/run/consul.sock'
"""

import contextlib
import enum
import http.client
import json
import logging
import os
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from http.client import OK, HTTPConnection
from typing import Any

from monolith import errors
from monolith.cluster import heartbeat, net

logger = logging.getLogger(__name__)

_DEFAULT_SOCKET = "/opt/tmp/sock/consul.sock"
_DEFAULT_PORT = 2280
_UNCACHED_TIMEOUT_SEC = 30
_REGISTER_TIMEOUT_SEC = 15
_TTL = "60s"
_HEARTBEAT_PERIOD_SEC = 30.0  # Twice within a TTL, so that one lost heartbeat does no harm.
_HEARTBEAT_RETRY_SEC = 2.0
_HEARTBEAT_TIMEOUT_SEC = 15
_MAX_ERROR_CHARS = 500


class ConsulException(errors.MonolithError):
    """Consul refused a request, or answered with something that makes no sense."""


class LookupApi(enum.Enum):
    """Which endpoints the agent offers."""

    NAME = "name"
    HEALTH = "health"


class UnixHTTPConnection(HTTPConnection):
    """HTTP over the Unix socket at `path`."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__("localhost", **kwargs)
        self._path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if isinstance(self.timeout, int | float):
                sock.settimeout(self.timeout)
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise
        self.sock = sock


class Client:
    """Talks to one Consul agent; every method may be called from any thread.

    The agent is at `CONSUL_HTTP_HOST`, else `TCE_HOST_IP`, else at the socket
    `/opt/tmp/sock/consul.sock` if there is one, else at 127.0.0.1; the port of a TCP host is
    `CONSUL_HTTP_PORT` or 2280.

    Args:
        lookup_api: `"name"`, `"health"`, or None for what `MONOLITH_CONSUL_LOOKUP` says.

    Raises:
        errors.ConfigError: If the port or the choice of lookup makes no sense.
    """

    def __init__(self, *, lookup_api: LookupApi | str | None = None) -> None:
        host = os.environ.get("CONSUL_HTTP_HOST") or os.environ.get("TCE_HOST_IP")
        if not host:
            host = _DEFAULT_SOCKET if os.path.exists(_DEFAULT_SOCKET) else "127.0.0.1"
        self._consul_host = host
        self._consul_port = _port_from_environment()
        self._lookup_api = _parse_lookup_api(lookup_api)
        self._cache: dict[str, tuple[float, list[dict[str, Any]]]] = {}
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """Where the agent is: `host:port`, or the path of its socket."""
        return _describe_agent(self._consul_host, self._consul_port)

    def lookup(self, name: str, timeout: float = 3, cachetime: float = 0) -> list[dict[str, Any]]:
        """Returns the healthy instances of service `name`, each with Host, Port and Tags.

        Args:
            name: Name of the service.
            timeout: Seconds to wait for the agent. With `cachetime`, a name that was never looked
                up before gets 30 seconds.
            cachetime: An answer at most this many seconds old is good enough; 0 always asks. Empty
                answers are never kept, since the caller most likely waits for a first instance.

        Raises:
            OSError: If the agent cannot be reached or does not answer in time.
            ConsulException: If the answer cannot be understood. A refusal (status other than 200)
                is logged and reads as an empty answer.
        """
        if cachetime > 0:
            with self._lock:
                cached = self._cache.get(name)
            if cached is None:
                timeout = _UNCACHED_TIMEOUT_SEC
            elif time.monotonic() - cached[0] <= cachetime:
                return list(cached[1])
        # Asked without the lock, or one slow agent would hold up every other name.
        result = self._lookup(name, timeout)
        with self._lock:
            if result:
                self._cache[name] = (time.monotonic(), result)
            else:
                self._cache.pop(name, None)
        return list(result)

    def register(
        self,
        name: str,
        port: int,
        tags: Mapping[str, Any] | None = None,
        check_script: str | None = None,
        host: str | None = None,
    ) -> None:
        """Registers the service `name` on `port` of this machine and keeps it healthy.

        Without `check_script` the service has a TTL of 60 seconds, and a daemon thread tells the
        agent every 30 seconds that all is well, until `deregister` or the end of the process. With
        one, the agent runs the script itself, and there is no thread: the agent would refuse each
        of its heartbeats.

        Args:
            name: Name of the service.
            port: Port of the service; name and port together identify it at the agent.
            tags: Stored with the service as `key:value`.
            check_script: Command that the agent runs every 30 seconds.
            host: Agent to register with instead of this client's.

        Raises:
            OSError: If the agent cannot be reached or does not answer in time.
            ConsulException: If the agent refuses.
        """
        service_id = _service_id(name, port)
        payload: dict[str, Any] = {"id": service_id, "name": name, "port": int(port)}
        payload["check"] = self._check(check_script)
        if tags is not None:
            payload["tags"] = [f"{key}:{value}" for key, value in tags.items()]
        agent = host or self._consul_host
        status, body = self._request(
            "PUT",
            "/v1/agent/service/register",
            timeout=_REGISTER_TIMEOUT_SEC,
            body=json.dumps(payload),
            host=agent,
        )
        if status != OK:
            raise ConsulException(_text(body))
        if check_script is None:
            heartbeat.start(
                (_describe_agent(agent, self._consul_port), service_id),
                lambda: self._pass_check(agent, service_id),
                thread_name=f"ConsulHealthCheck-{service_id}",
                period_sec=_HEARTBEAT_PERIOD_SEC,
                retry_sec=_HEARTBEAT_RETRY_SEC,
            )

    def deregister(self, name: str, port: int, host: str | None = None) -> None:
        """Takes the service back and ends its heartbeat.

        Args:
            name: Name it was registered with.
            port: Port it was registered with.
            host: Agent it was registered with, if not this client's.

        Raises:
            OSError: If the agent cannot be reached or does not answer in time.
            ConsulException: If the agent refuses.
        """
        service_id = _service_id(name, port)
        agent = host or self._consul_host
        # First of all: a heartbeat after the deregistration would only be refused.
        heartbeat.stop((_describe_agent(agent, self._consul_port), service_id))
        status, body = self._request(
            "PUT",
            f"/v1/agent/service/deregister/{urllib.parse.quote(service_id)}",
            timeout=_REGISTER_TIMEOUT_SEC,
            host=agent,
        )
        if status != OK:
            raise ConsulException(_text(body))

    def _lookup(self, name: str, timeout: float) -> list[dict[str, Any]]:
        quoted = urllib.parse.quote(name)
        if self._lookup_api is LookupApi.HEALTH:
            path = f"/v1/health/service/{quoted}?passing=true"
        else:
            path = f"/v1/lookup/name?name={quoted}&addr-family=dual-stack"
        status, body = self._request("GET", path, timeout=timeout)
        if status != OK:
            logger.error(
                "Consul at %s answered %s to the lookup of %r: %s",
                self.address,
                status,
                name,
                _text(body),
            )
            return []
        try:
            answer = json.loads(body)
        except ValueError as err:
            raise self._not_understood(name, body) from err
        # Some agents say null for a name without instances.
        if answer is None:
            return []
        if not isinstance(answer, list) or not all(isinstance(item, dict) for item in answer):
            raise self._not_understood(name, body)
        if self._lookup_api is LookupApi.HEALTH:
            try:
                return [_from_health(item) for item in answer]
            except (KeyError, TypeError, AttributeError) as err:
                raise self._not_understood(name, body) from err
        return answer

    def _check(self, script: str | None) -> dict[str, Any]:
        if script is None:
            return {"ttl": _TTL}
        if self._lookup_api is LookupApi.HEALTH:
            # Stock Consul runs a list of arguments, not a line for a shell.
            return {"interval": "30s", "args": ["sh", "-c", script]}
        return {"interval": "30s", "script": script}

    def _pass_check(self, agent: str, service_id: str) -> None:
        # Stock Consul changes state by PUT only; agents with a lookup by name expect a GET.
        status, body = self._request(
            "PUT" if self._lookup_api is LookupApi.HEALTH else "GET",
            f"/v1/agent/check/pass/service:{urllib.parse.quote(service_id)}",
            timeout=_HEARTBEAT_TIMEOUT_SEC,
            host=agent,
        )
        if status != OK:
            raise ConsulException(f"status {status}, {_text(body)}")

    def _request(
        self,
        method: str,
        path: str,
        *,
        timeout: float,
        body: str | None = None,
        host: str | None = None,
    ) -> tuple[int, Any]:
        agent = host or self._consul_host
        with self._connection(agent, timeout) as conn:
            try:
                if body is None:
                    conn.request(method, path)
                else:
                    conn.request(method, path, body, {"Content-Type": "application/json"})
                response = conn.getresponse()
                return response.status, response.read()
            except OSError:
                raise
            except http.client.HTTPException as err:
                raise ConsulException(
                    f"{_describe_agent(agent, self._consul_port)} does not speak HTTP as Consul "
                    f"does ({err!r}); check CONSUL_HTTP_HOST and CONSUL_HTTP_PORT."
                ) from err

    @contextlib.contextmanager
    def _connection(self, agent: str, timeout: float) -> Iterator[HTTPConnection]:
        if agent.startswith("/"):
            conn: HTTPConnection = UnixHTTPConnection(agent, timeout=timeout)
        else:
            conn = HTTPConnection(agent, self._consul_port, timeout=timeout)
        try:
            yield conn
        finally:
            conn.close()

    def _not_understood(self, name: str, body: Any) -> ConsulException:
        return ConsulException(
            f"Consul at {self.address} answered the lookup of {name!r} with something other than "
            f"the list of `{self._lookup_api.value}` lookups: {_text(body)}. Check that "
            "MONOLITH_CONSUL_LOOKUP fits the agent."
        )


def _service_id(name: str, port: int) -> str:
    if isinstance(port, bool) or not str(port).isdigit() or not 0 < int(port) <= 65535:
        raise errors.ConfigError(
            f"The port of service {name!r} must be a number from 1 to 65535, got {port!r}."
        )
    return f"{name}-{port}"


def _port_from_environment() -> int:
    text = os.environ.get("CONSUL_HTTP_PORT") or str(_DEFAULT_PORT)
    if not text.isdigit() or not 0 < int(text) <= 65535:
        raise errors.ConfigError(
            f"CONSUL_HTTP_PORT must be a number from 1 to 65535, got {text!r}."
        )
    return int(text)


def _parse_lookup_api(choice: LookupApi | str | None) -> LookupApi:
    if choice is None:
        choice = os.environ.get("MONOLITH_CONSUL_LOOKUP") or LookupApi.NAME
    try:
        return LookupApi(choice)
    except ValueError as err:
        known = " or ".join(repr(api.value) for api in LookupApi)
        raise errors.ConfigError(
            f"The Consul lookup (MONOLITH_CONSUL_LOOKUP) must be {known}, got {choice!r}."
        ) from err


def _from_health(item: Mapping[str, Any]) -> dict[str, Any]:
    """Turns an element of stock Consul's health endpoint into one of `/v1/lookup/name`."""
    service = item["Service"]
    # A service registered without an address is at the address of its node.
    host = service.get("Address") or item.get("Node", {}).get("Address", "")
    tags = {}
    for tag in service.get("Tags") or []:
        key, _, value = tag.partition(":")
        tags[key] = value
    return {"Host": host, "Port": service["Port"], "Tags": tags}


def _describe_agent(host: str, port: int) -> str:
    return host if host.startswith("/") else net.concat_ip_and_port(host, port)


def _text(body: Any) -> str:
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body)
    return text if len(text) <= _MAX_ERROR_CHARS else text[:_MAX_ERROR_CHARS] + "..."
