"""What a plain TCP connection to another process takes for a message, for comparison."""

import socket
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

_SMALL, _LARGE = 64, 1 << 20
_REPEATS = 200
# Answers each request, a number of bytes in 8 digits, with so many bytes.
_PROGRAM = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
answer = bytes(1 << 20)
while request := connection.recv(8, socket.MSG_WAITALL):
    connection.sendall(memoryview(answer)[: int(request)])
"""


class Wire(NamedTuple):
    """Microseconds of any message, and of each byte of it."""

    message_us: float
    byte_us: float

    def predict(self, messages: int, num_bytes: int) -> float:
        return messages * self.message_us + num_bytes * self.byte_us


def measure() -> Wire:
    """Asks another process for small and for large messages."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        process = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(port)])
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            small, large = (_time_answers(connection, size) for size in (_SMALL, _LARGE))
        process.wait()
    return Wire(small, max(0.0, (large - small) / (_LARGE - _SMALL)))


def _time_answers(connection: socket.socket, size: int) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        connection.sendall(b"%08d" % size)
        left = size
        while left:
            left -= len(connection.recv(left))
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6
