"""Keeps `fit` of a Keras model from training everything but a table, without a word.

A model may call an `ml.Table` in its `call`. But `fit` trains variables of Keras, and does not know
of the table, unless the model has a `train_step` of its own. Then it is silent for hours, and the
table is empty at the end.

Example:
    >>> refuse_silent_fit("users")  # Nothing is being fitted.
"""

import sys
import types
from typing import Any

from monolith import errors

_STATE = "keras.src.backend.common.global_state"


def refuse_silent_fit(table: str) -> None:
    """Refuses a lookup in a step of `fit` that would not train the table.

    Raises:
        ConfigError: That is so.
    """
    state = sys.modules.get(_STATE)  # Who has not imported Keras fits no model.
    call = None if state is None else state.get_global_attribute("current_call_ctx")
    if call is None or not _is_of_keras(getattr(type(call.entry_layer), "train_step", None)):
        return
    # The model may also be called by a loop of the user's, who knows of the table.
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "train_step" and _is_of_keras(frame.f_globals):
            raise errors.ConfigError(
                f"Table '{table}' would not be trained by fit() of '{call.entry_layer.name}', "
                "which knows layers and variables only; use ml.keras.Embedding(table=table) in its "
                "place, or give the model a `train_step` that applies the table's gradients."
            )
        frame = frame.f_back


def _is_of_keras(function_or_globals: Any) -> bool:
    if isinstance(function_or_globals, dict):
        module = function_or_globals.get("__name__", "")
    else:
        module = getattr(function_or_globals, "__module__", "")
    return module.split(".")[0] == "keras"
