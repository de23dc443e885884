"""Whether a worker that has lost a member tries again; see also the tests with processes."""

import pytest
import tensorflow as tf

from monolith.checkpoint import delta_chain
from monolith.cluster import consul, heartbeat, manager
from monolith.cluster.discovery import MLPServiceDiscovery
from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.cluster.members import MemberConflictError, Membership, MemberState
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import plan, recovery

ERROR = tf.errors.UnavailableError(None, None, "Connection reset\nand more")
TASK = {"type": "worker", "index": 0}


@pytest.fixture(autouse=True)
def _stop_heartbeats():
    yield
    heartbeat._stop_all()


@pytest.fixture
def worker(tmp_path):
    worker = Membership(str(tmp_path), "worker", 1, "w:1", details={plan.RUN: "r"})
    worker.join()
    return worker


@pytest.fixture
def chief(tmp_path):
    chief = Membership(str(tmp_path), "worker", 0, "c:1", details={plan.RUN: "r"})
    chief.join()
    return chief


def make_cluster(*ps):
    return {"chief": ["c:1"], "worker": ["w:1"], "ps": list(ps)}, TASK


def write_checkpoint(directory, step):
    """Writes what says that there is a checkpoint."""
    (directory / f"model.ckpt-{step}.index").touch()
    (directory / "checkpoint").write_text(f'model_checkpoint_path: "model.ckpt-{step}"\n')


def make_retries(worker, clusters, **settings):
    """Retries that find one cluster after the other, and the seconds that they have slept."""
    config = DistributedCpuTrainingConfig(index=1, num_workers=2, **settings)
    found, slept = iter(clusters), []
    retries = recovery.Retries(config, lambda: next(found), worker, sleep=slept.append)
    return retries, slept


class Away(FileServiceDiscovery):
    """Answers only after some errors."""

    def __init__(self, base_path, num_errors):
        super().__init__(base_path, stale_after_secs=None)
        self._num_left = self._num_errors = num_errors
        self.before_error = lambda: None

    def query(self, name):
        if self._num_left == 0:
            return super().query(name)
        self._num_left -= 1
        self.before_error()
        raise consul.ConsulException(f"Error {self._num_errors - self._num_left}.")


class TestDiscoveryThatIsAway:
    """While this worker looks for members that have moved."""

    @pytest.fixture
    def away(self, tmp_path):
        return Away(str(tmp_path / "discovery"), num_errors=3)

    def find(self, tmp_path, discovery, worker, monkeypatch):
        monkeypatch.setattr(manager, "_cluster_query_failure_handler", lambda: None)
        config = DistributedCpuTrainingConfig(index=1, num_workers=2, model_dir=str(tmp_path))
        patient = recovery.UntilJobIsOver(discovery, config, worker)
        return manager.get_training_cluster(
            patient, "w:1", 1, 0, 1, 2, str(tmp_path), "", timeout_sec=60
        )

    def test_it_is_waited_for(self, tmp_path, away, chief, worker, monkeypatch, caplog):
        away.register("worker", 0, "c:1")
        away.register("ps", 0, "a:1")
        assert self.find(tmp_path, away, worker, monkeypatch) == make_cluster("a:1")
        warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert warnings == [
            f"{away.describe()} does not say who is registered as worker: ConsulException: Error 1."
        ]

    def test_the_job_may_end_meanwhile(self, tmp_path, away, chief, worker, monkeypatch):
        away.before_error = lambda: chief.leave(MemberState.FINISHED)
        with pytest.raises(recovery.JobIsOver):
            self.find(tmp_path, away, worker, monkeypatch)


class TestRetries:
    def test_same_members_as_often_as_it_takes(self, worker):
        cluster = make_cluster("a:1")
        retries, slept = make_retries(worker, [cluster] * 21, retry_wait_in_secs=7)
        found = retries.find_cluster()
        found[0]["ps"].clear()  # Whoever gets it may change it.
        for _ in range(20):
            assert retries.wait_for_cluster(ERROR) == cluster
        assert slept == [7] * 20
        record = worker.record
        assert (record.state, record.message) == (MemberState.WAITING, "Connection reset")

    def test_other_members_count(self, worker):
        clusters = [make_cluster(f"{name}:1") for name in "abcd"]
        retries, _ = make_retries(worker, clusters, max_retry_times=2)
        retries.find_cluster()
        assert retries.wait_for_cluster(ERROR) == clusters[1]
        retries.wait_for_cluster(ERROR)
        with pytest.raises(recovery.JobFailedError) as raised:
            retries.wait_for_cluster(ERROR)
        assert str(raised.value) == (
            "Worker 1 ends, since the members have changed 3 times without a save, and "
            "`max_retry_times` allows 2 changes (UnavailableError: Connection reset); start the "
            "job again, it goes on from its last checkpoint."
        )

    def test_a_save_is_a_new_beginning(self, worker, tmp_path):
        """Saves count from the last change on; a delta is one, too."""
        clusters = [make_cluster(f"host{i}:1") for i in range(5)]
        retries, _ = make_retries(worker, clusters, max_retry_times=1, model_dir=str(tmp_path))
        write_checkpoint(tmp_path, 7)
        retries.find_cluster()
        retries.wait_for_cluster(ERROR)
        deltas = delta_chain.serialize([delta_chain.Delta(step=9, num_rows=1)])
        (tmp_path / "model.ckpt-7.deltas").write_text(deltas)
        retries.wait_for_cluster(ERROR)
        write_checkpoint(tmp_path, 11)
        retries.wait_for_cluster(ERROR)
        (tmp_path / "checkpoint").unlink()  # As if the disk were away.
        with pytest.raises(recovery.JobFailedError, match=r"changed 2 times .* allows 1"):
            retries.wait_for_cluster(ERROR)

    @pytest.mark.parametrize(
        ("settings", "allowed"),
        [({}, 0), ({"partial_recovery": True}, 6), ({"max_retry_times": 1}, 1)],
    )
    def test_how_many(self, worker, settings, allowed):
        clusters = [make_cluster(f"host{i}:1") for i in range(allowed + 2)]
        retries, _ = make_retries(worker, clusters, **settings)
        retries.find_cluster()
        for _ in range(allowed):
            retries.wait_for_cluster(ERROR)
        with pytest.raises(recovery.JobFailedError, match=f"`max_retry_times` allows {allowed}"):
            retries.wait_for_cluster(ERROR)

    def test_nobody_is_asked_in_a_loop(self, worker):
        retries, slept = make_retries(worker, [make_cluster("a:1")] * 2, retry_wait_in_secs=0)
        retries.find_cluster()
        retries.wait_for_cluster(ERROR)
        assert slept == [0.2]


class TestEndOfTheJob:
    def test_goes_on(self, tmp_path, chief, worker):
        recovery.raise_if_over(str(tmp_path), worker)

    def test_without_a_chief(self, tmp_path, worker):
        recovery.raise_if_over(str(tmp_path), worker)

    def test_chief_has_finished(self, tmp_path, chief, worker):
        chief.leave(MemberState.FINISHED)
        with pytest.raises(recovery.JobIsOver):
            recovery.raise_if_over(str(tmp_path), worker)

    @pytest.mark.parametrize(
        ("state", "message"),
        [
            (MemberState.FAILED, r"the chief at c:1 has failed \(It broke\); start the job again"),
            (MemberState.STOPPED, "the chief at c:1 was stopped; start the job again"),
        ],
    )
    def test_chief_has_failed(self, tmp_path, chief, worker, state, message):
        chief.leave(state, "It broke.")
        with pytest.raises(recovery.JobFailedError, match=f"^Worker 1 ends, since {message}"):
            recovery.raise_if_over(str(tmp_path), worker)

    def test_chief_of_another_run(self, tmp_path, worker):
        other = Membership(str(tmp_path), "worker", 0, "c:1", details={plan.RUN: "other"})
        other.join()
        other.leave(MemberState.FINISHED)
        recovery.raise_if_over(str(tmp_path), worker)

    def test_another_process_is_this_worker(self, tmp_path, chief, worker):
        other = Membership(str(tmp_path), "worker", 1, "x:1")
        while worker.superseded_by is None:  # A heartbeat under way may write over it once.
            other._write()
            worker.update()
        with pytest.raises(MemberConflictError, match="gives way"):
            recovery.raise_if_over(str(tmp_path), worker)

    def test_nobody_waits_in_a_discovery(self, tmp_path, chief, worker):
        config = DistributedCpuTrainingConfig(index=1, num_workers=2, model_dir=str(tmp_path))
        discovery = FileServiceDiscovery(str(tmp_path / "discovery"), stale_after_secs=None)
        watched = recovery.UntilJobIsOver(discovery, config, worker)
        watched.register("ps", 0, "a:1")
        assert watched.query("ps") == {0: "a:1"}
        chief.leave(MemberState.FINISHED)
        with pytest.raises(recovery.JobIsOver):
            watched.query("ps")
        watched.deregister("ps", 0, "a:1")
        assert discovery.query("ps") == {}


class TestServersOfAJobThatIsOver:
    def test_are_listed_at_their_index(self, tmp_path):
        discovery = FileServiceDiscovery(str(tmp_path), stale_after_secs=None)
        cluster, _ = make_cluster("c:1")
        assert recovery.list_all_servers(discovery, cluster) is cluster
        discovery.register("ps", 2, "c:1")
        discovery.register("ps", 0, "a:1")
        assert recovery.list_all_servers(discovery, cluster)["ps"] == ["a:1", "0.0.0.0:1", "c:1"]

    def test_mlp_does_not_wait_for_those_that_are_gone(self, monkeypatch):
        # Nobody listens at port 1, and a query would wait for an hour.
        for name, value in (("ROLE", "worker"), ("PS_NUM", "1"), ("WORKER_NUM", "1")):
            monkeypatch.setenv(f"MLP_{name}", value)
        monkeypatch.setenv("MLP_PS_0_PRIMARY_HOST", "127.0.0.1")
        monkeypatch.setenv("MLP_PS_0_PORT", "1")
        monkeypatch.setenv("CLOUDNATIVE_INET_ADDR", "127.0.0.1")
        cluster, _ = make_cluster("c:1")
        found = recovery.list_all_servers(MLPServiceDiscovery(), cluster)
        assert found["ps"] == ["127.0.0.1:1"]

    def test_discovery_that_is_gone_is_no_failure(self, monkeypatch, tmp_path, caplog):
        discovery = FileServiceDiscovery(str(tmp_path), stale_after_secs=None)
        cluster, _ = make_cluster("c:1")

        def fail(name):
            raise ConnectionError("No such host.")

        monkeypatch.setattr(discovery, "query", fail)
        assert recovery.list_all_servers(discovery, cluster) is cluster
        text = "does not say who is registered as ps: ConnectionError: No such host."
        assert text in caplog.text
