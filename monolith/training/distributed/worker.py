"""One attempt of a worker to train: it meets the others, builds its graph, and runs to the end.

An attempt ends normally, or with an error that says that a member is gone; then
`monolith.training.cpu.distributed_train` begins another one. What connects attempts is on the
servers and in the model directory.
"""

import contextlib
import dataclasses
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import tensorflow as tf
from tensorflow.python.training import monitored_session

from monolith import errors
from monolith.checkpoint.paths import SaveHelper
from monolith.cluster import manager, members, net
from monolith.cluster.members import MemberRecord, Membership, MemberState
from monolith.cluster.progress import WaitProgress
from monolith.graph import collectives, devices
from monolith.graph.rank_place import Place
from monolith.graph.run_config import GraphRunConfig, make_device_fn
from monolith.model.task import NativeTask
from monolith.training import local
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import debugging, plan, report, sessions, start
from monolith.training.distributed.recovery import LOST_MEMBER_ERRORS
from monolith.training.distributed.server import SAVED_FOR
from monolith.training.distributed.watch import MemberWatch
from monolith.training.graph.estimator import GraphEstimator
from monolith.training.hooks import input_splits, interrupt, sync
from monolith.training.hooks.end_of_input import EofAwareTask
from monolith.training.hooks.rank_flags import StopTogetherHook
from monolith.training.tables import hooks, save
from monolith.training.tables.members import NodeAliveCheckerError, _get_blocked_addrs
from monolith.training.tables.training import CpuTraining, is_chief

logger = logging.getLogger(__name__)

TF_CONFIG = "TF_CONFIG"

# Facts in the record of the chief, see `MemberRecord.details`.
_READY = "ready"
_ATTEMPT = "attempt"
# In jobs whose workers do steps together: with whom, by index, in the record of the chief; and in
# that of a worker, whether it waits to be among them.
_PARTY = "party"
_WAITS = "waits"

_PING_SEC = 60
# Read when they are used, so that tests can shorten them.
CLOSE_SEC = 3.0
MAKE_SEC = 60.0
_POLL_SEC = 0.2
# Nobody waits for the files of a worker that has been frozen for so many times as long as makes it
# silent.
_FROZEN_FOR_GOOD = 10


def train(
    config: DistributedCpuTrainingConfig,
    params: Any,
    cluster: manager.Cluster,
    task: manager.Task,
    user_hooks: Sequence[tf.compat.v1.train.SessionRunHook] | None = None,
    member: Membership | None = None,
    *,
    save_info: Callable[..., None] = debugging.save_debugging_info,
    place: Callable[[GraphRunConfig], devices.DeviceFunction | None] = make_device_fn,
    container: str = "",
) -> GraphEstimator:
    """Trains as chief or worker, until the input ends, a hook stops it, or a member is gone.

    Args:
        config: The job, and what this process is in it.
        params: Settings of the task.
        cluster: Addresses by job, as this process sees them.
        task: Which of them this process is.
        user_hooks: Hooks of the caller.
        member: This process among the members, whose records it then compares and watches. None
            for a part of a job that needs none of that.
        save_info: Writes how the job can be looked at; the chief calls it.
        place: Returns the device function of the graph, if the job has none of its own.
        container: Where on the servers the variables are.

    Raises:
        ValueError: It is no task, or asks for what excludes each other.
        NodeAliveCheckerError: A member does not answer.
        errors.ConfigError: The members do not fit together.
    """
    params.mode = config.mode
    native_task = params.instantiate()
    if not isinstance(native_task, NativeTask):
        raise ValueError(f"distributed train only support NativeTask. Got {native_task}")
    if native_task.p.serving.with_remote_gpu and config.enable_model_dump:
        raise ValueError("unsupport enable_model_dump while with_remote_gpu=True")
    check_alive(cluster)
    attempt = None if member is None else _Attempt(config, cluster, member)
    with _tf_config(cluster, task), contextlib.ExitStack() as stack:
        stack.enter_context(sessions.giving_up_after(CLOSE_SEC))
        if attempt is not None:
            stack.enter_context(attempt)
            stack.enter_context(sessions.made_within(MAKE_SEC, attempt.others.check))
        training = CpuTraining(
            config, native_task, others=None if attempt is None else attempt.others
        )
        max_steps = native_task.p.train.max_steps
        if attempt is not None:
            if is_chief(config):
                # Before steps are counted: they begin where the training does.
                hooks.go_back(config, config.model_dir, native_task.p)
            max_steps = attempt.agree(training)
            if config.enable_partial_sync_training:
                stack.enter_context(attempt.meet())
                if isinstance(attempt.stop_hook, StopTogetherHook):
                    training.stop_hook = attempt.stop_hook
            if input_splits.uses_splits(config) and config.num_workers > 1:
                training.splits = stack.enter_context(
                    input_splits.InputSplits(
                        config.model_dir,
                        config.index,
                        config.num_workers,
                        attempt.others,
                        attempt.servers if hooks.keeps_servers(config) else None,
                    )
                )
        if is_chief(config) and member is not None:
            save_info(config, cluster, training)
        run_config = make_run_config(config, native_task, cluster, task)
        run_config = run_config.replace(container=container)
        if run_config.device_fn is None:
            run_config = run_config.replace(device_fn=place(run_config))
        trained: Any = training
        if config.enable_partial_sync_training:
            trained = EofAwareTask(cast(NativeTask, training))
        estimator = GraphEstimator(trained.create_model_fn(), config=run_config)
        all_hooks = [
            *(attempt.create_hooks() if attempt is not None else ()),
            *(user_hooks or ()),
        ]
        estimator.train(
            trained.create_input_fn(config.mode),
            hooks=all_hooks,
            max_steps=max_steps,
        )
        if attempt is not None:
            attempt.note_last_step()
            if config.enable_partial_sync_training and is_chief(config):
                # The servers end with the chief, and others may still talk to them.
                attempt.wait_for_workers()
            attempt.end_as_told(training)
        return estimator


def write_features(
    config: DistributedCpuTrainingConfig,
    params: Any,
    cluster: manager.Cluster,
    member: Membership,
) -> None:
    """Writes the features of this worker's part of the input to files.

    The chief stays until the other workers have written theirs, since the job ends with it.

    Args:
        config: The job, and what this process is in it.
        params: Settings of the task.
        cluster: Addresses by job, as this process sees them.
        member: This process among the members.

    Raises:
        NodeAliveCheckerError: A member does not answer.
        errors.ConfigError: The members do not fit together.
    """
    with _Attempt(config, cluster, member) as attempt:
        training = CpuTraining(config, local.instantiate(params))
        attempt.agree(training)
        attempt.say_ready()
        local.write_features(config, training.create_input_fn(config.mode))
        if is_chief(config):
            attempt.wait_for_workers()


def check_alive(cluster: manager.Cluster) -> None:
    """Sees that chief and servers accept connections.

    Raises:
        NodeAliveCheckerError: One does not.
    """
    checker = net.NodeAliveChecker(
        _get_blocked_addrs(cluster, ignored_jobs={"worker"}), timeout=_PING_SEC
    )
    if not checker.all_nodes_alive():
        dead = ",".join(sorted(checker.get_dead_nodes()))
        raise NodeAliveCheckerError(f"{dead} is unreachable")


def make_run_config(
    config: DistributedCpuTrainingConfig,
    native_task: NativeTask,
    cluster: manager.Cluster,
    task: manager.Task,
) -> GraphRunConfig:
    """Returns how the estimator of a member runs; TF_CONFIG must be set."""
    session_config = manager.generate_session_config((cluster, task))
    session_config.operation_timeout_in_ms = max(0, config.operation_timeout_in_ms)
    save_secs, save_steps = save.get_save_interval(config, native_task.p)
    num_counting, device_fn = config.num_workers, config.device_fn
    if config.enable_partial_sync_training:
        num_counting = 1
        device_fn = device_fn or devices.make_own_device_setter(task["type"], task["index"])
    return GraphRunConfig(
        model_dir=config.model_dir,
        summary_dir=config.tensorboard_log_path or None,
        session_config=session_config,
        save_checkpoints_secs=save_secs,
        save_checkpoints_steps=save_steps,
        # Steps of all workers count, unless they are the same.
        save_summary_steps=_times(config.save_summary_steps, num_counting),
        log_step_count_steps=_times(config.log_step_count_steps, num_counting),
        session_creation_timeout_secs=config.session_creation_timeout_secs,
        device_fn=device_fn,
        keep_checkpoint_max=config.checkpoints_max_to_keep,
    )


class _Attempt:
    """What an attempt does with the other members; a context around it."""

    def __init__(
        self, config: DistributedCpuTrainingConfig, cluster: manager.Cluster, member: Membership
    ) -> None:
        self._config = config
        self._member = member
        self._is_chief = is_chief(config)
        self._servers = cluster["ps"]
        self._chief_addr = cluster["chief"][0]
        self._is_together = config.enable_partial_sync_training and config.num_workers > 1
        self.stop_hook = (
            StopTogetherHook()
            if self._is_together
            else interrupt.StopOnSignalHook(only_default=True)
        )
        self._plan: plan.JobPlan | None = None

    @property
    def servers(self) -> dict[str, str]:
        """The incarnations of the servers, by name."""
        return self._watch.servers

    @property
    def others(self) -> sync.Others:
        """What this process knows of the others."""
        return sync.Others(
            check=lambda: self._watch.check(),
            has_left=self._has_left,
            is_absent=self._is_absent,
            is_stopping=lambda: self.stop_hook.received is not None,
            is_gone=self._is_gone,
            list_stopping=lambda: self._watch.stopping,
            say_saved=lambda servers: self._member.update(details={SAVED_FOR: sorted(servers)}),
        )

    def __enter__(self) -> "_Attempt":
        attempt = int(self._member.record.details.get(_ATTEMPT, 0)) + 1
        details = {_READY: None, _ATTEMPT: attempt, _PARTY: None, _WAITS: None}
        self._member.update(MemberState.STARTING, "", details)
        records = start.check_members(self._config.model_dir, self._servers, self._chief_addr)
        self._chief = records.pop(self._chief_addr)
        self._watch = MemberWatch(
            self._config.model_dir,
            records,
            {} if self._is_chief else {self._chief_addr: self._chief},
            self._member,
            cuts_all=self._is_together,
        )
        self._report = report.WorkerReport(
            self._member,
            self._servers,
            report.count_steps_in_flight(
                self._config.embedding_prefetch_capacity, self._config.enable_embedding_postpush
            ),
            [records[addr].index for addr in self._servers] if self._is_chief else None,
        )
        self._preemption_errors = monitored_session._PREEMPTION_ERRORS
        # Every loss is met in one way, by another attempt; TensorFlow would make a new session
        # while the workers still take the old one's word that the model is restored.
        monitored_session._PREEMPTION_ERRORS = ()
        self._watch.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        monitored_session._PREEMPTION_ERRORS = self._preemption_errors
        self._watch.__exit__()
        lost = self._find_loss(error)
        if lost is None:
            return
        received = self.stop_hook.received
        if received is not None:
            # Another attempt would train on.
            text = str(lost).partition("\n")[0]
            logger.warning("%s: training stops, and a member is lost: %s", received.name, text)
            interrupt.end_as_told(received)
        if lost is not error:
            raise lost from error

    def _find_loss(self, error: BaseException | None) -> Exception | None:
        """Returns the error that says that a member is gone, None if none is.

        What a step meets may have many names.
        """
        if isinstance(error, tf.errors.OpError | RuntimeError):
            self._watch.look()
            try:
                self._watch.check()
            except NodeAliveCheckerError as found:
                return found
        return error if isinstance(error, LOST_MEMBER_ERRORS) else None

    def agree(self, training: CpuTraining) -> int | None:
        """Publishes what is trained, or compares it with what the chief has published.

        Returns:
            The global step at which the training ends.
        """
        own = plan.JobPlan(
            incarnation=self._member.record.incarnation,
            code=plan.describe_code(),
            settings=plan.describe_settings(training.config),
            environment=plan.describe_environment(training.config),
            tables=plan.describe_tables(training),
            table_names=debugging.name_tables(training),
        )
        if self._is_chief:
            run = str(self._member.record.details[plan.RUN])
            train = training.task.p.train
            max_steps = plan.choose_max_steps(self._config.model_dir, run, train)
            own = dataclasses.replace(own, run=run, max_steps=max_steps)
            plan.write_plan(self._config.model_dir, own)
        else:
            chiefs = self._compare(own)
            own = dataclasses.replace(own, run=chiefs.run, max_steps=chiefs.max_steps)
            self._member.update(details={plan.RUN: chiefs.run})
            self._wait_for_chief()
        self._plan = own
        training.input_seed = zlib.crc32(own.run.encode())
        return own.max_steps

    def create_hooks(self) -> list[tf.compat.v1.train.SessionRunHook]:
        """Returns the hooks that this attempt needs, before those of the caller."""
        own = [self.stop_hook, _MeetingHook(self), self._watch.create_hook()]
        return [*own, *self._report.create_hooks()]

    def agree_on_variables(self, graph: tf.Graph) -> None:
        """The same for dense variables, when the graph is built."""
        assert self._plan is not None
        self._plan = dataclasses.replace(self._plan, variables=plan.describe_variables(graph))
        if self._is_chief:
            plan.write_plan(self._config.model_dir, self._plan)
        else:
            self._compare(self._plan)

    def meet(self) -> contextlib.AbstractContextManager[None]:
        """Makes the workers ranks that do steps together, after `agree`; a context around that."""
        chief = self._member.record if self._is_chief else self._chief
        return collectives.on_servers(
            Place(rank=self._config.index, size=self._config.num_workers),
            len(self._servers),
            _get_token(chief),
        )

    def say_ready(self) -> None:
        """Says that this member trains; of the chief, that the model is restored."""
        details: dict[str, Any] = {_READY: self._watch.servers}
        if self._is_together and self._is_chief:
            party = self._gather_party()
            details[_PARTY] = {str(index): _get_token(record) for index, record in party.items()}
            self._watch.follow_workers(list(party.values()))
        self._member.update(MemberState.RUNNING, details=details)

    def note_last_step(self) -> None:
        """Notes the step that the chief has saved last, which is the job's, for who looks later."""
        checkpoint = tf.train.latest_checkpoint(self._config.model_dir) if self._is_chief else None
        if checkpoint is None:
            return
        step = SaveHelper.get_global_step_value(checkpoint)
        # Deltas may be newer.
        known = int(self._member.record.details.get("global_step") or 0)
        self._member.note({"global_step": max(step, known)})

    def wait_for_workers(self) -> None:
        """Waits until the other workers have left, for as long as a chief waits at the end."""
        progress = WaitProgress(logger)
        deadline_sec = time.monotonic() + self._config.chief_timeout_secs
        everybody = range(1, self._config.num_workers)
        while left := [index for index in everybody if not self._has_left(index)]:
            if time.monotonic() > deadline_sec:
                logger.warning("the chief ends, workers %s have not finished", left)
                return
            progress.report(f"The chief waits for workers {left} to finish.")
            time.sleep(_POLL_SEC)

    def end_as_told(self, training: CpuTraining) -> None:
        """Ends the process if a signal has stopped the attempt, which is saved."""
        received = self.stop_hook.received
        if received is None and training.agreement is not None:
            received = training.agreement.received  # Of another worker.
        if received is not None:
            logger.warning("%s: training has stopped", received.name)
            interrupt.end_as_told(received)

    def _compare(self, own: plan.JobPlan) -> plan.JobPlan:
        """Returns the plan of the chief, which is the same as this worker's."""
        return plan.check_plan(
            self._config.model_dir,
            self._chief,
            own,
            self._member,
            self._config.session_creation_timeout_secs,
        )

    def _wait_for_chief(self) -> None:
        """Waits until the chief has restored the servers that this worker sees.

        A session that is made before waits for half a minute whenever it finds the model not ready.
        """
        progress = WaitProgress(logger)
        deadline_sec = time.monotonic() + self._config.session_creation_timeout_secs
        if self._is_together:
            self._member.update(details={_WAITS: True})
        while True:
            chief = members.read_member(self._config.model_dir, "worker", 0)
            is_same = chief is not None and chief.incarnation == self._chief.incarnation
            if chief is not None and is_same and self._is_ready(chief):
                self._chief = chief
                # With partial recovery the servers keep what they have, and so do the workers.
                if not self._config.partial_recovery:
                    self._watch.follow(chief)
                return
            self._watch.check()
            if time.monotonic() > deadline_sec:
                raise NodeAliveCheckerError(
                    f"the chief at {self._chief_addr} has not restored the model in "
                    f"{self._config.session_creation_timeout_secs} s"
                )
            progress.report("Waiting for the chief to restore the model.")
            time.sleep(_POLL_SEC)

    def _is_ready(self, chief: MemberRecord) -> bool:
        """Returns whether the chief has restored the model, and expects this worker."""
        if chief.details.get(_READY) != self._watch.servers:
            return False
        if not self._is_together:
            return True
        party = chief.details.get(_PARTY) or {}
        return party.get(str(self._config.index)) == _get_token(self._member.record)

    def _gather_party(self) -> dict[int, MemberRecord]:
        """Waits until all other workers wait for the chief, and returns their records."""
        progress = WaitProgress(logger)
        deadline_sec = time.monotonic() + self._config.session_creation_timeout_secs
        found: dict[int, MemberRecord] = {}
        everybody = range(1, self._config.num_workers)
        while missing := [index for index in everybody if index not in found]:
            self._watch.check()
            if self.stop_hook.received is not None:
                interrupt.end_as_told(self.stop_hook.received)  # Nothing was trained yet.
            names = ", ".join(map(str, missing))
            if time.monotonic() > deadline_sec:
                raise errors.ConfigError(
                    f"Of {self._config.num_workers} workers that do every step together, {names} "
                    f"did not come within {self._config.session_creation_timeout_secs} s; see why, "
                    "and start the job again, it goes on from its last checkpoint."
                )
            progress.report(f"The chief waits for worker {names} to do steps together.")
            time.sleep(_POLL_SEC)
            looks = ((index, self._find_worker(index)) for index in everybody)
            found = {
                index: record
                for index, record in looks
                if record is not None and record.details.get(_WAITS) and not self._is_gone(index)
            }
        return found

    def _has_left(self, index: int) -> bool:
        record = self._find_worker(index)
        return record is not None and not record.is_active

    def _is_absent(self, index: int) -> bool:
        if index == self._config.index:
            return False
        record = self._find_worker(index)
        if record is None or record.state is not MemberState.RUNNING:
            return True
        # Of a worker that stands still nothing is known, and a save must not wait for it.
        return self._watch.is_silent(record) or members.is_refused(record.address)

    def _is_gone(self, index: int) -> bool:
        record = members.read_member(self._config.model_dir, "worker", index)
        if record is None:
            return False  # It cannot be read now.
        if not record.is_active:
            return True
        if self._watch.is_silent(record, _FROZEN_FOR_GOOD):
            return True  # Should it wake up, it trains once more what others have trained.
        if self._watch.is_silent(record):
            return not members.is_reachable(record.address)
        return self._watch.is_late(record) and members.is_refused(record.address)

    def _find_worker(self, index: int) -> MemberRecord | None:
        """Returns the record of a worker that takes part in this run."""
        record = members.read_member(self._config.model_dir, "worker", index)
        if record is None:
            return None
        run = self._member.record.details.get(plan.RUN)
        return record if record.details.get(plan.RUN) == run else None


class _MeetingHook(tf.compat.v1.train.SessionRunHook):
    """Compares the graph before the session is there, and says when it is."""

    def __init__(self, attempt: _Attempt) -> None:
        self._attempt = attempt

    def begin(self) -> None:
        self._attempt.agree_on_variables(tf.compat.v1.get_default_graph())

    def after_create_session(
        self, session: tf.compat.v1.Session, coord: tf.train.Coordinator
    ) -> None:
        self._attempt.say_ready()


def _get_token(record: MemberRecord) -> str:
    """Returns what tells an attempt of a process from all others."""
    return f"{record.incarnation}-{record.details[_ATTEMPT]}"


@contextlib.contextmanager
def _tf_config(cluster: manager.Cluster, task: manager.Task) -> Iterator[None]:
    os.environ[TF_CONFIG] = json.dumps({"cluster": cluster, "task": task})
    try:
        yield
    finally:
        os.environ.pop(TF_CONFIG, None)


def _times(steps: int | None, num_workers: int) -> int | None:
    return None if steps is None else steps * num_workers
