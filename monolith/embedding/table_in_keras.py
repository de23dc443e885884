"""Keeps a Keras model from training or saving everything but a table, without a word.

A model may call an `ml.Table` in its `call`, and so may its loss, or a regularizer. But `fit`
trains variables of Keras, and does not know of the table, unless the model has a `train_step` of
its own, which may forget it; and neither does `save`. And no gradient of a table comes out of a
loop of TensorFlow, such as that around a cell of an RNN. Then it is silent for hours, and the
table is empty at the end.

Example:
    >>> from monolith.embedding.table import Table
    >>> check_call(Table("users", dim=8))  # No layer of Keras is being called.
"""

import sys
import types
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record

from monolith import errors

_STATE = "keras.src.backend.common.global_state"
# What traces the bodies of loops: tf.while_loop and tf.map_fn, and tf.vectorized_map.
_LOOPS = ("tensorflow.python.ops.while_v2", "tensorflow.python.ops.parallel_for.control_flow_ops")

# For a table that was never updated, the model that looks it up, and its steps at the first time.
_eager_lookups: "weakref.WeakKeyDictionary[Any, tuple[Any, int]]" = weakref.WeakKeyDictionary()


def check_call(table: Any) -> None:
    """Refuses a lookup in a step of `fit` that would not train the table.

    A layer of Keras makes it, or what else a loss is made of: a loss function, a `compute_loss`, a
    regularizer. A metric, which looks up when the tape has ended, is let be. A step of the user's
    own is given until its end to apply a gradient. And the layer will not be saved as if it had no
    table.

    Args:
        table: The `ml.Table` that is called.

    Raises:
        ConfigError: That is so.
    """
    state = sys.modules.get(_STATE)  # Who has not imported Keras fits no model.
    if state is None:
        return
    if state.get_global_attribute("current_call_ctx") is not None:
        _refuse_to_save(table)
    elif not record.could_possibly_record():
        return
    # The model may also be called by a loop of the user's, who knows of the table.
    step = find_train_step() if table.trainable else None
    if step is None:
        return
    if is_of_keras(step):
        model = step.f_locals["self"]
        raise errors.ConfigError(
            f"Table '{table.name}' would not be trained by fit() of '{model.name}', "
            "which knows layers and variables only; use ml.keras.Embedding(table=table) in its "
            "place, or give the model a `train_step` that applies the table's gradients, and "
            "does not call that of Keras, or set table.trainable = False if its rows stay as they "
            "are."
        )
    expect_update(
        table,
        step,
        "apply the table's gradient, table.apply_gradients(tape.gradient(loss, table)); or use "
        "ml.keras.Embedding(table=table) in its place; or set table.trainable = False if its rows "
        "stay as they are.",
    )


def find_train_step() -> types.FrameType | None:
    """Returns the frame of the innermost `train_step` of a Keras model that is running, if any."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "train_step" and hasattr(
            frame.f_locals.get("self"), "trainable_weights"
        ):
            return frame
        frame = frame.f_back
    return None


def is_exporting() -> bool:
    """Returns whether a model is being called because Keras makes an endpoint of it.

    When an archive is written, Keras also traces a `serving_default` of the model, which is only
    reached by those who load it as a part of something else, and is no endpoint.
    """
    frame: types.FrameType | None = sys._getframe(1)
    is_in_export = False
    while frame is not None:
        if frame.f_code.co_name.endswith("serving_default"):
            return False
        is_in_export = is_in_export or _get_module(frame).startswith("keras.src.export.")
        frame = frame.f_back
    return is_in_export


def is_of_keras(frame: types.FrameType) -> bool:
    """Returns whether Keras' own code runs in a frame."""
    return _get_module(frame).startswith("keras.")


def expect_update(table: Any, step: types.FrameType, remedy: str) -> None:
    """Refuses a `train_step` of the user's that looks a table up on a tape, and never updates it.

    When it is traced, this shows at the end of the trace, and eagerly in the next step.

    Args:
        table: The `ml.Table` that is being looked up.
        step: The frame of the step.
        remedy: What the user can do.

    Raises:
        ConfigError: It was so in the step before.
    """
    if not record.could_possibly_record():
        return
    model = step.f_locals["self"]
    problem = (
        f"Table '{table.name}' is looked up in the train_step of '{model.name}', which never "
        f"updates it; {remedy}"
    )
    if not tf.executing_eagerly():
        updates = table.num_updates
        graph = tf.compat.v1.get_default_graph()
        while graph.outer_graph is not None and graph.outer_graph.building_function:
            graph = graph.outer_graph  # The step may apply gradients anywhere in the function.

        def check() -> None:
            is_failing = sys.exc_info()[0] is not None
            if table.num_updates == updates and not is_failing:
                raise errors.ConfigError(problem)

        graph._add_scope_exit_callback(check)
        return
    # One step may look up several times, so it counts when the optimizer has gone on without it.
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None or table.num_updates:
        return
    steps = int(optimizer.iterations)
    first = _eager_lookups.get(table)
    if first is None or first[0]() is not model:
        _eager_lookups[table] = weakref.ref(model), steps
    elif steps > first[1]:
        raise errors.ConfigError(problem)


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


def _refuse_to_save(table: Any) -> None:
    """Makes the innermost layer that is being called refuse to be saved without the table."""
    base = sys.modules["keras.src.layers.layer"].Layer
    frame: types.FrameType | None = sys._getframe(2)
    layer = None
    while frame is not None and not isinstance(layer, base):
        layer = frame.f_locals.get("self")
        frame = frame.f_back
    if layer is None or not _is_saved_by_keras(layer):
        return
    problem = (
        f"The rows of table '{table.name}' would not be saved with layer '{layer.name}', since "
        "Keras knows layers and variables only; use ml.keras.Embedding(table=table) in its place, "
        "or save it by table.save, and give the layer a `save_own_variables` of its own."
    )

    def refuse(store: Any) -> None:
        del store
        raise errors.ConfigError(problem)

    layer.save_own_variables = refuse


def _is_saved_by_keras(layer: Any) -> bool:
    return str(layer.save_own_variables.__module__).startswith("keras.")


def _get_module(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
