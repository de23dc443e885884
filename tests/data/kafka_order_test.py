"""Messages of several partitions in the order of their times."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from monolith.data.kafka_order import TimeOrder


def fill(partitions):
    order = TimeOrder(len(partitions))
    for number, times in enumerate(partitions):
        for at, time_ms in enumerate(times):
            order.add(number, time_ms, (number, at))
    return order


def take(order, most=1000, ended=()):
    return [message for _, message in order.take(most, lambda number: number in ended)]


def test_nothing_comes_before_every_partition_is_known():
    order = TimeOrder(2)
    order.add(0, 5, "a")
    assert order.find_missing(lambda number: False) == [1]
    assert take(order) == []
    assert take(order, ended={1}) == ["a"]
    order.add(1, 9, "b")
    order.add(0, 7, "c")
    # Behind "c", partition 0 may still have one that comes before "b".
    assert take(order) == ["c"]
    order.add(0, 9, "d")
    # Equal times: the lower partition first. Behind "d" nothing is certain again.
    assert take(order) == ["d"]
    assert take(order, ended={0}) == ["b"]


def test_as_many_as_asked():
    order = fill([[1, 4], [2, 3]])
    assert take(order, most=3, ended={0, 1}) == [(0, 0), (1, 0), (1, 1)]
    assert [order.count(number) for number in (0, 1)] == [1, 0]
    assert take(order, most=3, ended={0, 1}) == [(0, 1)]
    assert take(order, ended={0, 1}) == []


def test_the_order_inside_of_a_partition_is_kept():
    # The clock of a producer went back.
    assert take(fill([[5, 1], [3]]), ended={0, 1}) == [(1, 0), (0, 0), (0, 1)]


@given(st.lists(st.lists(st.integers(0, 20)).map(sorted), min_size=1, max_size=4), st.data())
def test_reading_again_gives_the_same_order_though_more_was_written(partitions, data):
    everything = set(range(len(partitions)))
    once = take(fill(partitions), ended=everything)
    times = [(partitions[number][at], number, at) for number, at in once]
    assert times == sorted(times)
    # Later messages have later times.
    more = [times + data.draw(st.lists(st.integers(21, 30)).map(sorted)) for times in partitions]
    again = take(fill(more), ended=everything)
    assert again[: len(once)] == once
    assert len(again) == len(list(itertools.chain.from_iterable(more)))
