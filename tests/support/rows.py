"""Rows with known content, in chunks of any sizes."""

import dataclasses
import itertools

import numpy as np
import tensorflow as tf

from monolith.data import columns, sources
from monolith.data.schema import Dense, Ids, Label, StringIds
from monolith.data.string_ids import hash_string

SCHEMA = [Label("click"), Ids("user"), StringIds("tags"), Dense("price", 2), Ids("m")]


def make_chunk(first, rows):
    """Row i has i % 3 users i * 10 + k, one tag of its own if odd, and so on."""
    numbers = range(first, first + rows)
    tags = [[f"tag {i}".encode()] if i % 2 else [] for i in numbers]
    values = np.empty(sum(map(len, tags)), object)
    values[:] = list(itertools.chain.from_iterable(tags))
    return {
        "click": np.array([i % 2 for i in numbers], np.float32),
        "user": columns.Ragged.from_rows([[i * 10 + k for k in range(i % 3)] for i in numbers]),
        "tags": columns.Ragged(values, np.array([len(t) for t in tags], np.int64)),
        "price": np.array([[i, -i] for i in numbers], np.float32).reshape(-1, 2),
        "m": columns.Ragged.from_rows([[i] for i in numbers]),
    }


def expected_row(i):
    users = [i * 10 + k for k in range(i % 3)]
    return (i % 2, users, [hash_string(f"tag {i}")] if i % 2 else [], [i, -i], [i])


def make_rows(batches):
    """Returns each row of tensors as a tuple of plain values."""
    rows = []
    for batch in batches:
        lists = [
            value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
            for value in (batch[feature.name] for feature in SCHEMA)
        ]
        rows += zip(*lists, strict=True)
    return rows


@dataclasses.dataclass(frozen=True)
class Chunks(sources.Source):
    """Row 0, row 1, and so on, in chunks of these sizes; a place is the number of a chunk."""

    sizes: tuple[int, ...]

    def read(self, place):
        starts = np.cumsum([0, *self.sizes])
        for i in range(place[0], len(self.sizes)):
            yield make_chunk(int(starts[i]), self.sizes[i]), (i + 1,)

    def describe(self):
        return f"chunks {self.sizes}"

    def make_layout(self, rows):
        return columns.FeatureLayout(SCHEMA, rows)
