"""An `ml.Table` in files: its own, those of `tf.train.Checkpoint`, and SavedModels.

Covers monolith/embedding/table_exports.py and monolith/embedding/table_resource.py.
"""

import gc
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.embedding import optimizers
from monolith.embedding.table import Table
from monolith.optimizer.learning_rate import PolynomialDecay


def slices(ids, dim=2):
    values = np.random.default_rng(len(ids)).normal(size=(len(ids), dim))
    return tf.IndexedSlices(tf.constant(values, tf.float32), tf.constant(ids, tf.int64))


def make_trained(ids=(1, 2, 3), **settings):
    # Zeros: the first step of a new row is the same in two tables.
    settings = {"optimizer": optimizers.Adagrad(0.1), "initializer": "zeros", **settings}
    table = Table("scores", 2, **settings)
    table.apply_gradients(slices(list(ids)))
    return table


def assert_same(first, second, ids=(1, 2, 3, 99)):
    np.testing.assert_array_equal(first(list(ids)).numpy(), second(list(ids)).numpy())
    # And they go on alike, which needs the state of the optimizer.
    for table in (first, second):
        table.apply_gradients(slices([1, 2]))
    np.testing.assert_array_equal(first(list(ids)).numpy(), second(list(ids)).numpy())


class TestOwnFiles:
    @pytest.mark.parametrize(
        "optimizer",
        [
            optimizers.SGD(0.1),
            optimizers.Adagrad(0.1),
            optimizers.Momentum(0.1),
            optimizers.Adadelta(0.1),
            optimizers.Adam(0.1),
            optimizers.AMSGrad(0.1),
            optimizers.FTRL(0.1),
        ],
        ids=optimizers.show,
    )
    def test_round_trip(self, tmp_path, optimizer):
        path = str(tmp_path / "snap" / "scores")
        table = make_trained(optimizer=optimizer, expire_after_days=30, compressor="fp16")
        table.save(path)
        loaded = Table.load(path)
        assert loaded.config == table.config
        assert len(loaded) == 3
        assert_same(table, loaded)

    def test_counts_survive(self, tmp_path):
        path = str(tmp_path / "scores")
        table = Table("scores", 2, admit_after=2)
        for _ in range(2):
            table.apply_gradients(slices([7]))
        assert len(table) == 0
        table.save(path)
        loaded = Table.load(path)
        loaded.apply_gradients(slices([7, 8]))
        assert loaded.ids().tolist() == [7]

    def test_updates_survive(self, tmp_path):
        schedule = PolynomialDecay(1.0, 2, end_learning_rate=0.0)
        table = make_trained(optimizer=optimizers.SGD(schedule), ids=[1, 1])
        table.save(str(tmp_path))
        assert_same(table, Table.load(str(tmp_path)))

    def test_restore_replaces(self, tmp_path):
        table = make_trained()
        table.save(str(tmp_path))
        other = make_trained(ids=[4, 5])
        other.restore(str(tmp_path))
        assert sorted(other.ids()) == [1, 2, 3]
        assert_same(table, other)

    def test_a_second_save_replaces_the_first(self, tmp_path):
        table = make_trained()
        table.save(str(tmp_path))
        table.apply_gradients(slices([4]))
        table.save(str(tmp_path))
        assert len(Table.load(str(tmp_path))) == 4
        assert len(os.listdir(tmp_path)) == 3  # Rows, their number, and the list.

    def test_a_path_object(self, tmp_path):
        make_trained().save(tmp_path)
        assert len(Table.load(tmp_path, name="other")) == 3

    def test_empty_table(self, tmp_path):
        Table("scores", 2).save(str(tmp_path))
        assert len(Table.load(str(tmp_path))) == 0

    def test_expired_rows_are_left_out(self, tmp_path):
        table = make_trained(expire_after_days=1)
        table.save(str(tmp_path))
        assert len(Table.load(str(tmp_path))) == 3  # The newest update counts, not the clock.

    def test_a_threshold_for_the_first_time(self, tmp_path):
        make_trained().save(str(tmp_path))
        table = Table("scores", 2, optimizers.Adagrad(0.1), admit_after=1)
        table.restore(str(tmp_path))
        table.apply_gradients(slices([7]))
        assert sorted(table.ids()) == [1, 2, 3]

    def test_another_rate_of_the_same_optimizer(self, tmp_path):
        make_trained().save(str(tmp_path))
        table = Table.load(str(tmp_path), optimizer=optimizers.Adagrad(0.5))
        assert table.config.learning_rate == 0.5
        assert len(table) == 3

    def test_another_kind_of_optimizer(self, tmp_path):
        make_trained().save(str(tmp_path))
        with pytest.raises(errors.DataError, match=r"Table 'scores' was not restored from"):
            Table.load(str(tmp_path), optimizer=optimizers.Adam(0.1))

    def test_function_as_learning_rate(self, tmp_path):
        make_trained(optimizer=optimizers.SGD(lambda: 0.1)).save(str(tmp_path))
        with pytest.raises(errors.ConfigError, match="give `optimizer` again"):
            Table.load(str(tmp_path))
        assert len(Table.load(str(tmp_path), optimizer=optimizers.SGD(0.1))) == 3

    def test_another_dim(self, tmp_path):
        make_trained().save(str(tmp_path))
        with pytest.raises(
            errors.DataError, match="holds a table of dim 2, but table 'x' has dim 3"
        ):
            Table("x", 3).restore(str(tmp_path))

    def test_nothing_there(self, tmp_path):
        with pytest.raises(errors.DataError, match="holds no table"):
            Table.load(str(tmp_path / "missing"))

    @pytest.mark.parametrize("part", ["rows", "counts"])
    @pytest.mark.parametrize("damage", ["missing", "cut", "flipped"])
    def test_damage_is_named_and_changes_nothing(self, tmp_path, part, damage):
        saved = make_trained(admit_after=1)
        saved.assign([4, 5], [[1.0, 2.0]] * 2)
        saved.save(str(tmp_path))
        path = next(p for p in sorted(tmp_path.iterdir()) if p.name.startswith(f"{part}-"))
        content = bytearray(path.read_bytes())
        if damage == "missing":
            path.unlink()
        elif damage == "cut":
            path.write_bytes(content[: len(content) // 2])
        else:
            content[len(content) // 2] ^= 0x10
            path.write_bytes(content)
        table = Table("mine", 2, optimizers.Adagrad(0.1), admit_after=1)
        table.assign([9], [[1.0, 2.0]])
        with pytest.raises(errors.DataError, match="Table 'mine' was not restored from"):
            table.restore(str(tmp_path))
        assert table.ids().tolist() == [9]

    @pytest.mark.parametrize("settings", [{}, {"table": {}}, {"table": {"dim": 2, "nmae": "x"}}])
    def test_settings_of_something_else(self, tmp_path, settings):
        make_trained().save(str(tmp_path))
        content = json.loads((tmp_path / "table.json").read_text())
        content["settings"] = settings
        (tmp_path / "table.json").write_text(json.dumps(content))
        with pytest.raises(errors.DataError, match="not the settings of a table"):
            Table.load(str(tmp_path))


class Model(tf.Module):
    def __init__(self, *tables):
        super().__init__()
        self.tables = list(tables)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def serve(self, ids):
        return [table(ids) for table in self.tables]


class TestCheckpoints:
    def test_round_trip(self, tmp_path):
        model = Model(make_trained(admit_after=0), make_trained(ids=[5]))
        saved = tf.train.Checkpoint(model=model).save(str(tmp_path / "ckpt"))
        other = Model(make_trained([8]), make_trained([9]))
        tf.train.Checkpoint(model=other).restore(saved).assert_consumed()
        for first, second in zip(model.tables, other.tables, strict=True):
            assert sorted(first.ids()) == sorted(second.ids())
            assert_same(first, second)

    def test_restored_before_the_table_is_made(self, tmp_path):
        table = make_trained()
        saved = tf.train.Checkpoint(table=table).save(str(tmp_path / "ckpt"))
        checkpoint = tf.train.Checkpoint()
        status = checkpoint.restore(saved)
        checkpoint.table = Table("x", 2, optimizers.Adagrad(0.1))
        status.assert_consumed()
        assert_same(table, checkpoint.table)


class TestSavedModels:
    def test_serves_in_another_process(self, tmp_path):
        model = Model(make_trained(), make_trained(ids=[5]))
        tf.saved_model.save(model, str(tmp_path / "export"))
        program = f"""
            import numpy as np
            import tensorflow as tf
            import monolith.embedding.table
            # Nobody keeps the model, only its function.
            serve = tf.saved_model.load({str(tmp_path / "export")!r}).serve
            np.save("rows.npy", tf.stack(serve(tf.constant([1, 2, 5, 7], tf.int64))).numpy())
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
        expected = tf.stack(model.serve(tf.constant([1, 2, 5, 7], tf.int64))).numpy()
        np.testing.assert_array_equal(np.load("rows.npy"), expected)
        assert not list(pathlib.Path(tmp_path).glob("tmp*"))  # What was copied is gone.

    def test_versions_stay_apart(self, tmp_path):
        table = make_trained()
        model = Model(table)
        ids = tf.constant([1], tf.int64)
        served, expected = [], []
        for version in ("1", "2"):
            table.apply_gradients(slices([1]))
            expected.append(table(ids).numpy().tolist())
            tf.saved_model.save(model, str(tmp_path / version))
            served.append(tf.saved_model.load(str(tmp_path / version)))
        served.append(tf.saved_model.load(str(tmp_path / "2")))
        assert [each.serve(ids)[0].numpy().tolist() for each in served[:2]] == expected
        assert expected[0] != expected[1]
        del served[1]
        gc.collect()
        assert served[1].serve(ids)[0].numpy().tolist() == expected[1]

    def test_rows_are_compressed(self, tmp_path):
        table = Table("x", 2, compressor="fp16")
        table.assign([1], [[1 / 3, 2.0]])
        tf.saved_model.save(Model(table), str(tmp_path))
        served = tf.saved_model.load(str(tmp_path)).serve(tf.constant([1], tf.int64))
        assert served[0].numpy().tolist() == [[float(np.float16(1 / 3)), 2.0]]

    def test_sessions_load_it(self, tmp_path):
        table = make_trained()
        tf.saved_model.save(Model(table), str(tmp_path))
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            meta = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path))
            signature = meta.signature_def["serving_default"]
            (output,) = signature.outputs.values()
            feeds = {signature.inputs["ids"].name: [1, 2, 7]}
            rows = session.run(output.name, feeds)
        np.testing.assert_array_equal(rows, table([1, 2, 7]).numpy())
