"""Sends rows that training changes to all servers of a model, every few seconds.

Each round collects what has changed, for all servers; then each server gets it from a thread of its
own, so one that is slow, stopped or dead holds up neither training nor the others. What it has not
confirmed stays with the table, as ids; rows are read when they are sent.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith.core import metrics
from monolith.native import lookup_counts, ops
from monolith.serving.sync.client_ops import ASSIGN_SIGNATURE
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.sender import RowSender
from monolith.serving.sync.targets import SyncBackend, Target, find_targets

logger = logging.getLogger(__name__)

_FLUSH_POLL_SEC = 0.05


class SyncSteps:
    """The ops of sync clients in the default graph, and who runs them. Thread-safe.

    Args:
        clients: Handles of the clients.
        run: Runs fetches with feeds, as `Session.run` does.
    """

    def __init__(self, clients: Sequence[tf.Tensor], run: Callable[..., Any] | None = None) -> None:
        self.run = run
        self._targets = tf.compat.v1.placeholder(tf.string, [None], name="sync_targets")
        self._arrived = tf.compat.v1.placeholder(tf.bool, [None], name="sync_arrived")
        self._over = tf.compat.v1.placeholder(tf.bool, [None], name="sync_start_over")
        self._target = tf.compat.v1.placeholder(tf.string, [1], name="sync_target")
        self._ids = tf.compat.v1.placeholder(tf.int64, [None], name="sync_ids")
        self._place = tf.compat.v1.placeholder(tf.int64, [], name="sync_next_place")
        self._known = tf.compat.v1.placeholder(tf.bool, [], name="sync_is_known")
        self._gathers, self._settles, self._compares = [], [], []
        self._takes: dict[bool, list[Any]] = {False: [], True: []}
        for client in clients:
            with tf.device(client.device):
                self._gathers.append(ops.monolith_parameter_sync_gather(client, self._targets))
                for packed, takes in self._takes.items():
                    takes.append(
                        ops.monolith_parameter_sync_take(
                            client, self._targets, ASSIGN_SIGNATURE, packed=packed, lists=True
                        )
                    )
                self._settles.append(
                    ops.monolith_parameter_sync_settle(
                        client, self._targets, self._arrived, self._over
                    )
                )
                self._compares.append(
                    ops.monolith_parameter_sync_compare(
                        client, self._target, self._ids, self._place, self._known
                    )
                )

    def gather(self, number: int, targets: Sequence[str]) -> dict[str, tuple[int, bool]]:
        """Collects what has changed in the tables of a client.

        Returns:
            By server: how many ids are outstanding, and whether it has everything.
        """
        feeds = {self._targets: list(targets)}
        outstanding, caught_up = self._call(self._gathers[number], feeds)
        return {name: (int(outstanding[i]), bool(caught_up[i])) for i, name in enumerate(targets)}

    def take(self, number: int, target: str, packed: bool) -> list[tuple[str, bytes, int]]:
        """Returns the next calls for a server: the function, the request, and its number of ids.

        Args:
            number: Which of the clients.
            target: The server.
            packed: Whether rows are as they are served; if not, they are floats.
        """
        taken = self._call(self._takes[packed][number], {self._targets: [target]})
        return [
            (signature.decode(), request, int(num_ids))
            for signature, request, num_ids in zip(
                taken.signatures, taken.requests, taken.num_ids, strict=True
            )
        ]

    def settle(self, number: int, target: str, has_arrived: bool, start_over: bool) -> None:
        """Says whether they have arrived, and whether the server needs everything."""
        feeds = {self._targets: [target], self._arrived: [has_arrived], self._over: [start_over]}
        self._call(self._settles[number], feeds)

    def compare(
        self, number: int, target: str, ids: np.ndarray, next_place: int, is_known: bool
    ) -> None:
        """Hands over which ids a server has, so that it loses those without a row here.

        Args:
            number: Which of the clients.
            target: The server.
            ids: Some of its ids, of the table that it was asked for.
            next_place: Where they go on, -1 if there are no more.
            is_known: Whether it knows how to answer.
        """
        feeds = {
            self._target: [target],
            self._ids: ids,
            self._place: next_place,
            self._known: is_known,
        }
        self._call(self._compares[number], feeds)

    def _call(self, fetches: Any, feeds: dict[Any, Any]) -> Any:
        assert self.run is not None, "nobody runs the graph yet"
        return self.run(fetches, feeds)


class RowPusher:
    """Keeps the servers of one part of a model up to date, until it is closed.

    Args:
        steps: The ops, with somebody who runs them.
        number: Which of the clients; also the number of the part, `ps_<number>`, unless `part` is
            given.
        backend: Knows the servers.
        config: How often, and how.
        part: The name of the part.
        clock: Returns a time in seconds that never goes back.
    """

    def __init__(
        self,
        steps: SyncSteps,
        number: int,
        backend: SyncBackend,
        config: SyncConfig,
        part: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = steps
        self._number = number
        self._backend = backend
        self._config = config
        self._part = part or f"ps_{number}"
        self._clock = clock
        self._metrics = metrics.get_cli(metrics.get_metric_prefix())
        self._hit_rate = lookup_counts.HitRate()
        self._senders: dict[str, RowSender] = {}
        self._problem = ""
        self._late: list[str] = []  # Servers that did not have everything in the last round.
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"sync_{self._part}", daemon=True)

    def start(self) -> "RowPusher":
        """Begins the rounds."""
        self._thread.start()
        return self

    def get_lags(self) -> dict[str, float]:
        """Returns, by server, how many seconds ago the training was at what the server has."""
        now_sec = self._clock()
        return {
            name: now_sec - sender.fresh_as_of_sec for name, sender in list(self._senders.items())
        }

    def close(self, flush_sec: float | None = None) -> bool:
        """Sends the last changes, waits for servers to get them, and ends.

        Args:
            flush_sec: How long to wait; None: as the config says. 0: nothing more is sent, such as
                when nobody can read rows any more.

        Returns:
            Whether all servers that are known have everything.
        """
        self._stopped.set()
        self._thread.join()
        flush_sec = self._config.flush_sec if flush_sec is None else flush_sec
        is_done = flush_sec != 0 and self._send_last(flush_sec)
        for sender in self._senders.values():
            sender.close()
        if not is_done and flush_sec != 0:
            late = self._late
            logger.warning(
                "%s of this training ends before all servers have its last rows: %s; they get the "
                "rest from the next export, or from the next training",
                self._part,
                ", ".join(late) or self._problem or "none is known",
            )
        return is_done

    def _run(self) -> None:
        next_sec = self._clock()
        while True:
            self._round()
            # From beginning to beginning, so that a round's own time does not add to the lag.
            next_sec = max(next_sec + self._config.interval_sec, self._clock())
            if self._stopped.wait(next_sec - self._clock()):
                return

    def _send_last(self, flush_sec: float) -> bool:
        deadline_sec = self._clock() + flush_sec
        is_done = self._round()
        while not is_done and self._clock() < deadline_sec:
            time.sleep(_FLUSH_POLL_SEC)
            is_done = self._round()
        return is_done

    def _round(self) -> bool:
        """Collects changes and wakes who sends them; returns whether nothing is outstanding."""
        now_sec = self._clock()
        try:
            targets = {target.name: target for target in find_targets(self._backend, self._part)}
            progress = self._steps.gather(self._number, list(targets))
        except Exception as e:  # noqa: BLE001 - training goes on, and the next round may succeed
            problem = str(e).partition("\n")[0]
            if problem != self._problem:
                logger.warning("rows of %s are not sent at the moment: %s", self._part, problem)
            self._problem = problem
            return False
        for name in [name for name in self._senders if name not in targets]:
            self._senders.pop(name).close()
        self._problem = self._connect(targets)
        for name, sender in self._senders.items():
            sender.wake(now_sec)
            outstanding, _ = progress[name]
            tags = {"target": targets[name].address, "model_name": targets[name].model}
            lag_sec = now_sec - sender.fresh_as_of_sec
            self._metrics.emit_store("parameter_sync_lag", lag_sec, tags)
            self._metrics.emit_store("parameter_sync_outstanding", outstanding, tags)
        hit_rate = self._hit_rate.take()
        if hit_rate is not None:
            tags = {"part": self._part, "name": "all"}  # Lookups are not counted by table.
            self._metrics.emit_store("lookup_fid_hit_rate", hit_rate, tags)
        self._late = [
            name
            for name, (_, is_caught_up) in progress.items()
            if not is_caught_up or name not in self._senders
        ]
        return not self._late

    def _connect(self, targets: Mapping[str, Target]) -> str:
        """Gives each server a sender; returns what keeps one from having it, said once."""
        problem = ""
        for name in [name for name in targets if name not in self._senders]:
            try:
                self._senders[name] = RowSender(
                    self._steps, self._number, targets[name], self._config, self._clock
                )
            except Exception as e:  # noqa: BLE001 - such as a token that cannot be read just now
                problem = str(e).partition("\n")[0]
                if problem != self._problem:
                    logger.warning("%s gets no rows at the moment: %s", name, problem)
                    self._problem = problem
                continue
            logger.info("%s gets the rows of %s", name, self._part)
        return problem
