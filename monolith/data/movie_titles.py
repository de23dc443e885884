"""Readable names for the movies of the synthetic stream.

Example:
    >>> make_titles(["Horror", "Comedy", "Horror"])
    ['The Silent Cellar', 'The Silent Wedding', 'The Silent Graveyard']
"""

from collections import Counter
from collections.abc import Iterable

_NOUNS = {
    "Action": "Bodyguard Convoy Pursuit Shootout Getaway Commando Hijack Fortress",
    "Adventure": "Expedition Island Treasure Summit Caravan Jungle Compass River",
    "Animation": "Penguin Teapot Dragonfly Snowman Robot Hedgehog Kite Toyshop",
    "Comedy": "Wedding Roommate Uncle Holiday Waiter Neighbour Parade Landlord",
    "Crime": "Alibi Heist Informant Witness Verdict Ransom Courier Racket",
    "Documentary": "Glacier Orchestra Harvest Whale Factory Election Desert Archive",
    "Drama": "Promise Letter Daughter Orchard Silence Reunion Winter Harbour",
    "Fantasy": "Sorcerer Dragon Crown Mirror Labyrinth Oracle Kingdom Spell",
    "Horror": "Cellar Graveyard Doll Asylum Swamp Ritual Scarecrow Attic",
    "Romance": "Kiss Sonata Balcony Stranger Summer Bouquet Waltz Postcard",
    "Science Fiction": "Orbit Android Colony Signal Paradox Nebula Starship Clone",
    "Thriller": "Passenger Conspiracy Shadow Cipher Hostage Double Motive Trap",
}
GENRES = tuple(_NOUNS)

_ADJECTIVES = (
    "Silent Golden Broken Hidden Last Crimson Forgotten Endless Midnight Wild Burning Frozen "
    "Secret Distant Velvet Hollow Restless Brave Crooked Electric Gentle Savage Wandering Perfect "
    "Scarlet Lonely Fearless Paper Stolen Invisible Northern Reluctant Shining Bitter Ancient "
    "Lucky Sleepless Painted Second Fallen Quiet Furious Borrowed Little Magnificent Missing "
    "Patient Unlikely"
)


def make_titles(genres: Iterable[str]) -> list[str]:
    """Returns a title for each movie, given its first genre; all of them are different.

    A genre that has run out of words goes on with sequels: `The Silent Cellar 2`.
    """
    adjectives = _ADJECTIVES.split()
    made: Counter[str] = Counter()
    titles = []
    for genre in genres:
        nouns = _NOUNS[genre].split()
        sequel, place = divmod(made[genre], len(nouns) * len(adjectives))
        made[genre] += 1
        adjective, noun = adjectives[place // len(nouns)], nouns[place % len(nouns)]
        titles.append(f"The {adjective} {noun}" + (f" {sequel + 1}" if sequel else ""))
    return titles
