"""The contenders' processes, seen from the one that asks them."""

import json
import pathlib
import subprocess
from typing import Any

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


class WorkerFailed(Exception):
    """A contender could not do what it was asked; the message says where to read more."""


class Member:
    """One contender's process."""

    def __init__(
        self,
        name: str,
        threads: int,
        python: str,
        logs: pathlib.Path,
        environment: dict[str, str],
        *,
        module: str = "benchmarks.table.worker",
        log_name: str | None = None,
        checkout: pathlib.Path = REPOSITORY,
    ) -> None:
        self.name = name
        self.threads = threads
        logs.mkdir(parents=True, exist_ok=True)
        self._log = logs / f"{(log_name or name).replace(' ', '_')}-{threads}.log"
        arguments = ["--contender", name, "--threads", str(threads)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=checkout,
                env=environment,
                text=True,
            )

    def send(self, command: str, **arguments: Any) -> None:
        try:
            print(json.dumps({"do": command, **arguments}), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise WorkerFailed(f"{self.name} has ended; see {self._log}.") from None

    def receive(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(
                f"{self.name} ended with code {self._process.wait()}; see {self._log}."
            )
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self.name}: {answer['error']} (see {self._log})")
        return answer["ok"]

    def ask(self, command: str, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.receive()

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
