"""Which rows of a graph's tables have changed, and how only those are written.

For saves between two full ones. Tables remember the ids of changed rows from the moment `track` is
run; before that, and in a graph without this, they remember nothing. A save gathers the ids, writes
their rows, and lets the tables forget them when they are safe; what a failed save has gathered is
gathered again by the next.
"""

import logging

import tensorflow as tf

from monolith.embedding.tables import multi_snapshots as multi
from monolith.embedding.tables import shards
from monolith.embedding.tables import single_snapshots as single
from monolith.embedding.tables.single_snapshots import run_with_timeout
from monolith.embedding.tables.touched_keys import TOUCHED_KEY_SET_CAPACITY
from monolith.native import ops

logger = logging.getLogger(__name__)


class TouchedTables:
    """The changed rows of all tables of the default graph. Make it after the tables.

    Args:
        capacity: How many ids each table of each server remembers; with more it forgets all, and
            `gather` says so.
    """

    def __init__(self, capacity: int = TOUCHED_KEY_SET_CAPACITY) -> None:
        singles = tf.compat.v1.get_collection(single._HASH_TABLE_GRAPH_KEY)
        multis = tf.compat.v1.get_collection(multi._MULTI_HASH_TABLE_GRAPH_KEY)
        # The lists beside the files, by name: which file is whose.
        self._lists = {
            single.SHARD_LIST: {
                shards.get_shard(t.name): single._file_prefix(t.name) for t in singles
            },
            multi.SHARD_LIST: {shards.get_shard(t.shared_name): t.shared_name for t in multis},
        }
        self._directory = tf.compat.v1.placeholder(tf.string, [])
        self._tracks, self._gathers, self._saves, self._forgets = [], [], [], []
        tables = [
            (t.table, single._file_prefix(t.name), "", t._slot_expire_time_config) for t in singles
        ] + [
            (t.handle, t.shared_name, multi.COMPRESSION, t._slot_expire_time_config) for t in multis
        ]
        for handle, file, compression, expire_times in tables:
            with tf.device(handle.device):
                self._tracks.append(ops.monolith_table_track_touched(handle, capacity=capacity))
                self._gathers.append(ops.monolith_table_gather_touched(handle))
                self._saves.append(
                    ops.monolith_table_save_touched(
                        handle,
                        tf.strings.join([self._directory, file]),
                        compression=compression,
                        slot_expire_time_config=expire_times,
                    )
                )
                self._forgets.append(ops.monolith_table_forget_touched(handle))

    def track(self, session: tf.compat.v1.Session) -> None:
        """Has the tables remember which rows change; does nothing to those that do already."""
        session.run(self._tracks)

    def gather(self, session: tf.compat.v1.Session) -> tuple[int, bool]:
        """Collects the ids of all rows that have changed, for `save` or for a full save.

        Returns:
            How many there are, and whether these are all; if not, only a full save helps.
        """
        gathered = session.run(self._gathers)
        return sum(int(g.num_ids) for g in gathered), all(bool(g.complete) for g in gathered)

    def save(self, session: tf.compat.v1.Session, asset_dir: str) -> None:
        """Writes the rows that were gathered, with those that were removed.

        Args:
            session: The session of the run.
            asset_dir: The directory that the files go to, with a slash at its end.
        """
        tf.io.gfile.makedirs(asset_dir)
        run_with_timeout(session, self._saves, {self._directory: asset_dir})
        for name, file_of_shard in self._lists.items():
            if file_of_shard:
                shards.write_list(asset_dir + name, file_of_shard)

    def forget(self, session: tf.compat.v1.Session) -> None:
        """Lets the tables forget what was gathered, since it is safe now."""
        session.run(self._forgets)
