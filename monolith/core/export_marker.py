"""The mark of names that belong to the public interface, for the tool that lists them."""

from typing import TypeVar

_T = TypeVar("_T")


def monolith_export(obj: _T) -> _T:
    """Marks a class or function as public, and returns it.

    Example:
        >>> @monolith_export
        ... def lookup(): ...
        >>> hasattr(lookup, "__monolith_doc")
        True
    """
    obj.__monolith_doc = None  # type: ignore[attr-defined]
    return obj
