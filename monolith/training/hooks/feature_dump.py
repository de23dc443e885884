"""Writing the features of an input to files instead of training on them.

Each file `<model_dir>/features/<who>_<uuid>.pb` holds some batches: eight zero bytes, the size of
the message as eight bytes little-endian, and a serialized `ExampleBatch`, in a row.

Example:
    >>> import os, tempfile, types
    >>> with tf.Graph().as_default(), tempfile.TemporaryDirectory() as model_dir:
    ...     dataset = tf.data.Dataset.from_tensors({"user": tf.ragged.constant([[7], [8, 9]])})
    ...     iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    ...     batch = iterator.get_next()
    ...     config = types.SimpleNamespace(model_dir=model_dir, index=0)
    ...     hook = FeatureEngineeringSaveHook(config, batch)
    ...     with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
    ...         session.run(iterator.initializer)
    ...         _ = session.run(batch)
    ...     len(os.listdir(f"{model_dir}/features"))
    1
"""

import logging
import os
import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.proto import example_pb2

logger = logging.getLogger(__name__)

_UINT64_MASK = (1 << 64) - 1


class WorkerConfig(Protocol):
    """The part of a run's config that is used here."""

    model_dir: str
    index: int


class FeatureEngineeringSaveHook(tf.compat.v1.train.SessionRunHook):
    """Fetches each batch of an input and writes it to a file.

    The first run of the session is left alone: it initializes the input.

    Args:
        config: Names the model directory, and the worker; worker 0 is the chief.
        nxt_elem: The batch: for each feature a ragged or dense tensor with one row per example.
            Floats become float lists, integers fids, strings bytes.
        cap: So many batches go into one file; what is left goes into one at the end.

    Raises:
        errors.ConfigError: `nxt_elem` does not name its features, or `cap` is not positive.
    """

    def __init__(
        self, config: WorkerConfig, nxt_elem: Mapping[str, tf.Tensor], cap: int = 100
    ) -> None:
        if not isinstance(nxt_elem, Mapping):
            raise errors.ConfigError(
                f"To be written, a batch must be a dict of features, got {type(nxt_elem).__name__}."
            )
        if cap <= 0:
            raise errors.ConfigError(f"`cap` must be positive, got {cap}.")
        self._directory = os.path.join(config.model_dir, "features")
        self._writer_name = "chief" if config.index == 0 else f"worker{config.index}"
        self._features = dict(nxt_elem)
        self._cap = cap
        self._is_first_run = True
        self._batches: list[bytes] = []

    def before_run(
        self, run_context: tf.compat.v1.train.SessionRunContext
    ) -> tf.compat.v1.train.SessionRunArgs | None:
        if self._is_first_run:
            return None
        return tf.compat.v1.train.SessionRunArgs(self._features)

    def after_run(
        self,
        run_context: tf.compat.v1.train.SessionRunContext,
        run_values: tf.compat.v1.train.SessionRunValues,
    ) -> None:
        if self._is_first_run:
            self._is_first_run = False
            return
        self._batches.append(make_example_batch(run_values.results).SerializeToString())
        if len(self._batches) >= self._cap:
            self._flush()

    def end(self, session: tf.compat.v1.Session) -> None:
        self._flush()

    def _flush(self) -> None:
        tf.io.gfile.makedirs(self._directory)
        path = os.path.join(self._directory, f"{self._writer_name}_{uuid.uuid1()}.pb")
        # A reader that lists `*.pb` never meets a part of a file.
        with tf.io.gfile.GFile(path + ".tmp", "wb") as file:
            # In one write, because none at all would not make a file.
            file.write(b"".join(struct.pack("<QQ", 0, len(b)) + b for b in self._batches))
        tf.io.gfile.rename(path + ".tmp", path)
        logger.info("wrote %d batches of features to %s", len(self._batches), path)
        self._batches.clear()


def make_example_batch(features: Mapping[str, Any]) -> example_pb2.ExampleBatch:
    """Turns fetched features into a message.

    Args:
        features: For each name a NumPy array or a `RaggedTensorValue`, one row per example.

    Raises:
        errors.ConfigError: Features differ in their number of rows, or have none to speak of.
    """
    batch = example_pb2.ExampleBatch()
    for name, value in features.items():
        rows, is_float = _get_rows(name, value)
        if batch.named_feature_list and len(rows) != batch.batch_size:
            raise errors.ConfigError(
                f"All features of a batch must have one row per example, got {len(rows)} rows of "
                f"{name!r} and {batch.batch_size} of {batch.named_feature_list[0].name!r}."
            )
        batch.batch_size = len(rows)
        named = batch.named_feature_list.add(name=name, type=example_pb2.INDIVIDUAL)
        for row in rows:
            _fill(named.feature.add(), row, is_float)
    return batch


def _get_rows(name: str, value: Any) -> tuple[Sequence[np.ndarray], bool]:
    """Returns one flat array per example, and whether they hold floats."""
    if isinstance(value, tf.compat.v1.ragged.RaggedTensorValue):
        dtype = np.asarray(value.flat_values).dtype
        rows = [np.asarray(_flatten(row), dtype) for row in value.to_list()]
        return rows, dtype.kind == "f"
    if isinstance(value, np.ndarray) and value.ndim > 0:
        flat = value.reshape(len(value), int(np.prod(value.shape[1:])))
        return list(flat), value.dtype.kind == "f"
    raise errors.ConfigError(
        f"Feature {name!r} must be a ragged or dense tensor with one row per example, got "
        f"{type(value).__name__} {value!r}."
    )


def _flatten(row: Any) -> list[Any]:
    if not isinstance(row, list):
        return [row]
    return [element for part in row for element in _flatten(part)]


def _fill(feature: example_pb2.Feature, row: np.ndarray, is_float: bool) -> None:
    if is_float:
        feature.float_list.value.extend(row.tolist())
        feature.float_list.SetInParent()
    elif row.dtype.kind in "OSU":
        feature.bytes_list.value.extend(tf.compat.as_bytes(text) for text in row.tolist())
        feature.bytes_list.SetInParent()
    else:
        feature.fid_v2_list.value.extend(int(fid) & _UINT64_MASK for fid in row.tolist())
        feature.fid_v2_list.SetInParent()
