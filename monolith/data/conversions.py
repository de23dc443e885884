"""From one format of training data to another: Example, ExampleBatch, Instance.

Example:
    >>> batch = example_pb2.ExampleBatch(batch_size=2)
    >>> shared = batch.named_feature_list.add(name="user", type=example_pb2.SHARED)
    >>> shared.feature.add().fid_v2_list.value.append(7)
    >>> [e.named_feature[0].feature.fid_v2_list.value for e in split_batch(batch)]
    [[7], [7]]
"""

import collections
from collections.abc import Callable
from typing import Any

from google.protobuf import message

from monolith import errors
from monolith.data import fids
from monolith.proto import example_pb2, feature_pb2, proto_parser_pb2

# Columns of a batch that are fields of an Example.
LINE_ID = "__LINE_ID__"
LABEL = "__LABEL__"
WEIGHT = "instance_weight"

_KINDS = {
    "instance": proto_parser_pb2.Instance,
    "example": example_pb2.Example,
    "examplebatch": example_pb2.ExampleBatch,
}
_LISTS = {"float_list": "float_value", "int64_list": "int64_value", "bytes_list": "bytes_value"}
_NESTED = {
    "fid_v2_lists": "fid_list",
    "float_lists": "float_list",
    "int64_lists": "int64_list",
    "bytes_lists": "bytes_list",
}


def split_batch(batch: example_pb2.ExampleBatch) -> list[example_pb2.Example]:
    """Returns the rows of a batch; raw features are left out.

    Raises:
        errors.DataError: A column has another number of rows than the batch.
    """
    _check_columns(batch)
    return [_make_row(batch, row) for row in range(batch.batch_size)]


def _check_columns(batch: example_pb2.ExampleBatch) -> None:
    for column in batch.named_feature_list:
        is_shared = column.type == example_pb2.SHARED
        if not is_shared and len(column.feature) != batch.batch_size:
            raise errors.DataError(
                "ExampleBatch batch_size should be equal to named_feature size, while got "
                f"{batch.batch_size} vs {len(column.feature)} for feature_name {column.name}"
            )
        if is_shared and not column.feature:
            raise errors.DataError(f"The shared column {column.name} of an ExampleBatch is empty")


def _make_row(batch: example_pb2.ExampleBatch, row: int) -> example_pb2.Example:
    example = example_pb2.Example(data_source_key=batch.data_source_key)
    for column in batch.named_feature_list:
        feature = column.feature[0 if column.type == example_pb2.SHARED else row]
        if column.name == LINE_ID:
            try:
                for serialized in feature.bytes_list.value[:1]:
                    example.line_id.ParseFromString(serialized)
            except message.DecodeError:
                raise errors.DataError("Failed to parse the LineId") from None
        elif column.name == LABEL:
            example.label.extend(feature.float_list.value)
        elif column.name == WEIGHT:
            example.instance_weight = next(iter(feature.float_list.value), 1.0)
        else:
            example.named_feature.add(name=column.name, id=column.id, feature=feature)
    return example


def example_to_instance(example: example_pb2.Example) -> proto_parser_pb2.Instance:
    """Returns the same row: fids of version 1 without names, all others as named features.

    Raises:
        errors.DataError: A feature holds what an Instance cannot.
    """
    instance = proto_parser_pb2.Instance(label=example.label, line_id=example.line_id)
    instance.instance_weight = example.instance_weight or 1.0
    instance.data_source_key = example.data_source_key
    for named in example.named_feature:
        kind = named.feature.WhichOneof("type")
        if kind is None:
            continue
        values: Any = getattr(named.feature, kind)
        if kind == "fid_v1_list":
            instance.fid.extend(values.value)
        elif kind == "fid_v2_list":
            instance.feature.add(name=named.name, fid=values.value)
        elif kind in _LISTS:
            instance.feature.add(name=named.name, **{_LISTS[kind]: values.value})
        elif kind in _NESTED:
            feature = instance.feature.add(name=named.name)
            for part in values.list:
                getattr(feature, _NESTED[kind]).add(value=part.value)
        else:
            raise errors.DataError(
                f"Feature {named.name!r} of an Example is a {kind}, which an Instance cannot hold"
            )
    return instance


def instance_to_example(instance: proto_parser_pb2.Instance) -> example_pb2.Example:
    """Returns the same row: fids of version 1 by slot as `fc_slot_7`, ids of features from 0 on."""
    example = example_pb2.Example(label=instance.label, data_source_key=instance.data_source_key)
    example.line_id.CopyFrom(instance.line_id)
    has_weight = instance.HasField("instance_weight")
    example.instance_weight = instance.instance_weight if has_weight else 1.0
    by_slot = collections.defaultdict(list)
    for fid in instance.fid:
        by_slot[fids.get_slot_v1(fid)].append(fid)

    def add(name: str) -> example_pb2.Feature:
        return example.named_feature.add(name=name, id=len(example.named_feature)).feature

    for slot in sorted(by_slot):
        add(f"fc_slot_{slot}").fid_v1_list.value.extend(by_slot[slot])
    if instance.value:
        add("value").float_list.value.extend(instance.value)
    for feature in instance.feature:
        _copy_feature(feature, add(feature.name))
    return example


def _copy_feature(source: feature_pb2.Feature, target: example_pb2.Feature) -> None:
    if source.fid:
        target.fid_v2_list.value.extend(source.fid)
    for kind, field in _LISTS.items():
        if getattr(source, field):
            getattr(target, kind).value.extend(getattr(source, field))
    for kind, field in _NESTED.items():
        for part in getattr(source, field):
            getattr(target, kind).list.add(value=part.value)


def make_converter(source: str, target: str) -> Callable[[bytes], list[bytes]] | None:
    """Returns what makes serialized rows of a record; None if a record is a row already.

    Args:
        source: What records are: `instance`, `example`, `examplebatch` or `plaintext`.
        target: What rows are to be.

    Raises:
        errors.ConfigError: The one does not become the other.
    """
    if source == target:
        return None
    if (source, target) == ("examplebatch", "example"):
        return lambda record: [
            row.SerializeToString() for row in split_batch(parse(example_pb2.ExampleBatch, record))
        ]
    if (source, target) == ("examplebatch", "instance"):
        return lambda record: [
            example_to_instance(row).SerializeToString()
            for row in split_batch(parse(example_pb2.ExampleBatch, record))
        ]
    if (source, target) == ("example", "instance"):
        return lambda record: [
            example_to_instance(parse(example_pb2.Example, record)).SerializeToString()
        ]
    if (source, target) == ("instance", "example"):
        return lambda record: [
            instance_to_example(parse(proto_parser_pb2.Instance, record)).SerializeToString()
        ]
    raise errors.ConfigError(
        f"Records of {source} do not become {target}; of an examplebatch become examples or "
        "instances, and of these the other one."
    )


def make_checked_converter(source: str, target: str) -> Callable[[bytes], list[bytes]]:
    """Returns what makes serialized rows of a record and refuses a damaged one.

    The arguments are those of `make_converter`, and so is what is raised.

    Example:
        >>> make_checked_converter("example", "example")(b"damaged")
        Traceback (most recent call last):
        monolith.errors.DataError: a record is no Example
    """
    convert = make_converter(source, target)

    def check(record: bytes) -> list[bytes]:
        if not record:
            raise errors.DataError("a record has no content")
        if convert is not None:
            return convert(record)
        found = parse(_KINDS[source], record)
        if source == "examplebatch":
            _check_columns(found)
        return [record]

    return (lambda record: [record]) if source == "plaintext" else check


def parse(kind: Any, serialized: bytes) -> Any:
    """Returns a message of a record.

    Raises:
        errors.DataError: It is damaged.
    """
    try:
        return kind.FromString(serialized)
    except message.DecodeError:
        raise errors.DataError(f"a record is no {kind.DESCRIPTOR.name}") from None
