"""Which servers get changes."""

import pytest

from monolith import errors
from monolith.cluster.discovery_file import FileServiceDiscovery
from monolith.serving.sync import targets


def test_servers_of_a_part_and_of_all_of_it(tmp_path):
    discovery = FileServiceDiscovery(str(tmp_path))
    discovery.register("ps_1", 0, "10.0.0.1:8500")
    discovery.register("ads", 3, "10.0.0.2:8500")
    discovery.register("ps_0", 0, "10.0.0.3:8500")
    backend = targets.open_targets(f"file:{tmp_path}", "ads")
    try:
        assert [target.name for target in targets.find_targets(backend, "ps_1")] == [
            "ps_1@10.0.0.1:8500",
            "ads@10.0.0.2:8500",
        ]
        assert targets.find_targets(backend, "entry") == [targets.Target("10.0.0.2:8500", "ads")]
    finally:
        backend.stop()
        discovery.close()


def test_addresses_are_checked():
    with pytest.raises(errors.ConfigError, match="needs a list of addresses"):
        targets.ListedTargets({"ps_0": "10.0.0.1:8500"})
