"""Merging requests."""

import asyncio
import threading

import numpy as np
import pytest

from monolith.serving.server import status
from monolith.serving.server.batching import ENOUGH_ROWS, Batcher
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import Batching


class Gate:
    """A model that doubles its input, and runs only when it is let."""

    def __init__(self) -> None:
        self.calls: list[list[float]] = []
        self.started = threading.Semaphore(0)
        self.let = threading.Semaphore(0)

    def __call__(self, inputs):
        self.calls.append(inputs[0].tolist())
        self.started.release()
        assert self.let.acquire(timeout=30)
        if np.isnan(inputs[0]).any():
            raise status.invalid("not a number")
        return [inputs[0] * 2]

    async def wait_until_started(self) -> None:
        await asyncio.to_thread(self.started.acquire, timeout=30)


@pytest.fixture
def pool():
    with CallPool(max_calls=8) as pool:
        yield pool


def rows(*values: float) -> np.ndarray:
    return np.array(values)


async def settle() -> None:
    """Lets all tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_requests_that_arrive_while_the_model_is_busy_are_merged(pool):
    async def run():
        gate = Gate()
        batcher = Batcher(gate, Batching(max_delay_ms=0, parallel=1), pool)
        first = asyncio.create_task(batcher.run([rows(1)], 1))
        await gate.wait_until_started()
        others = [
            asyncio.create_task(batcher.run([rows(2, 3)], 2)),
            asyncio.create_task(batcher.run([rows(4)], 1)),
        ]
        await settle()
        gate.let.release()
        gate.let.release()
        answers = [(await task)[0].tolist() for task in (first, *others)]
        return gate.calls, answers

    calls, answers = asyncio.run(run())
    assert calls == [[1], [2, 3, 4]]
    assert answers == [[2], [4, 6], [8]]


def test_a_lone_request_does_not_wait(pool):
    async def run():
        gate = Gate()
        gate.let.release(10)
        # Nobody would wait for a minute.
        batcher = Batcher(gate, Batching(max_delay_ms=59_000, parallel=1), pool)
        for number in range(10):
            assert (await batcher.run([rows(number)], 1))[0].tolist() == [2 * number]
        return gate.calls

    assert asyncio.run(run()) == [[number] for number in range(10)]


def test_a_request_waits_for_those_that_came_with_it_before(pool):
    async def run():
        gate = Gate()
        batcher = Batcher(gate, Batching(max_delay_ms=30_000, parallel=1), pool)
        tasks = [asyncio.create_task(batcher.run([rows(1)], 1))]
        await gate.wait_until_started()
        tasks.append(asyncio.create_task(batcher.run([rows(2)], 1)))
        await settle()
        gate.let.release(10)
        await tasks[0]
        # Two were there, so the one that is left waits for another.
        await settle()
        calls_before = list(gate.calls)
        await asyncio.gather(tasks[1], batcher.run([rows(3)], 1))
        return calls_before, gate.calls

    assert asyncio.run(run()) == ([[1]], [[1], [2, 3]])


def test_waiting_is_bounded(pool):
    async def run():
        gate = Gate()
        gate.let.release(100)
        batcher = Batcher(gate, Batching(max_delay_ms=20, parallel=1), pool)
        await asyncio.gather(*(batcher.run([rows(n)], 1) for n in range(4)))
        # Four came before; now there is one.
        answer = await asyncio.wait_for(batcher.run([rows(7)], 1), 10)
        return answer[0].tolist()

    assert asyncio.run(run()) == [14]


def test_rows_of_a_call_are_limited(pool):
    async def run():
        gate = Gate()
        batcher = Batcher(gate, Batching(max_rows=4, max_delay_ms=0, parallel=1), pool)
        tasks = [asyncio.create_task(batcher.run([rows(0)], 1))]
        await gate.wait_until_started()
        tasks += [asyncio.create_task(batcher.run([rows(n, n, n)], 3)) for n in range(1, 4)]
        tasks.append(asyncio.create_task(batcher.run([rows(9)], 1)))
        await settle()
        gate.let.release(10)
        return gate.calls, [len((await task)[0]) for task in tasks]

    calls, sizes = asyncio.run(run())
    assert [len(call) for call in calls] == [1, 3, 3, 4]
    assert sizes == [1, 3, 3, 3, 1]


def test_a_large_request_runs_alone(pool):
    async def run():
        gate = Gate()
        gate.let.release(1)
        batcher = Batcher(gate, Batching(max_rows=2), pool)
        return (await batcher.run([rows(1, 2, 3)], 3))[0].tolist()

    assert asyncio.run(run()) == [2, 4, 6]


def test_a_request_with_enough_rows_waits_for_nobody(pool):
    async def run():
        gate = Gate()
        batcher = Batcher(gate, Batching(max_rows=4096, parallel=1), pool)
        tasks = [asyncio.create_task(batcher.run([rows(1)], 1))]
        await gate.wait_until_started()
        tasks.append(asyncio.create_task(batcher.run([np.zeros(ENOUGH_ROWS)], ENOUGH_ROWS)))
        # Though the model is busy, and allowed to run one merged request at once only.
        await gate.wait_until_started()
        gate.let.release(2)
        return [len((await task)[0]) for task in tasks]

    assert asyncio.run(run()) == [1, ENOUGH_ROWS]


def test_one_bad_request_does_not_spoil_the_others(pool):
    async def run():
        gate = Gate()
        batcher = Batcher(gate, Batching(max_delay_ms=0, parallel=1), pool)
        first = asyncio.create_task(batcher.run([rows(0)], 1))
        await gate.wait_until_started()
        tasks = [asyncio.create_task(batcher.run([rows(n)], 1)) for n in (1, np.nan, 3)]
        await settle()
        gate.let.release(10)
        await first
        return await asyncio.gather(*tasks, return_exceptions=True)

    good, bad, also_good = asyncio.run(run())
    assert (good[0].tolist(), also_good[0].tolist()) == ([2], [6])
    assert isinstance(bad, status.RequestError)


def test_inputs_of_different_widths_are_not_merged_but_answered(pool):
    async def run():
        gate = Gate()
        batcher = Batcher(gate, Batching(max_delay_ms=0, parallel=1), pool)
        tasks = [asyncio.create_task(batcher.run([np.zeros([1, 1])], 1))]
        await gate.wait_until_started()
        tasks += [asyncio.create_task(batcher.run([np.zeros([1, n])], 1)) for n in (2, 3)]
        await settle()
        gate.let.release(10)
        return [(await task)[0].shape for task in tasks]

    assert asyncio.run(run()) == [(1, 1), (1, 2), (1, 3)]


def test_outputs_without_rows_end_merging(pool):
    async def run():
        started, let = threading.Event(), threading.Event()
        calls = []

        def total(inputs):
            calls.append(len(inputs[0]))
            started.set()
            assert let.wait(30)
            return [inputs[0].sum()[None]]

        batcher = Batcher(total, Batching(max_delay_ms=0, parallel=1), pool)
        tasks = [asyncio.create_task(batcher.run([rows(1)], 1))]
        await asyncio.to_thread(started.wait, 30)
        tasks += [asyncio.create_task(batcher.run([rows(n, n)], 2)) for n in (2, 3)]
        await settle()
        let.set()
        answers = [float((await task)[0][0]) for task in tasks]
        await batcher.run([rows(1)], 1)
        return answers, calls

    answers, calls = asyncio.run(run())
    assert answers == [1, 4, 6]
    # The merged call was of no use.
    assert calls == [1, 4, 2, 2, 1]


def test_a_request_whose_deadline_has_passed_is_not_run(pool):
    now = [0.0]

    async def run():
        gate = Gate()
        batcher = Batcher(gate, Batching(max_delay_ms=0, parallel=1), pool, clock=lambda: now[0])
        first = asyncio.create_task(batcher.run([rows(1)], 1))
        await gate.wait_until_started()
        late = asyncio.create_task(batcher.run([rows(2)], 1, deadline_sec=5.0))
        in_time = asyncio.create_task(batcher.run([rows(3)], 1, deadline_sec=50.0))
        await settle()
        now[0] = 10.0
        gate.let.release(10)
        await first
        with pytest.raises(status.RequestError) as raised:
            await late
        await in_time
        return gate.calls, raised.value.code

    calls, code = asyncio.run(run())
    assert calls == [[1], [3]]
    assert code is status.Code.DEADLINE_EXCEEDED


def test_too_many_waiting_requests_are_refused(pool):
    async def run():
        gate = Gate()
        batcher = Batcher(gate, Batching(max_delay_ms=0, parallel=1, max_waiting=1), pool)
        tasks = [asyncio.create_task(batcher.run([rows(1)], 1))]
        await gate.wait_until_started()
        tasks.append(asyncio.create_task(batcher.run([rows(2)], 1)))
        await settle()
        with pytest.raises(status.RequestError, match="1 requests wait") as raised:
            await batcher.run([rows(3)], 1)
        gate.let.release(10)
        await asyncio.gather(*tasks)
        return raised.value.code

    assert asyncio.run(run()) is status.Code.RESOURCE_EXHAUSTED


def test_a_client_that_has_gone_is_passed_over(pool):
    async def run():
        gate = Gate()
        batcher = Batcher(gate, Batching(max_delay_ms=0, parallel=1), pool)
        first = asyncio.create_task(batcher.run([rows(1)], 1))
        await gate.wait_until_started()
        gone, stays = (asyncio.create_task(batcher.run([rows(n)], 1)) for n in (2, 3))
        await settle()
        gone.cancel()
        first.cancel()
        await settle()
        gate.let.release(10)
        answer = (await stays)[0].tolist()
        return gate.calls, answer

    assert asyncio.run(run()) == ([[1], [3]], [6])


def test_calls_are_observed(pool):
    observed = []

    async def run():
        gate = Gate()
        gate.let.release(10)
        batcher = Batcher(
            gate, Batching(), pool, observe=lambda *what: observed.append(what), clock=lambda: 3.0
        )
        await batcher.run([rows(1, 2)], 2)

    asyncio.run(run())
    assert observed == [(1, 2, 0.0)]


def test_many_clients_get_their_own_answers(pool):
    async def run():
        def double(inputs):
            return [inputs[0] * 2, inputs[0] + 1]

        batcher = Batcher(double, Batching(max_rows=16, max_delay_ms=1, parallel=2), pool)

        async def client(number: int) -> None:
            for i in range(30):
                values = np.arange(1 + (number + i) % 5) + 100.0 * number + i
                twice, plus_one = await batcher.run([values], len(values))
                np.testing.assert_array_equal(twice, values * 2)
                np.testing.assert_array_equal(plus_one, values + 1)

        await asyncio.wait_for(asyncio.gather(*map(client, range(20))), 60)

    asyncio.run(run())
