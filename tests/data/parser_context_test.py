"""The settings of parsers: the innermost context counts."""

import pytest

from monolith import errors
from monolith.data.parser_context import ParserCtx, get_default_parser_ctx


def test_the_innermost_context_counts():
    outside = get_default_parser_ctx()
    assert not outside.enable_fused_layout
    with ParserCtx(enable_fused_layout=True) as outer:
        with ParserCtx() as inner:
            assert get_default_parser_ctx() is inner
        with pytest.raises(ZeroDivisionError), ParserCtx():
            1 / 0  # noqa: B018
        assert get_default_parser_ctx() is outer
    assert get_default_parser_ctx() is outside


def test_values_and_the_kind_of_messages():
    ctx = ParserCtx()
    assert ctx.get("features") is None
    assert ctx.get("features", 3) == 3
    ctx.set("features", 4)
    assert ctx.get("features", 3) == 4
    assert ctx.parser_type is None
    ctx.parser_type = "example_batch"
    assert ctx.parser_type == "examplebatch"
    with pytest.raises(errors.ConfigError, match="'examplebatch', got 'csv'"):
        ctx.parser_type = "csv"
