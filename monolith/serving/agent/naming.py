"""Names of nodes, parts and models, as the agent writes them.

Example:
    >>> path = ZKPath("/ads/service/ranking/ps:3/0")
    >>> path.bzid, path.base_name, path.server_type, path.index, path.replica_id
    ('ads', 'ranking', 'ps', '3', '0')
    >>> expand_pattern("ps_[0-2]")
    ['ps_0', 'ps_1', 'ps_2']
    >>> re.fullmatch(normalize_regex("ps_{i}"), "ps_12")["i"]
    '12'
"""

import re
from typing import Any

from tensorflow_serving.apis import get_model_status_pb2, model_pb2, status_pb2
from tensorflow_serving.config import model_server_config_pb2

from monolith import errors

_SERVICE = "service"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_RANGE = re.compile(r"\[([^\[\]]*)\]")


class ZKPath:
    """A node of a replica: `/bzid/service/base_name[/idc:cluster]/server_type:index[/replica]`.

    What the path does not have is None.

    Attributes:
        path: As given.
        bzid: Whose it is.
        base_name: Name of the model as a whole.
        idc: Data centre.
        cluster: Cluster there.
        server_type: Such as `ps`.
        index: Number of the part, as text.
        replica_id: Number of the replica, as text.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.bzid: str | None = None
        self.base_name: str | None = None
        self.idc: str | None = None
        self.cluster: str | None = None
        self.server_type: str | None = None
        self.index: str | None = None
        self.replica_id: str | None = None
        parts = path.strip("/").split("/")
        if len(parts) < 3 or parts[1] != _SERVICE:
            return
        self.bzid, _, self.base_name, *rest = parts
        pairs = [part.split(":", 1) for part in rest if ":" in part]
        if len(pairs) > 1:
            self.idc, self.cluster = pairs.pop(0)
        if pairs:
            self.server_type, self.index = pairs[0]
            if ":" not in rest[-1]:
                self.replica_id = rest[-1]

    @property
    def task(self) -> str | None:
        """Such as `ps:3`."""
        return None if self.server_type is None else f"{self.server_type}:{self.index}"

    @property
    def location(self) -> str | None:
        """Data centre and cluster, such as `lf:default`."""
        return None if self.idc is None else f"{self.idc}:{self.cluster}"

    def ship_in(self, idc: str | None, cluster: str | None) -> bool:
        """Returns whether it is there; None stands for anywhere."""
        return idc in (None, self.idc) and cluster in (None, self.cluster)


def normalize_regex(pattern: str) -> str:
    r"""Returns the regular expression of a pattern whose `{name}` stands for a number.

    Example:
        >>> normalize_regex("ps_{i}")
        'ps_(?P<i>\\d+)'
    """
    return _PLACEHOLDER.sub(r"(?P<\1>\\d+)", pattern)


def expand_pattern(pattern: str) -> list[str]:
    """Returns the names that a pattern with ranges stands for.

    Raises:
        errors.ConfigError: A range makes no sense.

    Example:
        >>> expand_pattern("ps_[0,4-5]")
        ['ps_0', 'ps_4', 'ps_5']
    """
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    values: list[str] = []
    for part in match.group(1).split(","):
        first, dash, last = (text.strip() for text in part.partition("-"))
        if not first or (dash and not (first.isdigit() and last.isdigit())):
            raise errors.ConfigError(f"A range is written as [0-3] or [0,2], got {pattern!r}.")
        values.extend(map(str, range(int(first), int(last) + 1)) if dash else [first])
    return [f"{head}{value}{rest}" for value in values for rest in expand_pattern(tail)]


def gen_model_spec(
    name: str, version: int | str | None = None, signature_name: str | None = None
) -> Any:
    """Makes a `ModelSpec`; a version that is text is a label."""
    spec = model_pb2.ModelSpec(name=name)
    if isinstance(version, str):
        spec.version_label = version
    elif version is not None:
        spec.version.value = version
    if signature_name is not None:
        spec.signature_name = signature_name
    return spec


def gen_model_config(
    name: str,
    base_path: str,
    version_policy: str = "latest",
    version_data: int | list[int] = 1,
    model_platform: str = "tensorflow",
    version_labels: dict[str, int] | None = None,
) -> Any:
    """Makes the `ModelConfig` of a model for a server.

    Args:
        name: What clients call it.
        base_path: Directory of its versions.
        version_policy: `latest` with how many, `latest_once`, `all`, or `specific` with which.
        version_data: How many, or which.
        model_platform: What the model is made of.
        version_labels: Names of versions.

    Raises:
        ValueError: There is no such policy.
    """
    config = model_server_config_pb2.ModelConfig(
        name=name, base_path=base_path, model_platform=model_platform
    )
    policy = config.model_version_policy
    if version_policy in ("latest", "latest_once"):
        # A version of a part may be swapped while it serves, so that `once` asks for no more.
        policy.latest.num_versions = version_data if isinstance(version_data, int) else 1
    elif version_policy == "all":
        policy.all.SetInParent()
    elif version_policy == "specific":
        versions = [version_data] if isinstance(version_data, int) else version_data
        policy.specific.versions.extend(versions)
    else:
        raise ValueError(
            "`version_policy` must be latest, latest_once, all or specific, got "
            f"{version_policy!r}."
        )
    for label, version in (version_labels or {}).items():
        config.version_labels[label] = version
    return config


def gen_status_proto(error_code: int = 0, error_message: str = "") -> Any:
    """Makes a `StatusProto`."""
    return status_pb2.StatusProto(error_code=error_code, error_message=error_message)


def gen_model_version_status(
    version: int, state: int, error_code: int = 0, error_message: str = ""
) -> Any:
    """Makes a `ModelVersionStatus`."""
    return get_model_status_pb2.ModelVersionStatus(
        version=version, state=state, status=gen_status_proto(error_code, error_message)
    )
