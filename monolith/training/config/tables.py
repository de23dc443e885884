"""The tables of a model, what they admit, and the queues between them and the model."""

import dataclasses


@dataclasses.dataclass
class TableSettings:
    """How tables and dense variables are made, looked up and updated.

    :param filter_capacity: How many ids the sliding hash filter remembers.
    :param filter_split_num: Into how many parts the sliding hash filter is split; the oldest part
        is forgotten when the newest is full.
    :param filter_type: How rarely seen ids are kept out of the tables: 'sliding_hash_filter',
        'probabilistic_filter' or 'no_filter'.
    :param filter_equal_probability: Whether the probabilistic filter admits an id with the same
        probability each time it is seen.
    :param hashtable_init_capacity: Rows that each table reserves at the start. 0 keeps what the
        table's own config says.
    :param use_native_multi_hash_table: Whether all tables of a server live in one resource. If
        unset, yes, unless the model directory holds a checkpoint of separate tables.
    :param embedding_prefetch_capacity: Batches that may wait between the embedding lookup and the
        model. 0 means no queue.
    :param enable_embedding_postpush: Whether embedding gradients are pushed by a queue, one step
        late, instead of within the step.
    :param enable_variable_prefetch: Whether dense variables are read from a local copy that is
        fetched beside each step.
    :param enable_variable_postpush: Whether dense gradients are pushed by a queue, one step late.
    :param enable_variable_partition: Whether large dense variables are split over the servers.
    :param enable_fused_layout: Whether embeddings are looked up by layout in one fused op.
    """

    filter_capacity: int = 300000000
    filter_split_num: int = 7
    filter_type: str = "sliding_hash_filter"
    filter_equal_probability: bool = True
    hashtable_init_capacity: int = 0
    use_native_multi_hash_table: bool | None = None
    embedding_prefetch_capacity: int = 0
    enable_embedding_postpush: bool = False
    enable_variable_prefetch: bool = False
    enable_variable_postpush: bool = False
    enable_variable_partition: bool = True
    enable_fused_layout: bool = False
