"""A synthetic stream of movie clicks whose every probability is known.

Users are shown movies and click, or do not. How likely a click is follows from three things that a
model has to learn from ids alone: how easily the user clicks, how good the movie is, and how the
user's taste fits the movie's genres. Genres lie on a wheel (Comedy beside Romance, Horror beside
Thriller), and a user's taste is a direction and a strength on it:

    logit = base + user_bias[u] + movie_quality[m] + user_taste[u] . mean(direction of m's genres)

Movies appear while the stream runs: nobody is shown one before its release, then its popularity
rises, and fades. So a model meets ids that it has never seen, all the time. Tastes may turn on the
wheel meanwhile, so that what was learned grows old. Because the probabilities are known, the best
AUC that any model can reach is computed, not guessed.

The stream depends on the configuration (and NumPy's generator) alone, not on the batch size, and
each part of it can be made without the parts before.

Example:
    >>> world = World(WorldConfig(num_users=100, num_movies=50, num_examples=10_000))
    >>> batch = next(iter(dataset(world, batch_size=4)))
    >>> {name: tensor.shape.as_list() for name, tensor in batch.items()}
    {'user': [4, None], 'movie': [4, None], 'genres': [4, None], 'label': [4]}
    >>> 0.5 < best_auc(world.held_out(1000).probability) < 1
    True
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import columns, positions, seekable, sources
from monolith.data.auc import best_auc
from monolith.data.movie_titles import GENRES, make_titles
from monolith.data.schema import Dense, Feature, Ids, Label

__all__ = ["GENRES", "Examples", "World", "WorldConfig", "best_auc", "dataset"]

# The order around the wheel: neighbours please the same people.
_WHEEL = (
    "Comedy",
    "Romance",
    "Drama",
    "Documentary",
    "Crime",
    "Thriller",
    "Horror",
    "Science Fiction",
    "Fantasy",
    "Action",
    "Adventure",
    "Animation",
)

# Examples are drawn in blocks of this size, each from a random generator of its own.
_BLOCK = 8192
_STREAM, _HELD_OUT = 0, 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """The size and the structure of a world.

    The defaults are such that a small model (embeddings of 32, layers of 256 and 64) comes close to
    the best AUC in one pass, and that the same model with ids hashed into a tenth as many buckets
    stays far below.

    Attributes:
        seed: Another seed is another world.
        num_users: How many users there are, from the start.
        num_movies: How many movies there are by the end.
        num_examples: Length of the stream.
        base_logit: Sets the share of clicks.
        user_spread: Standard deviation of the users' biases, in logits.
        movie_spread: Standard deviation of the movies' qualities.
        taste_spread: Standard deviation of what taste adds for a movie of one genre.
        activity_exponent: The k-th most active user is met in proportion to k to minus this.
        popularity_exponent: The same for movies of the same age.
        peak_age: When a movie is most popular, after its release, as a share of the stream.
        taste_turns: How often all tastes turn around the wheel during the stream.
    """

    seed: int = 1
    num_users: int = 10_000
    num_movies: int = 2_000
    num_examples: int = 1_200_000
    base_logit: float = -1.0
    user_spread: float = 1.8
    movie_spread: float = 1.8
    taste_spread: float = 1.5
    activity_exponent: float = 0.8
    popularity_exponent: float = 0.8
    peak_age: float = 0.15
    # Not in the text, which positions in streams of before are compared with.
    taste_turns: float = dataclasses.field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        for name in ("num_users", "num_movies", "num_examples"):
            if getattr(self, name) <= 0:
                raise errors.ConfigError(f"{name} must be positive, got {getattr(self, name)}.")
        if self.peak_age < 0.01:  # Below, there may be times when no movie is shown at all.
            raise errors.ConfigError(f"peak_age must be at least 0.01, got {self.peak_age}.")


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples in the order of the stream, all arrays `[n]`.

    Attributes:
        user: Number of the user, from 0; its id is `world.user_ids[user]`.
        movie: Number of the movie, likewise.
        probability: How likely the click was.
        label: 1 if it happened, else 0.
    """

    user: np.ndarray
    movie: np.ndarray
    probability: np.ndarray
    label: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, rows: slice) -> "Examples":
        return Examples(*(column[rows] for column in vars(self).values()))


class World:
    """Users and movies, and what each user thinks of each movie.

    Attributes:
        config: What it was made from.
        user_ids: 63-bit id of each user, int64 `[num_users]`.
        movie_ids: Id of each movie, int64 `[num_movies]`.
        genre_ids: Id of each genre of `GENRES`, int64 `[12]`.
        titles: Name of each movie.
        release: When each movie appears, as a share of the stream; some are older than the stream.
        movie_genres: Numbers of each movie's genres, `[num_movies, 3]`, -1 where it has fewer.
    """

    def __init__(self, config: WorldConfig | None = None) -> None:
        self.config = config = config or WorldConfig()
        rng = np.random.default_rng(config.seed)
        num_users, num_movies = config.num_users, config.num_movies

        self.user_ids = _scramble(np.arange(num_users), salt=1)
        self._user_bias = config.user_spread * rng.standard_normal(num_users)
        self._user_taste = config.taste_spread * rng.standard_normal((num_users, 2))
        self._activity = np.cumsum(_zipf(rng, num_users, config.activity_exponent))

        self.movie_ids = _scramble(np.arange(num_movies), salt=2)
        self._movie_quality = config.movie_spread * rng.standard_normal(num_movies)
        self._appeal = _zipf(rng, num_movies, config.popularity_exponent)
        # Some released before, so that there is something to show at the start.
        self.release = np.sort(rng.uniform(-3 * config.peak_age, 1, num_movies))
        self.release[0] = -config.peak_age  # Whatever the others do, one is there.

        self.genre_ids = _scramble(np.arange(len(GENRES)), salt=3)
        self.movie_genres = _draw_genres(rng, num_movies)
        self._movie_direction = _directions(self.movie_genres)
        self.titles = make_titles(GENRES[genre] for genre in self.movie_genres[:, 0])

    def click_probability(self, user: Any, movie: Any, time: float = 0.0) -> np.ndarray:
        """Returns how likely users click on movies, given their numbers; shapes are broadcast.

        Args:
            user: Numbers of users.
            movie: Numbers of movies.
            time: A share of the stream; it counts where tastes turn.
        """
        direction = self._movie_direction[movie]
        if self.config.taste_turns:
            direction = direction @ _rotation(2 * np.pi * self.config.taste_turns * time)
        taste = (self._user_taste[user] * direction).sum(-1)
        logit = self.config.base_logit + self._user_bias[user] + self._movie_quality[movie] + taste
        return 1 / (1 + np.exp(-logit))

    def popularity(self, time: float) -> np.ndarray:
        """Returns how often each movie is shown at `time`, a share of the stream; the sum is 1."""
        age = np.maximum(time - self.release, 0) / self.config.peak_age
        weights = self._appeal * age * np.exp(-age)
        return weights / weights.sum()

    def genres(self, movie: int) -> list[str]:
        """Returns the names of a movie's genres."""
        return [GENRES[genre] for genre in self.movie_genres[movie] if genre >= 0]

    def favourite_genres(self, user: int, count: int = 3) -> list[str]:
        """Returns the names of the genres that a user likes most, the dearest first."""
        fit = _directions(np.arange(len(GENRES))[:, None]) @ self._user_taste[user]
        return [GENRES[genre] for genre in np.argsort(-fit)[:count]]

    def examples(self, start: int, stop: int) -> Examples:
        """Returns a part of the stream.

        Raises:
            errors.ConfigError: It does not lie within the stream.
        """
        self.check_range(start, stop)
        first = start // _BLOCK
        blocks = [self._block(number) for number in range(first, -(-stop // _BLOCK))]
        return _concat(blocks)[start - first * _BLOCK : stop - first * _BLOCK]

    def held_out(self, num_examples: int) -> Examples:
        """Returns examples that are not part of the stream, as they come right after its end."""
        if num_examples < 1:
            raise errors.ConfigError(f"num_examples must be positive, got {num_examples}.")
        blocks = [
            self._draw(1.0, (self.config.seed, _HELD_OUT, number))
            for number in range(-(-num_examples // _BLOCK))
        ]
        return _concat(blocks)[:num_examples]

    def batches(
        self, batch_size: int, start: int = 0, stop: int | None = None
    ) -> Iterator[Examples]:
        """Yields a part of the stream, all of it by default, in batches of one size.

        What is left over at the end, less than a batch, is not part of it.
        """
        stop = self.config.num_examples if stop is None else stop
        self.check_range(start, stop)
        rest: list[Examples] = []
        position = start
        while position < stop:
            end = min((position // _BLOCK + 1) * _BLOCK, stop)
            rows = _concat([*rest, self.examples(position, end)])
            whole = len(rows) - len(rows) % batch_size
            yield from (rows[i : i + batch_size] for i in range(0, whole, batch_size))
            rest = [rows[whole:]]
            position = end

    def features(self, examples: Examples) -> dict[str, columns.Column]:
        """Returns what a model may know of the examples, by id, and their labels."""
        genres = self.movie_genres[examples.movie]
        present = genres >= 0
        one = np.ones(len(examples), np.int64)
        return {
            "user": columns.Ragged(self.user_ids[examples.user], one),
            "movie": columns.Ragged(self.movie_ids[examples.movie], one),
            "genres": columns.Ragged(self.genre_ids[genres[present]], present.sum(axis=1)),
            "label": examples.label,
        }

    def _block(self, number: int) -> Examples:
        # The world stands still for the length of a block.
        time = number * _BLOCK / self.config.num_examples
        return self._draw(time, (self.config.seed, _STREAM, number))

    def _draw(self, time: float, seed: tuple[int, ...]) -> Examples:
        rng = np.random.default_rng(seed)
        popularity = np.cumsum(self.popularity(time))
        uniform = rng.random((3, _BLOCK))
        user = np.searchsorted(self._activity, uniform[0] * self._activity[-1], side="right")
        movie = np.searchsorted(popularity, uniform[1] * popularity[-1], side="right")
        probability = self.click_probability(user, movie, time)
        label = (uniform[2] < probability).astype(np.float32)
        return Examples(user, movie, probability, label)

    def check_range(self, start: int, stop: int) -> None:
        """Raises a `ConfigError` unless the stream has these examples."""
        if not 0 <= start < stop <= self.config.num_examples:
            raise errors.ConfigError(
                f"Examples {start} to {stop} do not lie within the stream, which has "
                f"{self.config.num_examples} of them; make the world with more `num_examples`."
            )


def dataset(
    world: World,
    *,
    batch_size: int = 512,
    start: int = 0,
    stop: int | None = None,
    held_out: int | None = None,
    with_probability: bool = False,
) -> tf.data.Dataset:
    """Makes the stream, or examples from right after it, a dataset.

    Args:
        world: Whose users and movies.
        batch_size: Size of all batches; what is left over at the end is dropped.
        start: Where in the stream to begin.
        stop: Where to end; None is the end of the stream.
        held_out: This many examples that are not part of the stream instead, for evaluation.
        with_probability: Whether batches have the click's true probability, too, float32
            `[batch, 1]`, to compute the best AUC with. It is not for the model to see.

    Returns:
        Dicts with ragged int64 ids `user`, `movie` and `genres`, and float32 `label`, `[batch]`.

    Raises:
        errors.ConfigError: `start` to `stop` is not within the stream, or less than one batch.
    """
    stop = world.config.num_examples if stop is None else stop
    world.check_range(start, stop)
    if (stop - start if held_out is None else held_out) < batch_size:
        raise errors.ConfigError(
            f"Less than one batch of {batch_size} examples is asked for; make `batch_size` smaller."
        )
    batching = columns.Batching(batch_size=batch_size, drop_remainder=True)
    source = _Stream(world, start, stop, held_out, with_probability)
    return seekable.make_dataset(source, batching)


@dataclasses.dataclass(frozen=True)
class _Stream(sources.Source):
    """Examples of a world as rows; a place is the number of an example."""

    world: World
    first: int
    stop: int
    held_out: int | None
    with_probability: bool

    def read(self, place: positions.Place) -> Iterator[positions.Chunk]:
        [number] = place
        if self.held_out is not None:
            examples = self.world.held_out(self.held_out)[number:]
            if len(examples):
                yield self._make_rows(examples), (self.held_out,)
            return
        number += self.first
        while number < self.stop:
            end = min((number // _BLOCK + 1) * _BLOCK, self.stop)
            yield self._make_rows(self.world.examples(number, end)), (end - self.first,)
            number = end

    def describe(self) -> str:
        config = self.world.config
        turns = f" {config.taste_turns}" if config.taste_turns else ""
        return (
            f"movies {config}{turns} {self.first} {self.stop} {self.held_out} "
            f"{self.with_probability}"
        )

    def make_layout(self, rows: int | None) -> columns.Layout:
        features: list[Feature] = [Ids("user"), Ids("movie"), Ids("genres"), Label("label")]
        if self.with_probability:
            features.append(Dense("probability"))
        return columns.FeatureLayout(features, rows)

    def _make_rows(self, examples: Examples) -> columns.Columns:
        probability = examples.probability.astype(np.float32)[:, None]
        return {**self.world.features(examples), "probability": probability}


def _rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _scramble(numbers: np.ndarray, salt: int) -> np.ndarray:
    """Spreads numbers over 63 bits, no two to the same id, as ids in the wild are."""
    bits = np.uint64(63)
    mask = (np.uint64(1) << bits) - np.uint64(1)
    ids = numbers.astype(np.uint64) + (np.uint64(salt) << np.uint64(40))
    # Odd factors and shifts by half are one to one modulo 2^63.
    for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        ids = (ids * np.uint64(factor)) & mask
        ids ^= ids >> np.uint64(32)
    return ids.astype(np.int64)


def _zipf(rng: np.random.Generator, size: int, exponent: float) -> np.ndarray:
    return rng.permutation(np.arange(1, size + 1, dtype=np.float64) ** -exponent)


def _draw_genres(rng: np.random.Generator, num_movies: int) -> np.ndarray:
    """Draws one to three genres that lie close together on the wheel."""
    wheel = np.array([GENRES.index(name) for name in _WHEEL])
    first = rng.integers(len(wheel), size=num_movies)
    count = rng.integers(1, 4, size=num_movies)
    side = rng.choice([-1, 1], size=num_movies)
    places = np.stack([first, first + side, first + 2 * side], axis=1)
    genres = wheel[places % len(wheel)]
    return np.where(np.arange(3) < count[:, None], genres, -1)


def _directions(genres: np.ndarray) -> np.ndarray:
    """Returns the mean direction of each row's genres on the wheel, `[rows, 2]`."""
    angle = np.array([2 * np.pi * _WHEEL.index(name) / len(_WHEEL) for name in GENRES])
    direction = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    present = genres >= 0
    return (direction[genres] * present[..., None]).sum(1) / present.sum(1, keepdims=True)


def _concat(parts: list[Examples]) -> Examples:
    if len(parts) == 1:
        return parts[0]
    arrays = zip(*(vars(part).values() for part in parts), strict=True)
    return Examples(*map(np.concatenate, arrays))
