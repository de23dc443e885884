"""What members tell of themselves; the whole of it, with real processes, is in tests/cli."""

import pytest
import tensorflow as tf
from support.waiting import wait_for

from monolith import testing
from monolith.cluster import members, traffic
from monolith.embedding.tables import multi, single
from monolith.training.distributed import report

pytestmark = pytest.mark.usefixtures("graph_mode")


@pytest.mark.parametrize(
    ("capacity", "has_postpush", "steps"),
    [(0, False, 1), (0, True, 2), (1, False, 3), (1, True, 4), (5, True, 8)],
)
def test_steps_in_flight(capacity, has_postpush, steps):
    assert report.count_steps_in_flight(capacity, has_postpush) == steps


@pytest.mark.parametrize(
    ("global_steps", "own_steps", "in_flight", "behind"),
    [
        (10, 10, 1, 0.0),  # Alone, and without queues: nothing comes between.
        (30, 10, 1, 2.0),  # Two others that are as fast.
        (10, 10, 4, 3.0),  # Alone, with queues: its own next batches.
        (9, 10, 1, 0.0),  # Another moment of looking does not make it negative.
        (10, 0, 1, None),
    ],
)
def test_staleness(global_steps, own_steps, in_flight, behind):
    assert report.estimate_staleness(global_steps, own_steps, in_flight) == behind


def make_mark(time_sec, steps, examples, global_step, sent, received):
    return report._Mark(
        time_sec=time_sec,
        steps=steps,
        examples=examples,
        global_step=global_step,
        carried=traffic.Traffic(sent, received),
    )


def test_rates_between_two_moments():
    before = make_mark(10.0, 5, 50, 100, 1000, 2000)
    now = make_mark(14.0, 13, 130, 124, 9000, 3600)
    assert report._compare(before, now, 1) == {
        "steps_per_sec": 2.0,
        "examples_per_sec": 20.0,
        "steps_behind": 2.0,
        "sent_bytes_per_step": 1000,
        "received_bytes_per_step": 200,
    }


def test_worker_that_stands_still():
    before = make_mark(10.0, 5, None, 100, 0, 0)
    assert report._compare(before, before, 1) == {}
    now = make_mark(12.0, 5, None, 130, 70, 0)
    assert report._compare(before, now, 1) == {"steps_per_sec": 0.0}


@pytest.fixture
def join(tmp_path):
    joined = []

    def _join(role, index):
        member = members.Membership(str(tmp_path), role, index, "127.0.0.1:1")
        member.join()
        joined.append(member)
        return member

    yield _join
    for member in joined:
        member.leave(members.MemberState.FINISHED)


def test_server_reads_its_own_tables_of_all_kinds(tmp_path, join):
    """The tables are made by others, through sessions of their own, at any time."""
    chief, member = join("worker", 0), join("ps", 1)
    server = tf.distribute.Server.create_local_server()
    looking = report.ServerReport(server.target, member, str(tmp_path))
    looking.look()
    assert "rows" not in member.record.details
    assert member.record.details["resident_bytes"] > 1e6
    names = ["MonolithMultiHashTable_7", "MonolithHashTable_8"]
    chief.update(details={report.TABLES: {"0": ["other"], "1": names}})
    looking.look()  # Named, but not made yet.
    assert "rows" not in member.record.details
    with tf.Graph().as_default():
        configs = {"user": testing.generate_test_hash_table_config(dim=2)}
        several = multi.MultiHashTable.from_configs(configs, name_suffix="7")
        one = single.test_hash_table(2, name_suffix="8")
        fill = [
            several.assign({"user": ([1, 2], [[1.0, 1.0], [2.0, 2.0]])}).as_op(),
            one.assign([4, 5, 6], [[1.0, 1.0]] * 3).as_op(),
        ]
        with tf.compat.v1.Session(server.target) as session:
            session.run(several.initializer)
            session.run(fill)
    looking.look()
    assert member.record.details["rows"] == 5
    assert member.record.details["table_bytes"] > 0
    looking.__enter__()
    looking.__exit__()
    assert member.record.state is members.MemberState.RUNNING


def test_server_goes_on_looking_whatever_happens(tmp_path, join, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(members, "BEAT_SEC", 0.01)
    chief, member = join("worker", 0), join("ps", 0)
    chief.update(details={report.TABLES: {"0": 5}})  # Nonsense of another version.
    server = tf.distribute.Server.create_local_server()
    with report.ServerReport(server.target, member, str(tmp_path)):
        wait_for(lambda: caplog.text.count("could not look at itself") > 1)
        chief.update(details={report.TABLES: {"0": []}})
        wait_for(lambda: "resident_bytes" in member.record.details)
