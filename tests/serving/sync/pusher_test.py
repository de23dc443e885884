"""Rows go to all servers, and none holds up another."""

import contextlib
import dataclasses

import pytest
import tensorflow as tf
from support.row_server import RowServer
from support.waiting import wait_for

from monolith.core import metrics
from monolith.embedding.tables import single
from monolith.native import ops
from monolith.serving.sync.config import SyncConfig
from monolith.serving.sync.pusher import RowPusher, SyncSteps

pytestmark = pytest.mark.usefixtures("graph_mode")

CONFIG = SyncConfig(interval_sec=0.05, timeout_sec=60, flush_sec=60)


class Backend:
    """Servers that a test may change."""

    def __init__(self, *servers):
        self.servers = list(servers)
        self.asked = []

    def get_sync_targets(self, part):
        assert part == "ps_0"
        self.asked.append(part)
        return "m", [server.target for server in self.servers]


class Training:
    """A table of one number in each row, to which each update adds 1; a context."""

    def __init__(self, backend, config=CONFIG, capacity=1000, **settings):
        client = ops.monolith_parameter_sync_client(shared_name="client", capacity=capacity)
        self.table = single.test_hash_table(1, sync_client=client, name_suffix="t", **settings)
        self._ids = tf.compat.v1.placeholder(tf.int64, [None])
        self._day = tf.compat.v1.placeholder(tf.int64, [])
        grads = -tf.ones([tf.size(self._ids), 1])
        day_sec = 24 * 60 * 60
        self._update = self.table.apply_gradients(
            self._ids, grads, global_step=0, req_time=self._day * day_sec
        ).as_op()
        self._evict = ops.monolith_hash_table_evict(self.table.table, self._day * day_sec).evicted
        self.session = tf.compat.v1.Session()
        self.session.run(self.table.as_op())
        steps = SyncSteps([client], self.session.run)
        self.pusher = RowPusher(steps, 0, backend, config)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.session.close()

    def update(self, *ids, day=1):
        self.session.run(self._update, {self._ids: ids, self._day: day})

    def evict(self, day):
        return self.session.run(self._evict, {self._day: day})


def test_all_servers_get_rows_also_one_that_comes_later_or_was_replaced():
    with contextlib.ExitStack() as stack:
        first, second, late = (stack.enter_context(RowServer()) for _ in range(3))
        backend = Backend(first, second)
        training = stack.enter_context(Training(backend))
        training.update(1, 2)
        training.pusher.start()
        for server in (first, second):
            wait_for(lambda server=server: server.rows == {1: 1.0, 2: 1.0})
        backend.servers.append(late)
        wait_for(lambda: late.rows == {1: 1.0, 2: 1.0})
        training.update(2, 3)
        for server in (first, second, late):
            wait_for(lambda server=server: server.rows == {1: 1.0, 2: 2.0, 3: 1.0})
        # A process that took the place of one has nothing; it is noticed while no row changes.
        second.rows.clear()
        second.incarnation = "another"
        wait_for(lambda: second.rows == {1: 1.0, 2: 2.0, 3: 1.0})
        # And so is another export.
        second.rows.clear()
        second.version = 2
        wait_for(lambda: second.rows == {1: 1.0, 2: 2.0, 3: 1.0})
        training.update(3)
        backend.servers.remove(first)
        wait_for(lambda: first.target.name not in training.pusher.get_lags())
        training.update(1)
        assert training.pusher.close()
        assert late.rows == {1: 2.0, 2: 2.0, 3: 2.0}
        assert first.rows[1] == 1.0


def test_a_token_that_cannot_be_read_just_now_is_read_in_a_later_round(tmp_path, caplog):
    token = tmp_path / "token"
    sentence = f"{token} cannot be read: No such file or directory."
    config = dataclasses.replace(CONFIG, token_file=str(token))
    with contextlib.ExitStack() as stack:
        first, late, other = (stack.enter_context(RowServer()) for _ in range(3))
        backend = Backend(first)
        training = stack.enter_context(Training(backend, config))
        training.update(1)
        training.pusher.start()
        wait_for(lambda: len(backend.asked) > 3)
        assert caplog.text.count(sentence) == 1
        token.write_text("secret")
        wait_for(lambda: first.rows == {1: 1.0})
        # Who has a connection gets rows meanwhile.
        token.unlink()
        backend.servers += [late, other]
        wait_for(lambda: caplog.text.count(sentence) == 2)
        training.update(1)
        wait_for(lambda: first.rows == {1: 2.0})
        token.write_text("secret")
        wait_for(lambda: late.rows == other.rows == {1: 2.0})
        token.unlink()
        backend.servers.append(stack.enter_context(RowServer()))
        assert not training.pusher.close(flush_sec=0.01)
        assert f"its last rows: {backend.servers[-1].target.name};" in caplog.text


def test_rows_that_go_beyond_the_capacity_go_from_servers():
    with contextlib.ExitStack() as stack:
        live, old, late = (stack.enter_context(RowServer()) for _ in range(3))
        old.lists_ids = False
        backend = Backend(live, old)
        training = stack.enter_context(Training(backend, capacity=8, expire_time=1))
        training.pusher.start()
        training.update(*range(20))
        for server in (live, old):
            wait_for(lambda server=server: len(server.rows) == 20)
        training.update(7, day=9)
        assert training.evict(day=9) == 19
        for server in (live, old):
            wait_for(lambda server=server: server.rows[7] == 2.0)
        wait_for(lambda: live.rows == {7: 2.0})
        assert max(live.listed) == 2  # A quarter of the capacity.
        # One that comes with an older export loses what has expired since.
        late.rows = dict.fromkeys(range(15), 1.0)
        backend.servers.append(late)
        wait_for(lambda: late.rows == {7: 2.0})
        # Whose export is of an older version gets rows, as ever, and keeps those that are gone.
        training.update(8)
        wait_for(lambda: old.rows.get(8) == 1.0)
        assert training.pusher.close()
        assert live.rows == late.rows == {7: 2.0, 8: 1.0}
        assert len(old.rows) == 20


def test_ids_that_the_filter_holds_back_take_no_room(monkeypatch):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(RowServer())
        training = stack.enter_context(
            Training(Backend(server), capacity=8, enable_hash_filter=True, occurrence_threshold=3)
        )
        for _ in range(4):
            training.update(1, 2, 3)
        training.pusher.start()
        wait_for(lambda: server.rows.keys() == {1, 2, 3} and server.listed)
        server.rows[1] = 77.0  # A walk would overwrite it.
        training.update(2, *range(100, 140))
        rows = dict(server.rows)
        wait_for(lambda: server.rows[2] == rows[2] + 1)
        assert training.pusher.close()
        assert server.rows == {1: 77.0, 2: rows[2] + 1, 3: rows[3]}


def test_a_server_that_hangs_holds_up_nobody_and_gets_all_in_the_end():
    config = SyncConfig(interval_sec=0.05, timeout_sec=0.5, flush_sec=60)
    with contextlib.ExitStack() as stack:
        hanging, other = (stack.enter_context(RowServer()) for _ in range(2))
        hanging.hold.clear()
        training = stack.enter_context(Training(Backend(hanging, other), config))
        training.pusher.start()
        for number in range(1, 6):
            training.update(1)
            wait_for(lambda number=number: other.rows == {1: float(number)})
        assert hanging.rows == {}
        lags = training.pusher.get_lags()
        assert lags[hanging.target.name] > lags[other.target.name] >= 0
        hanging.hold.set()
        # What it was sent before may be acted on late, so the last rows are sent once more.
        assert training.pusher.close()
        assert hanging.rows == {1: 5.0}


class Sink:
    """Keeps what a metric was, by server, and its latest tags."""

    def __init__(self):
        self.values = {}
        self.tags = {}

    def emit(self, kind, name, value, tags):
        key = name.rpartition(".")[2], tags.get("target") or tags.get("part")
        self.values.setdefault(key, []).append((kind, value))
        self.tags[key] = tags

    def flush(self):
        pass


def test_lag_and_what_is_outstanding_are_metrics(monkeypatch):
    sink = Sink()
    monkeypatch.setattr(metrics, "_sink", sink)
    with contextlib.ExitStack() as stack:
        stuck, quick = (stack.enter_context(RowServer()) for _ in range(2))
        stuck.hold.clear()
        training = stack.enter_context(Training(Backend(stuck, quick)))
        training.update(1, 2, 3)
        training.pusher.start()
        wait_for(lambda: len(quick.rows) == 3)
        training.update(1, 2)
        training.session.run(training.table.lookup([1, 2, 3, 4]))
        wait_for(lambda: quick.rows[1] == 2.0)
        lags = sink.values["parameter_sync_lag", stuck.target.address]
        before = len(lags)
        wait_for(lambda: len(lags) > before + 20)
        outstanding = sink.values["parameter_sync_outstanding", stuck.target.address]
        assert outstanding[-1] == (
            "store",
            5,
        )  # Three are on their way, two new.
        stuck.hold.set()
        assert training.pusher.close()
        assert outstanding[-1] == ("store", 0)
        of_quick = sink.values["parameter_sync_lag", quick.target.address]
    # That of a server that does not answer grows by the time of a round in each round.
    during = [value for _, value in lags[before : before + 20]]
    assert {kind for kind, _ in lags} == {"store"}
    assert during == sorted(during)
    assert during[-1] - during[0] > 15 * CONFIG.interval_sec
    assert min(value for _, value in of_quick[before : before + 20]) < during[0]
    # Of the ids that were looked up, one has no row.
    assert ("store", 0.75) in sink.values["lookup_fid_hit_rate", "ps_0"]
    assert sink.tags["lookup_fid_hit_rate", "ps_0"]["name"] == "all"


def test_the_end_does_not_wait_for_ever(caplog):
    with RowServer() as server, Training(Backend(server)) as training:
        server.refusal = "No."
        training.update(1)
        training.pusher.start()
        wait_for(lambda: server.calls > 1)
        assert not training.pusher.close(flush_sec=0.2)
        assert "before all servers have its last rows: " + server.target.name in caplog.text


def test_a_backend_that_fails_is_asked_again(caplog):
    with RowServer() as server:
        backend = Backend(server)
        servers, backend.servers = backend.servers, None
        with Training(backend) as training:
            training.pusher.start()
            wait_for(lambda: "rows of ps_0 are not sent at the moment" in caplog.text)
            backend.servers = servers
            training.update(7)
            wait_for(lambda: server.rows == {7: 1.0})
            assert training.pusher.close()
    assert caplog.text.count("are not sent at the moment") == 1
