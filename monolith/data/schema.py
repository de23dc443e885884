"""What the columns of a file become: ids, dense floats, labels.

The same description reads TFRecords (`monolith.data.examples`), CSV and Parquet, and always ends in
the same batches: a dict with a `tf.RaggedTensor` of int64 for ids and float32 for the rest.

Example:
    >>> schema = [RaggedIds("user"), StringIds("movie", column="title"), Label("click")]
    >>> [(feature.name, feature.source) for feature in schema]
    [('user', 'user'), ('movie', 'title'), ('click', 'click')]
"""

import dataclasses
from collections.abc import Iterable

from monolith import errors


@dataclasses.dataclass(frozen=True)
class Feature:
    """Base of all features.

    Attributes:
        name: Key in the batches.
        column: The column's name in the file, where it is another one.
    """

    name: str
    column: str | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise errors.ConfigError(
                f"{type(self).__name__} needs a name, which is its key in the batches, "
                f"but got {self.name!r}."
            )

    @property
    def source(self) -> str:
        """The column's name in the file."""
        return self.name if self.column is None else self.column


@dataclasses.dataclass(frozen=True)
class Ids(Feature):
    """Any number of ids in each row: a ragged int64 tensor. A missing value is a row without ids.

    Attributes:
        optional: Whether files may lack the column altogether, so that no row has ids. Otherwise
            that is an error, because a misspelled name would look the same.
    """

    optional: bool = dataclasses.field(default=False, kw_only=True)


@dataclasses.dataclass(frozen=True)
class RaggedIds(Ids):
    """Integers that are ids already."""


@dataclasses.dataclass(frozen=True)
class StringIds(Ids):
    """Strings, hashed to 63 bits as `monolith.data.string_ids` says."""


@dataclasses.dataclass(frozen=True)
class Dense(Feature):
    """Numbers, as many in each row: float32 `[batch, width]`.

    Attributes:
        width: How many.
        default: What all of them are where a value is missing; None refuses such a row.
    """

    width: int = 1
    default: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1:
            raise errors.ConfigError(
                f"Dense({self.name!r}) needs a positive width but got {self.width}."
            )


@dataclasses.dataclass(frozen=True)
class Label(Feature):
    """What is to be predicted, one number in each row: float32 `[batch]`."""


def check_schema(schema: Iterable[Feature]) -> tuple[Feature, ...]:
    """Returns the features, which must be of the classes above and have different names.

    Raises:
        errors.ConfigError: They are not.
    """
    features = tuple(schema)
    if not features:
        raise errors.ConfigError(
            "The schema is empty; say which columns to read, as in "
            '[RaggedIds("user"), Label("click")].'
        )
    names = set()
    for feature in features:
        if not isinstance(feature, RaggedIds | StringIds | Dense | Label):
            hint = f"; write for example RaggedIds({feature!r})" if isinstance(feature, str) else ""
            raise errors.ConfigError(
                f"A schema holds RaggedIds, StringIds, Dense and Label but got {feature!r}{hint}."
            )
        if feature.name in names:
            raise errors.ConfigError(
                f"The schema has two features named {feature.name!r}; give one of them another "
                "name and keep its column with `column=`."
            )
        names.add(feature.name)
    return features
