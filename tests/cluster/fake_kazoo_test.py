"""The fake ZooKeeper behaves as the real one does, in all that our code relies on."""

import uuid

import pytest
from kazoo import exceptions
from kazoo.client import KazooClient


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.external)])
def make_client(request):
    """Makes connected clients of one server."""
    clients = []
    if request.param == "fake":
        server = request.getfixturevalue("fake_kazoo").FakeZooKeeper()
        make = server.client
    else:
        hosts = request.getfixturevalue("zookeeper_server").hosts

        def make():
            return KazooClient(hosts, timeout=5.0)

    def connect():
        client = make()
        client.start()
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.stop()
        client.close()


@pytest.fixture
def client(make_client):
    return make_client()


@pytest.fixture
def base(client):
    """A node that no other test knows."""
    path = f"/monolith/{uuid.uuid4().hex}"
    client.ensure_path(path)
    return path


def test_create_get_set(client, base):
    client.create(f"{base}/a", value=b"1")
    assert client.get(f"{base}/a")[0] == b"1"
    client.set(f"{base}/a", b"2")
    assert client.get(f"{base}/a")[0] == b"2"
    with pytest.raises(exceptions.NodeExistsError):
        client.create(f"{base}/a", value=b"3")


def test_missing_nodes(client, base):
    assert client.exists(f"{base}/a") is None
    with pytest.raises(exceptions.NoNodeError):
        client.get(f"{base}/a")
    with pytest.raises(exceptions.NoNodeError):
        client.set(f"{base}/a", b"")
    with pytest.raises(exceptions.NoNodeError):
        client.delete(f"{base}/a")
    client.delete(path=f"{base}/a", recursive=True)
    with pytest.raises(exceptions.NoNodeError):
        client.create(f"{base}/a/b", value=b"")


def test_makepath_makes_parents(client, base):
    client.create(f"{base}/a/b/c", value=b"1", makepath=True, ephemeral=True)
    assert client.get_children(base) == ["a"]
    assert client.get(f"{base}/a/b/c")[0] == b"1"


def test_delete(client, base):
    client.create(f"{base}/a/b", value=b"", makepath=True)
    with pytest.raises(exceptions.NotEmptyError):
        client.delete(f"{base}/a")
    client.delete(f"{base}/a", recursive=True)
    assert client.exists(f"{base}/a") is None


def test_stat_tells_owner_and_times(client, base):
    client.create(f"{base}/lasting", value=b"")
    client.create(f"{base}/fleeting", value=b"", ephemeral=True)
    assert client.exists(f"{base}/lasting").ephemeralOwner == 0
    assert client.exists(f"{base}/fleeting").ephemeralOwner == client.client_id[0]
    children, stat = client.get_children(base, include_data=True)
    assert sorted(children) == ["fleeting", "lasting"]
    # A node's time is that of its own data, not of its children.
    assert stat.mtime <= client.exists(f"{base}/lasting").mtime


def test_ephemeral_nodes_end_with_their_session(make_client, client, base):
    other = make_client()
    other.create(f"{base}/a", value=b"", ephemeral=True)
    # Somebody else's change does not change the owner.
    client.set(f"{base}/a", b"changed")
    assert client.exists(f"{base}/a").ephemeralOwner == other.client_id[0]
    other.stop()
    assert client.exists(f"{base}/a") is None


def test_data_watch(client, base, eventually):
    seen = []
    client.DataWatch(f"{base}/a", func=lambda data, stat: seen.append(data))
    eventually(lambda: seen == [None])
    client.create(f"{base}/a", value=b"1")
    eventually(lambda: seen == [None, b"1"])
    client.set(f"{base}/a", b"2")
    eventually(lambda: seen == [None, b"1", b"2"])
    client.delete(f"{base}/a")
    eventually(lambda: seen == [None, b"1", b"2", None])
    client.create(f"{base}/a", value=b"3")
    eventually(lambda: seen == [None, b"1", b"2", None, b"3"])


def test_data_watch_ends_when_told(client, base, eventually):
    client.create(f"{base}/a", value=b"1")
    ended, going_on = [], []

    def end(data, stat):
        ended.append(data)
        return False

    client.DataWatch(f"{base}/a", func=end)
    client.DataWatch(f"{base}/a", func=lambda data, stat: going_on.append(data))
    client.set(f"{base}/a", b"2")
    eventually(lambda: going_on == [b"1", b"2"])
    assert ended == [b"1"]


def test_children_watch(client, base, eventually):
    seen = []
    client.ChildrenWatch(base, lambda children: seen.append(sorted(children)))
    assert seen == [[]]
    client.create(f"{base}/a", value=b"")
    eventually(lambda: seen[-1] == ["a"])
    client.create(f"{base}/b", value=b"")
    eventually(lambda: seen[-1] == ["a", "b"])
    client.delete(f"{base}/a")
    eventually(lambda: seen[-1] == ["b"])


def test_children_watch_ends_with_its_node(client, base, eventually):
    seen, again = [], []
    watch = client.ChildrenWatch(base, lambda children: seen.append(sorted(children)))
    assert not watch._stopped
    client.delete(base, recursive=True)
    eventually(lambda: watch._stopped)
    client.create(f"{base}/a", value=b"", makepath=True)
    client.ChildrenWatch(base, lambda children: again.append(sorted(children)))
    client.create(f"{base}/b", value=b"")
    eventually(lambda: again[-1:] == [["a", "b"]])
    assert seen == [[]]


def test_listeners_hear_of_the_session(make_client):
    client = make_client()
    states = []
    client.add_listener(states.append)
    client.stop()
    assert states == ["LOST"]
