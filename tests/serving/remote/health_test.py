"""Which replicas are asked first."""

from monolith.serving.remote.health import Health

ALL = ["a:1", "b:1", "c:1"]


class Clock:
    now_sec = 0.0

    def __call__(self):
        return self.now_sec


def test_healthy_replicas_share_the_work():
    health = Health()
    assert {health.rank(ALL)[0] for _ in range(100)} == set(ALL)


def test_one_that_failed_is_last_until_it_is_tried_again():
    clock = Clock()
    health = Health(clock)
    health.note_failure("a:1")
    assert {health.rank(ALL)[-1] for _ in range(20)} == {"a:1"}
    clock.now_sec = 1.0
    # One call begins with it, and others do not.
    assert health.rank(ALL)[0] == "a:1"
    assert {health.rank(ALL)[-1] for _ in range(20)} == {"a:1"}
    health.note_success("a:1")
    assert {health.rank(ALL)[0] for _ in range(100)} == set(ALL)


def test_it_is_tried_more_and_more_rarely():
    clock = Clock()
    health = Health(clock)
    tried = []
    for tenth in range(1000):
        clock.now_sec = tenth / 10
        if tenth == 0 or health.rank(ALL)[0] == "a:1":
            tried.append(clock.now_sec)
            for _ in range(5):  # Calls that fail together count once.
                health.note_failure("a:1")
    assert tried == [0, 1, 3, 7, 15, 31, 61, 91]


def test_a_call_meets_one_that_is_gone_at_most():
    clock = Clock()
    health = Health(clock)
    gone = [f"gone:{i}" for i in range(20)]
    for address in gone:
        health.note_failure(address)
    clock.now_sec = 5.0
    for _ in range(20):
        assert not set(health.rank([*gone, *ALL])[1:4]) & set(gone)


def test_all_have_failed():
    clock = Clock()
    health = Health(clock)
    for address in ALL:
        health.note_failure(address)
        clock.now_sec += 0.1
    assert health.rank(ALL) == ALL
    health.forget("a:1")
    assert health.rank(ALL)[0] == "a:1"
