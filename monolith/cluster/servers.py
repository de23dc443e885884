"""Starting TensorFlow's servers, and saying in the log what that opens.

A server listens on all interfaces of the machine, whatever address the cluster names, unless the
process was started narrowed to one of them (`monolith.cluster.narrow`). It accepts every call of
everybody who reaches it: also those that read and write files as the user who runs it. TensorFlow
has no setting against that, so the least is that nobody overlooks it.

Example:
    >>> server = start_server({"local": ["localhost:0"]})
    >>> server.target.startswith("grpc://localhost:")
    True
"""

import logging
from typing import Any

import tensorflow as tf

from monolith.cluster import narrow, net

logger = logging.getLogger(__name__)


def start_server(cluster: Any, **settings: Any) -> tf.distribute.Server:
    """Starts a server, and warns of the port that is open from now on.

    Args:
        cluster: Addresses by job, or what else `tf.distribute.Server` takes; port 0 is a free one.
        settings: Further arguments of `tf.distribute.Server`.

    Returns:
        The server, which lives as long as the process: TensorFlow cannot stop it.
    """
    server = tf.distribute.Server(cluster, **settings)
    _, port = net.parse_address(server.target.removeprefix("grpc://"))
    logger.warning(
        "TensorFlow's server listens on port %d of %s until this process ends; its "
        "protocol asks for no password, and whoever reaches it can read and write files as this "
        "user: keep the port behind a firewall",
        port,
        narrow.get_listen_address() or "all interfaces",
    )
    return server
