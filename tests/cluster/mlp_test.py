"""The MLP platform: its environment, its discovery, and the data service that it starts."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import textwrap
import threading
import time
from unittest import mock

import pytest
from absl import flags

from monolith import errors
from monolith.cluster import discovery, mlp
from monolith.native_training import mlp_utils

_JOB = {
    "MLP_FRAMEWORK": "tensorflow",
    "MLP_SSH_PORT": "22",
    "MLP_LOG_PATH": "/logs",
    "MLP_DEBUG_PORT": "5678",
    "MLP_ENTRYPOINT_DIR": "/code",
    "MLP_TASK_CMD": "'python main.py'",
    "MLP_ROLE": "ps",
    "MLP_ROLE_INDEX": "1",
    "MLP_PORT": ' "2002" ',
    "MLP_CPU": "8",
    "MLP_GPU": "1",
    "MLP_MEM": "16",
    "MLP_GPU_TYPE": "T4",
    "MLP_PS_NUM": "2",
    "MLP_WORKER_NUM": "3",
    "MLP_DISPATCHER_NUM": "1",
    "MLP_PS_ALL_PRIMARY_HOSTS": "10.0.0.1,10.0.0.2",
    "MLP_PS_ALL_HOSTS": "192.168.0.1,192.168.0.2",
    "MLP_PS_ALL_PRIMARY_ADDRS": "10.0.0.1:2001,10.0.0.2:2002",
    "MLP_PS_ALL_ADDRS": "192.168.0.1:2001,192.168.0.2:2002",
    "MLP_PS_0_PRIMARY_HOST": "10.0.0.1",
    "MLP_PS_0_PORT": "2001",
    "MLP_PS_1_PRIMARY_HOST": "10.0.0.2",
    "MLP_PS_1_HOST": "192.168.0.2",
    "MLP_PS_1_PORT": "2002",
    "MLP_WORKER_0_PRIMARY_HOST": "10.0.1.1",
    "MLP_WORKER_0_PORT": "3000",
    "MLP_WORKER_1_PRIMARY_HOST": "fd00::2",
    "MLP_WORKER_1_PORT": "3001",
    "MLP_DISPATCHER_0_PRIMARY_HOST": "10.0.2.1",
    "MLP_DISPATCHER_0_PORT": "5050",
    "CLOUDNATIVE_INET_ADDR": "10.0.0.2",
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("MLP_", "MPI_", "OMPI_")):
            monkeypatch.delenv(name)


@pytest.fixture
def set_env(monkeypatch):
    def set_env(*mappings, **more):
        for mapping in (*mappings, more):
            for name, value in mapping.items():
                monkeypatch.setenv(name, value)

    return set_env


@pytest.fixture
def job(set_env):
    set_env(_JOB)


@pytest.fixture
def mpi_job(set_env):
    """Worker 5 of 8, four to a machine."""
    set_env(
        _JOB,
        MLP_ROLE="worker",
        MLP_PORT="3000",
        OMPI_COMM_WORLD_RANK="5",
        OMPI_COMM_WORLD_SIZE="8",
        OMPI_COMM_WORLD_LOCAL_SIZE="4",
    )


@pytest.fixture
def listener():
    with socket.socket() as skt:
        skt.bind(("127.0.0.1", 0))
        skt.listen()
        yield skt


@pytest.fixture
def closed_port():
    """A port where nobody listens, and nobody can begin to."""
    with socket.socket() as skt:
        skt.bind(("127.0.0.1", 0))
        yield skt.getsockname()[1]


class TestCheckPort:
    def test_somebody_listens(self, listener):
        assert mlp.check_port("127.0.0.1", listener.getsockname()[1]) is True

    @pytest.mark.parametrize("host", ["::1", "[::1]"])
    def test_ipv6(self, host):
        with socket.socket(socket.AF_INET6) as skt:
            skt.bind(("::1", 0))
            skt.listen()
            assert mlp.check_port(host, skt.getsockname()[1]) is True

    def test_nobody_listens(self, closed_port):
        start = time.monotonic()
        assert mlp.check_port("127.0.0.1", closed_port, timeout=1) is False
        # It asked again until a whole second had passed.
        assert time.monotonic() - start >= 1

    def test_waits_for_somebody_to_listen(self):
        with socket.socket() as skt:
            skt.bind(("127.0.0.1", 0))
            timer = threading.Timer(0.2, skt.listen)
            timer.start()
            assert mlp.check_port("127.0.0.1", skt.getsockname()[1], timeout=20) is True
            timer.join()

    def test_silence_costs_the_timeout(self, monkeypatch):
        connect = mock.Mock(side_effect=TimeoutError)
        monkeypatch.setattr(socket.socket, "connect", lambda self, address: connect(address))
        assert mlp.check_port("10.0.0.1", 1, timeout=7) is False
        connect.assert_called_once_with(("10.0.0.1", 1))

    def test_long_wait_is_logged(self, monkeypatch, caplog):
        caplog.set_level("INFO")
        monkeypatch.setattr(mlp, "_WAIT_PERIOD_SECS", 0.5)
        with socket.socket() as skt:
            skt.bind(("127.0.0.1", 0))
            port = skt.getsockname()[1]
            assert mlp.check_port("127.0.0.1", port, timeout=1) is False
        assert f"Waiting for 127.0.0.1:{port} to listen" in caplog.text


class TestMLPEnv:
    def test_outside_mlp(self):
        env = mlp_utils.MLPEnv()
        assert env.avaiable is False
        assert (env.role, env.index, env.port, env.all_roles) == ("", 0, 0, {})
        assert (env.cpu, env.gpu, env.mem, env.gpu_type) == (0, 0, 0, "")
        assert env.framework is env.ssh_port is env.log_path is env.task_cmd is None
        assert env.num_replicas() == 0
        assert env.get_addr("ps") is None
        assert env.get_all_addrs("ps") == []
        assert env.dispatcher_target() == "grpc://localhost:5050"
        assert env.queue_device == "/device:CPU:0"

    def test_attributes(self, job):
        env = mlp.MLPEnv()
        assert env.avaiable is True
        assert (env.framework, env.ssh_port, env.log_path) == ("tensorflow", "22", "/logs")
        assert (env.debug_port, env.entrypoint_dir) == ("5678", "/code")
        assert env.task_cmd == "python main.py"
        assert (env.role, env.index, env.port) == ("PS", 1, 2002)
        assert env.all_roles == {"PS": 2, "WORKER": 3, "DISPATCHER": 1}
        assert (env.cpu, env.gpu, env.mem, env.gpu_type) == (8, 1, 16, "T4")
        assert env.host == "10.0.0.2"
        assert env.enable_mpi is False

    def test_is_a_snapshot(self, job, monkeypatch):
        env = mlp.MLPEnv()
        monkeypatch.setenv("MLP_PS_NUM", "7")
        assert env.num_replicas("ps") == 2

    def test_other_variables_do_not_make_a_job(self, set_env):
        set_env(MLP_FRAMEWORK="tensorflow", MLP_A_B_NUM="3")
        assert mlp.MLPEnv().avaiable is False

    def test_roles_in_any_case(self, job):
        env = mlp.MLPEnv()
        assert env.num_replicas() == env.num_replicas("Ps") == 2
        assert env.num_replicas("worker") == 3
        assert env.num_replicas("nobody") == 0

    def test_hosts_and_addresses(self, job):
        env = mlp.MLPEnv()
        assert env.get_all_host() == "10.0.0.1,10.0.0.2"
        assert env.get_all_host(is_primary=False) == "192.168.0.1,192.168.0.2"
        assert env.get_all_host("worker") is None
        assert env.get_all_addrs("ps") == ["10.0.0.1:2001", "10.0.0.2:2002"]
        assert env.get_all_addrs("ps", is_primary=False) == ["192.168.0.1:2001", "192.168.0.2:2002"]
        # Of its own role this process, of another one number 0.
        assert env.get_host() == "10.0.0.2"
        assert env.get_host(is_primary=False) == "192.168.0.2"
        assert env.get_host("worker") == "10.0.1.1"
        assert env.get_addr() == "10.0.0.2:2002"
        assert env.get_addr("ps", 0) == "10.0.0.1:2001"
        assert env.get_addr("worker", 1) == "[fd00::2]:3001"
        assert env.get_addr("worker", 2) is None
        assert env.get_port("ps", 1) == 2002
        assert env.get_port() == 2001
        assert env.get_port("worker", 2) == 2222

    def test_dispatcher(self, job):
        env = mlp.MLPEnv()
        assert env.dispatcher_addr() == "10.0.2.1:5050"
        assert env.dispatcher_target() == "grpc://10.0.2.1:5050"
        assert env.dispatcher_target("ps") == "grpc://10.0.0.2:2002"

    def test_mpi(self, mpi_job):
        env = mlp.MLPEnv()
        assert env.enable_mpi is True
        assert (env.index, env.port) == (5, 3005)
        assert env.all_roles["WORKER"] == env.num_replicas() == 8
        # Rank 5 is on the second machine, and counts up from the port of the first worker.
        assert env.get_host() == "fd00::2"
        assert env.get_addr() == "[fd00::2]:3005"
        assert env.get_addr("worker", 3) == "10.0.1.1:3003"
        assert env.get_port("worker", 3) == 3003
        # Other roles are what they were.
        assert env.num_replicas("ps") == 2
        assert env.get_addr("ps", 1) == "10.0.0.2:2002"

    def test_mpi_is_for_workers(self, job, set_env):
        set_env(OMPI_COMM_WORLD_RANK="5", OMPI_COMM_WORLD_SIZE="8")
        env = mlp.MLPEnv()
        assert env.enable_mpi is False
        assert env.index == 1

    @pytest.mark.parametrize(
        ("roles", "device"),
        [
            ({"MLP_PS_NUM": "1", "MLP_WORKER_NUM": "1"}, "/job:ps/task:0/device:CPU:0"),
            ({"MLP_WORKER_NUM": "1"}, "/job:worker/task:0/device:CPU:0"),
            ({"MLP_DSWORKER_NUM": "1"}, "/device:CPU:0"),
        ],
    )
    def test_queue_device(self, roles, device, set_env):
        set_env(roles)
        assert mlp.MLPEnv().queue_device == device

    @pytest.mark.parametrize("name", ["MLP_PORT", "MLP_ROLE_INDEX", "MLP_PS_NUM", "MLP_CPU"])
    def test_numbers_that_are_none(self, job, set_env, name):
        set_env({name: "many"})
        with pytest.raises(errors.ConfigError, match=f"{name} must be a whole number, got 'many'"):
            mlp.MLPEnv()


class TestWait:
    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch):
        monkeypatch.setattr(mlp, "_WAIT_PERIOD_SECS", 0.01)

    def make_env(self, set_env, ssh_port, own_port):
        set_env(
            MLP_WORKER_NUM="1",
            MLP_WORKER_0_PRIMARY_HOST="127.0.0.1",
            MLP_WORKER_0_PORT=str(own_port),
            MLP_SSH_PORT=str(ssh_port),
        )
        return mlp.MLPEnv()

    def test_ssh_port_or_own_port(self, set_env, listener, closed_port):
        port = listener.getsockname()[1]
        self.make_env(set_env, port, closed_port).wait("worker")
        self.make_env(set_env, closed_port, port).wait("worker", use_ssh=False)

    def test_gives_up(self, set_env, closed_port, caplog):
        caplog.set_level("INFO")
        self.make_env(set_env, closed_port, closed_port).wait("worker", timeout=0.5)
        assert f"wait 127.0.0.1:{closed_port} timeout!" in caplog.text

    def test_says_whom_it_waits_for(self, set_env, listener, caplog):
        caplog.set_level("INFO")
        env = self.make_env(set_env, listener.getsockname()[1], 1)
        with mock.patch.object(mlp, "check_port", side_effect=[False, False, True]) as probe:
            env.wait("worker")
        assert probe.call_count == 3
        assert caplog.text.count("Waiting for WORKER 0 at 127.0.0.1:") == 1

    def test_nobody_to_wait_for(self, caplog):
        caplog.set_level("INFO")
        mlp.MLPEnv().wait("worker")
        assert "host is None" in caplog.text


class TestMpiExceptionHook:
    def test_nothing_without_mpi(self):
        before = sys.excepthook
        mlp.add_mpi_exception_hook()
        assert sys.excepthook is before

    @pytest.mark.parametrize("with_mpi4py", [True, False])
    def test_uncaught_exception_ends_the_job(self, with_mpi4py, tmp_path):
        if with_mpi4py:
            # Stands in for mpi4py, which needs an MPI.
            (tmp_path / "mpi4py").mkdir()
            (tmp_path / "mpi4py" / "__init__.py").touch()
            (tmp_path / "mpi4py" / "MPI.py").write_text(
                "import os\nclass COMM_WORLD:\n    Abort = staticmethod(os._exit)\n"
            )
        program = (
            "import sys; from monolith.cluster import mlp\n"
            + ("" if with_mpi4py else "sys.modules['mpi4py'] = None\n")
            + "mlp.add_mpi_exception_hook()\nraise ValueError('oh no')\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "OMPI_COMM_WORLD_RANK": "3", "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == 1
        assert "*****" in result.stderr
        assert "Uncaught exception was detected on rank 3. \n" in result.stderr
        assert "ValueError: oh no" in result.stderr
        assert "Calling MPI_Abort() to shut down MPI processes..." in result.stderr
        failed = "Sorry, we failed to stop MPI, this process will hang." in result.stderr
        assert failed is not with_mpi4py


class TestMlpPass:
    def test_outside_mlp_nothing_happens(self):
        mlp.mlp_pass()

    def test_ps_goes_on(self, job):
        mlp.mlp_pass()

    def test_worker_without_data_service_goes_on(self, job, set_env):
        set_env(MLP_ROLE="worker")
        mlp.mlp_pass()

    @pytest.fixture
    def data_service_flag(self, monkeypatch):
        if "dataset_use_dataservice" not in flags.FLAGS:
            flags.DEFINE_bool("dataset_use_dataservice", False, "")
        monkeypatch.setattr(flags.FLAGS["dataset_use_dataservice"], "value", True)

    def test_hooks_are_replaced(self, data_service_flag, monkeypatch):
        class Hook:
            def begin(self):
                raise AssertionError

            def after_create_session(self, session, coord):
                raise AssertionError

        monkeypatch.setattr(mlp, "DATASET_INITIALIZER_HOOKS", [Hook])
        mlp.mlp_pass()
        assert Hook.begin is mlp.begin
        assert Hook.after_create_session is mlp.after_create_session

    def test_hooks_stay_without_data_service(self, monkeypatch):
        class Hook:
            begin = after_create_session = None

        monkeypatch.setattr(mlp, "DATASET_INITIALIZER_HOOKS", [Hook])
        mlp.mlp_pass()
        assert Hook.begin is None


class TestDatasetHook:
    """`begin` and `after_create_session`, in a real session."""

    class Hook:
        def __init__(self, iterator):
            self._iterator = iterator

        begin = mlp.begin
        after_create_session = mlp.after_create_session

    @pytest.fixture
    def iterator(self, graph_mode):
        import tensorflow as tf

        return tf.compat.v1.data.make_initializable_iterator(tf.data.Dataset.range(3))

    def run(self, iterator):
        import tensorflow as tf

        hook = self.Hook(iterator)
        hook.begin()
        element = iterator.get_next()
        with tf.compat.v1.Session() as session:
            hook.after_create_session(session, None)
            return hook, [session.run(element) for _ in range(3)]

    def test_initializes_the_dataset(self, iterator):
        hook, elements = self.run(iterator)
        assert elements == [0, 1, 2]
        assert hook._broadcast_dataset_id is None

    @pytest.fixture
    def collectives(self, monkeypatch):
        """Stands in for Horovod, which does not build against this TensorFlow."""
        import tensorflow as tf

        library = mock.Mock()
        library.broadcast.side_effect = lambda tensor, root, name: tf.identity(tensor, name=name)
        monkeypatch.setitem(sys.modules, "horovod", mock.Mock(tensorflow=library))
        monkeypatch.setitem(sys.modules, "horovod.tensorflow", library)
        monkeypatch.setattr(mlp.mpi, "enable_sync_training", lambda: True)
        return library

    def test_ranks_share_one_dataset_id(self, iterator, collectives, caplog):
        import tensorflow as tf

        caplog.set_level("INFO")
        dataset_id = tf.constant(7, tf.int64)
        tf.compat.v1.add_to_collection("registed_dataset_id", dataset_id)
        _, elements = self.run(iterator)
        collectives.broadcast.assert_called_once_with(dataset_id, 0, name="broadcast_dataset_id")
        assert "dataset id 7, broadcast as 7" in caplog.text
        assert elements == [0, 1, 2]

    def test_no_broadcast_in_a_dry_run(self, iterator, collectives):
        import tensorflow as tf

        tf.compat.v1.add_to_collection("registed_dataset_id", tf.constant(7))
        tf.compat.v1.get_default_graph().dry_run = True
        self.run(iterator)
        collectives.broadcast.assert_not_called()

    def test_missing_collectives_are_only_logged(self, iterator, monkeypatch, caplog):
        import tensorflow as tf

        monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "1")
        monkeypatch.setitem(sys.modules, "byteps", None)
        monkeypatch.setattr(mlp.mpi, "enable_sync_training", lambda: True)
        tf.compat.v1.add_to_collection("registed_dataset_id", tf.constant(7))
        _, elements = self.run(iterator)
        assert elements == [0, 1, 2]
        assert "the ranks will not share one dataset id" in caplog.text


class TestProfiler:
    @pytest.fixture
    def profiler(self, monkeypatch):
        """Stands in for TensorFlow's: a trace takes seconds, and needs a server on a known port."""
        tensorflow = mock.Mock()
        monkeypatch.setattr(mlp, "_tensorflow", lambda: tensorflow)
        return tensorflow.profiler.experimental

    def test_start(self, job, profiler):
        mlp.MLPEnv().start_profiler()
        profiler.server.start.assert_called_once_with(6666)

    def test_start_under_mpi(self, mpi_job, profiler):
        mlp.MLPEnv().start_profiler(7000)
        profiler.server.start.assert_called_once_with(7005)

    def test_trace_all(self, job, profiler, monkeypatch):
        monkeypatch.delenv("TENSORBOARD_LOG_PATH", raising=False)
        mlp.MLPEnv().profiler_trace("ps")
        profiler.ProfilerOptions.assert_called_once_with(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=1, delay_ms=10000
        )
        profiler.client.trace.assert_called_once_with(
            "grpc://10.0.0.1:2001,grpc://10.0.0.2:2002",
            "/tensorboard_logs/",
            10000,
            options=profiler.ProfilerOptions.return_value,
        )

    def test_trace_one(self, job, profiler, monkeypatch):
        monkeypatch.setenv("TENSORBOARD_LOG_PATH", "/mine")
        mlp.MLPEnv().profiler_trace("ps", 1)
        assert profiler.client.trace.call_args.args[:2] == ("grpc://10.0.0.2:2002", "/mine")

    def test_trace_nobody(self, job, profiler):
        with pytest.raises(errors.ConfigError, match="no address of role 'dsworker'"):
            mlp.MLPEnv().profiler_trace()


class TestDiscovery:
    @pytest.fixture
    def service(self, job):
        service = discovery.MLPServiceDiscovery()
        yield service
        service.close()

    def test_own_place(self, service):
        assert (service.server_type, service.index) == ("ps", 1)
        assert service.addr == "10.0.0.2:2002"

    def test_query(self, service):
        everybody = {0: "10.0.0.1:2001", 1: "10.0.0.2:2002"}
        assert service.query("ps", skip_port_check=True) == everybody
        # Worker 2 has no address in the environment.
        assert service.query("worker") == {0: "10.0.1.1:3000", 1: "[fd00::2]:3001"}
        assert service.query("chief") == {}
        assert service.query_all() == {
            "ps": everybody,
            "worker": {0: "10.0.1.1:3000", 1: "[fd00::2]:3001"},
            "chief": {},
        }

    def test_query_for_ps_waits_until_they_listen(self, service, monkeypatch):
        check = mock.Mock(return_value=True)
        monkeypatch.setattr("monolith.native_training.service_discovery.check_port", check)
        assert len(service.query("ps")) == 2
        assert check.call_args_list == [
            mock.call("10.0.0.1", 2001, timeout=3600),
            mock.call("10.0.0.2", 2002, timeout=3600),
        ]
        check.return_value = False
        with pytest.raises(AssertionError, match=r"^10\.0\.0\.1:2001 connect error!$"):
            service.query("ps")

    def test_query_for_ps_that_listens(self, set_env, listener):
        port = str(listener.getsockname()[1])
        set_env(_JOB, MLP_PS_NUM="1", MLP_PS_0_PRIMARY_HOST="127.0.0.1", MLP_PS_0_PORT=port)
        assert discovery.MLPServiceDiscovery().query("ps") == {0: f"127.0.0.1:{port}"}

    def test_deregistering_hides(self, service):
        service.deregister("worker", 0, "10.0.1.1:3000")
        assert service.query("worker") == {1: "[fd00::2]:3001"}
        service.register("WORKER", 0, "10.0.1.1:3000")
        assert sorted(service.query("worker")) == [0, 1]
        service.deregister_all()
        assert service.query_all() == {"ps": {}, "worker": {}, "chief": {}}

    @pytest.mark.parametrize(
        "host", ["localhost", "127.0.0.1", "0.0.0.0", "10.0.0.2", "192.168.0.2"]
    )
    def test_registers_under_any_name_of_this_machine(self, service, host):
        service.register("ps", 1, f"{host}:2002")

    @pytest.mark.parametrize(
        ("name", "index", "addr", "message"),
        [
            ("nobody", 0, "localhost:1", "role 'nobody' is not one of"),
            ("ps", 2, "localhost:2222", "must be below 2, got 2"),
            ("ps", -1, "localhost:2222", "must be below 2, got -1"),
            ("ps", 1, "localhost:2001", "planned port 2002 for ps 1"),
            ("ps", 1, "10.9.9.9:2002", "but its address is 10.9.9.9:2002"),
        ],
    )
    def test_refuses_what_was_not_planned(self, service, name, index, addr, message):
        for call in (service.register, service.deregister):
            with pytest.raises(AssertionError, match=message):
                call(name, index, addr)

    def test_malformed_address(self, service):
        with pytest.raises(errors.ConfigError, match="Invalid addr: localhost"):
            service.register("ps", 1, "localhost")

    def test_close(self, service):
        service.close()
        assert service.query_all() == {"ps": {}, "worker": {}, "chief": {}}
        for call in (service.register, service.deregister):
            with pytest.raises(RuntimeError, match="closed"):
                call("ps", 1, "localhost:2002")


def accept(listener):
    """Takes connections until the socket is shut down: a queue of them is full one day."""
    with contextlib.suppress(OSError):
        while True:
            listener.accept()[0].close()


@pytest.mark.distributed
@pytest.mark.slow
def test_data_service_for_real(listener):
    """A dispatcher, a data worker and a training worker, each a process; the first two end with it.

    The machine of the worker counts as alive while its ssh port, our listener, accepts.
    """
    threading.Thread(target=accept, args=[listener], daemon=True).start()
    with socket.socket() as first, socket.socket() as second, socket.socket() as third:
        ports = []
        for skt in (first, second, third):
            skt.bind(("127.0.0.1", 0))
            ports.append(skt.getsockname()[1])
        # The worker's extra data worker listens right above it, where nobody may be.
        with socket.socket() as fourth:
            fourth.bind(("127.0.0.1", 0))
            worker_port = fourth.getsockname()[1] - 1
    dispatcher_port, dsworker_port, profiler_port = ports
    environment = {
        **os.environ,
        "CLOUDNATIVE_INET_ADDR": "127.0.0.1",
        "PROFILER_PORT": str(profiler_port),
        "MLP_SSH_PORT": str(listener.getsockname()[1]),
        "MLP_DISPATCHER_NUM": "1",
        "MLP_DSWORKER_NUM": "1",
        "MLP_WORKER_NUM": "1",
        "MLP_DISPATCHER_0_PRIMARY_HOST": "127.0.0.1",
        "MLP_DISPATCHER_0_PORT": str(dispatcher_port),
        "MLP_DSWORKER_0_PRIMARY_HOST": "127.0.0.1",
        "MLP_DSWORKER_0_PORT": str(dsworker_port),
        "MLP_WORKER_0_PRIMARY_HOST": "127.0.0.1",
        "MLP_WORKER_0_PORT": str(worker_port),
    }
    script = pathlib.Path(__file__).parent / "mlp_data_service.py"

    def start(role, port):
        return subprocess.Popen(
            [sys.executable, script],
            env={**environment, "MLP_ROLE": role, "MLP_PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    processes = [
        start("dispatcher", dispatcher_port),
        start("dsworker", dsworker_port),
        start("worker", worker_port),
    ]
    try:
        out, err = processes[2].communicate(timeout=120)
        assert out == f"grpc://127.0.0.1:{dispatcher_port} 45 1\n", err  # 0 + 1 + ... + 9
        assert [p.poll() for p in processes[:2]] == [None, None]
        listener.shutdown(socket.SHUT_RDWR)  # Ends the thread, too.
        for process in processes[:2]:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_tensorflow_is_not_imported():
    program = textwrap.dedent(
        """
        import sys
        from monolith.cluster import discovery, mlp
        mlp.mlp_pass()
        assert "tensorflow" not in sys.modules
        """
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
