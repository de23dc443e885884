"""Local copies of variables that live on parameter servers.

A dense variable on a parameter server is read over the network in every step. With
`cached_variable_creator` a worker reads a local copy instead, and a hook renews the copies while a
step runs: reads cost nothing and are one step late, gradients go to the variable itself.

Each variable has two copies. What arrives during a step is written to one of them, and moved to
the other, the one that the model reads, between two steps; so a step never sees half an update.

Example:
    >>> with tf.Graph().as_default(), tf.variable_creator_scope(cached_variable_creator):
    ...     with tf.device("/job:ps/task:0"):
    ...         remote = tf.Variable(1.0, name="remote")
    ...     local = tf.Variable(2.0, name="local")
    ...     [variable.name for variable in tf.compat.v1.get_collection(_CACHED_VARIABLES)]
    ['remote:0']
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from monolith.graph import metadata

# Collection of the variables that have local copies.
_CACHED_VARIABLES = "monolith_cached_variables"


@dataclasses.dataclass
class CachedVariableAssociates:
    """The copies of one variable.

    Attributes:
        async_fetched_var: Takes what comes from the parameter server.
        async_cached_var: What the model reads.
    """

    async_fetched_var: tf.Variable
    async_cached_var: tf.Variable


@dataclasses.dataclass
class CachedVariableMeta:
    """What is known of the cached variables of a graph.

    Attributes:
        var_id_to_assoc: The copies of a variable, by `id` of the variable.
    """

    var_id_to_assoc: dict[int, CachedVariableAssociates] = dataclasses.field(default_factory=dict)


@tf.custom_gradient
def cached_value(
    var: tf.Variable, async_cached_var: tf.Variable
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None]]]:
    """Returns the value of the local copy; its gradient belongs to `var`.

    TensorFlow removes the read of `var` itself from a graph that uses only the value.
    """

    def grad(dy: tf.Tensor) -> tuple[tf.Tensor, None]:
        return dy, None

    return tf.convert_to_tensor(async_cached_var), grad


def cached_variable_creator(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
    """Creates a variable with local copies, inside of `tf.variable_creator_scope`.

    A variable without a device of its own is local already and gets no copies.

    Raises:
        ValueError: The variable is not a resource variable, or is cached by other means.
    """
    var = next_creator(**kwargs)
    if not isinstance(var, resource_variable_ops.ResourceVariable):
        raise ValueError(
            "Only ResourceVariable is supported. Do you disable V2 behavior or use strategy?"
        )
    if var._cached_value is not None:
        raise ValueError(
            "The variable has already been cached. Consider about removing cache_device."
        )
    name = _get_valid_op_name(var.name)
    # With the worker, not on the parameter server that the code around us has chosen.
    with tf.device(None):
        if tf.no_op(name=f"{name}_local_device").device == var.device:
            return var
        async_cached_var, async_fetched_var = (
            resource_variable_ops.ResourceVariable(
                initial_value=var.initial_value,
                trainable=False,
                collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                shape=var.shape,
                dtype=var.dtype,
                name=f"{name}_{copy}",
            )
            for copy in ("async_cached", "async_fetched")
        )
        var._cached_value = cached_value(var, async_cached_var)
    tf.compat.v1.add_to_collection(_CACHED_VARIABLES, var)
    _get_meta().var_id_to_assoc[id(var)] = CachedVariableAssociates(
        async_fetched_var=async_fetched_var, async_cached_var=async_cached_var
    )
    return var


def fetch_all_cached_variables() -> tf.Operation:
    """Returns the op that brings the values of all cached variables to this worker."""
    fetches = []
    for var, associates in _get_cached_variables():
        device = _get_valid_op_name(var.device)
        fetches.append(
            # Past the cache: `var.value()` would be the copy.
            associates.async_fetched_var.assign(
                var._read_variable_op(), name=f"fetch_from_{device}", read_value=False
            )
        )
    return tf.group(fetches)


def assign_all_cached_variables() -> tf.Operation:
    """Returns the op that makes the fetched values the ones that the model reads."""
    assigns = [
        associates.async_cached_var.assign(
            associates.async_fetched_var, name="assign_cached_var", read_value=False
        )
        for _, associates in _get_cached_variables()
    ]
    return tf.group(assigns, name="assign_all_cached_variables")


class FetchAllCachedVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Renews the copies: fetches while a step runs, assigns when it is over.

    Before the first step of a session it does both. Make it when all variables are there.
    """

    def __init__(self) -> None:
        self._fetch_op = fetch_all_cached_variables()
        self._assign_op = assign_all_cached_variables()
        self._first_run = True

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._first_run = True

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs:
        if self._first_run:
            run_context.session.run(self._fetch_op)
            run_context.session.run(self._assign_op)
            self._first_run = False
        return tf.compat.v1.train.SessionRunArgs(self._fetch_op)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        run_context.session.run(self._assign_op)


def _get_meta() -> CachedVariableMeta:
    return metadata.get_meta("cached_variables_meta", CachedVariableMeta)


def _get_cached_variables() -> list[tuple[tf.Variable, CachedVariableAssociates]]:
    var_id_to_assoc = _get_meta().var_id_to_assoc
    cached = tf.compat.v1.get_collection(_CACHED_VARIABLES)
    return [(var, var_id_to_assoc[id(var)]) for var in cached]


def _get_valid_op_name(name: str) -> str:
    return name.replace(":", "_").replace("/", "_")
