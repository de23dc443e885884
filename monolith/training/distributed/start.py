"""How a process becomes a member of a job, and what is refused before it does.

A wrong role or index, a port that somebody else has, a second chief, a model directory that the
members do not share: each would show as a job that hangs. Here each ends with one sentence.
"""

import contextlib
import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from monolith import errors
from monolith.cluster import meeting, members, narrow, net, servers
from monolith.cluster.discovery import MLPServiceDiscovery, TfConfigServiceDiscovery
from monolith.cluster.discovery_base import ServiceDiscovery
from monolith.cluster.members import (
    MemberConflictError,
    MemberRecord,
    Membership,
    MemberState,
    get_name,
)
from monolith.training.config.cluster import MemberSettings
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import choice, plan, sizes
from monolith.training.tables.members import NodeAliveCheckerError

logger = logging.getLogger(__name__)

# A network file system may show a new file only after a while. Read when it is used, so that tests
# can shorten it.
SHARED_WAIT_SEC = 60.0

_POLL_SEC = 0.2
_ROLES = ("ps", "worker")


def check_config(config: DistributedCpuTrainingConfig) -> None:
    """Refuses a config with which a process cannot take part in a job.

    Raises:
        errors.ConfigError: A number is missing or makes no sense, or the role is unknown.
    """
    if config.index is None:
        raise errors.ConfigError("Index can't be none.")
    if config.num_ps is None:
        raise errors.ConfigError("Num ps can't be none.")
    if config.num_workers is None:
        raise errors.ConfigError("Num workers can't be none.")
    if config.server_type not in _ROLES:
        raise errors.ConfigError(f"Unknown server type. type: {config.server_type}")
    if not config.model_dir:
        raise errors.ConfigError("model dir can't be empty.")
    for name in ("num_ps", "num_extra_ps", "num_redundant_ps", "retry_wait_in_secs"):
        if getattr(config, name) < 0:
            raise errors.ConfigError(
                f"`{name}` must not be negative, got {getattr(config, name)!r}."
            )
    if config.num_workers < 1:
        raise errors.ConfigError(
            f"`num_workers` counts the chief, so it must be at least 1, got {config.num_workers!r}."
        )
    num_ps = config.num_ps + config.num_extra_ps + config.num_redundant_ps
    if num_ps == 0 and config.num_workers > 1:
        raise errors.ConfigError(
            f"{config.num_workers} workers share nothing without parameter servers; set `num_ps`."
        )
    count = num_ps if config.server_type == "ps" else config.num_workers
    if not 0 <= config.index < count:
        raise errors.ConfigError(
            f"`index` of a {config.server_type} must be in 0..{count - 1}, since the job has "
            f"{count} of them, got {config.index!r}; check `index`, `num_ps` and `num_workers`."
        )


def take_role(config: DistributedCpuTrainingConfig, discovery: ServiceDiscovery) -> None:
    """Takes role and index from a discovery that was written for this very process.

    Raises:
        errors.ConfigError: It plans fewer members than the config.
    """
    if not isinstance(discovery, TfConfigServiceDiscovery | MLPServiceDiscovery):
        return
    config.server_type = discovery.server_type
    config.index = discovery.index
    if not isinstance(discovery, TfConfigServiceDiscovery) or config.server_type not in _ROLES:
        return
    # It never changes, so that nobody may wait for more.
    for role, name, wanted in (
        ("ps", "num_ps", config.num_ps + config.num_extra_ps + config.num_redundant_ps),
        ("worker", "num_workers", config.num_workers),
    ):
        if wanted and len(discovery.query(role)) != wanted:
            raise errors.ConfigError(
                f"TF_CONFIG lists {len(discovery.query(role))} of the role {role!r}, but the "
                f"config asks for {wanted}; correct one of them (`{name}`)."
            )


def start_server(
    config: DistributedCpuTrainingConfig, discovery: ServiceDiscovery
) -> tuple[tf.distribute.Server, str]:
    """Starts TensorFlow's server of this process.

    Returns:
        The server, and the address under which others reach it.

    Raises:
        errors.ConfigError: The port that this process is planned to have is taken.
    """
    session_config = make_thread_config(config, len(os.sched_getaffinity(0)))
    if isinstance(discovery, TfConfigServiceDiscovery | MLPServiceDiscovery):
        addr = discovery.addr
        _check_port(config, addr)
    else:
        # A process that was started narrowed to one address is reached by no other.
        addr = net.concat_ip_and_port(narrow.get_listen_address() or net.get_local_ip(), 0)
    try:
        server = servers.start_server({"local": [addr]}, config=session_config)
    except tf.errors.OpError as error:
        raise errors.ConfigError(
            f"{config.server_type.capitalize()} {config.index} cannot listen at {addr} "
            f"({error.message}); see whether another process has the port."
        ) from error
    _, port = net.parse_address(server.target.removeprefix("grpc://"))
    host, _ = net.parse_address(addr)
    if host.startswith("127.") or host == "::1":
        logger.info("this member is at %s, which only this machine can reach", host)
    return server, net.concat_ip_and_port(host, port)


def make_thread_config(config: MemberSettings, num_cores: int) -> tf.compat.v1.ConfigProto:
    """Returns how many threads TensorFlow's server of a member gets.

    Threads that look for work where there are no cores for them cost as much as the work: on 2
    cores, the defaults take a third more CPU time for each example than what is chosen here.

    Args:
        config: The job. A number other than the default is taken as it is.
        num_cores: How many cores this process may use.

    Example:
        >>> chosen = make_thread_config(MemberSettings(), num_cores=2)
        >>> chosen.intra_op_parallelism_threads, chosen.inter_op_parallelism_threads
        (2, 4)
    """
    intra, inter = config.intra_op_parallelism_threads, config.inter_op_parallelism_threads
    if intra == MemberSettings.intra_op_parallelism_threads:
        intra = min(intra, num_cores)
    if inter == MemberSettings.inter_op_parallelism_threads:
        # Beside those that compute, some for ops that last, as those of a save do.
        inter = min(inter, num_cores + 2)
    session_config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=intra, inter_op_parallelism_threads=inter
    )
    # A member waits for others most of the time; a thread that spins then takes their cores.
    session_config.experimental.disable_thread_spinning = True
    return session_config


def check_place(
    config: DistributedCpuTrainingConfig, discovery: ServiceDiscovery, addr: str
) -> None:
    """Sees that this process does not take the registration of another job's member.

    Two jobs that meet in one place, with a model directory each, would take each other's servers.
    Must come before this process joins, while the record of one before it is still there.

    Raises:
        MemberConflictError: A process that lives, and that has no record in this model directory,
            is registered as what this one is to be.
        errors.ConfigError: The place where the members meet cannot be used.
    """
    if isinstance(discovery, TfConfigServiceDiscovery | MLPServiceDiscovery):
        return  # This process has the port that was planned for it.
    with meeting.explaining(discovery):
        other = discovery.find(config.server_type, config.index)
    if other is None or other == addr or not members.is_reachable(other):
        return
    record = members.read_member(config.model_dir, config.server_type, config.index)
    if record is not None and record.address == other:
        return
    name = get_name(config.server_type, config.index)
    raise MemberConflictError(
        f"{name[:1].upper()}{name[1:]} of a job with another model directory than "
        f"{config.model_dir} lives at {other} and meets in {discovery.describe()}; end that job, "
        "or have this one meet elsewhere."
    )


def register(config: DistributedCpuTrainingConfig, discovery: ServiceDiscovery, addr: str) -> None:
    """Lets the others know where this process is.

    Raises:
        errors.ConfigError: The place where the members meet cannot be used.
    """
    with meeting.explaining(discovery):
        discovery.register(config.server_type, config.index, addr)


@contextlib.contextmanager
def joined(config: DistributedCpuTrainingConfig, addr: str) -> Iterator[Membership]:
    """Has this process's place among the members during a block, and says how it ended.

    Raises:
        MemberConflictError: A living process has it.
        errors.ConfigError: The model directory cannot be written.
    """
    details: dict[str, Any] = {"code": plan.describe_code(), sizes.SIZES: sizes.describe(config)}
    if config.server_type == "worker" and config.index == 0:
        details[plan.RUN] = plan.choose_run(config.model_dir)
        details |= choice.inherit(config.model_dir)
    member = Membership(config.model_dir, config.server_type, config.index, addr, details=details)
    member.join()
    try:
        yield member
    except BaseException as error:
        end = get_end(error)
        text = "" if end is MemberState.STOPPED else str(error).partition("\n")[0]
        member.leave(end, text)
        raise
    member.leave(MemberState.FINISHED)


def get_end(error: BaseException | None) -> MemberState:
    """Returns the last state of a member that ends with an error, or well."""
    if error is None:
        return MemberState.FINISHED
    is_stopped = isinstance(error, SystemExit | KeyboardInterrupt)
    return MemberState.STOPPED if is_stopped else MemberState.FAILED


def check_members(
    model_dir: str,
    servers: Sequence[str],
    chief: str,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, MemberRecord]:
    """Sees that all others have the same model directory and the same code.

    Args:
        model_dir: The directory.
        servers: Addresses of the parameter servers, as discovery says.
        chief: Address of the chief.
        sleep: Waits for some seconds.

    Returns:
        The record of each of them, by the address that discovery says.

    Raises:
        errors.ConfigError: A member that lives has another directory, or other code.
        NodeAliveCheckerError: A member does not answer.
    """
    wanted = {addr: ("ps", index) for index, addr in enumerate(servers)} | {chief: ("worker", 0)}
    deadline_sec = time.monotonic() + SHARED_WAIT_SEC
    first = _read_by_place(model_dir)
    while True:
        records = _find(_read_by_place(model_dir), first, wanted)
        missing = sorted(set(wanted) - set(records))
        if not missing:
            break
        dead = [addr for addr in missing if members.is_refused(addr)]
        if dead:
            raise NodeAliveCheckerError(f"{','.join(dead)} is unreachable")
        if time.monotonic() >= deadline_sec:
            name = "The chief" if wanted[missing[0]][0] == "worker" else "The parameter server"
            raise errors.ConfigError(
                f"{name} at {missing[0]} lives but has left no record in "
                f"{model_dir}/{members.DIRECTORY}; all members must have the same model directory, "
                "on a disk that they share."
            )
        sleep(_POLL_SEC)
    own = plan.describe_code()
    for addr in sorted(records):
        code = records[addr].details.get("code", {})
        for name in sorted(own):
            if code.get(name) != own[name]:
                raise errors.ConfigError(
                    f"{records[addr].name.removesuffix(',').capitalize()} at {addr} runs {name} "
                    f"{code.get(name)}, this process runs {own[name]}; start all members with the "
                    "same code."
                )
    return records


_Place = tuple[str, int]


def _read_by_place(model_dir: str) -> dict[_Place, MemberRecord]:
    return {(record.role, record.index): record for record in members.read_members(model_dir)}


def _find(
    current: dict[_Place, MemberRecord],
    first: dict[_Place, MemberRecord],
    wanted: dict[str, _Place],
) -> dict[str, MemberRecord]:
    """Returns the records of members that live in this directory, by address."""
    by_address = {(record.role, record.address): record for record in current.values()}
    found = {}
    for addr, place in wanted.items():
        record = by_address.get((place[0], addr))
        if record is None and place in current and place in first:
            # Others may reach it by another address than its own; but then it is alive here.
            is_beating = current[place].beat != first[place].beat
            record = current[place] if is_beating and current[place].is_active else None
        if record is not None:
            found[addr] = record
    return found


def _check_port(config: DistributedCpuTrainingConfig, addr: str) -> None:
    host, port = net.parse_address(addr)
    family = socket.AF_INET6 if net.is_ipv6_address(host) else socket.AF_INET
    with contextlib.closing(socket.socket(family)) as skt:
        # As TensorFlow does it: connections of a process that has just ended do not count.
        skt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            skt.bind(("", port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise errors.ConfigError(
                f"{config.server_type.capitalize()} {config.index} is to listen at {addr}, but "
                f"port {port} of this machine cannot be had ({error.strerror}); end the process "
                "that has it, or plan another port."
            ) from error
