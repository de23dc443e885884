"""Calls an exported model from Python, as a server would.

Example:
    With a model that `Estimator.export_saved_model` wrote to `exported_models`,

        with import_saved_model("exported_models") as infer:
            print(infer([example.SerializeToString()])["output"])
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.core.export_marker import monolith_export
from monolith.native import ops as _ops  # noqa: F401 - an exported model holds ops of this package


@monolith_export
@contextlib.contextmanager
def import_saved_model(
    saved_model_path: str | bytes,
    input_name: str = "instances",
    output_name: str | None = "output",
    signature: str | None = None,
) -> Iterator[Callable[[Any], dict[str, np.ndarray]]]:
    """Loads an exported model, for as long as the block runs.

    Args:
        saved_model_path: Directory of the model, or one with models by version, of which the
            newest is taken.
        input_name: The input that gets the features, where the model has several and the features
            are not given by name.
        output_name: The output to return; None or empty returns all.
        signature: Which function of the model; by default "serving_default".

    Yields:
        A function from features, a value for the only input or a dict by name, to outputs by name.

    Raises:
        RuntimeError: There is no model in the directory.
        ConfigError: The model has no such signature, input or output.
    """
    path = find_version(os.fsdecode(saved_model_path))
    key = signature or tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    with tf.Graph().as_default() as loaded, tf.compat.v1.Session(graph=loaded) as session:
        meta_graph = load_into(session, path)
        signatures = dict(meta_graph.signature_def)
        _check_name("signature", key, signatures, path)
        inputs = {name: info.name for name, info in signatures[key].inputs.items()}
        outputs = {name: info.name for name, info in signatures[key].outputs.items()}
        if output_name:
            _check_name("output", output_name, outputs, path)
            outputs = {output_name: outputs[output_name]}

        def infer(features: Any) -> dict[str, np.ndarray]:
            return session.run(outputs, _make_feed(features, inputs, input_name, path))

        yield infer


def load_into(session: tf.compat.v1.Session, path: str) -> Any:
    """Loads a model into the session's graph, which is the current one; returns its meta graph.

    Raises:
        ConfigError: Files of it are missing.
    """
    try:
        return tf.compat.v1.saved_model.load(session, [tf.saved_model.SERVING], path)
    except tf.errors.NotFoundError as e:
        # The message has many lines, of which one says what is missing.
        lines = e.message.splitlines()
        cause = next((line for line in lines if "Unable to find" in line), e.message)
        raise errors.ConfigError(
            f"The model in {path} cannot be loaded, because files of it are missing: {cause}. A "
            "model that was exported with `shared_embedding` reads the rows of its tables from the "
            "checkpoint, which must stay where it was; export with `shared_embedding` False to "
            "have them in the model."
        ) from e


def _make_feed(
    features: Any, inputs: Mapping[str, str], input_name: str, path: str
) -> dict[str, Any]:
    if not isinstance(features, Mapping):
        only = next(iter(inputs)) if len(inputs) == 1 else input_name
        features = {only: features}
    for name in features:
        _check_name("input", name, inputs, path)
    missing = sorted(inputs.keys() - features.keys())
    if missing:
        raise errors.ConfigError(
            f"The model in {path} needs the inputs {', '.join(sorted(inputs))}; "
            f"{', '.join(missing)} is missing."
        )
    return {inputs[name]: value for name, value in features.items()}


def _check_name(what: str, name: str, known: Mapping[str, Any], path: str) -> None:
    if name not in known:
        raise errors.ConfigError(
            f"The model in {path} has no {what} {name!r}; it has {', '.join(sorted(known))}."
        )


def find_version(path: str) -> str:
    """Returns the directory of the newest version in `path`, or `path` if it is a version itself.

    Raises:
        RuntimeError: There is none.
    """
    if os.path.basename(os.path.normpath(path)).isdigit():
        return path
    names = tf.io.gfile.listdir(path) if tf.io.gfile.isdir(path) else []
    versions = [int(name.rstrip("/")) for name in names if name.rstrip("/").isdigit()]
    if versions:
        return os.path.join(path, str(max(versions)))
    if "saved_model.pb" in names:
        return path
    raise RuntimeError(f"no models in dir {path}")
