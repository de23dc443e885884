"""Servers of a model in parts that find each other through a real ZooKeeper."""

import os
import uuid

import numpy as np
import pytest
from support import jobs, parts

from monolith.training.estimator import Estimator, RunConfig

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.external,
    pytest.mark.usefixtures("graph_mode"),
]


def test_servers_find_each_other_through_zookeeper(tmp_path, zookeeper_server):
    """As through files: a server that is killed goes, and one that comes is found."""
    model_dir = str(tmp_path / "model")
    estimator = parts.train_and_export(model_dir)
    place = f"zk:{zookeeper_server.hosts}/test/model-{uuid.uuid4().hex}"
    with jobs.Job(tmp_path / "logs") as job:
        servers = parts.Servers(job, os.path.join(model_dir, "exported_models"), place)
        first = servers.start("ps_0")
        servers.start("ps_1")
        entry = servers.start("entry", "--ps-timeout-ms", "30000", "--ps-retries", "5")
        expected = np.array(list(estimator.predict()))[:500]
        columns = {name: column[:500] for name, column in parts.make_columns().items()}
        with parts.Asker(parts.get_port(entry), "entry") as asker:
            asker.wait_until_ready()
            np.testing.assert_allclose(asker.ask(columns), expected, rtol=0, atol=1e-6)
            second = servers.start("ps_0")
            entry.wait_for_log(f"127.0.0.1:{parts.get_port(second)}")
            first.kill()
            np.testing.assert_allclose(asker.ask(columns), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_job_finds_servers_as_the_original_does_and_sends_rows_and_variables(
    tmp_path, zookeeper_server, monkeypatch
):
    """By `bzid` and `base_name`: rows go to the servers of their parts, variables to entries."""
    model_dir = str(tmp_path / "model")
    parts.train_and_export(model_dir)
    monkeypatch.setenv("zk_servers", zookeeper_server.hosts)
    base_name = f"model-{uuid.uuid4().hex}"
    place = f"zk:{zookeeper_server.hosts}/test/{base_name}"
    with jobs.Job(tmp_path / "logs") as job:
        servers = parts.Servers(job, os.path.join(model_dir, "exported_models"), place)
        for part in ("ps_0", "ps_1"):
            servers.start(part, "--allow-writes")
        entry = servers.start(
            "entry", "--allow-writes", "--ps-timeout-ms", "30000", "--ps-retries", "5"
        )
        columns = {name: column[:500] for name, column in parts.make_columns().items()}
        with parts.Asker(parts.get_port(entry), "entry") as asker:
            asker.wait_until_ready()
            before = asker.ask(columns)
            config = RunConfig(
                is_local=True,
                num_ps=2,
                model_dir=model_dir,
                enable_parameter_sync=True,
                bzid="test",
                base_name=base_name,
                sync_interval_secs=0.1,
                sync_dense_interval_secs=0.2,
            )
            estimator = Estimator(parts.Rating(), config)
            estimator.train(steps=4)
            after = asker.ask(columns)
    expected = np.array(list(estimator.predict()))[:500]
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-6)
    assert np.abs(after - before).max() > 1e-3
