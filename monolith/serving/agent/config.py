"""Which servers there are, and where in ZooKeeper they stand: the settings of the agent.

They are given as a file of `key value` lines, as the historical agent reads it, or as arguments.
Only what finds servers is here. How they serve is told to `monolith serve`; such lines, and flags
of a `tensorflow_model_server` binary, which is not started, are refused by name.

Example:
    >>> config = AgentConfig(bzid="ads", base_name="ranking", deploy_type="ps", num_ps=4)
    >>> config.path_prefix
    '/ads/service/ranking'
"""

import ast
import dataclasses
import enum
import hashlib
import operator
import os
import re
import socket
from typing import Any

from monolith import errors
from monolith.cluster import net
from monolith.serving.agent.naming import (
    ZKPath,
    expand_pattern,
    gen_model_config,
    gen_model_spec,
    gen_model_version_status,
    gen_status_proto,
    normalize_regex,
)

__all__ = [
    "AgentConfig",
    "DeployType",
    "ZKPath",
    "conf_parser",
    "expand_pattern",
    "find_free_port",
    "gen_model_config",
    "gen_model_spec",
    "gen_model_version_status",
    "gen_status_proto",
    "get_local_ip",
    "get_replica_id_from_pod",
    "normalize_regex",
]

HOST_SHARD_ENV = "MONOLITH_HOST_SHARD_N"
_TRUE = frozenset({"true", "y", "t", "yes", "1"})
_FALSE = frozenset({"false", "n", "f", "no", "0"})
_SEPARATOR = re.compile(r"[ \t=]+")
_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class DeployType(enum.Enum):
    """Which parts of a model a process serves."""

    ENTRY = "entry"
    PS = "ps"
    DENSE = "dense"
    MIXED = "mixed"
    UNIFIED = "unified"


@dataclasses.dataclass
class AgentConfig:
    """Where the servers of a model are.

    Attributes:
        bzid: Whose they are; the first part of all paths in ZooKeeper.
        base_name: Name of the model as a whole.
        base_path: Directory of its parts.
        num_ps: Number of parts with rows.
        num_shard: Over how many machines the parts are spread; None: as the environment says.
        deploy_type: Which parts this process serves.
        replica_id: Number of this process among those with the same parts; None: as the
            environment says.
        zk_servers: Servers of ZooKeeper.
        dc_aware: Whether replicas of other data centres are not asked.
        layout_pattern: Which layout of the unified deployment; absolute, or below `/bzid/layouts`.
        layout_filters: Which models of it, each `match;condition`.
        agent_version: 1 for replicas by part, 3 for the unified deployment.
    """

    bzid: str | None = None
    base_name: str | None = None
    base_path: str | None = None
    num_ps: int = 1
    num_shard: int | None = None
    deploy_type: DeployType | str | None = None
    replica_id: int | None = None
    zk_servers: str | None = None
    dc_aware: bool = False
    layout_pattern: str | None = None
    layout_filters: list[str] | None = None
    agent_version: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.deploy_type, str):
            try:
                self.deploy_type = DeployType(self.deploy_type.lower())
            except ValueError as e:
                raise errors.ConfigError(
                    f"`deploy_type` must be {', '.join(kind.value for kind in DeployType)}, got "
                    f"{self.deploy_type!r}."
                ) from e
        if self.agent_version not in (1, 3):
            raise errors.ConfigError(f"`agent_version` must be 1 or 3, got {self.agent_version}.")
        shards = int(os.environ.get(HOST_SHARD_ENV, "1"))
        if self.num_shard is None:
            self.num_shard = shards
        elif HOST_SHARD_ENV in os.environ and self.num_shard != shards:
            raise errors.ConfigError(
                f"`num_shard` is {self.num_shard}, but {HOST_SHARD_ENV} is {shards}."
            )
        if self.replica_id is None:
            text = os.environ.get("REPLICA_ID")
            self.replica_id = get_replica_id_from_pod() if text is None else int(text)
        if isinstance(self.layout_filters, str):
            self.layout_filters = [self.layout_filters]

    @classmethod
    def from_file(cls, path: str) -> "AgentConfig":
        """Reads a file of settings.

        Raises:
            errors.ConfigError: A line makes no sense, or there is no such setting.
        """
        settings: dict[str, Any] = {}
        conf_parser(path, settings)
        if "server_type" in settings:
            settings["deploy_type"] = settings.pop("server_type")
        known = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(settings.keys() - known.keys())
        if unknown:
            raise errors.ConfigError(
                f"{path} sets {', '.join(unknown)}, which serving with this package does not have; "
                "leave it out."
            )
        values = {name: _convert(known[name], value) for name, value in settings.items()}
        return cls(**values)

    @property
    def idc(self) -> str | None:
        """The data centre of this process."""
        return os.environ.get("TCE_INTERNAL_IDC")

    @property
    def cluster(self) -> str | None:
        """Its cluster there."""
        names = ("TCE_LOGICAL_CLUSTER", "TCE_CLUSTER", "TCE_PHYSICAL_CLUSTER")
        return next((os.environ[name] for name in names if os.environ.get(name)), None)

    @property
    def shard_id(self) -> int:
        """Which machine of `num_shard` this one is; -1 if nobody says."""
        return int(os.environ.get("SHARD_ID", "-1"))

    @property
    def path_prefix(self) -> str:
        """Where the replicas of the model are in ZooKeeper."""
        prefix = f"/{self.bzid}/service/{self.base_name}"
        return f"{prefix}/{self.idc}:{self.cluster}" if self.dc_aware else prefix

    @property
    def layout_path(self) -> str:
        """Where the layout of the unified deployment is in ZooKeeper."""
        pattern = self.layout_pattern or ""
        return pattern if pattern.startswith("/") else f"/{self.bzid}/layouts/{pattern}"

    @property
    def container_cluster(self) -> str:
        """What tells the cluster of this process from others."""
        return f"{os.environ.get('TCE_PSM', '')};{self.idc or ''};{self.cluster or ''}"

    @property
    def container_id(self) -> str:
        """What tells this process from others of its cluster."""
        return os.environ.get("MY_POD_NAME") or get_local_ip()


def conf_parser(path: str, settings: dict[str, Any]) -> None:
    """Reads a file of `key value` lines into `settings`; a key that is repeated becomes a list.

    A line may also be empty, a comment that begins with `#`, or `include FILE`.

    Raises:
        errors.ConfigError: The file cannot be read, or a line has no value.
    """
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except OSError as e:
        raise errors.ConfigError(f"{path} cannot be read: {e.strerror}.") from e
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, *rest = _SEPARATOR.split(line, maxsplit=1)
        value = rest[0].strip() if rest else ""
        if not value:
            raise errors.ConfigError(f"{path}, line {number}, has no value for {key!r}.")
        if key == "include":
            conf_parser(os.path.join(os.path.dirname(path), value), settings)
        elif key in settings:
            known = settings[key]
            settings[key] = [*(known if isinstance(known, list) else [known]), value]
        else:
            settings[key] = value


def find_free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("", 0))
        return int(listening.getsockname()[1])


def get_local_ip() -> str:
    """Returns the address of this machine, as others see it."""
    return os.environ.get("MY_HOST_IP") or os.environ.get("MY_HOST_IPV6") or net.get_local_ip()


def get_replica_id_from_pod() -> int:
    """Returns a number of its own for each pod; -1 outside of one."""
    pod = os.environ.get("MY_POD_NAME")
    if not pod:
        return -1
    return int(hashlib.md5(pod.encode(), usedforsecurity=False).hexdigest()[10:20], 16)


def _convert(field: "dataclasses.Field[Any]", value: Any) -> Any:
    """Returns what the text of a setting means."""
    if isinstance(value, list) or (isinstance(value, str) and "list" in str(field.type)):
        return value if isinstance(value, list) else [value]
    text = str(value)
    if text.lower() == "none":
        return None
    try:
        if "bool" in str(field.type):
            if text.lower() not in _TRUE | _FALSE:
                raise ValueError(text)
            return text.lower() in _TRUE
        if "int" in str(field.type):
            return _compute(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError) as e:
        raise errors.ConfigError(f"`{field.name}` cannot be {text!r}.") from e
    return text


def _compute(node: ast.expr) -> int:
    """Returns the value of a product such as `60 * 1000`; nothing else of a file is run."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_compute(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        result: int = _ARITHMETIC[type(node.op)](_compute(node.left), _compute(node.right))
        return result
    raise ValueError(ast.unparse(node))
