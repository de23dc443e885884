"""Starting a changed model from the checkpoint of the old one.

Two changes of the dense part can be survived. Variables may have new names: an alias map says what
each was called, and simple renames are found without one. Or the dense part shall start afresh
while the tables go on: `clear_nn` initializes it anew, once.

`CustomRestoreListener` puts what is to be done into the graph; `PartialRecoverySaver.restore` does
it when the session is created.

Example:
    >>> node_name("^tower/dense_12/kernel:0 "), split_name("dense_12")
    ('tower/dense_12/kernel', ('dense_', 12))
    >>> get_guess_name("c_dot/mlp/dense/kernel")
    'c_dot/compress_tower/dense/kernel'
"""

import collections
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.checkpoint import changed_model, manifest
from monolith.checkpoint.alias_names import (
    add_mapping_rules,
    get_guess_name,
    get_new_name,
    get_part_index,
    get_whole_name,
    infer_alias_map,
    infer_variable_name,
    node_name,
    split_name,
)
from monolith.checkpoint.restore_hook import CheckpointRestorerListener
from monolith.graph import export_mode

__all__ = [
    "CUSTOM_RESTORE_OP",
    "CustomRestoreListener",
    "CustomRestoreListenerKey",
    "add_mapping_rules",
    "calc_feed_dict",
    "get_guess_name",
    "get_new_name",
    "infer_variable_name",
    "node_name",
    "split_name",
]

logger = logging.getLogger(__name__)

# Graph collection with at most one element: ops to run instead of a restore, placeholders to feed,
# and the alias map; without one the ops initialize variables.
CUSTOM_RESTORE_OP = "custom_restore_op"
CustomRestoreListenerKey = "CustomRestoreListener"

CLEAR_NN_DONE_TEXT = "clean nn done!"


def get_clear_nn_flag_path(model_dir: str) -> str:
    """Returns the path of the file that says that `clear_nn` is done for a model."""
    return os.path.join(model_dir, "clear_nn")


class CustomRestoreListener(CheckpointRestorerListener):
    """Lets the next restore take variables from others, or initialize them.

    Args:
        alias_map: New name of a variable to its name in the checkpoint. Variables that are not in
            it have the same name there.
        clear_nn: Whether variables are initialized instead of restored, once: a file `clear_nn` in
            the model directory remembers that it was done.
        continue_training: Whether the global step goes on from the checkpoint even so.
        model_dir: The model directory; without one the listener does nothing.
        enable_alias_map_auto_gen: Whether to look for new names if there is no `alias_map`; None
            is True.

    Raises:
        errors.ConfigError: Both of `alias_map` and `clear_nn` are given.
    """

    def __init__(
        self,
        alias_map: Mapping[str, str] | None = None,
        clear_nn: bool = False,
        continue_training: bool = False,
        model_dir: str | None = None,
        enable_alias_map_auto_gen: bool | None = None,
    ) -> None:
        super().__init__()
        if clear_nn and alias_map:
            raise errors.ConfigError(
                "`alias_map` says where to restore variables from and `clear_nn` not to restore "
                f"them, got both; leave one out. `alias_map` is {dict(alias_map)}."
            )
        self._alias_map = dict(alias_map) if alias_map else None
        self._clear_nn = clear_nn
        self._continue_training = continue_training
        self._model_dir = model_dir
        self._finds_alias_map = enable_alias_map_auto_gen is not False

    def begin(self) -> None:
        """Adds ops to the graph; called by the restore hook."""
        if export_mode.is_exporting():
            return
        checkpoint = self._model_dir and tf.train.latest_checkpoint(self._model_dir)
        if not checkpoint:
            logger.info("%s has no checkpoint, nothing is reloaded", self._model_dir)
        elif self._clear_nn:
            self._add_clear_nn(str(self._model_dir))
        else:
            self._add_aliases(checkpoint)

    def _add_clear_nn(self, model_dir: str) -> None:
        if tf.io.gfile.exists(get_clear_nn_flag_path(model_dir)):
            logger.info("clear_nn was done before, %s tells", get_clear_nn_flag_path(model_dir))
            return
        init_op = tf.compat.v1.global_variables_initializer()
        init_op.model_dir = model_dir
        ops, placeholders = [init_op], []
        if self._continue_training:
            global_step = tf.compat.v1.train.get_or_create_global_step()
            placeholder = tf.compat.v1.placeholder(global_step.dtype, [], name="global_step_ph")
            ops.append(tf.compat.v1.assign(global_step, placeholder).op)
            placeholders.append(placeholder)
        tf.compat.v1.add_to_collection(CUSTOM_RESTORE_OP, (ops, placeholders, None))

    def _add_aliases(self, checkpoint: str) -> None:
        saved = manifest.open_variables(checkpoint).get_variable_to_shape_map()
        variables = {node_name(v.name): v for v in tf.compat.v1.global_variables()}
        unknown = sorted(infer_variable_name(variables) - saved.keys())
        if not unknown:
            return
        alias_map = self._alias_map
        if alias_map is None and self._finds_alias_map:
            # A shape that is not known fits nothing.
            shapes = {
                name: v.shape.as_list() if v.shape.is_fully_defined() else [-1]
                for name, v in variables.items()
            }
            alias_map = infer_alias_map(shapes, saved)
            logger.info("the variables' names in %s seem to be %s", checkpoint, alias_map)
        if alias_map is None:
            logger.warning(
                "%s lacks the variables %s, and no others in it seem to be them; give an alias_map "
                "from their names to those in the checkpoint, or clear_nn",
                checkpoint,
                unknown,
            )
            return
        placeholders = []
        assigns = []
        for name, variable in variables.items():
            placeholder = tf.compat.v1.placeholder(variable.dtype.base_dtype, variable.shape)
            placeholder.origin_name = name
            placeholders.append(placeholder)
            assigns.append(tf.compat.v1.assign(variable, placeholder))
        tf.compat.v1.add_to_collection(
            CUSTOM_RESTORE_OP, (tf.group(*assigns), placeholders, alias_map)
        )


def calc_feed_dict(
    ckpt_reader: Any, alias_map: Mapping[str, str], placeholders: Iterable[tf.Tensor]
) -> dict[tf.Tensor, np.ndarray] | None:
    """Reads what to feed for variables that have other names in the checkpoint.

    The parts of a partitioned variable, `<name>/part_<i>`, share its one tensor in the checkpoint,
    along the first axis.

    Args:
        ckpt_reader: Reads the checkpoint, as `tf.train.load_checkpoint` returns.
        alias_map: New name to name in the checkpoint. A part is named with or without `/part_<i>`;
            a variable that is not there has the same name in the checkpoint.
        placeholders: One per variable, whose name is in the attribute `origin_name`.

    Returns:
        Values by placeholder; None if all new names are in the checkpoint, so that an ordinary
        restore serves.

    Raises:
        ValueError: A placeholder has no `origin_name`.
        errors.ConfigError: The checkpoint has no tensor for one, or one of another shape.
    """
    if not is_alias_map_needed(ckpt_reader, alias_map):
        return None
    matched = match_aliases(ckpt_reader, alias_map, placeholders)
    if matched.misfits:
        raise make_misfit_error(matched.misfits)
    return matched.feed_dict


def is_alias_map_needed(ckpt_reader: Any, alias_map: Mapping[str, str]) -> bool:
    """Returns whether a checkpoint lacks some of the new names; else an ordinary restore serves."""
    return not all(ckpt_reader.has_tensor(get_whole_name(name)) for name in alias_map)


class Matched(NamedTuple):
    """Which variables a checkpoint has under the names that an alias map gives them.

    Attributes:
        feed_dict: Values by placeholder.
        unmatched: Placeholders of variables that it does not have, or in another shape.
        misfits: What is wrong with those, for a message.
    """

    feed_dict: dict[tf.Tensor, np.ndarray]
    unmatched: list[tf.Tensor]
    misfits: list[str]


def match_aliases(
    ckpt_reader: Any, alias_map: Mapping[str, str], placeholders: Iterable[tf.Tensor]
) -> Matched:
    """Reads what to feed for variables that the checkpoint has; see `calc_feed_dict`.

    Raises:
        ValueError: A placeholder has no `origin_name`.
    """
    parts: dict[tuple[str, str], list[tf.Tensor]] = collections.defaultdict(list)
    for placeholder in placeholders:
        name = getattr(placeholder, "origin_name", None)
        if name is None:
            raise ValueError(
                f"Placeholder {placeholder.name!r} has no attribute `origin_name` that says which "
                "variable it is for."
            )
        whole_name = get_whole_name(name)
        old_name = alias_map.get(name, alias_map.get(whole_name, whole_name))
        parts[whole_name, old_name].append(placeholder)

    matched = Matched({}, [], [])
    for (name, old_name), placeholders_of_variable in parts.items():
        if not ckpt_reader.has_tensor(old_name):
            called = f" for {name!r}" if old_name != name else ", which the map does not name"
            matched.misfits.append(f"it has no variable {old_name!r}{called}")
            matched.unmatched.extend(placeholders_of_variable)
            continue
        ordered = sorted(placeholders_of_variable, key=lambda p: get_part_index(p.origin_name))
        value = ckpt_reader.get_tensor(old_name)
        values = _split(value, ordered)
        if values is None:
            shapes = [p.shape.as_list() for p in ordered]
            matched.misfits.append(
                f"its variable {old_name!r} has the shape {list(value.shape)}, but {name!r}, which "
                f"is to get its values, has {shapes[0] if len(shapes) == 1 else shapes}"
            )
            matched.unmatched.extend(ordered)
        else:
            matched.feed_dict.update(zip(ordered, values, strict=True))
    return matched


def make_misfit_error(misfits: list[str], save_path: str | None = None) -> errors.ConfigError:
    """Returns the error for an alias map that does not explain all variables.

    Args:
        misfits: What is wrong.
        save_path: The checkpoint, if it is known.
    """
    checkpoint = "the checkpoint" if save_path is None else save_path
    return errors.ConfigError(
        f"The alias map (reload_alias_map) does not fit {checkpoint}: "
        f"{changed_model.describe_first(misfits)}. Let it lead from the name of each variable that "
        "was renamed to the name in the checkpoint; or, to start what it does not explain anew, "
        "train with restore_what_fits=True."
    )


def _split(value: np.ndarray, placeholders: list[tf.Tensor]) -> list[np.ndarray] | None:
    """Cuts a tensor along the first axis into the shapes of placeholders; None if they differ."""
    shapes = [p.shape for p in placeholders]
    if len(shapes) == 1:
        values = [value]
    elif value.ndim == 0:
        return None
    else:
        values = np.split(value, np.cumsum([shape[0] for shape in shapes])[:-1])
    fit = all(s.is_compatible_with(v.shape) for s, v in zip(shapes, values, strict=True))
    return values if fit else None
