"""Makes a planned call and says how it ended; in a process that was forked for it."""

import pathlib
from typing import Any

import numpy as np
import tensorflow as tf
from support.fuzz_plan import flat
from support.fuzz_resources import Resources
from support.fuzz_values import Array, Call, Handle, Path, Paths, Value

from monolith.native import ops

# An op refuses what it cannot do with one of these; anything else is a finding.
REFUSALS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.AlreadyExistsError,
    tf.errors.FailedPreconditionError,
    tf.errors.OutOfRangeError,
    tf.errors.DataLossError,
    tf.errors.UnimplementedError,
    tf.errors.PermissionDeniedError,
    # From Python, before the op is called.
    TypeError,
    ValueError,
    OverflowError,
)
# What standard containers say of themselves tells nobody which argument was wrong.
UNCLEAR = ("std::", "vector::", "basic_string", "map::at", "max_size()")


class WrongShape(Exception):
    """A shape function promised another shape than the kernel returned."""


class Runner:
    def __init__(self, directory: pathlib.Path) -> None:
        self._resources = Resources(directory)

    def run(self, call: Call) -> tuple[str, str]:
        """Returns "ok", "refused" or "finding", and what was said."""
        try:
            (self._run_in_graph if call.graph else self._run)(call)
            return "ok", ""
        except REFUSALS as e:
            message = str(e)
            unclear = any(word in message for word in UNCLEAR)
            return "finding" if unclear else "refused", f"{type(e).__name__}: {message}"
        except tf.errors.ResourceExhaustedError as e:
            # A filter says so of a dump that does not fit it; otherwise a few small tensors and an
            # attribute made the op ask for more memory than there is.
            fits = "OOM" not in str(e) and "alloc" not in str(e)
            return "refused" if fits else "finding", f"{type(e).__name__}: {e}"
        except (tf.errors.OpError, WrongShape, MemoryError) as e:
            return "finding", f"{type(e).__name__}: {e}"
        finally:
            self._resources.forget()

    def _run(self, call: Call) -> None:
        made: dict[Value, tf.Tensor] = {}
        inputs = {name: self._make(value, made) for name, value in call.inputs.items()}
        self._take(getattr(ops, call.op)(**inputs, **self._attrs(call)))

    def _run_in_graph(self, call: Call) -> None:
        made: dict[Value, tf.Tensor] = {}
        tensors = [self._make(value, made) for value in flat(call)]
        attrs = self._attrs(call)
        constants: list[np.ndarray | None] = []
        signature, arguments, runs = [], [], True
        for tensor, known in zip(tensors, call.known, strict=True):
            if known == "constant" and tensor.dtype != tf.resource and tensor.shape.num_elements():
                constants.append(tensor.numpy())
                continue
            constants.append(None)
            runs = runs and known[:1] != ["odd"]
            signature.append(tf.TensorSpec(_static_shape(known, tensor), tensor.dtype))
            arguments.append(tensor)

        def body(*placeholders: tf.Tensor) -> Any:
            rest = iter(placeholders)
            given = [next(rest) if c is None else tf.constant(c) for c in constants]
            result = getattr(ops, call.op)(**_like_inputs(call, given), **attrs)
            return None if isinstance(result, tf.Operation) else result

        function = tf.function(body, input_signature=signature, autograph=False)
        concrete = function.get_concrete_function()
        if not runs:
            return
        results = self._take(concrete(*arguments))
        for promised, result in zip(concrete.outputs, results, strict=False):
            if not promised.shape.is_compatible_with(result.shape):
                raise WrongShape(
                    f"{promised.name}: {promised.shape} promised, {result.shape} found"
                )

    def _take(self, results: Any) -> list[tf.Tensor]:
        """Looks at the results, so that nothing is left unread, and ends new resources later."""
        tensors = [one for one in tf.nest.flatten(results) if isinstance(one, tf.Tensor)]
        for tensor in tensors:
            if tensor.dtype != tf.resource:
                tensor.numpy()
            elif tensor.shape == ():
                self._resources.adopt(tensor)
        return tensors

    def _attrs(self, call: Call) -> dict[str, Any]:
        result = {}
        for name, value in call.attrs.items():
            if isinstance(value, Path):
                value = self._resources.path(value.kind, value.salt)
            if name == "dtype":
                value = tf.as_dtype(value)
            result[name] = value
        return result

    def _make(self, value: Value, made: dict[Value, tf.Tensor]) -> Any:
        if isinstance(value, list):
            return [self._make(one, made) for one in value]
        if isinstance(value, Path):
            return tf.constant(self._resources.path(value.kind, value.salt))
        if isinstance(value, Paths):
            names = [self._resources.path(path.kind, path.salt) for path in value.paths]
            return tf.constant(names, tf.string, [len(names)])
        if isinstance(value, Handle):
            if value not in made:
                made[value] = self._resources.handle(value.kind)
            return made[value]
        return _make_array(value)


def _make_array(array: Array) -> tf.Tensor:
    if array.dtype == "string":
        if not array.values:
            return tf.fill(array.shape, b"")
        return tf.constant(list(array.values), tf.string, array.shape)
    dtype = tf.as_dtype(array.dtype)
    if 0 in array.shape:
        return tf.zeros(array.shape, dtype)
    with np.errstate(over="ignore"):
        return tf.constant(np.array(array.values, dtype.as_numpy_dtype).reshape(array.shape))


def _like_inputs(call: Call, tensors: list[tf.Tensor]) -> dict[str, Any]:
    rest = iter(tensors)
    return {
        name: [next(rest) for _ in value] if isinstance(value, list) else next(rest)
        for name, value in call.inputs.items()
    }


def _static_shape(known: Any, tensor: tf.Tensor) -> Any:
    if known == "nothing":
        return None
    if known == "rank":
        return [None] * tensor.shape.rank
    if isinstance(known, list):
        return known[1] if known[:1] == ["odd"] else known
    return tensor.shape
