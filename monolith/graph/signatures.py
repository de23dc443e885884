"""What goes into an exported model and what comes out of it.

A model function names its outputs as `PredictOutput`s; a receiver function builds the placeholders
that requests are fed to and says which features they become.

Example:
    >>> with tf.Graph().as_default():
    ...     output = PredictOutput(tf.constant([0.5]))
    >>> list(output.outputs)
    ['output']
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from monolith import errors

DEFAULT_SIGNATURE = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
# A ragged feature is two inputs: all values of the batch, and how many each example has.
LENGTHS_NAME = "{}_lengths"

_SINGLE_FEATURE = "feature"
_SINGLE_RECEIVER = "input"
_SINGLE_OUTPUT = "output"


class PredictOutput:
    """Outputs of one signature.

    Args:
        outputs: Tensors by name; a single tensor is called "output".

    Raises:
        errors.ConfigError: It is neither, or a name is no string.
    """

    def __init__(self, outputs: Any) -> None:
        self._outputs = _name_tensors(outputs, _SINGLE_OUTPUT, "An output")

    @property
    def outputs(self) -> dict[str, Any]:
        """Tensors by name."""
        return self._outputs

    def as_signature_def(self, receiver_tensors: Mapping[str, Any]) -> Any:
        """Returns the `SignatureDef` from some placeholders to these outputs."""
        return tf.compat.v1.saved_model.predict_signature_def(dict(receiver_tensors), self._outputs)


class ServingInputReceiver:
    """Input of an exported model.

    Args:
        features: What the model function gets; a single tensor is called "feature".
        receiver_tensors: Placeholders that a request feeds, by name; a single one is called
            "input". None where nothing is fed.
    """

    def __init__(self, features: Any, receiver_tensors: Any = None) -> None:
        if tf.is_tensor(features):
            features = {_SINGLE_FEATURE: features}
        self.features = features
        self.receiver_tensors = _name_tensors(
            {} if receiver_tensors is None else receiver_tensors, _SINGLE_RECEIVER, "A receiver"
        )


def build_signature(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """Returns the `SignatureDef` of a function of an exported model.

    Args:
        inputs: Tensors, or their `TensorInfo`s, that a request feeds, by name.
        outputs: Those that it gets back.
    """
    return tf.compat.v1.saved_model.build_signature_def(
        inputs={name: _to_tensor_info(tensor) for name, tensor in inputs.items()},
        outputs={name: _to_tensor_info(tensor) for name, tensor in outputs.items()},
        method_name=tf.saved_model.PREDICT_METHOD_NAME,
    )


def get_export_outputs(export_outputs: Any, predictions: Any) -> dict[str, PredictOutput]:
    """Returns the outputs to export, with one under the name that clients use by default.

    Args:
        export_outputs: What a model function gave; None for all predictions.
        predictions: Its predictions.

    Raises:
        errors.ConfigError: A value is no `PredictOutput`, or there are several and none of them is
            the default.
    """
    if export_outputs is None:
        return {DEFAULT_SIGNATURE: PredictOutput(predictions)}
    if not isinstance(export_outputs, Mapping):
        raise errors.ConfigError(
            f"export_outputs must be a dictionary from names to PredictOutput, got "
            f"{export_outputs!r}."
        )
    for name, output in export_outputs.items():
        if not hasattr(output, "as_signature_def"):
            raise errors.ConfigError(
                f"export_outputs[{name!r}] must be a PredictOutput, got {output!r}."
            )
    outputs = dict(export_outputs)
    if len(outputs) == 1:
        ((_, only),) = outputs.items()
        outputs.setdefault(DEFAULT_SIGNATURE, only)
    elif DEFAULT_SIGNATURE not in outputs:
        raise errors.ConfigError(
            f"One of several export_outputs must be called {DEFAULT_SIGNATURE!r}, which clients "
            f"use unless they name another; got {sorted(outputs)}."
        )
    return outputs


def _to_tensor_info(tensor: Any) -> meta_graph_pb2.TensorInfo:
    if isinstance(tensor, meta_graph_pb2.TensorInfo):
        return tensor
    return tf.compat.v1.saved_model.build_tensor_info(tensor)


def _name_tensors(tensors: Any, single_name: str, what: str) -> dict[str, Any]:
    if not isinstance(tensors, Mapping):
        tensors = {single_name: tensors}
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise errors.ConfigError(f"{what} must have a string as its name, got {name!r}.")
        if not tf.is_tensor(tensor):
            raise errors.ConfigError(f"{what} must be a tensor, got {tensor!r} for {name!r}.")
    return dict(tensors)
