"""The flags of the input are there for every package that reads them."""

import pytest
from absl import flags

import monolith.data.flags  # noqa: F401 - defines the flags


@pytest.mark.parametrize(
    ("name", "default", "argument", "parsed"),
    [
        ("data_service_dispatcher", "", "grpc://host:1", "grpc://host:1"),
        ("dataset_use_dataservice", False, "true", True),
        ("dataset_input_patterns", None, "a/{INT(0,1)}", "a/{INT(0,1)}"),
        ("dataset_input_compression_type", None, "gzip", "GZIP"),
        ("kafka_other_metadata", None, "a=b,c=d", "a=b,c=d"),
    ],
)
def test_flag(name, default, argument, parsed):
    flag = flags.FLAGS[name]
    assert flag.default == default
    assert flag.parser.parse(argument) == parsed
