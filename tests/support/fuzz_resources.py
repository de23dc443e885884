"""The resources and files that fuzzed calls get: tables, filters, snapshots, and broken ones."""

import contextlib
import os
import pathlib
import random
import shutil
from typing import Any

import tensorflow as tf

from monolith.embedding import entry
from monolith.native import ops, remote_predict
from monolith.proto import embedding_hash_table_pb2 as pb

# What recipes know of the tables: one of two segments, and a set of two tables of one segment each.
TABLE_SEGMENTS = (1, 3)
TABLE_DIM = sum(TABLE_SEGMENTS)
SET_DIMS = (2, 3)
SET_NAMES = ("a", "b")
IDS = [1, 2, 3, -5, 2**62, 7 << 48]
VARIABLE_SHAPE = (2, 3)

TABLES = ["table", "tracked_table", "serving_table", "set", "tracked_set", "empty_set"]
FILTERS = ["filter", "probabilistic_filter", "dummy_filter"]
OTHERS = ["sync_client", "key_set", "file", "closed_file", "shared", "taken_shared", "machine"]
VARIABLES = ["variable", "double_variable", "other_variable", "empty_variable"]
BROKEN = ["destroyed", "unknown", "no_handles", "two_handles", "blank"]
HANDLES = TABLES + FILTERS + OTHERS + VARIABLES + BROKEN

SNAPSHOTS = ["table", "set", "filter", "touched"]
DAMAGES = ["truncated", "flipped", "records", "garbage", "no_meta", "other_meta"]
PATHS = [
    *SNAPSHOTS,
    *(f"{damage} {snapshot}" for damage in DAMAGES for snapshot in SNAPSHOTS),
    *("new", "missing", "directory", "below a file", "nul", "empty", "long", "bytes", "root"),
]


def segment(dim: int, optimizer: Any = None) -> pb.EntryConfig.Segment:
    return entry.CombineAsSegment(
        dim, entry.ZerosInitializer(), optimizer or entry.SgdOptimizer(), entry.Fp32Compressor()
    )


def table_config(dims: tuple[int, ...] = TABLE_SEGMENTS) -> pb.EmbeddingHashTableConfig:
    config = pb.EmbeddingHashTableConfig()
    entry.CuckooHashTableConfig().mutate_table(config)
    optimizers = [entry.SgdOptimizer(), entry.AdagradOptimizer()]
    for i, dim in enumerate(dims):
        config.entry_config.segments.append(segment(dim, optimizers[i % 2]))
    return config


def set_config(dims: tuple[int, ...] = SET_DIMS) -> pb.MultiEmbeddingHashTableConfig:
    config = pb.MultiEmbeddingHashTableConfig()
    for name, dim in zip(SET_NAMES, dims, strict=False):
        config.names.append(name)
        config.configs.append(table_config((dim,)))
    return config


def threshold_config() -> bytes:
    return pb.SlotOccurrenceThresholdConfig(default_occurrence_threshold=2).SerializeToString()


class Resources:
    """Makes what one call needs, below a directory of its own, and destroys it afterwards."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._good = directory / "good"
        self._names = 0
        self._made: list[tf.Tensor] = []
        self._save_good_snapshots()
        # Who calls other servers is told that they do not like the request.
        remote_predict.set_sender(lambda call: call.fail(3, "not this", default_value=0.0))

    def name(self, prefix: str = "fuzz") -> str:
        self._names += 1
        return f"{prefix}_{self._names}"

    def forget(self) -> None:
        """Ends the resources of the last call."""
        for handle in self._made:
            # A handle that a spoiled call has made may be of nothing at all.
            with contextlib.suppress(tf.errors.OpError):
                tf.raw_ops.DestroyResourceOp(resource=handle, ignore_lookup_error=True)
        self._made.clear()
        shutil.rmtree(self._directory / "call", ignore_errors=True)

    def handle(self, kind: str) -> tf.Tensor:
        made: tf.Tensor = getattr(self, "_make_" + kind)()
        return made

    def adopt(self, handle: tf.Tensor) -> None:
        """Ends a resource that a call has made with the others."""
        self._made.append(handle)

    def _keep(self, handle: tf.Tensor) -> tf.Tensor:
        self._made.append(handle)
        return handle

    # Filters and small things.

    def _make_dummy_filter(self) -> tf.Tensor:
        return self._keep(ops.monolith_dummy_hash_filter(shared_name=self.name()))

    def _make_filter(self) -> tf.Tensor:
        made = ops.monolith_hash_filter(
            capacity=300, split_num=3, config=threshold_config(), shared_name=self.name()
        )
        return self._keep(made)

    def _make_probabilistic_filter(self) -> tf.Tensor:
        made = ops.monolith_probabilistic_filter(config=threshold_config(), shared_name=self.name())
        return self._keep(made)

    def _make_sync_client(self) -> tf.Tensor:
        return self._keep(ops.monolith_dummy_sync_client(shared_name=self.name()))

    def _make_parameter_sync_client(self) -> tf.Tensor:
        """Follows a table of a few rows, and has a server that needs them."""
        client = ops.monolith_parameter_sync_client(shared_name=self.name(), capacity=100)
        table = ops.monolith_hash_table(
            self._make_dummy_filter(),
            client,
            config=table_config((2,)).SerializeToString(),
            shared_name=self.name(),
        )
        ops.monolith_hash_table_assign(table, IDS, [[1.0, 2.0]] * len(IDS), 0)
        ops.monolith_parameter_sync_gather(client, ["a"])
        self._keep(table)
        return self._keep(client)

    def _make_key_set(self) -> tf.Tensor:
        made = ops.monolith_touched_key_set(
            capacity=100, concurrency_level=4, shared_name=self.name()
        )
        return self._keep(made)

    def _make_file(self) -> tf.Tensor:
        path = self.path("new")
        return ops.monolith_writable_file(filename=path, unique_name=self.name())

    def _make_closed_file(self) -> tf.Tensor:
        handle = self._make_file()
        ops.monolith_writable_file_close(handle)
        return handle

    def _make_shared(self) -> tf.Tensor:
        # A buffer for the ids [1, 2, 1] of one table and [3] of the next, as in the recipe.
        return ops.monolith_unique_key_with_value_and_offset(
            [1, 2, 1, 3], [0, 3, 4], dims=[2, 3], generate_buffer=True
        ).value_buffer

    def _make_taken_shared(self) -> tf.Tensor:
        handle = self._make_shared()
        ops.monolith_finalize_shared_tensor([handle], shape=[9], dtype=tf.float32)
        return handle

    def _make_machine(self) -> tf.Tensor:
        return self._keep(ops.monolith_machine_info(mem_limit=2**50, shared_name=self.name()))

    # Tables.

    def _make_table(self) -> tf.Tensor:
        handle = self._new_table(table_config())
        rows = tf.ones([len(IDS), TABLE_DIM])
        return ops.monolith_hash_table_assign(handle, IDS, rows, tf.constant(10, tf.int64))

    def _new_table(self, config: pb.EmbeddingHashTableConfig) -> tf.Tensor:
        made = ops.monolith_hash_table(
            self._make_dummy_filter(),
            self._make_sync_client(),
            config=config.SerializeToString(),
            shared_name=self.name(),
        )
        return self._keep(made)

    def _make_tracked_table(self) -> tf.Tensor:
        handle = self._make_table()
        ops.monolith_table_track_touched(handle, capacity=10)
        ops.monolith_hash_table_assign_add(
            handle, IDS[:2], tf.ones([2, TABLE_DIM]), tf.constant(20, tf.int64)
        )
        ops.monolith_table_gather_touched(handle)
        return handle

    def _make_serving_table(self) -> tf.Tensor:
        config = table_config()
        config.entry_config.entry_type = pb.EntryConfig.SERVING
        return self._new_table(config)

    def _new_set(self, config: pb.MultiEmbeddingHashTableConfig) -> tf.Tensor:
        made = ops.create_monolith_multi_hash_table(
            config.SerializeToString(),
            self._make_dummy_filter(),
            self._make_sync_client(),
            shared_name=self.name(),
        )
        return self._keep(made)

    def _make_set(self) -> tf.Tensor:
        n = len(IDS)
        rows = tf.ones([n * sum(SET_DIMS)])
        return ops.monolith_multi_hash_table_assign(
            self._new_set(set_config()), IDS + IDS, [0, n, 2 * n], rows, tf.constant(10, tf.int64)
        )

    def _make_tracked_set(self) -> tf.Tensor:
        handle = self._make_set()
        ops.monolith_table_track_touched(handle, capacity=10)
        return handle

    def _make_empty_set(self) -> tf.Tensor:
        return self._new_set(set_config(()))

    # Variables.

    def _new_variable(self, dtype: str, shape: tuple[int, ...], assign: bool = True) -> tf.Tensor:
        handle = tf.raw_ops.VarHandleOp(
            dtype=tf.as_dtype(dtype), shape=shape, shared_name=self.name()
        )
        if assign:
            tf.raw_ops.AssignVariableOp(resource=handle, value=tf.ones(shape, dtype))
        return self._keep(handle)

    def _make_variable(self) -> tf.Tensor:
        return self._new_variable("float32", VARIABLE_SHAPE)

    def _make_double_variable(self) -> tf.Tensor:
        return self._new_variable("float64", VARIABLE_SHAPE)

    def _make_other_variable(self) -> tf.Tensor:
        return self._new_variable("float32", (5,))

    def _make_empty_variable(self) -> tf.Tensor:
        return self._new_variable("float32", VARIABLE_SHAPE, assign=False)

    # Handles of nothing.

    def _make_destroyed(self) -> tf.Tensor:
        handle = self._make_table()
        tf.raw_ops.DestroyResourceOp(resource=handle)
        return handle

    def _make_unknown(self) -> tf.Tensor:
        return ops.read_monolith_multi_hash_table(shared_name=self.name())

    def _make_two_handles(self) -> tf.Tensor:
        return tf.stack([self._make_table(), self._make_set()])

    def _make_no_handles(self) -> tf.Tensor:
        return self._make_two_handles()[:0]

    def _make_blank(self) -> tf.Tensor:
        # The op leaves its handle empty if it is not asked for a buffer.
        return ops.monolith_unique_key_with_value_and_offset(
            [1], [0, 1], dims=[2], generate_buffer=False
        ).value_buffer

    # Files.

    def _save_good_snapshots(self) -> None:
        self._good.mkdir(parents=True, exist_ok=True)
        ops.monolith_hash_table_save(self._make_table(), str(self._good / "table"), nshards=2)
        ops.monolith_multi_hash_table_save(self._make_set(), str(self._good / "set"), nshards=2)
        hash_filter = self._make_filter()
        rows = tf.ones([len(IDS), 1])
        ops.monolith_hash_filter_intercept_gradient_gradient(hash_filter, IDS, rows)
        ops.monolith_hash_filter_save(hash_filter, str(self._good / "filter"))
        ops.monolith_table_save_touched(self._make_tracked_table(), str(self._good / "touched"))
        self.forget()

    def path(self, kind: str, salt: int = 0) -> bytes:
        directory = self._directory / "call"
        directory.mkdir(exist_ok=True)
        new = os.fsencode(directory / self.name("new"))
        if kind in SNAPSHOTS:
            return os.fsencode(self._good / kind)
        damage, _, snapshot = kind.rpartition(" ")
        if damage in DAMAGES:
            return self._damaged(damage, snapshot, random.Random(salt), directory)
        if kind == "directory":
            return os.fsencode(directory)
        if kind == "below a file":
            (directory / "file").write_bytes(b"x")
            return os.fsencode(directory / "file" / "x")
        simple = {
            "new": new,
            "missing": new + b"/missing",
            "nul": new + b"\0tail",
            "empty": b"",
            "long": new + b"x" * 300,
            "bytes": new + b"\xff\n%s*?[",
            "root": b"/",
        }
        return simple[kind]

    def _damaged(
        self, damage: str, snapshot: str, rng: random.Random, directory: pathlib.Path
    ) -> bytes:
        """A copy of a good snapshot with something wrong in it."""
        for source in sorted(self._good.glob(f"{snapshot}*-of-*")):
            target = directory / source.name
            content = bytearray(source.read_bytes())
            is_meta = ".meta" in source.name
            if damage == "no_meta" and is_meta:
                continue
            if damage == "truncated":
                content = content[: len(content) // 2]
            elif damage == "garbage":
                content = bytearray(rng.randbytes(200))
            elif damage == "flipped" and content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            elif damage == "records" or (damage == "other_meta" and is_meta):
                _write_odd_records(source, target, rng)
                continue
            target.write_bytes(bytes(content))
        return os.fsencode(directory / snapshot)


def _write_odd_records(source: pathlib.Path, target: pathlib.Path, rng: random.Random) -> None:
    """Records with right checksums and wrong contents."""
    try:
        records = list(tf.compat.v1.io.tf_record_iterator(str(source)))
    except tf.errors.OpError:  # Compressed.
        records = []
    with tf.io.TFRecordWriter(str(target)) as writer:
        for record in [*records, b"", rng.randbytes(30)]:
            changed = bytearray(record)
            for _ in range(rng.randrange(4) if changed else 0):
                changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            writer.write(bytes(changed))
