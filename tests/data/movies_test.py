"""The synthetic stream: its structure, its probabilities, and that it is always the same."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from monolith import errors
from monolith.data import movies
from monolith.data.auc import auc, best_auc

SMALL = movies.WorldConfig(num_users=300, num_movies=200, num_examples=100_000)


@pytest.fixture(scope="module")
def world():
    return movies.World(SMALL)


@pytest.fixture(scope="module")
def stream(world):
    return world.examples(0, SMALL.num_examples)


def assert_same(first, second):
    for field in dataclasses.fields(movies.Examples):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(second, field.name))


def test_same_seed_gives_the_same_stream(world):
    again = movies.World(SMALL)
    assert_same(world.examples(5_000, 20_000), again.examples(5_000, 20_000))
    assert_same(world.held_out(1_000), again.held_out(1_000))
    assert world.titles == again.titles


def test_another_seed_gives_another_stream(world):
    other = movies.World(dataclasses.replace(SMALL, seed=2))
    assert not np.array_equal(other.examples(0, 100).user, world.examples(0, 100).user)


def test_any_part_and_batch_size_give_the_same_examples(world, stream):
    assert_same(world.examples(8_000, 17_000), stream[8_000:17_000])
    for batch_size in (64, 1000, 10_000):
        batches = list(world.batches(batch_size, start=5_000, stop=45_500))
        assert {len(batch) for batch in batches} == {batch_size}
        together = movies._concat(batches)
        assert len(together) == 40_500 - 40_500 % batch_size
        assert_same(together, stream[5_000 : 5_000 + len(together)])


def test_held_out_examples_are_not_in_the_stream(world, stream):
    held_out = world.held_out(10_000)
    assert len(held_out) == 10_000
    last = stream[-10_000:]
    assert not np.array_equal(held_out.user, last.user)
    # They come from the same world, though.
    same = world.click_probability(held_out.user, held_out.movie)
    np.testing.assert_array_equal(held_out.probability, same)


def test_ids_are_scattered_over_63_bits_and_different():
    world = movies.World()
    ids = np.concatenate([world.user_ids, world.movie_ids, world.genre_ids])
    assert len(np.unique(ids)) == len(ids)
    assert ids.dtype == np.int64
    assert ids.min() >= 0
    # Each bit is set in about half of the ids: sd of the share is 0.5 / sqrt(12012) = 0.0046.
    shares = [(ids >> bit & 1).mean() for bit in range(63)]
    assert 0.48 < min(shares) < max(shares) < 0.52


def test_titles_are_different_and_fit_the_genres():
    world = movies.World()
    assert len(set(world.titles)) == world.config.num_movies
    horror = [m for m in range(world.config.num_movies) if world.genres(m)[0] == "Horror"]
    assert any("Graveyard" in world.titles[movie] for movie in horror)
    assert all(1 <= len(world.genres(m)) <= 3 for m in range(100))


def test_probability_follows_from_bias_quality_and_taste(world):
    user, movie = 17, 33
    genres = world.genres(movie)
    # Directions on a wheel of twelve, 30 degrees apart.
    angles = [2 * np.pi * movies._WHEEL.index(genre) / 12 for genre in genres]
    direction = np.mean([[np.cos(a), np.sin(a)] for a in angles], axis=0)
    logit = SMALL.base_logit + world._user_bias[user] + world._movie_quality[movie]
    logit += world._user_taste[user] @ direction
    expected = 1 / (1 + np.exp(-logit))
    assert world.click_probability(user, movie) == pytest.approx(expected)
    table = world.click_probability(np.arange(300)[:, None], np.arange(200))
    assert table.shape == (300, 200)
    assert table[user, movie] == pytest.approx(expected)


def test_users_click_more_on_their_favourite_genres(world):
    likes = np.zeros(2)
    for user in range(100):
        favourite = world.favourite_genres(user, 12)
        fits = [world.genres(m)[0] in favourite[:3] for m in range(200)]
        clashes = [world.genres(m)[0] in favourite[-3:] for m in range(200)]
        probability = world.click_probability(user, np.arange(200))
        likes += [probability[fits].mean(), probability[clashes].mean()]
    assert likes[0] > 1.5 * likes[1]


def test_labels_are_drawn_with_their_probability(stream):
    # Within ten bins, the share of clicks is the mean probability: 4 standard deviations.
    for chunk in np.array_split(np.argsort(stream.probability), 10):
        p = stream.probability[chunk]
        sd = np.sqrt((p * (1 - p)).sum()) / len(p)
        assert stream.label[chunk].mean() == pytest.approx(p.mean(), abs=4 * sd)
    assert set(np.unique(stream.label)) == {0, 1}
    assert stream.label.dtype == np.float32


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_base_rate_and_best_auc_leave_something_to_learn(seed):
    world = movies.World(movies.WorldConfig(seed=seed))
    held_out = world.held_out(50_000)
    assert 0.2 < held_out.label.mean() < 0.5
    best = best_auc(held_out.probability)
    assert 0.85 < best < 0.95
    assert auc(held_out.probability, held_out.label) == pytest.approx(best, abs=0.01)


def test_movies_appear_at_their_release_rise_and_fade(world):
    movie = int(np.argmin(abs(world.release - 0.3)))
    release, peak = world.release[movie], SMALL.peak_age
    times = release + peak * np.array([-0.5, 0, 0.25, 1, 3, 6])
    shown = np.array([world.popularity(time)[movie] for time in times])
    assert shown[0] == shown[1] == 0
    assert shown[1] < shown[2] < shown[3] > shown[4] > shown[5]


def test_tastes_turn_around_the_wheel():
    turning = dataclasses.replace(SMALL, taste_turns=2.0)
    world, still = movies.World(turning), movies.World(SMALL)
    users, shown = np.arange(300), np.arange(200)[:, None]
    at = [world.click_probability(users, shown, time) for time in (0, 0.125, 0.25, 0.5)]
    np.testing.assert_allclose(at[0], still.click_probability(users, shown))
    np.testing.assert_allclose(at[3], at[0])  # A whole turn.

    def logit(probability):
        return np.log(probability / (1 - probability))

    # After half a turn, what taste has added is taken away: the mean is what does not turn.
    fixed = (logit(at[0]) + logit(at[2])) / 2
    taste = logit(at[0]) - fixed
    assert taste.std() > 0.5
    # A quarter of a turn away, tastes have nothing to do with those of before.
    assert abs(np.corrcoef(taste.ravel(), (logit(at[1]) - fixed).ravel())[0, 1]) < 0.2


def test_stream_follows_tastes_that_turn():
    world = movies.World(dataclasses.replace(SMALL, taste_turns=2.0))
    block = world.examples(8192 * 3, 8192 * 4)
    time = 8192 * 3 / SMALL.num_examples
    expected = world.click_probability(block.user, block.movie, time)
    np.testing.assert_array_equal(block.probability, expected)
    assert not np.allclose(block.probability, world.click_probability(block.user, block.movie))


def test_a_place_in_a_stream_counts_for_the_same_turns_only():
    def describe(turns):
        config = dataclasses.replace(SMALL, taste_turns=turns)
        return movies._Stream(movies.World(config), 0, 1000, None, False).describe()

    assert describe(0.0) != describe(1.0) != describe(2.0)
    # What checkpoints of before have.
    assert describe(0.0) == f"movies {SMALL} 0 1000 None False"
    assert "taste_turns" not in describe(0.0)


def test_stream_shows_movies_as_popularity_says(world, stream):
    block = stream[8192 * 6 : 8192 * 7]
    expected = 8192 * world.popularity(8192 * 6 / SMALL.num_examples)
    counts = np.bincount(block.movie, minlength=200)
    assert (counts[expected == 0] == 0).all()
    likely = expected > 5
    # Chi-square per degree of freedom; its sd is sqrt(2 / movies), about 0.15.
    chi_square = ((counts - expected)[likely] ** 2 / expected[likely]).mean()
    assert 0.3 < chi_square < 1.7


def test_new_movies_keep_coming_and_old_ones_fade(world, stream):
    early = set(np.unique(stream[:10_000].movie))
    late = stream[-10_000:].movie
    assert np.isin(late, list(early), invert=True).mean() > 0.5
    for start in range(0, SMALL.num_examples, 8192):
        block = stream[start : start + 8192]
        assert (world.release[block.movie] < start / SMALL.num_examples).all()


def test_smallest_world_has_something_to_show_at_all_times():
    tiny = movies.World(movies.WorldConfig(num_users=1, num_movies=1, peak_age=0.01))
    for time in (0, 0.5, 1):
        assert tiny.popularity(time).tolist() == [1]


def test_few_users_are_active_and_many_are_rare(stream):
    counts = np.sort(np.bincount(stream.user, minlength=300))[::-1]
    # Zipf with 0.8: the first of 300 has 1 / sum(k ** -0.8), the median one 150 ** -0.8 of that.
    first = 1 / (np.arange(1, 301) ** -0.8).sum()
    assert counts[0] == pytest.approx(first * 100_000, rel=0.1)
    assert counts[150] == pytest.approx(first * 151**-0.8 * 100_000, rel=0.2)


def test_dataset_has_the_ids_and_labels_of_the_examples(world, stream):
    batches = list(movies.dataset(world, batch_size=100, start=8_100, stop=8_450))
    assert len(batches) == 3
    rows = stream[8_100:8_400]
    for name, ids, numbers in (
        ("user", world.user_ids, rows.user),
        ("movie", world.movie_ids, rows.movie),
    ):
        found = [row for batch in batches for row in batch[name].to_list()]
        assert found == [[id_] for id_ in ids[numbers].tolist()]
    genre_id = dict(zip(movies.GENRES, world.genre_ids.tolist(), strict=True))
    found = [row for batch in batches for row in batch["genres"].to_list()]
    assert found == [[genre_id[genre] for genre in world.genres(m)] for m in rows.movie]
    labels = np.concatenate([batch["label"] for batch in batches])
    np.testing.assert_array_equal(labels, rows.label)


def test_held_out_dataset_with_probabilities(world):
    batches = list(movies.dataset(world, batch_size=50, held_out=220, with_probability=True))
    assert len(batches) == 4
    found = np.concatenate([batch["probability"] for batch in batches])
    expected = world.held_out(220).probability[:200, None].astype(np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.usefixtures("graph_mode")
def test_dataset_works_in_a_graph(world, stream):
    dataset = movies.dataset(world, batch_size=10, stop=20)
    batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
    assert batch["label"].shape == [10]
    with tf.compat.v1.Session() as session:
        labels = [session.run(batch["label"]).tolist() for _ in range(2)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(batch["label"])
    assert labels[0] + labels[1] == stream.label[:20].tolist()


def test_bad_settings_are_refused(world):
    with pytest.raises(errors.ConfigError, match="num_users must be positive, got 0"):
        movies.WorldConfig(num_users=0)
    with pytest.raises(errors.ConfigError, match=r"peak_age must be at least 0.01, got 0"):
        movies.WorldConfig(peak_age=0)
    with pytest.raises(errors.ConfigError, match="num_examples must be positive, got 0"):
        world.held_out(0)
    for start, stop in ((0, 100_001), (-1, 5), (7, 7)):
        with pytest.raises(errors.ConfigError, match=f"Examples {start} to {stop} do not lie"):
            world.examples(start, stop)
    with pytest.raises(errors.ConfigError, match="do not lie within the stream"):
        movies.dataset(world, stop=200_000)
    for too_few in ({"start": 100, "stop": 200}, {"held_out": 500}):
        with pytest.raises(errors.ConfigError, match="Less than one batch of 512 examples"):
            movies.dataset(world, **too_few)
