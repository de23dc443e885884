"""A Consul agent in memory, behind a real HTTP server on TCP or on a Unix socket.

It keeps to what the two kinds of agents document: the original's answers `/v1/lookup/name` and
takes a GET as a heartbeat; stock Consul answers `/v1/health/service/NAME`, wants a PUT, and counts
a service with a TTL check as failing until its first heartbeat.
"""

import contextlib
import http.server
import json
import socketserver
import threading
import urllib.parse


class ConsulAgent:
    """What the agent knows, and how it misbehaves when a test asks it to.

    Attributes:
        services: Registered services by id, as registered.
        passing: Ids of services whose check passes.
        requests: Every request, as (method, path).
        answer: If set, called instead of the agent with the request handler.
    """

    def __init__(self, stock=False):
        self.stock = stock
        self.services = {}
        self.passing = set()
        self.requests = []
        self.answer = None
        self._lock = threading.Lock()

    def count(self, method, path):
        with self._lock:
            return self.requests.count((method, path))

    def handle(self, handler):
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        with self._lock:
            self.requests.append((handler.command, handler.path))
        if self.answer is not None:
            self.answer(handler)
            return
        with self._lock:
            status, result = self._dispatch(handler.command, handler.path, body)
        respond(handler, status, json.dumps(result).encode())

    def _dispatch(self, method, path, body):
        url = urllib.parse.urlsplit(path)
        query = urllib.parse.parse_qs(url.query)
        if (method, url.path) == ("PUT", "/v1/agent/service/register"):
            service = json.loads(body)
            self.services[service["id"]] = service
            # The original's agents trust a service until its check fails.
            if not self.stock or "ttl" not in service["check"]:
                self.passing.add(service["id"])
            return 200, None
        if method == "PUT" and url.path.startswith("/v1/agent/service/deregister/"):
            service_id = urllib.parse.unquote(url.path.rpartition("/")[2])
            if service_id not in self.services:
                return 404, f"Unknown service ID {service_id}"
            del self.services[service_id]
            self.passing.discard(service_id)
            return 200, None
        if url.path.startswith("/v1/agent/check/pass/service:"):
            if method != ("PUT" if self.stock else "GET"):
                return 405, "Method not allowed"
            service_id = urllib.parse.unquote(url.path.partition("service:")[2])
            if service_id not in self.services:
                return 404, f"Unknown check ID service:{service_id}"
            self.passing.add(service_id)
            return 200, None
        if method == "GET" and not self.stock and url.path == "/v1/lookup/name":
            assert query["addr-family"] == ["dual-stack"]
            return 200, [
                {"Host": "127.0.0.1", "Port": service["port"], "Tags": _tag_dict(service)}
                for service in self._healthy(query["name"][0])
            ]
        if method == "GET" and self.stock and url.path.startswith("/v1/health/service/"):
            assert query["passing"] == ["true"]
            name = urllib.parse.unquote(url.path.rpartition("/")[2])
            return 200, [
                {
                    "Node": {"Node": "machine", "Address": "10.0.0.9"},
                    "Service": {
                        "ID": service["id"],
                        "Service": service["name"],
                        "Address": "",
                        "Port": service["port"],
                        "Tags": service.get("tags", []),
                    },
                    "Checks": [],
                }
                for service in self._healthy(name)
            ]
        return 404, f"no such endpoint: {method} {path}"

    def _healthy(self, name):
        return [
            service
            for service_id, service in self.services.items()
            if service["name"] == name and service_id in self.passing
        ]


def respond(handler, status, body):
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@contextlib.contextmanager
def serving(agent, unix_path=None):
    """Serves `agent` on the Unix socket `unix_path`, or on a free TCP port; yields the port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            agent.handle(self)

        do_PUT = do_GET

        def log_message(self, *args):
            pass

    class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        pass

    if unix_path is None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    else:
        server = UnixServer(str(unix_path), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield None if unix_path else server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _tag_dict(service):
    return dict(tag.split(":", 1) for tag in service.get("tags", []))
