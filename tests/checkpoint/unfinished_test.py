"""What is kept while a checkpoint is written, and what a cleaning may and may not remove."""

import os

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.python.training.checkpoint_state_pb2 import CheckpointState

from monolith.checkpoint import durable_files, failpoints, unfinished
from monolith.checkpoint import saver as saving
from monolith.checkpoint import state as checkpoint_state
from monolith.proto.monolith_checkpoint_state_pb2 import MonolithCheckpointState

PARTS = ("assets/table-00000-of-00001", "data-00000-of-00001", "index", "manifest", "meta")


def name_file(name, part):
    if part == "manifest" and ".delta-" not in name:
        return f"manifest-{name}"
    return f"{name}.{part}"


def write_checkpoint(directory, name, content="saved", parts=PARTS):
    for part in parts:
        path = directory / name_file(name, part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def write_list(directory, *names, newest=None):
    state = CheckpointState(
        model_checkpoint_path=newest or names[-1], all_model_checkpoint_paths=names
    )
    (directory / "checkpoint").write_text(text_format.MessageToString(state))


def read_list(directory):
    state = text_format.Parse((directory / "checkpoint").read_text(), CheckpointState())
    return state.model_checkpoint_path, list(state.all_model_checkpoint_paths)


def find_files(directory):
    """Returns the content of each file below a directory."""
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def make_files(name, content="saved"):
    return {name_file(name, part): content for part in PARTS}


def exempt(directory, *names):
    checkpoint_state.save_monolith_checkpoint_state(
        str(directory), MonolithCheckpointState(exempt_model_checkpoint_paths=names)
    )


class TestUnfinishedSave:
    def test_new_step(self, tmp_path):
        save = unfinished.UnfinishedSave(str(tmp_path / "m-1"))
        assert os.listdir(tmp_path) == ["m-1.unfinished"]
        assert save.replaced is None
        save.check_owned()
        write_checkpoint(tmp_path, "m-1")
        save.finish()
        assert find_files(tmp_path) == make_files("m-1")

    def test_unlisted_files_of_the_step_are_removed(self, tmp_path):
        write_checkpoint(tmp_path, "m-1")
        write_checkpoint(tmp_path, "m-10")
        (tmp_path / "m-1_temp").mkdir()
        (tmp_path / "m-1.txt").write_text("notes of the user")
        unfinished.UnfinishedSave(str(tmp_path / "m-1")).finish()
        assert find_files(tmp_path) == {"m-1.txt": "notes of the user", **make_files("m-10")}

    def test_what_is_there_may_stay(self, tmp_path):
        write_checkpoint(tmp_path, "m-1")
        unfinished.UnfinishedSave(str(tmp_path / "m-1"), keep_files=True).finish()
        assert find_files(tmp_path) == make_files("m-1")

    @pytest.mark.parametrize("place", ["{directory}/", ""], ids=["absolute", "relative"])
    def test_listed_step_stays_whole_until_the_new_one_is_listed(self, tmp_path, place):
        place = place.format(directory=tmp_path)
        write_checkpoint(tmp_path, "m-1", "old")
        write_checkpoint(tmp_path, "m-2", "other")
        write_list(tmp_path, f"{place}m-1", f"{place}m-2", newest=f"{place}m-1")
        save = unfinished.UnfinishedSave(str(tmp_path / "m-1"))
        assert save.replaced == str(tmp_path / "replaced-m-1")
        listed = [f"{place}replaced-m-1", f"{place}m-2"]
        assert read_list(tmp_path) == (listed[0], listed)
        others = {
            **make_files("m-2", "other"),
            "checkpoint": (tmp_path / "checkpoint").read_text(),
        }
        mark = {"m-1.unfinished": (tmp_path / "m-1.unfinished").read_text()}
        assert find_files(tmp_path) == {**others, **mark, **make_files("replaced-m-1", "old")}
        write_checkpoint(tmp_path, "m-1", "new")
        assert (tmp_path / "replaced-m-1.index").read_text() == "old"

        write_list(tmp_path, f"{place}m-2", f"{place}m-1")
        save.finish()
        files = find_files(tmp_path)
        del files["checkpoint"], others["checkpoint"]
        assert files == {**others, **make_files("m-1", "new")}

    def test_deltas_are_set_aside_with_their_checkpoint(self, tmp_path):
        write_checkpoint(tmp_path, "m-1", "old")
        write_checkpoint(tmp_path, "m-1.delta-2", "delta")
        (tmp_path / "m-1.deltas").write_text("list")
        write_list(tmp_path, "m-1")
        before = find_files(tmp_path)
        save = unfinished.UnfinishedSave(str(tmp_path / "m-1"))
        files = find_files(tmp_path)
        assert {n: c for n, c in files.items() if "replaced-" in n} == {
            n.replace("m-1", "replaced-m-1"): c for n, c in before.items() if "m-1" in n
        }
        save.abandon()
        assert find_files(tmp_path) == before

    def test_manifest_under_its_earlier_name_is_set_aside_too(self, tmp_path):
        write_checkpoint(tmp_path, "m-1", "old")
        (tmp_path / "manifest-m-1").rename(tmp_path / "m-1.manifest")
        write_list(tmp_path, "m-1")
        before = find_files(tmp_path)
        save = unfinished.UnfinishedSave(str(tmp_path / "m-1"))
        assert (tmp_path / "replaced-m-1.manifest").read_text() == "old"
        assert not (tmp_path / "m-1.manifest").exists()
        save.abandon()
        assert find_files(tmp_path) == before

    def test_abandoned(self, tmp_path):
        save = unfinished.UnfinishedSave(str(tmp_path / "m-1"))
        write_checkpoint(tmp_path, "m-1", parts=PARTS[:2])
        (tmp_path / "m-1.index.tempstate123").write_text("half")
        (tmp_path / f"m-1.meta.tmp{'0' * 32}").write_text("half")
        (tmp_path / f"manifest-m-1.tmp{'0' * 32}").write_text("half")
        (tmp_path / f"checkpoint.tmp{'0' * 32}").write_text("half")
        (tmp_path / "m-1_temp").mkdir()
        (tmp_path / "m-1_temp" / "part-00000-of-00001.index").write_text("half")
        (tmp_path / "ckpt.info-1").write_text("counts")
        save.abandon()
        assert os.listdir(tmp_path) == []

    def test_abandoned_save_of_a_listed_step(self, tmp_path):
        write_checkpoint(tmp_path, "m-1", "old")
        write_list(tmp_path, "m-1")
        before = find_files(tmp_path)
        save = unfinished.UnfinishedSave(str(tmp_path / "m-1"))
        write_checkpoint(tmp_path, "m-1", "new", parts=PARTS[:2])
        save.abandon()
        assert save.replaced is None
        assert find_files(tmp_path) == before

    def test_copies_where_links_are_not_possible(self, tmp_path, monkeypatch):
        def refuse(source, target):
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", refuse)
        self.test_abandoned_save_of_a_listed_step(tmp_path)

    def test_two_processes_that_save_to_one_directory(self, tmp_path):
        save = unfinished.UnfinishedSave(str(tmp_path / "m-1"))
        other = unfinished.UnfinishedSave(str(tmp_path / "m-1"))
        write_checkpoint(tmp_path, "m-1", "of the other")
        with pytest.raises(tf.errors.FailedPreconditionError, match="let only one process save"):
            save.check_owned()
        save.abandon()
        other.check_owned()
        mark = {"m-1.unfinished": (tmp_path / "m-1.unfinished").read_text()}
        assert find_files(tmp_path) == {**mark, **make_files("m-1", "of the other")}
        os.remove(tmp_path / "m-1.unfinished")
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"m-1\.unfinished was removed"):
            save.check_owned()

    def test_missing_directory_is_left_to_who_writes_there(self, tmp_path):
        save = unfinished.UnfinishedSave(str(tmp_path / "missing" / "m-1"))
        save.check_owned()
        save.finish()
        assert os.listdir(tmp_path) == []


class TestCleanUp:
    def clean_up(self, directory):
        unfinished.clean_up(str(directory), "m")
        return find_files(directory)

    def test_marked_and_unlisted_goes(self, tmp_path, caplog):
        write_checkpoint(tmp_path, "m-1", parts=("unfinished", *PARTS[:2]))
        (tmp_path / "ckpt.info-1").write_text("counts")
        assert self.clean_up(tmp_path) == {}
        assert os.listdir(tmp_path) == []
        assert f"removing what a killed process has left of {tmp_path}/m-1" in caplog.text

    def test_listed_stays_and_loses_its_mark(self, tmp_path):
        for name in ("m-1", "m-2"):
            write_checkpoint(tmp_path, name, parts=("unfinished", *PARTS))
        # Written by a process that knew the directory by its path.
        write_list(tmp_path, str(tmp_path / "m-1"), "m-2")
        files = self.clean_up(tmp_path)
        del files["checkpoint"]
        assert files == {**make_files("m-1"), **make_files("m-2")}

    @pytest.mark.parametrize("link", [False, True], ids=["same_path", "symbolic_link"])
    def test_directory_under_another_path(self, tmp_path, monkeypatch, link):
        directory = tmp_path / "model"
        directory.mkdir()
        write_checkpoint(directory, "m-1", parts=("unfinished", *PARTS))
        write_list(directory, str(directory / "m-1"))
        if link:
            (tmp_path / "link").symlink_to(directory)
            unfinished.clean_up(str(tmp_path / "link"), "m")
        else:
            monkeypatch.chdir(tmp_path)
            unfinished.clean_up("model", "m")
        files = find_files(directory)
        del files["checkpoint"]
        assert files == make_files("m-1")

    def test_exempt_stays_as_it_is(self, tmp_path, caplog):
        write_checkpoint(tmp_path, "m-1", parts=("unfinished", *PARTS))
        exempt(tmp_path, "m-1")
        before = find_files(tmp_path)
        assert self.clean_up(tmp_path) == before
        assert "left as it is" in caplog.text

    def test_nothing_goes_while_nobody_knows_what_is_exempt(self, tmp_path):
        write_checkpoint(tmp_path, "m-1", parts=("unfinished", *PARTS))
        (tmp_path / "monolith_checkpoint").write_text("not { readable")
        before = find_files(tmp_path)
        assert self.clean_up(tmp_path) == before

    def test_what_has_no_mark_stays(self, tmp_path):
        # Unlisted and complete: kept every so many hours, or `max_to_keep` is 0; or tables only.
        write_checkpoint(tmp_path, "m-1")
        write_checkpoint(tmp_path, "m-2", parts=PARTS[:1])
        write_checkpoint(tmp_path, "m-3")
        write_list(tmp_path, "m-3")
        before = find_files(tmp_path)
        assert self.clean_up(tmp_path) == before

    @pytest.mark.parametrize("name", ["other-1", "m2-1", "m-x", "m-1-2", "replaced-other-1"])
    def test_names_of_others_stay(self, tmp_path, name):
        write_checkpoint(tmp_path, name, parts=("unfinished", *PARTS))
        before = find_files(tmp_path)
        assert self.clean_up(tmp_path) == before

    def test_checkpoint_of_the_same_name_elsewhere_is_not_this_one(self, tmp_path):
        write_checkpoint(tmp_path, "m-1", parts=("unfinished", *PARTS[:2]))
        write_list(tmp_path, str(tmp_path / "elsewhere" / "m-1"))
        assert list(self.clean_up(tmp_path)) == ["checkpoint"]

    def test_step_that_was_being_replaced_is_there_again(self, tmp_path):
        write_checkpoint(tmp_path, "m-1", "old")
        write_list(tmp_path, "m-1")
        exempt(tmp_path, "m-1")
        before = find_files(tmp_path)
        unfinished.UnfinishedSave(str(tmp_path / "m-1"))
        write_checkpoint(tmp_path, "m-1", "new", parts=PARTS[:2])
        assert self.clean_up(tmp_path) == before

    def test_replaced_files_go_when_the_new_ones_are_listed(self, tmp_path):
        write_checkpoint(tmp_path, "m-1", "new", parts=("unfinished", *PARTS))
        write_checkpoint(tmp_path, "replaced-m-1", "old")
        write_list(tmp_path, "m-1")
        files = self.clean_up(tmp_path)
        del files["checkpoint"]
        assert files == make_files("m-1", "new")

    def test_killed_while_it_deletes(self, tmp_path, monkeypatch):
        class Killed(BaseException):
            pass

        def kill(point):
            if point == failpoints.PARTLY_REMOVED:
                raise Killed

        write_checkpoint(tmp_path, "m-1")
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "on_reach", kill)
            with pytest.raises(Killed):
                checkpoint_state.remove_checkpoint(str(tmp_path / "m-1"))
        assert (tmp_path / "m-1.unfinished").exists()
        assert not (tmp_path / "m-1.index").exists()
        assert self.clean_up(tmp_path) == {}

    def test_damaged_list(self, tmp_path):
        write_checkpoint(tmp_path, "m-1", parts=("unfinished", *PARTS))
        (tmp_path / "checkpoint").write_text("m-1")
        before = find_files(tmp_path)
        with pytest.raises(tf.errors.DataLossError, match=f"{tmp_path}/checkpoint is no list"):
            self.clean_up(tmp_path)
        assert find_files(tmp_path) == before

    def test_missing_directory(self, tmp_path):
        unfinished.clean_up(str(tmp_path / "missing"), "m")
        assert os.listdir(tmp_path) == []


class TestTemporaryFiles:
    def test_only_those_of_a_run_go(self, tmp_path):
        suffix = f".tmp{'0123456789abcdef' * 2}"
        for name in ("checkpoint", "monolith_checkpoint", "graph.pbtxt", "ckpt.info-7", "notes"):
            (tmp_path / f"{name}{suffix}").write_text("half")
        (tmp_path / "checkpoint.tmp").write_text("of the user")
        unfinished.remove_temporary_files(str(tmp_path))
        assert sorted(os.listdir(tmp_path)) == ["checkpoint.tmp", f"notes{suffix}"]

    def test_failed_write_leaves_none(self, tmp_path, monkeypatch):
        def fail(paths):
            raise tf.errors.ResourceExhaustedError(None, None, "full")

        (tmp_path / "list").write_text("old")
        monkeypatch.setattr(durable_files, "sync", fail)
        with pytest.raises(tf.errors.ResourceExhaustedError):
            durable_files.write_atomically(str(tmp_path / "list"), "new")
        assert find_files(tmp_path) == {"list": "old"}


@pytest.mark.usefixtures("graph_mode")
class TestSaver:
    """What the saver makes of it, without a hook."""

    @pytest.fixture
    def session(self):
        tf.compat.v1.get_variable("v", initializer=1.0)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            yield session

    def test_saving_a_step_twice_keeps_its_tables(self, session, tmp_path):
        saver = saving.PartialRecoverySaver(max_to_keep=2)
        prefix = str(tmp_path / "m")
        for step in (1, 2):
            saver.save(session, prefix, global_step=step)
        write_checkpoint(tmp_path, "m-1", "rows", parts=PARTS[:1])
        saver.save(session, prefix, global_step=1)
        assert (tmp_path / "m-1.assets" / "table-00000-of-00001").read_text() == "rows"
        assert [os.path.basename(path) for path in saver.last_checkpoints] == ["m-2", "m-1"]
        assert not list(tmp_path.glob("replaced-*"))
        saver.restore(session, f"{prefix}-1")

    def test_same_directory_under_another_path(self, session, tmp_path, monkeypatch):
        """A step that is saved again is one checkpoint, not two of which one is deleted."""
        saver = saving.PartialRecoverySaver(max_to_keep=1)
        saver.save(session, str(tmp_path / "m"), global_step=1)
        monkeypatch.chdir(tmp_path)
        saver.save(session, "m", global_step=1)
        assert saver.last_checkpoints == ["m-1"]
        saver.restore(session, str(tmp_path / "m-1"))

    def test_bad_arguments_remove_nothing(self, session, tmp_path):
        saver = saving.PartialRecoverySaver()
        saver.save(session, str(tmp_path / "m"), global_step=1, write_state=False)
        before = sorted(os.listdir(tmp_path))
        with pytest.raises(ValueError, match="must not contain path components"):
            saver.save(session, str(tmp_path / "m"), global_step=1, latest_filename="a/b")
        assert sorted(os.listdir(tmp_path)) == before

    def test_leftovers_go_with_the_first_save(self, session, tmp_path):
        write_checkpoint(tmp_path, "m-7", parts=("unfinished", *PARTS[:2]))
        (tmp_path / f"checkpoint.tmp{'0' * 32}").write_text("half")
        saver = saving.PartialRecoverySaver()
        saver.save(session, str(tmp_path / "m"), global_step=1)
        parts = [name_file("m-1", part) for part in PARTS[1:]]
        assert sorted(os.listdir(tmp_path)) == sorted(["checkpoint", *parts])

    def test_process_that_does_not_save_removes_nothing(self, session, tmp_path):
        write_checkpoint(tmp_path, "m-7", parts=("unfinished", *PARTS[:2]))
        before = find_files(tmp_path)
        saver = saving.PartialRecoverySaver(skip_save=True)
        saver.clean_up(str(tmp_path / "m"))
        saver.begin_save(str(tmp_path / "m"), 7)
        saver.save(session, str(tmp_path / "m"), global_step=7)
        saver.abandon_save()
        assert find_files(tmp_path) == before

    def test_kept_every_so_many_hours_has_no_mark(self, session, tmp_path):
        saver = saving.PartialRecoverySaver(max_to_keep=1, keep_checkpoint_every_n_hours=1e-9)
        for step in (1, 2, 3):
            saver.save(session, str(tmp_path / "m"), global_step=step)
        assert len(list(tmp_path.glob("*.index"))) == 3
        assert not list(tmp_path.glob("*.unfinished"))
