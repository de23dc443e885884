"""A connection that can be cut: a proxy between members, in threads of the test."""

import contextlib
import socket
import threading


class Proxy:
    """Hands bytes on between whoever connects and `target`; a context.

    Args:
        target: Address that connections lead to.
    """

    def __init__(self, target):
        self.lead_to(target)
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._sockets = set()
        self._port = 0
        self._listener = self._bind()
        self._listen()

    @property
    def address(self):
        return f"127.0.0.1:{self._port}"

    @property
    def num_connections(self):
        with self._lock:
            return len(self._sockets) // 2

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._flows.set()
        self.cut()
        self._listener.close()

    def stall(self):
        """Lets nothing through, as a network does that loses everything; nobody is told."""
        self._flows.clear()

    def flow(self):
        """Goes on after `stall`."""
        self._flows.set()

    def cut(self):
        """Ends all connections, and refuses new ones."""
        # Or `accept` goes on until somebody comes.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        # Bound, though nobody listens: others would take the port for connections of theirs.
        self._listener = self._bind()
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for skt in sockets:
            _end(skt)

    def lead_to(self, target):
        """Has new connections lead elsewhere."""
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))

    def mend(self):
        """Accepts connections again, at the same address."""
        self._listen()

    def _bind(self):
        skt = socket.socket()
        skt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        skt.bind(("127.0.0.1", self._port))
        return skt

    def _listen(self):
        self._listener.listen()
        self._port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener):
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._sockets |= {client, server}
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                sink.sendall(data)
        for skt in (source, sink):
            _end(skt)
            with self._lock:
                self._sockets.discard(skt)


def _end(skt):
    with contextlib.suppress(OSError):
        skt.shutdown(socket.SHUT_RDWR)
    skt.close()
