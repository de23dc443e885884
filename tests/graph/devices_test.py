"""Where ops are placed."""

import json

import pytest
import tensorflow as tf
from absl import flags

from monolith import errors
from monolith.graph import devices, mpi

v1 = tf.compat.v1

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1", "e:1"]}


@pytest.fixture(autouse=True)
def no_gpu_training():
    devices.disable_gpu_training()
    yield
    devices.disable_gpu_training()


@pytest.fixture
def sync_flags(monkeypatch):
    """Parsed flags of synchronous training, apart from those of the process."""
    values = flags.FlagValues()
    for name in ("enable_sync_training", "enable_partial_sync_training", "is_local"):
        flags.DEFINE_bool(name, False, "For this test.", flag_values=values)
    values.mark_as_parsed()
    monkeypatch.setattr(devices, "FLAGS", values)
    monkeypatch.setattr(mpi, "FLAGS", values)
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "MONOLITH_RANK"):
        monkeypatch.delenv(name, raising=False)
    return values


def place(device_fn, *names, make=lambda: tf.constant(1)):
    """Returns where an op inside of nested devices ends up."""
    with tf.Graph().as_default() as graph, graph.device(device_fn):
        return _place_inside(names, make)


def _place_inside(names, make):
    if not names:
        return make().device
    with tf.device(names[0]):
        return _place_inside(names[1:], make)


def write_op():
    return tf.raw_ops.WriteFile(filename="f", contents="c")


def summary_op():
    return v1.summary.scalar("s", tf.constant(1.0))


class TestGpuTraining:
    def test_is_off_until_it_is_enabled(self):
        assert not devices.is_gpu_training()
        devices.enable_gpu_training()
        assert devices.is_gpu_training()
        devices.disable_gpu_training()
        assert not devices.is_gpu_training()


class TestVisibleGpus:
    @pytest.mark.parametrize(
        ("local_rank", "processes_per_gpu", "gpu"),
        [(2, 1, "2"), (1, 2, "0"), (2, 2, "1"), (3, 2, "1")],
    )
    def test_processes_share_gpus(self, local_rank, processes_per_gpu, gpu):
        assert devices.get_visible_gpus(local_rank, processes_per_gpu) == gpu

    def test_one_each_by_default(self):
        assert devices.get_visible_gpus(3) == "3"

    @pytest.mark.parametrize("bad", [0, -1, 1.5, "2"])
    def test_no_processes_are_refused(self, bad):
        with pytest.raises(AssertionError, match="processes_per_gpu must be a whole number"):
            devices.get_visible_gpus(0, bad)


class TestOwnDeviceSetter:
    def test_all_stays_at_the_worker_but_what_asks_for_a_server(self):
        with tf.Graph().as_default(), tf.compat.v1.device(devices.make_own_device_setter("worker")):
            variable = tf.compat.v1.get_variable("v", [1], use_resource=True)
            number = tf.constant(1)
            with tf.device("/job:ps/task:2"):
                there = tf.constant(1)
        assert variable.device == "/job:worker/replica:0/task:0/device:CPU:0"
        assert number.device == "/job:worker/replica:0/task:0/device:CPU:0"
        assert there.device == "/job:ps/task:2/device:CPU:0"
        assert devices.is_on_server(there.device)
        assert not devices.is_on_server(variable.device)
        assert not devices.is_on_server("")


class TestDefaultDeviceFn:
    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            pytest.param([], "/device:CPU:0", id="nothing_asked"),
            pytest.param(["/device:GPU:0"], "/device:CPU:0", id="gpu"),
            pytest.param(["/device:CPU:1"], "/device:CPU:1", id="another_cpu"),
            pytest.param(["/job:my_ps/task:0"], "/job:my_ps/task:0/device:CPU:0", id="job_only"),
            pytest.param(
                ["/job:my_ps/task:0/device:GPU:0"],
                "/job:my_ps/task:0/device:CPU:0",
                id="gpu_of_a_job",
            ),
            pytest.param(
                ["/job:my_ps/task:0/device:GPU:0", "/job:ps"],
                "/job:ps/task:0/device:CPU:0",
                id="inner_job_keeps_the_task",
            ),
        ],
    )
    def test_without_gpu_training(self, names, expected):
        assert place(devices.default_device_fn, *names) == expected

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            ([], "/device:CPU:0"),
            (["/device:GPU:0"], "/device:GPU:0"),
            (["/job:worker/task:0/device:GPU:1"], "/job:worker/task:0/device:GPU:1"),
            (["/job:worker/task:0"], "/job:worker/task:0/device:CPU:0"),
        ],
    )
    def test_with_gpu_training(self, names, expected):
        devices.enable_gpu_training()
        assert place(devices.default_device_fn, *names) == expected

    @pytest.mark.parametrize("make", [write_op, summary_op, lambda: tf.constant("text")])
    def test_text_stays_on_the_cpu(self, make):
        devices.enable_gpu_training()
        assert place(devices.default_device_fn, "/device:GPU:0", make=make) == "/device:CPU:0"

    def test_only_text_constants_do(self):
        with tf.Graph().as_default():
            assert devices.skip_device(tf.constant("a").op)
            assert not devices.skip_device(tf.constant(1).op)
            assert not devices.skip_device(tf.identity("a").op)


class TestMaybeDeviceIfAllowed:
    @pytest.mark.parametrize(
        ("allowed", "name", "expected"),
        [
            (False, "/device:GPU:0", "/device:CPU:0"),
            (True, "/device:GPU:0", "/device:GPU:0"),
            (False, "/job:ps/task:1/device:GPU:0", "/job:ps/task:1/device:CPU:0"),
            (True, "/job:ps/task:1", "/job:ps/task:1/device:CPU:0"),
        ],
    )
    def test_places(self, allowed, name, expected):
        if allowed:
            devices.enable_gpu_training()
        with tf.Graph().as_default(), devices.maybe_device_if_allowed(name):
            assert tf.constant(1).device == expected


class TestPlacementContext:
    @pytest.mark.parametrize("kind", ["CPU", "GPU"])
    def test_names_the_device_type(self, kind):
        with tf.Graph().as_default(), tf.device(f"/job:ps/task:0/device:{kind}:0"):
            assert devices.within_placement_context_of(kind)
            assert not devices.within_placement_context_of("GPU" if kind == "CPU" else "CPU")

    def test_device_functions_count(self):
        with tf.Graph().as_default(), v1.device(devices.default_device_fn), tf.device("GPU:0"):
            assert devices.within_placement_context_of("CPU")

    def test_nothing_asked_is_neither(self):
        with tf.Graph().as_default():
            assert not devices.within_placement_context_of("CPU")
            assert not devices.within_placement_context_of("GPU")

    def test_other_types_are_refused(self):
        with tf.Graph().as_default(), pytest.raises(errors.ConfigError, match="got 'TPU'"):
            devices.within_placement_context_of("TPU")


class TestReplicaDeviceSetter:
    def test_variables_go_round_the_servers(self):
        device_fn = devices.make_replica_device_setter(CLUSTER, "worker", 1)
        with tf.Graph().as_default() as graph, graph.device(device_fn):
            variables = [v1.get_variable(name, initializer=1.0) for name in "abc"]
            assert [v.device for v in variables] == [f"/job:ps/task:{i}" for i in (0, 1, 0)]
            assert tf.constant(1).device == "/job:worker/task:1"

    def test_none_without_servers(self):
        assert devices.make_replica_device_setter({"chief": ["a:1"]}, "chief") is None


class TestGetDeviceFn:
    def test_none_without_a_cluster(self, sync_flags):
        assert devices.get_device_fn() is None

    def test_none_without_servers(self, sync_flags):
        assert devices.get_device_fn({"chief": ["a:1"]}, {"type": "chief", "index": 0}) is None

    def test_none_in_a_local_run(self, sync_flags):
        sync_flags.is_local = True
        assert devices.get_device_fn(CLUSTER, {"type": "chief", "index": 0}) is None

    def test_cluster(self, sync_flags):
        device_fn = devices.get_device_fn(CLUSTER, {"type": "worker", "index": 1})
        assert place(device_fn) == "/job:worker/task:1"

    def test_cluster_of_tf_config(self, sync_flags, monkeypatch):
        task = {"type": "chief", "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": task}))
        assert place(devices.get_device_fn()) == "/job:chief/task:0"

    def test_synchronous_training_needs_mpi(self, sync_flags):
        sync_flags.enable_sync_training = True
        with pytest.raises(AssertionError, match="sync training must running under mpi mode"):
            devices.get_device_fn()

    def test_synchronous_training(self, sync_flags, monkeypatch):
        sync_flags.enable_sync_training = True
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
        assert devices.get_device_fn() is devices.default_device_fn

    def test_synchronous_training_of_monolith_run(self, sync_flags, monkeypatch):
        sync_flags.enable_sync_training = True
        for name, number in {"RANK": 1, "SIZE": 2, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}.items():
            monkeypatch.setenv(f"MONOLITH_{name}", str(number))
        monkeypatch.setenv("MONOLITH_RANKS_ADDRESS", "127.0.0.1:1")
        assert devices.get_device_fn() is devices.default_device_fn

    @pytest.mark.parametrize(
        ("rank", "own"),
        [("0", "/job:chief/replica:0/task:0"), ("2", "/job:worker/replica:0/task:1")],
    )
    def test_synchronous_training_with_servers(self, sync_flags, monkeypatch, rank, own):
        sync_flags.enable_sync_training = True
        sync_flags.enable_partial_sync_training = True
        monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
        device_fn = devices.get_device_fn()
        assert place(device_fn) == f"{own}/device:CPU:0"
        assert place(device_fn, "/device:GPU:0") == f"{own}/device:CPU:0"
        assert place(device_fn, "/job:ps/task:1") == "/job:ps/task:1/device:CPU:0"
        devices.enable_gpu_training()
        assert place(device_fn, "/device:GPU:0") == f"{own}/device:GPU:0"


class TestPartsOfSynchronousTraining:
    """`input_device_fn`, `model_device_fn` and `serving_input_device_fn`."""

    def test_alone(self, sync_flags):
        assert place(devices.input_device_fn, "/device:GPU:0") == "/device:CPU:0"
        assert place(devices.serving_input_device_fn, "/device:GPU:0") == "/device:CPU:0"
        assert place(devices.model_device_fn) == "/device:CPU:0"
        assert place(devices.model_device_fn, "/device:GPU:0") == "/device:CPU:0"

    def test_model_goes_to_the_gpu(self, sync_flags):
        devices.enable_gpu_training()
        assert place(devices.model_device_fn) == "/device:GPU:0"
        assert place(devices.model_device_fn, "/device:CPU:0") == "/device:CPU:0"
        assert place(devices.model_device_fn, make=lambda: tf.constant("a")) == "/device:CPU:0"
        assert place(devices.input_device_fn, "/device:GPU:0") == "/device:CPU:0"

    def test_beside_servers_all_stay_with_their_worker(self, sync_flags, monkeypatch):
        sync_flags.enable_partial_sync_training = True
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
        own = "/job:worker/replica:0/task:0"
        assert place(devices.input_device_fn) == f"{own}/device:CPU:0"
        assert place(devices.model_device_fn) == f"{own}/device:CPU:0"
        assert place(devices.model_device_fn, "/job:ps/task:0") == "/job:ps/task:0/device:CPU:0"
        devices.enable_gpu_training()
        assert place(devices.model_device_fn) == f"{own}/device:GPU:0"


@pytest.mark.usefixtures("graph_mode")
class TestServersInTheSession:
    def test_are_further_cpus_of_graphs_that_say_so(self):
        devices.place_servers_in_session()
        assert [devices.ps_device(i) for i in range(2)] == ["/device:CPU:1", "/device:CPU:2"]
        with tf.Graph().as_default():
            assert devices.ps_device(1) == "/job:ps/task:1/device:CPU:0"

    def test_a_function_of_the_graph_has_them_too(self):
        devices.place_servers_in_session()
        found = []
        tf.data.Dataset.range(1).map(lambda x: found.append(devices.ps_device(0)) or x)
        assert set(found) == {"/device:CPU:1"}

    def test_cpu_here_is_the_servers_on_a_server(self):
        with tf.device("/job:ps/task:1"), tf.device(devices.cpu_here()):
            assert tf.constant(1).device == "/job:ps/task:1/device:CPU:0"
        devices.place_servers_in_session()
        with tf.device(devices.ps_device(1)), tf.device(devices.cpu_here()):
            assert tf.constant(1).device == "/device:CPU:2"
        with tf.device("/device:GPU:0"), tf.device(devices.cpu_here()):
            assert tf.constant(1).device == "/device:CPU:0"

    def test_variables_are_dealt_out(self):
        device_fn = devices.make_local_device_setter(2)
        with tf.compat.v1.device(device_fn):
            placed = [v1.get_variable(f"v{i}", [], use_resource=True).device for i in range(3)]
            with tf.device("/device:CPU:0"):
                placed.append(v1.get_variable("on_cpu", [], use_resource=True).device)
            with tf.device("/device:GPU:0"):
                placed.append(v1.get_variable("on_gpu", [], use_resource=True).device)
            with tf.device("/device:CPU:2"):
                placed.append(v1.get_variable("on_server", [], use_resource=True).device)
            assert tf.constant(1).device == ""
        in_turn = ["/device:CPU:1", "/device:CPU:2"] * 2
        assert placed == [*in_turn, "/device:GPU:0", "/device:CPU:2"]

    def test_hold_resources_of_their_own(self):
        devices.place_servers_in_session()
        sizes, enqueues = [], []
        for i in range(2):
            with tf.device(devices.ps_device(i)):
                queue = tf.queue.FIFOQueue(1, tf.int32, shapes=[()], shared_name="one_name")
                sizes.append(queue.size())
                enqueues.append(queue.enqueue(1))
        with v1.Session(config=v1.ConfigProto(device_count={"CPU": 3})) as session:
            session.run(enqueues[1])
            assert session.run(sizes) == [0, 1]


def test_historical_path_is_the_same_module():
    from monolith.native_training import device_utils

    assert device_utils is devices
