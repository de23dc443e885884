"""Serialized Examples, ExampleBatches and Instances as features.

An `Example` is one row of named features, an `ExampleBatch` many rows by column, an `Instance` one
row whose fids have a slot and no name. All are parsed in one pass by one op, on several threads.

Sparse features are ragged int64 fids, named by strings, or by slots as integers. Dense ones are
`[batch, *shape]`; `label` and `instance_weight` are the labels and the weight of a record. Extra
features are fields of the LineId. A row that lacks a feature has no ids, zeros, or empty strings; a
weight that is missing is 1.

In a context `ParserCtx(enable_fused_layout=True)`, sparse features are not among the results: the
records themselves are, under `SPARSE_FEATURES`, for tables that read ids from there.

Example:
    >>> from monolith.proto import example_pb2
    >>> example = example_pb2.Example(label=[1])
    >>> example.named_feature.add(name="user").feature.fid_v2_list.value.append(7)
    >>> example.line_id.uid = 5
    >>> features = parse_examples(
    ...     tf.constant([example.SerializeToString()]),
    ...     sparse_features=["user"],
    ...     dense_features=["label"],
    ...     extra_features=["uid"],
    ... )
    >>> features["user"].to_list(), features["label"].numpy(), features["uid"].numpy()
    ([[7]], array([[1.]], dtype=float32), array([[5]]))
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import descriptor

from monolith import errors
from monolith.data import action_labels, conversions, feature_list, fids, row_fields
from monolith.data.parser_context import (  # noqa: F401
    SPARSE_FEATURES,
    ParserCtx,
    get_default_parser_ctx,
)
from monolith.data.sparse_fids import sharding_sparse_fids  # noqa: F401
from monolith.native import ops
from monolith.proto import line_id_pb2

Features = dict[str, tf.Tensor | tf.RaggedTensor]
Shape = int | Sequence[int]

# Under this name is how many records were left out, if damaged ones are.
NUM_SKIPPED = "__num_skipped__"

_TYPES = (tf.float32, tf.int64, tf.string)


@dataclasses.dataclass(frozen=True)
class _Dense:
    names: list[str]
    shapes: list[list[int]]
    types: list[tf.DType]

    def __add__(self, other: "_Dense") -> "_Dense":
        shapes, types = self.shapes + other.shapes, self.types + other.types
        return _Dense(self.names + other.names, shapes, types)


@dataclasses.dataclass(frozen=True)
class _Wanted:
    sparse: list[str]
    dense: _Dense
    extra: _Dense


def parse_examples(
    tensor: tf.Tensor,
    sparse_features: Sequence[str | int],
    dense_features: Sequence[str] | None = None,
    dense_feature_shapes: Sequence[Shape] | None = None,
    dense_feature_types: Sequence[tf.DType] | None = None,
    extra_features: Sequence[str] | None = None,
    extra_feature_shapes: Sequence[Shape] | None = None,
    *,
    skip_damaged: bool = False,
) -> Features:
    """Parses serialized Examples, one row each; fids of version 1 become version 2.

    Args:
        tensor: Strings, `[batch]`.
        sparse_features: Names, or slots.
        dense_features: Names.
        dense_feature_shapes: One for each; `[1]` if there are none.
        dense_feature_types: float32, int64 or string for each; float32 if there are none.
        extra_features: Fields of the LineId. Repeated ones are cut, or filled with zeros.
        extra_feature_shapes: One for each; `[1]` if there are none.
        skip_damaged: Leaves out records that cannot be parsed, and says under `NUM_SKIPPED` how
            many these are.

    Raises:
        tf.errors.InvalidArgumentError: A record is damaged, or holds something else.
    """
    dense = _make_dense(dense_features, dense_feature_shapes, dense_feature_types)
    extra = _make_extra(extra_features, extra_feature_shapes)
    names = _find_names(sparse_features)
    slots = [-1] * len(names)
    return _parse("example", tensor, names, slots, dense, extra, skip_damaged=skip_damaged)


def parse_example_batch(
    tensor: tf.Tensor,
    sparse_features: Sequence[str | int],
    dense_features: Sequence[str] | None = None,
    dense_feature_shapes: Sequence[Shape] | None = None,
    dense_feature_types: Sequence[tf.DType] | None = None,
    extra_features: Sequence[str] | None = None,
    extra_feature_shapes: Sequence[Shape] | None = None,
    *,
    skip_damaged: bool = False,
) -> Features:
    """Parses a serialized ExampleBatch, or the rows of several one after the other.

    Args:
        tensor: A string, or several, `[n]`.
        sparse_features: As those of `parse_examples`, and so is what follows.
        dense_features: Names.
        dense_feature_shapes: One for each; `[1]` if there are none.
        dense_feature_types: float32, int64 or string for each; float32 if there are none.
        extra_features: Fields of the LineId.
        extra_feature_shapes: One for each; `[1]` if there are none.
        skip_damaged: Leaves out batches that cannot be parsed.

    Raises:
        tf.errors.InvalidArgumentError: A batch is damaged, or holds something else.
        tf.errors.OutOfRangeError: A column has another number of rows than the batch.
    """
    dense = _make_dense(dense_features, dense_feature_shapes, dense_feature_types)
    extra = _make_extra(extra_features, extra_feature_shapes)
    names = _find_names(sparse_features)
    slots = [-1] * len(names)
    return _parse("example_batch", tensor, names, slots, dense, extra, skip_damaged=skip_damaged)


def parse_example_batch_list(
    tensors: Sequence[tf.Tensor],
    label_config: str | None = None,
    positive_label: float = 1.0,
    negative_label: float = 0.0,
    names: Sequence[str | int] = (),
    shapes: Sequence[Shape | None] | None = None,
    dtypes: Sequence[tf.DType | None] | None = None,
    extra_features: Sequence[str] | None = None,
) -> Features:
    """Parses several serialized ExampleBatches as if they were one, and makes labels of actions.

    Args:
        tensors: The batches, in the order of their rows: strings, or vectors of them.
        label_config: By task the actions of positive and of negative rows, `1,2:3;4:` say. `label`
            is `[batch, tasks]` then: `positive_label` for a row with a positive action; otherwise
            `negative_label` if it has a negative action, or if the task has none; otherwise the
            lowest float32, which no loss counts. Without, labels are as they are in the data.
        positive_label: The label of positive rows.
        negative_label: That of negative ones.
        names: The features to return. Integers are slots.
        shapes: One for each: None or -1 of sparse features, which become ragged int64, and how many
            values a row has of dense ones. All are sparse, but for `label` and `instance_weight`,
            if there are none.
        dtypes: One for each: float32, int64 or string of dense features; None is float32.
        extra_features: Fields of the LineId. Those that are named above have the shape that stands
            there, others have one value.

    Raises:
        errors.ConfigError: The names and what is said about them do not fit, `label_config` is
            something else, or ids are to be left in the records, of which there must be one then.
        tf.errors.InvalidArgumentError: A batch is damaged, or holds something else.
        tf.errors.OutOfRangeError: A column has another number of rows than its batch.

    Example:
        >>> from monolith.proto import example_pb2, line_id_pb2
        >>> batch = example_pb2.ExampleBatch(batch_size=1)
        >>> column = batch.named_feature_list.add(name="__LINE_ID__")
        >>> line_id = line_id_pb2.LineId(actions=[2])
        >>> column.feature.add().bytes_list.value.append(line_id.SerializeToString())
        >>> serialized = batch.SerializeToString()
        >>> parse_example_batch_list([serialized, serialized], "1,2:3;4:")["label"].numpy()
        array([[1., 0.],
               [1., 0.]], dtype=float32)
    """
    if not tensors:
        raise errors.ConfigError("`tensors` is empty; give one serialized ExampleBatch or several.")
    if get_default_parser_ctx().enable_fused_layout:
        raise errors.ConfigError(
            "`parse_example_batch_list` joins batches, but with `enable_fused_layout` of the "
            "parsers' context tables read ids from one batch; call `parse_example_batch`, or leave "
            "that off."
        )
    tasks = action_labels.read_tasks(label_config or "")
    wanted = _divide_names(names, shapes, dtypes, list(extra_features or ()), len(tasks))
    batches = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
    slots = [-1] * len(wanted.sparse)
    features = _parse(
        "example_batch",
        batches,
        wanted.sparse,
        slots,
        wanted.dense,
        wanted.extra,
        skip_damaged=False,
    )
    if tasks:
        line_id = _Dense([conversions.LINE_ID], [[1]], [tf.string])
        none = _Dense([], [], [])
        found = _parse("example_batch", batches, [], [], line_id, none, skip_damaged=False)
        line_ids = found[conversions.LINE_ID][:, 0]
        actions = row_fields.read_field_of_line_ids(line_ids, "actions")
        features["label"] = action_labels.make_labels(
            actions, tasks, positive_label, negative_label
        )
    return features


def parse_instances(
    tensor: tf.Tensor,
    fidv1_features: Sequence[int | str] | None = None,
    fidv2_features: Sequence[str | int] | None = None,
    dense_features: Sequence[str] | None = None,
    dense_feature_shapes: Sequence[Shape] | None = None,
    dense_feature_types: Sequence[tf.DType] | None = None,
    extra_features: Sequence[str] | None = None,
    extra_feature_shapes: Sequence[Shape] | None = None,
    *,
    skip_damaged: bool = False,
) -> Features:
    """Parses serialized Instances, one row each.

    Args:
        tensor: Strings, `[batch]`.
        fidv1_features: Slots of the Instances' own fids, or names that the list of features knows.
            These fids stay version 1 unless there are `fidv2_features`, too. Fids in other slots
            are left out and counted, see `count_unasked_fids`.
        fidv2_features: Names of features with fids of version 2, or slots.
        dense_features: As those of `parse_examples`, and so is what follows.
        dense_feature_shapes: One for each; `[1]` if there are none.
        dense_feature_types: float32, int64 or string for each; float32 if there are none.
        extra_features: Fields of the LineId.
        extra_feature_shapes: One for each; `[1]` if there are none.
        skip_damaged: Leaves out records that cannot be parsed.

    Raises:
        tf.errors.InvalidArgumentError: A record is damaged, or holds something else.
        errors.ConfigError: A feature of `fidv1_features` has no slot.
    """
    dense = _make_dense(dense_features, dense_feature_shapes, dense_feature_types)
    extra = _make_extra(extra_features, extra_feature_shapes)
    names, slots = [], []
    for item in fidv1_features or ():
        name, slot = feature_list.get_feature_name_and_slot(item)
        if slot is None:
            raise errors.ConfigError(
                f"The slot of {name!r} is not known; give the number of the slot, or parse a list "
                "of features that has it."
            )
        if not 0 <= slot < fids.NUM_SLOTS_V1:
            raise errors.ConfigError(f"slot should be less than 1024, while got {slot}")
        names.append(name)
        slots.append(slot)
    for name in _find_names(fidv2_features or ()):
        names.append(name)
        slots.append(-1)
    return _parse(
        "instance",
        tensor,
        names,
        slots,
        dense,
        extra,
        convert_v1=bool(fidv2_features),
        skip_damaged=skip_damaged,
    )


def count_unasked_fids() -> int:
    """Returns how many fids this process has left out: of Instances, in slots nobody asked for.

    The first time that a parser leaves some out, there is a warning, too.

    Example:
        >>> from monolith.proto import proto_parser_pb2
        >>> instance = proto_parser_pb2.Instance(fid=[fids.make_v1(7, 1), fids.make_v1(8, 1)])
        >>> before = count_unasked_fids()
        >>> _ = parse_instances([instance.SerializeToString()], fidv1_features=[7])
        >>> count_unasked_fids() - before
        1
    """
    with tf.init_scope():
        if tf.executing_eagerly():
            return int(ops.monolith_parse_unasked())
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return int(session.run(ops.monolith_parse_unasked()))


def _find_names(items: Sequence[str | int]) -> list[str]:
    """Returns the names of sparse features."""
    fids.check_slots(item for item in items if isinstance(item, int))
    return [feature_list.get_feature_name_and_slot(item)[0] for item in items]


def _parse(
    record_format: str,
    tensor: tf.Tensor,
    names: list[str],
    slots: list[int],
    dense: _Dense,
    extra: _Dense,
    *,
    convert_v1: bool = True,
    skip_damaged: bool,
) -> Features:
    fixed = dense + extra
    every = [*names, *fixed.names]
    assert len(set(every)) == len(every), "deplicate names, pls check!"
    features: Features = {}
    ctx = get_default_parser_ctx()
    if ctx.enable_fused_layout:
        _check_fused(names, slots, convert_v1, skip_damaged)
        ctx.parser_type = record_format
        features[SPARSE_FEATURES] = tf.convert_to_tensor(tensor)
        if record_format != "instance":  # Of which those are counted that nobody has asked for.
            names, slots = [], []
    parsed = ops.monolith_parse_examples(
        tensor,
        num_sparse=len(names),
        format=record_format,
        sparse_names=names,
        sparse_slots=slots,
        dense_names=fixed.names,
        dense_widths=[math.prod(shape) for shape in fixed.shapes],
        dense_types=fixed.types,
        num_line_id=len(extra.names),
        convert_v1=convert_v1,
        skip_damaged=skip_damaged,
    )
    if not ctx.enable_fused_layout:
        for name, values, splits in zip(names, parsed.values, parsed.splits, strict=True):
            features[name] = tf.RaggedTensor.from_row_splits(values, splits, validate=False)
    for name, shape, values in zip(fixed.names, fixed.shapes, parsed.dense, strict=True):
        features[name] = values if len(shape) == 1 else tf.reshape(values, [-1, *shape])
    if skip_damaged:
        features[NUM_SKIPPED] = parsed.num_skipped
    return features


def _check_fused(
    names: Sequence[str], slots: Sequence[int], convert_v1: bool, skip_damaged: bool
) -> None:
    """Refuses what a parser does to ids, and who reads them from the records does not."""
    if skip_damaged:
        raise errors.ConfigError(
            "With `enable_fused_layout` of the parsers' context, ids stay in the records, so that "
            "damaged ones cannot be left out; leave `skip_damaged` off, or that."
        )
    for name, slot in zip(names, slots, strict=True):
        if slot >= 0 and (convert_v1 or name not in (f"slot_{slot}", f"fc_slot_{slot}")):
            version = 2 if convert_v1 else 1
            raise errors.ConfigError(
                "With `enable_fused_layout` of the parsers' context, the fids of an Instance stay "
                f"version 1, and those of slot {slot} belong to 'slot_{slot}', but they are to be "
                f"version {version} and {name!r}; leave that off."
            )


def _divide_names(
    names: Sequence[str | int],
    shapes: Sequence[Shape | None] | None,
    dtypes: Sequence[tf.DType | None] | None,
    extra_features: list[str],
    num_tasks: int,
) -> _Wanted:
    found = _find_names(names)
    if shapes is None:
        usual: dict[str, Shape] = {"label": num_tasks or 1, "instance_weight": 1}
        shapes = [usual.get(name) for name in found]
    dtypes = [None] * len(found) if dtypes is None else dtypes
    _check_length("shapes", shapes, found)
    _check_length("dtypes", dtypes, found)
    sparse: list[str] = []
    dense = _Dense([], [], [])
    shape_of_extra: dict[str, Shape] = dict.fromkeys(extra_features, 1)
    for name, shape, dtype in zip(found, shapes, dtypes, strict=True):
        if shape is not None and shape in (-1, [-1], (-1,)):
            shape = None
        if name in shape_of_extra:
            shape_of_extra[name] = 1 if shape is None else shape
        elif shape is None:
            if dtype not in (None, tf.int64):
                raise errors.ConfigError(
                    f"Feature {name!r} has no shape and so is sparse, which is int64, but its type "
                    f"is to be {tf.as_dtype(dtype).name}; give it a shape, or leave the type out."
                )
            sparse.append(name)
        elif name == "label" and num_tasks:
            if shape not in (num_tasks, [num_tasks], (num_tasks,)):
                raise errors.ConfigError(
                    f"`label_config` has {num_tasks} tasks, but the shape of 'label' is {shape}; "
                    f"it must be {num_tasks}."
                )
        else:
            dense += _make_dense([name], [shape], [dtype or tf.float32])
    return _Wanted(sparse, dense, _make_extra(extra_features, list(shape_of_extra.values())))


def _make_dense(
    names: Sequence[str] | None,
    shapes: Sequence[Shape] | None,
    types: Sequence[tf.DType] | None,
) -> _Dense:
    names = list(names or ())
    found = [tf.as_dtype(dtype) for dtype in types] if types else [tf.float32] * len(names)
    for name, dtype in zip(names, found, strict=False):
        if dtype not in _TYPES:
            raise errors.ConfigError(
                f"Dense feature {name!r} is to be {dtype.name}, but they are float32, int64 or "
                "string; cast it afterwards."
            )
    _check_length("dense_feature_types", found, names)
    return _Dense(names, _make_shapes("dense_feature_shapes", shapes, names), found)


def _make_extra(names: Sequence[str] | None, shapes: Sequence[Shape] | None) -> _Dense:
    names = list(names or ())
    fields = line_id_pb2.LineId.DESCRIPTOR.fields_by_name
    types = []
    for name in names:
        if name not in fields:
            raise errors.ConfigError(f"{name} is not in line id, pls check!")
        types.append(_get_type(fields[name]))
    return _Dense(names, _make_shapes("extra_feature_shapes", shapes, names), types)


def _get_type(field: descriptor.FieldDescriptor) -> tf.DType:
    if field.cpp_type == field.CPPTYPE_STRING:
        return tf.string
    return tf.float32 if field.cpp_type == field.CPPTYPE_FLOAT else tf.int64


def _make_shapes(
    argument: str, shapes: Sequence[Shape] | None, names: Sequence[str]
) -> list[list[int]]:
    found = [[s] if isinstance(s, int) else list(s) or [1] for s in shapes or [1] * len(names)]
    _check_length(argument, found, names)
    for name, shape in zip(names, found, strict=True):
        if any(size < 1 for size in shape):
            raise errors.ConfigError(f"The shape of {name!r} must be positive, got {shape}.")
    return found


def _check_length(argument: str, values: Sequence[Any], names: Sequence[str]) -> None:
    if len(values) != len(names):
        raise errors.ConfigError(
            f"{argument} must have one element for each of {list(names)}, got {len(values)}."
        )
