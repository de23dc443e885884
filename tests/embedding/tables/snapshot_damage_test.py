"""What damage to the files of a table, or another config, does to a restore."""

import pathlib

import pytest
import tensorflow as tf
from support.snapshots import lookup, make_config
from tensorflow.python.lib.io import _pywrap_record_io

from monolith.embedding import entry
from monolith.embedding.tables import multi as multi_hash_tables
from monolith.embedding.tables import single as hash_tables
from monolith.proto import embedding_hash_table_pb2
from monolith.testing import generate_test_hash_table_config

# Where one record lies in a TFRecord file: length, its checksum, the data, its checksum.
LENGTH, LENGTH_CRC, DATA, DATA_CRC = 0, 8, 12, -4


class TestDamage:
    """Whatever is wrong with a snapshot: an error that says what, and the table as it was."""

    @pytest.fixture(params=["single", "multi"])
    def kind(self, request):
        return request.param

    @pytest.fixture
    def table(self, kind, request):
        """A table with rows 1: [1] and 2: [2]."""
        name = request.node.name
        if kind == "single":
            table = hash_tables.hash_table_from_config(
                make_config(), name_suffix=name, saver_parallel=2
            ).assign([1, 2], [[1.0], [2.0]])
            handle = table.table
        else:
            table = multi_hash_tables.MultiHashTable.from_configs(
                {"slot": make_config()}, name_suffix=name, saver_parallel=2
            ).assign({"slot": ([1, 2], [[1.0], [2.0]])})
            handle = table.handle
        yield table
        tf.raw_ops.DestroyResourceOp(resource=handle)

    @pytest.fixture
    def base(self, table, kind, tmp_path):
        """A snapshot of ids 0 to 99 in two files; the table itself has other rows."""
        base = tmp_path / "snapshot"
        ids = list(range(100))
        values = [[float(i)] for i in ids]
        if kind == "single":
            full = hash_tables.hash_table_from_config(
                make_config(), name_suffix=f"{id(table)}_full", saver_parallel=2
            )
            full.assign(ids, values).save(str(base))
            tf.raw_ops.DestroyResourceOp(resource=full.table)
        else:
            full = multi_hash_tables.MultiHashTable.from_configs(
                {"slot": make_config()}, name_suffix=f"{id(table)}_full", saver_parallel=2
            )
            full.assign({"slot": (ids, values)}).save(str(base))
            tf.raw_ops.DestroyResourceOp(resource=full.handle)
        return base

    @pytest.fixture
    def check(self, table, kind, base):
        """Restores, expects an error that names table and file, and looks at the rows."""

        def check_restore(error, file=None, message=None):
            with pytest.raises(error, match=message) as info:
                table.restore(str(base))
            text = info.value.message
            assert (table.name if kind == "single" else table.shared_name) in text
            assert str(file or base) in text
            ids = [1, 2, 0, 99]
            rows = table.lookup(ids) if kind == "single" else table.lookup({"slot": ids})["slot"]
            assert rows.numpy().tolist() == [[1], [2], [0], [0]]

        return check_restore

    def test_undamaged(self, table, kind, base):
        restored = table.restore(str(base))
        ids = list(range(100))
        rows = restored.lookup(ids) if kind == "single" else restored.lookup({"slot": ids})["slot"]
        assert rows.numpy().tolist() == [[i] for i in ids]

    @pytest.mark.parametrize("which", ["data", "meta"])
    @pytest.mark.parametrize(
        "position",
        [
            pytest.param(LENGTH, id="length"),
            pytest.param(LENGTH + 7, id="high_byte_of_length"),
            pytest.param(LENGTH_CRC, id="length_crc"),
            pytest.param(DATA, id="data"),
            pytest.param(DATA_CRC, id="data_crc"),
        ],
    )
    def test_one_flipped_bit(self, base, kind, check, which, position):
        file = self.shard(base, 1, meta=which == "meta")
        data = bytearray(file.read_bytes())
        data[position] ^= 0x10
        file.write_bytes(data)
        check(tf.errors.DataLossError, file)

    @pytest.mark.parametrize(
        "length",
        [
            pytest.param(0, id="to_nothing"),
            pytest.param(4, id="in_the_length"),
            pytest.param(10, id="in_the_length_crc"),
            pytest.param(20, id="in_the_data"),
            pytest.param(-2, id="in_the_last_crc"),
        ],
    )
    def test_truncated(self, base, check, length):
        file = self.shard(base, 0)
        file.write_bytes(file.read_bytes()[:length])
        check(tf.errors.DataLossError, file)

    def test_truncated_between_two_records(self, base, kind, check):
        file = self.shard(base, 0)
        rewrite_records(file, kind, lambda records: records[:-1])
        check(tf.errors.DataLossError, file, "Couldn't read all of checkpoint shard 0")

    def test_one_record_too_many(self, base, kind, check):
        file = self.shard(base, 0)
        rewrite_records(file, kind, lambda records: records + records[:1])
        check(tf.errors.DataLossError, file, "Couldn't read all of checkpoint shard 0")

    def test_record_that_is_no_entry(self, base, kind, check):
        file = self.shard(base, 0)
        rewrite_records(file, kind, lambda records: [b"\xff\xff", *records[1:]])
        check(tf.errors.DataLossError, file, "Parse entry failed|Unable to parse data")

    def test_record_without_id(self, base, kind, check):
        file = self.shard(base, 0)
        record = embedding_hash_table_pb2.EntryDump(num=[1.0])
        record.opt.dump.add().sgd.SetInParent()
        rewrite_records(file, kind, lambda rest: [record.SerializeToString(), *rest[1:]])
        check(tf.errors.InvalidArgumentError, file, "A saved row has no id")

    def test_all_files_missing(self, base, check):
        for path in base.parent.iterdir():
            path.unlink()
        check(tf.errors.NotFoundError, message="Unable to find the dump files for")

    def test_directory_missing(self, base, check):
        for path in base.parent.iterdir():
            path.unlink()
        base.parent.rmdir()
        check(tf.errors.NotFoundError)

    # What can be wrong with the list of files: a shard to take away or to add, and the message.
    WRONG_LISTS = {
        "missing": ("snapshot-00000-of-00002", None, "Shard 0 doesn't show up for"),
        "meta_missing": ("snapshot.meta-00001-of-00002", None, "Shard 1 doesn't show up for"),
        "of_two_snapshots": (None, "snapshot-00000-of-00003", "doesn't match nshards"),
        "beyond_the_number": (None, "snapshot-00002-of-00002", "Shard 2 exceeds 2 for"),
    }

    def make_wrong_list(self, base: pathlib.Path, problem: str) -> str:
        missing, extra, message = self.WRONG_LISTS[problem]
        if missing:
            (base.parent / missing).unlink()
        if extra:
            (base.parent / extra).write_bytes(self.shard(base, 0).read_bytes())
        return message

    @pytest.mark.parametrize("problem", WRONG_LISTS)
    def test_wrong_list_of_files(self, base, check, problem):
        message = self.make_wrong_list(base, problem)
        check(tf.errors.InvalidArgumentError, message=message)

    def test_leftovers_of_interrupted_saves_are_passed_over(self, table, kind, base):
        for name in ("snapshot-00000-of-00002-tmp-1234", "snapshot-00000-of-00003-tmp-7", "x"):
            (base.parent / name).write_bytes(b"half a file")
        self.test_undamaged(table, kind, base)

    def test_directory_in_place_of_a_file(self, base, check):
        self.shard(base, 0).unlink()
        self.shard(base, 0).mkdir()
        check((tf.errors.DataLossError, tf.errors.FailedPreconditionError), self.shard(base, 0))

    @staticmethod
    def shard(base: pathlib.Path, i: int, meta: bool = False) -> pathlib.Path:
        return base.parent / f"{base.name}{'.meta' if meta else ''}-0000{i}-of-00002"


def rewrite_records(file: pathlib.Path, kind: str, change) -> None:
    """Writes the records of a file anew, with right checksums."""
    compression = "SNAPPY" if kind == "multi" else ""
    # The public classes know every compression but this one.
    records = list(_pywrap_record_io.RecordIterator(str(file), compression))
    options = _pywrap_record_io.RecordWriterOptions(compression)
    writer = _pywrap_record_io.RecordWriter(str(file), options)
    for record in change(records):
        writer.write(record)
    writer.close()


class TestAnotherConfig:
    """A snapshot that does not fit the table is refused, and the table stays as it was."""

    @pytest.mark.parametrize(
        ("saved", "restored", "message"),
        [
            pytest.param({"dim": 2}, {"dim": 1}, "1", id="wider"),
            pytest.param({"dim": 1}, {"dim": 2}, "2", id="narrower"),
            pytest.param(
                {"optimizer": entry.SgdOptimizer()},
                {"optimizer": entry.AdagradOptimizer()},
                "adagrad",
                id="another_optimizer",
            ),
            pytest.param(
                {"optimizer": entry.AdamOptimizer()},
                {"optimizer": entry.AmsgradOptimizer()},
                "amsgrad",
                id="similar_optimizer",
            ),
        ],
    )
    def test_is_refused(self, make_table, tmp_path, saved, restored, message):
        source = make_table(**saved)
        source.assign([1, 2], tf.ones([2, source.dim_size])).save(str(tmp_path / "t"))
        table = make_table(**restored)
        table = table.assign([3], tf.ones([1, table.dim_size]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=message) as info:
            table.restore(str(tmp_path / "t"))
        assert table.name in info.value.message
        assert str(tmp_path / "t-00000-of-00001") in info.value.message
        assert table.size().numpy() == 1
        assert lookup(table, [3]) == [[1] * table.dim_size]

    def test_other_segments_of_the_same_dim(self, make_table, tmp_path):
        make_table(dim=2, optimizer=entry.AdagradOptimizer()).assign([1], [[1.0, 2.0]]).save(
            str(tmp_path / "t")
        )
        config = make_config(dim=1, optimizer=entry.AdagradOptimizer())
        segments = config.table_config.entry_config.segments
        segments.append(segments[0])
        table = make_table(entry.HashTableConfigInstance(config.table_config, [1.0, 1.0]))
        with pytest.raises(tf.errors.InvalidArgumentError, match=table.name):
            table.restore(str(tmp_path / "t"))
        assert table.size().numpy() == 0

    def test_other_initializer_or_compressor_does_not_matter(self, make_table, tmp_path):
        make_table().assign([1], [[1.0]]).save(str(tmp_path / "t"))
        config = generate_test_hash_table_config(dim=1)
        segment = config.table_config.entry_config.segments[0]
        segment.init_config.CopyFrom(entry.ConstantsInitializer(5.0).as_proto())
        segment.comp_config.CopyFrom(entry.Fp16Compressor().as_proto())
        assert lookup(make_table(config).restore(str(tmp_path / "t")), [1]) == [[1]]


class TestSaveErrors:
    def test_directory_cannot_be_made(self, make_table, tmp_path):
        (tmp_path / "file").write_text("in the way")
        table = make_table().assign([1], [[1.0]])
        with pytest.raises(tf.errors.OpError, match="file"):
            table.save(str(tmp_path / "file" / "t"))
        assert lookup(table, [1]) == [[1]]

    def test_failed_save_leaves_the_old_snapshot(self, make_table, tmp_path):
        base = str(tmp_path / "t")
        table = make_table(saver_parallel=2).assign([1], [[1.0]]).save(base)
        # A directory under the final name of a shard makes the rename fail.
        (tmp_path / "u-00001-of-00002").mkdir()
        (tmp_path / "u-00001-of-00002" / "x").write_text("")
        with pytest.raises(tf.errors.OpError, match="u-00001-of-00002"):
            table.save(str(tmp_path / "u"))
        assert not list(tmp_path.glob("*tmp*"))
        assert lookup(make_table().restore(base), [1]) == [[1]]

    def test_empty_basename(self, make_table):
        with pytest.raises(tf.errors.InvalidArgumentError, match="`basename` is empty"):
            make_table().save("")
        with pytest.raises(tf.errors.InvalidArgumentError, match="`basename` is empty"):
            make_table().restore("")

    @pytest.mark.parametrize("nshards", [-2, 0, 100000])
    def test_number_of_files_out_of_range(self, make_table, tmp_path, nshards):
        with pytest.raises(tf.errors.InvalidArgumentError, match="nshards must be"):
            make_table(saver_parallel=nshards).save(str(tmp_path / "t"))
