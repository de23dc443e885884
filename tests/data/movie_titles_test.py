"""Names of movies."""

import pytest

from monolith.data.movie_titles import GENRES, make_titles


def test_titles_of_a_genre_have_its_words():
    horror, comedy = make_titles(["Horror", "Comedy"])
    assert horror.split()[-1] in {"Cellar", "Graveyard", "Doll", "Asylum"}
    assert comedy.split()[-1] in {"Wedding", "Roommate", "Uncle", "Holiday"}


@pytest.mark.parametrize("genre", GENRES)
def test_a_genre_that_has_run_out_of_words_goes_on_with_sequels(genre):
    first = make_titles([genre])[0]
    titles = make_titles([genre] * 1000)
    assert len(set(titles)) == 1000
    # 8 nouns and 48 adjectives make 384 titles, then all come again with a number.
    assert titles[384] == f"{first} 2"
    assert titles[768] == f"{first} 3"


def test_titles_depend_on_the_genres_before_only():
    assert make_titles(["Drama", "Crime", "Drama"])[:2] == make_titles(["Drama", "Crime"])
