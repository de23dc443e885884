"""Ranks that find each other by a discovery."""

import concurrent.futures

import pytest

from monolith import errors
from monolith.cluster.discovery import FileServiceDiscovery
from monolith.cluster.rank_discovery import SERVICE, find_place
from monolith.graph.rank_links import Links


@pytest.fixture
def discovery(tmp_path):
    discovery = FileServiceDiscovery(str(tmp_path))
    yield discovery
    discovery.close()


def test_ranks_meet_even_if_an_earlier_job_has_left_its_address(discovery):
    discovery.register(SERVICE, 0, "127.0.0.1:1")
    late = Links(find_place(discovery, 1, 2))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        waiting = pool.submit(late.meet)
        first = Links(find_place(discovery, 0, 2))
        first.meet()
        waiting.result()
        values = pool.map(lambda links: links.gather(7), [first, late])
        assert list(values) == [[7, 7], [7, 7]]
    first.leave()
    late.leave()


def test_machines(discovery):
    place = find_place(discovery, 5, 8, local_rank=1)
    assert (place.local_rank, place.local_size) == (1, 2)
    place = find_place(discovery, 5, 8, local_rank=1, local_size=4)
    assert (place.local_rank, place.local_size) == (1, 4)


def test_a_rank_that_cannot_be(discovery):
    with pytest.raises(errors.ConfigError, match="rank 2 of 2"):
        find_place(discovery, 2, 2)
