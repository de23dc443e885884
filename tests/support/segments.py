"""Tables whose rows have the segments that a test asks for."""

from monolith.embedding import entry
from monolith.proto import embedding_hash_table_pb2


def make_config(*segments: tuple[int, entry.Optimizer]) -> entry.HashTableConfigInstance:
    """Returns the config of a table with a segment for each dim and optimizer; zeros at first."""
    config = embedding_hash_table_pb2.EmbeddingHashTableConfig()
    config.cuckoo.SetInParent()
    for dim, optimizer in segments:
        config.entry_config.segments.append(
            entry.CombineAsSegment(dim, entry.ZerosInitializer(), optimizer, entry.Fp32Compressor())
        )
    return entry.HashTableConfigInstance(config, [1.0] * len(segments))
