"""Both kinds of tables beside checkpoints: one listener saves all, one restores all."""

import json
import logging
import os
import pathlib
import shutil

import pytest
import tensorflow as tf
from google.protobuf import text_format
from support.segments import make_config

from monolith import errors, testing
from monolith.checkpoint import restore_hook
from monolith.checkpoint import saver as saving
from monolith.checkpoint.changed_model import OnChange
from monolith.embedding import entry
from monolith.embedding.tables import multi, registry, single, snapshots
from monolith.proto import ckpt_info_pb2

pytestmark = pytest.mark.usefixtures("graph_mode")

ODD_NAMES = [
    *("a/b", "a-b", "a:b", "a%2Fb", "t", "t.meta", "t.meta.meta", "my table", "50%", "..", "*"),
    *("用户", "x" * 1000, "x" * 1000 + "y"),
]


@pytest.fixture
def basename(tmp_path) -> str:
    return str(tmp_path / "model.ckpt")


def make_single(name):
    return single.test_hash_table(1, name_suffix=name)


def make_multi(name):
    config = testing.generate_test_hash_table_config(1, learning_rate=0.1)
    return multi.MultiHashTable.from_configs({"f": config}, name_suffix=name)


def assign(table, value):
    """Gives the row of id 7 a value."""
    if isinstance(table, single.HashTable):
        return table.assign([7], [[value]]).as_op()
    return table.assign({"f": ([7], [[value]])}).as_op()


def lookup(table):
    if isinstance(table, single.HashTable):
        return table.lookup([7])[0, 0]
    return table.lookup({"f": [7]})["f"][0, 0]


def save(make_table, names, basename, step=1):
    """Saves a table of each name; the value in a table is its place among the names."""
    with tf.Graph().as_default():
        writes = [assign(make_table(name), float(i + 1)) for i, name in enumerate(names)]
        listener = snapshots.TableSaverListener(basename)
        with tf.compat.v1.Session() as session:
            initialize(session)
            session.run(writes)
            listener.before_save(session, step)


def restore(make_table, names, basename, step=1):
    """Returns the values of tables that are restored."""
    with tf.Graph().as_default():
        values = [lookup(make_table(name)) for name in names]
        listener = snapshots.TableRestorerListener(basename)
        with tf.compat.v1.Session() as session:
            listener._restore_from_path_prefix(session, f"{basename}-{step}")
            return session.run(values)


def initialize(session):
    resources = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.RESOURCES)
    session.run([resource.create for resource in resources])


def assets(basename, step=1) -> pathlib.Path:
    return pathlib.Path(f"{basename}-{step}.assets")


def rename_files(directory, old, new):
    """Gives the files of a table the name that a version from before would have chosen."""
    for path in list(directory.glob(f"{old}*-of-*")):
        target = directory / path.name.replace(old, new, 1)
        target.parent.mkdir(exist_ok=True)
        path.rename(target)


class TestNames:
    @pytest.mark.parametrize("make_table", [make_single, make_multi])
    def test_a_slash_and_a_dash_are_two_tables(self, basename, make_table):
        save(make_table, ["a/b", "a-b"], basename)
        assert restore(make_table, ["a/b", "a-b"], basename) == [1, 2]

    @pytest.mark.parametrize("make_table", [make_single, make_multi])
    def test_a_table_may_be_called_as_the_counts_of_another(self, basename, make_table):
        save(make_table, ["t", "t.meta"], basename)
        assert restore(make_table, ["t", "t.meta"], basename) == [1, 2]

    @pytest.mark.parametrize("make_table", [make_single, make_multi])
    def test_any_name_will_do(self, basename, make_table):
        save(make_table, ODD_NAMES, basename)
        restored = restore(make_table, ODD_NAMES, basename)
        assert restored == [i + 1 for i in range(len(ODD_NAMES))]
        assert not any(path.is_dir() for path in assets(basename).iterdir())

    def test_a_table_may_be_called_as_a_filter(self, basename):
        handle = make_single("t").table
        single.HashTable(table=handle, shared_name="hash_filter_0", dim_size=1)
        entry = registry.get_tables()[-1]
        assert entry.name == "hash_filter_0"
        assert not entry.file.startswith("hash_filter_")


class TestOldSnapshots:
    def test_a_list_leads_to_files_with_old_names(self, basename):
        save(make_single, ["a/b", "c"], basename)
        rename_files(assets(basename), "MonolithHashTable_a%2Fb", "MonolithHashTable_a-b")
        path = assets(basename) / "hash_table_shards.json"
        path.write_text(path.read_text().replace("%2F", "-"))
        assert restore(make_single, ["a/b", "c"], basename) == [1, 2]

    def test_without_a_list_files_are_found_by_their_old_names(self, basename):
        save(make_single, ["a/b:c"], basename)
        rename_files(assets(basename), "MonolithHashTable_a%2Fb%3Ac", "MonolithHashTable_a-b-c")
        (assets(basename) / "hash_table_shards.json").unlink()
        assert restore(make_single, ["a/b:c"], basename) == [1]

    def test_a_multi_table_with_a_slash_was_in_a_directory_below(self, basename):
        save(make_multi, ["a/b"], basename)
        old = "MonolithMultiHashTable_a/b"
        rename_files(assets(basename), "MonolithMultiHashTable_a%2Fb", old)
        (assets(basename) / "multi_hash_table_shards.json").unlink()
        assert restore(make_multi, ["a/b"], basename) == [1]

    def test_a_file_that_the_list_gives_to_another_table_is_not_taken(self, basename):
        save(make_single, ["a-b"], basename)
        # Without a list, this is the file that a/b had.
        with pytest.raises(ValueError, match="for table: MonolithHashTable_a/b"):
            restore(make_single, ["a/b"], basename)

    def test_counts_are_not_taken_for_a_table(self, basename):
        save(make_single, ["t"], basename)
        with pytest.raises(ValueError, match=r"for table: MonolithHashTable_t\.meta"):
            restore(make_single, ["t.meta"], basename)

    def test_tables_that_shared_a_file_are_named(self, basename, caplog):
        save(make_single, ["a-b"], basename)
        path = assets(basename) / "hash_table_shards.json"
        listed = json.loads(path.read_text())
        listed["tables"]["MonolithHashTable_a/b"] = ["MonolithHashTable_a-b"]
        path.write_text(json.dumps(listed))
        with caplog.at_level(logging.WARNING):
            assert restore(make_single, ["a/b", "a-b"], basename) == [1, 1]
        (message,) = [record.getMessage() for record in caplog.records]
        assert "MonolithHashTable_a-b and MonolithHashTable_a/b" in message


class TestPathPrefix:
    @pytest.mark.parametrize("ending", ["", ".assets", ".assets/"])
    def test_the_asset_directory_will_do(self, basename, ending):
        save(make_single, ["s"], basename)
        save(make_multi, ["m"], basename)
        tables = [make_single("s"), make_multi("m")]
        values = [lookup(table) for table in tables]
        listeners = [
            [snapshots.TableRestorerListener(basename)],
            [
                single.HashTableCheckpointRestorerListener(basename),
                multi.MultiHashTableCheckpointRestorerListener(basename),
            ],
        ]
        for group in listeners:
            with tf.compat.v1.Session() as session:
                for listener in group:
                    listener._restore_from_path_prefix(session, f"{basename}-1{ending}")
                assert session.run(values) == [1, 1]


class TestFilesOfAnotherSave:
    """Files that are whole, but not those that were saved here, are refused by their names."""

    @pytest.fixture
    def prefix(self, basename) -> str:
        """A checkpoint with a table on two servers, whose files have the same size."""
        return self.save_model(basename, [1.0, 2.0])

    def save_model(self, basename, values):
        with tf.Graph().as_default():
            tf.compat.v1.train.get_or_create_global_step()
            tables = [make_single(f"t_{server}") for server in range(len(values))]
            writes = [assign(t, value) for t, value in zip(tables, values, strict=True)]
            listener = snapshots.TableSaverListener(basename)
            saver = saving.PartialRecoverySaver(sharded=True)
            with tf.compat.v1.Session() as session:
                session.run([tf.compat.v1.global_variables_initializer(), writes])
                listener.before_save(session, 1)
                return saver.save(session, basename, global_step=1)

    def restore_model(self, basename, prefix, through_hook):
        tf.compat.v1.train.get_or_create_global_step()
        values = [lookup(make_single(f"t_{server}")) for server in range(2)]
        listener = snapshots.TableRestorerListener(basename)
        hook = restore_hook.CheckpointRestorerHook([listener])
        with tf.compat.v1.Session() as session:
            if through_hook:
                # As TensorFlow's own saver does, which knows no manifest.
                tf.compat.v1.train.Saver().restore(session, prefix)
                hook.after_create_session(session, None)
            else:
                listener.before_restore(session)
            return session.run(values)

    def shard(self, basename, server) -> pathlib.Path:
        return assets(basename) / f"MonolithHashTable_t_{server}-00000-of-00001"

    @pytest.mark.parametrize("through_hook", [False, True])
    def test_nothing_changed(self, basename, prefix, through_hook):
        assert self.restore_model(basename, prefix, through_hook) == [1, 2]

    @pytest.mark.parametrize("through_hook", [False, True])
    def test_swapped_between_servers(self, basename, prefix, through_hook):
        first, second = (self.shard(basename, server) for server in range(2))
        first_rows, second_rows = first.read_bytes(), second.read_bytes()
        assert len(first_rows) == len(second_rows)
        first.write_bytes(second_rows)
        second.write_bytes(first_rows)
        with pytest.raises(tf.errors.DataLossError, match=r"_t_[01]-00000-of-00001 is damaged"):
            self.restore_model(basename, prefix, through_hook)

    @pytest.mark.parametrize("through_hook", [False, True])
    def test_of_another_run(self, basename, prefix, tmp_path, through_hook):
        (tmp_path / "other").mkdir()
        other = str(tmp_path / "other" / "model.ckpt")
        self.save_model(other, [7.0, 8.0])
        shutil.copy(self.shard(other, 1), self.shard(basename, 1))
        with pytest.raises(tf.errors.DataLossError, match="_t_1-00000-of-00001 is damaged"):
            self.restore_model(basename, prefix, through_hook)


class TestAllTables:
    def test_one_listener_saves_and_one_restores_both_kinds(self, basename, tmp_path):
        tables = [make_single("s"), make_multi("m")]
        writes = [assign(table, 2.0) for table in tables]
        others = [assign(table, 9.0) for table in tables]
        values = [lookup(table) for table in tables]
        saver = snapshots.TableSaverListener(basename)
        restorer = snapshots.TableRestorerListener(basename)
        with tf.compat.v1.Session() as session:
            initialize(session)
            session.run(writes)
            saver.before_save(session, 3)
            session.run(others)
            restorer._restore_from_path_prefix(session, f"{basename}-3")
            assert session.run(values) == [2, 2]
        names = os.listdir(assets(basename, 3))
        assert {"hash_table_shards.json", "multi_hash_table_shards.json"} <= set(names)
        info = text_format.Parse((tmp_path / "ckpt.info-3").read_text(), ckpt_info_pb2.CkptInfo())
        assert dict(info.feature_counts) == {"f": 1}

    def test_tables_after_a_save_are_those_of_the_save(self, basename):
        tables = [make_single("s"), make_multi("m")]
        writes = [assign(table, 2.0) for table in tables]
        others = [assign(table, 9.0) for table in tables]
        values = [lookup(table) for table in tables]
        saver = snapshots.TableSaverListener(basename)
        restorer = snapshots.TableRestorerSaverListener(basename)
        with tf.compat.v1.Session() as session:
            initialize(session)
            session.run(writes)
            saver.before_save(session, 3)
            session.run(others)
            restorer.after_save(session, 3)
            assert session.run(values) == [2, 2]

    def test_nothing_is_restored_if_one_table_is_missing(self, basename):
        save(make_single, ["s"], basename)
        save(make_multi, ["m"], basename)
        tables = [make_single("s"), make_multi("other")]
        values = [lookup(tables[0])]
        listener = snapshots.TableRestorerListener(basename)
        with tf.compat.v1.Session() as session:
            with pytest.raises(ValueError, match="MonolithMultiHashTable_other"):
                listener._restore_from_path_prefix(session, f"{basename}-1")
            assert session.run(values) == [0]


ADAGRAD = entry.AdagradOptimizer(initial_accumulator_value=1.0)


class TestChangedRows:
    """Rows of another form than those of the checkpoint are refused, or kept as far as they fit."""

    BEFORE = {
        "a": make_config((2, ADAGRAD)),
        "b": make_config((2, ADAGRAD)),
        "c": make_config((2, ADAGRAD)),
    }

    def save_rows(self, basename):
        """Saves rows of three tables, each with one step of Adagrad behind it."""
        with tf.Graph().as_default():
            table = self.make(self.BEFORE)
            rows = {name: ([1, 2], [[2.0, 2.0]] * 2) for name in self.BEFORE}
            step = table.assign(rows).apply_gradients(rows, tf.constant(1, tf.int64)).as_op()
            listener = snapshots.TableSaverListener(basename)
            with tf.compat.v1.Session() as session:
                initialize(session)
                session.run(step)
                listener.before_save(session, 1)

    @staticmethod
    def make(configs):
        return multi.MultiHashTable.from_configs(configs, name_suffix="m")

    def restore_rows(self, basename, changed_model, **changed):
        """Returns the first row of each table, and what it is after a step with gradient 1."""
        configs = {**self.BEFORE, **changed}
        with tf.Graph().as_default():
            table = self.make(configs)
            listener = snapshots.TableRestorerListener(basename, changed_model=changed_model)
            rows = table.lookup({name: [1] for name in configs})
            gradients = {name: ([1], tf.ones_like(row)) for name, row in rows.items()}
            step = table.apply_gradients(gradients, tf.constant(2, tf.int64)).as_op()
            with tf.compat.v1.Session() as session:
                initialize(session)
                listener._restore_from_path_prefix(session, f"{basename}-1")
                before = session.run(rows)
                session.run(step)
                after = session.run(rows)
        return {name: (before[name][0].tolist(), after[name][0].tolist()) for name in configs}

    # The gradient 2: 2 - 2 / sqrt(1 + 4). Then 1, with the state 1 + 4 + 1.
    WEIGHT = 2 - 2 / 5**0.5
    NEXT = WEIGHT - 1 / 6**0.5

    def test_what_fits_is_kept(self, basename, caplog):
        self.save_rows(basename)
        rows = self.restore_rows(
            basename,
            OnChange.KEEP_WHAT_FITS,
            b=make_config((2, entry.SgdOptimizer())),
            c=make_config((3, ADAGRAD)),
        )
        assert rows["a"] == (pytest.approx([self.WEIGHT] * 2), pytest.approx([self.NEXT] * 2))
        assert rows["b"] == (pytest.approx([self.WEIGHT] * 2), pytest.approx([self.WEIGHT - 1] * 2))
        # The first gradient that the row has ever seen: -1 / sqrt(1 + 1).
        assert rows["c"] == ([0, 0, 0], pytest.approx([-(0.5**0.5)] * 3))
        prefix = f"the model has changed since {basename}-1: table"
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
            f"{prefix} 'b' has dim 2 (sgd), in the checkpoint dim 2 (adagrad), and keeps its "
            "weights",
            f"{prefix} 'c' has dim 3 (adagrad), in the checkpoint dim 2 (adagrad), and starts "
            "without rows",
        ]

    def test_weights_are_kept_with_a_fresh_state(self, basename):
        self.save_rows(basename)
        momentum = entry.MomentumOptimizer(momentum=0.5)
        rows = self.restore_rows(basename, OnChange.KEEP_WHAT_FITS, b=make_config((2, momentum)))
        # n = 0.5 * 0 - 1.
        assert rows["b"][1] == pytest.approx([self.WEIGHT - 1] * 2)

    @pytest.mark.parametrize("changed_model", [None, OnChange.REFUSE])
    @pytest.mark.parametrize(
        ("segments", "now"),
        [
            pytest.param([(3, ADAGRAD)], "dim 3 (adagrad)", id="dim"),
            pytest.param([(2, entry.AdamOptimizer())], "dim 2 (adam)", id="optimizer"),
            pytest.param(
                [(1, ADAGRAD), (1, ADAGRAD)], "dim 1 (adagrad) + 1 (adagrad)", id="segments"
            ),
        ],
    )
    def test_refused(self, basename, changed_model, segments, now):
        self.save_rows(basename)
        with pytest.raises(errors.ConfigError) as caught:
            self.restore_rows(basename, changed_model, b=make_config(*segments))
        assert f"table 'b' has {now}, in the checkpoint dim 2 (adagrad)." in str(caught.value)
        assert "train with restore_what_fits=True" in str(caught.value)
        assert "'a'" not in str(caught.value)

    def test_refused_before_any_row_is_read(self, basename):
        """Two resources, of which the first would fit."""
        self.save_rows(basename)
        save(make_single, ["s"], basename)
        fits, changed = make_single("s"), self.make({"b": make_config((3, ADAGRAD))})
        values = [lookup(fits), changed.sizes()]
        listener = snapshots.TableRestorerListener(basename)
        with tf.compat.v1.Session() as session:
            initialize(session)
            with pytest.raises(errors.ConfigError, match="table 'b' has dim 3"):
                listener._restore_from_path_prefix(session, f"{basename}-1")
            assert [int(value.sum()) for value in session.run(values)] == [0, 0]

    def test_a_table_of_its_own(self, basename):
        with tf.Graph().as_default():
            single.hash_table_from_config(make_config((2, ADAGRAD)), name_suffix="user")
            listener = snapshots.TableSaverListener(basename)
            with tf.compat.v1.Session() as session:
                listener.before_save(session, 1)
        single.hash_table_from_config(make_config((3, ADAGRAD)), name_suffix="user")
        listener = snapshots.TableRestorerListener(basename)
        with (
            tf.compat.v1.Session() as session,
            pytest.raises(errors.ConfigError, match=r"table 'user' has dim 3 \(adagrad\), in"),
        ):
            listener._restore_from_path_prefix(session, f"{basename}-1")

    def test_a_table_that_the_checkpoint_lacks(self, basename, caplog):
        save(make_single, ["s"], basename)
        tables = [make_single("s"), make_single("new"), make_multi("m")]
        values = [lookup(table) for table in tables]
        with tf.compat.v1.Session() as session:
            for changed_model, error in (
                (None, "Unable to find table"),
                (OnChange.REFUSE, "'new'"),
            ):
                listener = snapshots.TableRestorerListener(basename, changed_model=changed_model)
                with pytest.raises(ValueError, match=error):
                    listener._restore_from_path_prefix(session, f"{basename}-1")
            listener = snapshots.TableRestorerListener(
                basename, changed_model=OnChange.KEEP_WHAT_FITS
            )
            listener._restore_from_path_prefix(session, f"{basename}-1")
            assert session.run(values) == [1, 0, 0]
        assert "table 'new' is not in the checkpoint, and starts without rows" in caplog.text
        assert "table 'f' is not in the checkpoint, and starts without rows" in caplog.text

    @pytest.mark.parametrize("changed_model", [None, *OnChange])
    def test_a_checkpoint_from_before_forms_were_noted(self, basename, changed_model):
        self.save_rows(basename)
        path = assets(basename) / "multi_hash_table_shards.json"
        listed = json.loads(path.read_text())
        del listed["rows"]
        path.write_text(json.dumps(listed))
        assert self.restore_rows(basename, changed_model)["a"][0] == pytest.approx(
            [self.WEIGHT] * 2
        )
        with pytest.raises(errors.ConfigError, match="The rows of table 'b' have another") as error:
            self.restore_rows(basename, changed_model, b=make_config((3, ADAGRAD)))
        assert "the dump has dim 2, but the table has dim 3. The checkpoint" in str(error.value)
        assert "\n" not in str(error.value)
