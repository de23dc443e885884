"""The rows that an exported model takes along: those of a checkpoint, without optimizer state.

Training needs the state of its optimizers, serving does not, and often it is the larger part. So
the files are not copied: the rows of one server are read into tables without state, and saved from
there. That takes the memory of their values, for one server after the other.
"""

import dataclasses
import os
from collections.abc import Mapping

import tensorflow as tf

from monolith import errors
from monolith.embedding import filters
from monolith.embedding.tables import row_forms, single
from monolith.embedding.tables.registry import Entry, SnapshotFormat
from monolith.native import ops
from monolith.proto import embedding_hash_table_pb2 as proto

_SHARD_PATTERN = "-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]"
_NAME = "exported_rows"
# So many days before now, there was no time of any row.
_NEVER_DAYS = 1_000_000


@dataclasses.dataclass(frozen=True)
class RowFiles:
    """Files of a checkpoint, and what they become in a model.

    Attributes:
        source: What the paths of the files begin with.
        name: What the names of the model's files begin with.
        configs: The tables whose rows are in them, by name.
        form: How the files look.
    """

    source: str
    name: str
    configs: Mapping[str, proto.EmbeddingHashTableConfig]
    form: SnapshotFormat

    def write(self, asset_dir: str) -> None:
        """Writes the files of the model, as many as the checkpoint has.

        Args:
            asset_dir: Where they go.

        Raises:
            errors.ConfigError: The rows do not fit the model's tables.
        """
        target = os.path.join(asset_dir, self.name)
        tf.io.gfile.makedirs(os.path.dirname(target))
        with tf.Graph().as_default() as graph:
            written = self._build(target, len(tf.io.gfile.glob(self.source + _SHARD_PATTERN)))
        with tf.compat.v1.Session(graph=graph) as session:
            try:
                session.run(written)
            except tf.errors.InvalidArgumentError as e:
                # TensorFlow puts lines of its own around it.
                lines = e.message.splitlines()
                why = next((line for line in lines if "does not fit" in line), lines[0])
                raise errors.ConfigError(
                    f"The rows in {self.source} do not fit the model: {why.strip()} Export the "
                    "model as it was trained."
                ) from e

    def _build(self, target: str, num_files: int) -> tf.Operation:
        """Makes the op that does it, in the default graph."""
        hash_filter = filters.create_dummy_hash_filter()
        sync_client = single.create_dummy_sync_client()
        bare = [_drop_state(config) for config in self.configs.values()]
        if self.form.counts_features:
            config = proto.MultiEmbeddingHashTableConfig(names=list(self.configs), configs=bare)
            handle = ops.create_monolith_multi_hash_table(
                config.SerializeToString(), hash_filter, sync_client, shared_name=_NAME
            )
            table_names, save = list(self.configs), ops.monolith_multi_hash_table_save
        else:
            handle = ops.monolith_hash_table(
                hash_filter, sync_client, config=bare[0].SerializeToString(), shared_name=_NAME
            )
            table_names, save = [_NAME], ops.monolith_hash_table_save
        restored = ops.monolith_table_restore_changed(
            handle,
            [self.source],
            [0],
            start_anew=tf.constant([], tf.string),
            keep_values=table_names,
            compression=self.form.compression,
            keep_other_rows=self.form.keeps_other_rows,
        )
        with tf.control_dependencies([restored]):
            return save(handle, target, nshards=num_files).op


def find_row_files(entry: Entry, asset_dir: str, name: str) -> RowFiles | None:
    """Returns what a table takes along; None if nobody knows what the table is made of.

    Args:
        entry: The table.
        asset_dir: Where the files of the checkpoint are, with a slash at its end.
        name: What their names begin with.
    """
    configs = row_forms.get_configs(entry)
    if not configs:
        return None
    return RowFiles(asset_dir + name, name, configs, entry.config.snapshot_format)


def _drop_state(
    config: proto.EmbeddingHashTableConfig,
) -> proto.EmbeddingHashTableConfig:
    """Returns a table of the same dim whose rows are values and nothing else."""
    dim = sum(row_forms.to_segment(segment).dim for segment in config.entry_config.segments)
    bare = proto.EmbeddingHashTableConfig(cuckoo=proto.CuckooEmbeddingHashTableConfig())
    segment = bare.entry_config.segments.add(dim_size=dim)
    segment.init_config.zeros.dim_size = dim
    segment.opt_config.sgd.dim_size = dim
    segment.comp_config.fp32.dim_size = dim
    # What the save of the checkpoint has kept is kept.
    bare.slot_expire_time_config.default_expire_time = _NEVER_DAYS
    return bare
