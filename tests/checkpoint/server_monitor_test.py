"""Which parameter servers have to be restored."""

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import cluster_pb2

from monolith.graph import devices
from monolith.native_training import save_utils, utils

pytestmark = pytest.mark.usefixtures("graph_mode")

v1 = tf.compat.v1


def make_cluster(*servers):
    job = cluster_pb2.JobDef(name="ps")
    for i, server in enumerate(servers):
        job.tasks[i] = server.target.removeprefix("grpc://")
    config = v1.ConfigProto(cluster_def=cluster_pb2.ClusterDef(job=[job]))
    config.experimental.share_session_state_in_clusterspec_propagation = True
    return v1.Session(servers[0].target, config=config)


def make_server():
    return tf.distribute.Server.create_local_server()


def find_lost(monitor, session):
    return [i for i in range(2) if monitor.is_ps_uninitialized(session, utils.ps_device(i))]


def test_remembers_across_sessions_and_forgets_with_the_server():
    monitor = save_utils.PsMonitor(2)
    servers = [make_server(), make_server()]
    with make_cluster(*servers) as session:
        assert find_lost(monitor, session) == [0, 1]
        monitor.setup_ps_initialized_state(session)
        assert find_lost(monitor, session) == []
        # A second time neither waits nor fails.
        monitor.setup_ps_initialized_state(session)
    with make_cluster(*servers) as session:
        assert find_lost(monitor, session) == []
    with make_cluster(servers[0], make_server()) as session:
        assert find_lost(monitor, session) == [1]
        monitor.setup_ps_initialized_state(session)
        assert find_lost(monitor, session) == []


def test_any_way_to_write_the_server():
    monitor = save_utils.PsMonitor(1)
    with make_cluster(make_server()) as session:
        monitor.setup_ps_initialized_state(session)
        for device in (
            "/job:ps/task:0",
            "/job:ps/replica:0/task:0",
            "/job:ps/task:0/device:CPU:0",
            "/job:ps/replica:0/task:0/device:GPU:1",
        ):
            assert not monitor.is_ps_uninitialized(session, device)


@pytest.mark.parametrize("device", ["", "/job:worker/task:0", "/device:CPU:0", "/job:ps/task:7"])
def test_unknown_device_has_to_be_restored(device):
    monitor = save_utils.PsMonitor(1)
    with make_cluster(make_server()) as session:
        monitor.setup_ps_initialized_state(session)
        assert monitor.is_ps_uninitialized(session, device)


def test_servers_in_the_session_are_lost_with_it():
    devices.place_servers_in_session()
    monitor = save_utils.PsMonitor(2)
    config = v1.ConfigProto(device_count={"CPU": 3})
    for _ in range(2):
        with v1.Session(config=config) as session:
            assert find_lost(monitor, session) == [0, 1]
            monitor.setup_ps_initialized_state(session)
            assert find_lost(monitor, session) == []
            # The worker's own CPU is no server.
            assert monitor.is_ps_uninitialized(session, "/device:CPU:0")
