"""Filters and changes of rows in a dataset; a row is a serialized Instance or Example.

Those that filter return a bool, for `tf.data.Dataset.filter`, the others the new row, for `map`.
Here are those that look at fids, labels and the LineId: each is one op in C++, which takes single
rows, as datasets have them, or many at once. Chances follow `tf.random.set_seed`.

Example:
    >>> example = example_pb2.Example(label=[1])
    >>> rows = tf.data.Dataset.from_tensors(example.SerializeToString())
    >>> len(list(rows.filter(lambda row: filter_by_label(row, [1.0]))))
    1
    >>> len(list(rows.filter(lambda row: filter_by_label(row, [1.0], filter_equal=True))))
    0
"""

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import random_seed

from monolith import errors
from monolith.data import fids, line_conditions
from monolith.data.action_labels import INVALID_LABEL  # noqa: F401
from monolith.data.fids import switch_slot  # noqa: F401
from monolith.data.row_changes import tf_example_to_example  # noqa: F401
from monolith.data.row_fields import check_type
from monolith.native import ops
from monolith.proto import example_pb2  # noqa: F401 - for the example above

_MOST_LABELS = 1 << 10


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

    They are compared before anything is parsed. The parsers make version 2 of the fids of version 1
    that they find in Examples; here these are still version 1.

    Args:
        variant: A row.
        filter_fids: Rows with one of these go.
        has_fids: Rows with none of these go.
        select_fids: Rows that have not all of these go.
        has_actions: Rows with none of these actions go.
        req_time_min: Rows of an earlier time go.
        select_slots: Rows that have not a fid in each of these slots go.
        variant_type: What the row is, `instance` or `example`.

    Raises:
        errors.ConfigError: There is no such slot.
    """
    return ops.monolith_row_has_fids(
        variant,
        format=check_type(variant_type),
        filter_fids=_to_signed(filter_fids),
        any_fids=_to_signed(has_fids),
        select_fids=_to_signed(select_fids),
        has_actions=list(has_actions or ()),
        select_slots=fids.check_slots(select_slots or ()),
        req_time_min=req_time_min,
    )


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
    condition = line_conditions.make_condition(
        field_name, op, operand, keep_empty=keep_empty, operand_filepath=operand_filepath
    )
    return condition.test(variant, check_type(variant_type))


def filter_by_feature_value(
    variant: tf.Tensor,
    field_name: str,
    op: str,
    operand: Any = None,
    field_type: str = "int64",
    keep_empty: bool = False,
    operand_filepath: str | None = None,
) -> tf.Tensor:
    """Keeps Examples by one of their features.

    Args:
        variant: A serialized Example.
        field_name: The feature.
        op: What has to hold, as `monolith.data.line_conditions` says. `any`, `all` and `diff` look
            at all values, the others at the first.
        operand: What the values are compared with.
        field_type: What they are: `int64`, `float`, `double` or `bytes`.
        keep_empty: Whether a row stays that has no values there.
        operand_filepath: A file with operands, in place of these.

    Raises:
        errors.ConfigError: That is no condition.
        tf.errors.InvalidArgumentError: The feature holds something else.
    """
    condition = line_conditions.make_feature_condition(
        field_name,
        op,
        operand,
        field_type,
        keep_empty=keep_empty,
        operand_filepath=operand_filepath,
    )
    return condition.test(variant, "example")


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
    return ops.monolith_row_has_label(
        variant,
        format=check_type(variant_type),
        thresholds=list(label_threshold),
        filter_equal=filter_equal,
    )


def negative_sample(
    variant: tf.Tensor,
    drop_rate: float,
    label_index: int = 0,
    threshold: float = 0.0,
    variant_type: str = "instance",
    action_priority: str | None = None,
    per_action_drop_rate: str | None = None,
) -> tf.Tensor:
    """Leaves out some of the rows whose label is below a threshold.

    Args:
        variant: A row.
        drop_rate: How many of them go, 0 to 1.
        label_index: Which label counts.
        threshold: Rows whose label is less may go.
        variant_type: What the row is, `instance` or `example`.
        action_priority: Actions with commas between, the most important first: the first of them
            that a row has decides its rate.
        per_action_drop_rate: Their rates, `1:0.5,2:0.9` say; those of other rows are `drop_rate`.

    Raises:
        errors.ConfigError: That is no rate, or no list of actions.
    """
    _check_rate("drop_rate", drop_rate)
    if label_index < 0:
        raise errors.ConfigError(f"`label_index` counts from 0, got {label_index}.")
    if (action_priority is None) != (per_action_drop_rate is None):
        raise errors.ConfigError(
            "`action_priority` and `per_action_drop_rate` belong together; give both or none."
        )
    rates = dict(_read_rates("per_action_drop_rate", per_action_drop_rate or ""))
    seed, seed2 = _draw_seeds()
    return ops.monolith_row_sample(
        variant,
        format=check_type(variant_type),
        drop_rate=drop_rate,
        label_index=label_index,
        threshold=threshold,
        action_priority=_read_actions("action_priority", action_priority or ""),
        rate_actions=list(rates),
        rates=list(rates.values()),
        seed=seed,
        seed2=seed2,
    )


def special_strategy(
    variant: tf.Tensor,
    strategy_list: Sequence[int],
    strategy_conf: str | None = None,
    variant_type: str = "instance",
    keep_empty_strategy: bool = True,
) -> tf.Tensor:
    """Keeps rows by the special strategies of their LineId.

    Args:
        variant: A row.
        strategy_list: A row stays if it has one of these.
        strategy_conf: Of rows with some of them only a part stays: `7:0.5,8:0.1` says how much.
        variant_type: What the row is, `instance` or `example`.
        keep_empty_strategy: Whether a row without any strategy stays.

    Raises:
        errors.ConfigError: That is no list of strategies, or there is a label in it: a filter
            returns no row, so that it cannot change one.
    """
    if any(part.count(":") > 1 for part in (strategy_conf or "").split(",")):
        raise errors.ConfigError(
            f"`strategy_conf` is strategy:rate, got {strategy_conf!r}; a filter cannot change "
            "labels, so change them with `map` and leave the label out here."
        )
    kept = filter_by_value(
        variant,
        "special_strategies",
        "any",
        list(strategy_list),
        variant_type,
        keep_empty_strategy,
    )
    for strategy, rate in _read_rates("strategy_conf", strategy_conf or ""):
        is_meant = filter_by_value(variant, "special_strategies", "any", [strategy], variant_type)
        is_drawn = tf.random.uniform(tf.shape(is_meant)) < rate
        kept &= ~is_meant | is_drawn
    return kept


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
    where = filter_by_value(variant, field_name, op, operand, variant_type)
    return ops.monolith_row_add_action(variant, where, format=variant_type, action=action)


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
    tasks = read_label_tasks(config)
    return add_labels(variant, tasks, negative_value, new_sample_rate, variant_type)


def scatter_label(variant: tf.Tensor, config: str, variant_type: str = "example") -> tf.Tensor:
    """Moves a row's first label to the index of its channel, for models with a task per channel.

    The other labels become `INVALID_LABEL`. So do all labels of a row without any, and of one whose
    channel, `chnid` of the LineId, has no index; a row without a channel is of channel 0.

    Args:
        variant: A row.
        config: Channels with their indices, `7:0,9:1` say. Rows get one label more than the
            greatest index.
        variant_type: What the row is, `instance` or `example`.

    Raises:
        errors.ConfigError: That is no config, or a channel has two indices.

    Example:
        >>> example = example_pb2.Example(label=[1])
        >>> example.line_id.chnid = 9
        >>> row = scatter_label(example.SerializeToString(), "7:0,9:1")
        >>> label = example_pb2.Example.FromString(row.numpy()).label
        >>> label[0] == INVALID_LABEL, label[1]
        (True, 1.0)
    """
    parts = [part.split(":") for part in config.split(",") if part]
    try:
        index_of = {int(channel): int(index) for channel, index in parts}
    except ValueError:
        raise errors.ConfigError(f"`config` is chnid:index, as 7:0,9:1, got {config!r}.") from None
    if not parts or len(index_of) != len(parts):
        raise errors.ConfigError(
            f"`config` must give each of its channels one index, as 7:0,9:1, got {config!r}."
        )
    if not all(0 <= index < _MOST_LABELS for index in index_of.values()):
        raise errors.ConfigError(
            f"Indices in `config` must be 0 to {_MOST_LABELS - 1}, got {config!r}."
        )
    return ops.monolith_row_scatter_label(
        variant,
        format=check_type(variant_type),
        channels=list(index_of),
        indices=list(index_of.values()),
    )


def read_label_tasks(config: str) -> list[tuple[list[int], list[int], float]]:
    """Reads the tasks of `add_label`: positive actions, negative ones, and the rate of each.

    Raises:
        errors.ConfigError: That is no config.
    """
    tasks = [_read_task(text) for text in config.split(";") if text]
    if not tasks:
        raise errors.ConfigError(f"`config` has no task: {config!r}; write positive:negative:rate.")
    return tasks


def add_labels(
    variant: tf.Tensor,
    tasks: Sequence[tuple[Sequence[int], Sequence[int], float]],
    negative_value: float,
    new_sample_rate: float,
    variant_type: str,
) -> tf.Tensor:
    """Does what `add_label` does, for tasks as `read_label_tasks` returns them."""
    seed, seed2 = _draw_seeds()
    return ops.monolith_row_add_labels(
        variant,
        format=check_type(variant_type),
        positive_actions=[action for positive, _, _ in tasks for action in positive],
        num_positive=[len(positive) for positive, _, _ in tasks],
        negative_actions=[action for _, negative, _ in tasks for action in negative],
        num_negative=[len(negative) for _, negative, _ in tasks],
        rates=[rate for _, _, rate in tasks],
        negative_value=negative_value,
        sample_rate=new_sample_rate,
        seed=seed,
        seed2=seed2,
    )


def _to_signed(values: Iterable[int] | None) -> list[int]:
    """Returns fids with the same bits, as attributes of an op have them."""
    return [(int(fid) + (1 << 63)) % (1 << 64) - (1 << 63) for fid in values or ()]


def _read_task(text: str) -> tuple[list[int], list[int], float]:
    try:
        positive, negative, rate = text.split(":")
        actions = [[int(a) for a in part.split(",") if a] for part in (positive, negative)]
        found = actions[0], actions[1], float(rate)
    except ValueError:
        raise errors.ConfigError(
            f"A task of `config` is positive:negative:rate, as 1,2:3:0.5, got {text!r}."
        ) from None
    _check_rate("rate", found[2])
    return found


def _read_actions(name: str, text: str) -> list[int]:
    try:
        return [int(action) for action in text.split(",") if action]
    except ValueError:
        raise errors.ConfigError(
            f"`{name}` is actions with commas between, got {text!r}."
        ) from None


def _read_rates(name: str, text: str) -> list[tuple[int, float]]:
    """Reads `1:0.5,2:0.9`."""
    rates = []
    for part in filter(None, text.split(",")):
        try:
            action, rate = part.split(":")
            rates.append((int(action), float(rate)))
        except ValueError:
            raise errors.ConfigError(f"`{name}` is as 1:0.5,2:0.9, got {text!r}.") from None
        _check_rate(name, rates[-1][1])
    return rates


def _check_rate(name: str, rate: float) -> None:
    if not 0 <= rate <= 1:
        raise errors.ConfigError(f"`{name}` must be 0 to 1, got {rate}.")


def _draw_seeds() -> tuple[int, int]:
    """Returns two numbers that decide draws; zeros draw others in each run."""
    seeds = random_seed.get_seed(None)
    return seeds[0] or 0, seeds[1] or 0
