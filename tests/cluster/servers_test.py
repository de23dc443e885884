"""What is said about a server's port, and whether it is so."""

import logging

import pytest
import tensorflow as tf
from support import sockets

from monolith.cluster import servers


@pytest.mark.usefixtures("graph_mode")
def test_the_log_names_the_port_that_is_open_on_all_interfaces(caplog):
    before = sockets.get_listening()
    with caplog.at_level(logging.WARNING, logger=servers.__name__):
        server = servers.start_server({"local": ["127.0.0.1:0"]})
    ((address, port),) = sockets.get_listening() - before
    assert address in ("::", "0.0.0.0")  # Though the cluster says 127.0.0.1.
    assert f"listens on port {port} of all interfaces" in caplog.text
    assert "read and write files" in caplog.text
    with tf.compat.v1.Session(server.target) as session:
        assert session.run(tf.constant(7)) == 7


def test_settings_are_those_of_tensorflow():
    server = servers.start_server(
        {"ps": ["localhost:0", "localhost:1"]}, job_name="ps", task_index=0, start=False
    )
    assert (server.server_def.job_name, server.server_def.task_index) == ("ps", 0)
