"""Tables for tests of their files."""

from monolith.embedding import entry
from monolith.proto import embedding_hash_table_pb2


def make_config(
    dim: int = 1, optimizer: entry.Optimizer | None = None, expire_time: int | None = None
) -> entry.HashTableConfigInstance:
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    entry.CuckooHashTableConfig().mutate_table(config)
    config.entry_config.segments.append(
        entry.CombineAsSegment(
            dim,
            entry.ZerosInitializer(),
            optimizer or entry.SgdOptimizer(),
            entry.Fp32Compressor(),
        )
    )
    if expire_time is not None:
        config.slot_expire_time_config.default_expire_time = expire_time
    return entry.HashTableConfigInstance(config, [1.0])


def lookup(table, ids):
    return table.lookup(ids).numpy().tolist()
