"""Starting a changed model from the checkpoint of the old one.

Covers monolith/checkpoint/custom_restore.py.
"""

import os

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.checkpoint import changed_model
from monolith.checkpoint.changed_model import OnChange
from monolith.graph import export_mode
from monolith.native_training import basic_restore_hook, dense_reload_utils, save_utils

pytestmark = pytest.mark.usefixtures("graph_mode")

CustomRestoreListener = dense_reload_utils.CustomRestoreListener
CUSTOM_RESTORE_OP = dense_reload_utils.CUSTOM_RESTORE_OP
v1 = tf.compat.v1


def make_variable(name, value):
    return v1.get_variable(name, initializer=np.float32(value), use_resource=True)


def make_partitioned(name):
    # 128 KiB per part: 64 rows of 512 floats.
    partitioner = v1.variable_axis_size_partitioner(max_shard_bytes=1 << 17)
    return v1.get_variable(name, shape=[1280, 512], partitioner=partitioner, use_resource=True)


def make_placeholder(name, shape):
    placeholder = v1.placeholder(tf.float32, shape)
    placeholder.origin_name = name
    return placeholder


@pytest.fixture
def model_dir(tmp_path):
    """A model with step 5, x = 1 and dense_3 = [1, 2]."""
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        make_variable("x", 1.0)
        make_variable("dense_3/kernel", [1.0, 2.0])
        session.run(v1.global_variables_initializer())
        session.run(v1.assign(step, 5))
        v1.train.Saver().save(session, str(tmp_path / "model.ckpt"), global_step=5)
    return str(tmp_path)


def build_model(*extra):
    """The same model with new names; all values are 0 until something is restored."""
    step = v1.train.get_or_create_global_step()
    return [step, make_variable("x", 0.0), *(make_variable(name, [0.0, 0.0]) for name in extra)]


def open_session(model_dir, listener, saver=None):
    if saver is None:
        saver = save_utils.PartialRecoverySaver()
    v1.add_to_collection(v1.GraphKeys.SAVERS, saver)
    hook = basic_restore_hook.CheckpointRestorerHook([listener])
    return v1.train.MonitoredTrainingSession(
        checkpoint_dir=model_dir, hooks=[hook], save_checkpoint_secs=None, save_summaries_steps=None
    )


def read(session, variables):
    return [value.tolist() for value in session.run(variables)]


class DenseReloadUtilsTest(tf.test.TestCase):
    def test_infer_variable_name(self):
        variable = make_partitioned("partition")
        names = [part.op.name for part in variable]
        self.assertLen(names, 20)
        self.assertEqual(names[0], "partition/part_0")
        self.assertEqual(dense_reload_utils.infer_variable_name(names), {"partition"})
        names = [part.name for part in variable]
        self.assertEqual(names[19], "partition/part_19:0")
        self.assertEqual(dense_reload_utils.infer_variable_name(names), {"partition:0"})

    def test_calc_feed_dict(self):
        path = os.path.join(os.environ["TEST_TMPDIR"], "partitioned")
        variable = make_partitioned("partition")
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            save_utils.PartialRecoverySaver().save(session, path)
            value = np.concatenate(session.run(list(variable)))
        reader = tf.train.load_checkpoint(path)

        names = [f"renamed/part_{i}" for i in range(20)]
        alias_map = dict.fromkeys(names, "partition")
        # In any order, and part_10 after part_9.
        placeholders = [
            make_placeholder(name, part.shape)
            for name, part in sorted(zip(names, variable, strict=True), key=lambda pair: pair[0])
        ]
        feed_dict = dense_reload_utils.calc_feed_dict(reader, alias_map, placeholders)
        self.assertLen(feed_dict, len(alias_map))
        for placeholder in placeholders:
            self.assertEqual(feed_dict[placeholder].shape, tuple(placeholder.shape))
            i = int(placeholder.origin_name.removeprefix("renamed/part_"))
            np.testing.assert_array_equal(feed_dict[placeholder], value[64 * i : 64 * (i + 1)])

    def test_alias_map_listener(self):
        model_dir = self.write_checkpoint("alias")
        make_variable("new", 0.0)
        CustomRestoreListener(alias_map={"new": "old"}, model_dir=model_dir).begin()
        ((_, placeholders, alias_map),) = v1.get_collection(CUSTOM_RESTORE_OP)
        self.assertEqual([p.origin_name for p in placeholders], ["new"])
        self.assertEqual(alias_map, {"new": "old"})

    def test_clear_nn_listener(self):
        model_dir = self.write_checkpoint("clear_nn")
        v1.train.get_or_create_global_step()
        CustomRestoreListener(clear_nn=True, continue_training=True, model_dir=model_dir).begin()
        ((ops, placeholders, alias_map),) = v1.get_collection(CUSTOM_RESTORE_OP)
        self.assertLen(ops, 2)
        self.assertEqual(ops[0].model_dir, model_dir)
        self.assertEqual([p.op.name for p in placeholders], ["global_step_ph"])
        self.assertIsNone(alias_map)

    def write_checkpoint(self, name):
        model_dir = os.path.join(os.environ["TEST_TMPDIR"], name)
        os.makedirs(model_dir)
        with tf.Graph().as_default(), v1.Session() as session:
            make_variable("old", 1.0)
            session.run(v1.global_variables_initializer())
            v1.train.Saver().save(session, os.path.join(model_dir, "model.ckpt"), global_step=1)
        return model_dir


class TestCalcFeedDict:
    @pytest.fixture
    def reader(self, model_dir):
        return tf.train.load_checkpoint(model_dir)

    def test_all_new_names_exist(self, reader):
        placeholders = [make_placeholder("x", [])]
        assert dense_reload_utils.calc_feed_dict(reader, {"x": "gone"}, placeholders) is None
        parts = {"dense_3/kernel/part_0": "gone", "dense_3/kernel/part_1": "gone"}
        assert dense_reload_utils.calc_feed_dict(reader, parts, []) is None

    def test_names_that_stayed_need_no_alias(self, reader):
        placeholders = [make_placeholder("x", []), make_placeholder("new", [2])]
        feed_dict = dense_reload_utils.calc_feed_dict(
            reader, {"new": "dense_3/kernel"}, placeholders
        )
        assert [feed_dict[p].tolist() for p in placeholders] == [1, [1, 2]]

    def test_one_old_variable_for_two_new_ones(self, reader):
        placeholders = [make_placeholder(name, [2]) for name in ("a", "b")]
        alias_map = dict.fromkeys(("a", "b"), "dense_3/kernel")
        feed_dict = dense_reload_utils.calc_feed_dict(reader, alias_map, placeholders)
        assert [feed_dict[p].tolist() for p in placeholders] == [[1, 2], [1, 2]]

    def test_alias_of_the_whole_variable_serves_its_parts(self, reader):
        placeholders = [make_placeholder(f"new/part_{i}", [1]) for i in (1, 0)]
        feed_dict = dense_reload_utils.calc_feed_dict(
            reader, {"new": "dense_3/kernel"}, placeholders
        )
        assert [feed_dict[p].tolist() for p in placeholders] == [[2], [1]]

    def test_errors(self, reader):
        def calc(alias_map, placeholder):
            dense_reload_utils.calc_feed_dict(reader, alias_map, [placeholder])

        with pytest.raises(ValueError, match="no attribute `origin_name`"):
            calc({"new": "x"}, v1.placeholder(tf.float32, []))
        with pytest.raises(ValueError, match="has no variable 'gone' for 'new'"):
            calc({"new": "gone"}, make_placeholder("new", []))
        with pytest.raises(ValueError, match=r"'dense_3/kernel' .* shape \[2\], but 'new',"):
            calc({"new": "dense_3/kernel"}, make_placeholder("new", [3]))


class TestAliasMap:
    def test_names_given_by_the_user(self, model_dir):
        variables = build_model("tower")
        listener = CustomRestoreListener(alias_map={"tower": "dense_3/kernel"}, model_dir=model_dir)
        with open_session(model_dir, listener) as session:
            assert read(session, variables) == [5, 1, [1, 2]]
            # Once: the collection is gone.
            assert CUSTOM_RESTORE_OP not in session.graph.get_all_collection_keys()

    def test_names_found(self, model_dir):
        variables = build_model("dense/kernel")
        with open_session(model_dir, CustomRestoreListener(model_dir=model_dir)) as session:
            assert read(session, variables) == [5, 1, [1, 2]]

    def test_parts_of_a_variable(self, model_dir):
        step, x = build_model()
        kernel = v1.get_variable(
            "dense/kernel",
            shape=[2],
            partitioner=v1.fixed_size_partitioner(2),
            use_resource=True,
        )
        with open_session(model_dir, CustomRestoreListener(model_dir=model_dir)) as session:
            assert read(session, [step, x, *kernel]) == [5, 1, [1], [2]]

    def test_restart_with_the_same_alias_map(self, model_dir):
        alias_map = {"tower": "dense_3/kernel"}
        for expected_step in (5, 6):
            with tf.Graph().as_default():
                step, *others = build_model("tower")
                train = v1.assign_add(step, 1)
                saver = save_utils.PartialRecoverySaver()
                listener = CustomRestoreListener(alias_map=alias_map, model_dir=model_dir)
                with open_session(model_dir, listener, saver) as session:
                    assert read(session, [step, *others]) == [expected_step, 1, [1, 2]]
                    session.run(train)
                    saver.save(
                        session._tf_sess(), os.path.join(model_dir, "model.ckpt"), global_step=step
                    )

    def test_nothing_is_added_when_all_names_exist(self, model_dir):
        variables = build_model("dense_3/kernel")
        with open_session(model_dir, CustomRestoreListener(model_dir=model_dir)) as session:
            assert read(session, variables) == [5, 1, [1, 2]]
            assert not session.graph.get_collection(CUSTOM_RESTORE_OP)
            assert not [op for op in session.graph.get_operations() if op.type == "Placeholder"]

    @pytest.mark.parametrize("finds", [True, False])
    def test_variable_that_cannot_be_explained(self, model_dir, caplog, finds):
        build_model("dense/kernel" if not finds else "entirely_new")
        listener = CustomRestoreListener(model_dir=model_dir, enable_alias_map_auto_gen=finds)
        with pytest.raises(tf.errors.NotFoundError, match="not found in checkpoint"):
            open_session(model_dir, listener)
        assert "give an alias_map from their names to those in the checkpoint" in caplog.text

    def test_alias_of_a_variable_that_is_not_there(self, model_dir):
        build_model("tower")
        listener = CustomRestoreListener(alias_map={"tower": "gone"}, model_dir=model_dir)
        with pytest.raises(ValueError, match="has no variable 'gone' for 'tower'"):
            open_session(model_dir, listener)


class TestPartialAliasMap:
    """A map that leaves renamed variables out: one sentence, or they start anew."""

    ALIASES = {"tower": "dense_3/kernel"}

    def open(self, model_dir, changed_model):
        variables = [*build_model("tower"), make_variable("new", [7.0]), make_variable("b", 8.0)]
        parted = v1.get_variable(
            "parted",
            shape=[3],
            initializer=v1.ones_initializer(),
            partitioner=v1.fixed_size_partitioner(2),
        )
        saver = save_utils.PartialRecoverySaver(changed_model=changed_model)
        listener = CustomRestoreListener(alias_map=self.ALIASES, model_dir=model_dir)
        with open_session(model_dir, listener, saver) as session:
            return read(session, [*variables, *parted])

    @pytest.mark.parametrize("changed_model", [None, OnChange.REFUSE])
    def test_all_that_is_missing_is_named_in_one_sentence(self, model_dir, changed_model):
        with pytest.raises(errors.ConfigError) as caught:
            self.open(model_dir, changed_model)
        message = str(caught.value)
        assert message.startswith(
            f"The alias map (reload_alias_map) does not fit {model_dir}/model.ckpt-5: it has no "
            "variable 'new', which the map does not name, it has no variable 'b', which"
        )
        assert "'parted'" in message
        assert "train with restore_what_fits=True" in message

    def test_they_start_anew_and_the_others_are_restored(self, model_dir, caplog):
        values = self.open(model_dir, OnChange.KEEP_WHAT_FITS)
        assert values == [5, 1, [1, 2], [7], 8, [1, 1], [1]]
        assert "these start anew: it has no variable 'new'" in caplog.text

    def test_another_shape_starts_anew(self, model_dir, caplog):
        step, x = build_model()
        wide = make_variable("tower", [7.0, 7.0, 7.0])
        saver = save_utils.PartialRecoverySaver(changed_model=OnChange.KEEP_WHAT_FITS)
        listener = CustomRestoreListener(alias_map=self.ALIASES, model_dir=model_dir)
        with open_session(model_dir, listener, saver) as session:
            assert read(session, [step, x, wide]) == [5, 1, [7, 7, 7]]
        assert "'dense_3/kernel' has the shape [2], but 'tower'" in caplog.text


class TestClearNn:
    def train(self, model_dir, **settings):
        with tf.Graph().as_default():
            variables = build_model("dense_3/kernel")
            saver = save_utils.PartialRecoverySaver()
            listener = CustomRestoreListener(clear_nn=True, model_dir=model_dir, **settings)
            with open_session(model_dir, listener, saver) as session:
                return read(session, variables)

    @pytest.mark.parametrize(
        ("settings", "step"),
        [
            pytest.param({}, 0, id="a_fresh_start_unless_asked_to_continue"),
            pytest.param({"continue_training": False}, 0, id="fresh"),
            pytest.param({"continue_training": True}, 5, id="continued"),
        ],
    )
    def test_once(self, model_dir, settings, step):
        assert self.train(model_dir, **settings) == [step, 0, [0, 0]]
        with open(os.path.join(model_dir, "clear_nn")) as file:
            assert file.read() == "clean nn done!"
        # The flag file is there now: what the checkpoint holds is restored.
        assert self.train(model_dir, **settings) == [5, 1, [1, 2]]

    def test_flag_file_that_comes_after_the_graph_was_built(self, model_dir):
        variables = build_model("dense_3/kernel")
        saver = save_utils.PartialRecoverySaver()
        CustomRestoreListener(clear_nn=True, model_dir=model_dir).begin()
        assert len(v1.get_collection(CUSTOM_RESTORE_OP)) == 1
        with open(os.path.join(model_dir, "clear_nn"), "w") as file:
            file.write("another process was faster")
        with v1.Session() as session:
            saver.restore(session, tf.train.latest_checkpoint(model_dir))
            assert read(session, variables) == [5, 1, [1, 2]]
        assert not v1.get_collection(CUSTOM_RESTORE_OP)

    def test_export_restores(self, model_dir):
        variables = build_model("dense_3/kernel")
        saver = save_utils.PartialRecoverySaver()
        CustomRestoreListener(clear_nn=True, model_dir=model_dir).begin()
        with (
            v1.Session() as session,
            export_mode.enter_export_mode(export_mode.ExportMode.STANDALONE),
        ):
            saver.restore(session, tf.train.latest_checkpoint(model_dir))
            assert read(session, variables) == [5, 1, [1, 2]]
        assert len(v1.get_collection(CUSTOM_RESTORE_OP)) == 1
        assert not os.path.exists(os.path.join(model_dir, "clear_nn"))

    def test_not_used_up_if_tables_have_changed(self, model_dir):
        build_model("dense_3/kernel")
        change = changed_model.TableChange("user", "has dim 2, in the checkpoint dim 1")
        changed_model.add_table_check(lambda prefix: [change])
        listener = CustomRestoreListener(clear_nn=True, model_dir=model_dir)
        with pytest.raises(errors.ConfigError, match="table 'user' has dim 2"):
            open_session(model_dir, listener)
        assert not os.path.exists(os.path.join(model_dir, "clear_nn"))

    def test_not_together_with_aliases(self):
        with pytest.raises(errors.ConfigError, match=r"got both; leave one out.*{'a': 'b'}"):
            CustomRestoreListener(alias_map={"a": "b"}, clear_nn=True)


class TestNothingToDo:
    @pytest.mark.parametrize("settings", [{"clear_nn": True}, {"alias_map": {"x": "y"}}, {}])
    def test_without_a_checkpoint(self, tmp_path, settings):
        build_model()
        CustomRestoreListener(**settings, model_dir=str(tmp_path)).begin()
        CustomRestoreListener(**settings).begin()
        assert not v1.get_collection(CUSTOM_RESTORE_OP)

    def test_while_exporting(self, model_dir):
        build_model()
        with export_mode.enter_export_mode(export_mode.ExportMode.DISTRIBUTED):
            CustomRestoreListener(clear_nn=True, model_dir=model_dir).begin()
        assert not v1.get_collection(CUSTOM_RESTORE_OP)
