"""What the columns of a file become: ids, dense floats, labels.

The same description reads TFRecords (`monolith.data.examples`), CSV and Parquet, and always ends in
the same batches: a dict with a `tf.RaggedTensor` of int64 for ids and float32 for the rest.

Example:
    >>> schema = [Ids("user"), StringIds("movie", column="title"), Label("click")]
    >>> [(feature.name, feature.source) for feature in schema]
    [('user', 'user'), ('movie', 'title'), ('click', 'click')]
    >>> schema
    [Ids('user'), StringIds('movie', column='title'), Label('click')]
"""

import dataclasses
from collections.abc import Iterable, Mapping

from monolith import errors


@dataclasses.dataclass(frozen=True, repr=False)
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
        if self.column is not None and not isinstance(self.column, str):
            raise errors.ConfigError(
                f"{type(self).__name__}({self.name!r}) reads a column by its name, "
                f"but got column={self.column!r}."
            )

    @property
    def source(self) -> str:
        """The column's name in the file."""
        return self.name if self.column is None else self.column

    def __repr__(self) -> str:
        settings = [
            f"{field.name}={value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default and field.name != "name"
        ]
        return f"{type(self).__name__}({', '.join([repr(self.name), *settings])})"


@dataclasses.dataclass(frozen=True, repr=False)
class AnyIds(Feature):
    """Any number of ids in each row: a ragged int64 tensor. A missing value is a row without ids.

    Attributes:
        optional: Whether files may lack the column altogether, so that no row has ids. Otherwise
            that is an error, because a misspelled name would look the same.
    """

    optional: bool = dataclasses.field(default=False, kw_only=True)


@dataclasses.dataclass(frozen=True, repr=False)
class Ids(AnyIds):
    """Integers that are ids already."""


@dataclasses.dataclass(frozen=True, repr=False)
class StringIds(AnyIds):
    """Strings, hashed to 63 bits as `monolith.data.string_ids` says."""


@dataclasses.dataclass(frozen=True, repr=False)
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
        if not isinstance(self.width, int) or self.width < 1:
            raise errors.ConfigError(
                f"Dense({self.name!r}) needs a positive width but got {self.width}."
            )


@dataclasses.dataclass(frozen=True, repr=False)
class Label(Feature):
    """What is to be predicted, one number in each row: float32 `[batch]`."""


def check_schema(schema: Iterable[Feature]) -> tuple[Feature, ...]:
    """Returns the features, which must be of the classes above and have different names.

    Raises:
        errors.ConfigError: They are not.
    """
    if isinstance(schema, str | Feature | Mapping) or not isinstance(schema, Iterable):
        raise errors.ConfigError(
            f'A schema is a list, as in [Ids("user"), Label("click")], but got {schema!r}.'
        )
    features = tuple(schema)
    if not features:
        raise errors.ConfigError(
            'The schema is empty; say which columns to read, as in [Ids("user"), Label("click")].'
        )
    names = set()
    for feature in features:
        if not isinstance(feature, Ids | StringIds | Dense | Label):
            hint = f"; write for example Ids({feature!r})" if isinstance(feature, str) else ""
            raise errors.ConfigError(
                f"A schema holds Ids, StringIds, Dense and Label but got {feature!r}{hint}."
            )
        if feature.name in names:
            raise errors.ConfigError(
                f"The schema has two features named {feature.name!r}; remove one, or give it "
                f"another name and `column={feature.source!r}`."
            )
        names.add(feature.name)
    return features
