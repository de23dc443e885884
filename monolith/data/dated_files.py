"""Files whose paths begin with a date: those of some days.

Example:
    >>> files = ["/logs/20260101/part-0", "/logs/20260102/part-0", "/logs/20260103/part-0"]
    >>> dataset = tf.data.Dataset.from_tensor_slices(files)
    >>> kept = range_dateset(dataset, "/logs/", start_date="20260102")
    >>> [path.decode() for path in kept.as_numpy_iterator()]
    ['/logs/20260102/part-0', '/logs/20260103/part-0']
"""

import re

import tensorflow as tf

from monolith import errors

_DATE_LENGTH = 8


def range_dateset(
    dataset: tf.data.Dataset,
    root_path: str,
    start_date: str | None = None,
    end_date: str | None = None,
) -> tf.data.Dataset:
    """Keeps the paths of some days.

    Args:
        dataset: Paths, as strings; what comes right behind `root_path` is a date, as 20260131.
        root_path: What all paths begin with.
        start_date: The first day; None for no limit.
        end_date: The last day; None for no limit.

    Raises:
        ConfigError: A limit is no such date.
    """
    start, end = _read(start_date, "start_date", 0), _read(end_date, "end_date", 99999999)

    def is_in_range(path: tf.Tensor) -> tf.Tensor:
        date = tf.strings.substr(path, len(root_path.encode()), _DATE_LENGTH)
        number = tf.strings.to_number(date, tf.int64)
        return tf.logical_and(number >= start, number <= end)

    return dataset.filter(is_in_range)


def _read(date: str | None, name: str, default: int) -> int:
    if date is None:
        return default
    if not re.fullmatch(r"\d{8}", date):
        raise errors.ConfigError(f"{name} must be a date as 20260131, got {date!r}.")
    return int(date)
