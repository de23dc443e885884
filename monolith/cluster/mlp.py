"""The MLP platform: what its environment variables say, and the roles it gives to processes.

MLP starts every process of a job with variables that name all roles ("worker", "ps", "dispatcher",
"dsworker", ...), how many processes each has, and where they listen. `MLPEnv` reads them, and
`mlp_pass` turns a process whose role is to feed others into a tf.data service. Outside MLP both do
nothing.

Example:
    >>> from unittest import mock
    >>> variables = {"MLP_ROLE": "worker", "MLP_WORKER_NUM": "2", "MLP_ROLE_INDEX": "1"}
    >>> with mock.patch.dict("os.environ", variables, clear=True):
    ...     env = MLPEnv()
    >>> env.avaiable, env.role, env.index, env.num_replicas()
    (True, 'WORKER', 1, 2)
"""

import contextlib
import functools
import importlib
import logging
import os
import socket
import sys
import time
import traceback
import types
from typing import Any, NoReturn

from absl import flags

from monolith import errors
from monolith.cluster import net, primus
from monolith.cluster.progress import WaitProgress
from monolith.data import flags as _data_flags  # noqa: F401  defines the data service's flags
from monolith.graph import collectives, mpi

logger = logging.getLogger(__name__)

FLAGS = flags.FLAGS

_DEFAULT_PORT = 2222
_DEFAULT_PROFILER_PORT = 6666
_DEFAULT_DISPATCHER = "localhost:5050"
_DEFAULT_TENSORBOARD_DIR = "/tensorboard_logs/"
_TRACE_DURATION_MS = 10000

# Read when they are used, so that tests can shorten them.
_PROBE_PAUSE_SECS = 0.1
_WAIT_PERIOD_SECS = 5.0
_JOIN_PERIOD_SECS = 10.0
_JOIN_PROBE_TIMEOUT_SECS = 60.0

# Data-service workers that run beside a training worker, kept alive with the process.
EXTRA_DSWORKERS: list[Any] = []

# Hook classes whose `begin` and `after_create_session` initialize a dataset. The estimator adds
# its own; `mlp_pass` makes them agree on one dataset id.
DATASET_INITIALIZER_HOOKS: list[type] = []


def check_port(host: str, port: int, timeout: float = 1) -> bool:
    """Returns whether somebody listens at `host` and `port`, waiting for it up to `timeout`.

    A host that does not answer at all costs the whole timeout. One that refuses is asked again
    until the time is over, with short pauses.
    """
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    progress = WaitProgress(logger)
    start = time.monotonic()
    while True:
        # Whole seconds, as ever: a timeout of 1 means at least one full try.
        remaining = timeout - int(time.monotonic() - start)
        if remaining <= 0:
            return False
        with socket.socket(family, socket.SOCK_STREAM) as skt:
            skt.settimeout(remaining)
            try:
                skt.connect((host, port))
                return True
            except TimeoutError:
                return False
            except OSError as error:
                if timeout > _WAIT_PERIOD_SECS:
                    progress.report(
                        f"Waiting for {net.concat_ip_and_port(host, port)} to listen ({error})."
                    )
        time.sleep(_PROBE_PAUSE_SECS)


class MLPEnv:
    """The job as MLP describes it, in a snapshot of the variables `MLP_*` and `MPI_*`.

    Roles may be given in any case; a role that is left out is this process's own.

    Attributes:
        avaiable: Whether the process runs under MLP.
        role: Role of this process in upper case, "" outside MLP.
        all_roles: Number of processes of every role.
        index: Number of this process in its role; its rank when workers run under MPI.
        port: Port of this process, 0 if MLP names none; workers under MPI count up by rank.
        host: Address of this machine.
        framework, ssh_port, log_path, debug_port, entrypoint_dir, task_cmd: As MLP gives them.
        cpu, gpu, mem, gpu_type: Size of the container.

    Raises:
        errors.ConfigError: If a variable that must be a number is none.
    """

    def __init__(self) -> None:
        self._mlp_env = {
            key: value for key, value in os.environ.items() if key.startswith(("MLP_", "MPI_"))
        }
        self.framework = self._get("MLP_FRAMEWORK")
        self.ssh_port = self._get("MLP_SSH_PORT")
        self.log_path = self._get("MLP_LOG_PATH")
        self.debug_port = self._get("MLP_DEBUG_PORT")
        self.entrypoint_dir = self._get("MLP_ENTRYPOINT_DIR")
        self.task_cmd = self._get("MLP_TASK_CMD")
        self.role = (self._get("MLP_ROLE") or "").upper()
        self.all_roles = {
            key.split("_")[1]: self._get_int(key, 0)
            for key in self._mlp_env
            if len(key.split("_")) == 3 and key.endswith("_NUM")
        }
        if self.enable_mpi:
            self.all_roles["WORKER"] = mpi.get_mpi_size()
            self.index = mpi.get_mpi_rank()
            self.port = self._get_int("MLP_PORT", 0) + self.index
        else:
            self.index = self._get_int("MLP_ROLE_INDEX", 0)
            self.port = self._get_int("MLP_PORT", 0)
        self.avaiable = bool(self._mlp_env) and bool(self.all_roles)
        self.cpu = self._get_int("MLP_CPU", 0)
        self.gpu = self._get_int("MLP_GPU", 0)
        self.mem = self._get_int("MLP_MEM", 0)
        self.gpu_type = self._get("MLP_GPU_TYPE") or ""
        self._profiler_started = False

    @functools.cached_property
    def host(self) -> str:
        # Looked up on first use: outside MLP nobody asks, and a machine need not know its name.
        return primus.get_local_host()

    @property
    def enable_mpi(self) -> bool:
        """Whether this process is a worker that `mpirun` started."""
        return "OMPI_COMM_WORLD_RANK" in os.environ and self.role == "WORKER"

    def num_replicas(self, role: str | None = None) -> int:
        """Returns how many processes `role` has."""
        role = self._role(role)
        if self._is_mpi_worker(role):
            return mpi.get_mpi_size()
        return self._get_int(f"MLP_{role}_NUM", 0)

    def get_all_host(self, role: str | None = None, is_primary: bool = True) -> str | None:
        """Returns the hosts of `role` as MLP writes them, separated by commas."""
        return self._get(f"MLP_{self._role(role)}_ALL_{_primary(is_primary)}HOSTS")

    def get_all_addrs(self, role: str | None = None, is_primary: bool = True) -> list[str]:
        """Returns the addresses of `role`."""
        addrs = self._get(f"MLP_{self._role(role)}_ALL_{_primary(is_primary)}ADDRS")
        return addrs.split(",") if addrs else []

    def get_host(
        self, role: str | None = None, index: int | None = None, is_primary: bool = True
    ) -> str | None:
        """Returns the host of one process; by default this one, or number 0 of another role."""
        role = self._role(role)
        index = self._index(role, index)
        if self._is_mpi_worker(role):
            index //= mpi.get_mpi_local_size()
        return self._get(f"MLP_{role}_{index}_{_primary(is_primary)}HOST")

    def get_addr(
        self, role: str | None = None, index: int | None = None, is_primary: bool = True
    ) -> str | None:
        """Returns the address of one process, or None where MLP names no host or port."""
        role = self._role(role)
        index = self._index(role, index)
        host = self.get_host(role, index, is_primary)
        port = self._known_port(role, index)
        return None if host is None or port is None else net.concat_ip_and_port(host, port)

    def get_port(self, role: str | None = None, index: int | None = None) -> int:
        """Returns the port of one process, number 0 by default, or 2222 where MLP names none.

        Always a number: workers under MPI count from it.
        """
        port = self._known_port(self._role(role), index or 0)
        return _DEFAULT_PORT if port is None else port

    def dispatcher_addr(self, role: str | None = None) -> str | None:
        """Returns the address of the data service's dispatcher, None if there is none."""
        return self.get_addr(role or "dispatcher")

    def dispatcher_target(self, role: str | None = None) -> str:
        """Returns the dispatcher as tf.data takes it."""
        return f"grpc://{self.dispatcher_addr(role) or _DEFAULT_DISPATCHER}"

    def wait(
        self,
        role: str | None = None,
        index: int = 0,
        timeout: float = -1,
        use_ssh: bool = True,
    ) -> None:
        """Waits until a process is up.

        Args:
            role: Role of the process.
            index: Number of the process in its role.
            timeout: Seconds after which to give up, with a log line; forever unless positive.
            use_ssh: Whether its machine's ssh port counts as being up, rather than its own port.
        """
        host = self.get_host(role, index)
        if host is None:
            logger.info("host is None")
            return
        port = self._probe_port(role, index, use_ssh)
        progress = WaitProgress(logger)
        start = time.monotonic()
        while not check_port(host, port):
            if 0 < timeout <= time.monotonic() - start:
                logger.info("wait %s:%s timeout!", host, port)
                return
            progress.report(f"Waiting for {self._role(role)} {index} at {host}:{port}.")
            time.sleep(_WAIT_PERIOD_SECS)

    def join(self, role: str = "worker", index: int = 0, use_ssh: bool = True) -> NoReturn:
        """Lives as long as another process does, then ends this one."""
        self.wait(role, index, use_ssh=use_ssh)
        host = self.get_host(role, index)
        port = self._probe_port(role, index, use_ssh)
        logger.info("this process ends when %s %d at %s:%s does", role, index, host, port)
        while host is not None and check_port(host, port, timeout=_JOIN_PROBE_TIMEOUT_SECS):
            time.sleep(_JOIN_PERIOD_SECS)
        logger.info("%s %d at %s:%s has ended, and so does this process", role, index, host, port)
        if self._profiler_started:
            _stop_profiling()
        # The data service's threads would hold up a regular exit.
        os._exit(0)

    @property
    def queue_device(self) -> str:
        """The device that holds queues shared by all workers."""
        if "PS" in self.all_roles:
            return "/job:ps/task:0/device:CPU:0"
        if "WORKER" in self.all_roles:
            return "/job:worker/task:0/device:CPU:0"
        return "/device:CPU:0"

    def start_profiler(self, port: int = _DEFAULT_PROFILER_PORT) -> None:
        """Starts TensorFlow's profiler server; workers under MPI count the port up by rank."""
        if self.enable_mpi:
            port += self.index
        _tensorflow().profiler.experimental.server.start(port)
        self._profiler_started = True

    def profiler_trace(
        self,
        role: str = "dsworker",
        index: int = -1,
        host_tracer_level: int = 2,
        python_tracer_level: int = 0,
        device_tracer_level: int = 1,
        delay_ms: int = 10000,
    ) -> None:
        """Records what processes do for ten seconds, for TensorBoard.

        The profile goes to `TENSORBOARD_LOG_PATH`, or to /tensorboard_logs/.

        Args:
            role: Role of the processes.
            index: Number of the process; all of the role if negative.
            host_tracer_level, python_tracer_level, device_tracer_level: How much to record.
            delay_ms: Milliseconds until all of them start together.
        """
        addrs = self.get_all_addrs(role) if index < 0 else [self.get_addr(role, index)]
        targets = [f"grpc://{addr}" for addr in addrs if addr]
        if not targets:
            raise errors.ConfigError(
                f"MLP names no address of role {role!r}, so there is nobody to profile."
            )
        profiler = _tensorflow().profiler.experimental
        profiler.client.trace(
            ",".join(targets),
            os.environ.get("TENSORBOARD_LOG_PATH") or _DEFAULT_TENSORBOARD_DIR,
            _TRACE_DURATION_MS,
            options=profiler.ProfilerOptions(
                host_tracer_level=host_tracer_level,
                python_tracer_level=python_tracer_level,
                device_tracer_level=device_tracer_level,
                delay_ms=delay_ms,
            ),
        )

    def _get(self, name: str, default: str | None = None) -> str | None:
        value = self._mlp_env.get(name)
        if not value:
            return default
        # Launch scripts like to quote twice.
        return value.strip().strip('"').strip("'")

    def _get_int(self, name: str, default: int) -> int:
        value = self._get(name)
        if not value:
            return default
        try:
            return int(value)
        except ValueError as error:
            raise errors.ConfigError(f"{name} must be a whole number, got {value!r}.") from error

    def _role(self, role: str | None) -> str:
        return role.upper() if role else self.role

    def _index(self, role: str, index: int | None) -> int:
        if index is not None:
            return index
        return self.index if role == self.role else 0

    def _is_mpi_worker(self, role: str) -> bool:
        return self.enable_mpi and role == "WORKER"

    def _known_port(self, role: str, index: int) -> int | None:
        # Workers under MPI share one variable and count up from it.
        is_mpi_worker = self._is_mpi_worker(role)
        name = f"MLP_{role}_{0 if is_mpi_worker else index}_PORT"
        if not self._get(name):
            return None
        return self._get_int(name, 0) + (index if is_mpi_worker else 0)

    def _probe_port(self, role: str | None, index: int, use_ssh: bool) -> int:
        if use_ssh and self.ssh_port:
            return self._get_int("MLP_SSH_PORT", 0)
        return self.get_port(role, index)


def add_mpi_exception_hook() -> None:
    """Has an uncaught exception end all processes of an MPI job; does nothing without MPI.

    Otherwise the others would wait forever for the one that failed.
    """
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return

    def abort_all(
        kind: type[BaseException], value: BaseException, trace: types.TracebackType | None
    ) -> None:
        stars = "*" * 60
        try:
            sys.stderr.write(f"\n{stars}\n")
            sys.stderr.write(f"Uncaught exception was detected on rank {mpi.get_mpi_rank()}. \n")
            traceback.print_exception(kind, value, trace, file=sys.stderr)
            sys.stderr.write("Calling MPI_Abort() to shut down MPI processes...\n")
            sys.stderr.write(f"{stars}\n")
            sys.stderr.flush()
        finally:
            try:
                importlib.import_module("mpi4py.MPI").COMM_WORLD.Abort(1)
            except Exception:
                sys.stderr.write(f"{stars}\n")
                sys.stderr.write("Sorry, we failed to stop MPI, this process will hang.\n")
                sys.stderr.write(f"{stars}\n")
                sys.stderr.flush()
                raise

    sys.excepthook = abort_all


def mlp_pass(
    dispatcher_role: str | None = "dispatcher",
    dsworker_role: str | None = "dsworker",
    worker_role: str | None = "worker",
    ps_role: str | None = "ps",
) -> None:
    """Does what the role of this process asks for before training starts.

    A dispatcher or data-service worker serves until the training worker is gone, and this function
    does not return there. A training worker with `--dataset_use_dataservice` waits for the data
    service and takes its address. A parameter server, and any process outside MLP, goes on.

    Args:
        dispatcher_role: Role that dispatches the data service; None if there is none.
        dsworker_role: Role that reads data for others; None if there is none.
        worker_role: Role that trains; None if there is none.
        ps_role: Role that serves parameters; nothing to prepare there.
    """
    use_data_service = bool(_flag("dataset_use_dataservice", False))
    if use_data_service:
        for hook_class in DATASET_INITIALIZER_HOOKS:
            hook_class.begin = begin  # type: ignore[attr-defined]
            hook_class.after_create_session = after_create_session  # type: ignore[attr-defined]
    env = MLPEnv()
    if not env.avaiable:
        return
    role = env.role
    if dispatcher_role and role == dispatcher_role.upper():
        _serve_dispatcher(env)
    elif dsworker_role and role == dsworker_role.upper():
        _serve_data(env, dispatcher_role)
    elif worker_role and role == worker_role.upper() and use_data_service:
        _join_data_service(env, dispatcher_role, dsworker_role)


def begin(self: Any) -> None:
    """`begin` of a dataset-initializing hook, with one dataset id for all ranks.

    Rank 0's id is broadcast to the others, which then read from the same job of the data service.
    A failure to prepare that is logged; each rank then reads for itself.
    """
    self._initializer = self._iterator.initializer
    self._broadcast_dataset_id = None
    try:
        graph = _tensorflow().compat.v1.get_default_graph()
        if getattr(graph, "dry_run", False) or not mpi.enable_sync_training():
            return
        dataset_ids = graph.get_collection("registed_dataset_id")
        if dataset_ids:
            broadcast = collectives.broadcast(dataset_ids[0], 0, name="broadcast_dataset_id")
            self._broadcast_dataset_id = [dataset_ids[0], broadcast]
    except Exception:
        logger.exception("the ranks will not share one dataset id")


def after_create_session(self: Any, session: Any, coord: Any) -> None:
    """`after_create_session` of a dataset-initializing hook, see `begin`."""
    del coord
    if self._broadcast_dataset_id is not None:
        dataset_id, broadcast_id = session.run(self._broadcast_dataset_id)
        logger.info("dataset id %s, broadcast as %s", dataset_id, broadcast_id)
        self._broadcast_dataset_id = None
    session.run(self._initializer)


def _serve_dispatcher(env: MLPEnv) -> NoReturn:
    service = _tensorflow().data.experimental.service
    server = service.DispatchServer(service.DispatcherConfig(port=env.port))
    logger.info("data service dispatcher listens at %s", server.target)
    env.join()


def _serve_data(env: MLPEnv, dispatcher_role: str | None) -> NoReturn:
    env.wait(dispatcher_role or "dispatcher", use_ssh=False)
    server = _start_data_worker(env, env.port, dispatcher_role)
    env.start_profiler()
    logger.info("data service worker listens at %d: %s", env.port, server)
    env.join()


def _join_data_service(env: MLPEnv, dispatcher_role: str | None, dsworker_role: str | None) -> None:
    env.wait(dispatcher_role or "dispatcher", use_ssh=False)
    FLAGS.data_service_dispatcher = env.dispatcher_target(dispatcher_role)
    if dsworker_role:
        for index in range(env.num_replicas(dsworker_role)):
            env.wait(dsworker_role, index, use_ssh=False)
    num_extra = int(_flag("num_extra_dsworker_on_gpu_worker", 0) or 0)
    first_port = env.port - env.index + mpi.get_mpi_size() + env.index * num_extra
    for port in range(first_port, first_port + num_extra):
        EXTRA_DSWORKERS.append(_start_data_worker(env, port, dispatcher_role))


def _start_data_worker(env: MLPEnv, port: int, dispatcher_role: str | None) -> Any:
    service = _tensorflow().data.experimental.service
    return service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=env.dispatcher_addr(dispatcher_role) or _DEFAULT_DISPATCHER,
            worker_address=net.concat_ip_and_port(env.host, port),
            port=port,
        )
    )


def _stop_profiling() -> None:
    tensorflow = _tensorflow()
    with contextlib.suppress(tensorflow.errors.UnavailableError):  # nobody is recording right now
        tensorflow.profiler.experimental.stop()


def _primary(is_primary: bool) -> str:
    return "PRIMARY_" if is_primary else ""


def _flag(name: str, default: Any) -> Any:
    # Not `FLAGS.name`, which fails before flags are parsed; a default is good enough then.
    return FLAGS[name].value if name in FLAGS else default


def _tensorflow() -> Any:
    # TensorFlow takes seconds to import, and most users of this module never need it.
    return importlib.import_module("tensorflow")
