"""Params: definition, access, nesting, copies, and the objects made from them."""

import copy
import enum
import pickle

import pytest
import tensorflow as tf

from monolith.core import hyperparams
from monolith.core.hyperparams import InstantiableParams, Params


class TestEnum(enum.Enum):
    __test__ = False

    A = 1
    B = 2


def make_params(**values):
    params = Params()
    for name, value in values.items():
        params.define(name, value, f"The {name}.")
    return params


class TestDefine:
    @pytest.mark.parametrize(
        "name", [None, "", "_foo", "Foo", "1foo", "foo$", "_immutable", "foo\n", "foo.bar", 3]
    )
    def test_bad_names_are_refused(self, name):
        with pytest.raises(AssertionError):
            Params().define(name, 1, "")

    def test_duplicates_are_refused(self):
        params = make_params(foo=1)
        with pytest.raises(AttributeError, match=r"^Parameter foo is already defined$"):
            params.define("foo", 2, "")
        assert params.foo == 1

    def test_frozen_params_take_no_more(self):
        params = make_params(foo=1)
        params.freeze()
        with pytest.raises(TypeError, match=r"^This Params instance is immutable\.$"):
            params.define("bar", 1, "")


class TestAccess:
    def test_attribute_and_item(self):
        params = make_params(foo=1)
        params.foo = 2
        assert params["foo"] == 2
        params["foo"] = 3
        assert params.foo == 3

    def test_unknown_names(self):
        params = make_params(foo=1)
        with pytest.raises(AttributeError, match=r"^bar$"):
            params.bar  # noqa: B018
        with pytest.raises(AttributeError, match=r"^bar$"):
            params["bar"]
        with pytest.raises(AttributeError, match=r"^bar$"):
            params.bar = 1
        with pytest.raises(AttributeError, match=r"^bar$"):
            params["bar"] = 1
        assert not hasattr(params, "bar")

    def test_similar_names_are_suggested(self):
        params = make_params(activation="relu", activations=[], batch_norm=True)
        with pytest.raises(AttributeError) as raised:
            params.actuvation = 1
        # 4 of act, ctu, tuv, uva, vat, ati, tio occur in both.
        assert str(raised.value) == "actuvation (did you mean: [activation,activations])"

    def test_half_of_the_pieces_is_not_enough(self):
        # Of abc and bcd only the first occurs in abcx.
        with pytest.raises(AttributeError) as raised:
            make_params(abcx=1).get("abcde")
        assert str(raised.value) == "abcde"

    def test_size_and_names(self):
        params = make_params(foo=1, bar=2)
        assert len(params) == 2
        assert "foo" in params
        assert "baz" not in params
        assert params.contain("bar")
        assert not params.contain("baz")
        assert dir(params) == ["bar", "foo"]
        assert list(params.iter_params()) == [("foo", 1), ("bar", 2)]


class TestNested:
    @pytest.fixture
    def params(self):
        return make_params(
            foo=1,
            inner=make_params(alpha=2, deep=make_params(beta=3)),
            layers=[make_params(dim=4), 5],
        )

    def test_set_and_get_by_path(self, params):
        returned = params.set(
            foo=10, **{"inner.alpha": 20, "inner.deep.beta": 30, "layers[0].dim": 40}
        )
        assert returned is params
        assert (params.foo, params.inner.alpha, params.inner.deep.beta) == (10, 20, 30)
        assert params.layers[0].dim == params.get("layers[0].dim") == 40
        assert params.get("inner.deep.beta") == 30
        assert params.get("inner") is params.inner

    def test_unknown_leaf_is_named_in_full(self, params):
        for call in (
            lambda: params.set(**{"inner.gamma": 1}),
            lambda: params.get("inner.gamma"),
            lambda: params.delete("inner.gamma"),
        ):
            with pytest.raises(AttributeError, match=r"inner\.gamma"):
                call()

    @pytest.mark.parametrize(
        ("path", "missing"),
        [
            ("inner.b.c.d", "inner.b"),
            ("nothing.b", "nothing"),
            ("layers[7].dim", "layers[7]"),
            ("layers[x].dim", "layers[x]"),
        ],
    )
    def test_missing_intermediate(self, params, path, missing):
        with pytest.raises(AttributeError) as raised:
            params.set(**{path: 1})
        assert str(raised.value) == missing

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("foo.bar", "Cannot introspect <class 'int'> for foo"),
            ("layers.dim", "Cannot introspect <class 'list'> for layers"),
            ("layers[1].dim", "Cannot introspect <class 'int'> for layers[1]"),
            ("foo[0].dim", "Cannot introspect <class 'int'> for foo[0]"),
        ],
    )
    def test_path_through_a_value(self, params, path, message):
        with pytest.raises(AssertionError) as raised:
            params.set(**{path: 1})
        assert str(raised.value) == message

    def test_delete(self, params):
        assert params.delete("foo", "inner.alpha") is params
        assert "foo" not in params
        assert dir(params.inner) == ["deep"]
        with pytest.raises(AttributeError):
            params.delete("foo")


class TestFreeze:
    def test_freeze_is_shallow(self):
        params = make_params(foo=1, inner=make_params(bar=2))
        assert not params.is_immutable()
        params.freeze()
        assert params.is_immutable()
        params.inner.bar = 3
        assert params.inner.bar == 3

    def test_frozen_params_cannot_be_changed(self):
        params = make_params(foo=1)
        params.freeze()
        with pytest.raises(TypeError, match=r"^This Params instance is immutable\.$"):
            params.foo = 2
        with pytest.raises(TypeError):
            params["foo"] = 2
        with pytest.raises(TypeError):
            params._immutable = False
        with pytest.raises(TypeError):
            params.delete("foo")
        with pytest.raises(TypeError) as raised:
            params.set(foo=2)
        assert str(raised.value) == "This Params instance is immutable: {\n  foo: 1\n}"
        assert params.foo == 1

    def test_frozen_child_cannot_be_changed_through_its_parent(self):
        params = make_params(inner=make_params(bar=2))
        params.inner.freeze()
        with pytest.raises(TypeError, match="immutable"):
            params.set(**{"inner.bar": 3})
        with pytest.raises(TypeError, match="immutable"):
            params.delete("inner.bar")
        assert params.inner.bar == 2


class TestCopy:
    def test_copy_is_deep(self):
        params = make_params(inner=make_params(bar=2), values=[1, 2])
        copied = params.copy()
        copied.inner.bar = 3
        copied.values.append(3)
        assert params.inner.bar == 2
        assert params.values == [1, 2]

    def test_copy_keeps_freeze_and_type(self):
        params = InstantiableParams(dict)
        params.freeze()
        copied = params.copy()
        assert type(copied) is InstantiableParams
        assert copied.is_immutable()
        assert copied.cls is dict

    def test_tensors_are_shared(self):
        with tf.Graph().as_default():
            tensor = tf.constant(1.0)
            params = make_params(inner=make_params(tensor=tensor))
            assert params.copy().inner.tensor is tensor

    def test_copy_module_and_pickle_work(self):
        params = make_params(foo=1, inner=make_params(bar=2))
        assert copy.deepcopy(params) == params
        assert pickle.loads(pickle.dumps(params)) == params

    def test_values_shared_inside_stay_shared(self):
        inner = make_params(bar=2)
        copied = make_params(a=inner, b=inner).copy()
        assert copied.a is copied.b
        assert copied.a is not inner


class TestEquality:
    def test_equal_names_and_values(self):
        assert make_params(foo=1) == make_params(foo=1)
        assert make_params(foo=1) != make_params(foo=2)
        assert make_params(foo=1) != make_params(bar=1)
        assert make_params(foo=1) != make_params(foo=1, bar=1)
        assert make_params(a=make_params(b=1)) == make_params(a=make_params(b=1))
        assert make_params(a=make_params(b=1)) != make_params(a=make_params(b=2))

    def test_other_types_are_not_equal(self):
        assert Params() != 3
        assert (Params() == 3) is False


class TestToString:
    def test_to_string(self):
        inner = make_params(bar=2)
        outer = make_params(
            foo=1, inner=inner, list=[1, inner, 2], dict={"b": inner, "a": 1}, enum=TestEnum.B
        )
        assert (
            "\n" + str(outer)
            == """
{
  dict: {'a': 1, 'b': {'bar': 2}}
  enum: TestEnum.B
  foo: 1
  inner: {
    bar: 2
  }
  list: [1, {'bar': 2}, 2]
}"""
        )

    def test_strings_are_quoted_and_depth_is_indented(self):
        params = make_params(b=make_params(c=make_params(d="x")), a="y")
        assert (
            "\n" + str(params)
            == """
{
  a: "y"
  b: {
    c: {
      d: "x"
    }
  }
}"""
        )

    def test_repr_method_is_used(self):
        class Layer:
            def Repr(self):
                return "a layer"

        params = make_params(layer=Layer(), layers=(Layer(),), cls=Layer)
        assert "  layer: a layer\n  layers: (a layer,)\n" in str(params)


class WithParams:
    params = None

    def __init__(self, params):
        self.received = params


class WithArguments:
    def __init__(self, units, activation="relu", *args, **kwargs):
        self.units = units
        self.activation = activation
        self.args = args
        self.kwargs = kwargs


class TestInstantiate:
    def test_class_made_for_params_gets_them(self):
        params = InstantiableParams(WithParams)
        assert params.instantiate().received is params

    def test_class_is_needed(self):
        with pytest.raises(AssertionError):
            InstantiableParams().instantiate()

    def test_arguments_are_taken_from_the_whole_tree(self):
        params = InstantiableParams(WithArguments)
        params.define("units", 8, "")
        params.define("unrelated", 1, "")
        params.define("inner", make_params(activation="tanh", units=99), "")
        made = params.instantiate()
        assert (made.units, made.activation) == (8, "tanh")
        assert made.kwargs == {}

    def test_allowed_kwargs_are_passed_on_when_set(self):
        params = InstantiableParams(WithArguments)
        params.define("units", 8, "")
        params.define("name", "tower", "")
        params.define("input_shape", None, "")
        assert params.instantiate().kwargs == {"name": "tower"}

    def test_allowed_kwargs_are_not_forced_on_a_constructor(self):
        class Plain:
            def __init__(self, units):
                self.units = units

        params = InstantiableParams(Plain)
        params.define("units", 8, "")
        params.define("name", "tower", "")
        assert params.instantiate().units == 8

    def test_params_argument_without_params_attribute_is_an_ordinary_one(self):
        class Plain:
            def __init__(self, params):
                self.received = params

        made = InstantiableParams(Plain)
        made.define("params", 5, "")
        assert made.instantiate().received == 5

    def test_allowed_kwargs(self):
        assert hyperparams.allowed_kwargs == {
            "input_dim",
            "input_shape",
            "batch_input_shape",
            "weights",
            "activity_regularizer",
            "autocast",
            "implementation",
            "name",
        }


class TestFunctions:
    def test_copy_params_to(self):
        source = make_params(a=1, b=2, inner=make_params(c=3))
        target = make_params(a=0, b=0, inner=None)
        assert hyperparams.copy_params_to(source, target, skip=["b"]) is target
        assert (target.a, target.b) == (1, 0)
        assert target.inner == source.inner
        assert target.inner is not source.inner

    def test_copy_params_to_needs_all_names(self):
        with pytest.raises(AttributeError, match=r"^a$"):
            hyperparams.copy_params_to(make_params(a=1), make_params(b=2))

    def test_update_params(self):
        params = make_params(a=1, inner=make_params(b=2, c=3))
        arguments = {"a": 10, "b": 20, "other": 30}
        hyperparams.update_params(params, arguments)
        assert (params.a, params.inner.b, params.inner.c) == (10, 20, 3)
        assert arguments == {"other": 30}
