"""No op that makes floats of floats is without a gradient by mistake.

What the gradients are is checked beside each op.

Covers monolith/native/distribution_gradients.py.
"""

import inspect

import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework import ops as framework_ops

from monolith.native import ops

FLOATS = {tf.float32.as_datatype_enum, tf.float64.as_datatype_enum}

# Gradients without a gradient of their own: a second derivative is refused, not taken for zero.
ONLY_ONCE = {
    "MonolithFeatureInsightGradient",
    "MonolithHashFilterInterceptGradientGradient",
    "MonolithHashTableLookupGradient",
}


def may_be_float(arg, op) -> bool:
    if arg.type_attr:
        (attr,) = (attr for attr in op.attr if attr.name == arg.type_attr)
        return not attr.allowed_values.list.type or bool(
            FLOATS & set(attr.allowed_values.list.type)
        )
    return arg.type_list_attr != "" or arg.type in FLOATS


def list_float_ops() -> list[str]:
    # The raw ops, `MonolithFooBar(keyword=...)`, carry the names under which ops are registered.
    names = [n for n, value in vars(ops).items() if n[0].isupper() and inspect.isfunction(value)]
    definitions = [op_def_registry.get(name) for name in sorted(names)]
    return [
        op.name
        for op in definitions
        if any(may_be_float(arg, op) for arg in op.input_arg)
        and any(may_be_float(arg, op) for arg in op.output_arg)
    ]


@pytest.mark.parametrize("name", list_float_ops())
def test_op_has_a_gradient_or_is_said_to_have_none(name):
    if name in ONLY_ONCE:
        with pytest.raises(LookupError):
            framework_ops.gradient_registry.lookup(name)
    else:
        framework_ops.gradient_registry.lookup(name)


def test_ops_are_found():
    assert {"MonolithMlp", "MonolithReduceSum", *ONLY_ONCE} <= set(list_float_ops())
