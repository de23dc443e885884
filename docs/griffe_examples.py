"""Lets the API reference show `Example:` sections, as our docstrings call them, as code."""

import re

import griffe


class ExampleSections(griffe.Extension):
    """Calls them `Examples:`, under which Griffe knows doctests."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )
