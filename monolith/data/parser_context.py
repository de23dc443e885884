"""What parsers are told about the model that they parse for.

A model that takes its embeddings from fused layouts looks up ids without parsing them into one
tensor per feature. Then a batch carries the serialized examples themselves, under the key
`SPARSE_FEATURES`, beside the features that were parsed.

Example:
    >>> with ParserCtx(enable_fused_layout=True) as ctx:
    ...     ctx.parser_type = "example"
    ...     get_default_parser_ctx().enable_fused_layout
    True
    >>> get_default_parser_ctx().enable_fused_layout
    False
"""

import types
from typing import Any

from monolith import errors

#: In front of the keys of everything that belongs to the ids of a fused layout.
SHARDING_PREFIX = "__sharding_sparse_fids__"

#: Key of the serialized examples of a batch, whose ids nobody has parsed.
SPARSE_FEATURES = f"{SHARDING_PREFIX}sparse_features"

_PARSER_TYPES = ("instance", "example", "examplebatch")


class ParserCtx:
    """Settings of the parsers that are called inside of it.

    Args:
        enable_fused_layout: Whether ids are left in the serialized examples.
    """

    def __init__(self, enable_fused_layout: bool = False) -> None:
        self.enable_fused_layout = enable_fused_layout
        self._parser_type: str | None = None
        self._values: dict[str, Any] = {}

    @property
    def parser_type(self) -> str | None:
        """What the serialized messages are: 'instance', 'example' or 'examplebatch'."""
        return self._parser_type

    @parser_type.setter
    def parser_type(self, value: str) -> None:
        name = value.replace("example_batch", "examplebatch")
        if name not in _PARSER_TYPES:
            raise errors.ConfigError(
                f"`parser_type` must be 'instance', 'example' or 'examplebatch', got {value!r}."
            )
        self._parser_type = name

    def set(self, key: str, value: Any) -> None:
        """Keeps a value for whoever asks for it."""
        self._values[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value that was kept, or `default`."""
        return self._values.get(key, default)

    def __enter__(self) -> "ParserCtx":
        _stack.append(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        _stack.pop()


# The last one counts; the first is there when nobody has entered any.
_stack = [ParserCtx()]


def get_default_parser_ctx() -> ParserCtx:
    """Returns the context that was entered last, or one without fused layouts."""
    return _stack[-1]
