"""A ZooKeeper in memory, and clients that look like kazoo's.

Only what `monolith.cluster` uses is here; fake_kazoo_test.py runs the same cases against this and
against a real server. Unlike kazoo, watches are called by the thread that made the change, before
its call returns, so that a test sees the effect at once.
"""

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable

from kazoo import exceptions
from kazoo.protocol.states import KazooState


@dataclasses.dataclass
class Stat:
    ephemeralOwner: int
    mzxid: int
    mtime: int  # milliseconds


@dataclasses.dataclass
class Node:
    data: bytes
    stat: Stat


@dataclasses.dataclass(eq=False)
class Watch:
    path: str
    func: Callable[..., bool | None]
    # kazoo's name: whether the watch has ended for good.
    _stopped: bool = False

    def call(self, *args):
        if not self._stopped and self.func(*args) is False:
            self._stopped = True


class FakeZooKeeper:
    """The nodes that several clients share."""

    def __init__(self):
        self.nodes = {"/": Node(b"", Stat(0, 0, 0))}
        self._data_watches = []
        self._children_watches = []
        self._lock = threading.RLock()
        self._zxids = itertools.count(1)
        self._sessions = itertools.count(1)

    def client(self, hosts="fake:2181", **kwargs):
        return FakeKazooClient(self, hosts, **kwargs)

    def new_session(self):
        return next(self._sessions)

    def create(self, path, data, owner):
        with self._lock:
            if path in self.nodes:
                raise exceptions.NodeExistsError
            if _parent(path) not in self.nodes:
                raise exceptions.NoNodeError
            self.nodes[path] = Node(data, self._stat(owner))
        self._notify(path)
        self._notify_children(_parent(path))

    def set(self, path, data):
        with self._lock:
            node = self.get(path)
            self.nodes[path] = Node(data, self._stat(node.stat.ephemeralOwner))
        self._notify(path)

    def get(self, path):
        with self._lock:
            if path not in self.nodes:
                raise exceptions.NoNodeError
            return self.nodes[path]

    def children(self, path):
        with self._lock:
            self.get(path)
            return [other.rpartition("/")[2] for other in self.nodes if _parent(other) == path]

    def delete(self, path, recursive):
        if recursive and path not in self.nodes:
            return
        children = self.children(path)
        if children and not recursive:
            raise exceptions.NotEmptyError
        for child in children:
            self.delete(f"{path}/{child}", recursive)
        with self._lock:
            self.nodes.pop(path, None)
        self._notify(path)
        self._notify_children(path)
        self._notify_children(_parent(path))

    def drop_session(self, session):
        for path in [p for p, node in self.nodes.items() if node.stat.ephemeralOwner == session]:
            self.delete(path, recursive=True)

    def watch_data(self, path, func):
        watch = Watch(path, func)
        self._data_watches.append(watch)
        self._call_data_watch(watch)
        return watch

    def watch_children(self, path, func):
        watch = Watch(path, func)
        self._children_watches.append(watch)
        watch.call(self.children(path))
        return watch

    def _stat(self, owner):
        return Stat(owner, next(self._zxids), int(time.time() * 1000))

    def _call_data_watch(self, watch):
        node = self.nodes.get(watch.path)
        watch.call(*((node.data, node.stat) if node else (None, None)))

    def _notify(self, path):
        for watch in [w for w in self._data_watches if w.path == path]:
            self._call_data_watch(watch)

    def _notify_children(self, path):
        for watch in [w for w in self._children_watches if w.path == path]:
            if path in self.nodes:
                watch.call(self.children(path))
            else:
                watch._stopped = True


class FakeKazooClient:
    """One session with a FakeZooKeeper."""

    def __init__(self, server, hosts, **kwargs):
        self.server = server
        self.hosts = hosts
        self.kwargs = kwargs
        self.listeners = []
        self.state = KazooState.LOST
        self.client_id = None

    def add_listener(self, listener):
        self.listeners.append(listener)

    def start(self, timeout=15):
        self.connect()

    def stop(self):
        if self.client_id is not None:
            self.lose_session()

    def close(self):
        pass

    def connect(self):
        """Begins a new session."""
        self.client_id = (self.server.new_session(), b"password")
        self._change_state(KazooState.CONNECTED)

    def lose_session(self):
        """Ends the session, with its ephemeral nodes."""
        session, self.client_id = self.client_id[0], None
        self._change_state(KazooState.LOST)
        self.server.drop_session(session)

    def ensure_path(self, path):
        for end in [i for i, c in enumerate(path) if c == "/" and i] + [len(path)]:
            if path[:end] not in self.server.nodes:
                self.server.create(path[:end], b"", 0)

    def retry(self, function, *args, **kwargs):
        """Nothing here fails for a while."""
        return function(*args, **kwargs)

    def restart(self):
        """Ends the session, if there is one, and begins another."""
        self.stop()
        self.connect()

    def create(self, path, value=b"", ephemeral=False, makepath=False, sequence=False):
        self._check_open()
        assert not sequence, "Nobody asks for numbered nodes."
        if makepath:
            self.ensure_path(_parent(path))
        self.server.create(path, value, self.client_id[0] if ephemeral else 0)

    def set(self, path, value):
        self._check_open()
        self.server.set(path, value)

    def get(self, path):
        node = self.server.get(path)
        return node.data, node.stat

    def exists(self, path):
        node = self.server.nodes.get(path)
        return node.stat if node else None

    def delete(self, path, recursive=False):
        self._check_open()
        self.server.delete(path, recursive)

    def get_children(self, path, include_data=False):
        children = self.server.children(path)
        return (children, self.server.get(path).stat) if include_data else children

    def DataWatch(self, path, func):
        return self.server.watch_data(path, func)

    def ChildrenWatch(self, path, func):
        return self.server.watch_children(path, func)

    def _check_open(self):
        if self.client_id is None:
            raise exceptions.ConnectionClosedError("Connection has been closed")

    def _change_state(self, state):
        self.state = state
        for listener in self.listeners:
            listener(state)


def _parent(path):
    return path.rpartition("/")[0] or "/" if path != "/" else None
