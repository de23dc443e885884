"""Files of some days."""

import pytest
import tensorflow as tf

from monolith import errors
from monolith.data.dated_files import range_dateset

DAYS = ["20200501", "20200502", "20200503", "20200504", "20200505"]


@pytest.mark.parametrize(
    ("start", "end", "days"),
    [
        pytest.param("20200502", "20200502", DAYS[1:2], id="single_day"),
        pytest.param("20200502", "20200504", DAYS[1:4], id="several_days"),
        pytest.param("20200401", "20200601", DAYS, id="limits_out_of_range"),
        pytest.param("20200601", "20200401", [], id="nothing"),
        pytest.param(None, "20200503", DAYS[:3], id="missing_start"),
        pytest.param("20200503", None, DAYS[2:], id="missing_end"),
        pytest.param(None, None, DAYS, id="no_limit"),
    ],
)
def test_range(start, end, days):
    root = "hdfs://node/dätä/"
    dataset = tf.data.Dataset.from_tensor_slices([f"{root}{day}/part-00000" for day in DAYS])
    kept = range_dateset(dataset, root, start, end)
    assert [path.decode() for path in kept.as_numpy_iterator()] == [
        f"{root}{day}/part-00000" for day in days
    ]


@pytest.mark.parametrize("date", ["2020-05-01", "today", "202005011", ""])
def test_limits_that_are_no_dates(date):
    dataset = tf.data.Dataset.from_tensor_slices(["/20200501"])
    with pytest.raises(errors.ConfigError, match="end_date must be a date as 20260131"):
        range_dateset(dataset, "/", end_date=date)
