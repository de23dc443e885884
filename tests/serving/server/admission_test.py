"""How many requests are answered at once."""

import threading
import time

import pytest

from monolith.serving.server import status
from monolith.serving.server.admission import Admission


def test_no_more_than_the_limit():
    admission = Admission(limit=2)
    with admission.admit(), admission.admit():
        assert admission.in_flight == 2
        with pytest.raises(status.RequestError, match="which is the limit") as raised:
            admission.admit().__enter__()
        assert raised.value.code is status.Code.RESOURCE_EXHAUSTED
    assert admission.in_flight == 0
    with admission.admit():
        pass


def test_closing_waits_for_those_inside():
    admission = Admission(limit=2)
    outcome = []
    closing = threading.Thread(target=lambda: outcome.append(admission.close(grace_sec=60)))
    with admission.admit():
        closing.start()
        while not admission.is_closed:
            time.sleep(0.001)
        with pytest.raises(status.RequestError, match="stopping") as raised:
            admission.admit().__enter__()
        assert raised.value.code is status.Code.UNAVAILABLE
        assert not outcome
    closing.join(60)
    assert outcome == [True]


def test_closing_does_not_wait_for_ever():
    admission = Admission(limit=1)
    with admission.admit():
        assert not admission.close(grace_sec=0.01)


def test_many_threads_are_counted():
    admission = Admission(limit=1000)

    def enter_and_leave() -> None:
        for _ in range(1000):
            with admission.admit():
                pass

    threads = [threading.Thread(target=enter_and_leave) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert admission.in_flight == 0


def test_an_error_inside_lets_go():
    admission = Admission(limit=1)
    with pytest.raises(KeyError), admission.admit():
        raise KeyError
    assert admission.in_flight == 0
