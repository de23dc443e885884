"""Which versions of a model lie in a directory, and which of them should be served.

Example:
    >>> choose_versions(VersionPolicy(count=1), on_disk={1, 2, 3}, broken={3})
    {2}
"""

import os
from collections.abc import Set as AbstractSet

import tensorflow as tf

from monolith.serving.server.config import VersionPolicy

# TensorFlow takes either.
_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
_LARGEST = (1 << 63) - 1  # What fits into a request.


def list_versions(base_path: str) -> dict[int, str]:
    """Returns the paths of all complete versions in a directory, by number.

    A directory without a model in it is no version yet: it may be about to be copied.

    Raises:
        tf.errors.OpError: The directory cannot be read.
    """
    versions: dict[int, str] = {}
    for entry in tf.io.gfile.listdir(base_path):
        name = entry.rstrip("/")
        if not (name.isascii() and name.isdigit()) or int(name) > _LARGEST:
            continue
        path = os.path.join(base_path, name)
        # `7` and `007` are one version; the shorter name is the one that is written on purpose.
        if int(name) in versions and len(name) > len(os.path.basename(versions[int(name)])):
            continue
        if find_model_file(path) is not None:
            versions[int(name)] = path
    return versions


def find_model_file(path: str) -> str | None:
    """Returns the path of the graph of a version, None if there is none."""
    for name in _MODEL_FILES:
        file = os.path.join(path, name)
        if tf.io.gfile.exists(file):
            return file
    return None


def take_fingerprint(path: str) -> str:
    """Returns what changes when a version is replaced by another of the same number."""
    parts = []
    for name in (*_MODEL_FILES, "variables", "assets"):
        try:
            stat = tf.io.gfile.stat(os.path.join(path, name))
            parts.append(f"{name} {stat.length} {stat.mtime_nsec}")
        except tf.errors.OpError:
            continue
    return "; ".join(parts)


def choose_versions(
    policy: VersionPolicy, on_disk: AbstractSet[int], broken: AbstractSet[int]
) -> set[int]:
    """Returns the versions to serve.

    Args:
        policy: What was asked for.
        on_disk: All that there are.
        broken: Those that could not be loaded; older ones take their places.
    """
    if policy.versions is not None:
        return set(policy.versions & on_disk) - broken
    whole = sorted(on_disk - broken, reverse=True)
    return set(whole if policy.count is None else whole[: policy.count])
