"""Keeps `fit` of a Keras model from training everything but a table, without a word.

A model may call an `ml.Table` in its `call`. But `fit` trains variables of Keras, and does not know
of the table, unless the model has a `train_step` of its own. And no gradient of a table comes out
of a loop of TensorFlow, such as that around a cell of an RNN. Then it is silent for hours, and the
table is empty at the end.

Example:
    >>> refuse_silent_fit("users")  # Nothing is being fitted.
"""

import sys
import types

from monolith import errors

_STATE = "keras.src.backend.common.global_state"
# What traces the bodies of loops: tf.while_loop and tf.map_fn, and tf.vectorized_map.
_LOOPS = ("tensorflow.python.ops.while_v2", "tensorflow.python.ops.parallel_for.control_flow_ops")


def refuse_silent_fit(table: str) -> None:
    """Refuses a lookup in a step of `fit` that would not train the table.

    Raises:
        ConfigError: That is so.
    """
    state = sys.modules.get(_STATE)  # Who has not imported Keras fits no model.
    call = None if state is None else state.get_global_attribute("current_call_ctx")
    if call is None:
        return
    # The model may also be called by a loop of the user's, who knows of the table.
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "train_step" and _get_module(frame).startswith("keras."):
            raise errors.ConfigError(
                f"Table '{table}' would not be trained by fit() of '{call.entry_layer.name}', "
                "which knows layers and variables only; use ml.keras.Embedding(table=table) in its "
                "place, or give the model a `train_step` that applies the table's gradients, and "
                "does not call that of Keras."
            )
        frame = frame.f_back


def refuse_loops(table: str) -> None:
    """Refuses a lookup in a loop of a traced `train_step`, whose tape is outside of the loop.

    Raises:
        ConfigError: That is so.
    """
    frame: types.FrameType | None = sys._getframe(1)
    is_in_loop = False
    while frame is not None and frame.f_code.co_name != "train_step":
        is_in_loop = is_in_loop or _get_module(frame) in _LOOPS
        frame = frame.f_back
    if is_in_loop and frame is not None:
        raise errors.ConfigError(
            f"Table '{table}' is looked up inside of a loop, such as tf.map_fn or that around a "
            "cell of an RNN, out of which its gradient does not come: look up all ids before the "
            "loop, and use their rows in it."
        )


def _get_module(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
