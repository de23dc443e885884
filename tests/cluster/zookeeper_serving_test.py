"""Servers of a model in parts that find each other through a real ZooKeeper."""

import os
import uuid

import numpy as np
import pytest
from support import jobs, parts

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
