"""What a prediction server is told: models, limits, batching, and who may talk to it.

Example:
    >>> parse_policy("latest:2").count
    2
    >>> sorted(parse_policy("3,5").versions)
    [3, 5]
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import text_format

from monolith import errors
from monolith.serving.remote.config import RemoteConfig
from monolith.serving.remote.replicas import ReplicaSource

# What stands between the parts of a URL cannot be a part of a name.
_NAME = re.compile(r"[^/:\s]+(:[^/:\s]+)?")
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")


def _check_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if not value > 0:
            raise errors.ConfigError(f"`{name}` must be positive, got {value}.")


@dataclasses.dataclass(frozen=True)
class VersionPolicy:
    """Which versions of a model are served.

    Attributes:
        count: The newest ones that can be loaded, so many; None: all.
        versions: These and no others, in place of the newest.
    """

    count: int | None = 1
    versions: frozenset[int] | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise errors.ConfigError(
                f"At least one version of a model must be served, got {self.count}."
            )
        if self.versions is not None and (not self.versions or min(self.versions) < 0):
            raise errors.ConfigError(
                f"Versions are numbers from 0 on, got {sorted(self.versions)}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model to serve.

    Attributes:
        name: What clients call it.
        base_path: The directory of all its versions.
        policy: Which of them are served.
        labels: Names of versions that clients may use in place of the number.
    """

    name: str
    base_path: str
    policy: VersionPolicy = VersionPolicy()
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise errors.ConfigError(
                f"{self.name!r} cannot be the name of a model: it must not be empty and have no "
                "slash or space in it, and at most one colon."
            )
        if not self.base_path:
            raise errors.ConfigError(f"Model {self.name!r} needs the directory of its versions.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
    """How requests are merged.

    Attributes:
        max_rows: Rows of a merged request at most; a larger request is run alone, and so is one
            of 256 rows or more.
        max_delay_ms: How long a request may be held back so that others join it, where others came
            before. With 0 none is: those that arrive while the model is busy are merged.
        parallel: How many merged requests run at once.
        max_waiting: How many requests may wait; more are refused.
    """

    max_rows: int = 256
    max_delay_ms: float = 2.0
    parallel: int = max(1, (os.cpu_count() or 1) // 2)
    max_waiting: int = 1000

    def __post_init__(self) -> None:
        _check_positive(self, "max_rows", "parallel", "max_waiting")
        if not 0 <= self.max_delay_ms < 60_000:
            raise errors.ConfigError(
                f"`max_delay_ms` must be from 0 to 60000, got {self.max_delay_ms}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may ask of the server.

    Attributes:
        max_request_bytes: Size of a request, as sent and as it lies in memory.
        max_concurrent: Requests that are being answered at once; more are refused.
        max_calls: Calls of models that run at once; others wait for a thread.
        client_timeout_sec: How long a client may take to send a request over HTTP, and how long a
            connection may be idle; over gRPC, how often a silent one is asked whether it is still
            there, and how long it may take to say so.
    """

    max_request_bytes: int = 64 << 20
    max_concurrent: int = 256
    max_calls: int = 16 + 2 * (os.cpu_count() or 1)
    client_timeout_sec: float = 60.0

    def __post_init__(self) -> None:
        _check_positive(
            self, "max_request_bytes", "max_concurrent", "max_calls", "client_timeout_sec"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Security:
    """Who may talk to the server.

    Attributes:
        certificate: PEM file with the server's certificate, and those that it is signed with.
        key: PEM file with its private key.
        client_authority: PEM file with the authorities one of which must have signed a client's
            certificate (mutual TLS); None: clients need none.
        token_file: File with the tokens, one in a line, of which clients must send one; None:
            they need none.
    """

    certificate: str | None = None
    key: str | None = None
    client_authority: str | None = None
    token_file: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise errors.ConfigError("TLS needs both a certificate and its key.")
        if self.client_authority is not None and self.certificate is None:
            raise errors.ConfigError(
                "Clients can be asked for a certificate only over TLS; give a certificate and a "
                "key of the server, too."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loading:
    """How versions are found and loaded.

    Attributes:
        poll_sec: How often the directories are looked at.
        max_retries: How often a version that could not be loaded is tried again; a change of its
            files starts anew.
        retry_sec: How long to wait before that.
        max_warmup_records: How many requests a version may bring along to warm up with.
    """

    poll_sec: float = 1.0
    max_retries: int = 5
    retry_sec: float = 60.0
    max_warmup_records: int = 1000

    def __post_init__(self) -> None:
        _check_positive(self, "poll_sec", "retry_sec", "max_warmup_records")
        if self.max_retries < 0:
            raise errors.ConfigError(f"`max_retries` must not be negative: {self.max_retries}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A prediction server.

    Attributes:
        models: What it serves.
        host: Address to listen on; only this machine can reach the default.
        port: Port of gRPC; 0 takes a free one, None: no gRPC.
        rest_port: Port of REST and metrics; 0 takes a free one, None: no REST.
        batching: How requests are merged; None: each is run alone.
        limits: What a client may ask.
        security: Who may talk to it.
        loading: How versions are found and loaded.
        allow_reload: Whether clients may change which models are served. Whoever may can run any
            graph with the rights of this process.
        allow_writes: Whether clients may call the functions of a model that change rows of its
            tables, as a training job does that keeps a server up to date.
        grace_sec: How long requests may go on when the server stops.
        servers: Where the other parts of models in parts are served: addresses by part, or what
            finds them; None: no model needs others.
        remote: How those are called.
    """

    models: tuple[ModelConfig, ...]
    host: str = "127.0.0.1"
    port: int | None = 8500
    rest_port: int | None = 8501
    batching: Batching | None = None
    limits: Limits = Limits()
    security: Security = Security()
    loading: Loading = Loading()
    allow_reload: bool = False
    allow_writes: bool = False
    grace_sec: float = 30.0
    servers: ReplicaSource | Mapping[str, Sequence[str]] | None = None
    remote: RemoteConfig = dataclasses.field(default_factory=RemoteConfig)

    def __post_init__(self) -> None:
        check_models(self.models)
        if self.port is None and self.rest_port is None:
            raise errors.ConfigError("A server needs a port of gRPC or of REST, or both.")
        for name in ("port", "rest_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port < 1 << 16:
                raise errors.ConfigError(f"`{name}` must be from 0 to 65535, got {port}.")
        if self.port and self.port == self.rest_port:
            raise errors.ConfigError(f"gRPC and REST cannot share port {self.port}.")
        if not self.grace_sec >= 0:
            raise errors.ConfigError(f"`grace_sec` must not be negative, got {self.grace_sec}.")

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return self.host in _LOOPBACK


def check_models(models: tuple[ModelConfig, ...]) -> None:
    """Refuses models that clients could not tell apart."""
    names = [model.name for model in models]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise errors.ConfigError(f"Each model needs a name of its own; {twice} occur twice.")


def parse_policy(text: str) -> VersionPolicy:
    """Reads which versions to serve: `latest`, `latest:2`, `all`, or numbers such as `3,5`.

    Raises:
        errors.ConfigError: It is none of these.
    """
    kind, _, count = text.partition(":")
    if text == "all":
        return VersionPolicy(count=None)
    if kind == "latest" and (not count or count.isdigit()):
        return VersionPolicy(count=int(count or 1))
    numbers = [part.strip() for part in text.split(",")]
    if all(number.isdigit() for number in numbers):
        return VersionPolicy(count=None, versions=frozenset(map(int, numbers)))
    raise errors.ConfigError(
        "Versions to serve are 'latest', 'latest:N', 'all', or numbers such as '3,5'; got "
        f"{text!r}."
    )


def read_models(path: str) -> tuple[ModelConfig, ...]:
    """Reads a file with models, in the text format of TensorFlow Serving's `ModelServerConfig`.

    Raises:
        errors.ConfigError: It cannot be read, or asks for something that is not supported.
    """
    from tensorflow_serving.config import model_server_config_pb2

    try:
        with open(path) as file:
            proto = text_format.Parse(file.read(), model_server_config_pb2.ModelServerConfig())
    except (OSError, UnicodeDecodeError, text_format.ParseError) as e:
        raise errors.ConfigError(
            f"{path} cannot be read as a ModelServerConfig in text format: {e}"
        ) from e
    return from_proto(proto)


def from_proto(proto: Any) -> tuple[ModelConfig, ...]:
    """Converts a `ModelServerConfig`.

    Raises:
        errors.ConfigError: It asks for something that is not supported.
    """
    if proto.WhichOneof("config") == "custom_model_config":
        raise errors.ConfigError("`custom_model_config` is not supported; list the models.")
    models = tuple(_convert_model(model) for model in proto.model_config_list.config)
    check_models(models)
    return models


def _convert_model(model: Any) -> ModelConfig:
    if model.model_platform not in ("", "tensorflow"):
        raise errors.ConfigError(
            f"Model {model.name!r} is of the platform {model.model_platform!r}; only 'tensorflow' "
            "is supported."
        )
    choice = model.model_version_policy.WhichOneof("policy_choice")
    if choice == "all":
        policy = VersionPolicy(count=None)
    elif choice == "specific":
        versions = frozenset(model.model_version_policy.specific.versions)
        policy = VersionPolicy(count=None, versions=versions)
    else:
        # As there, 0 means the default.
        policy = VersionPolicy(count=model.model_version_policy.latest.num_versions or 1)
    return ModelConfig(
        name=model.name,
        base_path=model.base_path,
        policy=policy,
        labels=dict(model.version_labels),
    )
