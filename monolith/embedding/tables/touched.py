"""Which rows of a graph's tables have changed, and how only those are written.

For saves between two full ones. Tables remember the ids of changed rows from the moment `track` is
run; before that, and in a graph without this, they remember nothing. A save gathers the ids, writes
their rows, and lets the tables forget them when they are safe; what a failed save has gathered is
gathered again by the next.
"""

import logging

import tensorflow as tf

from monolith.embedding.tables import registry, shards
from monolith.embedding.tables.snapshots import run_with_timeout
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
        self._tables = registry.get_tables()
        self._directory = tf.compat.v1.placeholder(tf.string, [])
        self._tracks, self._gathers, self._saves, self._forgets = [], [], [], []
        for entry in self._tables:
            with tf.device(entry.handle.device):
                self._tracks.append(
                    ops.monolith_table_track_touched(entry.handle, capacity=capacity)
                )
                self._gathers.append(ops.monolith_table_gather_touched(entry.handle))
                self._saves.append(
                    ops.monolith_table_save_touched(
                        entry.handle,
                        tf.strings.join([self._directory, entry.file]),
                        compression=entry.config.snapshot_format.compression,
                        slot_expire_time_config=entry.config.expire_times,
                    )
                )
                self._forgets.append(ops.monolith_table_forget_touched(entry.handle))

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
        shards.write_lists(asset_dir, self._tables)

    def forget(self, session: tf.compat.v1.Session) -> None:
        """Lets the tables forget what was gathered, since it is safe now."""
        session.run(self._forgets)
