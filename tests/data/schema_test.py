"""Descriptions of columns."""

import pytest

from monolith import errors
from monolith.data import schema


def test_source_is_the_name_unless_a_column_is_given():
    assert schema.Ids("user").source == "user"
    assert schema.Dense("price", 3, column="p").source == "p"
    assert schema.Dense("price", 3).width == 3


@pytest.mark.parametrize(
    ("features", "message"),
    [
        pytest.param([], "schema is empty; say which columns", id="empty"),
        pytest.param(["user"], r"got 'user'; write for example Ids\('user'\)", id="string"),
        pytest.param([7], r"Ids, StringIds, Dense and Label but got 7\.", id="number"),
        pytest.param(
            [schema.Ids("a"), schema.Label("a")], "two features named 'a'", id="same_name"
        ),
        pytest.param([schema.Feature("a")], "but got Feature", id="base_class"),
    ],
)
def test_bad_schema_is_refused(features, message):
    with pytest.raises(errors.ConfigError, match=message):
        schema.check_schema(features)


def test_bad_features_are_refused():
    with pytest.raises(errors.ConfigError, match="positive width but got 0"):
        schema.Dense("price", 0)
    with pytest.raises(errors.ConfigError, match=r"Label needs a name, .* but got ''"):
        schema.Label("")
