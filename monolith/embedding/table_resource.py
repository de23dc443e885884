"""The native table behind an `ml.Table` that was made eagerly, and what a SavedModel has of it.

Whoever has the handle keeps the table: the object, and functions that were traced with it. When
the last one is gone, its memory is freed.

Example:
    >>> from monolith.embedding import optimizers
    >>> resource = TableResource(TableConfig("scores", 1, optimizers.SGD(0.5)))
    >>> int(ops.monolith_hash_table_size(resource.resource_handle))
    0
"""

import contextlib
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.saved_model import registration
from tensorflow.python.trackable.resource import RestoredResource

from monolith.embedding import filters
from monolith.embedding.table_config import TableConfig
from monolith.embedding.table_exports import Asset, write_assets
from monolith.embedding.tables import single
from monolith.graph import devices
from monolith.native import ops

_ADMITS_ALL = "_of_all"  # One filter without state is enough for all tables.


class _FreedWithItsHandle(tf.saved_model.experimental.TrackableResource):
    """TensorFlow's base frees a resource with its object, also where functions still use it."""

    def __del__(self) -> None:
        pass


class TableResource(_FreedWithItsHandle):
    """A native table.

    In a SavedModel it is a table for serving: compressed rows, without optimizer state, which it
    reads from the model's own files when the model is loaded.

    Attributes:
        hash_filter: The handle of the filter in front of the table.
    """

    def __init__(self, config: TableConfig) -> None:
        super().__init__(device=devices.cpu_here())
        self._config = config
        self._unique_name = f"{config.name}_{uuid.uuid4().hex}"
        self._expire_times = config.make_proto().slot_expire_time_config.SerializeToString()
        self._exported: Callable[[], Asset | None] = lambda: None
        self.hash_filter: tf.Tensor | None = None

    def save(self, basename: str) -> None:
        """Writes all rows that have not expired to `<basename>-00000-of-0000N` and so on."""
        ops.monolith_hash_table_save(
            self.resource_handle, basename, nshards=-1, slot_expire_time_config=self._expire_times
        )

    def _create_resource(self) -> tf.Tensor:
        sync_client = single.create_dummy_sync_client()
        serving = not tf.executing_eagerly()
        if serving:
            hash_filter = filters.create_dummy_hash_filter(_ADMITS_ALL)
        else:
            hash_filter = self.hash_filter = make_filter(self._config, self._unique_name)
        # Whoever loads a SavedModel makes the name another one each time.
        handle = ops.monolith_hash_table(
            hash_filter,
            sync_client,
            config=self._config.make_proto(serving).SerializeToString(deterministic=True),
            shared_name=self._unique_name,
        )
        if not serving:
            free_with(handle, *([hash_filter] if self._config.admit_after else []))
        return handle

    def _initialize(self) -> None:
        asset = self._exported()
        if asset is not None:
            basename = tf.strings.regex_replace(asset.asset_path, r"-\d{5}-of-\d{5}$", "")
            ops.monolith_hash_table_restore(self.resource_handle, basename)

    def _destroy_resource(self) -> None:
        """Only for a model that is loaded without this class."""
        tf.raw_ops.DestroyResourceOp(resource=self.resource_handle, ignore_lookup_error=True)

    def _trackable_children(self, save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        children = super()._trackable_children(save_type, **kwargs)
        if save_type != "savedmodel":
            return children
        assets, self._exported = write_assets(self.save)
        return {**children, **assets}

    @classmethod
    def _deserialize_from_proto(cls, **kwargs: Any) -> "_LoadedResource":
        return _LoadedResource.of_saved_model(**kwargs)


registration.register_serializable(package="monolith")(TableResource)


class _LoadedResource(_FreedWithItsHandle):
    """The table of a model that `tf.saved_model.load` has loaded."""

    @classmethod
    def of_saved_model(
        cls, object_proto: Any, dependencies: dict[str, Any], **kwargs: Any
    ) -> "_LoadedResource":
        del kwargs
        create = dependencies["_create_resource"]

        def create_and_free() -> tf.Tensor:
            handle = create()
            free_with(handle)
            return handle

        loaded = cls(device=object_proto.resource.device)
        loaded._create_resource = create_and_free
        return loaded

    _add_trackable_child = RestoredResource._add_trackable_child


def free_with(handle: tf.Tensor, *others: tf.Tensor) -> None:
    """Frees what `handle` and others refer to when the first is gone, the tensor itself."""
    copies = [tf.identity(tensor) for tensor in (handle, *others)]
    weakref.finalize(handle, _free, copies).atexit = False


def _free(handles: list[tf.Tensor]) -> None:
    # Python may call this anywhere, also while it ends.
    with contextlib.suppress(Exception), context.eager_mode():
        for handle in handles:
            tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)


def make_filter(config: TableConfig, name: str) -> tf.Tensor:
    """Makes the filter that decides which ids get a row, and returns its handle."""
    with tf.device(devices.cpu_here()):
        if not config.admit_after:
            return filters.create_dummy_hash_filter(_ADMITS_ALL)
        return filters.create_hash_filter(
            filters.HASH_FILTER_CAPACITY,
            filters.HASH_FILTER_SPLIT_NUM,
            config.make_thresholds(),
            name,
        )
