"""Every name of a table gives a valid file name, and no two give one."""

import urllib.parse

from hypothesis import example, given
from hypothesis import strategies as st

from monolith.embedding.tables import file_names

# What is put behind the name of a table while its counts are written.
LONGEST_ENDING = f"{file_names.META}-00000-of-00001-tmp-{2**64 - 1}"

ODD_NAMES = [
    *("a/b", "a-b", "a:b", "a%2Fb", "a%2fb", "a%252Fb", "a b", "a_b", "a.b", "a", "", "%", "%~"),
    *("t", "t.meta", "t%2Emeta", "t.meta.meta", ".meta", "meta", ".", "..", "~", "../t", "t/"),
    *("hash_filter_0", "%68ash_filter_0", "hash_filter_", "hash_table_shards.json"),
    *("t*", "t?", "t[0]", "t\n", "t\\", "ä", "a\u0308", "用户", "\U0001f600", "x" * 155, "x" * 200),
    *("x" * 201, "x" * 1000, "x" * 1000 + "y", "ä" * 1000, "x" * 195 + ".meta"),
]


def test_ordinary_names_stay():
    for name in ("MonolithHashTable_user_0", "MonolithMultiHashTable_", "v1.2-beta~"):
        assert file_names.get_file_name(name) == name


def test_no_two_tables_share_a_file():
    files = [file_names.get_file_name(name) for name in ODD_NAMES]
    files += [file + file_names.META for file in files]
    assert len(set(files)) == 2 * len(ODD_NAMES)


@given(st.text(max_size=300))
@example("t.meta")
@example("hash_filter_0")
@example("input_worker_0.data")
@example("x" * 1000)
def test_names_are_valid_and_can_be_read_back(name):
    file = file_names.get_file_name(name)
    assert file
    assert set(file) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-~%")
    assert len(file + LONGEST_ENDING) <= 255
    assert not file.endswith(file_names.META)
    assert not file.startswith(("hash_filter_", "input_worker_"))
    # What can be read back belongs to one name only. A long one has a checksum.
    assert urllib.parse.unquote(file) == (name or "%") or "%~" in file


@given(st.text(min_size=250, max_size=300), st.text(min_size=250, max_size=300))
def test_long_names_that_differ_have_files_that_differ(one, other):
    same_file = file_names.get_file_name(one) == file_names.get_file_name(other)
    assert same_file == (one == other)
