"""The historical module paths, kept working by one table.

People who come from the original system say `from monolith.native_training import utils`.
Each old path below resolves to its new home, and both names give the *same module object*:
patching one patches the other, and a class pickled under either name loads. What behaves
differently from there is in docs/coming-from-the-original.md.

Example:
    >>> import monolith
    >>> from monolith.core import paths
    >>> import monolith.path_utils
    >>> monolith.path_utils is paths
    True
"""

import difflib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence

_PREFIX = "monolith.native_training"
# A real package: the homes of what only old paths need.
_LEGACY = f"{_PREFIX}.legacy"

# Old path below `monolith.native_training`, new home below `monolith`.
_BELOW_NATIVE_TRAINING = {
    "alert.alert_manager": "core.alerts",
    "barrier_ops": "training.controller.barrier",
    "basic_restore_hook": "checkpoint.restore_hook",
    "clip_ops": "optimizer.clip",
    "cluster_manager": "cluster.manager",
    "consul": "cluster.consul",
    "data.training_instance.python.parser_utils": "data.parse_steps",
    "debugging.debugging_server": "training.distributed.debugging",
    "dense_reload_utils": "checkpoint.dense_reload",
    "device_utils": "graph.devices",
    "cpu_training": "training.cpu",
    "distributed_ps": "native_training.legacy.distributed_ps",
    "distributed_ps_factory": "embedding.sharding.factory",
    "distributed_ps_sync": "embedding.sharding.ranks",
    "distributed_serving_ops": "serving.sync.client_ops",
    "distribution_ops": "embedding.sharding.distribution",
    "distribution_utils": "graph.mpi",
    "embedding_combiners": "embedding.features.combiners",
    "entry": "embedding.entry",
    "env_utils": "core.environment",
    "estimator": "training.estimator",
    "feature": "native_training.legacy.feature",
    "feature_utils": "embedding.features.gradients",
    "file_ops": "native.file_ops",
    "gflags_utils": "core.flags",
    "graph_meta": "graph.metadata",
    "graph_utils": "graph.metadata",
    "hash_filter_ops": "embedding.filters",
    "hooks.ckpt_hooks": "training.hooks.checkpoint_barrier",
    "hooks.ckpt_info": "training.hooks.checkpoint_info",
    "hooks.controller_hooks": "training.hooks.control_file",
    "hooks.feature_engineering_hooks": "training.hooks.feature_dump",
    "hooks.hook_utils": "training.hooks.listener_filters",
    "hooks.ps_check_hooks": "training.hooks.server_health",
    "hooks.server.client_lib": "training.controller.client",
    "hooks.server.constants": "training.controller.files",
    "hooks.server.server_lib": "training.controller.server",
    "hooks.session_hooks": "training.hooks.current_session",
    "hash_table_ops": "embedding.tables.single",
    "hash_table_utils": "embedding.tables.iteration",
    "hvd_lib": "graph.collectives",
    "data.data_gen_utils": "data.fids",
    "data.datasets": "data.record_datasets",
    "data.feature_list": "data.feature_list",
    "data.feature_utils": "data.row_filters",
    "data.parsers": "data.parsers",
    "data.transform.transforms": "data.transforms",
    "data.utils": "data.slot_names",
    "input": "data.ffm",
    "learning_rate_functions": "optimizer.learning_rate",
    "logging_ops": "native.logging_ops",
    "metric.cli": "core.metrics",
    "mlp_utils": "cluster.mlp",
    "model": "model.ffm",
    "model_export.export_context": "graph.export_mode",
    "model_export.export_hooks": "serving.export_listener",
    "model_export.export_state_utils": "serving.export_state",
    "model_export.saved_model_exporters": "serving.export",
    "multi_hash_table_ops": "embedding.tables.multi",
    "multi_type_hash_table": "embedding.tables.multi_type",
    "native_model": "model.ranking",
    "native_task": "model.task",
    "native_task_context": "graph.task_context",
    "nested_tensors": "tensor.nested",
    "net_utils": "cluster.net",
    "optimizers.adamom": "optimizer.adamom",
    "optimizers.rmsprop": "optimizer.rmsprop",
    "optimizers.shampoo": "optimizer.shampoo",
    "prefetch_queue": "tensor.prefetch",
    "ps_benchmark": "training.ps_benchmark",
    "ragged_utils": "tensor.ragged",
    "remote_predict_ops": "serving.remote_predict",
    "runner_utils": "training.runner",
    "runtime.ops.gen_monolith_ops": "native.ops",
    "save_utils": "checkpoint.saver",
    "service_discovery": "cluster.discovery",
    "session_run_hooks": "training.hooks.tide",
    "signal_utils": "core.signals",
    "static_reshape_op": "tensor.static_reshape",
    "summary.summary_ops": "summary.ops",
    "summary.utils": "summary.metadata",
    "sync_hooks": "training.hooks.sync",
    "sync_training_hooks": "training.hooks.sync_training",
    "tensor_utils": "tensor.packing",
    "test_utils": "testing",
    "touched_key_set_ops": "embedding.tables.touched_keys",
    "utils": "native_training.legacy.utils",
    "variables": "training.tables.cached_variables",
    "yarn_runtime": "cluster.primus",
    "zk_utils": "cluster.zookeeper",
    # Generated protobuf and gRPC modules.
    "data.data_op_config_pb2": "proto.data_op_config_pb2",
    "data.transform.transform_config_pb2": "proto.transform_config_pb2",
    "alert.alert_pb2": "proto.alert_pb2",
    "hash_table_ops_pb2": "proto.hash_table_ops_pb2",
    "hooks.ckpt_hooks_pb2": "proto.ckpt_hooks_pb2",
    "hooks.controller_hooks_pb2": "proto.controller_hooks_pb2",
    "hooks.server.service_pb2": "proto.service_pb2",
    "hooks.server.service_pb2_grpc": "proto.service_pb2_grpc",
    "model_dump.monolith_model_pb2": "proto.monolith_model_pb2",
    "model_export.export_pb2": "proto.export_pb2",
    "monolith_checkpoint_state_pb2": "proto.monolith_checkpoint_state_pb2",
    "multi_hash_table_ops_pb2": "proto.multi_hash_table_ops_pb2",
    "proto.ckpt_info_pb2": "proto.ckpt_info_pb2",
    "proto.debugging_info_pb2": "proto.debugging_info_pb2",
    "proto.primus_am_service_pb2": "proto.primus_am_service_pb2",
    "proto.primus_am_service_pb2_grpc": "proto.primus_am_service_pb2_grpc",
    "runtime.hash_table.compressor.float_compressor_pb2": "proto.float_compressor_pb2",
    "runtime.hash_table.embedding_hash_table_pb2": "proto.embedding_hash_table_pb2",
    "runtime.hash_table.initializer.initializer_config_pb2": "proto.initializer_config_pb2",
    "runtime.hash_table.optimizer.optimizer_pb2": "proto.optimizer_pb2",
    "runtime.ops.logging_ops_pb2": "proto.logging_ops_pb2",
    "runtime.parameter_sync.parameter_sync_pb2": "proto.parameter_sync_pb2",
}

# Old path below `monolith`, new home below `monolith`.
_BELOW_MONOLITH = {
    "agent_service.agent_service_pb2": "proto.agent_service_pb2",
    "agent_service.agent_service_pb2_grpc": "proto.agent_service_pb2_grpc",
    "agent_service.backends": "serving.agent.backends",
    "agent_service.data_def": "serving.agent.data_def",
    "agent_service.replica_manager": "serving.agent.replicas",
    "agent_service.utils": "serving.agent.config",
    "base_model": "model.ranking",
    "base_runner": "training.base_runner",
    "core.base_embedding_task": "model.base_embedding_task",
    "core.base_layer": "core.naming",
    "core.base_task": "model.base_task",
    "core.base_model_params": "model.registry",
    "core.model_imports": "native_training.legacy.model_imports",
    "core.model_registry": "model.registry",
    "entry": "embedding.entry",
    "estimator": "training.estimator",
    "model_export.export_context": "graph.export_mode",
    "model_export.saved_model_exporters": "serving.export",
    "path_utils": "core.paths",
    "tpu_runner": "training.tpu",
    "utils": "core.files",
}

HISTORICAL_PATHS: dict[str, str] = {
    **{f"{_PREFIX}.{old}": f"monolith.{new}" for old, new in _BELOW_NATIVE_TRAINING.items()},
    **{f"monolith.{old}": f"monolith.{new}" for old, new in _BELOW_MONOLITH.items()},
}

# Old paths whose import changed the whole process, and the function of the new home that does so.
# The homes change nothing when they are imported; code that names the old path relies on it.
ON_HISTORICAL_IMPORT: dict[str, str] = {
    f"{_PREFIX}.runner_utils": "prepare_when_made",
}

# Packages that only exist as part of an old path, such as `monolith.native_training.hooks`.
_OLD_PACKAGES = {
    ".".join(parts[:depth])
    for parts in (old.split(".") for old in HISTORICAL_PATHS)
    for depth in range(2, len(parts))
} - {_PREFIX, "monolith.core"}


class _AliasLoader(importlib.abc.Loader):
    """Hands out the module of the new home under its old name.

    Args:
        home: The new home.
        on_import: Name of a function of the home to call when the old name is imported.
    """

    def __init__(self, home: str, on_import: str | None = None) -> None:
        self._home = home
        self._on_import = on_import

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = importlib.import_module(self._home)
        self._home_spec = module.__spec__
        return module

    def get_code(self, fullname: str) -> types.CodeType | None:
        """Returns the home's code, which is what `python -m` with an old path runs."""
        loader = getattr(importlib.util.find_spec(self._home), "loader", None)
        return loader.get_code(self._home) if loader else None

    def exec_module(self, module: types.ModuleType) -> None:
        # The import system has just put the old name's spec on the module; the home's spec must
        # stay, or reload and relative imports of the home would look in the wrong place.
        module.__spec__ = self._home_spec
        if self._on_import is not None:
            getattr(module, self._on_import)()


class _PackageLoader(importlib.abc.Loader):
    """Makes an empty package, a step on the way to an old path."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__doc__ = "Part of a historical path; see monolith/native_training/__init__.py."


class _HistoricalPathFinder(importlib.abc.MetaPathFinder):
    """Resolves the old paths of the table, and explains the unknown ones."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        home = HISTORICAL_PATHS.get(fullname)
        if home is not None:
            loader = _AliasLoader(home, ON_HISTORICAL_IMPORT.get(fullname))
            home_spec = importlib.util.find_spec(home)
            return importlib.machinery.ModuleSpec(
                fullname, loader, origin=home_spec.origin if home_spec else None
            )
        if fullname in _OLD_PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, _PackageLoader(), is_package=True)
        parent, _, name = fullname.rpartition(".")
        if fullname == _LEGACY:
            return None
        if parent in {_PREFIX, *_OLD_PACKAGES} and not name.startswith("__"):
            raise ModuleNotFoundError(_explain_unknown(fullname))
        return None


def _explain_unknown(fullname: str) -> str:
    # The error carries no `name`: with one, `from monolith.native_training import typo` would
    # swallow it and say only "cannot import name".
    nearest = difflib.get_close_matches(fullname, HISTORICAL_PATHS, n=1, cutoff=0.0)[0]
    return (
        f"No module named {fullname!r}. The nearest known historical path is {nearest!r}, "
        f"which is now {HISTORICAL_PATHS[nearest]!r}."
    )


def install_historical_paths() -> None:
    """Makes the old paths importable; `import monolith` does this, a second call does nothing."""
    if not any(isinstance(finder, _HistoricalPathFinder) for finder in sys.meta_path):
        # First in line: a regular finder would report an old path as missing before we see it.
        sys.meta_path.insert(0, _HistoricalPathFinder())
