"""Which versions there are, and which are served."""

import pytest
import tensorflow as tf

from monolith.serving.server import versions
from monolith.serving.server.config import VersionPolicy


def make(path) -> None:
    path.mkdir(parents=True)
    (path / "saved_model.pb").write_bytes(b"")


def test_only_complete_versions_count(tmp_path):
    make(tmp_path / "1")
    make(tmp_path / "20")
    make(tmp_path / "temp-21")
    make(tmp_path / "x")
    make(tmp_path / "-3")
    make(tmp_path / "\u0663")  # A digit, but not one of ours.
    make(tmp_path / str(1 << 64))
    (tmp_path / "22").mkdir()
    (tmp_path / "23").write_text("a file")
    (tmp_path / "24").mkdir()
    (tmp_path / "24" / "saved_model.pbtxt").write_text("")
    assert versions.list_versions(str(tmp_path)) == {
        number: str(tmp_path / str(number)) for number in (1, 20, 24)
    }


def test_one_number_in_two_spellings(tmp_path):
    make(tmp_path / "007")
    make(tmp_path / "7")
    assert versions.list_versions(str(tmp_path)) == {7: str(tmp_path / "7")}


def test_no_directory(tmp_path):
    with pytest.raises(tf.errors.NotFoundError):
        versions.list_versions(str(tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("policy", "broken", "expected"),
    [
        (VersionPolicy(), [], {9}),
        (VersionPolicy(count=2), [], {9, 7}),
        (VersionPolicy(count=2), [9], {7, 3}),
        (VersionPolicy(count=9), [], {9, 7, 3}),
        (VersionPolicy(count=None), [7], {9, 3}),
        (VersionPolicy(count=None, versions=frozenset([3, 8])), [], {3}),
        (VersionPolicy(count=None, versions=frozenset([3])), [3], set()),
    ],
)
def test_choice(policy, broken, expected):
    assert versions.choose_versions(policy, {3, 7, 9}, set(broken)) == expected


def test_fingerprint_changes_with_the_files(tmp_path):
    make(tmp_path / "1")
    before = versions.take_fingerprint(str(tmp_path / "1"))
    assert versions.take_fingerprint(str(tmp_path / "1")) == before
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"more")
    assert versions.take_fingerprint(str(tmp_path / "1")) != before
