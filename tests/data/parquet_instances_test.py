"""Items of real Parquet files, as a file of `Instance` messages."""

import importlib.util
import struct
import sys

import cityhash
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith import errors
from monolith.data import fids, framing, parquet_instances
from monolith.data.parquet_instances import convert_parquets_to_instance
from monolith.native_training import cpu_training
from monolith.proto import proto_parser_pb2

# Of the page of the package `cityhash`, and of CityHash itself, where it is the constant k2.
HASH_OF_ABC = 2640714258260161385
HASH_OF_NOTHING = 0x9AE16A3B2F90404F


def write(path, item_id, fids, **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {"compression": "snappy", **settings}
    pq.write_table(pa.table({"item_id": item_id, "fids": fids}), path, **settings)


def convert(tmp_path):
    """Returns the fids of each item of the file that is written, and in which order."""
    target = tmp_path / "items.pb"
    convert_parquets_to_instance(str(tmp_path), str(target))
    with target.open("rb") as file:
        records = [r for r, _ in framing.Framing(has_sort_id=False).read_records(file, "items")]
    instances = [proto_parser_pb2.Instance.FromString(record) for record in records]
    found = {instance.line_id.item_id: list(instance.fid) for instance in instances}
    assert len(found) == len(instances)
    return found


def test_bytes_of_a_record(tmp_path):
    write(tmp_path / "20260101" / "a.snappy.parquet", ["abc"], ["7 18446744073709551615"])
    convert_parquets_to_instance(tmp_path, tmp_path / "out")
    # Field 1, packed: 16 bytes; field 5: a message of 9 bytes, its field 4 as 64 bits.
    message = b"\x0a\x10" + struct.pack("<2Q", 7, 2**64 - 1)
    message += b"\x2a\x09\x21" + struct.pack("<Q", HASH_OF_ABC)
    assert (tmp_path / "out").read_bytes() == struct.pack("<Q", len(message)) + message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["20260101", "out"]


def test_the_highest_bit_of_a_hash_is_cleared(tmp_path):
    write(tmp_path / "20260101" / "a.snappy.parquet", [""], ["7"])
    assert HASH_OF_NOTHING >= 2**63
    assert convert(tmp_path) == {HASH_OF_NOTHING - 2**63: [7]}


def test_the_package_has_the_version_of_the_hash_that_fids_have():
    # extract_fid(185, 4) of the original system.
    of_185 = cityhash.CityHash64(struct.pack("<q", 185))
    assert of_185 & (2**49 - 1) | 4 << 48 == 1153447759131936


@pytest.mark.parametrize(
    "item_id",
    [
        pytest.param(pa.array([12345678]), id="integers"),
        pytest.param(pa.array([12345678], pa.uint32()), id="small_integers"),
        pytest.param(pa.array(["12345678"]), id="strings"),
        pytest.param(pa.array([b"12345678"]), id="bytes"),
        pytest.param(pa.array(["12345678"]).dictionary_encode(), id="dictionary"),
    ],
)
def test_ids_are_hashed_as_text(tmp_path, item_id):
    write(tmp_path / "20260101" / "a.snappy.parquet", item_id, ["7"])
    # Eight characters are eight bytes, of which `fids` has the hash, too.
    as_integer = int.from_bytes(b"12345678", "little")
    [found] = convert(tmp_path)
    assert found == int(fids._hash(as_integer)) & (2**63 - 1)


def test_later_rows_and_files_win_in_the_newest_day(tmp_path):
    day = tmp_path / "20260102"
    write(tmp_path / "20251231" / "z.snappy.parquet", ["old"], ["1"])
    write(day / "2.snappy.parquet", ["b"], ["22"])
    write(day / "1.snappy.parquet", ["a", "b", "a"], ["1", "2", "  3  4 "])
    # None of these is a day, or of its files.
    write(tmp_path / "202601031" / "a.snappy.parquet", ["no"], ["1"])
    write(tmp_path / "_temporary" / "a.snappy.parquet", ["no"], ["1"])
    write(day / "3.parquet", ["no"], ["1"])
    write(day / "4.gz.parquet", ["no"], ["1"], compression="gzip")
    (tmp_path / "20260104").touch()
    (day / "_SUCCESS").touch()
    hash_of = {name: cityhash.CityHash64(name) & (2**63 - 1) for name in "ab"}
    assert list(convert(tmp_path).items()) == [(hash_of["a"], [3, 4]), (hash_of["b"], [22])]


def test_items_without_fids_and_many_rows(tmp_path):
    day = tmp_path / "20260101"
    # More than are read at once, in several row groups.
    numbers = range(10_000)
    write(day / "1.snappy.parquet", numbers, [f"{n} {n + 1}" for n in numbers], row_group_size=3000)
    write(day / "2.snappy.parquet", ["none", "empty"], pa.array([None, ""]))
    found = convert(tmp_path)
    assert len(found) == 10_002
    assert found[cityhash.CityHash64("9999") & (2**63 - 1)] == [9999, 10_000]
    assert list(found.values())[-2:] == [[], []]


def test_a_day_without_rows_is_an_empty_file(tmp_path):
    nothing = pa.array([], pa.string())
    write(tmp_path / "20260101" / "a.snappy.parquet", nothing, nothing)
    assert convert(tmp_path) == {}


class TestRefusals:
    def test_no_directory(self, tmp_path):
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "missing"):
            with pytest.raises(ValueError, match=r"^Argument parquet_path is not a directory\. "):
                convert_parquets_to_instance(str(path), str(tmp_path / "out"))

    def test_no_day(self, tmp_path):
        (tmp_path / "2026-01-01").mkdir()
        (tmp_path / "20260101").touch()
        with pytest.raises(ValueError, match=r"^No vaild subdirectory in parquet_path: '"):
            convert(tmp_path)

    def test_no_file_in_the_newest_day(self, tmp_path):
        write(tmp_path / "20260101" / "a.snappy.parquet", ["a"], ["1"])
        write(tmp_path / "20260102" / "a.parquet", ["a"], ["1"])
        message = r"^None of \.snappy.parquet file found in '.*/20260102'"
        with pytest.raises(ValueError, match=message):
            convert(tmp_path)

    @pytest.mark.parametrize(
        ("item_id", "fids", "message"),
        [
            pytest.param(["a"], ["1 x"], "of item 'a' holds '1 x', which is not", id="word"),
            pytest.param(["a"], ["-1"], "of item 'a' holds '-1', which is not", id="negative"),
            pytest.param(["a"], [str(2**64)], "of item 'a' holds", id="too_large"),
            pytest.param(["a"], [[1]], "'fids' holds list<.*>, but must hold strings", id="lists"),
            pytest.param([None, "a"], ["1", "2"], "'item_id' holds a null", id="null"),
            pytest.param([1.5], ["1"], "'item_id' holds double, but must", id="float"),
        ],
    )
    def test_other_content_leaves_the_file_as_it_was(self, tmp_path, item_id, fids, message):
        write(tmp_path / "20260101" / "a.snappy.parquet", item_id, fids)
        (tmp_path / "items.pb").write_bytes(b"before")
        with pytest.raises(errors.DataError, match=message):
            convert(tmp_path)
        assert (tmp_path / "items.pb").read_bytes() == b"before"
        assert len(list(tmp_path.iterdir())) == 2

    def test_a_column_is_missing(self, tmp_path):
        path = tmp_path / "20260101" / "a.snappy.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"item_id": [1], "fid": ["1"]}), path)
        message = "must have one column 'fids', but its columns are 'item_id', 'fid'"
        with pytest.raises(errors.DataError, match=message):
            convert(tmp_path)

    def test_a_file_that_is_not_whole(self, tmp_path):
        path = tmp_path / "20260101" / "a.snappy.parquet"
        write(path, ["a"], ["1"])
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(errors.DataError, match="cannot be read as Parquet"):
            convert(tmp_path)

    @pytest.mark.parametrize("name", ["pyarrow", "cityhash"])
    def test_a_missing_package_says_what_to_install(self, monkeypatch, name):
        monkeypatch.setitem(sys.modules, name, None)  # An import of it fails from here on.
        spec = importlib.util.find_spec(parquet_instances.__name__)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with pytest.raises(ImportError) as caught:
            module.convert_parquets_to_instance("items", "out")
        assert str(caught.value) == (
            f"Converting Parquet to instances needs the package {name}, which is not installed; "
            'run `pip install "monolith-recsys[parquet]"`.'
        )


def test_historical_name(tmp_path):
    write(tmp_path / "20260101" / "a.snappy.parquet", ["abc"], ["7"])
    cpu_training._convert_parquets_to_instance(str(tmp_path), str(tmp_path / "old"))
    convert_parquets_to_instance(tmp_path, tmp_path / "new")
    assert (tmp_path / "old").read_bytes() == (tmp_path / "new").read_bytes()
