"""What the process environment says about the services around a training job.

Example:
    >>> generate_psm_from_uuid("job-7")
    'job-7'
"""

import logging
import os

logger = logging.getLogger(__name__)


def setup_hdfs_env() -> None:
    """Does nothing: TensorFlow finds HDFS through the usual Hadoop variables."""


def setup_host_ip() -> None:
    """Does nothing: addresses are found by `monolith.cluster.net` when they are needed."""


def generate_psm_from_uuid(s: str) -> str:
    """Returns the service name under which a job registers, which is its uuid unchanged."""
    return s


def get_zk_auth_data() -> list[tuple[str, str]] | None:
    """Returns the ZooKeeper credentials of `ZK_AUTH` in kazoo's form, or None without them.

    They stay out of the logs.
    """
    credentials = os.environ.get("ZK_AUTH")
    if not credentials:
        return None
    logger.info("ZooKeeper: using the digest credentials of ZK_AUTH")
    return [("digest", credentials)]
