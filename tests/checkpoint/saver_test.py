"""The saver does all that TensorFlow's does, and restores what was saved.

Covers monolith/checkpoint/save.py and monolith/checkpoint/saver_builder.py.
"""

import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from support.savers import initialize, make_variable
from tensorflow.python.checkpoint import checkpoint_management
from tensorflow.python.eager import context
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.training import saver_test_utils

from monolith.native_training import save_utils

pytestmark = pytest.mark.usefixtures("graph_mode")

Saver = save_utils.PartialRecoverySaver

v1 = tf.compat.v1


class SaverTest(tf.test.TestCase):
    def path(self, *parts: str) -> str:
        return os.path.join(os.environ["TEST_TMPDIR"], *parts)

    def basicSaveRestore(self, variable_op):
        save_path = self.path("basic_save_restore")
        with self.session(graph=tf.Graph()) as session:
            v0 = variable_op(10.0, name="v0")
            v1_ = variable_op(20.0, name="v1")
            v2 = saver_test_utils.CheckpointedOp(name="v2")
            insert = v2.insert("k1", 30.0)
            initialize(session)
            session.run(insert)
            saver = Saver({"v0": v0, "v1": v1_, "v2": v2.saveable}, restore_sequentially=True)
            self.assertEqual(saver.save(session, save_path), save_path)

        with self.session(graph=tf.Graph()) as session:
            v0 = variable_op(-1.0, name="v0")
            v1_ = variable_op(-1.0, name="v1")
            v2 = saver_test_utils.CheckpointedOp(name="v2")
            saver = Saver({"v0": v0, "v1": v1_, "v2": v2.saveable})
            with self.assertRaises(tf.errors.FailedPreconditionError):
                session.run(v0)
            self.assertEqual(len(session.run(v2.keys())), 0)
            saver.restore(session, save_path)
            self.assertEqual(session.run([v0, v1_]), [10.0, 20.0])
            self.assertEqual(session.run([v2.keys(), v2.values()]), [[b"k1"], [30.0]])

        # One variable takes the value of another: a saver with other names for the same things.
        with self.session(graph=tf.Graph()) as session:
            v0 = variable_op(1000.0, name="v0_2")
            v1_ = variable_op(2000.0, name="v1_2")
            v2 = saver_test_utils.CheckpointedOp(name="v2")
            initialize(session)
            session.run(v2.insert("k1000", 3000.0))
            saver = Saver({"v0": v0, "v1": v1_, "v2": v2.saveable})
            saver.restore(session, save_path)
            self.assertEqual(session.run([v0, v1_]), [10.0, 20.0])
            self.assertEqual(session.run([v2.keys(), v2.values()]), [[b"k1"], [30.0]])

    def testBasic(self):
        self.basicSaveRestore(v1.Variable)

    def testResourceBasic(self):
        self.basicSaveRestore(resource_variable_ops.ResourceVariable)

    def testSaveMaxToKeep(self):
        with self.session() as session:
            make_variable("v", 1.0)
            initialize(session)
            saver = Saver(max_to_keep=2, exempt_checkpoint_paths=["model.ckpt-2"])
            paths = [
                saver.save(session, self.path("model.ckpt"), global_step=step)
                for step in (1, 2, 3, 4)
            ]
        exist = [checkpoint_management.checkpoint_exists(path) for path in paths]
        self.assertEqual(exist, [False, True, True, True])
        self.assertEqual(saver.last_checkpoints, paths[1:])

    def testResourceColocation(self):
        partitioner = v1.fixed_size_partitioner(num_shards=2)
        for task in range(2):
            with tf.device(f"/job:ps/task:{task}/device:GPU:0"):
                v1.get_variable(
                    f"v{task}", shape=[10, 2], partitioner=partitioner, use_resource=True
                )
        Saver(sharded=True)
        saves = [op for op in v1.get_default_graph().get_operations() if op.type == "SaveV2"]
        self.assertEqual(len(saves), 2)
        for task, save in enumerate(saves):
            values = save.inputs[3:]  # After prefix, names and slices.
            self.assertEqual(len(values), 2)
            for tensor in [save, *values]:
                # Files are written by the CPU of the machine that has the variable.
                self.assertEqual(tensor.device, f"/job:ps/task:{task}/device:CPU:0")

    def testResourceVariableReadOpsAddedDeterministically(self):
        def build():
            with tf.Graph().as_default() as graph:
                for i in range(20):
                    make_variable(f"var{i}", float(i))
                Saver(var_list=v1.global_variables())
                return graph.as_graph_def()

        first = build()
        for _ in range(5):
            self.assertEqual(first, build())

    def testEagerBasic(self):
        with context.eager_mode():
            save_path = self.path("eager_basic")
            one = tf.Variable(3.14, name="v1")
            two = tf.Variable([1.0, 2.0], name="v2")
            saver = Saver([one, two])
            saver.save(None, save_path)

            one.assign(0.0)
            two.assign([0.0, 0.0])
            saver.restore(None, save_path)
            self.assertAllClose(one.numpy(), 3.14)
            self.assertAllEqual(two.numpy(), [1.0, 2.0])
            with self.assertRaisesRegex(RuntimeError, "`var_list` must specify a list or dict"):
                Saver()

    def testEagerGraphCompatibility(self):
        graph_path = self.path("graph_to_eager")
        with self.session(graph=tf.Graph()) as session:
            make_variable("w1", 1.0)
            make_variable("w2", 2.0)
            initialize(session)
            Saver().save(session, graph_path)
        eager_path = self.path("eager_to_graph")
        with context.eager_mode():
            w1, w2 = tf.Variable(0.0, name="w1"), tf.Variable(0.0, name="w2")
            saver = Saver([w1, w2])
            saver.restore(None, graph_path)
            self.assertEqual((w1.numpy(), w2.numpy()), (1.0, 2.0))
            w1.assign(10.0)
            w2.assign(20.0)
            saver.save(None, eager_path)
        with self.session(graph=tf.Graph()) as session:
            w1, w2 = make_variable("w1", 0.0), make_variable("w2", 0.0)
            Saver().restore(session, eager_path)
            self.assertEqual(session.run([w1, w2]), [10.0, 20.0])

    def testResourceSaveRestoreCachingDevice(self):
        save_path = self.path("resource_cache")
        with self.session(graph=tf.Graph()) as session:
            v = resource_variable_ops.ResourceVariable([1], caching_device="/cpu:0", name="v")
            initialize(session)
            Saver([v]).save(session, save_path)
        with self.session(graph=tf.Graph()) as session:
            v = resource_variable_ops.ResourceVariable([2], caching_device="/cpu:0", name="v")
            Saver([v]).restore(session, save_path)
            self.assertAllEqual(session.run(v), [1])

    def testNoAdditionalOpsAddedBySaverForResourceVariablesOutsideSaveScope(self):
        v = resource_variable_ops.ResourceVariable(1.0, name="v")
        graph = v1.get_default_graph()
        before = {op.name for op in graph.get_operations()}
        Saver([v], name="my_save")
        added = {op.name for op in graph.get_operations()} - before
        self.assertNotEmpty(added)
        for name in added:
            self.assertStartsWith(name, "my_save/")

    def testSaveCopyRestoreWithSaveRelativePaths(self):
        """A model directory can be moved, and the checkpoint found in its new place."""
        here, there = self.path("save_dir"), self.path("copy_dir")
        os.mkdir(here)
        with self.session(graph=tf.Graph()) as session:
            make_variable("v0", 10.0)
            initialize(session)
            saver = Saver(save_relative_paths=True)
            for step in (1, 2):
                saver.save(session, os.path.join(here, "ckpt"), global_step=step)
        shutil.move(here, there)
        text = pathlib.Path(there, "checkpoint").read_text()
        self.assertIn('model_checkpoint_path: "ckpt-2"', text)
        self.assertNotIn(here, text)
        state = tf.train.get_checkpoint_state(there)
        self.assertEqual(
            list(state.all_model_checkpoint_paths),
            [os.path.join(there, "ckpt-1"), os.path.join(there, "ckpt-2")],
        )
        with self.session(graph=tf.Graph()) as session:
            v0 = make_variable("v0", -1.0)
            Saver().restore(session, tf.train.latest_checkpoint(there))
            self.assertEqual(session.run(v0), 10.0)

    def testFilenameTensor(self):
        v0 = make_variable("v0", 0.0)
        saver = Saver({"v0": v0}, filename=b"somerandomfilename")
        with self.session() as session:
            tensor = v1.get_default_graph().get_tensor_by_name(saver.saver_def.filename_tensor_name)
            self.assertEqual(session.run(tensor), b"somerandomfilename")

    def testInvalidPath(self):
        v0 = make_variable("v0", 0.0)
        for sharded in (False, True):
            with self.session() as session:
                saver = Saver({"v0": v0}, sharded=sharded)
                with self.assertRaisesRegex(
                    ValueError, "The passed save_path is not a valid checkpoint:.*invalid path"
                ):
                    saver.restore(session, "invalid path")
                with self.assertRaisesRegex(ValueError, "Can't load save_path when it is None."):
                    saver.restore(session, None)

    def testInt64(self):
        save_path = self.path("int64")
        big = 2**53 + 1  # Not a double.
        with self.session(graph=tf.Graph()) as session:
            make_variable("v", np.int64(big))
            initialize(session)
            Saver().save(session, save_path)
        with self.session(graph=tf.Graph()) as session:
            v = make_variable("v", np.int64(-1))
            with self.assertRaisesWithPredicateMatch(
                tf.errors.FailedPreconditionError, lambda e: "v" in e.message
            ):
                session.run(v)
            Saver().restore(session, save_path)
            self.assertEqual(session.run(v), big)

    def testSomeErrors(self):
        v0 = v1.Variable([10.0], name="v0", use_resource=True)
        one = v1.Variable([20.0], name="v1", use_resource=True)
        two = v1.Variable([20.0], name="v2", use_resource=True)
        two._set_save_slice_info(v1.Variable.SaveSliceInfo("v1", [1], [0], [1]))
        # By default the name is used for "v2", and a slice of "v1" is not "v1" itself.
        with self.assertRaisesRegex(ValueError, "same name: v1"):
            Saver([v0, one, two])
        Saver([v0, one])
        Saver({"vee1": one, "other": [two]})
        with self.assertRaisesRegex(TypeError, "not a Variable"):
            Saver([v0, tf.constant(1.0)])
        with self.session() as session:
            initialize(session)
            saver = Saver([v0])
            with self.assertRaisesRegex(ValueError, "must not contain path components"):
                saver.save(session, self.path("m"), latest_filename="a/checkpoint")
            with self.assertRaisesRegex(ValueError, "collides with 'save_path'"):
                saver.save(session, self.path("checkpoint"))
            with self.assertRaisesRegex(TypeError, "'sess' must be a Session"):
                saver.save("no session", self.path("m"))

    def testSameName(self):
        v0 = make_variable("v0", [10.0])
        two = make_variable("v2", [20.0])
        # One variable under two names is refused, two variables under one, too.
        with self.assertRaisesRegex(
            ValueError, "The same saveable will be restored with two names"
        ):
            Saver({"v0": v0, "v0too": v0})
        op = saver_test_utils.CheckpointedOp(name="ck")
        with self.assertRaisesRegex(
            ValueError, "The same saveable will be restored with two names"
        ):
            Saver({"ck": op.saveable, "ck_too": op.saveable})
        Saver({"v0": v0, "v2": two})

    def testBasicsWithListOfVariables(self):
        save_path = self.path("list_of_variables")
        with self.session(graph=tf.Graph()) as session:
            v0, one = make_variable("v0", 10.0), make_variable("v1", 20.0)
            op = saver_test_utils.CheckpointedOp(name="v2")
            initialize(session)
            session.run(op.insert("k1", 30.0))
            saver = Saver([v0, one, op.saveable])
            self.assertEqual(saver.save(session, save_path), save_path)
        with self.session(graph=tf.Graph()) as session:
            v0, one = make_variable("v0", 0.0), make_variable("v1", 0.0)
            op = saver_test_utils.CheckpointedOp(name="v2")
            Saver([v0, one, op.saveable]).restore(session, save_path)
            self.assertEqual(session.run([v0, one]), [10.0, 20.0])
            self.assertEqual(session.run([op.keys(), op.values()]), [[b"k1"], [30.0]])

    def _SaveAndLoad(self, var_name, var_value, other_value, save_path):
        with self.session(graph=tf.Graph()) as session:
            var = make_variable(var_name, var_value)
            initialize(session)
            self.assertEqual(Saver({var_name: var}).save(session, save_path), save_path)
        with self.session(graph=tf.Graph()) as session:
            var = make_variable(var_name, other_value)
            Saver({var_name: var}).restore(session, save_path)
            self.assertAllClose(var_value, session.run(var))

    def testCacheRereadsFile(self):
        # The same path twice, with other variables in it: nothing is remembered from the first.
        self._SaveAndLoad("var0", 0.0, 1.0, self.path("cache_rereads"))
        self._SaveAndLoad("var1", 1.0, 0.0, self.path("cache_rereads"))

    def testAllowEmpty(self):
        save_path = self.path("empty")
        with self.session() as session:
            tf.constant(1)
            with self.assertRaisesRegex(ValueError, "No variables to save"):
                Saver()
            saver = Saver(allow_empty=True)
            self.assertIsNone(saver.save(session, save_path))
            saver.restore(session, save_path)

    def testGPU(self):
        if not tf.config.list_physical_devices("GPU"):
            self.skipTest("this machine has no GPU")
        save_path = self.path("gpu")
        with self.session(graph=tf.Graph()) as session, tf.device("/gpu:0"):
            make_variable("v", 123.45)
            initialize(session)
            Saver().save(session, save_path)
        with self.session(graph=tf.Graph()) as session, tf.device("/gpu:0"):
            v = make_variable("v", 543.21)
            Saver().restore(session, save_path)
            self.assertAllClose(session.run(v), 123.45)

    def testSharedServerOnGPU(self):
        if not tf.config.list_physical_devices("GPU"):
            self.skipTest("this machine has no GPU")
        save_path = self.path("gpu_shared_server")
        server = tf.distribute.Server.create_local_server()
        for value, expected in ((123.45, None), (543.21, 123.45)):
            with (
                tf.Graph().as_default(),
                v1.Session(server.target) as session,
                tf.device("/gpu:0"),
            ):
                v = make_variable("v", value)
                initialize(session)
                saver = Saver(sharded=True, allow_empty=True)
                if expected is None:
                    saver.save(session, save_path)
                else:
                    saver.restore(session, save_path)
                    self.assertAllClose(session.run(v), expected)

    def testVariables(self):
        save_path = self.path("variables")
        with self.session(graph=tf.Graph()) as session:
            one = v1.Variable(1.0, name="x", use_resource=False)
            two = v1.Variable(2.0, name="y", use_resource=True)
            three = saver_test_utils.CheckpointedOp(name="z")
            initialize(session)
            session.run(three.insert("k", 3.0))
            # Everything in the graph, when nothing is named.
            Saver().save(session, save_path)
        with self.session(graph=tf.Graph()) as session:
            one = v1.Variable(0.0, name="x", use_resource=False)
            two = v1.Variable(0.0, name="y", use_resource=True)
            three = saver_test_utils.CheckpointedOp(name="z")
            Saver().restore(session, save_path)
            self.assertEqual(session.run([one, two]), [1.0, 2.0])
            self.assertEqual(session.run(three.lookup("k", 0.0)), 3.0)

    def testVarListShouldBeEmptyInDeferredBuild(self):
        v = make_variable("v", 1.0)
        message = (
            "If `var_list` is provided then build cannot be deferred. "
            "Either set defer_build=False or var_list=None."
        )
        with self.assertRaisesRegex(ValueError, message):
            Saver([v], defer_build=True)

    def testBuildShouldBeCalledBeforeSaveInCaseOfDeferBuild(self):
        make_variable("v", 1.0)
        saver = Saver(defer_build=True)
        with (
            self.session() as session,
            self.assertRaisesRegex(
                RuntimeError, "`build\\(\\)` should be called before save if defer_build==True"
            ),
        ):
            saver.save(session, self.path("defer_build"))

    def testDeferredBuild(self):
        save_path = self.path("deferred_build")
        with self.session(graph=tf.Graph()) as session:
            make_variable("v", 1.0)
            saver = Saver(defer_build=True)
            # Variables made before `build` are saved, too.
            make_variable("later", 2.0)
            saver.build()
            initialize(session)
            saver.save(session, save_path)
        self.assertEqual({name for name, _ in tf.train.list_variables(save_path)}, {"v", "later"})

    def testReshape(self):
        for use_resource in (False, True):
            save_path = self.path(f"reshape_{use_resource}")

            def make(value, use_resource=use_resource):
                return v1.get_variable("v", initializer=value, use_resource=use_resource)

            with self.session(graph=tf.Graph()) as session:
                make([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
                initialize(session)
                Saver().save(session, save_path)
            with self.session(graph=tf.Graph()) as session:
                make([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
                with self.assertRaisesRegex(
                    tf.errors.InvalidArgumentError, "a mismatch between the current graph"
                ):
                    Saver().restore(session, save_path)
            with self.session(graph=tf.Graph()) as session:
                v = make([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
                Saver(reshape=True).restore(session, save_path)
                self.assertAllClose([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], session.run(v))

    def testSaveWithGlobalStep(self, pad_step_number=False):
        step_value = 5
        save_path = self.path("ckpt_with_global_step")
        step = make_variable("global_step", step_value)
        with self.session() as session:
            initialize(session)
            saver = Saver({"step": step}, pad_step_number=pad_step_number)
            # A tensor, its name and a number mean the same.
            expected = f"{save_path}-{step_value:08d}" if pad_step_number else f"{save_path}-5"
            for given in (step, step.value().name, step_value):
                self.assertEqual(saver.save(session, save_path, global_step=given), expected)
            self.assertEqual(saver.last_checkpoints, [expected])

    def testSaveWithGlobalStepWithPadding(self):
        self.testSaveWithGlobalStep(pad_step_number=True)

    def testSaveToNonexistingPath(self):
        make_variable("v", 10.0)
        pathlib.Path(self.path("file")).write_text("no directory")
        with self.session() as session:
            initialize(session)
            # Some file systems make missing directories, others do not.
            saver = Saver()
            saver.save(session, self.path("missing", "ckpt"))
            saver.restore(session, self.path("missing", "ckpt"))
            for sharded, path in (
                (False, self.path("file", "ckpt")),
                (True, self.path("file", "ckpt")),
                (True, self.path("missing", "too", "ckpt")),
            ):
                with self.assertRaisesRegex(
                    ValueError, f"Parent directory of {path} doesn't exist, can't save."
                ):
                    Saver(sharded=sharded).save(session, path)

    def testSaveToURI(self):
        # tf.Saver("file://path") is the same as tf.Saver("path").
        save_path = "file://" + self.path("uri", "ckpt")
        os.mkdir(self.path("uri"))
        with self.session(graph=tf.Graph()) as session:
            make_variable("v", 10.0)
            initialize(session)
            saver = Saver(max_to_keep=1)
            self.assertEqual(saver.save(session, save_path, global_step=1), f"{save_path}-1")
            saver.save(session, save_path, global_step=2)
        self.assertEqual(
            sorted(os.listdir(self.path("uri"))),
            [
                "checkpoint",
                "ckpt-2.data-00000-of-00001",
                "ckpt-2.index",
                "ckpt-2.meta",
                "manifest-ckpt-2",
            ],
        )
        with self.session(graph=tf.Graph()) as session:
            v = make_variable("v", 0.0)
            Saver().restore(session, f"{save_path}-2")
            self.assertEqual(session.run(v), 10.0)

    def testSaveRestoreAndValidateVariableDtype(self):
        for use_resource in (False, True):
            save_path = self.path(f"dtype_{use_resource}")
            with self.session(graph=tf.Graph()) as session:
                v1.Variable(10.0, name="v0", use_resource=use_resource)
                initialize(session)
                Saver().save(session, save_path)
            with self.session(graph=tf.Graph()) as session:
                v1.Variable(np.int64(1), name="v0", use_resource=use_resource)
                with self.assertRaisesRegex(tf.errors.InvalidArgumentError, "original dtype"):
                    Saver().restore(session, save_path)

    def testRestoreLargeTensors(self):
        # Tensors above 16 MiB take another way through TensorFlow's reader.
        save_path = self.path("large")
        shapes = [(10, 2)] * 3 + [(5 * 1024, 1024)] * 2

        def build():
            return [
                v1.get_variable(f"v{i}", shape=shape, use_resource=True)
                for i, shape in enumerate(shapes)
            ]

        with self.session(graph=tf.Graph()) as session:
            variables = build()
            initialize(session)
            saved = session.run(variables)
            Saver(max_to_keep=1).save(session, save_path, write_meta_graph=False)
        with self.session(graph=tf.Graph()) as session:
            variables = build()
            Saver().restore(session, save_path)
            for expected, found in zip(saved, session.run(variables), strict=True):
                np.testing.assert_array_equal(expected, found)


class SaveRestoreShardedTest(tf.test.TestCase):
    """Dataset iterators on two devices of one session."""

    def _get_test_dir(self, name):
        path = os.path.join(os.environ["TEST_TMPDIR"], name)
        os.makedirs(path)
        return os.path.join(path, "ckpt")

    def _make_iterators(self):
        iterators = []
        for i in range(2):
            with tf.device(f"/cpu:{i}"):
                iterator = v1.data.make_initializable_iterator(
                    tf.data.Dataset.range(100 * i, 100 * i + 10), shared_name=f"iterator{i}"
                )
                v1.add_to_collection(
                    v1.GraphKeys.SAVEABLE_OBJECTS,
                    tf.data.experimental.make_saveable_from_iterator(iterator),
                )
                iterators.append(iterator)
        return iterators, [iterator.get_next() for iterator in iterators]

    def _session(self):
        return v1.Session(config=v1.ConfigProto(device_count={"CPU": 2}))

    def _save_at_3(self, save_path):
        with tf.Graph().as_default(), self._session() as session:
            iterators, elements = self._make_iterators()
            session.run([iterator.initializer for iterator in iterators])
            for i in range(3):
                self.assertEqual(session.run(elements), [i, 100 + i])
            saver = Saver(sharded=True)
            path = saver.save(session, save_path)
            self.assertEqual(session.run(elements), [3, 103])
        return path

    def _restore_at_3(self, path, sharded):
        with tf.Graph().as_default(), self._session() as session:
            iterators, elements = self._make_iterators()
            session.run([iterator.initializer for iterator in iterators])
            saver = Saver(sharded=sharded)
            saver.restore(session, path)
            self.assertEqual(session.run(elements), [3, 103])

    def testIterators(self):
        path = self._save_at_3(self._get_test_dir("sharded_iterators"))
        files = os.listdir(os.path.dirname(path))
        self.assertIn("ckpt.data-00000-of-00002", files)
        self.assertIn("ckpt.data-00001-of-00002", files)
        self._restore_at_3(path, sharded=True)

    def testIteratorsUnshardedRestore(self):
        path = self._save_at_3(self._get_test_dir("unsharded_restore_iterators"))
        self._restore_at_3(path, sharded=False)


class SaveRestoreWithVariableNameMap(tf.test.TestCase):
    def _testNonReshape(self, variable_op):
        save_path = os.path.join(os.environ["TEST_TMPDIR"], "non_reshape")
        with self.session(graph=tf.Graph()) as session:
            v0 = variable_op(10.0, name="v0")
            one = variable_op(20.0, name="v1")
            initialize(session)
            saver = Saver({"save_prefix/v0": v0, "save_prefix/v1": one})
            self.assertEqual(saver.save(session, save_path), save_path)
        self.assertEqual(
            [name for name, _ in tf.train.list_variables(save_path)],
            ["save_prefix/v0", "save_prefix/v1"],
        )
        # The names in the checkpoint are those of the map, not those of the variables.
        with self.session(graph=tf.Graph()) as session:
            v0 = variable_op(-1.0, name="v0")
            one = variable_op(-1.0, name="v1")
            with self.assertRaisesRegex(tf.errors.NotFoundError, "v0 not found in checkpoint"):
                Saver({"v0": v0, "v1": one}).restore(session, save_path)
        with self.session(graph=tf.Graph()) as session:
            v0 = variable_op(-1.0, name="restore_prefix/v0")
            one = variable_op(-1.0, name="restore_prefix/v1")
            Saver({"save_prefix/v0": v0, "save_prefix/v1": one}).restore(session, save_path)
            self.assertEqual(session.run([v0, one]), [10.0, 20.0])

    def testNonReshapeResourceVariable(self):
        self._testNonReshape(resource_variable_ops.ResourceVariable)

    def testNonReshapeVariable(self):
        self._testNonReshape(lambda *args, **kw: v1.Variable(*args, **kw, use_resource=False))
