"""What the ops of fused layouts are told about the features, tables and layouts of a model.

Example:
    >>> from monolith.embedding.features.combiners import ReduceSum
    >>> from monolith.testing import generate_test_hash_table_config
    >>> bias = example_pb2.OutConfig()
    >>> _ = bias.slice_configs.add(feature_name="user", start=0, end=1)
    >>> _ = bias.shape.add(dims=[-1, 1])
    >>> configs = gen_feature_configs(
    ...     0,
    ...     {"user": generate_test_hash_table_config(dim=1)},
    ...     {"bias": bias},
    ...     feature_to_unmerged_slice_dims={"user": [1]},
    ...     feature_to_combiner={"user": ReduceSum()},
    ...     use_native_multi_hash_table=False,
    ... )
    >>> configs.feature_to_table["user"] == get_sub_table_name(["user"])[1]
    True
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monolith import errors
from monolith.embedding import entry
from monolith.embedding.tables.multi_type import MergedMultiTypeHashTable
from monolith.proto import example_pb2

Configs = Mapping[str, entry.HashTableConfigInstance]

#: What all tables are called where one request to a server serves all of them.
NATIVE_TABLE = "native_multi_hash_table_fake_table"

# The combiners are in a package that is built on this one, so they are known by name.
_POOLING_TYPES = {
    "ReduceSum": example_pb2.SUM,
    "ReduceMean": example_pb2.MEAN,
    "FirstN": example_pb2.FIRSTN,
}


@dataclasses.dataclass(frozen=True)
class ShardingFeatureConfigs:
    """How the ids of a batch are divided, and what is made of their rows.

    Attributes:
        num_servers: Among how many the ids are divided; one without servers.
        feature_configs: Features and layouts, for the ops. With native tables the table of all
            features is `NATIVE_TABLE`.
        table_configs: What each table is made of.
        feature_to_table: The name of each feature's table in `table_configs`.
        transfer_float16: Whether rows and gradients travel as float16.
        unique: Whether what occurs several times in a batch is sent once.
    """

    num_servers: int
    feature_configs: example_pb2.FeatureConfigs
    table_configs: Configs
    feature_to_table: Mapping[str, str]
    transfer_float16: bool
    unique: bool

    @property
    def sub_tables(self) -> list[str]:
        """The table of each feature, features sorted by name."""
        return [self.feature_to_table[name] for name in sorted(self.feature_to_table)]

    def as_one_table(self) -> example_pb2.FeatureConfigs:
        """Returns the features and layouts with one list of rows for each server."""
        configs = example_pb2.FeatureConfigs()
        configs.CopyFrom(self.feature_configs)
        for config in configs.feature_configs.values():
            config.table = NATIVE_TABLE
        return configs


def get_sub_table_name(names: Iterable[str]) -> tuple[str, str]:
    """Returns the joined names of the features of a table, and the name of that table."""
    joined = ",".join(sorted(names))
    return joined, hashlib.md5(joined.encode(), usedforsecurity=False).hexdigest()


def merge_feature_config(
    feature_name_to_config: Configs,
) -> tuple[dict[str, str], dict[str, entry.HashTableConfigInstance]]:
    """Puts features with equal configs into one table.

    Returns:
        The table of each feature, and the config of each table.
    """
    merged: dict[str, entry.HashTableConfigInstance] = {}

    def keep(configs: dict[str, entry.HashTableConfigInstance]) -> Any:
        merged.update(configs)

    feature_to_table = MergedMultiTypeHashTable(feature_name_to_config, keep).slot_mapping
    return feature_to_table, merged


def gen_feature_configs(
    num_ps: int,
    feature_name_to_config: Configs,
    layout_configs: Mapping[str, example_pb2.OutConfig],
    feature_to_unmerged_slice_dims: Mapping[str, Sequence[int]],
    feature_to_combiner: Mapping[str, Any],
    use_native_multi_hash_table: bool,
    transfer_float16: bool = False,
    unique: bool | None = None,
    enable_gpu_emb: bool = False,
    use_gpu: bool = False,
    feature_to_table: Mapping[str, str] | None = None,
) -> ShardingFeatureConfigs:
    """Returns how ids are divided and rows are laid out.

    Args:
        num_ps: Number of servers; 0: the tables are in this process.
        feature_name_to_config: What the table of each feature is made of.
        layout_configs: The tensors that the model takes, by name of the layout.
        feature_to_unmerged_slice_dims: The widths of the slices of each feature's rows.
        feature_to_combiner: What becomes of several ids of an example.
        use_native_multi_hash_table: Whether all tables of a server are one resource; otherwise
            features with equal configs share a table.
        transfer_float16: Whether rows and gradients travel as float16.
        unique: Whether equal ids of a batch are sent once and make one step of the optimizer; None
            is yes.
        enable_gpu_emb: Must be False: there are no tables on a GPU.
        use_gpu: Must be False, too.
        feature_to_table: With native tables, the table of each feature; by default each has its
            own.

    Raises:
        Exception: A combiner is neither a sum nor a mean nor the first ids.
        errors.ConfigError: A GPU is asked for, or a layout has no feature of that name.
    """
    if enable_gpu_emb or use_gpu:
        raise errors.ConfigError(
            "`enable_gpu_emb` and `use_gpu` ask for tables on a GPU, which this package does not "
            "have; leave them at False."
        )
    if use_native_multi_hash_table:
        to_table = dict(feature_to_table or {name: name for name in feature_name_to_config})
        tables = {to_table[name]: config for name, config in feature_name_to_config.items()}
    else:
        to_table, tables = merge_feature_config(feature_name_to_config)
    configs = example_pb2.FeatureConfigs()
    for name in feature_name_to_config:
        config = configs.feature_configs[name]
        config.table = NATIVE_TABLE if use_native_multi_hash_table else to_table[name]
        config.slice_dims.extend(feature_to_unmerged_slice_dims[name])
        config.pooling_type = _get_pooling_type(feature_to_combiner[name])
        config.max_sequence_length = feature_to_combiner[name].max_seq_length or 0
    for layout, out in layout_configs.items():
        for slice_config in out.slice_configs:
            if slice_config.feature_name not in feature_name_to_config:
                raise errors.ConfigError(
                    f"Layout '{layout}' has a slice of feature '{slice_config.feature_name}', "
                    "which has no table."
                )
        configs.out_configs[layout].CopyFrom(out)
    return ShardingFeatureConfigs(
        num_servers=max(1, num_ps),
        feature_configs=configs,
        table_configs=tables,
        feature_to_table=to_table,
        transfer_float16=transfer_float16,
        unique=unique is None or unique,
    )


def flatten_layout(layouts: Mapping[str, Any]) -> list[Any]:
    """Returns the tensors of all layouts, which are sorted by name."""
    flat: list[Any] = []
    for name in sorted(layouts):
        layout = layouts[name]
        flat.extend(layout if isinstance(layout, list | tuple) else [layout])
    return flat


def nest_layout(
    tensors: Sequence[Any], layout_configs: Mapping[str, example_pb2.OutConfig]
) -> dict[str, Any]:
    """Undoes `flatten_layout`: a layout of separate slices is a list, any other a tensor."""
    expected = sum(len(out.shape) for out in layout_configs.values())
    if len(tensors) != expected:
        raise errors.ConfigError(f"The layouts have {expected} tensors, got {len(tensors)}.")
    rest = iter(tensors)
    layouts: dict[str, Any] = {}
    for name in sorted(layout_configs):
        out = layout_configs[name]
        parts = [next(rest) for _ in out.shape]
        layouts[name] = parts if out.out_type == example_pb2.NONE else parts[0]
    return layouts


def _get_pooling_type(combiner: Any) -> example_pb2.PoolingType:
    pooling_type = _POOLING_TYPES.get(type(combiner).__name__)
    if pooling_type is None:
        raise Exception(  # The type and the first words that callers know.
            f"pooling_type error! A fused layout sums ids up, takes their mean or the first of "
            f"them, and {combiner} does something else."
        )
    return pooling_type
