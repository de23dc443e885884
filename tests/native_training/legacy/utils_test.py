"""Graph helpers, and params derived from constructors."""

import platform
import socket
import unittest

import pytest
import tensorflow as tf

from monolith.core.hyperparams import InstantiableParams, Params
from monolith.model.base_task import BaseTask
from monolith.native_training import utils
from monolith.native_training.legacy import utils as graph


class UtilsTest(unittest.TestCase):
    def test_propagate_back_dict_gradients(self):
        with tf.Graph().as_default(), tf.compat.v1.Session() as sess:
            x = tf.Variable(8.0)
            y = 2 * x
            grad_y = 3 * y
            valid_vars = {y}
            grouped = utils.propagate_back_dict_gradients(
                zip([grad_y], [y], strict=True), {x: "group1"}, valid_vars
            )
            sess.run(tf.compat.v1.global_variables_initializer())
            self.assertEqual(list(grouped), ["group1"])
            # y = 16, its gradient 3 * 16 = 48, times dy/dx = 2.
            self.assertEqual(sess.run(grouped["group1"]), [(96, 8)])

    def test_check_ops_dependence(self):
        with tf.Graph().as_default():
            v = tf.Variable(0)
            add = v.assign_add(1)
            with tf.control_dependencies([add]):
                t1 = tf.constant(1)
                t2 = tf.constant(2)
            with self.assertRaises(Exception) as raised:
                utils.check_ops_dependence(t1.op.name, add.name)
            self.assertEqual(
                str(raised.exception),
                f"Checking ops dependence, the ops [{t1.op.name}] depend on ops [{add.name}], "
                f"which may cause ops [{add.name}] to be run twice.",
            )
            utils.check_ops_dependence(t1.op.name, t2.op.name)

    def test_collections(self):
        with tf.Graph().as_default():
            utils.add_to_collections("int", 1)
            utils.add_to_collections("int", 2)
            utils.add_to_collections("str", "str")
            utils.add_to_collections("bool", False)
            utils.add_to_collections("bool", True)
            utils.add_to_collections("int_list", [1, 2, 3])
            utils.add_to_collections("int_list", [4, 5, 6])
            utils.add_to_collections("int_list", [])
            utils.add_to_collections("str_list", ["hello", "world"])
            utils.add_to_collections("str_list", None)
            utils.add_to_collections("bool_list", [True])
            utils.add_to_collections("bool_list", [False])

            self.assertEqual(utils.get_collection("int")[-1], 2)
            self.assertEqual(utils.get_collection("str")[-1], "str")
            self.assertEqual(utils.get_collection("bool")[-1], True)
            self.assertEqual(utils.get_collection("int_list")[-1], [4, 5, 6])
            self.assertEqual(utils.get_collection("str_list")[-1], ["hello", "world"])
            self.assertEqual(utils.get_collection("bool_list")[-1], [False])


class TestGradients:
    def test_groups_keep_the_order_of_the_keys(self):
        with tf.Graph().as_default():
            xs = [tf.constant(float(i)) for i in range(3)]
            y = xs[0] + xs[1] + xs[2]
            grouped = graph.propagate_back_dict_gradients(
                [(y, y)], {xs[2]: "a", xs[0]: "b", xs[1]: "a"}
            )
            assert [
                x is expected for (_, x), expected in zip(grouped["a"], [xs[2], xs[1]], strict=True)
            ] == [True, True]
            assert len(grouped["b"]) == 1


class TestShapes:
    def test_ndim(self):
        with tf.Graph().as_default():
            assert graph.get_ndim(tf.constant([[1, 2]])) == 2
            assert graph.get_ndim(tf.constant(1)) == 0
            assert graph.get_ndim(tf.compat.v1.placeholder(tf.float32)) is None

    def test_int_shape(self):
        with tf.Graph().as_default():
            known = tf.compat.v1.placeholder(tf.float32, [None, 3])
            assert graph.int_shape(known) == [-1, 3]
            assert graph.int_shape(tf.compat.v1.placeholder(tf.float32)) is None

    @pytest.mark.parametrize(
        ("dims", "expected"),
        [
            ([tf.compat.v1.Dimension(4), tf.compat.v1.Dimension(None), 2], [4, -1, 2]),
            (["wide", 2], None),
        ],
    )
    def test_kinds_of_dimensions(self, dims, expected):
        class Shape:
            def as_list(self):
                return dims

        class Shaped:
            def get_shape(self):
                return Shape()

        assert graph.int_shape(Shaped()) == expected


class TestLists:
    def test_extend_as_list(self):
        long_enough = [1, 2, 3]
        assert graph.extend_as_list(long_enough, 2) is long_enough
        assert graph.extend_as_list([1], 3) == [1, None, None]
        assert graph.extend_as_list((1, 2), 3) == [1, 2, None]
        assert graph.extend_as_list("a", 2) == ["a", "a"]

    def test_extend_as_list_copies(self):
        first, second = graph.extend_as_list({"a": []}, 2)
        first["a"].append(1)
        assert second == {"a": []}

    def test_extend_as_list_repeats_what_cannot_be_copied(self):
        class Unique:
            def __deepcopy__(self, memo):
                raise TypeError("there is only one")

        unique = Unique()
        assert graph.extend_as_list(unique, 3) == [unique] * 3

    def test_check_list(self):
        candidate = [1, 2]
        assert graph.check_list(candidate, lambda n: n == 2) is candidate
        assert graph.check_list(None, lambda n: False, could_be_none=True) is None
        with pytest.raises(ValueError, match="length of 2"):
            graph.check_list(candidate, lambda n: n > 2)

    @pytest.mark.parametrize("candidate", [None, (1, 2), "ab"])
    def test_check_list_takes_only_lists(self, candidate):
        with pytest.raises(TypeError, match="Expected a list"):
            graph.check_list(candidate, lambda n: True)

    def test_to_list(self):
        values = [1]
        assert graph.to_list(values) is values
        assert graph.to_list((1, 2)) == [(1, 2)]
        assert graph.to_list(None) == [None]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("DenseLayer", "dense_layer"),
        ("MLP", "mlp"),
        ("FFMModel", "ffm_model"),
        ("already_snake", "already_snake"),
        ("_Hidden", "private__hidden"),
        ("_hidden", "private_hidden"),
        ("", ""),
    ],
)
def test_to_snake_case(name, expected):
    assert graph.to_snake_case(name) == expected


def test_ps_device():
    assert graph.PS_JOB_NAME == "ps"
    assert graph.ps_device(3) == "/job:ps/task:3/device:CPU:0"


class TestEnvironment:
    @pytest.mark.parametrize(
        ("system", "suffix"), [("Linux", ""), ("Windows", ""), ("Darwin", ".local")]
    )
    def test_local_host(self, monkeypatch, system, suffix):
        # Which names resolve differs between machines, so resolution is replaced here.
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(socket, "gethostname", lambda: "box")
        monkeypatch.setattr(socket, "gethostbyname", lambda name: f"address of {name}")
        assert graph.get_local_host() == f"address of box{suffix}"

    def test_test_tmp_dir(self, monkeypatch):
        monkeypatch.setenv("TEST_TMPDIR", "/somewhere")
        assert graph.get_test_tmp_dir() == "/somewhere"
        monkeypatch.delenv("TEST_TMPDIR")
        assert graph.get_test_tmp_dir() == "/tmp"

    def test_file_names(self):
        assert graph.get_debugging_info_file_name("/m") == "/m/debugging_info.pb"
        assert graph.get_meta_graph_file_name("/m") == "/m/meta_graph_for_debugging.pb"

    def test_metric_prefix(self, monkeypatch):
        monkeypatch.setenv("MONOLITH_METRIC_PREFIX", "to be removed after the test")
        monkeypatch.delenv("MONOLITH_METRIC_PREFIX")
        assert graph.get_metric_prefix() == "monolith.training"
        graph.set_metric_prefix("monolith.training.movies")
        assert graph.get_metric_prefix() == "monolith.training.movies"


class TestCollections:
    @pytest.mark.parametrize("value", [0, 0.0, False, ""])
    def test_falsy_scalars_are_kept(self, value):
        with tf.Graph().as_default():
            graph.add_to_collections("c", value)
            assert graph.get_collection("c") == [value]

    @pytest.mark.parametrize("value", [None, [], {}, ()])
    def test_empty_values_are_skipped(self, caplog, value):
        with tf.Graph().as_default(), caplog.at_level("INFO"):
            graph.add_to_collections("c", value)
            assert graph.get_collection("c") is None
        assert f"value is {value}, skip" in caplog.text

    def test_tensors_and_several_names(self):
        with tf.Graph().as_default():
            tensor, variable = tf.constant([]), tf.Variable(1.0)
            graph.add_to_collections(["a", "b"], tensor)
            graph.add_to_collections("b", variable)
            assert graph.get_collection("a")[0] is tensor
            assert graph.get_collection("b")[1] is variable


@graph.with_params
class Base:
    def __init__(self, units, activation="relu", name=None, **kwargs):
        self.arguments = (units, activation, name, kwargs)


@graph.with_params
class Derived(Base):
    def __init__(self, rate, units=16, *args, maxLen=5, **kwargs):
        super().__init__(units, **kwargs)
        self.rate = rate
        self.max_length = maxLen


class Undecorated(Base):
    def __init__(self, extra=1, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra


@graph.with_params
class WithParamsOfTask(BaseTask):
    def __init__(self, params, max_steps=7):
        super().__init__(params)


class TestParams:
    def test_constructor_arguments_become_params(self):
        params = Base.params()
        assert type(params) is InstantiableParams
        assert params.cls is Base
        assert (params.units, params.activation, params.name) == (None, "relu", "Base")

    def test_allowed_kwargs_are_defined(self):
        params = Base.params()
        for name in ("input_shape", "weights", "autocast"):
            assert params[name] is None

    def test_derived_class_extends_and_overrides(self):
        params = Derived.params()
        assert params.cls is Derived
        assert (params.rate, params.units, params.activation) == (None, 16, "relu")
        # No param can be called so; the constructor's default serves.
        assert "maxLen" not in params

    def test_undecorated_subclass_has_its_own_params(self):
        params = Undecorated.params()
        assert params.cls is Undecorated
        assert params.extra == 1
        assert params.activation == "relu"

    def test_params_make_objects(self):
        made = Derived.params().set(rate=0.5, units=3, name="tower").instantiate()
        assert made.arguments == (3, "relu", "tower", {})
        assert (made.rate, made.max_length) == (0.5, 5)

    def test_default_lands_where_the_base_class_holds_the_param(self):
        params = WithParamsOfTask.params()
        assert params.train.max_steps == 7
        assert "max_steps" not in params
        assert params.cls is WithParamsOfTask

    def test_get_parameters(self):
        own, everything = {}, {}
        graph._get_parameters(Derived, own)
        assert list(own) == ["rate", "units", "maxLen"]
        graph._get_all_parameters(Derived, everything)
        assert list(everything) == ["units", "activation", "name", "rate", "maxLen"]
        assert everything["units"].default == 16

    def test_inverted_index(self):
        inner, outer = Params(), InstantiableParams()
        inner.define("deep", 1, "")
        inner.define("shared", 1, "")
        outer.define("inner", inner, "")
        outer.define("shared", 1, "")
        index = {}
        graph._inverted_index(outer, index)
        assert index["deep"] is inner
        assert index["shared"] is outer
        assert index["cls"] is outer
        assert "inner" not in index
