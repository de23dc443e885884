"""What records are and how files of them are compressed, by the names of the original system.

Example:
    >>> choose_types(PbType.EXAMPLEBATCH, None)
    ('examplebatch', 'example')
"""

import enum

from monolith import errors
from monolith.data import conversions


class FeaturePruningType:
    """Which features of a record are left out before it is parsed."""

    AS_IS = 0
    PRUNING_FEATURE = 1
    PRUNING_RAW_FEATURE = 2


class PbType(enum.Enum):
    """What a record is."""

    INSTANCE = 1
    EXAMPLEBATCH = 2
    EXAMPLE = 3
    PLAINTEXT = 4

    def to_name(self) -> str:
        """Returns its name in lower case."""
        return self.name.lower()


class CompressType(enum.Enum):
    """How a file is compressed; of `UNKNOW` the name tells: `.gz` is gzip."""

    UNKNOW = 0
    NO = 1
    SNAPPY = 2
    ZSTD = 3
    ZLIB = 4
    GZIP = 5


# What a file is read as; others are refused.
COMPRESSIONS = {
    CompressType.UNKNOW: "",
    CompressType.NO: "none",
    CompressType.ZLIB: "zlib",
    CompressType.GZIP: "gzip",
}


def choose_types(source: PbType | None, target: PbType | None) -> tuple[str, str]:
    """Returns the names of what records are and of what elements are to be.

    Raises:
        errors.ConfigError: The one does not become the other.
    """
    source = source or PbType.INSTANCE
    if target is None:
        is_kept = source in (PbType.INSTANCE, PbType.PLAINTEXT)
        target = source if is_kept else PbType.EXAMPLE
    # Refused here, not when the first record is read.
    conversions.make_converter(source.to_name(), target.to_name())
    return source.to_name(), target.to_name()


def find_type(name: str | None) -> PbType:
    """Returns the type of that name; None is an Instance.

    Raises:
        errors.ConfigError: There is none.
    """
    if name is None:
        return PbType.INSTANCE
    for found in PbType:
        if found.to_name() == name.lower().replace("_", ""):
            return found
    raise errors.ConfigError(
        f"`variant_type` is {', '.join(found.to_name() for found in PbType)}, got {name!r}."
    )
