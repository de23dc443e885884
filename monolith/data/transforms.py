"""Filters and labels of rows as objects, which can be joined, stored as a message, and applied.

`transform` applies them to a dataset of serialized rows, one after the other; each is a function of
`monolith.data.row_filters`.

Example:
    >>> from monolith.proto import example_pb2
    >>> rows = [example_pb2.Example() for _ in range(3)]
    >>> for row, action in zip(rows, (1, 2, 3)):
    ...     row.line_id.actions.append(action)
    >>> dataset = tf.data.Dataset.from_tensor_slices([row.SerializeToString() for row in rows])
    >>> is_known = LogicalOr(FilterByAction([1]), FilterByAction([2]))
    >>> both = Compose([is_known, AddLabel("1:2:1.0", negative_value=0.0, new_sample_rate=1.0)])
    >>> for row in transform(dataset, both).as_numpy_iterator():
    ...     print(example_pb2.Example.FromString(row).label)
    [1.0]
    [0.0]
"""

import abc
from collections.abc import Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from monolith import errors
from monolith.data import line_conditions, row_filters
from monolith.data.row_fields import check_type
from monolith.proto import transform_config_pb2

_Basic: TypeAlias = transform_config_pb2.BasicTransformConfig
_One: TypeAlias = transform_config_pb2.TransformConfig.OneTransformConfig


class Transform(abc.ABC):
    """Something to do with each row."""

    @abc.abstractmethod
    def list_configs(self) -> list[_One]:
        """Returns what is done, in its order."""

    def as_proto(self) -> transform_config_pb2.TransformConfig:
        """Returns what is done as a message."""
        return transform_config_pb2.TransformConfig(configs=self.list_configs())


class Leaf(Transform):
    """A transform that is not made of others."""

    @abc.abstractmethod
    def make_config(self) -> _Basic:
        """Returns what is done."""

    def list_configs(self) -> list[_One]:
        return [_One(basic_config=self.make_config())]


class Compose(Transform):
    """Several transforms, one after the other.

    Args:
        transforms: Each has the rows that the ones before it have left.
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        for each in transforms:
            if not isinstance(each, Transform):
                raise errors.ConfigError(f"Compose takes transforms, got {each!r}.")
        self._transforms = list(transforms)

    def list_configs(self) -> list[_One]:
        return [config for each in self._transforms for config in each.list_configs()]


class LogicalOr(Transform):
    """Keeps the rows that one of two filters keeps.

    Args:
        x: A filter that is not made of others.
        y: Another one.

    Raises:
        errors.ConfigError: One of them is made of others, or adds labels.
    """

    def __init__(self, x: Leaf, y: Leaf) -> None:
        for each in (x, y):
            if not isinstance(each, Leaf) or isinstance(each, AddLabel):
                raise errors.ConfigError(
                    f"LogicalOr takes two single filters, such as FilterByFid, got {each!r}."
                )
        self._x, self._y = x, y

    def list_configs(self) -> list[_One]:
        either = transform_config_pb2.LogicalOrTransformConfig(
            x=self._x.make_config(), y=self._y.make_config()
        )
        return [_One(logical_or_config=either)]


class FilterByFid(Leaf):
    """Keeps rows by their fids, as `row_filters.filter_by_fids` does.

    Args:
        has_fids: Rows with none of these go.
        filter_fids: Rows with one of these go.
        select_fids: Rows that have not all of these go.
    """

    def __init__(
        self,
        has_fids: Sequence[int] | None = None,
        filter_fids: Sequence[int] | None = None,
        select_fids: Sequence[int] | None = None,
    ) -> None:
        self._config = transform_config_pb2.FilterByFidConfig(
            has_fids=_to_unsigned(has_fids),
            filter_fids=_to_unsigned(filter_fids),
            select_fids=_to_unsigned(select_fids),
        )

    def make_config(self) -> _Basic:
        return _Basic(filter_by_fid=self._config)


class FilterByAction(Leaf):
    """Keeps rows that have one of some actions.

    Args:
        has_actions: The actions; without any, all rows stay.
    """

    def __init__(self, has_actions: Sequence[int] | None = None) -> None:
        self._config = transform_config_pb2.FilterByActionConfig(has_actions=has_actions or ())

    def make_config(self) -> _Basic:
        return _Basic(filter_by_action=self._config)


class FilterByLabel(Leaf):
    """Keeps rows of which at least one label reaches its threshold.

    Args:
        thresholds: One for each of the first labels; without any, all rows stay.
    """

    def __init__(self, thresholds: Sequence[float] | None = None) -> None:
        self._config = transform_config_pb2.FilterByLabelConfig(thresholds=thresholds or ())

    def make_config(self) -> _Basic:
        return _Basic(filter_by_label=self._config)


class FilterByValue(Leaf):
    """Keeps rows by a field of their LineId.

    Args:
        field_name: The field.
        op: What has to hold, as `monolith.data.line_conditions` says.
        operand: What the field is compared with: one, or several.
        keep_empty: Whether a row stays whose repeated field is empty.
        operand_filepath: A file with operands, in place of these.

    Raises:
        errors.ConfigError: That is no condition.
    """

    def __init__(
        self,
        field_name: str,
        op: str,
        operand: Any = None,
        keep_empty: bool = False,
        operand_filepath: str | None = None,
    ) -> None:
        condition = line_conditions.make_condition(
            field_name, op, operand, keep_empty=keep_empty, operand_filepath=operand_filepath
        )
        self._config = transform_config_pb2.FilterByValueConfig(
            field_name=field_name, op=op, keep_empty=keep_empty
        )
        if operand_filepath is not None:
            self._config.operand_filepath = operand_filepath
            return
        found = condition.settings
        self._config.int_operand.extend(found.get("integers", ()))
        self._config.float_operand.extend(found.get("floats", ()))
        self._config.string_operand.extend(found.get("strings", ()))

    def make_config(self) -> _Basic:
        return _Basic(filter_by_value=self._config)


class AddLabel(Leaf):
    """Adds a label for each of several tasks, as `row_filters.add_label` does.

    Args:
        config: The tasks, `1,2:3:0.5;4::1` say: positive actions, negative ones, the rate.
        negative_value: The label of negative rows.
        new_sample_rate: The `sample_rate` of the LineId from now on.

    Raises:
        errors.ConfigError: That is no config.
    """

    def __init__(
        self, config: str, negative_value: float = 0.0, new_sample_rate: float = 1.0
    ) -> None:
        self._config = transform_config_pb2.AddLabelConfig(
            negative_value=negative_value, new_sample_rate=new_sample_rate
        )
        for positive, negative, rate in row_filters.read_label_tasks(config):
            self._config.task_label_configs.add(
                pos_actions=positive, neg_actions=negative, sample_rate=rate
            )

    def make_config(self) -> _Basic:
        return _Basic(add_label=self._config)


def transform(
    dataset: tf.data.Dataset,
    t: Transform | transform_config_pb2.TransformConfig,
    variant_type: str = "example",
) -> tf.data.Dataset:
    """Returns the rows of a dataset as transforms leave them.

    Args:
        dataset: Serialized rows.
        t: What to do with them.
        variant_type: What they are, `instance` or `example`.

    Raises:
        errors.ConfigError: The transform cannot be applied.
    """
    config = t.as_proto() if isinstance(t, Transform) else t
    for one in config.configs:
        dataset = _apply(dataset, one, check_type(variant_type))
    return dataset


def _apply(dataset: tf.data.Dataset, one: _One, row_type: str) -> tf.data.Dataset:
    if one.WhichOneof("type") == "logical_or_config":
        x, y = map(_check_filter, (one.logical_or_config.x, one.logical_or_config.y))
        return dataset.filter(lambda row: _keeps(row, x, row_type) | _keeps(row, y, row_type))
    basic = one.basic_config
    if basic.WhichOneof("type") != "add_label":
        _check_filter(basic)
        return dataset.filter(lambda row: _keeps(row, basic, row_type))
    label = basic.add_label
    tasks = [
        (list(task.pos_actions), list(task.neg_actions), task.sample_rate)
        for task in label.task_label_configs
    ]
    return dataset.map(
        lambda row: row_filters.add_labels(
            row, tasks, label.negative_value, label.new_sample_rate, row_type
        )
    )


def _keeps(row: tf.Tensor, basic: _Basic, row_type: str) -> tf.Tensor:
    kind = basic.WhichOneof("type")
    if kind == "filter_by_fid":
        fids = basic.filter_by_fid
        return row_filters.filter_by_fids(
            row, fids.filter_fids, fids.has_fids, fids.select_fids, variant_type=row_type
        )
    if kind == "filter_by_action":
        actions = basic.filter_by_action.has_actions
        return row_filters.filter_by_fids(row, has_actions=actions, variant_type=row_type)
    if kind == "filter_by_label":
        thresholds = basic.filter_by_label.thresholds
        if not thresholds:
            return tf.constant(True)
        return row_filters.filter_by_label(row, thresholds, variant_type=row_type)
    value = basic.filter_by_value
    operands = [*value.int_operand, *value.float_operand, *value.string_operand]
    path = value.operand_filepath or None
    return row_filters.filter_by_value(
        row,
        value.field_name,
        value.op,
        None if path else operands,
        row_type,
        value.keep_empty,
        path,
    )


def _check_filter(basic: _Basic) -> _Basic:
    kind = basic.WhichOneof("type")
    if kind is None or kind == "add_label":
        raise errors.ConfigError(
            "A filter is by fid, action, label or value, but the message has "
            f"{kind or 'none of them'}."
        )
    return basic


def _to_unsigned(fids: Sequence[int] | None) -> list[int]:
    """Returns fids as the message has them; tensors have them with a sign."""
    return [int(fid) % (1 << 64) for fid in fids or ()]
