"""Filters and changes of rows in a dataset; a row is a serialized Instance or Example.

Those that filter return a scalar bool, for `tf.data.Dataset.filter`, the others the new row, for
`map`. Chances are drawn by NumPy: `np.random.seed` makes them the same in every run.

Example:
    >>> example = example_pb2.Example(label=[1])
    >>> rows = tf.data.Dataset.from_tensors(example.SerializeToString())
    >>> len(list(rows.filter(lambda row: filter_by_label(row, [1.0]))))
    1
    >>> len(list(rows.filter(lambda row: filter_by_label(row, [1.0], filter_equal=True))))
    0
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from monolith import errors
from monolith.data import conversions, fids, line_conditions, seekable, string_ids
from monolith.proto import example_pb2, proto_parser_pb2

# A label that no loss counts: the lowest number of 32 bits.
INVALID_LABEL = float(np.finfo(np.float32).min)

_ROWS = {"instance": proto_parser_pb2.Instance, "example": example_pb2.Example}
_NUM_FIDS = 1 << 64


def filter_by_fids(
    variant: tf.Tensor,
    filter_fids: Sequence[int] | None = None,
    has_fids: Sequence[int] | None = None,
    select_fids: Sequence[int] | None = None,
    has_actions: Sequence[int] | None = None,
    req_time_min: int = 0,
    select_slots: Sequence[int] | None = None,
    variant_type: str = "instance",
) -> tf.Tensor:
    """Keeps rows by their fids, as the row has them: version 1 or 2.

    Args:
        variant: A row.
        filter_fids: Rows with one of these go.
        has_fids: Rows with none of these go.
        select_fids: Rows that have not all of these go.
        has_actions: Rows with none of these actions go.
        req_time_min: Rows of an earlier time go.
        select_slots: Rows that have not a fid in each of these slots go.
        variant_type: What the row is, `instance` or `example`.
    """
    unwanted, some, every = (
        {int(fid) % _NUM_FIDS for fid in given or ()}
        for given in (filter_fids, has_fids, select_fids)
    )
    actions, slots = set(has_actions or ()), set(select_slots or ())

    def keep(row: Any) -> bool:
        if row.line_id.req_time < req_time_min:
            return False
        if actions and actions.isdisjoint(row.line_id.actions):
            return False
        found = list(_find_fids(row))
        values = {fid for fid, _ in found}
        return (
            unwanted.isdisjoint(values)
            and not (some and some.isdisjoint(values))
            and every <= values
            and slots <= {slot for _, slot in found}
        )

    settings = (sorted(unwanted), sorted(some), sorted(every), sorted(actions), req_time_min)
    return _filter(keep, variant, variant_type, settings, sorted(slots))


def filter_by_value(
    variant: tf.Tensor,
    field_name: str,
    op: str,
    operand: Any = None,
    variant_type: str = "instance",
    keep_empty: bool = False,
    operand_filepath: str | None = None,
) -> tf.Tensor:
    """Keeps rows by a field of their LineId.

    Args:
        variant: A row.
        field_name: The field.
        op: What has to hold, as `monolith.data.line_conditions` says.
        operand: What the field is compared with.
        variant_type: What the row is, `instance` or `example`.
        keep_empty: Whether a row stays whose repeated field is empty.
        operand_filepath: A file with operands, in place of these.

    Raises:
        errors.ConfigError: That is no condition.
    """
    holds = line_conditions.make_condition(
        field_name, op, operand, keep_empty=keep_empty, operand_filepath=operand_filepath
    )
    settings = (field_name, op, repr(operand), keep_empty, operand_filepath)
    return _filter(lambda row: holds(row.line_id), variant, variant_type, settings)


def filter_by_label(
    variant: tf.Tensor,
    label_threshold: Sequence[float],
    filter_equal: bool = False,
    variant_type: str = "example",
) -> tf.Tensor:
    """Keeps rows of which at least one label reaches its threshold.

    Args:
        variant: A row. One with fewer labels than thresholds goes.
        label_threshold: One for each of the first labels.
        filter_equal: Whether a label has to be greater than its threshold.
        variant_type: What the row is, `instance` or `example`.
    """
    # Labels are numbers of 32 bits.
    thresholds = [float(np.float32(threshold)) for threshold in label_threshold]

    def keep(row: Any) -> bool:
        if len(row.label) < len(thresholds):
            return False
        pairs = zip(row.label, thresholds, strict=False)
        return any(a > b or (a == b and not filter_equal) for a, b in pairs)

    return _filter(keep, variant, variant_type, (thresholds, filter_equal))


def negative_sample(
    variant: tf.Tensor,
    drop_rate: float,
    label_index: int = 0,
    threshold: float = 0.0,
    variant_type: str = "instance",
) -> tf.Tensor:
    """Leaves out some of the rows whose label is below a threshold.

    Args:
        variant: A row.
        drop_rate: How many of them go, 0 to 1.
        label_index: Which label counts.
        threshold: Rows whose label is less may go.
        variant_type: What the row is, `instance` or `example`.

    Raises:
        errors.ConfigError: That is no rate.
    """
    _check_rate("drop_rate", drop_rate)
    if label_index < 0:
        raise errors.ConfigError(f"`label_index` counts from 0, got {label_index}.")

    def keep(row: Any) -> bool:
        if label_index >= len(row.label):
            raise errors.DataError(
                f"A row has {len(row.label)} labels, but `label_index` is {label_index}; correct "
                "it, or leave out rows without labels."
            )
        return row.label[label_index] >= threshold or np.random.random() >= drop_rate

    return _filter(keep, variant, variant_type, (drop_rate, label_index, threshold))


def add_action(
    variant: tf.Tensor,
    field_name: str,
    op: str,
    operand: Any,
    action: int,
    variant_type: str = "example",
) -> tf.Tensor:
    """Adds an action to the LineId of rows for which a condition holds.

    Args:
        variant: A row.
        field_name: A field of its LineId.
        op: What has to hold, as `monolith.data.line_conditions` says.
        operand: What the field is compared with.
        action: Which action.
        variant_type: What the row is, `instance` or `example`.

    Raises:
        errors.ConfigError: That is no condition.
    """
    holds = line_conditions.make_condition(field_name, op, operand)

    def change(row: Any) -> None:
        if holds(row.line_id):
            row.line_id.actions.append(action)

    return _change(change, variant, variant_type, (field_name, op, repr(operand), action))


def add_label(
    variant: tf.Tensor,
    config: str,
    negative_value: float,
    new_sample_rate: float,
    variant_type: str = "example",
) -> tf.Tensor:
    """Adds a label for each of several tasks, made of the row's actions.

    A row with one of a task's positive actions gets 1. Another one gets the negative value if there
    are no negative actions, or if it has one of them; but only with the rate of the task, and is
    `INVALID_LABEL` otherwise. A first label that the row had and that is not positive becomes
    invalid, too.

    Args:
        variant: A row.
        config: The tasks, `1,2:3:0.5;4::1` say: positive actions, negative ones, the rate.
        negative_value: The label of negative rows.
        new_sample_rate: The `sample_rate` of the LineId from now on.
        variant_type: What the row is, `instance` or `example`.

    Raises:
        errors.ConfigError: That is no config.
    """
    tasks = [_read_task(text) for text in config.split(";") if text]
    if not tasks:
        raise errors.ConfigError(f"`config` has no task: {config!r}; write positive:negative:rate.")

    def change(row: Any) -> None:
        actions = set(row.line_id.actions)
        if row.label and row.label[0] <= 0:
            row.label[0] = INVALID_LABEL
        for positive, negative, rate in tasks:
            is_known = not negative or bool(negative & actions)
            if positive & actions:
                row.label.append(1.0)
            elif is_known and np.random.random() < rate:
                row.label.append(negative_value)
            else:
                row.label.append(INVALID_LABEL)
        row.line_id.sample_rate = new_sample_rate

    return _change(change, variant, variant_type, (config, negative_value, new_sample_rate))


def tf_example_to_example(
    serialized: tf.Tensor,
    sparse_features: Mapping[str, int],
    dense_features: Sequence[str],
    label: str,
    instance_weight: str | None = None,
) -> tf.Tensor:
    """Makes an Example of a `tf.train.Example`.

    Args:
        serialized: A serialized `tf.train.Example`.
        sparse_features: Features of ids, each with a slot, 1 to 32767. Integers become fids with
            their low 48 bits, texts with those of their hash (`ml.data.hash_string`).
        dense_features: Features that stay as they are.
        label: The feature that has the labels.
        instance_weight: The one that has the weight; None says that it is 1.

    Returns:
        A serialized Example. Features that are not there are empty.

    Raises:
        errors.ConfigError: A slot is none, or a name is there twice.
    """
    names = [*sparse_features, *dense_features, label]
    names += [] if instance_weight is None else [instance_weight]
    if len(set(names)) != len(names):
        raise errors.ConfigError(f"Names of features must differ, got {names}.")
    for name, slot in sparse_features.items():
        if not 1 <= slot < fids.NUM_SLOTS_V2:
            raise errors.ConfigError(f"The slot of {name!r} must be 1 to 32767, got {slot}.")

    def convert(record: bytes) -> bytes:
        found = conversions.parse(tf.train.Example, record).features.feature
        example = example_pb2.Example(instance_weight=1)
        for name, slot in sparse_features.items():
            ids = [_make_fid(slot, value, name) for value in _get_values(found, name)]
            named = example.named_feature.add(name=name, id=len(example.named_feature))
            named.feature.fid_v2_list.value.extend(ids)
        for name in dense_features:
            named = example.named_feature.add(name=name, id=len(example.named_feature))
            kind = found[name].WhichOneof("kind") if name in found else None
            getattr(named.feature, kind or "float_list").value.extend(_get_values(found, name))
        example.label.extend(_get_numbers(found, label))
        if instance_weight is not None:
            example.instance_weight = next(iter(_get_numbers(found, instance_weight)), 1.0)
        return bytes(example.SerializeToString())

    settings = (sorted(sparse_features.items()), list(dense_features), label, instance_weight)
    return _call(convert, serialized, tf.string, ("tf_example_to_example", settings))


def _find_fids(row: Any) -> Iterator[tuple[int, int]]:
    """Yields the fids of a row, each with its slot."""
    if isinstance(row, proto_parser_pb2.Instance):
        yield from ((fid, fids.get_slot_v1(fid)) for fid in row.fid)
        for feature in row.feature:
            for values in (feature.fid, *(part.value for part in feature.fid_list)):
                yield from ((fid, fids.get_slot_v2(fid)) for fid in values)
        return
    for named in row.named_feature:
        kind = named.feature.WhichOneof("type") or ""
        if not kind.startswith("fid_"):
            continue
        found = getattr(named.feature, kind)
        get_slot = fids.get_slot_v1 if kind.startswith("fid_v1") else fids.get_slot_v2
        for part in found.list if kind.endswith("lists") else [found]:
            yield from ((fid, get_slot(fid)) for fid in part.value)


def _read_task(text: str) -> tuple[set[int], set[int], float]:
    try:
        positive, negative, rate = text.split(":")
        actions = [{int(a) for a in part.split(",") if a} for part in (positive, negative)]
        found = actions[0], actions[1], float(rate)
    except ValueError:
        raise errors.ConfigError(
            f"A task of `config` is positive:negative:rate, as 1,2:3:0.5, got {text!r}."
        ) from None
    _check_rate("rate", found[2])
    return found


def _check_rate(name: str, rate: float) -> None:
    if not 0 <= rate <= 1:
        raise errors.ConfigError(f"`{name}` must be 0 to 1, got {rate}.")


def _get_values(found: Any, name: str) -> list[Any]:
    kind = found[name].WhichOneof("kind") if name in found else None
    return [] if kind is None else list(getattr(found[name], kind).value)


def _get_numbers(found: Any, name: str) -> list[float]:
    values = _get_values(found, name)
    if any(isinstance(value, bytes) for value in values):
        raise errors.DataError(f"Feature {name!r} must be numbers, but is {values[:3]}.")
    return [float(value) for value in values]


def _make_fid(slot: int, value: Any, name: str) -> int:
    if isinstance(value, float):
        raise errors.DataError(f"Feature {name!r} has a slot, but holds {value}, which is no id.")
    return int(
        fids.make_v2(slot, string_ids.hash_string(value) if isinstance(value, bytes) else value)
    )


def _filter(
    keep: Callable[[Any], bool], variant: tf.Tensor, variant_type: str, *settings: Any
) -> tf.Tensor:
    kind = _get_kind(variant_type)
    function = lambda record: np.bool_(keep(conversions.parse(kind, record)))  # noqa: E731
    return _call(function, variant, tf.bool, (keep.__qualname__, variant_type, settings))


def _change(
    change: Callable[[Any], None], variant: tf.Tensor, variant_type: str, settings: Any
) -> tf.Tensor:
    kind = _get_kind(variant_type)

    def make_changed(record: bytes) -> bytes:
        row = conversions.parse(kind, record)
        change(row)
        return bytes(row.SerializeToString())

    return _call(make_changed, variant, tf.string, (change.__qualname__, variant_type, settings))


def _get_kind(variant_type: str) -> Any:
    if variant_type not in _ROWS:
        raise errors.ConfigError(
            f"`variant_type` is {' or '.join(_ROWS)}, got {variant_type!r}; make rows of batches "
            "first."
        )
    return _ROWS[variant_type]


def _call(
    function: Callable[[bytes], Any], record: tf.Tensor, dtype: tf.DType, settings: Any
) -> tf.Tensor:
    # Beside the function stands what it does, so that a position in the input can be saved.
    digest = hashlib.sha256(repr(settings).encode()).hexdigest()

    @tf.autograph.experimental.do_not_convert
    def call(content: Any, _: Any) -> Any:
        try:
            # Eagerly, it is an array without dimensions.
            return function(content if isinstance(content, bytes) else content.item())
        except errors.DataError as e:
            # Without the trace, which TensorFlow would print in front of it.
            raise errors.DataError(str(e)) from None

    description = tf.constant(seekable.MARK + b"row " + digest.encode())
    found = tf.numpy_function(
        call, [tf.convert_to_tensor(record), description], dtype, stateful=False
    )
    found.set_shape([])
    return found
