"""Which members are refused before they take part."""

import contextlib
import socket

import pytest

from monolith import errors
from monolith.cluster import heartbeat, members
from monolith.cluster.discovery import FileServiceDiscovery, TfConfigServiceDiscovery
from monolith.cluster.members import Membership, MemberState, read_member
from monolith.training.config.job import DistributedCpuTrainingConfig
from monolith.training.distributed import plan, start
from monolith.training.tables.members import NodeAliveCheckerError


@pytest.fixture(autouse=True)
def _short_times(monkeypatch):
    monkeypatch.setattr(members, "BEAT_SEC", 0.02)
    monkeypatch.setattr(start, "SHARED_WAIT_SEC", 0.1)
    yield
    heartbeat._stop_all()


def make_config(**settings):
    settings = {"num_ps": 2, "num_workers": 3, "model_dir": "/m", **settings}
    return DistributedCpuTrainingConfig(**settings)


class TestConfig:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"index": None}, r"^Index can't be none\.$"),
            ({"num_ps": None}, r"^Num ps can't be none\.$"),
            ({"num_workers": None}, r"^Num workers can't be none\.$"),
            ({"server_type": "boss"}, r"^Unknown server type\. type: boss$"),
            ({"model_dir": ""}, r"^model dir can't be empty\.$"),
            ({"num_ps": -1}, "`num_ps` must not be negative, got -1"),
            ({"num_extra_ps": -2}, "`num_extra_ps` must not be negative, got -2"),
            ({"num_workers": 0}, "counts the chief, so it must be at least 1, got 0"),
            ({"num_ps": 0}, "3 workers share nothing without parameter servers"),
            ({"index": 3}, r"`index` of a worker must be in 0\.\.2, since the job has 3 of them"),
            ({"index": -1}, r"must be in 0\.\.2.*, got -1"),
            ({"server_type": "ps", "index": 2}, r"`index` of a ps must be in 0\.\.1"),
        ],
    )
    def test_senseless_ones_are_refused(self, settings, message):
        with pytest.raises(errors.ConfigError, match=message):
            start.check_config(make_config(**settings))

    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"index": 2},
            {"server_type": "ps", "index": 1},
            {"server_type": "ps", "index": 4, "num_extra_ps": 2, "num_redundant_ps": 1},
            {"num_ps": 0, "num_workers": 1},
        ],
    )
    def test_others_are_not(self, settings):
        start.check_config(make_config(**settings))


class TestThreads:
    def test_defaults_are_for_the_cores_that_are_there(self):
        few = start.make_thread_config(make_config(), num_cores=1)
        assert (few.intra_op_parallelism_threads, few.inter_op_parallelism_threads) == (1, 3)
        assert few.experimental.disable_thread_spinning
        many = start.make_thread_config(make_config(), num_cores=64)
        assert (many.intra_op_parallelism_threads, many.inter_op_parallelism_threads) == (8, 16)

    def test_other_numbers_are_taken(self):
        config = make_config(intra_op_parallelism_threads=5, inter_op_parallelism_threads=9)
        made = start.make_thread_config(config, num_cores=1)
        assert (made.intra_op_parallelism_threads, made.inter_op_parallelism_threads) == (5, 9)


class TestRole:
    CLUSTER = {"ps": ["a:1", "b:1"], "chief": ["c:1"], "worker": ["d:1", "e:1"]}

    def make_discovery(self, role, index):
        return TfConfigServiceDiscovery(
            {"cluster": self.CLUSTER, "task": {"type": role, "index": index}}
        )

    @pytest.mark.parametrize(
        ("role", "index", "found"),
        [("ps", 1, ("ps", 1)), ("chief", 0, ("worker", 0)), ("worker", 1, ("worker", 2))],
    )
    def test_tf_config_decides(self, role, index, found):
        config = make_config()
        start.take_role(config, self.make_discovery(role, index))
        assert (config.server_type, config.index) == found

    def test_other_discoveries_do_not(self, tmp_path):
        config = make_config(server_type="ps", index=1)
        start.take_role(config, FileServiceDiscovery(str(tmp_path)))
        assert (config.server_type, config.index) == ("ps", 1)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"num_ps": 3}, r"lists 2 of the role 'ps', but the config asks for 3.*`num_ps`"),
            ({"num_workers": 2}, "lists 3 of the role 'worker', but the config asks for 2"),
        ],
    )
    def test_other_numbers_than_planned(self, settings, message):
        with pytest.raises(errors.ConfigError, match=message):
            start.take_role(make_config(**settings), self.make_discovery("ps", 0))

    def test_role_that_trains_nothing(self):
        config = make_config()
        start.take_role(config, self.make_discovery("evaluator", 0))
        with pytest.raises(errors.ConfigError, match="Unknown server type"):
            start.check_config(config)


class TestServer:
    def test_free_port_of_this_machine(self, tmp_path):
        server, addr = start.start_server(make_config(), FileServiceDiscovery(str(tmp_path)))
        assert server.target == f"grpc://{addr}"
        assert members.is_reachable(addr)


class TestJoined:
    @pytest.mark.parametrize(
        ("error", "state", "message"),
        [
            (None, MemberState.FINISHED, ""),
            (SystemExit(143), MemberState.STOPPED, ""),
            (KeyboardInterrupt(), MemberState.STOPPED, ""),
            (ValueError("It broke.\nBadly."), MemberState.FAILED, "It broke."),
        ],
    )
    def test_record_says_how_it_ended(self, tmp_path, error, state, message):
        config = make_config(model_dir=str(tmp_path))
        expected = contextlib.nullcontext() if error is None else pytest.raises(type(error))
        with expected, start.joined(config, "a:1") as member:
            assert read_member(str(tmp_path), "worker", 0).is_active
            assert member.record.details["code"] == plan.describe_code()
            if error is not None:
                raise error
        record = read_member(str(tmp_path), "worker", 0)
        assert (record.state, record.message) == (state, message)

    def test_only_the_chief_chooses_a_run(self, tmp_path):
        with start.joined(make_config(model_dir=str(tmp_path)), "a:1") as chief:
            assert chief.record.details[plan.RUN]
        with start.joined(make_config(model_dir=str(tmp_path), index=1), "b:1") as worker:
            assert plan.RUN not in worker.record.details


class TestMembers:
    @pytest.fixture
    def listeners(self):
        """Addresses of a server and a chief."""
        with (
            socket.create_server(("127.0.0.1", 0)) as first,
            socket.create_server(("127.0.0.1", 0)) as second,
        ):
            yield [f"127.0.0.1:{skt.getsockname()[1]}" for skt in (first, second)]

    def join(self, model_dir, role, addr, code=None):
        code = plan.describe_code() if code is None else code
        member = Membership(str(model_dir), role, 0, addr, details={"code": code})
        member.join()
        return member

    def test_all_there(self, tmp_path, listeners):
        ps = self.join(tmp_path, "ps", listeners[0])
        chief = self.join(tmp_path, "worker", listeners[1])
        found = start.check_members(str(tmp_path), listeners[:1], listeners[1])
        assert {addr: record.incarnation for addr, record in found.items()} == {
            listeners[0]: ps.record.incarnation,
            listeners[1]: chief.record.incarnation,
        }

    def test_others_reach_it_by_another_address(self, tmp_path, listeners):
        self.join(tmp_path, "ps", "10.9.8.7:80")
        self.join(tmp_path, "worker", listeners[1])
        found = start.check_members(str(tmp_path), listeners[:1], listeners[1])
        assert found[listeners[0]].address == "10.9.8.7:80"

    def test_directory_is_not_shared(self, tmp_path, listeners):
        self.join(tmp_path, "worker", listeners[1])
        # Of an earlier job; nobody renews it.
        self.join(tmp_path, "ps", "10.9.8.7:80").leave(MemberState.FINISHED)
        message = f"^The parameter server at {listeners[0]} lives but has left no record in"
        with pytest.raises(errors.ConfigError, match=message):
            start.check_members(str(tmp_path), listeners[:1], listeners[1])

    def test_chief_of_another_directory(self, tmp_path, listeners):
        self.join(tmp_path, "ps", listeners[0])
        with pytest.raises(errors.ConfigError, match=f"^The chief at {listeners[1]} lives but"):
            start.check_members(str(tmp_path), listeners[:1], listeners[1])

    def test_member_that_is_not_there(self, tmp_path):
        with socket.socket() as skt:
            skt.bind(("127.0.0.1", 0))
            addr = f"127.0.0.1:{skt.getsockname()[1]}"
            with pytest.raises(NodeAliveCheckerError, match=f"^{addr} is unreachable$"):
                start.check_members(str(tmp_path), [], addr)

    def test_other_code(self, tmp_path, listeners):
        code = {**plan.describe_code(), "monolith": "0.0.1 (abc)"}
        self.join(tmp_path, "ps", listeners[0], code)
        self.join(tmp_path, "worker", listeners[1])
        message = f"^Ps 0 at {listeners[0]} runs monolith 0.0.1 .abc., this process runs"
        with pytest.raises(errors.ConfigError, match=message):
            start.check_members(str(tmp_path), listeners[:1], listeners[1])


def test_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addr = f"127.0.0.1:{taken.getsockname()[1]}"
        discovery = TfConfigServiceDiscovery(
            {"cluster": {"ps": [addr]}, "task": {"type": "ps", "index": 0}}
        )
        config = make_config(server_type="ps")
        with pytest.raises(errors.ConfigError, match=f"Ps 0 is to listen at {addr}, but port"):
            start.start_server(config, discovery)


class TestPlace:
    """Who is registered as what this process is to be."""

    @pytest.fixture
    def listener(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            yield f"127.0.0.1:{server.getsockname()[1]}"

    @pytest.fixture
    def discovery(self, tmp_path):
        with contextlib.closing(FileServiceDiscovery(str(tmp_path / "meeting"))) as discovery:
            yield discovery

    def check(self, tmp_path, discovery, addr="127.0.0.1:1"):
        config = make_config(model_dir=str(tmp_path / "model"))
        start.check_place(config, discovery, addr)

    def test_member_of_another_model_directory_keeps_it(self, tmp_path, discovery, listener):
        discovery.register("worker", 0, listener)
        with pytest.raises(members.MemberConflictError) as caught:
            self.check(tmp_path, discovery)
        assert str(caught.value) == (
            f"Worker 0, the chief, of a job with another model directory than {tmp_path}/model "
            f"lives at {listener} and meets in {tmp_path}/meeting, a directory that all members "
            "must share; end that job, or have this one meet elsewhere."
        )
        assert discovery.query("worker") == {0: listener}

    def test_predecessor_in_the_same_directory_is_for_others_to_judge(
        self, tmp_path, discovery, listener
    ):
        discovery.register("worker", 0, listener)
        Membership(str(tmp_path / "model"), "worker", 0, listener).join()
        self.check(tmp_path, discovery)

    def test_nobody_or_who_is_dead_or_itself(self, tmp_path, discovery, listener):
        self.check(tmp_path, discovery)
        discovery.register("worker", 0, "127.0.0.1:1")
        self.check(tmp_path, discovery, addr="127.0.0.1:2")
        discovery.register("worker", 0, listener)
        self.check(tmp_path, discovery, addr=listener)

    def test_no_place_to_meet(self, tmp_path):
        (tmp_path / "file").touch()
        discovery = FileServiceDiscovery(str(tmp_path / "file"))
        for act in (start.check_place, start.register):
            config = make_config(model_dir=str(tmp_path / "model"))
            with pytest.raises(errors.ConfigError, match=r"^The members cannot meet at .*/file, a"):
                act(config, discovery, "127.0.0.1:1")

    def test_planned_places_are_not_compared(self, tmp_path, listener):
        cluster = {"ps": ["127.0.0.1:1"], "chief": [listener]}
        planned = TfConfigServiceDiscovery(
            {"cluster": cluster, "task": {"type": "chief", "index": 0}}
        )
        self.check(tmp_path, planned)
