"""Tables on parameter servers, and the table of fused layouts: the one module that had both.

Example:
    >>> get_sub_table_name(["gid", "cid"])
    ('cid,gid', 'c4a398dea30b21551ae4c09454001dba')
"""

from monolith.embedding.sharding.layout_configs import get_sub_table_name
from monolith.embedding.sharding.partitioned import PartitionedHashTable
from monolith.embedding.sharding.servers import (
    DistributedHashTable,
    DistributedMultiTypeHashTable,
    ps_device,
)

__all__ = [
    "DistributedHashTable",
    "DistributedMultiTypeHashTable",
    "PartitionedHashTable",
    "get_sub_table_name",
    "ps_device",
]
