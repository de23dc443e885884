"""Goes on with a model whose code has changed: what fits a checkpoint is restored, the rest is new.

A layer that became wider, a feature that came to a network's input, another optimizer: variables
are missing in the checkpoint then, or have another shape. All others, and the rows of tables, which
are not variables, can go on. So can tables, unless their own rows have changed: whoever restores
them says which have (`add_table_check`), so that one sentence names all that is different.

Example:
    >>> def make(units, b):
    ...     a = tf.compat.v1.get_variable("a", initializer=tf.fill([units], 1.0))
    ...     return [a, tf.compat.v1.get_variable("b", initializer=b)]
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     saver = tf.compat.v1.train.Saver(make(units=2, b=5.0))
    ...     session.run(tf.compat.v1.global_variables_initializer())
    ...     path = saver.save(session, "model.ckpt", write_meta_graph=False)
    >>> with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    ...     variables = make(units=3, b=0.0)
    ...     saver = tf.compat.v1.train.Saver(variables)
    ...     changes = find_changes(session.graph, path)
    ...     restore_what_fits(session, saver.saver_def, path, changes)
    ...     [value.tolist() for value in session.run(variables)]
    [[1.0, 1.0, 1.0], 5.0]
    >>> changes.describe()
    "'a' has the shape [3], in the checkpoint [2]"
"""

import dataclasses
import enum
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_util
from tensorflow.python.training import py_checkpoint_reader

from monolith import errors
from monolith.graph import metadata

logger = logging.getLogger(__name__)

_MOST_IN_MESSAGE = 6
_TABLE_CHECKS = "monolith_table_checks"


@dataclasses.dataclass(frozen=True)
class TableChange:
    """A table that a checkpoint does not have as the graph has it.

    Attributes:
        table: Its name, for people.
        reason: What is different.
        keeps_weights: Whether only the optimizers differ, so that the weights can go on.
    """

    table: str
    reason: str
    keeps_weights: bool = False

    def describe(self) -> str:
        """Returns the change for a message."""
        return f"table {self.table!r} {self.reason}"


# Returns the tables that have changed since the checkpoint with a prefix was saved.
TableCheck = Callable[[str], Sequence[TableChange]]


@dataclasses.dataclass(frozen=True)
class Changes:
    """What a checkpoint does not have as the graph has it.

    Attributes:
        variables: Variables that it lacks, or has in another shape.
        reasons: What is different, for each of their names.
        tables: Tables that it lacks, or whose rows have another form there.
    """

    variables: list[tf.Variable]
    reasons: dict[str, str]
    tables: Sequence[TableChange] = ()

    def __bool__(self) -> bool:
        return bool(self.variables or self.tables)

    def describe(self) -> str:
        """Returns the first of them for a message, tables before variables."""
        return describe_first(
            [
                *(change.describe() for change in self.tables),
                *(f"{name!r} {reason}" for name, reason in self.reasons.items()),
            ]
        )


class OnChange(enum.Enum):
    """What a restore does where variables have changed."""

    REFUSE = "refuse"
    KEEP_WHAT_FITS = "keep what fits"

    def restore(
        self, session: tf.compat.v1.Session, saver_def: Any, save_path: str, changes: Changes
    ) -> None:
        """Does it; the arguments are those of `restore_what_fits`.

        Raises:
            ConfigError: They are refused.
        """
        if self is OnChange.REFUSE:
            raise make_refusal(save_path, changes)
        restore_what_fits(session, saver_def, save_path, changes)


def make_refusal(save_path: str, changes: Changes) -> errors.ConfigError:
    """Returns the error for a model that has changed: what has, and the way out."""
    anew = [repr(change.table) for change in changes.tables if not change.keeps_weights]
    weights = [repr(change.table) for change in changes.tables if change.keeps_weights]
    effects = ["keeps all other rows" if changes.tables else "keeps the rows of all tables"]
    if weights:
        effects.insert(0, f"keeps the weights of {' and '.join(weights)}")
    if anew:
        effects.insert(0, f"starts {' and '.join(anew)} with no rows")
    if effects[1:]:
        effects[-1] = f"and {effects[-1]}"
    changed = "model" if changes.tables else "network"
    return errors.ConfigError(
        f"The {changed} has changed since {save_path} was saved: {changes.describe()}. To go on "
        "with what fits and start the rest anew, train with restore_what_fits=True, which "
        f"{', '.join(effects)}; or use another model directory."
    )


def describe_first(reasons: Sequence[str]) -> str:
    """Returns the first of some reasons for a message, and how many more there are."""
    more = len(reasons) - _MOST_IN_MESSAGE
    return ", ".join(reasons[:_MOST_IN_MESSAGE]) + (f", and {more} more" if more > 0 else "")


def add_table_check(check: TableCheck) -> None:
    """Has `find_table_changes` ask who restores the tables of the default graph."""
    metadata.get_meta(_TABLE_CHECKS, list[TableCheck]).append(check)


def find_table_changes(graph: tf.Graph, prefix: str) -> list[TableChange]:
    """Compares the tables of a graph with those of a full checkpoint, before any is restored."""
    with graph.as_default():
        checks = metadata.get_meta(_TABLE_CHECKS, list[TableCheck])
    return [change for check in checks for change in check(prefix)]


def find_changes(graph: tf.Graph, save_path: str) -> Changes:
    """Compares the variables of a graph with those of a checkpoint."""
    saved = py_checkpoint_reader.NewCheckpointReader(save_path).get_variable_to_shape_map()
    variables, reasons = [], {}
    for variable in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES):
        name, _, shape = _get_identity(variable)
        if name not in saved:
            reasons[name] = "is not in the checkpoint"
        elif list(saved[name]) != shape:
            reasons[name] = f"has the shape {shape}, in the checkpoint {list(saved[name])}"
        else:
            continue
        variables.append(variable)
    return Changes(variables, reasons)


def restore_what_fits(
    session: tf.compat.v1.Session, saver_def: Any, save_path: str, changes: Changes
) -> None:
    """Restores all variables that have not changed, and initializes the others.

    Args:
        session: The session; its graph may be finalized.
        saver_def: What the saver has put into the graph.
        save_path: The checkpoint.
        changes: What `find_changes` has found.
    """
    session.run([variable.initializer for variable in changes.variables])
    new = {
        _get_identity(variable)[:2]: value
        for variable, value in zip(
            changes.variables, session.run(list(changes.variables)), strict=True
        )
    }
    reader = py_checkpoint_reader.NewCheckpointReader(save_path)
    graph = session.graph
    feeds: dict[tf.Tensor, Any] = {}
    filename = graph.get_tensor_by_name(saver_def.filename_tensor_name)
    # Their outputs are fed, so the ops behind them, which would miss variables, do not run.
    for op in filename.consumers():
        if op.type == "RestoreV2":
            names, slices = (tensor_util.constant_value(tensor) for tensor in op.inputs[1:3])
            for output, name, part in zip(op.outputs, names, slices, strict=True):
                key = (name.decode(), part.decode())
                feeds[output] = new[key] if key in new else _read(reader, *key)
    session.run(saver_def.restore_op_name, feeds)
    logger.warning(
        "the model has changed since %s: these variables start anew: %s",
        save_path,
        changes.describe(),
    )


def _get_identity(variable: tf.Variable) -> tuple[str, str, list[int]]:
    """Returns the name of a variable in a checkpoint, which part of it this is, and its shape."""
    info = variable._get_save_slice_info()
    if info is None:
        return variable.op.name, "", variable.shape.as_list()
    return info.full_name, info.spec, list(info.full_shape)


def _read(reader: Any, name: str, part: str) -> np.ndarray:
    """Returns a variable, or a part of it: `part` is such as '10 4 0,5:0,4', shape and ranges."""
    value: np.ndarray = reader.get_tensor(name)
    if not part:
        return value
    ranges = (r.split(",") for r in part.split()[-1].split(":"))
    return value[tuple(slice(int(start), int(start) + int(size)) for start, size in ranges)]
