"""Which rank a process is, by what its environment says."""

import json

import pytest

from monolith import errors
from monolith.graph.rank_place import Place, find_place

MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
OWN = {"MONOLITH_RANK": "1", "MONOLITH_SIZE": "2", "MONOLITH_RANKS_ADDRESS": "h:1"}


def make_tf_config(kind, index, **cluster):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        pytest.param({}, Place(), id="alone"),
        pytest.param(
            {**MPI, "MONOLITH_RANKS_ADDRESS": "h:1"},
            Place(rank=3, size=4, local_rank=1, local_size=2, address="h:1"),
            id="open_mpi",
        ),
        pytest.param(
            {
                **MPI,
                "OMPI_COMM_WORLD_LOCAL_RANK": "3",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
                "PMIX_NAMESPACE": "prterun-1@1",
            },
            Place(rank=3, size=4, local_rank=3, local_size=4, job="prterun-1@1"),
            id="open_mpi_on_one_machine_meets_by_a_file",
        ),
        pytest.param(
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, Place(), id="mpirun_of_one"
        ),
        pytest.param(
            OWN, Place(rank=1, size=2, local_rank=0, local_size=1, address="h:1"), id="own"
        ),
        pytest.param({**MPI, **OWN}, Place(rank=1, size=2, address="h:1"), id="own_comes_first"),
        pytest.param(
            make_tf_config("worker", 1, chief=["a:1"], worker=["b:1", "b:2"]),
            Place(rank=2, size=3, local_rank=1, local_size=2, address="a:1"),
            id="tf_config",
        ),
        pytest.param(
            make_tf_config("chief", 0, chief=["a:1"], worker=["a:2"]),
            Place(rank=0, size=2, local_rank=0, local_size=2, address="a:1"),
            id="tf_config_chief",
        ),
        pytest.param(make_tf_config("ps", 0, ps=["a:1"], worker=["b:1", "c:1"]), Place(), id="ps"),
        pytest.param(make_tf_config("worker", 0, worker=["b:1"]), Place(), id="only_worker"),
        pytest.param({"TF_CONFIG": "{}"}, Place(), id="empty_tf_config"),
    ],
)
def test_place(environ, place):
    assert find_place(environ) == place


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        pytest.param(
            MPI, "nothing says where the ranks meet; set MONOLITH_RANKS_ADDRESS", id="mpi"
        ),
        pytest.param(
            {**OWN, "MONOLITH_RANK": "2"}, "rank 2 of 2; ranks are counted from 0", id="2"
        ),
        pytest.param({**OWN, "MONOLITH_RANK": "-1"}, "rank -1 of 2", id="negative"),
        pytest.param({**OWN, "MONOLITH_RANK": "x"}, "MONOLITH_RANK must be an integer", id="text"),
        pytest.param({"MONOLITH_RANK": "0"}, "MONOLITH_SIZE is not; start", id="no_size"),
        pytest.param({"TF_CONFIG": "["}, "TF_CONFIG must be JSON", id="broken_tf_config"),
        pytest.param({"TF_CONFIG": "[]"}, "TF_CONFIG must be JSON", id="tf_config_list"),
        pytest.param(
            make_tf_config("worker", 5, worker=["a:1", "b:1"]),
            "is worker 5, but lists 2 ranks",
            id="beyond_tf_config",
        ),
    ],
)
def test_contradictions(environ, message):
    with pytest.raises(errors.ConfigError, match=message):
        find_place(environ)
