"""What a manifest lists, and what it finds. The files of a whole model are in the crash test."""

import hashlib
import json
import os
import pathlib
import re

import pytest
import tensorflow as tf

from monolith.checkpoint import manifest
from monolith.checkpoint import saver as saving

v1 = tf.compat.v1

pytestmark = pytest.mark.usefixtures("graph_mode")


@pytest.fixture
def prefix(tmp_path):
    """A checkpoint of two devices, with one file that has no checksum of its own."""
    for task, value in enumerate(([1.0] * 8, [2.0] * 8)):
        with tf.device(f"/cpu:{task}"):
            v1.get_variable(f"v{task}", initializer=value, use_resource=True)
    config = v1.ConfigProto(device_count={"CPU": 2})
    with v1.Session(config=config) as session:
        session.run(v1.global_variables_initializer())
        (tmp_path / "m-1.assets").mkdir()
        (tmp_path / "m-1.assets" / "notes").write_text("abc")
        saver = saving.PartialRecoverySaver(sharded=True)
        return saver.save(session, str(tmp_path / "m"), global_step=1)


def restore(prefix, **settings):
    with v1.Session(config=v1.ConfigProto(device_count={"CPU": 2})) as session:
        saving.PartialRecoverySaver(sharded=True, **settings).restore(session, prefix)


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_lists_every_file_and_hashes_those_without_a_checksum(prefix):
    with open(manifest.get_path(prefix)) as file:
        body, _, seal = file.read().rpartition("\nsha256 ")
    assert seal == hashlib.sha256(body.encode()).hexdigest() + "\n"
    files = json.loads(body)["files"]
    sizes = {suffix: os.path.getsize(prefix + suffix) for suffix in files}
    assert {suffix: file["bytes"] for suffix, file in files.items()} == sizes
    hashed = {suffix: file["sha256"] for suffix, file in files.items() if "sha256" in file}
    sampled = {suffix for suffix, file in files.items() if "samples" in file}
    assert sampled == {".data-00000-of-00002", ".data-00001-of-00002"}
    assert set(hashed) == {".index", ".meta", ".assets/notes"}
    # SHA-256 of "abc", from FIPS 180.
    assert hashed[".assets/notes"].startswith("ba7816bf8f01cfea414140de5dae2223b00361a396177a9c")


# The manifest of two files with the content "abc" and one with "", whose SHA-256 are in FIPS 180,
# without its last line, which is that of what stands above it.
LITERAL = """{
 "format": 1,
 "files": {
  ".assets/notes": {
   "bytes": 3,
   "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
  },
  ".assets/table-00000-of-00001": {
   "bytes": 3,
   "samples": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
  },
  ".index": {
   "bytes": 0,
   "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
  }
 }
}"""


@pytest.fixture
def literal(tmp_path):
    """The checkpoint, without its manifest, that `LITERAL` is the manifest of."""
    (tmp_path / "m-7.assets").mkdir()
    (tmp_path / "m-7.assets" / "notes").write_text("abc")
    (tmp_path / "m-7.assets" / "table-00000-of-00001").write_text("abc")
    (tmp_path / "m-7.index").write_text("")
    return tmp_path / "m-7"


def seal(body):
    return f"{body}\nsha256 {hashlib.sha256(body.encode()).hexdigest()}\n"


def test_format_is_what_it_was(literal):
    manifest.write(str(literal))
    assert (literal.parent / "manifest-m-7").read_text() == seal(LITERAL)


@pytest.mark.parametrize("name", ["manifest-m-7", "m-7.manifest"])
def test_manifest_is_found_under_its_name_and_under_the_earlier_one(literal, name):
    (literal.parent / name).write_text(seal(LITERAL))
    assert manifest.verify(str(literal))
    assert manifest.verify_assets(str(literal))
    (literal.parent / "m-7.assets" / "table-00000-of-00001").write_text("abd")
    for check in (manifest.verify, manifest.verify_assets):
        with pytest.raises(tf.errors.DataLossError, match=r"table-00000-of-00001 is damaged: its"):
            check(str(literal))


def test_manifest_of_an_earlier_version_knows_no_samples(literal):
    lines = LITERAL.splitlines()
    (number,) = (i for i, line in enumerate(lines) if "samples" in line)
    body = "\n".join([*lines[: number - 1], '   "bytes": 3', *lines[number + 1 :]])
    (literal.parent / "m-7.manifest").write_text(seal(body))
    table = literal.parent / "m-7.assets" / "table-00000-of-00001"
    table.write_text("abd")
    assert manifest.verify(str(literal))
    table.write_text("abcd")
    with pytest.raises(tf.errors.DataLossError, match="it has 4 bytes, 3 were saved"):
        manifest.verify(str(literal))


def test_delta_keeps_its_manifest_under_its_own_name(tmp_path):
    prefix = str(tmp_path / "m-7.delta-9")
    pathlib.Path(f"{prefix}.index").write_text("")
    manifest.write(prefix)
    assert sorted(os.listdir(tmp_path)) == ["m-7.delta-9.index", "m-7.delta-9.manifest"]


def test_files_under_the_prefix_are_those_of_tensorflow(prefix, tmp_path):
    (tmp_path / "m-1.assets" / "notes").unlink()
    (tmp_path / "m-1.assets").rmdir()
    names = [os.path.basename(path) for path in tf.io.gfile.glob(prefix + "*")]
    assert sorted(names) == [
        "m-1.data-00000-of-00002",
        "m-1.data-00001-of-00002",
        "m-1.index",
        "m-1.meta",
    ]


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_large_file_of_another_run_is_told_from_the_saved_one(tmp_path, where):
    """Rows lie in the order of a hash, so what training changes is spread over the file."""
    path = tmp_path / "m-7.assets" / "table-00000-of-00001"
    path.parent.mkdir()
    content = bytearray(os.urandom(3_000_000))
    path.write_bytes(content)
    manifest.write(str(tmp_path / "m-7"))
    assert manifest.verify(str(tmp_path / "m-7"))
    start = {"first": 0, "middle": 1_000_000, "last": 2_999_999}[where]
    for i in range(start, min(start + 300_000, len(content)), 64):
        content[i] ^= 1
    path.write_bytes(content)
    with pytest.raises(tf.errors.DataLossError, match="table-00000-of-00001 is damaged: its"):
        manifest.verify(str(tmp_path / "m-7"))


def test_shard_that_was_not_saved_with_the_others(literal):
    manifest.write(str(literal))
    (literal.parent / "m-7.assets" / "table-00001-of-00002").write_text("abc")
    for check in (manifest.verify, manifest.verify_assets):
        with pytest.raises(tf.errors.DataLossError, match=r"table-00001-of-00002 was not saved"):
            check(str(literal))
    (literal.parent / "m-7.assets" / "table-00001-of-00002").rename(literal.parent / "x")
    (literal.parent / "m-7.assets" / "todo").write_text("People may leave notes.")
    assert manifest.verify(str(literal))


def test_assets_are_verified_without_the_variables(literal):
    manifest.write(str(literal))
    (literal.parent / "m-7.index").write_text("damaged")
    assert manifest.verify_assets(str(literal))
    (literal.parent / "m-7.assets" / "notes").unlink()
    with pytest.raises(tf.errors.DataLossError, match=r"notes is missing.*remove .*/manifest-m-7"):
        manifest.verify_assets(str(literal))


def test_undamaged(prefix):
    assert manifest.verify(prefix)
    manifest.verify_thoroughly(prefix)
    restore(prefix)


def test_without_a_manifest(prefix):
    os.remove(manifest.get_path(prefix))
    flip(prefix + ".assets/notes", 0)
    assert not manifest.verify(prefix)
    restore(prefix)


@pytest.mark.parametrize("shard", [0, 1])
def test_damaged_variable_names_the_file_of_its_device(prefix, shard):
    path = f"{prefix}.data-0000{shard}-of-00002"
    other = f"{prefix}.data-0000{1 - shard}-of-00002"
    flip(path, 17)
    with pytest.raises(tf.errors.DataLossError, match=re.escape(f"{path} is damaged")):
        manifest.verify(prefix)
    # Of a large file the manifest knows samples only; its own checksums find the rest.
    os.remove(manifest.get_path(prefix))
    for check in (manifest.verify_thoroughly, restore):
        with pytest.raises(tf.errors.DataLossError, match="Checksum does not match") as error:
            check(prefix)
        assert path in error.value.message
        assert other not in error.value.message


def test_damaged_text_names_the_files_it_may_be_in(tmp_path):
    v1.get_variable("v", initializer="text", use_resource=True)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        saver = saving.PartialRecoverySaver()
        prefix = saver.save(session, str(tmp_path / "m"))
        flip(prefix + ".data-00000-of-00001", 0)
        os.remove(manifest.get_path(prefix))
        with pytest.raises(tf.errors.DataLossError) as error:
            saver.restore(session, prefix)
    assert f"{prefix}.data-00000-of-00001 is damaged" in error.value.message


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda prefix: os.remove(prefix + ".meta"), r"m-1\.meta is missing"),
        (lambda prefix: os.remove(prefix + ".assets/notes"), r"m-1\.assets/notes is missing"),
        (
            lambda prefix: os.truncate(prefix + ".meta", 10),
            r"m-1\.meta is damaged: it has 10 bytes",
        ),
        (lambda prefix: flip(prefix + ".index", 9), r"m-1\.index is damaged: its content is not"),
        (lambda prefix: flip(manifest.get_path(prefix), 9), r"/manifest-m-1 is damaged"),
        (lambda prefix: os.truncate(manifest.get_path(prefix), 0), r"/manifest-m-1 is damaged"),
    ],
)
def test_damage_is_found_before_anything_is_loaded(prefix, damage, message):
    damage(prefix)
    for check in (manifest.verify, manifest.verify_thoroughly, restore):
        with pytest.raises(tf.errors.DataLossError, match=message):
            check(prefix)


def test_manifest_of_a_later_version(prefix):
    body = json.dumps({"format": 99, "files": {}})
    with open(manifest.get_path(prefix), "w") as file:
        file.write(seal(body))
    with pytest.raises(tf.errors.DataLossError, match="has the format 99, this version"):
        manifest.verify(prefix)


def test_checkpoint_that_was_moved_or_renamed(prefix, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for path in [*tmp_path.glob("m-1.*"), tmp_path / "manifest-m-1"]:
        path.rename(tmp_path / "elsewhere" / path.name.replace("m-1", "best"))
    best = str(tmp_path / "elsewhere" / "best")
    assert manifest.verify(best)
    restore(best)


def test_damaged_variable_that_is_read_in_python(prefix):
    flip(f"{prefix}.data-00000-of-00002", 17)
    os.remove(manifest.get_path(prefix))
    message = r"m-1\.data-00000-of-00002 is damaged"
    with pytest.raises(tf.errors.DataLossError, match=message), manifest.named_damage(prefix):
        tf.train.load_variable(prefix, "v0")
    with pytest.raises(tf.errors.DataLossError, match=message):
        manifest.verify_variables(prefix)


def test_other_errors_stay_as_they_are(prefix):
    with pytest.raises(tf.errors.NotFoundError), manifest.named_damage(prefix):
        tf.train.load_variable(prefix, "v7")
