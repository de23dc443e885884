"""How ranks meet, agree and miss each other; each is a thread here, its connections are real."""

import concurrent.futures
import json
import signal
import socket
import threading
import time

import pytest

from monolith import errors
from monolith.graph import rank_links
from monolith.graph.rank_links import Links
from monolith.graph.rank_place import Place


@pytest.fixture
def address():
    with socket.socket() as skt:
        skt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        skt.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{skt.getsockname()[1]}"


@pytest.fixture
def meet(address):
    made = []

    def meet(size, timeout_sec=30.0, **kwargs):
        links = [
            Links(Place(rank=rank, size=size, address=address), timeout_sec, **kwargs)
            for rank in range(size)
        ]
        made.extend(links)
        with concurrent.futures.ThreadPoolExecutor(size) as pool:
            list(pool.map(Links.meet, links))
        return links

    yield meet
    for links in made:
        links.leave()


def in_all(links, call):
    with concurrent.futures.ThreadPoolExecutor(len(links)) as pool:
        return list(pool.map(call, links))


def wait_for_problem(links):
    deadline_sec = time.monotonic() + 30
    while links.problem is None:
        assert time.monotonic() < deadline_sec
        time.sleep(0.01)
    return links.problem


def end_silently(links):
    """Ends the connections of a rank as a crash does."""
    links._is_closed.set()
    for peer in links._peers.values():
        peer.close()


def test_gather_goes_round_after_round(meet):
    links = meet(3)
    for round_number in range(3):
        values = in_all(links, lambda rank: rank.gather([rank._place.rank, rank._round]))
        assert values == [[[rank, round_number] for rank in range(3)]] * 3


def test_all_hosts_are_known(meet):
    assert [rank.host for rank in meet(2)] == ["127.0.0.1"] * 2


def test_one_that_does_not_gather_is_waited_for_only_so_long(meet):
    links = meet(2)
    with pytest.raises(TimeoutError, match=r"not come within 0\.1 s"):
        links[0].gather("here", timeout_sec=0.1)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_lost_rank_is_named_everywhere(meet, victim):
    links = meet(3, end_process=lambda code: None)
    end_silently(links[victim])
    for rank in links:
        if rank is links[victim]:
            continue
        assert f"rank {victim} (process" in wait_for_problem(rank)
        with pytest.raises(errors.RankLostError, match="ended without a word"):
            rank.check()
        with pytest.raises(errors.RankLostError, match=f"rank {victim} "):
            rank.gather(1)


def test_who_leaves_is_not_lost(meet):
    links = meet(3)
    links[1].leave()
    with pytest.raises(errors.RankLostError, match=r"rank 1 .* has left while others go on"):
        links[2].gather(1)
    links[0].leave()  # Nor is who leaves later.


def test_who_leaves_after_a_round_does_not_spoil_it_for_a_slower_one(meet, monkeypatch):
    links = meet(3)
    links[0]._peers = dict(sorted(links[0]._peers.items()))  # Rank 1 gets its message first.
    send = rank_links._Peer.send

    def send_late(peer, message):
        if message["kind"] == "values" and peer.rank == 2:
            time.sleep(0.3)  # Rank 1 has the values long since.
        send(peer, message)

    monkeypatch.setattr(rank_links._Peer, "send", send_late)

    def gather_and_leave(rank):
        values = rank.gather(rank._place.rank)
        if rank is links[1]:
            rank.leave()
        return values

    assert in_all(links, gather_and_leave) == [[0, 1, 2]] * 3


def test_who_waits_for_one_that_has_left_loses_it(meet):
    links = meet(3, timeout_sec=0.5, end_process=lambda code: None)
    links[2].begin_step()
    links[1].leave()
    assert "rank 1 " in wait_for_problem(links[2])
    with pytest.raises(errors.RankLostError, match="has left while others go on"):
        links[2].check()
    assert links[0].problem is None  # It does not wait.


def test_who_waits_no_more_loses_nobody(meet):
    links = meet(2, timeout_sec=0.5)
    links[0].begin_step()
    links[0].end_step()
    links[1].leave()
    time.sleep(1.5)
    assert links[0].problem is None


def test_who_waits_for_something_alone_in_between_waits_for_all_again(meet):
    links = meet(2, timeout_sec=0.5, end_process=lambda code: None)
    with links[0].waiting(True):
        with links[0].waiting(False):
            links[0].end_step()
        links[1].leave()
        assert "has left while others go on" in wait_for_problem(links[0])
    assert links[0]._step_sec is None


@pytest.mark.parametrize(
    ("code", "why"), [(3, "its program has ended with code 3"), ("no data\n", "ended: no data")]
)
def test_a_program_that_ends_with_a_code_has_failed(meet, code, why):
    links = meet(2, end_process=lambda code: None)
    links[1].note_exit(code)
    links[1].leave()
    # At once, also for who does something alone.
    assert wait_for_problem(links[0]).endswith(why)


@pytest.mark.parametrize("code", [None, 0, 128 + signal.SIGTERM])
def test_a_program_that_ends_well_or_was_told_to_has_not_failed(meet, code):
    links = meet(2)
    links[1].note_exit(code)
    links[1].leave()
    with pytest.raises(errors.RankLostError, match="has left while others go on"):
        links[0].gather(1)


def test_a_program_that_goes_on_has_not_ended(meet):
    links = meet(2)
    links[1].note_exit(3)
    links[1].begin_step()
    links[1].leave()
    with pytest.raises(errors.RankLostError, match="has left while others go on"):
        links[0].gather(1)


def test_silence_is_a_loss(meet):
    links = meet(2, timeout_sec=0.5, end_process=lambda code: None)
    links[1]._is_closed.set()  # Ends its heartbeat, and nothing else.
    assert "has been silent for 0.5 s" in wait_for_problem(links[0])


def test_quiet_ranks_are_not_silent(meet):
    links = meet(2, timeout_sec=0.5)
    time.sleep(1.5)
    assert [rank.problem for rank in links] == [None, None]


def test_a_process_that_takes_no_notice_is_ended(meet, monkeypatch, capsys):
    monkeypatch.setattr(rank_links, "GRACE_SEC", 0.1)
    ended = threading.Event()
    links = meet(2, end_process=lambda code: ended.set())
    end_silently(links[1])
    assert ended.wait(30)
    assert "rank 0 ends: rank 1 (process" in capsys.readouterr().err


def test_a_process_that_takes_notice_ends_by_itself(meet, monkeypatch):
    monkeypatch.setattr(rank_links, "GRACE_SEC", 0.3)
    ended = threading.Event()
    links = meet(2, end_process=lambda code: ended.set())
    end_silently(links[1])
    with pytest.raises(errors.RankLostError):
        links[0].explain(30)
    assert not ended.wait(1)


def test_an_error_without_a_loss_is_not_explained(meet):
    meet(2)[0].explain(0.1)


def wait_until_come(rank0, *others):
    deadline_sec = time.monotonic() + 30
    while not set(others) <= set(rank0._peers):
        assert time.monotonic() < deadline_sec
        time.sleep(0.01)


class TestMeeting:
    def test_by_a_file(self, tmp_path, monkeypatch):
        monkeypatch.setattr(rank_links.tempfile, "tempdir", str(tmp_path))
        links = [Links(Place(rank=rank, size=2, job="job/1")) for rank in range(2)]
        in_all(links, Links.meet)
        assert in_all(links, lambda rank: rank.gather(1)) == [[1, 1]] * 2
        for rank in links:
            rank.leave()
        assert list(tmp_path.iterdir()) == []

    def test_who_does_not_come(self, address, monkeypatch):
        monkeypatch.setattr(rank_links, "MEET_SEC", 0.2)
        with pytest.raises(errors.ConfigError, match="of the others 1, 2 did not come"):
            Links(Place(rank=0, size=3, address=address)).meet()
        with pytest.raises(errors.ConfigError, match="Rank 2 of 3 has tried"):
            Links(Place(rank=2, size=3, address=address)).meet()

    def test_a_rank_that_dies_before_all_have_come_is_named(self, address):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            rank0 = Links(Place(rank=0, size=4, address=address))
            waiting = [pool.submit(rank0.meet)]
            for rank in (1, 2):
                waiting.append(pool.submit(Links(Place(rank=rank, size=4, address=address)).meet))
            wait_until_come(rank0, 1, 2)
            # What rank 0 sees when the process of rank 2 ends.
            rank0._peers[2].connection.shutdown(socket.SHUT_RD)
            for future in waiting[:2]:
                with pytest.raises(
                    errors.RankLostError, match=r"rank 2 \(process \d+ on .* is gone"
                ):
                    future.result(30)
            # It learns only that rank 0 has ended.
            with pytest.raises(errors.RankLostError, match=r"rank 0 \(process \d+ on .* is gone"):
                waiting[2].result(30)

    def test_a_rank_that_never_came_is_named_by_who_has_started_it(self, address):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            rank0 = Links(Place(rank=0, size=3, address=address))
            waiting = [pool.submit(rank0.meet)]
            waiting.append(pool.submit(Links(Place(rank=1, size=3, address=address)).meet))
            wait_until_come(rank0, 1)
            rank_links.tell_of_end(address, 2, "rank 2 was ended by SIGKILL")
            for future in waiting:
                with pytest.raises(errors.RankLostError, match="rank 2 was ended by SIGKILL"):
                    future.result(30)
        rank_links.tell_of_end(address, 2, "nobody listens")

    def test_who_comes_after_rank_0_has_died_is_told(self):
        with (
            concurrent.futures.ThreadPoolExecutor() as pool,
            socket.create_server(("127.0.0.1", 0)) as listener,
        ):
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            threading.Thread(
                target=rank_links.answer_for_rank_0,
                args=(listener, 0, "rank 0 was ended by SIGKILL"),
                daemon=True,
            ).start()
            for rank in (1, 2):
                future = pool.submit(Links(Place(rank=rank, size=3, address=address)).meet)
                with pytest.raises(errors.RankLostError, match="rank 0 was ended by SIGKILL"):
                    future.result(30)

    @pytest.mark.parametrize(
        ("rank", "size", "message"),
        [(1, 3, "as one of 3, and rank 0 as one of 2"), (1, 2, "another process claims rank 1")],
    )
    def test_who_does_not_belong_here(self, address, monkeypatch, rank, size, message):
        """The second one of a rank, or one of another job, before rank 0 has all of its own."""
        monkeypatch.setattr(rank_links, "MEET_SEC", 20)
        total = 3 if size == 2 else 2
        with concurrent.futures.ThreadPoolExecutor() as pool:
            first = Links(Place(rank=0, size=total, address=address))
            rank0 = pool.submit(first.meet)
            if size == 2:
                size = 3
                early = pool.submit(Links(Place(rank=1, size=3, address=address)).meet)
                while 1 not in first._peers:
                    time.sleep(0.01)
            with pytest.raises(errors.ConfigError, match=message):
                Links(Place(rank=rank, size=size, address=address)).meet()
            Links(Place(rank=total - 1, size=total, address=address)).meet()
            rank0.result()
            if total == 3:
                early.result()

    @pytest.mark.parametrize(
        "said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"{}\n", b"\x00" * 9]
    )
    def test_strangers_are_ignored(self, address, said):
        links = [Links(Place(rank=rank, size=2, address=address)) for rank in range(2)]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            rank0 = pool.submit(links[0].meet)
            host, port = address.split(":")
            while True:
                try:
                    stranger = socket.create_connection((host, int(port)))
                    break
                except ConnectionRefusedError:
                    time.sleep(0.01)
            stranger.sendall(said)
            stranger.close()
            links[1].meet()
            rank0.result()
        assert in_all(links, lambda rank: rank.gather(json.loads("1"))) == [[1, 1]] * 2

    def test_address_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(errors.ConfigError, match="Rank 0 cannot listen at 127"):
                Links(Place(rank=0, size=2, address=address)).meet()

    @pytest.mark.parametrize("address", ["nowhere", "h:", ":1", "h:p"])
    def test_address_that_is_none(self, address):
        with pytest.raises(errors.ConfigError, match="must be HOST:PORT"):
            Links(Place(rank=0, size=2, address=address)).meet()


@pytest.mark.parametrize("text", ["x", "0", "-1", ""])
def test_time_limit_that_is_none(monkeypatch, text):
    monkeypatch.setenv("MONOLITH_RANKS_TIMEOUT_SEC", text)
    with pytest.raises(errors.ConfigError, match="must be a number of seconds above 0"):
        Links(Place(rank=0, size=2, address="h:1"))
