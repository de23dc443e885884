"""An exported model as a function: columns in, predictions out.

Example:
    With a model that `ml.Estimator.export` wrote,

        ranking = ml.load("model/exported_models")
        print(ranking(user=[7, 8], movie=[31, 31])["click"])
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.graph import quiet
from monolith.graph.signatures import DEFAULT_SIGNATURE, LENGTHS_NAME
from monolith.serving import loading


def load(path: str | os.PathLike[str]) -> "ServedModel":
    """Loads an exported model.

    Args:
        path: Directory of a version of the model, or of all versions, of which the newest is
            taken.

    Raises:
        ConfigError: There is no model, or files of it are missing.
    """
    return ServedModel(path)


class ServedModel:
    """Calls an exported model in this process; any number of threads may do so at once.

    It keeps its rows in memory until it is closed, or nobody uses it any more.

    Args:
        path: As in `load`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            self._path = loading.find_version(os.fspath(path))
        except RuntimeError as e:
            raise errors.ConfigError(
                f"There is no exported model in {os.fspath(path)!r}; an Estimator's `export` "
                "writes one."
            ) from e
        self._session = tf.compat.v1.Session(graph=tf.Graph())
        with self._session.graph.as_default(), quiet.quiet_tensorflow():
            meta_graph = loading.load_into(self._session, self._path)
        signature = meta_graph.signature_def[DEFAULT_SIGNATURE]
        self._inputs = {name: info.name for name, info in signature.inputs.items()}
        self._of_integers = {
            name for name, info in signature.inputs.items() if tf.as_dtype(info.dtype).is_integer
        }
        # Columns of one number for each example that the network wants as `[batch, 1]`.
        self._single = {
            name
            for name, info in signature.inputs.items()
            if [dim.size for dim in info.tensor_shape.dim] == [-1, 1]
        }
        self._outputs = {name: info.name for name, info in signature.outputs.items()}

    @property
    def path(self) -> str:
        """Directory of the version that was loaded."""
        return self._path

    @property
    def inputs(self) -> list[str]:
        """Names of the columns that it is fed with."""
        lengths = {LENGTHS_NAME.format(name) for name in self._inputs}
        return sorted(self._inputs.keys() - lengths)

    def __call__(
        self, columns: Mapping[str, Any] | None = None, /, **more: Any
    ) -> dict[str, np.ndarray]:
        """Returns the predictions of each head.

        Args:
            columns: The columns by name, one value for each example. Where examples have any number
                of values, it may also be a list of lists.
            more: Further columns.

        Raises:
            ConfigError: A column is missing, does not fit, or there is one too many.
        """
        given = {**(columns or {}), **more}
        feeds: dict[str, Any] = {}
        for name in self.inputs:
            if name not in given:
                raise errors.ConfigError(
                    f"The model in {self._path} needs the columns {', '.join(self.inputs)}; "
                    f"{name!r} is missing."
                )
            feeds.update(self._make_feed(name, given.pop(name)))
        feeds = {name: self._to_array(name, value) for name, value in feeds.items()}
        if given:
            raise errors.ConfigError(
                f"The model in {self._path} has no columns {', '.join(sorted(given))}; it has "
                f"{', '.join(self.inputs)}."
            )
        self._check_sizes(feeds)
        try:
            outputs: dict[str, np.ndarray] = self._session.run(
                self._outputs, {self._inputs[name]: value for name, value in feeds.items()}
            )
        except (ValueError, TypeError, tf.errors.InvalidArgumentError) as e:
            raise errors.ConfigError(
                f"The model in {self._path} cannot use these columns: {_get_reason(e)}"
            ) from e
        return outputs

    def close(self) -> None:
        """Frees the rows; the model cannot be called any more."""
        self._session.close()

    def __enter__(self) -> "ServedModel":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ServedModel({self._path!r}, inputs={self.inputs}, outputs={list(self._outputs)})"

    def _to_array(self, name: str, value: Any) -> np.ndarray:
        try:
            array = np.asarray(value)
        except ValueError as e:  # Lists of different lengths.
            raise errors.ConfigError(
                f"Examples have one value of {name!r} each, or all as many; got {value!r}."
            ) from e
        # The session would cut off what follows the point.
        if name in self._of_integers and array.dtype.kind not in "iub" and array.size:
            raise errors.ConfigError(
                f"The model in {self._path} takes integers of 64 bits as {name!r}, "
                f"got {array.flat[0]!r}."
            )
        return array[:, np.newaxis] if name in self._single and array.ndim == 1 else array

    def _check_sizes(self, feeds: Mapping[str, np.ndarray]) -> None:
        # Some networks would take a column of another length, and spread it over all examples.
        sizes = {
            name: feeds.get(LENGTHS_NAME.format(name), feeds[name]).shape[:1]
            for name in self.inputs
        }
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{name} {size[0] if size else 1}" for name, size in sizes.items())
            raise errors.ConfigError(
                f"All columns need one value for each example, got different numbers: {shown}."
            )

    def _make_feed(self, name: str, value: Any) -> dict[str, Any]:
        lengths = LENGTHS_NAME.format(name)
        if lengths not in self._inputs:
            return {name: value}
        if isinstance(value, tf.RaggedTensor):
            return {name: value.flat_values, lengths: value.row_lengths()}
        try:
            if len(value) and np.ndim(value[0]) == 0:
                return {name: value, lengths: np.ones(len(value), np.int64)}
            sizes = [len(row) for row in value]
        except TypeError as e:
            raise errors.ConfigError(
                f"Examples have any number of {name!r}, so it is a list of lists, such as "
                f"[[1, 2], []], or one value for each example; got {value!r}."
            ) from e
        return {name: [part for row in value for part in row], lengths: sizes}


def _get_reason(error: Exception) -> str:
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    return message.splitlines()[0].rstrip(".") + "."
