"""The ops that restore variables, kept apart by the device that the variables lie on.

TensorFlow's builder ties them together into one op, which can only restore all devices. It also
forgets which shapes the variables have, and a resource variable takes any: without a look at the
shapes, a layer that was made wider would silently become as narrow as it was in the checkpoint.

Example:
    >>> with tf.Graph().as_default():
    ...     with tf.device("/job:ps/task:1"):
    ...         _ = tf.compat.v1.get_variable("v", initializer=1.0)
    ...     builder = SaverBuilder()
    ...     _ = tf.compat.v1.train.Saver(builder=builder, sharded=True)
    >>> list(builder.restore_ops_per_device)
    ['/job:ps/task:1']
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training import saver as tf_saver
from tensorflow.python.training.saving import saveable_object_util


class SaverBuilder(tf_saver.BulkSaverBuilder):  # type: ignore[misc]
    """TensorFlow's builder that remembers what it built for which device and shape."""

    def __init__(self, write_version: int = tf.compat.v1.train.SaverDef.V2) -> None:
        super().__init__(write_version)
        self._restore_ops_per_device: dict[str, tf.Operation] = {}
        self._resource_shapes: dict[str, tf.TensorShape] = {}

    @property
    def restore_ops_per_device(self) -> dict[str, tf.Operation]:
        """The op that restores all variables of a device, for each; empty if not sharded."""
        return self._restore_ops_per_device

    def find_shape_mismatches(self, saved_shapes: Mapping[str, Sequence[int]]) -> list[str]:
        """Says which variables have another shape in a checkpoint, a sentence for each.

        Args:
            saved_shapes: Names and shapes in the checkpoint.
        """
        return [
            f"Variable {name!r} has the shape {shape}, in the checkpoint {saved_shapes[name]}."
            for name, shape in self._resource_shapes.items()
            if name in saved_shapes and not shape.is_compatible_with(saved_shapes[name])
        ]

    def _AddRestoreOps(
        self,
        filename_tensor: tf.Tensor,
        saveables: Sequence[Any],
        restore_sequentially: bool,
        reshape: bool,
        preferred_shard: int = -1,
        name: str = "restore_all",
    ) -> tf.Operation:
        for saveable in saveables:
            # TensorFlow itself looks at the shapes of other variables, and of parts of variables.
            is_resource = isinstance(saveable, saveable_object_util.ResourceVariableSaveable)
            if is_resource and not reshape and not saveable.specs[0].slice_spec:
                self._resource_shapes[saveable.specs[0].name] = saveable._var_shape
        return super()._AddRestoreOps(
            filename_tensor, saveables, restore_sequentially, reshape, preferred_shard, name
        )

    def _AddShardedRestoreOps(
        self,
        filename_tensor: tf.Tensor,
        per_device: Sequence[tuple[str, Any]],
        restore_sequentially: bool,
        reshape: bool,
    ) -> tf.Operation:
        for shard, (device, saveables) in enumerate(per_device):
            with tf.device(device):
                self._restore_ops_per_device[device] = self._AddRestoreOps(
                    filename_tensor,
                    saveables,
                    restore_sequentially,
                    reshape,
                    preferred_shard=shard,
                    name="restore_shard",
                )
        return tf.group(*self._restore_ops_per_device.values(), name="restore_all")
