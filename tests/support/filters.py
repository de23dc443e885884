"""Admission filters, their files and what they count, for tests."""

import itertools
import os
import pathlib

import tensorflow as tf

from monolith.embedding import filters
from monolith.proto import embedding_hash_table_pb2 as pb

_names = itertools.count()


def make_config(default: int, slots: dict[int, int] | None = None) -> bytes:
    config = pb.SlotOccurrenceThresholdConfig(default_occurrence_threshold=default)
    for slot, threshold in (slots or {}).items():
        config.slot_occurrence_thresholds.add(slot=slot, occurrence_threshold=threshold)
    return config.SerializeToString()


def make_filter(threshold: int = 3, capacity: int = 300, split_num: int = 5) -> tf.Tensor:
    """Makes an eager filter that no other test knows; eager resources outlive a test."""
    return filters.create_hash_filter(
        capacity, split_num, make_config(threshold), name_suffix=f"_test_{next(_names)}"
    )


def count_rows(hash_filter: tf.Tensor, ids: list[int]) -> list[bool]:
    """Counts each id once and returns which of them passed."""
    rows = tf.ones([len(ids), 2])
    with tf.GradientTape() as tape:
        tape.watch(rows)
        out = filters.intercept_gradient(hash_filter, tf.constant(ids, tf.int64), rows)
    gradient = tape.gradient(out, rows).numpy()
    assert ((gradient == 1).all(axis=1) | (gradient == 0).all(axis=1)).all()
    return (gradient[:, 0] == 1).tolist()


def save(hash_filter: tf.Tensor, basename: os.PathLike[str] | str) -> None:
    filters.save_hash_filter(hash_filter, os.fspath(basename), True)


def restore(hash_filter: tf.Tensor, basename: os.PathLike[str] | str) -> None:
    filters.restore_hash_filter(hash_filter, os.fspath(basename), True)


def split_path(basename: os.PathLike[str] | str, split: int, splits: int) -> pathlib.Path:
    return pathlib.Path(f"{os.fspath(basename)}-{split:05d}-of-{splits:05d}")


def read_records(path: os.PathLike[str]) -> list[bytes]:
    return list(tf.compat.v1.io.tf_record_iterator(os.fspath(path)))


def read_split(
    basename: os.PathLike[str] | str, split: int, splits: int
) -> tuple[pb.HashFilterSplitMetaDump, dict[int, int]]:
    """Reads a file with TensorFlow's and protobuf's own code: its metadata, its used cells."""
    meta, *dumps = read_records(split_path(basename, split, splits))
    cells = {}
    for dump in map(pb.HashFilterSplitDataDump.FromString, dumps):
        cells.update({dump.offset + i: cell for i, cell in enumerate(dump.data) if cell})
    return pb.HashFilterSplitMetaDump.FromString(meta), cells


class Intercepted:
    """A graph through which gradients of ones pass to the rows of `ids`, or not."""

    def __init__(self, hash_filter, ids):
        rows = tf.ones([len(ids), 1])
        out = filters.intercept_gradient(hash_filter, tf.constant(ids, tf.int64), rows)
        self.out = out
        (self.gradient,) = tf.gradients(out, rows)

    def run(self, session):
        return session.run(self.gradient)[:, 0].tolist()
