"""Which reports of a wait become log lines."""

import logging

from monolith.cluster.progress import WaitProgress


def test_a_line_at_the_start_at_a_change_and_once_a_minute(caplog):
    caplog.set_level(logging.INFO)
    now_sec = [100.0]
    progress = WaitProgress(logging.getLogger("waiter"), clock=lambda: now_sec[0])
    for at_sec, message in [
        (100, "no ps"),
        (105, "no ps"),
        (159, "no ps"),
        (160, "no ps"),
        (165, "one ps"),
        (170, "one ps"),
    ]:
        now_sec[0] = at_sec
        progress.report(message)
    assert [record.getMessage() for record in caplog.records] == [
        "no ps (waited 0 s)",
        "no ps (waited 60 s)",
        "one ps (waited 65 s)",
    ]
    assert {record.name for record in caplog.records} == {"waiter"}
