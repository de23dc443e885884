"""The desk of the chief and the workers that come to it, in one process, without threads."""

import threading

import pytest

from monolith import errors
from monolith.training.hooks import split_desk
from monolith.training.hooks.split_desk import SplitDesk, SplitTaker

FILES = ["a", "b", "c", "d"]


@pytest.fixture(autouse=True)
def _short_poll(monkeypatch):
    monkeypatch.setattr(split_desk, "POLL_SEC", 0.005)


@pytest.fixture
def gone():
    return set()


@pytest.fixture
def desk(tmp_path, gone):
    desk = SplitDesk(str(tmp_path), 3, lambda worker: worker in gone)
    desk.begin(FILES, finished=[])
    return desk


@pytest.fixture
def make_taker(tmp_path):
    def make(index, files=FILES, **settings):
        taker = SplitTaker(str(tmp_path), index, **settings)
        taker.announce(files)
        return taker

    return make


def take(desk, taker):
    with desk.serving():
        return taker.take()


def train(taker, batches=2):
    """Has all batches of the split that was taken come out and be trained."""
    for _ in range(batches):
        taker.count()
        taker.note_step()


def test_each_split_is_given_once(desk, make_taker):
    takers = [make_taker(1), make_taker(2)]
    assert [take(desk, takers[n]) for n in (0, 1, 1, 0)] == [0, 1, 2, 3]
    assert take(desk, takers[0]) is None
    assert take(desk, takers[1]) is None


def test_split_is_finished_when_its_last_step_is_pushed(desk, make_taker):
    taker = make_taker(1)
    take(desk, taker)
    train(taker)
    desk.serve()
    assert desk.finished == []  # Its end has not been read yet.
    take(desk, taker)
    desk.serve()
    assert desk.finished == []  # The last step's gradients may wait to be pushed.
    taker.note_pushed()
    desk.serve()
    assert desk.finished == ["a"]
    # Batches that were read ahead of the training do not count.
    for _ in range(2):
        taker.count()
    take(desk, taker)
    taker.note_step()
    taker.note_pushed()
    desk.serve()
    assert desk.finished == ["a"]
    taker.note_step()
    taker.note_step()
    desk.serve()
    assert desk.finished == ["a", "b"]


def test_dead_worker_s_unfinished_splits_go_to_others_first(desk, make_taker, gone):
    dead, alive = make_taker(1), make_taker(2)
    take(desk, dead)
    train(dead)
    take(desk, dead)
    dead.note_pushed()
    gone.add(1)
    assert take(desk, alive) == 1
    assert take(desk, alive) == 2
    desk.serve()
    assert desk.finished == ["a"]


def test_successor_of_a_dead_worker_says_what_that_one_has_finished(desk, make_taker):
    dead = make_taker(1)
    take(desk, dead)
    train(dead)
    take(desk, dead)
    dead.note_pushed()  # Nobody has looked at its slip when the next ones come.
    for _ in range(2):
        successor = make_taker(1)
        assert take(desk, successor) == 1
    assert desk.finished == ["a"]


def test_chief_waits_for_the_others_and_takes_over(desk, make_taker, gone):
    chief, worker = make_taker(0), make_taker(1)
    assert take(desk, worker) == 0
    assert [take(desk, chief) for _ in range(3)] == [1, 2, 3]
    taken = []
    with desk.serving():
        thread = threading.Thread(target=lambda: taken.append(chief.take()))
        thread.start()
        thread.join(0.1)
        assert thread.is_alive()
        gone.add(1)
        thread.join(10)
    assert taken == [0]


def test_chief_ends_when_the_others_are_done(desk, make_taker):
    chief, worker = make_taker(0), make_taker(1)
    take(desk, worker)
    train(worker)
    for _ in range(3):
        take(desk, chief)
    assert take(desk, worker) is None
    worker.note_pushed()
    assert take(desk, chief) is None


def test_new_chief_begins_with_what_its_checkpoint_has_finished(desk, make_taker, tmp_path):
    taker = make_taker(1)
    take(desk, taker)
    train(taker)
    new = SplitDesk(str(tmp_path), 3, lambda worker: False)
    new.begin(FILES, finished=["b", "not there any more"])
    # The worker still reads `a`, which the new chief gives again.
    assert take(new, taker) == 0
    assert take(new, taker) == 2
    taker.note_pushed()
    new.serve()
    assert new.finished == ["a", "b"]


class TestResume:
    SERVERS = {"ps 0": "x"}

    @pytest.fixture
    def desk(self, desk):
        desk.begin(FILES, finished=["d"], servers=self.SERVERS)
        return desk

    @pytest.fixture
    def new(self, tmp_path):
        return SplitDesk(str(tmp_path), 3, lambda worker: False)

    def test_nothing_that_is_finished_is_given_again(self, desk, new, make_taker):
        chief, worker = make_taker(0), make_taker(1)
        assert [take(desk, chief), take(desk, worker)] == [0, 1]
        train(worker)
        assert new.resume(FILES, self.SERVERS)
        # The worker goes on as if nothing had happened; what the chief had is given again.
        assert take(new, worker) == 2
        worker.note_pushed()
        again = make_taker(0)
        assert take(new, again) == 0
        train(again)
        train(worker)
        assert take(new, worker) is None
        worker.note_pushed()
        assert take(new, again) is None
        again.note_pushed()
        new.serve()
        assert new.finished == FILES

    def test_splits_of_a_worker_that_has_died_meanwhile(self, desk, tmp_path, make_taker):
        dead = make_taker(1)
        take(desk, dead)
        train(dead)
        take(desk, dead)
        dead.note_pushed()  # Nobody looks at its slip before the next chief.
        new = SplitDesk(str(tmp_path), 3, lambda worker: worker == 1)
        assert new.resume(FILES, self.SERVERS)
        assert take(new, make_taker(2)) == 1
        assert new.finished == ["a", "d"]

    def test_what_a_session_had_finished_before_its_successor_is_known(self, desk, new, make_taker):
        first = make_taker(1)
        take(desk, first)
        train(first)
        take(desk, first)
        first.note_pushed()
        assert take(desk, make_taker(1)) == 1
        assert new.resume(FILES, self.SERVERS)
        assert new.finished == ["a", "d"]

    @pytest.mark.parametrize(
        ("files", "servers"),
        [(FILES, {"ps 0": "y"}), (FILES[:3], SERVERS), ([*FILES, "e"], SERVERS)],
    )
    def test_other_servers_or_files(self, desk, new, files, servers):
        assert not new.resume(files, servers)

    def test_all_is_finished(self, desk, new, make_taker):
        taker = make_taker(1)
        while take(desk, taker) is not None:
            train(taker)
        taker.note_pushed()
        desk.serve()
        assert not new.resume(FILES, self.SERVERS)

    def test_model_that_nobody_keeps(self, desk, new):
        desk.begin(FILES, finished=[])
        assert not new.resume(FILES, self.SERVERS)


def test_everything_is_given_again_when_all_was_finished(desk, make_taker):
    desk.begin(FILES, finished=FILES)
    assert take(desk, make_taker(1)) == 0
    assert desk.finished == []


def test_other_files_are_refused(desk, make_taker):
    taker = make_taker(1, files=["a", "b"])
    with pytest.raises(errors.ConfigError, match="finds 2 input files, which are not the 4"):
        take(desk, taker)


def test_nobody_waits_for_ever(desk, make_taker):
    assert make_taker(1, is_stopping=lambda: True).take() is None
    closed = make_taker(1)
    closed.close()
    with pytest.raises(RuntimeError, match="has ended"):
        closed.take()

    def check():
        raise ConnectionError("the chief is gone")

    with pytest.raises(ConnectionError):
        make_taker(1, check=check).take()


def test_damaged_slip_is_not_there(desk, make_taker, tmp_path):
    (tmp_path / "members" / "splits" / "worker-2.json").write_text("{")
    assert take(desk, make_taker(1)) == 0
