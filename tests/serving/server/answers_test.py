"""Coroutines that wait for answers, with and without an event loop."""

import asyncio
import threading

import pytest

from monolith.serving.server.answers import Answer, Running


class Outcome:
    """What came of a coroutine."""

    def __init__(self) -> None:
        self.value = self.error = None
        self.thread = ""
        self.times = 0
        self.is_there = threading.Event()

    def __call__(self, value, error) -> None:
        self.value, self.error = value, error
        self.thread = threading.current_thread().name
        self.times += 1
        self.is_there.set()


async def add(*answers: Answer) -> int:
    return sum([await answer for answer in answers])


def test_an_answer_that_is_there_is_not_waited_for():
    answer, outcome = Answer(), Outcome()
    answer.give(3)
    Running(add(answer, answer), outcome).go_on()
    assert (outcome.value, outcome.error, outcome.times) == (6, None, 1)


def test_it_goes_on_in_the_thread_that_brings_the_answer():
    first, second, outcome = Answer(), Answer(), Outcome()
    Running(add(first, second), outcome).go_on()
    first.give(1)
    assert not outcome.is_there.is_set()
    thread = threading.Thread(target=second.fill, args=(lambda x: x + 1, 1), name="bringer")
    thread.start()
    thread.join()
    assert (outcome.value, outcome.thread) == (3, "bringer")


def test_an_error_is_raised_where_the_answer_is_awaited():
    answer, outcome = Answer(), Outcome()

    async def catch() -> str:
        try:
            await answer
        except KeyError:
            return "caught"
        return ""

    def fail() -> None:
        raise KeyError

    Running(catch(), outcome).go_on()
    answer.fill(fail)
    assert outcome.value == "caught"


def test_an_error_of_the_coroutine_is_told():
    answer, outcome = Answer(), Outcome()
    Running(add(answer), outcome).go_on()
    answer.fail(ValueError("no"))
    assert isinstance(outcome.error, ValueError)
    assert outcome.times == 1


@pytest.mark.parametrize("is_waiting", [True, False])
def test_cancelling(is_waiting):
    answer, outcome = Answer(), Outcome()
    cleaned = []

    async def wait() -> None:
        try:
            await answer
        finally:
            cleaned.append(1)

    running = Running(wait(), outcome)
    if is_waiting:
        running.go_on()
    running.cancel()
    running.go_on() if not is_waiting else None
    assert isinstance(outcome.error, asyncio.CancelledError)
    assert cleaned == [1]
    # Who comes late is not told off.
    answer.give(1)
    answer.fail(ValueError())
    answer.fill(lambda: 1)
    running.cancel()
    assert outcome.times == 1


def test_what_nobody_waits_for_is_not_computed():
    answer = Answer()
    answer.cancel()
    answer.fill(pytest.fail)


def test_in_an_event_loop():
    async def run() -> int:
        answer, late = Answer(), Answer()
        answer.give(1)
        threading.Timer(0.01, late.give, [2]).start()
        return await asyncio.wait_for(add(answer, late), 60)

    assert asyncio.run(run()) == 3


def test_cancelling_in_an_event_loop_reaches_the_answer():
    async def run() -> bool:
        answer = Answer()
        task = asyncio.create_task(add(answer))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return answer.cancelled()

    assert asyncio.run(run())
