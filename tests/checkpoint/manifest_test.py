"""What a manifest lists, and what it finds. The files of a whole model are in the crash test."""

import hashlib
import json
import os

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
    with open(prefix + ".manifest") as file:
        body, _, seal = file.read().rpartition("\nsha256 ")
    assert seal == hashlib.sha256(body.encode()).hexdigest() + "\n"
    files = json.loads(body)["files"]
    sizes = {suffix: os.path.getsize(prefix + suffix) for suffix in files}
    assert {suffix: file["bytes"] for suffix, file in files.items()} == sizes
    hashed = {suffix: file["sha256"] for suffix, file in files.items() if "sha256" in file}
    assert set(files) - set(hashed) == {".data-00000-of-00002", ".data-00001-of-00002"}
    assert set(hashed) == {".index", ".meta", ".assets/notes"}
    # SHA-256 of "abc", from FIPS 180.
    assert hashed[".assets/notes"].startswith("ba7816bf8f01cfea414140de5dae2223b00361a396177a9c")


def test_undamaged(prefix):
    assert manifest.verify(prefix)
    manifest.verify_thoroughly(prefix)
    restore(prefix)


def test_without_a_manifest(prefix):
    os.remove(prefix + ".manifest")
    flip(prefix + ".assets/notes", 0)
    assert not manifest.verify(prefix)
    restore(prefix)


@pytest.mark.parametrize("shard", [0, 1])
def test_damaged_variable_names_the_file_of_its_device(prefix, shard):
    path = f"{prefix}.data-0000{shard}-of-00002"
    other = f"{prefix}.data-0000{1 - shard}-of-00002"
    flip(path, 17)
    assert manifest.verify(prefix)  # Finds only what needs no reading of large files.
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
        (lambda prefix: flip(prefix + ".manifest", 9), r"m-1\.manifest is damaged"),
        (lambda prefix: os.truncate(prefix + ".manifest", 0), r"m-1\.manifest is damaged"),
    ],
)
def test_damage_is_found_before_anything_is_loaded(prefix, damage, message):
    damage(prefix)
    for check in (manifest.verify, manifest.verify_thoroughly, restore):
        with pytest.raises(tf.errors.DataLossError, match=message):
            check(prefix)


def test_manifest_of_a_later_version(prefix):
    body = json.dumps({"format": 99, "files": {}})
    with open(prefix + ".manifest", "w") as file:
        file.write(manifest._seal(body))
    with pytest.raises(tf.errors.DataLossError, match="has the format 99, this version"):
        manifest.verify(prefix)


def test_checkpoint_that_was_moved_or_renamed(prefix, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for path in tmp_path.glob("m-1.*"):
        path.rename(tmp_path / "elsewhere" / path.name.replace("m-1", "best"))
    restore(str(tmp_path / "elsewhere" / "best"))


def test_damaged_variable_that_is_read_in_python(prefix):
    flip(f"{prefix}.data-00000-of-00002", 17)
    message = r"m-1\.data-00000-of-00002 is damaged"
    with pytest.raises(tf.errors.DataLossError, match=message), manifest.named_damage(prefix):
        tf.train.load_variable(prefix, "v0")
    with pytest.raises(tf.errors.DataLossError, match=message):
        manifest.verify_variables(prefix)


def test_other_errors_stay_as_they_are(prefix):
    with pytest.raises(tf.errors.NotFoundError), manifest.named_damage(prefix):
        tf.train.load_variable(prefix, "v7")
