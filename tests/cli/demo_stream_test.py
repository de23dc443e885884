"""The audience of `monolith demo online`, with a server that is a dict."""

import json
import time

import numpy as np
import pytest

from monolith.cli import demo_stream
from monolith.data import auc, movies

HOUR = demo_stream.HOUR
PATIENCE_SEC = 60


@pytest.fixture(scope="module")
def world():
    return movies.World(movies.WorldConfig(num_users=50, num_movies=20, num_examples=2 * HOUR))


class KnowingServer:
    """Knows users from some time after they were written; the online model is right."""

    def __init__(self, world, directory):
        self._directory = directory
        self._users = {int(user): number for number, user in enumerate(world.user_ids)}
        self._world = world

    def ask(self, model, user_ids, movie):
        if len(user_ids) == 2:  # A probe and a stranger.
            text = "".join(path.read_text() for path in self._directory.glob("clicks-*.jsonl"))
            is_known = f'"user": {user_ids[0]},' in text
            return np.array([0.5 + 0.1 * is_known, 0.5], np.float32)
        users = np.array([self._users[int(user)] for user in user_ids])
        probability = self._world.click_probability(users, movie)
        return probability if model == "online" else np.full(len(movie), 0.5)


def make_audience(world, directory, client, **settings):
    given = {"start": HOUR, "num_minutes": 4, "minute_sec": 0.1, "show": lambda record: None}
    return demo_stream.Audience(world, directory=directory, client=client, **{**given, **settings})


def wait_for_the_end(audience, directory):
    deadline_sec = time.monotonic() + PATIENCE_SEC
    while not (directory / "stop").exists():
        assert time.monotonic() < deadline_sec
        time.sleep(0.02)
    audience.close()


def test_examples_are_asked_for_and_then_written(world, tmp_path):
    shown = []
    audience = make_audience(
        world,
        tmp_path,
        KnowingServer(world, tmp_path),
        show=lambda record: shown.append(record.num_minutes),
    )
    audience.start()
    wait_for_the_end(audience, tmp_path)
    assert shown == [1, 2, 3, 4]
    lines = (tmp_path / "clicks-0000.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    expected = world.examples(HOUR, HOUR + 4 * demo_stream.MINUTE)
    assert [row["label"] for row in rows] == expected.label.tolist()
    assert [row["movie"] for row in rows] == world.movie_ids[expected.movie].tolist()
    assert rows[0]["genres"] == [
        int(world.genre_ids[genre]) for genre in world.movie_genres[expected.movie[0]] if genre >= 0
    ]
    # Of each minute, at most the last one is another user, who has never been there.
    users = world.user_ids[expected.user].tolist()
    others = [i for i, row in enumerate(rows) if row["user"] != users[i]]
    assert others
    assert all((i + 1) % demo_stream.MINUTE == 0 for i in others)
    assert audience.record.lags_sec
    found = audience.record.compute_auc(0, 4)
    assert found["online"] == pytest.approx(found["best"])
    assert found["best"] == pytest.approx(auc.best_auc(expected.probability))
    assert found["hourly"] == found["frozen"] == pytest.approx(0.5)


def test_each_hour_has_a_file(world, tmp_path):
    audience = make_audience(
        world, tmp_path, KnowingServer(world, tmp_path), start=0, num_minutes=61, minute_sec=0.0
    )
    audience.start()
    wait_for_the_end(audience, tmp_path)
    assert [path.name for path in sorted(tmp_path.glob("clicks-*"))] == [
        "clicks-0000.jsonl",
        "clicks-0001.jsonl",
    ]
    assert len(audience.record.compute_windows(30)) == 2


def test_it_can_be_ended_early(world, tmp_path):
    audience = make_audience(world, tmp_path, KnowingServer(world, tmp_path), minute_sec=3600.0)
    audience.start()
    deadline_sec = time.monotonic() + PATIENCE_SEC
    while not audience.record.num_minutes:
        assert time.monotonic() < deadline_sec
        time.sleep(0.01)
    audience.close()
    assert audience.record.num_minutes == 1
    assert (tmp_path / "stop").exists()


def test_a_server_that_is_gone_ends_the_stream(world, tmp_path):
    class Gone:
        def ask(self, model, user_ids, movie):
            raise ConnectionError("nobody is there")

    audience = make_audience(world, tmp_path, Gone())
    audience.start()
    with pytest.raises(ConnectionError, match="nobody is there"):
        wait_for_the_end(audience, tmp_path)


def test_a_record_without_lags_has_none():
    assert demo_stream.Record().describe_lag() is None


def test_one_that_has_not_begun_ends(world, tmp_path):
    make_audience(world, tmp_path, KnowingServer(world, tmp_path)).close()
