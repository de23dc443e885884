"""A training whose stream has nothing to say: it is at rest, has a position, and can be ended.

Also covers what monolith/training/hooks/input_position.py does for such streams.
"""

import json
import logging
import threading
import time

import pytest
import tensorflow as tf

import monolith as ml
from monolith.data import seekable
from monolith.tensor import look_ahead, prefetch
from monolith.training.hooks import input_position, stream_wait
from monolith.training.hooks.checkpoint_barrier import WorkerCkptHelper
from monolith.training.hooks.input_position import Found

v1 = tf.compat.v1

pytestmark = [pytest.mark.usefixtures("graph_mode"), pytest.mark.timeout(120)]

SCHEMA = [ml.data.Ids("id")]


class Log:
    """A stream of batches with one number each."""

    def __init__(self, directory):
        self._path = directory / "log.jsonl"
        self._pattern = str(directory / "*.jsonl")
        self.write([])

    def write(self, numbers):
        with open(self._path, "a") as file:
            file.writelines(json.dumps({"id": number}) + "\n" for number in numbers)

    def read(self):
        stream = ml.data.tail(self._pattern, SCHEMA, batch_size=1, max_wait_sec=0)
        return stream().map(lambda batch: batch["id"].values)


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


class Initialize(v1.train.SessionRunHook):
    def __init__(self, iterator, path=None):
        self._iterator = iterator
        self._path = path
        self.position = None
        self.found = None

    def after_create_session(self, session, coord):
        session.run(self._iterator.initializer)
        if self._path is not None:
            self.found = self.position.restore(session, self._path)


class Training:
    """Reads a stream ahead, as jobs with parameter servers do."""

    def __init__(self, log, path=None, capacity=1):
        self.num_rests = 0
        self.is_stopping = False
        self.on_rest = lambda session: None
        iterator = v1.data.make_initializable_iterator(log.read())
        self.batch, queue = prefetch.enqueue_dicts_with_queue_return(
            iterator.get_next(), look_ahead.get_queue_capacity(capacity)
        )
        self.fill = look_ahead.LookAheadHook(queue, capacity)
        self._initialize = Initialize(iterator, path)
        self.position = self._initialize.position = input_position.InputPosition()
        wait = stream_wait.StreamWaitHook(
            self.fill,
            seekable.get_streams(),
            self._rest,
            lambda: self.is_stopping,
            rest_sec=0.05,
        )
        self.hooks = [wait, self._initialize, self.fill]

    @property
    def found(self):
        return self._initialize.found

    def run(self, session):
        return int(session.run(self.batch)[0])

    def _rest(self, session):
        self.num_rests += 1
        self.on_rest(session)


def read_on(log, path, count):
    """Goes to a position; returns what it was, and the next batches."""
    with tf.Graph().as_default():
        training = Training(log, path)
        with v1.train.SingularMonitoredSession(hooks=training.hooks) as session:
            return training.found, [training.run(session) for _ in range(count)]


def test_a_stream_that_is_waited_for_has_a_position(log, tmp_path):
    log.write(range(3))
    training = Training(log)
    path = str(tmp_path / "position")
    with v1.train.SingularMonitoredSession(hooks=training.hooks) as session:
        assert [training.run(session) for _ in range(3)] == [0, 1, 2]
        start_sec = time.monotonic()
        assert training.position.save(session.raw_session(), path)
        # Not a minute, as for a read that is only slow.
        assert time.monotonic() - start_sec < 30
    log.write([3, 4])
    assert read_on(log, path, 2) == (Found.UNFINISHED, [3, 4])


@pytest.mark.parametrize("capacity", [1, 3])
def test_batches_in_the_queue_come_before_the_one_that_is_waited_for(log, tmp_path, capacity):
    log.write(range(2))
    training = Training(log, capacity=capacity)
    path = str(tmp_path / "position")
    with v1.train.SingularMonitoredSession(hooks=training.hooks) as session:
        assert training.run(session) == 0
        while not session.raw_session().run(training.fill._size):
            time.sleep(0.01)
        assert training.position.save(session.raw_session(), path)
        assert training.run(session) == 1
    log.write([2])
    assert read_on(log, path, 2) == (Found.UNFINISHED, [1, 2])


def test_no_batch_is_missing_wherever_a_save_meets_it(log, tmp_path):
    """Positions are saved all the time while batches come: each goes on right behind its step."""
    training = Training(log, capacity=2)
    numbers = 20

    def write():
        for number in range(numbers):
            log.write([number])
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    with v1.train.SingularMonitoredSession(hooks=training.hooks) as session:
        writer.start()
        seen = []
        while len(seen) < numbers:
            seen.append(training.run(session))
            training.position.save(session.raw_session(), str(tmp_path / f"behind-{len(seen)}"))
        writer.join()
    assert sorted(seen) == list(range(numbers))
    log.write([numbers])
    for count in (1, 7, 19):
        missing = sorted(set(range(numbers + 1)) - set(seen[:count]))
        found, rest = read_on(log, str(tmp_path / f"behind-{count}"), len(missing))
        assert found is Found.UNFINISHED
        assert sorted(rest) == missing


def test_who_waits_is_between_two_steps(log):
    log.write([0])
    training = Training(log)
    with v1.train.SingularMonitoredSession(hooks=training.hooks) as session:
        assert training.run(session) == 0

        def write(session):
            if training.num_rests == 3:
                log.write([1])

        training.on_rest = write
        assert training.run(session) == 1
    assert training.num_rests >= 3


def test_who_waits_can_be_told_to_end(log):
    log.write([0])
    training = Training(log)
    with v1.train.MonitoredSession(hooks=training.hooks) as session:
        training.run(session)
        training.is_stopping = True
        start_sec = time.monotonic()
        training.run(session)
        raise AssertionError("there was no batch")  # The session has ended, as with its input.
    # Nor does anybody wait for the thread that waits for the stream; that would be two minutes.
    assert time.monotonic() - start_sec < 30


def test_an_error_of_another_hook_is_not_waited_for(log):
    log.write([0])
    training = Training(log)

    def fail(session):
        raise ValueError("a server is gone")

    training.on_rest = fail
    start_sec = time.monotonic()

    def train():
        with v1.train.MonitoredSession(hooks=training.hooks) as session:
            training.run(session)
            training.run(session)

    with pytest.raises(ValueError, match="a server is gone"):
        train()
    assert time.monotonic() - start_sec < 60


class TestCheckpoints:
    """Of a job whose checkpoint has no position, though an older one has."""

    @staticmethod
    def save(model_dir, log, step, is_told=True):
        """Trains one step and saves as the chief does."""
        with tf.Graph().as_default():
            training = Training(log)
            helper = WorkerCkptHelper(str(model_dir), 0, with_model=True)
            listener = helper.create_saver_listener(str(model_dir / "model.ckpt"))
            restore = helper.create_restorer_hook()
            if not is_told:
                helper._position._can_be_saved = False
            hooks = [training.hooks[0], training.hooks[1], restore, training.fill]
            with v1.train.SingularMonitoredSession(hooks=hooks) as session:
                number = training.run(session)
                listener.before_save(session.raw_session(), step)
        (model_dir / f"model.ckpt-{step}.index").touch()
        names = [f"model.ckpt-{s}" for s in range(1, step + 1)]
        listed = "".join(f'all_model_checkpoint_paths: "{name}"\n' for name in names)
        (model_dir / "checkpoint").write_text(f'model_checkpoint_path: "{names[-1]}"\n{listed}')
        return number

    def test_it_takes_the_position_of_the_one_before(self, tmp_path, log):
        log.write(range(9))
        assert self.save(tmp_path, log, 1) == 0
        assert self.save(tmp_path, log, 2, is_told=False) == 1
        assert self.save(tmp_path, log, 3) == 1

    def test_one_without_any_is_not_read_from_the_start_in_silence(self, tmp_path, log, caplog):
        log.write(range(9))
        for step in (1, 2):
            self.save(tmp_path, log, step)
        (tmp_path / "model.ckpt-2.assets" / "input_worker_0").unlink()
        with caplog.at_level(logging.WARNING):
            assert self.save(tmp_path, log, 3) == 1
        assert "model.ckpt-2 has no position of the input of worker 0: what was read" in caplog.text
        for step in (1, 3):
            (tmp_path / f"model.ckpt-{step}.assets" / "input_worker_0").unlink()
        with caplog.at_level(logging.WARNING):
            assert self.save(tmp_path, log, 4) == 0
        assert "worker 0 reads its input from the beginning" in caplog.text
