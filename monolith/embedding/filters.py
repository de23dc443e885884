"""Admission filters: an id gets a row only when it has been seen often enough.

Most ids of a live system are seen once and never again. A filter in front of a table keeps them
out, with a threshold for each slot, so that memory goes to ids that training can learn about. A
table whose config has a threshold of its own is asked with that, and its ids are counted apart.
A table asks its filter; `intercept_gradient` does the same for embeddings without a table.

Example:
    >>> from monolith.proto import embedding_hash_table_pb2
    >>> config = embedding_hash_table_pb2.SlotOccurrenceThresholdConfig(
    ...     default_occurrence_threshold=1
    ... )
    >>> (hash_filter,) = create_hash_filters(0, True, config.SerializeToString())
    >>> rows = tf.Variable([[1.0], [2.0], [3.0]])
    >>> with tf.GradientTape() as tape:
    ...     loss = tf.reduce_sum(intercept_gradient(hash_filter, [7, 8, 7], rows))
    >>> tape.gradient(loss, rows).numpy().tolist()  # The second occurrence of 7 passes.
    [[0.0], [0.0], [1.0]]
"""

import contextlib
import logging
import os
import re
from collections.abc import Callable, Sequence

import tensorflow as tf

from monolith.checkpoint.paths import SaveHelper
from monolith.checkpoint.restore_hook import AssetRestorerListener
from monolith.graph import devices, export_mode
from monolith.native import ops

logger = logging.getLogger(__name__)

HASH_FILTER_CAPACITY = 300000000
HASH_FILTER_SPLIT_NUM = 7

_TIMEOUT_IN_MS = 30 * 60 * 1000

_FILE_PREFIX = "hash_filter_"
_SAVED_FILTER = re.compile(_FILE_PREFIX + r"(\d+)-\d{5}-of-\d{5}", re.ASCII)


class FilterType:
    """Names of the kinds of filter."""

    SLIDING_HASH_FILTER = "sliding_hash_filter"
    PROBABILISTIC_FILTER = "probabilistic_filter"
    NO_FILTER = "no_filter"


def create_hash_filter(
    capacity: int, split_num: int, config: bytes = b"", name_suffix: str = ""
) -> tf.Tensor:
    """Makes a filter that counts, or finds the one of the same name.

    An id passes from the (threshold + 1)-th occurrence on; thresholds above 15 work as 15. Ids that
    were not seen for long are forgotten.

    Args:
        capacity: About so many ids are counted at a time; at least 300. Costs about 2.8 bytes
            each, taken as ids come.
        split_num: So many parts (at least 5) are forgotten in turn, and saved in as many files.
        config: A serialized `SlotOccurrenceThresholdConfig`.
        name_suffix: Tells filters on one device apart.

    Returns:
        The handle of the filter, a scalar of type resource.
    """
    return ops.monolith_hash_filter(
        capacity=capacity,
        split_num=split_num,
        config=config,
        shared_name="MonolithHashFilter" + name_suffix,
    )


def create_probabilistic_filter(
    equal_probability: bool, config: bytes = b"", name_suffix: str = ""
) -> tf.Tensor:
    """Makes a filter that draws lots and keeps no state, or finds the one of the same name.

    Args:
        equal_probability: If False, an id seen `n` times in one call passes with probability
            `n / threshold`. If True, every occurrence has the same chance, chosen so that 95 % of
            the ids have passed after `threshold` occurrences.
        config: A serialized `SlotOccurrenceThresholdConfig`.
        name_suffix: Tells filters on one device apart.

    Returns:
        The handle of the filter, a scalar of type resource.
    """
    return ops.monolith_probabilistic_filter(
        equal_probability=equal_probability,
        config=config,
        shared_name="MonolithProbabilisticFilter" + name_suffix,
    )


def create_dummy_hash_filter(name_suffix: str = "0") -> tf.Tensor:
    """Makes a filter that lets everything pass, or finds the one of the same name."""
    return ops.monolith_dummy_hash_filter(shared_name="DummyHashFilter" + name_suffix)


def create_hash_filters(
    ps_num: int,
    enable_hash_filter: bool,
    config: bytes = b"",
    filter_capacity: int = HASH_FILTER_CAPACITY,
    filter_split_num: int = HASH_FILTER_SPLIT_NUM,
    filter_equal_probability: bool = False,
    filter_type: str = FilterType.SLIDING_HASH_FILTER,
) -> list[tf.Tensor]:
    """Makes one filter for each parameter server.

    Args:
        ps_num: Number of parameter servers; 0 makes one filter here.
        enable_hash_filter: If False, the filters let everything pass.
        config: A serialized `SlotOccurrenceThresholdConfig`.
        filter_capacity: See `create_hash_filter`.
        filter_split_num: See `create_hash_filter`.
        filter_equal_probability: See `create_probabilistic_filter`.
        filter_type: One of the names in `FilterType`.

    Returns:
        The handles, in the order of the servers.

    Raises:
        ValueError: There is no such `filter_type`.
    """

    def create(name_suffix: str) -> tf.Tensor:
        if not enable_hash_filter or filter_type == FilterType.NO_FILTER:
            return create_dummy_hash_filter(name_suffix)
        if filter_type == FilterType.SLIDING_HASH_FILTER:
            return create_hash_filter(filter_capacity, filter_split_num, config, name_suffix)
        if filter_type == FilterType.PROBABILISTIC_FILTER:
            return create_probabilistic_filter(filter_equal_probability, config, name_suffix)
        raise ValueError(
            "Invalid filter type, please investigate and retry! Expected one of "
            f"{FilterType.SLIDING_HASH_FILTER!r}, {FilterType.PROBABILISTIC_FILTER!r} and "
            f"{FilterType.NO_FILTER!r}, got {filter_type!r}."
        )

    if ps_num == 0:
        return [create("")]
    filters = []
    for i in range(ps_num):
        # A model exported for one process has all its filters there.
        on_server = (
            contextlib.nullcontext()
            if export_mode.is_exporting_standalone()
            else tf.device(devices.ps_device(i))
        )
        with on_server:
            filters.append(create(f"_{i}"))
    return filters


def save_hash_filter(
    hash_filter: tf.Tensor, basename: str | tf.Tensor, enable_hash_filter: bool = False
) -> tf.Operation | tf.Tensor:
    """Writes a filter to `<basename>-00000-of-0000N` and so on; does nothing unless enabled.

    Others may use the filter meanwhile; what they count may or may not be in the files.
    """
    if not enable_hash_filter:
        return tf.no_op()
    return ops.monolith_hash_filter_save(hash_filter, basename)


def restore_hash_filter(
    hash_filter: tf.Tensor, basename: str | tf.Tensor, enable_hash_filter: bool = False
) -> tf.Operation | tf.Tensor:
    """Replaces the state of a filter by a saved one; does nothing unless enabled.

    With files that are missing, damaged, or of a filter with other settings, the op fails with a
    `NotFoundError`, `DataLossError` or `ResourceExhaustedError`, and the filter stays as it is.
    """
    if not enable_hash_filter:
        return tf.no_op()
    return ops.monolith_hash_filter_restore(hash_filter, basename)


def intercept_gradient(
    filter_tensor: tf.Tensor, ids: tf.Tensor, embeddings: tf.Tensor
) -> tf.Tensor:
    """Returns `embeddings`, whose gradient is zero in the rows of ids that the filter holds back.

    Each backward pass counts one occurrence per row. Only a filter that counts holds ids back here:
    the others decide about rows of a table.

    Args:
        filter_tensor: The handle of a filter.
        ids: Int64.
        embeddings: Float, with one row per id, such as `[len(ids), dim]`.
    """
    return ops.monolith_hash_filter_intercept_gradient(filter_tensor, ids, embeddings)


class HashFilterCheckpointSaverListener(tf.compat.v1.train.CheckpointSaverListener):
    """Writes the filters beside each checkpoint, before it becomes visible.

    Args:
        basename: What checkpoint prefixes begin with.
        hash_filters: One filter for each parameter server.
        enable_hash_filter: Whether the filters are in use.
        enable_save_restore: Whether their state is part of a checkpoint.
    """

    def __init__(
        self,
        basename: str,
        hash_filters: Sequence[tf.Tensor],
        enable_hash_filter: bool = False,
        enable_save_restore: bool = True,
    ) -> None:
        super().__init__()
        self._helper = SaveHelper(basename)
        enabled = enable_hash_filter and enable_save_restore
        self._files = _FilterFiles(hash_filters if enabled else [], save_hash_filter)

    def before_save(self, sess: tf.compat.v1.Session, global_step_value: int) -> None:
        if not self._files:
            return
        prefix = self._helper.get_ckpt_prefix(global_step_value)
        asset_dir = self._helper.get_ckpt_asset_dir(prefix)
        self._files.run(sess, asset_dir)
        logger.info("saved %d hash filters to %s", len(self._files), asset_dir)


class HashFilterCheckpointRestorerListener(AssetRestorerListener):
    """Brings the filters back from the latest checkpoint.

    A filter counts ids without knowing them, so it cannot be divided among servers, nor joined. If
    there are as many servers as have saved, or twice, or three times as many, each gets the whole
    filter that its ids were in, with their counts. With any other number the filters start empty,
    with a warning: ids that have no row yet are counted anew. So they do if the checkpoint has no
    filters, because the model got its first threshold after that.

    The arguments are those of `HashFilterCheckpointSaverListener`.
    """

    def __init__(
        self,
        basename: str,
        hash_filters: Sequence[tf.Tensor],
        enable_hash_filter: bool = False,
        enable_save_restore: bool = True,
    ) -> None:
        super().__init__(basename)
        enabled = enable_hash_filter and enable_save_restore
        self._files = _FilterFiles(hash_filters if enabled else [], restore_hash_filter)

    def restore(self, session: tf.compat.v1.Session, prefix: str | None) -> None:
        """Restores the filters; called by the restore hook."""
        if not self._files:
            return
        if prefix is None:
            logger.info("no checkpoint in %s, hash filters start empty", self.model_dir)
            return
        prefix = SaveHelper.strip_asset_dir(prefix)
        directory = SaveHelper.get_ckpt_asset_dir(prefix)
        if not tf.io.gfile.exists(directory):
            directory = prefix  # Checkpoints from before there were asset directories.
        num_saved = _count_saved(directory)
        if not num_saved:
            logger.warning("hash filters start empty: %s has none", prefix)
            return
        if len(self._files) % num_saved:
            logger.warning(
                "hash filters start empty: %s has those of %d servers, which %d servers cannot use",
                directory,
                num_saved,
                len(self._files),
            )
            return
        self._files.run(session, directory, num_saved)
        logger.info("restored %d hash filters from %s", len(self._files), directory)


class _FilterFiles:
    """One op per filter that reads or writes its files; they run one after another."""

    def __init__(
        self,
        hash_filters: Sequence[tf.Tensor],
        make_op: Callable[[tf.Tensor, tf.Tensor, bool], tf.Tensor],
    ) -> None:
        # The directory is known only when a checkpoint is made, the graph is final by then.
        self._basenames = [tf.compat.v1.placeholder(tf.string, []) for _ in hash_filters]
        self._ops = [
            make_op(hash_filter, basename, True).op
            for hash_filter, basename in zip(hash_filters, self._basenames, strict=True)
        ]

    def __len__(self) -> int:
        return len(self._ops)

    def run(
        self, session: tf.compat.v1.Session, directory: str, num_saved: int | None = None
    ) -> None:
        options = tf.compat.v1.RunOptions(timeout_in_ms=_TIMEOUT_IN_MS)
        num_files = num_saved or len(self)
        for i, (op, basename) in enumerate(zip(self._ops, self._basenames, strict=True)):
            path = f"{directory}{_FILE_PREFIX}{i % num_files}"
            session.run(op, {basename: path}, options=options)


def _count_saved(path_prefix: str) -> int:
    """Returns of how many servers there are filters under paths that begin like this."""
    directory, name = os.path.split(path_prefix)
    if not tf.io.gfile.isdir(directory or "."):
        return 0
    entries = tf.io.gfile.listdir(directory or ".")
    files = (_SAVED_FILTER.fullmatch(e.removeprefix(name)) for e in entries if e.startswith(name))
    return len({file.group(1) for file in files if file})
