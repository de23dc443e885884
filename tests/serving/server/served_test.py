"""A version that answers requests."""

import asyncio
import threading

import numpy as np
import pytest
import tensorflow as tf
from support.serving import save_model

from monolith.serving.server import status
from monolith.serving.server.call_pool import CallPool
from monolith.serving.server.config import Batching
from monolith.serving.server.loaded import LoadedModel
from monolith.serving.server.served import ServedVersion


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> str:
    return save_model(tmp_path_factory.mktemp("models") / "1")


@pytest.fixture(params=[None, Batching(parallel=1)], ids=["alone", "merged"])
def version(request, saved):
    with CallPool(max_calls=8) as pool:
        version = ServedVersion(1, LoadedModel.load(saved), pool, request.param)
        yield version
        version.close()


def run(version: ServedVersion, name: str, **inputs) -> dict:
    signature = version.model.get_signature(name)
    return asyncio.run(version.run(signature, tuple(signature.outputs), inputs))


async def ask_at_once(pool: CallPool, *calls):
    """Makes calls that are all there before the first one runs."""
    let = threading.Event()
    pool.submit(let.wait, 60)
    tasks = [asyncio.create_task(call) for call in calls]
    await asyncio.sleep(0)  # Each runs until it waits.
    let.set()
    return await asyncio.gather(*tasks, return_exceptions=True)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_answers(version):
    assert run(version, "serving_default", x=floats(1, 2))["output"].tolist() == [2, 4]
    assert run(version, "pair", x=floats(2), y=floats(5)) == {"sum": 7, "product": 10}
    # One number for all rows, so nothing is merged.
    assert run(version, "total", x=floats(1, 2))["total"] == 3


def test_no_rows(version):
    assert run(version, "serving_default", x=floats())["output"].tolist() == []


def test_inputs_of_unequal_lengths_are_left_to_the_model(version):
    with pytest.raises(status.RequestError):
        run(version, "pair", x=floats(1, 2), y=floats(1, 2, 3))
    assert run(version, "pair", x=floats(1), y=floats(1, 2, 3))["sum"].tolist() == [2, 3, 4]


def test_inputs_are_checked(version):
    with pytest.raises(status.RequestError, match="'x' is missing"):
        run(version, "serving_default")


def test_users_are_counted(version):
    assert not version.is_used
    version.enter()
    version.enter()
    version.leave()
    assert version.is_used
    version.leave()
    assert not version.is_used


def test_requests_are_merged(saved):
    observed = []
    with CallPool(max_calls=1) as pool:
        version = ServedVersion(
            1,
            LoadedModel.load(saved),
            pool,
            Batching(parallel=1),
            lambda requests, rows, waited_sec: observed.append(requests),
        )
        signature = version.model.get_signature("serving_default")

        async def ask():
            calls = (version.run(signature, ("output",), {"x": floats(n)}) for n in range(20))
            return await ask_at_once(pool, *calls)

        answers = asyncio.run(ask())
        version.close()
    assert [float(answer["output"][0]) for answer in answers] == [2 * n for n in range(20)]
    assert sum(observed) == 20
    # The first finds the model idle; all others are there when it is done.
    assert observed == [1, 19]


def save_ragged_model(path: str) -> str:
    """Saves a model that sums the values of each example."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = tf.compat.v1.placeholder(tf.int64, [None], name="ids")
        lengths = tf.compat.v1.placeholder(tf.int64, [None], name="ids_lengths")
        ragged = tf.RaggedTensor.from_row_lengths(values, lengths)
        tf.compat.v1.saved_model.simple_save(
            session,
            path,
            {"ids": values, "ids_lengths": lengths},
            {"sum": tf.reduce_sum(ragged, axis=1)},
        )
    return path


def test_examples_with_any_number_of_values_are_merged(tmp_path):
    observed = []
    with CallPool(max_calls=1) as pool:
        version = ServedVersion(
            1,
            LoadedModel.load(save_ragged_model(str(tmp_path / "1"))),
            pool,
            Batching(parallel=1),
            lambda requests, rows, waited_sec: observed.append((requests, rows)),
        )
        signature = version.model.get_signature("serving_default")

        def ask(values, lengths):
            inputs = {"ids": np.array(values, np.int64), "ids_lengths": np.array(lengths)}
            return version.run(signature, ("sum",), inputs)

        async def ask_all():
            calls = [ask([1], [1]), ask([2, 3], [2, 0]), ask([], [0]), ask([9, 9], [1, 0])]
            return await ask_at_once(pool, *calls, ask([4], [1]))

        first, second, third, bad, last = asyncio.run(ask_all())
        version.close()
    assert [answer["sum"].tolist() for answer in (first, second, third, last)] == [
        [1],
        [5, 0],
        [0],
        [4],
    ]
    # Its second 9 belongs to nobody, and is not given to the next request.
    assert isinstance(bad, status.RequestError)
    assert observed == [(1, 1), (4, 6)]
