"""The model on the serving side: its export, and the updates it gets."""

import dataclasses

from monolith.cluster import net


@dataclasses.dataclass
class ExportSettings:
    """How a model is exported, and whether what changes follows it.

    :param warmup_file: File of requests that warm up an exported model.
    :param skip_zero_embedding_when_serving: Whether rows of zeros are left out of an exported
        model.
    :param max_rpc_deadline_millis: Longest time that the serving side waits for a parameter server.
    :param enable_realtime_training: Whether this job trains on a stream and sends what changed to
        the serving side.
    :param enable_model_dump: Whether the model is written as a protobuf beside the checkpoints.
    :param sync_to: Where servers announce themselves that get what changes, 'file:DIR' or
        'zk:HOSTS/BZID/NAME'; None sends nothing, unless `enable_realtime_training` is set.
    :param sync_model: What a model that was exported as a whole is called there.
    :param sync_interval_secs: Seconds between two times that changed rows are sent.
    :param sync_dense_interval_secs: Seconds between two times that all variables are sent.
    :param sync_timeout_secs: How long a server may take to answer a message.
    :param sync_token_file: A file with the token that the servers ask for.
    :param sync_ca_file: A PEM file with the authorities that vouch for the servers, which are
        called over TLS then.
    """

    warmup_file: str = "./warmup_file"
    skip_zero_embedding_when_serving: bool = False
    max_rpc_deadline_millis: int = 30000
    enable_realtime_training: bool = False
    enable_model_dump: bool = False
    sync_to: str | None = None
    sync_model: str = "default"
    sync_interval_secs: float = 10.0
    sync_dense_interval_secs: float = 60.0
    sync_timeout_secs: float = 3.0
    sync_token_file: str | None = None
    sync_ca_file: str | None = None


@dataclasses.dataclass
class ServingSettings:
    """Where on the serving side the updates go.

    :param bzid: Business id of the model on the serving side.
    :param base_name: Name of the service on the serving side.
    :param ps_replica_num: How many replicas each parameter server has on the serving side.
    :param unified_serving: Whether the serving side is the unified one.
    :param zk_watch_address_family: Whether addresses in ZooKeeper are 'ipv4' or 'ipv6'.
    """

    bzid: str | None = None
    base_name: str | None = None
    ps_replica_num: int | None = None
    unified_serving: bool = False
    zk_watch_address_family: str = net.AddressFamily.IPV4
