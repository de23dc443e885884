"""Calls from an entry model to the servers that have its rows.

A model in parts asks `ps_0`, `ps_1` and so on for rows, one request to each for a batch. `connect`
says where they are; from then on every entry model of this process finds them, whether it was
loaded by `ml.load`, by `tf.saved_model.load` or by the prediction server, which connects itself.

Example:
    With an export in parts, and its rows served on two ports,

        import monolith as ml
        from monolith.serving import remote

        remote.connect({"ps_0": ["10.0.0.1:8500"], "ps_1": ["10.0.0.2:8500"]})
        ranking = ml.load("exported_models/entry")
"""

from monolith.serving.remote.client import RemoteClient, connect, disconnect
from monolith.serving.remote.config import RemoteConfig
from monolith.serving.remote.replicas import DiscoveredReplicas, ReplicaSource, StaticReplicas

__all__ = [
    "DiscoveredReplicas",
    "RemoteClient",
    "RemoteConfig",
    "ReplicaSource",
    "StaticReplicas",
    "connect",
    "disconnect",
]
