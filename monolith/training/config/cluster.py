"""What a process is among the members of its job, and how the members meet."""

import dataclasses
from collections.abc import Callable
from typing import Any

from monolith.cluster.discovery import ServiceDiscoveryType


@dataclasses.dataclass
class RoleSettings:
    """What this process is, and what it does.

    `device_fn` has no flag: it places the ops of the estimator.

    :param server_type: What this process is, 'ps' or 'worker'.
    :param index: Index of this process among those of its kind.
    :param num_ps: How many parameter servers the job has. 0 keeps everything in one process.
    :param num_workers: How many workers the job has; worker 0 is the chief. A local job has 1.
    :param model_name: Name of the model. If empty, the deep-insight name, else one that is made
        from the task's class.
    :param mode: What to run: 'train', 'eval' or 'infer'. The methods of an Estimator set it.
    :param chief_timeout_secs: How long the chief waits for the other workers at the end.
    :param max_slow_start_wait_minute: Longest time that a worker delays its first step to let
        others go first.
    :param force_shutdown_ps: Whether the parameter servers end with the job even in realtime
        training.
    """

    server_type: str = "worker"
    index: int = 0
    num_ps: int = 0
    num_workers: int = 1
    model_name: str = ""
    mode: str = "train"
    chief_timeout_secs: int = 1800
    max_slow_start_wait_minute: int = 10
    force_shutdown_ps: bool = False
    device_fn: Callable[..., Any] | None = None


@dataclasses.dataclass
class MemberSettings:
    """How a process takes part in a job of several.

    :param model_dir: Directory of the model's checkpoints; shared by all members of the job.
    :param tensorboard_log_path: Directory of summaries. If empty, the model directory.
    :param intra_op_parallelism_threads: Threads that one op may use. The default is never more than
        the cores of the machine. A local job takes any number but the default, which leaves it to
        TensorFlow; the first job of a process decides.
    :param inter_op_parallelism_threads: Threads that run ops side by side. The default is never
        more than the cores and 2. A local job takes any number but the default, which leaves it to
        TensorFlow.
    :param num_extra_ps: Parameter servers started beyond the required ones; all are measured and
        the slowest are left out.
    :param num_redundant_ps: Parameter servers started beyond the required ones; the first to
        register take part.
    :param uuid: Identifies this run of the job, also in service discovery.
    :param operation_timeout_in_ms: Longest time of one session run. -1 means no limit.
    :param session_creation_timeout_secs: How long a worker waits for the session to be ready.
    :param max_retry_times: How often, from one save to the next, a worker starts again after the
        cluster changed. 0 means 6 times with partial recovery and never without.
    :param retry_wait_in_secs: How long a worker waits before it starts again.
    :param fountain_zk_host: ZooKeeper servers of the Fountain input service.
    :param fountain_model_name: Name of the model in the Fountain input service.
    :param dc_aware: Whether updates go only to serving replicas in the same data center.
    """

    model_dir: str = ""
    tensorboard_log_path: str = ""
    intra_op_parallelism_threads: int = 8
    inter_op_parallelism_threads: int = 16
    num_extra_ps: int = 0
    num_redundant_ps: int = 0
    uuid: str = ""
    operation_timeout_in_ms: int = -1
    session_creation_timeout_secs: int = 7200
    max_retry_times: int = 0
    retry_wait_in_secs: int = 30
    fountain_zk_host: str = ""
    fountain_model_name: str = ""
    dc_aware: bool = False


@dataclasses.dataclass
class DiscoverySettings:
    """Which task is run, where, and how its members find each other.

    :param task: Name of the registered task to run.
    :param is_local: Whether the job is this one process.
    :param use_estimator: Whether the task is run by an estimator.
    :param params_override: Params of the task to change, as a JSON object.
    :param discovery_type: How the members of the job find each other: 'primus' reads tf_config,
        'consul' asks Consul, 'zk' asks ZooKeeper, 'mlp' reads the environment, 'file' uses files in
        the model directory.
    :param tf_config: TF_CONFIG of this process as JSON, for discovery_type 'primus'.
    :param zk_server: Addresses of ZooKeeper as host:port,host:port.
    :param tf_grpc_worker_cache_threads: Threads that complete gRPC calls of TensorFlow.
    :param monolith_grpc_worker_service_handler_multiplier: Factor for the number of handlers of
        TensorFlow's gRPC worker service.
    """

    task: str | None = None
    is_local: bool = False
    use_estimator: bool = False
    params_override: str | None = None
    discovery_type: ServiceDiscoveryType = ServiceDiscoveryType.CONSUL
    tf_config: str | None = None
    zk_server: str | None = None
    tf_grpc_worker_cache_threads: int = 16
    monolith_grpc_worker_service_handler_multiplier: float = 1.0
