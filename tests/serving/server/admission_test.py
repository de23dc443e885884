"""How many requests are answered at once."""

import asyncio

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
    async def run():
        admission = Admission(limit=2)
        let_go = asyncio.Event()

        async def request() -> None:
            with admission.admit():
                await let_go.wait()

        inside = asyncio.create_task(request())
        await asyncio.sleep(0)
        closing = asyncio.create_task(admission.close(grace_sec=60))
        await asyncio.sleep(0)
        with pytest.raises(status.RequestError, match="stopping") as raised:
            admission.admit().__enter__()
        assert raised.value.code is status.Code.UNAVAILABLE
        assert not closing.done()
        let_go.set()
        await inside
        return await closing

    assert asyncio.run(run()) is True


def test_closing_does_not_wait_for_ever():
    async def run():
        admission = Admission(limit=1)
        with admission.admit():
            return await admission.close(grace_sec=0.01)

    assert asyncio.run(run()) is False


def test_an_error_inside_lets_go():
    admission = Admission(limit=1)
    with pytest.raises(KeyError), admission.admit():
        raise KeyError
    assert admission.in_flight == 0
