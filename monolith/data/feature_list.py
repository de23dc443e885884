"""A file that lists features: names, slots, and how they are made.

One feature per line, as `key=value` with spaces between; `feature_name` and `slot` are needed, all
other keys are kept as they are. What stands behind `#` is a comment.

Example:
    >>> import pathlib
    >>> _ = pathlib.Path("features.conf").write_text(
    ...     "feature_name=fc_user slot=1 method=vector\\nfeature_name=f_page slot=305\\n"
    ... )
    >>> features = FeatureList.parse("features.conf")
    >>> features["user"].slot, features[305].name
    (1, 'f_page')
    >>> features.get_feature_name_and_slot("page")
    ('f_page', 305)
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping

import tensorflow as tf

from monolith import errors
from monolith.data import fids, slot_names


@dataclasses.dataclass(frozen=True)
class ListedFeature:
    """A line of the list.

    Attributes:
        name: What it is called.
        slot: The number in its fids.
        settings: All other keys.
    """

    name: str
    slot: int
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)


class FeatureList:
    """Features by name and by slot; the one that was parsed last names the slots of parsers."""

    _parsed: "FeatureList | None" = None

    def __init__(self) -> None:
        self._by_name: dict[str, ListedFeature] = {}
        self._by_slot: dict[int, ListedFeature] = {}

    @classmethod
    def parse(cls, fname: str | os.PathLike[str]) -> "FeatureList":
        """Reads a list from a file.

        Raises:
            errors.DataError: There is no such file, or a line is no feature.
        """
        path = os.fspath(fname)
        if not tf.io.gfile.exists(path):
            raise errors.DataError(f"There is no list of features {path!r}; check the path.")
        features = cls()
        with tf.io.gfile.GFile(path) as file:
            for number, line in enumerate(file.read().splitlines(), 1):
                text = line.partition("#")[0].strip()
                if text:
                    features.add_feature(_parse_line(text, f"{path!r}, line {number}"))
        FeatureList._parsed = features
        return features

    @classmethod
    def get_parsed(cls) -> "FeatureList | None":
        """Returns the list that was parsed last, None if there is none."""
        return FeatureList._parsed

    @classmethod
    def forget_parsed(cls) -> None:
        """Lets parsers name slots by their numbers again."""
        FeatureList._parsed = None

    def add_feature(self, feature: ListedFeature) -> None:
        """Adds a feature, whose name and slot must be new.

        Raises:
            errors.DataError: One of them is there already.
        """
        if feature.name in self._by_name or feature.slot in self._by_slot:
            raise errors.DataError(
                f"Feature {feature.name!r} of slot {feature.slot} is in the list already, by its "
                "name or by its slot; list it once."
            )
        self._by_name[feature.name] = feature
        self._by_slot[feature.slot] = feature

    def get(self, item: str | int) -> ListedFeature | None:
        """Returns the feature of a slot, or of a name, without or with `f_` or `fc_` before it."""
        if isinstance(item, int):
            return self._by_slot.get(item)
        names = (item, f"f_{item}", f"fc_{item}")
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    def __getitem__(self, item: str | int) -> ListedFeature:
        found = self.get(item)
        if found is None:
            raise KeyError(f"{item!r} is not in the list of {len(self)} features.")
        return found

    def __contains__(self, item: object) -> bool:
        return isinstance(item, str | int) and self.get(item) is not None

    def __iter__(self) -> Iterator[ListedFeature]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get_feature_name_and_slot(self, item: str | int) -> tuple[str, int | None]:
        """Returns name and slot; of what is not listed, what `item` itself tells."""
        found = self.get(item)
        if found is not None:
            return found.name, found.slot
        return (slot_names.name_slot(item), item) if isinstance(item, int) else (item, None)


def get_feature_name_and_slot(item: str | int) -> tuple[str, int | None]:
    """Returns name and slot of a feature, by the list that was parsed last, if there is one."""
    return (FeatureList.get_parsed() or FeatureList()).get_feature_name_and_slot(item)


def _parse_line(text: str, where: str) -> ListedFeature:
    settings: dict[str, str] = {}
    for pair in text.split():
        key, is_pair, value = pair.partition("=")
        if not is_pair or not key:
            raise errors.DataError(
                f"{where} has {pair!r}, but a feature is listed as key=value with spaces between."
            )
        settings[key] = value
    name, slot = settings.pop("feature_name", ""), settings.pop("slot", "")
    if not name or not slot.isdecimal() or int(slot) >= fids.NUM_SLOTS_V2:
        raise errors.DataError(
            f"{where} must have feature_name=NAME and slot=NUMBER, from 0 to "
            f"{fids.NUM_SLOTS_V2 - 1}; it is {text!r}."
        )
    return ListedFeature(name, int(slot), settings)
