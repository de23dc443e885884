"""Requests one after the other, and their answers apart."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from monolith.embedding.sharding import distribution
from monolith.serving.server import merging
from monolith.serving.server.merging import MisfitError, OutputError
from monolith.serving.server.signature import Signature

FLOAT, INT = types_pb2.DT_FLOAT, types_pb2.DT_INT64
LIST = (INT, [-1])


def make_signature(name: str, inputs: dict, outputs: dict) -> Signature:
    definition = meta_graph_pb2.SignatureDef(method_name="tensorflow/serving/predict")
    for infos, tensors in ((definition.inputs, inputs), (definition.outputs, outputs)):
        for alias, (dtype, shape) in tensors.items():
            infos[alias].name = f"{alias}:0"
            infos[alias].dtype = dtype
            if shape is None:
                infos[alias].tensor_shape.unknown_rank = True
            for dim in shape or ():
                infos[alias].tensor_shape.dim.add(size=dim)
    return Signature(name, definition)


LOOKUP = make_signature(
    "lookup", {"ad": LIST, "user": LIST}, {"ad": (FLOAT, [-1, 2]), "user": (FLOAT, [-1, 3])}
)
RAW_LOOKUP = make_signature(
    "raw_lookup", {"id": LIST, "id_split": LIST}, {"flat_emb": (FLOAT, [-1])}
)
TABLES = {"lookup": LOOKUP, "raw_lookup": RAW_LOOKUP}


def make(signature: Signature, others: dict | None = None) -> merging.Merger | None:
    return merging.make_merger(signature, tuple(signature.outputs), others or {})


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "expected"),
    [
        ("f", {"x": (FLOAT, [-1, 2])}, {"y": (FLOAT, [-1])}, merging.RowMerger),
        ("f", {"x": (FLOAT, None)}, {"y": (FLOAT, None)}, merging.RowMerger),
        ("f", {"x": (FLOAT, [-1])}, {"y": (FLOAT, [])}, None),
        ("f", {"x": (FLOAT, [4])}, {"y": (FLOAT, [-1])}, None),
        ("f", {}, {"y": (FLOAT, [-1])}, None),
        ("lookup", {"ad": LIST}, {"ad": (FLOAT, [-1, 2])}, merging.LookupMerger),
        ("lookup", {"ad": (INT, None)}, {"ad": (FLOAT, [-1, 2])}, None),
        ("lookup", {"ad": LIST}, {"rows": (FLOAT, [-1, 2])}, None),
        ("raw_lookup", {"id": LIST, "id_split": LIST}, {"flat_emb": (FLOAT, [-1])}, None),
        ("hashtable_assign", {"ad_id": LIST}, {"result": LIST}, None),
        ("table/raw_assign", {"id": LIST}, {"result": LIST}, None),
        ("table/raw_assign_packed", {"id": LIST}, {"result": LIST}, None),
    ],
)
def test_which_functions_are_merged(name, inputs, outputs, expected):
    merger = make(make_signature(name, inputs, outputs))
    assert merger is None if expected is None else isinstance(merger, expected)


@pytest.mark.parametrize("shape", [None, [-1], [-1, -1]])
def test_tables_of_unknown_width_are_not_merged(shape):
    lookup = make_signature("lookup", {"ad": LIST}, {"ad": (FLOAT, shape)})
    assert make(RAW_LOOKUP, {"lookup": lookup}) is None


def test_rows():
    merger = merging.RowMerger()
    requests = [[np.array([1, 2]), np.ones([2, 3])], [np.array([3]), np.zeros([1, 3])]]
    assert [merger.count_rows(request) for request in requests] == [2, 1]
    first, second = merger.join(requests)
    assert first.tolist() == [1, 2, 3]
    assert second.shape == (3, 3)
    answers = merger.split([first * 10, second], requests)
    assert [answer[0].tolist() for answer in answers] == [[10, 20], [30]]
    for request in ([np.zeros([]), np.zeros([1])], [np.zeros([2]), np.zeros([1])], [np.zeros([0])]):
        assert merger.count_rows(request) == 0
    with pytest.raises(MisfitError):
        merger.join([[np.zeros([1, 2])], [np.zeros([1, 3])]])
    for outputs in ([np.zeros([])], [np.zeros([2])]):
        with pytest.raises(OutputError):
            merger.split(outputs, [[np.zeros([3])]])


def test_examples_with_any_number_of_values():
    signature = make_signature(
        "f",
        {"genres": LIST, "genres_lengths": LIST, "user": LIST, "text": (FLOAT, [-1, 2])},
        {"y": (FLOAT, [-1])},
    )
    merger = make(signature)
    text = np.zeros([2, 2])
    requests = [
        [np.array([5, 6, 7]), np.array([3, 0]), text, np.array([1, 2])],
        [np.array([8, 9]), np.array([1, 1]), text, np.array([3, 4])],
    ]
    assert merger.count_rows(requests[0]) == 2
    genres, lengths, _, user = merger.join(requests)
    assert genres.tolist() == [5, 6, 7, 8, 9]
    assert lengths.tolist() == [3, 0, 1, 1]
    assert user.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("lengths", [[0, 1], [2, 1], [3, -1], [4, 0]])
def test_nobody_gets_the_values_of_another_request(lengths):
    merger = merging.RowMerger({0: 1})
    good = [np.array([1, 2]), np.array([1, 1])]
    bad = [np.array([8, 9]), np.array(lengths)]
    for requests in ([good, bad], [bad, good]):
        with pytest.raises(MisfitError):
            merger.join(requests)


def test_padded_values_are_rows():
    signature = make_signature(
        "f", {"x": (FLOAT, [-1, 4]), "x_lengths": LIST}, {"y": (FLOAT, [-1])}
    )
    request = [np.zeros([2, 4]), np.array([1, 3])]
    assert make(signature).count_rows(request) == 2
    assert make(signature).join([request, request])[0].shape == (4, 4)


def test_lookups():
    merger = make(LOOKUP)
    requests = [[np.array([1, 2]), np.array([], np.int64)], [np.array([3]), np.array([7, 8])]]
    assert [merger.count_rows(request) for request in requests] == [2, 3]
    ads, users = merger.join(requests)
    rows = [np.stack([ads, ads], 1), np.stack([users] * 3, 1)]
    first, second = merger.split(rows, requests)
    assert [part.tolist() for part in first] == [[[1, 1], [2, 2]], []]
    assert [part.tolist() for part in second] == [[[3, 3]], [[7] * 3, [8] * 3]]


def look_up(ids: np.ndarray, split: np.ndarray) -> np.ndarray:
    """Returns rows of 2 and 3 numbers, each the id."""
    middle = split[1]
    return np.concatenate([np.repeat(ids[:middle], 2), np.repeat(ids[middle:], 3)])


def test_packed_lookups():
    merger = make(RAW_LOOKUP, TABLES)
    requests = [
        [np.array([1, 2, 7]), np.array([0, 2, 3])],
        [np.array([8]), np.array([0, 0, 1])],
        [np.array([3]), np.array([0, 1, 1])],
    ]
    ids, split = merger.join(requests)
    assert ids.tolist() == [1, 2, 3, 7, 8]
    assert split.tolist() == [0, 3, 5]
    answers = merger.split([look_up(ids, split)], requests)
    for (flat,), request in zip(answers, requests, strict=True):
        np.testing.assert_array_equal(flat, look_up(*request))
    with pytest.raises(OutputError):
        merger.split([np.zeros([7])], requests)


@pytest.mark.parametrize("split", [[0, 1], [1, 2, 3], [0, 2, 2], [0, 4, 3], [0, -1, 3], []])
def test_packed_ids_that_do_not_fit(split):
    merger = make(RAW_LOOKUP, TABLES)
    good = [np.array([1, 2, 3]), np.array([0, 1, 3])]
    with pytest.raises(MisfitError):
        merger.join([good, [np.array([1, 2, 3]), np.array(split, np.int64)]])


def test_packed_ids_are_those_of_normalize_merged_split():
    """Sorted by tables, which are asked once, and not by requests."""
    splits = [[0, 2, 5], [0, 0, 3]]
    by_request = distribution.normalize_merged_split([*splits[0], *splits[1]], [3, 3])
    assert tf.get_static_value(by_request).tolist() == [0, 2, 5, 5, 8]
    _, split = make(RAW_LOOKUP, TABLES).join(
        [[np.arange(end[-1]), np.array(end)] for end in splits]
    )
    lengths = np.diff(by_request).reshape(2, 2)  # By request and table.
    assert np.diff(split).tolist() == lengths.sum(axis=0).tolist()
