"""Which thread calls a model."""

import threading
import time

import pytest

from monolith.serving.server.call_pool import CallPool

LONG_SEC = 60


@pytest.fixture
def pool():
    with CallPool(max_calls=4, takers=2) as pool:
        yield pool


class Calls:
    """Notes in which threads calls happen."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.happened = threading.Semaphore(0)

    def __call__(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.happened.release()

    def wait(self) -> None:
        assert self.happened.acquire(timeout=LONG_SEC)


def test_other_threads_leave_calls_to_the_pool(pool):
    call = Calls()
    pool.submit(call)
    call.wait()
    assert call.threads[0].startswith("model")


def test_a_thread_that_takes_requests_calls_itself(pool):
    call = Calls()
    with pool.take_requests() as make_calls:
        pool.submit(call)
        assert not call.threads  # The request comes first.
        make_calls()
        assert call.threads == [threading.current_thread().name]
        # It makes one call after a request; a second one would have to wait.
        pool.submit(call)
        pool.submit(call)
        make_calls()
        call.wait()
        call.wait()
        call.wait()
    assert sorted(name.startswith("model") for name in call.threads) == [False, False, True]
    # Afterwards the thread is like any other.
    pool.submit(call)
    call.wait()
    assert call.threads[-1].startswith("model")


def test_one_thread_is_left_to_take_requests(pool):
    here, there = Calls(), Calls()
    has_begun, may_end = threading.Event(), threading.Event()

    def be_slow() -> None:
        has_begun.set()
        assert may_end.wait(LONG_SEC)

    def take_a_slow_request() -> None:
        with pool.take_requests() as make_calls:
            pool.submit(be_slow)
            make_calls()

    other = threading.Thread(target=take_a_slow_request)
    other.start()
    assert has_begun.wait(LONG_SEC)
    with pool.take_requests() as make_calls:
        pool.submit(there)
        there.wait()
        assert there.threads[0].startswith("model")
        may_end.set()
        other.join()
        pool.submit(here)
        make_calls()
        assert here.threads == [threading.current_thread().name]


def test_a_call_may_ask_for_the_next(pool):
    left = [20_000]  # A recursion would not come to its end.

    def call() -> None:
        left[0] -= 1
        if left[0]:
            pool.submit(call)

    with pool.take_requests() as make_calls:
        pool.submit(call)
        make_calls()
    assert left == [0]


def test_no_more_calls_at_once_than_allowed():
    running, most = [0], [0]
    lock = threading.Lock()
    ended = threading.Semaphore(0)

    def call() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.005)
        with lock:
            running[0] -= 1
        ended.release()

    def take() -> None:
        with pool.take_requests() as make_calls:
            for _ in range(10):
                pool.submit(call)
                make_calls()

    for max_calls in (1, 3):
        most[0] = 0
        with CallPool(max_calls=max_calls, takers=4) as pool:
            threads = [threading.Thread(target=take) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for _ in range(40):
                assert ended.acquire(timeout=LONG_SEC)
        assert 1 <= most[0] <= max_calls


def test_a_call_that_fails_is_logged(pool, caplog):
    call = Calls()
    with pool.take_requests() as make_calls:
        pool.submit(lambda: 1 / 0)
        make_calls()
        assert "a call failed" in caplog.text
        pool.submit(call)
        make_calls()
    assert len(call.threads) == 1


def test_calls_later(pool):
    order = []
    done = threading.Event()
    pool.call_later(0.05, lambda: (order.append("late"), done.set()))
    pool.call_later(0.0, lambda: order.append("early"))
    pool.call_later(0.0, lambda: 1 / 0)  # Others still get their turn.
    assert done.wait(LONG_SEC)
    assert order == ["early", "late"]


def test_nothing_is_left_behind():
    before = set(threading.enumerate())
    with CallPool(max_calls=2) as pool:
        call = Calls()
        pool.submit(call)
        pool.call_later(LONG_SEC, call)
        call.wait()
    assert set(threading.enumerate()) == before
    assert len(call.threads) == 1
