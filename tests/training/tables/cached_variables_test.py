"""Cached variables, with two real parameter servers: the historical cases, and where reads go."""

import re

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import cluster_pb2, config_pb2

from monolith.native_training import variables

v1 = tf.compat.v1

PS_1 = "/job:ps/task:1"


@pytest.fixture(scope="module")
def ps_cluster():
    """Two servers in this process; a session in the first one reaches the second by network."""
    servers = [v1.train.Server.create_local_server() for _ in range(2)]
    cluster = cluster_pb2.ClusterDef()
    job = cluster.job.add(name="ps")
    for i, server in enumerate(servers):
        job.tasks[i] = server.target.removeprefix("grpc://")
    return servers, config_pb2.ConfigProto(cluster_def=cluster)


@pytest.fixture
def cluster_of_case(request, ps_cluster):
    request.cls.servers, request.cls.config = ps_cluster


def make_cached_variable(initial_value=5.0, device=PS_1, **kwargs):
    with tf.variable_creator_scope(variables.cached_variable_creator), tf.device(device):
        return tf.Variable(initial_value, **kwargs)


def initialize(session):
    session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])


@pytest.mark.usefixtures("graph_mode", "cluster_of_case")
class CachedVariableTest(tf.test.TestCase):
    def testBasic(self):
        var = make_cached_variable()
        cached = var * 1.0
        add = var.assign_add(2.0)
        fetch = variables.fetch_all_cached_variables()
        assign = variables.assign_all_cached_variables()
        with v1.Session(self.servers[0].target, config=self.config) as session:
            initialize(session)
            self.assertAllEqual(session.run(cached), 5.0)
            session.run(add)
            self.assertAllEqual(session.run(cached), 5.0)
            self.assertAllEqual(session.run(var), 7.0)
            session.run(fetch)
            self.assertAllEqual(session.run(cached), 5.0)
            session.run(assign)
            self.assertAllEqual(session.run(cached), 7.0)

    def testHook(self):
        var = make_cached_variable()
        var_cached = var * 1.0
        sub = var.assign_sub(1.0)
        hook = variables.FetchAllCachedVariablesHook()
        with v1.train.SingularMonitoredSession(
            hooks=[hook], master=self.servers[0].target, config=self.config
        ) as session:
            session.run(sub)
            # The fetch of that run may have read the variable before it was changed.
            session.run(var_cached)
            self.assertAllEqual(session.run(var_cached), 4.0)

    def testGradient(self):
        var = make_cached_variable()
        loss = var
        train_op = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        cached = var * 1.0
        with v1.Session(self.servers[0].target, config=self.config) as session:
            initialize(session)
            session.run(train_op)
            self.assertAllEqual(session.run(var), 4.0)
            self.assertAllEqual(session.run(cached), 5.0)


@pytest.fixture
def session(graph_mode, ps_cluster):
    servers, config = ps_cluster
    with v1.Session(servers[0].target, config=config) as session:
        yield session


def devices_of_run(session, fetches):
    """Returns on which tasks the ops of a run were executed."""
    metadata = v1.RunMetadata()
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    session.run(fetches, options=options, run_metadata=metadata)
    return {
        device.device.partition("/device:")[0]
        for device in metadata.step_stats.dev_stats
        if device.node_stats
    }


def test_cached_read_asks_no_parameter_server(session):
    var = make_cached_variable(tf.fill([100, 100], 5.0))
    cached, direct = tf.reduce_sum(var * 1.0), tf.reduce_sum(var.read_value())
    initialize(session)
    assert devices_of_run(session, cached) == {"/job:ps/replica:0/task:0"}
    assert "/job:ps/replica:0/task:1" in devices_of_run(session, direct)


def test_gradient_of_a_model_is_computed_from_the_copies(session):
    x = tf.constant([[1.0, 2.0]])
    weight = make_cached_variable([[1.0], [1.0]])
    bias = make_cached_variable([0.5], device="/job:ps/task:1/device:CPU:0")
    loss = tf.reduce_sum((tf.matmul(x, weight) + bias) ** 2)
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    renew = [variables.fetch_all_cached_variables(), variables.assign_all_cached_variables()]
    initialize(session)

    # loss = (w0 + 2 w1 + b)^2, so d loss / d (w, b) = 2 (w0 + 2 w1 + b) (1, 2, 1).
    parameters = np.array([1.0, 1.0, 0.5])
    factors = np.array([1.0, 2.0, 1.0])
    cached = parameters
    for renewed in (False, False, True, False):
        session.run(train_op)
        # As long as the copies are the old ones, so are the gradients.
        parameters = parameters - 0.1 * 2 * (cached @ factors) * factors
        got = np.concatenate([a.flatten() for a in session.run([weight, bias])])
        np.testing.assert_allclose(got, parameters, rtol=1e-5)
        if renewed:
            for op in renew:
                session.run(op)
            cached = parameters


def test_hook_renews_before_the_first_step_and_after_each(graph_mode, ps_cluster):
    servers, config = ps_cluster
    var = make_cached_variable(3.0)
    cached = var * 1.0
    initializer = var.assign(8.0, read_value=False)
    add = var.assign_add(1.0, read_value=False)

    class Restore(v1.train.SessionRunHook):
        """Changes the variable as a restored checkpoint would: after the copies were made."""

        def after_create_session(self, session, coord):
            session.run(initializer)

    hooks = [Restore(), variables.FetchAllCachedVariablesHook()]
    with v1.train.SingularMonitoredSession(
        hooks=hooks, master=servers[0].target, config=config
    ) as session:
        assert session.run(cached) == 8.0
        session.raw_session().run(add)
        # Fetched during this run, read from the next one on.
        assert session.run(cached) == 8.0
        assert session.run(cached) == 9.0


def test_hook_starts_again_in_the_session_after_a_preemption(graph_mode, ps_cluster):
    servers, config = ps_cluster
    var = make_cached_variable(3.0)
    cached = var * 1.0

    class Preemption(v1.train.SessionRunHook):
        sessions = 0

        def after_create_session(self, session, coord):
            self.sessions += 1
            session.run(var.initializer)

        def after_run(self, run_context, run_values):
            if self.sessions == 1:
                raise tf.errors.AbortedError(None, None, "preempted")

    creator = v1.train.ChiefSessionCreator(master=servers[0].target, config=config)
    hooks = [Preemption(), variables.FetchAllCachedVariablesHook()]
    with v1.train.MonitoredSession(session_creator=creator, hooks=hooks) as session:
        assert session.run(cached) == 3.0
    assert hooks[0].sessions == 2


def test_copies_are_local_and_stay_out_of_checkpoints(graph_mode):
    var = make_cached_variable(name="scope/weight")
    assert v1.global_variables() == [var]
    assert v1.trainable_variables() == [var]
    copies = v1.local_variables()
    assert len(copies) == 2
    assert all(copy.device == "" and copy.shape == var.shape for copy in copies)
    associates = variables._get_meta().var_id_to_assoc[id(var)]
    assert {id(copy) for copy in copies} == {
        id(associates.async_cached_var),
        id(associates.async_fetched_var),
    }
    assert v1.get_collection(variables._CACHED_VARIABLES) == [var]
    assert variables._CACHED_VARIABLES == "monolith_cached_variables"
    (fetch,) = variables.fetch_all_cached_variables().control_inputs
    assert fetch.name == "fetch_from__job_ps_task_1"
    assign = variables.assign_all_cached_variables()
    assert assign.name == "assign_all_cached_variables"
    assert [op.name for op in assign.control_inputs] == ["assign_cached_var"]


def test_local_variable_gets_no_copies(graph_mode):
    var = make_cached_variable(device=None)
    assert var._cached_value is None
    assert v1.local_variables() == []
    assert v1.get_collection(variables._CACHED_VARIABLES) == []
    assert variables.fetch_all_cached_variables().control_inputs == []


def test_each_graph_has_its_own_variables():
    for _ in range(2):
        with tf.Graph().as_default():
            var = make_cached_variable()
            assert v1.get_collection(variables._CACHED_VARIABLES) == [var]
            assert list(variables._get_meta().var_id_to_assoc) == [id(var)]


def test_other_variables_are_rejected(graph_mode):
    message = "Only ResourceVariable is supported. Do you disable V2 behavior or use strategy?"
    scope = tf.variable_creator_scope(variables.cached_variable_creator)
    with scope, tf.device(PS_1), pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        v1.Variable(1.0, use_resource=False)


def test_variable_with_a_caching_device_is_rejected(graph_mode):
    message = "The variable has already been cached. Consider about removing cache_device."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make_cached_variable(caching_device="/job:ps/task:0")
