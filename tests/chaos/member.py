"""A member of the job that is attacked: it counts, and writes down what it sends before it does.

Each batch goes into a file of the process, `<ledger>/<worker>-<pid>`, when its gradients are on
their way to the servers: one line with the time and the batch's numbers. A line is one write, so
that a process that is killed leaves whole lines, and at most one batch too many.
"""

import dataclasses
import functools
import json
import os
import time

import numpy as np
import tensorflow as tf
from support import counting

from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.training.distributed import plan

_LONG_PAUSE = 5
# Of the batch that was sent last.
_last_number = 0


@dataclasses.dataclass(kw_only=True)
class Settings(counting.Settings):
    """What the harness decides about a member.

    Attributes:
        ledger: Directory of the ledgers.
        hurry: File that has workers not pause between steps any more.
        begin_sec: When the attack begins.
        seconds: How long it lasts; the input is not to end before.
        code: What `describe_code` says. All members are forked from one process, so that they run
            the same code even if somebody edits the files meanwhile.
    """

    ledger: str = ""
    hurry: str = ""
    begin_sec: float = 0.0
    seconds: float = 0.0
    code: dict[str, str] = dataclasses.field(default_factory=dict)


class LedgerTask(counting.CountingTask):
    """Counts, with a ledger."""

    def create_input_fn(self, mode):
        settings = self.p.settings

        def input_fn():
            numbers = tf.data.Dataset.range(settings.num_batches * settings.batch_size)
            batches = numbers.batch(settings.batch_size, drop_remainder=True)
            return batches.map(lambda batch: {**counting.make_features(batch), "number": batch})

        return input_fn

    def create_model_fn(self):
        count = super().create_model_fn()

        def model_fn(features, mode, config):
            if "number" not in features:
                return count(features, mode, config)
            write = functools.partial(write_line, self.p.settings)
            written = tf.numpy_function(write, [features["number"]], tf.int64)
            # Whatever sends something is made in here.
            with tf.control_dependencies([written]):
                return count(features, mode, config)

        return model_fn


class PauseHook(tf.compat.v1.train.SessionRunHook):
    """Pauses between steps, until the harness wants the job to end.

    The pauses are longer where the input would end before the attack.
    """

    def __init__(self, settings):
        self._settings = settings

    def after_create_session(self, session, coord):
        print("session", flush=True)

    def after_run(self, run_context, run_values):
        settings = self._settings
        if os.path.exists(settings.hurry):
            return
        trained = _last_number / (settings.num_batches * settings.batch_size)
        passed = (time.time() - settings.begin_sec) / settings.seconds
        time.sleep(settings.step_sec if trained < passed else _LONG_PAUSE * settings.step_sec)


def write_line(settings, numbers):
    global _last_number
    _last_number = int(numbers[0])
    path = os.path.join(settings.ledger, f"{settings.index}-{os.getpid()}")
    line = f"{time.time():.6f} {' '.join(map(str, numbers.tolist()))}\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
    return np.int64(0)


def see_proxies(path, worker):
    """Has a worker find its own proxies in the places of servers and of the chief."""
    query = FileServiceDiscovery.query

    def query_proxies(self, name):
        found = query(self, name)
        try:
            with open(path) as file:
                instead = json.load(file).get(str(worker), {})
        except FileNotFoundError:
            instead = {}
        if name == "worker" and worker == 0:
            return found
        proxied = {0} if name == "worker" else set(found)
        return {
            index: instead.get(addr, addr)
            for index, addr in found.items()
            if index not in proxied or addr in instead
        }

    FileServiceDiscovery.query = query_proxies


def run_member(settings):
    """Takes part in the job; the entry of a process."""
    if settings.role == "worker":
        see_proxies(settings.proxies, settings.index)
    plan.describe_code = lambda: settings.code
    counting.CountingTask = LedgerTask
    counting.StepHook = PauseHook
    counting.run_member(dataclasses.replace(settings, proxies=None))
