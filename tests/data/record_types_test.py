"""The names and numbers of the original system, and what records become."""

import pytest

from monolith import errors
from monolith.data.record_types import (
    CompressType,
    FeaturePruningType,
    PbType,
    choose_types,
    find_type,
)


def test_numbers_are_those_of_the_original():
    assert [t.value for t in PbType] == [1, 2, 3, 4]
    assert PbType.EXAMPLEBATCH.to_name() == "examplebatch"
    assert [t.name for t in CompressType] == ["UNKNOW", "NO", "SNAPPY", "ZSTD", "ZLIB", "GZIP"]
    assert [t.value for t in CompressType] == list(range(6))
    kinds = FeaturePruningType
    assert (kinds.AS_IS, kinds.PRUNING_FEATURE, kinds.PRUNING_RAW_FEATURE) == (0, 1, 2)


def test_what_records_become_unless_somebody_says():
    assert choose_types(None, None) == ("instance", "instance")
    assert choose_types(PbType.EXAMPLE, None) == ("example", "example")
    assert choose_types(PbType.EXAMPLEBATCH, None) == ("examplebatch", "example")
    assert choose_types(PbType.PLAINTEXT, None) == ("plaintext", "plaintext")
    assert choose_types(None, PbType.EXAMPLE) == ("instance", "example")
    with pytest.raises(errors.ConfigError, match="instance do not become plaintext"):
        choose_types(None, PbType.PLAINTEXT)


def test_types_by_name():
    assert find_type(None) == PbType.INSTANCE
    assert find_type("example_batch") == find_type("EXAMPLEBATCH") == PbType.EXAMPLEBATCH
    with pytest.raises(errors.ConfigError, match="got 'tensor'"):
        find_type("tensor")
