"""Rows that a model takes along have their values, to the bit, and nothing of the optimizer."""

import os

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.tables import multi, registry, single
from monolith.graph import export_mode
from monolith.proto import embedding_hash_table_pb2 as proto
from monolith.serving import export_rows

pytestmark = pytest.mark.usefixtures("graph_mode")

v1 = tf.compat.v1
IDS = np.array([*range(1000), -1, 1 << 60])
DIM = 8


def make_config(dim: int = DIM) -> entry.HashTableConfigInstance:
    """Returns the config of a table with two segments, both with state, served with 16 bits."""
    config = proto.EmbeddingHashTableConfig()
    config.cuckoo.SetInParent()
    config.slot_expire_time_config.default_expire_time = 1
    for width, optimizer in ((dim - 1, entry.AdamOptimizer()), (1, entry.AdagradOptimizer())):
        config.entry_config.segments.append(
            entry.CombineAsSegment(
                width, entry.ZerosInitializer(), optimizer, entry.Fp16Compressor()
            )
        )
    return entry.HashTableConfigInstance(config, [0.1, 0.1])


def make_table(kind: str, dim: int = DIM):
    if kind == "single":
        return single.hash_table_from_config(make_config(dim), name_suffix="t", saver_parallel=2)
    configs = {"a": make_config(dim), "b": make_config(dim)}
    return multi.MultiHashTable.from_configs(configs, name_suffix="t", saver_parallel=2)


def per_table(kind: str, value):
    return value if kind == "single" else {"a": value, "b": value}


def save(kind: str, basename: str) -> None:
    """Saves rows that were trained; half of them were updated hours before the others."""
    rows = np.random.default_rng(3).normal(size=[len(IDS), DIM]).astype(np.float32)
    with tf.Graph().as_default(), v1.Session() as session:
        table = make_table(kind)
        if table.initializer is not None:
            session.run(table.initializer)
        for part, seconds in ((slice(0, 500), 100_000), (slice(500, None), 120_000)):
            if kind == "single":
                filled = table.assign(IDS[part], rows[part], seconds)
                trained = filled.apply_gradients(
                    IDS[part], rows[part], global_step=0, req_time=seconds
                )
            else:
                filled = table.assign(per_table(kind, (IDS[part], rows[part])), seconds)
                trained = filled.apply_gradients(
                    per_table(kind, (IDS[part], rows[part])), 0, req_time=seconds
                )
            session.run(trained.as_op())
        session.run(table.save(basename).as_op())


def serve(kind: str, basename: str) -> np.ndarray:
    """Returns the rows as a model has them that reads the files."""
    with (
        tf.Graph().as_default(),
        v1.Session() as session,
        export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE),
    ):
        table = make_table(kind)
        if table.initializer is not None:
            session.run(table.initializer)
        session.run(table.restore(basename).as_op())
        ids = np.append(IDS, 5000)
        if kind == "single":
            return session.run(table.lookup(ids))
        return np.stack(list(session.run(table.lookup(per_table(kind, ids))).values()))


def write(kind: str, source: str, target: str, dim: int = DIM) -> None:
    with (
        tf.Graph().as_default(),
        export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE),
    ):
        make_table(kind, dim)
        (found,) = registry.get_tables()
        files = export_rows.find_row_files(found, os.path.dirname(source) + "/", "rows")
        assert files is not None
        files.write(target)


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_values_without_state(tmp_path, kind):
    source, target = str(tmp_path / "rows"), str(tmp_path / "assets")
    save(kind, source)
    write(kind, source, target)
    served = serve(kind, f"{target}/rows")
    assert served.any()
    np.testing.assert_array_equal(served, serve(kind, source))
    names = {os.path.basename(name) for name in tf.io.gfile.glob(f"{source}*")}
    assert set(os.listdir(target)) == names
    before, after = (
        sum(os.path.getsize(name) for name in tf.io.gfile.glob(f"{path}-*"))
        for path in (source, f"{target}/rows")
    )
    assert after < 0.6 * before


def test_records(tmp_path):
    """Of a record, the id, the values and the time stay as they are."""
    source, target = str(tmp_path / "rows"), str(tmp_path / "assets")
    save("single", source)
    write("single", source, target)
    before, after = (
        {
            dump.id: dump
            for name in tf.io.gfile.glob(f"{path}-*")
            for record in v1.io.tf_record_iterator(name)
            for dump in [proto.EntryDump.FromString(record)]
        }
        for path in (source, f"{target}/rows")
    )
    assert before.keys() == after.keys() == set(IDS.tolist())
    for key, dump in before.items():
        assert dump.opt.ByteSize() > 4 * DIM
        assert after[key].opt.ByteSize() <= 4
        assert after[key].num == dump.num
        assert after[key].last_update_ts_sec == dump.last_update_ts_sec


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_rows_of_another_dim(tmp_path, kind):
    save(kind, str(tmp_path / "rows"))
    with pytest.raises(
        errors.ConfigError, match=r"do not fit the model.* dim 8.*as it was trained"
    ):
        write(kind, str(tmp_path / "rows"), str(tmp_path / "assets"), dim=5)
