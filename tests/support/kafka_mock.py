"""A Kafka cluster for tests: librdkafka's own mock, in a process that nobody kills.

The process reads lines from its standard input: `topic number number ...` produces a message for
each number, as JSON, and answers with a line once all are acknowledged; `raw topic hex` produces
these bytes. It ends with its standard input.
"""

import contextlib
import json
import pathlib
import subprocess
import sys


def find_clients():
    """Returns the main thread of each client in this process; a client lives as long as that."""
    found = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # The thread may have ended.
            if (task / "comm").read_text().strip() == "rdk:main":
                found.add(task.name)
    return found


class MockCluster:
    """Use as a context manager; `servers` is its address."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.servers = self._process.stdout.readline().strip()
        assert self.servers, "The mock cluster did not start."
        return self

    def __exit__(self, *unused):
        if self._process.poll() is None:
            self._process.stdin.close()
            self._process.wait(60)
        self._process.stdout.close()

    def produce(self, topic, numbers):
        self._ask(" ".join([topic, *map(str, numbers)]))

    def produce_raw(self, topic, content):
        self._ask(f"raw {topic} {content.hex()}")

    def kill(self):
        """Lets the brokers go away."""
        self._process.kill()
        self._process.wait(60)

    def _ask(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


def main():
    from confluent_kafka import Producer

    producer = Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "ignored:1"})
    brokers = producer.list_topics(timeout=60).brokers.values()
    print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
    for line in sys.stdin:
        topic, *words = line.split()
        if topic == "raw":
            producer.produce(words[0], bytes.fromhex("".join(words[1:])))
        else:
            for word in words:
                producer.produce(topic, json.dumps({"id": int(word)}), key=word)
        producer.flush(60)
        print("done", flush=True)


if __name__ == "__main__":
    main()
