"""A few odd requests; `make fuzz-serving` sends many."""

import asyncio

import pytest
from support.serving import save_model, serving
from support.serving_fuzz import Fuzzer, run_grpc, run_rest

from monolith.serving.server.config import Batching, Limits


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    save_model(path / "1")
    limits = Limits(max_request_bytes=1 << 20)
    with serving(path, batching=Batching(), limits=limits) as (server, client):
        yield server, client


def test_over_grpc(running):
    server, client = running
    codes = asyncio.run(run_grpc(server.port, Fuzzer(seed=1), 2000))
    assert len(codes) >= 5
    assert client.predict([1.0]) == [2]


def test_over_rest(running):
    server, client = running
    statuses = asyncio.run(run_rest(server.rest_port, Fuzzer(seed=2), 2000))
    assert len(statuses) >= 4
    assert client.predict([1.0]) == [2]
